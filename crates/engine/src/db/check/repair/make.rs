//! New tables for what was read of old ones.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::db::check::repair::report::{Lost, LostKind};
use crate::db::check::repair::values::BlobRemains;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::file_name::FileName;
use crate::format::version_edit::{BlobReference, FileRecord};
use crate::state::table_factory::build_table_meta;
use crate::table::{TableOptions, TableWriter};
use crate::vfs::Vfs;

/// Makes tables; nothing is written of a repair that is only tried.
#[derive(Debug)]
pub(crate) struct Maker<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) dir: &'a Path,
    pub(crate) env: &'a Env,
    /// Number of the next file.
    pub(crate) number: u64,
    /// Order of its creation.
    pub(crate) creation: u64,
    pub(crate) dry_run: bool,
}

/// A table that is being written, with what it references of the value log.
#[derive(Debug)]
pub(crate) struct NewTable {
    id: FileId,
    writer: Option<TableWriter>,
    pub(crate) entries: u64,
    seq_largest: SeqNo,
    references: BTreeMap<u64, (u64, u64)>,
}

/// A table that was written.
#[derive(Debug)]
pub(crate) struct Made {
    /// For the manifest; none where nothing is written.
    pub(crate) record: Option<Arc<FileRecord>>,
    /// Largest sequence number of its entries and range deletes.
    pub(crate) seq_largest: SeqNo,
    pub(crate) references: Vec<BlobReference>,
}

impl Maker<'_> {
    /// A number that no file has.
    pub(crate) fn allocate(&mut self) -> u64 {
        let number = self.number;
        self.number += 1;
        number
    }

    /// Begins a table of a keyspace.
    ///
    /// # Errors
    /// Its file cannot be created.
    pub(crate) fn begin(&mut self, (id, name): (u32, &str)) -> Result<NewTable> {
        let number = self.allocate();
        let path = FileName::Table(number).in_dir(self.dir);
        let mut writer = None;
        if !self.dry_run {
            let options = TableOptions::default();
            let mut begun = TableWriter::create(self.vfs, &path, self.env.random_u64(), &options)?;
            begun.set_keyspace(id, name);
            begun.set_created(self.env.creation_time_us());
            writer = Some(begun);
        }
        let (id, seq_largest, references) = (FileId(number), SeqNo::ZERO, BTreeMap::new());
        Ok(NewTable { id, writer, entries: 0, seq_largest, references })
    }

    /// Ends a table that has entries or range deletes.
    ///
    /// # Errors
    /// It cannot be written or synced.
    pub(crate) fn finish(
        &mut self,
        mut table: NewTable,
        spans: Vec<RangeTombstone>,
        oldest_tombstone_us: Option<u64>,
    ) -> Result<Made> {
        let references = table
            .references
            .into_iter()
            .map(|(blob, (bytes, records))| BlobReference { blob: FileId(blob), bytes, records });
        let references = references.collect();
        let of_spans = spans.iter().flat_map(|span| &span.seqs).copied();
        let seq_largest = of_spans.fold(table.seq_largest, SeqNo::max);
        let Some(mut writer) = table.writer.take() else {
            return Ok(Made { record: None, seq_largest, references });
        };
        spans.into_iter().for_each(|span| writer.add_range_tombstone(span));
        if let Some(us) = oldest_tombstone_us {
            writer.note_tombstone_time(us);
        }
        let summary = writer.finish()?;
        let shape =
            build_table_meta(table.id, &summary, self.env.creation_time_us(), self.creation);
        self.creation += 1;
        let record = FileRecord::from_shape(&shape, summary.uid, summary.checksum);
        Ok(Made { record: Some(Arc::new(record)), seq_largest, references })
    }
}

impl NewTable {
    /// Adds an entry.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add(&mut self, entry: Placed<'_>) -> Result<()> {
        if let Some(pointer) = entry.pointer {
            let (bytes, records) = self.references.entry(pointer.file).or_default();
            *bytes += pointer.bytes;
            *records += 1;
        }
        self.entries += 1;
        self.seq_largest = self.seq_largest.max(entry.key.seq);
        match &mut self.writer {
            Some(writer) => writer.add(entry.key, &entry.value),
            None => Ok(()),
        }
    }

    /// Key of the last entry, if anything is written.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.writer.as_ref().and_then(TableWriter::last_key)
    }

    /// Bytes written, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::estimated_bytes)
    }
}

/// An entry as it goes to a new table.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    key: InternalKey<'a>,
    value: Cow<'a, [u8]>,
    pointer: Option<ValuePointer>,
}

/// Brings back into tables the values of blob files that are not to be trusted.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    /// Blob files that stay; none of all others.
    pub(crate) sound: BTreeSet<u64>,
    pub(crate) remains: BlobRemains<'a>,
    /// Values that could not be read, of the table at hand.
    lost: Vec<Lost>,
    /// Whether the entry before was one of these.
    losing: bool,
}

impl<'a> Values<'a> {
    /// Of a keyspace with these blob files.
    pub(crate) fn new(sound: BTreeSet<u64>, remains: BlobRemains<'a>) -> Values<'a> {
        Values { sound, remains, lost: Vec::new(), losing: false }
    }

    /// What becomes of an entry of the keyspace `name`; none if its value is lost.
    pub(crate) fn place<'e>(
        &mut self,
        name: &str,
        key: InternalKey<'e>,
        value: &'e [u8],
    ) -> Option<Placed<'e>> {
        let losing = std::mem::replace(&mut self.losing, false);
        if key.kind != EntryKind::ValuePointer {
            return Some(Placed { key, value: Cow::Borrowed(value), pointer: None });
        }
        let pointer = ValuePointer::decode(value);
        if let Ok(pointer) = pointer
            && self.sound.contains(&pointer.file)
        {
            return Some(Placed { key, value: Cow::Borrowed(value), pointer: Some(pointer) });
        }
        let read = match &pointer {
            Ok(pointer) => self.remains.value((key.user_key, key.seq), pointer),
            Err(what) => Err(Error::malformed(what.clone(), &self.remains.path(0), 0)),
        };
        let pointer = pointer.ok();
        let why = match read {
            Ok(value) => {
                let key = InternalKey { kind: EntryKind::Put, ..key };
                return Some(Placed { key, value: Cow::Owned(value), pointer: None });
            }
            Err(error) => error.to_string(),
        };
        self.losing = true;
        let bytes = pointer.map_or(0, |pointer| pointer.bytes);
        match self.lost.last_mut().filter(|_| losing) {
            Some(lost) => {
                lost.to = Some(key.user_key.to_vec());
                lost.bytes += bytes;
            }
            None => self.lost.push(Lost {
                keyspace: Some(name.to_owned()),
                path: self.remains.path(pointer.map_or(0, |pointer| pointer.file)),
                what: LostKind::Values,
                from: Some(key.user_key.to_vec()),
                to: Some(key.user_key.to_vec()),
                bytes,
                why,
            }),
        }
        None
    }

    /// Values that were lost since the last time.
    pub(crate) fn take_lost(&mut self) -> Vec<Lost> {
        self.losing = false;
        std::mem::take(&mut self.lost)
    }
}
