//! Writes the entries of damaged files to new tables.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lsmx_base::file_name::FileName;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, TableMeta};

use crate::db::check::repair::damaged_blobs::DamagedBlobFiles;
use crate::db::check::repair::report::{Loss, LossKind, is_damage_error};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::expiry::{expiry_of, put_expiring_value, without_expiry};
use crate::format::version_edit::BlobReference;
use crate::state::table_factory::build_table_meta;
use crate::table::{TableOptions, TableWriter};
use crate::vfs::Vfs;

/// Creates the tables of a repair. Writes nothing in a dry run.
#[derive(Debug)]
pub(crate) struct RepairTables<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) dir: &'a Path,
    pub(crate) env: &'a Env,
    /// Number of the next file.
    pub(crate) number_next: u64,
    /// Creation counter of the next table. The counter orders tables by the time of their creation.
    pub(crate) creation_next: u64,
    pub(crate) dry_run: bool,
}

/// A table that is being written.
#[derive(Debug)]
pub(crate) struct UnfinishedTable {
    id: FileId,
    /// `None` in a dry run.
    writer: Option<TableWriter>,
    pub(crate) entries: u64,
    seq_largest: SeqNo,
    /// Bytes and number of the referenced values, by blob file.
    references: BTreeMap<u64, BlobReference>,
}

/// A complete table.
#[derive(Debug)]
pub(crate) struct WrittenTable {
    /// Metadata of the table for the manifest. `None` in a dry run.
    pub(crate) record: Option<Arc<TableMeta>>,
    /// Largest sequence number of the entries and range tombstones.
    pub(crate) seq_largest: SeqNo,
    pub(crate) references: Vec<BlobReference>,
}

impl RepairTables<'_> {
    /// Allocates a file number.
    pub(crate) fn allocate(&mut self) -> u64 {
        let number = self.number_next;
        self.number_next += 1;
        number
    }

    /// Starts a new table for a keyspace.
    pub(crate) fn start(&mut self, (keyspace, name): (u32, &str)) -> Result<UnfinishedTable> {
        let number = self.allocate();
        let mut writer = None;
        if !self.dry_run {
            let path = FileName::Table(number).in_dir(self.dir);
            let (uid, options) = (self.env.random_u64(), TableOptions::default());
            let mut created = TableWriter::create(self.vfs, &path, uid, &options)?;
            created.set_keyspace(keyspace, name);
            created.set_creation_time(self.env.creation_time_us());
            writer = Some(created);
        }
        let (id, seq_largest, references) = (FileId(number), SeqNo::ZERO, BTreeMap::new());
        Ok(UnfinishedTable { id, writer, entries: 0, seq_largest, references })
    }

    /// Completes a table that has entries or range tombstones.
    pub(crate) fn finish(
        &mut self,
        mut table: UnfinishedTable,
        range_tombstones: Vec<RangeTombstone>,
        oldest_tombstone_us: Option<u64>,
    ) -> Result<WrittenTable> {
        let references = table.references.into_values().collect();
        let tombstone_seqs = range_tombstones.iter().flat_map(|tombstone| &tombstone.seqs).copied();
        let seq_largest = tombstone_seqs.fold(table.seq_largest, SeqNo::max);
        let Some(mut writer) = table.writer.take() else {
            return Ok(WrittenTable { record: None, seq_largest, references });
        };
        range_tombstones.into_iter().for_each(|tombstone| writer.add_range_tombstone(tombstone));
        if let Some(us) = oldest_tombstone_us {
            writer.record_tombstone_time(us);
        }
        let summary = writer.finish()?;
        let created_us = self.env.creation_time_us();
        let meta = build_table_meta(table.id, &summary, created_us, self.creation_next);
        self.creation_next += 1;
        Ok(WrittenTable { record: Some(Arc::new(meta)), seq_largest, references })
    }
}

impl UnfinishedTable {
    pub(crate) fn add(&mut self, entry: SalvagedEntry<'_>) -> Result<()> {
        if let Some(pointer) = entry.pointer {
            let blob = FileId(pointer.file);
            let unused = BlobReference { blob, bytes: 0, records: 0 };
            let reference = self.references.entry(pointer.file).or_insert(unused);
            reference.bytes += pointer.bytes;
            reference.records += 1;
        }
        self.entries += 1;
        self.seq_largest = self.seq_largest.max(entry.key.seq);
        match &mut self.writer {
            Some(writer) => writer.add(entry.key, &entry.value),
            None => Ok(()),
        }
    }

    /// Returns the key of the last entry, or `None` in a dry run.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.writer.as_ref().and_then(TableWriter::last_key)
    }

    /// Returns the estimated size of the table, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::estimated_bytes)
    }
}

/// An entry to write to a new table.
#[derive(Debug)]
pub(crate) struct SalvagedEntry<'a> {
    key: InternalKey<'a>,
    value: Cow<'a, [u8]>,
    /// Pointer to the value if the value stays in an undamaged blob file.
    pointer: Option<ValuePointer>,
}

/// Replaces pointers into damaged blob files with the values.
#[derive(Debug)]
pub(crate) struct ValueSalvager<'a> {
    /// Numbers of the undamaged blob files of the keyspace.
    sound: BTreeSet<u64>,
    damaged: DamagedBlobFiles<'a>,
    /// Unreadable values since the last call of `take_lost_values`.
    lost: Vec<Loss>,
    /// Whether the value of the previous entry is unreadable.
    previous_is_lost: bool,
}

impl<'a> ValueSalvager<'a> {
    pub(crate) fn new(sound: BTreeSet<u64>, damaged: DamagedBlobFiles<'a>) -> ValueSalvager<'a> {
        ValueSalvager { sound, damaged, lost: Vec::new(), previous_is_lost: false }
    }

    /// Converts an entry of an old table to an entry of a new table. Returns `None` if the value is unreadable.
    /// Unreadable values of adjacent entries are reported as one loss.
    ///
    /// # Errors
    /// The error of a read of the value, if [`is_damage_error`] returns false for it.
    pub(crate) fn salvage<'e>(
        &mut self,
        keyspace: &str,
        key: InternalKey<'e>,
        value: &'e [u8],
    ) -> Result<Option<SalvagedEntry<'e>>> {
        let previous_is_lost = std::mem::replace(&mut self.previous_is_lost, false);
        if key.kind.without_expiry() != EntryKind::ValuePointer {
            return Ok(Some(SalvagedEntry { key, value: Cow::Borrowed(value), pointer: None }));
        }
        let pointer = ValuePointer::decode(without_expiry(key.kind, value));
        let file = pointer.as_ref().map_or(0, |pointer| pointer.file);
        let read = match &pointer {
            Ok(pointer) if self.sound.contains(&file) => {
                let pointer = Some(*pointer);
                return Ok(Some(SalvagedEntry { key, value: Cow::Borrowed(value), pointer }));
            }
            Ok(pointer) => self.damaged.read_value((key.user_key, key.seq), pointer),
            Err(what) => Err(Error::malformed(what.clone(), &self.damaged.path(0), 0)),
        };
        let why = match read {
            Ok(read) => {
                let expiry_us = expiry_of(key.kind, value);
                let mut value = read;
                let mut key = InternalKey { kind: EntryKind::Put, ..key };
                if let Some(expiry_us) = expiry_us {
                    let content = std::mem::take(&mut value);
                    put_expiring_value(&mut value, expiry_us, &content);
                    key.kind = EntryKind::PutExpiring;
                }
                return Ok(Some(SalvagedEntry { key, value: Cow::Owned(value), pointer: None }));
            }
            Err(error) if !is_damage_error(&error) => return Err(error),
            Err(error) => error,
        };
        self.previous_is_lost = true;
        let (user_key, bytes) =
            (Some(key.user_key.to_vec()), pointer.map_or(0, |pointer| pointer.bytes));
        match self.lost.last_mut().filter(|_| previous_is_lost) {
            Some(loss) => {
                loss.to = user_key;
                loss.bytes += bytes;
            }
            None => {
                let path = self.damaged.path(file);
                let loss = Loss::new(Some(keyspace), path, LossKind::Values, why);
                self.lost.push(Loss { from: user_key.clone(), to: user_key, bytes, ..loss });
            }
        }
        Ok(None)
    }

    /// Returns the losses since the last call.
    pub(crate) fn take_lost_values(&mut self) -> Vec<Loss> {
        self.previous_is_lost = false;
        std::mem::take(&mut self.lost)
    }
}
