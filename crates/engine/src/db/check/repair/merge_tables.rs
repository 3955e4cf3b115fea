//! Merges tables whose positions in the tree are unknown into one run.
//!
//! The order of entries follows from their sequence numbers. Inputs and outputs of the same compaction may be among the
//! tables, so an entry may occur twice. If one of the two is an operand, the other one is the result of merging it.

use std::path::Path;

use bytes::Bytes;
use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::{RangeTombstone, fragment};
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, TableMeta};

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::db::check::repair::table_writer::{RepairTables, UnfinishedTable, ValueSalvager};
use crate::error::{Error, Result};
use crate::iter::merging_iter::MergingCursor;
use crate::jobs::compaction::range_tombstone_queue::RangeTombstoneQueue;
use crate::table::{FdCache, ReadPurpose, Table, TableCursor, TableIdentity, verify_table};
use crate::vfs::Vfs;

/// Target size of a new table, in bytes.
const TABLE_BYTES: u64 = 64 << 20;
/// Bytes of one read while the checksum of a file is computed.
const CHUNK_BYTES: usize = 256 << 10;

/// Opens a table without a record in a manifest, and checks that its content is consistent. `seq_largest` is the
/// sequence number of an ingested table.
pub(crate) fn open_undamaged_table(
    vfs: &dyn Vfs,
    descriptors: &Arc<FdCache>,
    path: &Path,
    (id, uid, seq_largest): (FileId, u64, SeqNo),
    cache: &Arc<BlockCache>,
) -> Result<Arc<Table>> {
    let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
    let (mut checksum, mut bytes) = (StreamingChecksum::new(0), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = file.read_at(&mut chunk, bytes);
        let read = read.map_err(|error| Error::io("read", path, error))?;
        if read == 0 {
            break;
        }
        checksum.update(&chunk[..read]);
        bytes += len_u64(read);
    }
    let checksum = checksum.digest();
    let identity = TableIdentity { id, bytes, uid, checksum, seq_largest };
    drop(file);
    let table = Table::open_cached(descriptors, path, &identity, cache)?;
    verify_table(&table)?;
    Ok(Arc::new(table))
}

/// Writes all entries of the tables as one run. Returns the records of the new tables.
pub(crate) fn merge_tables(
    output: &mut RepairTables<'_>,
    keyspace: (u32, &str),
    tables: &[Arc<Table>],
    values: &mut ValueSalvager<'_>,
) -> Result<Vec<Arc<TableMeta>>> {
    let mut tombstones: Vec<RangeTombstone> = Vec::new();
    for table in tables {
        tombstones.extend_from_slice(table.range_tombstones(ReadPurpose::Job)?.as_slice());
    }
    let properties = tables.iter().map(|table| table.properties());
    let with_tombstones = properties.filter(|it| it.tombstones + it.range_tombstone_count > 0);
    let mut run = RunWriter {
        output,
        keyspace,
        range_tombstones: RangeTombstoneQueue::new(fragment(&tombstones)),
        // `None` is smaller than any time.
        oldest_tombstone_us: with_tombstones.map(|it| it.oldest_tombstone_us).min().flatten(),
        table: None,
        records: Vec::new(),
    };
    let cursors = tables.iter().map(|table| TableCursor::new(table, ReadPurpose::Job));
    let mut merged = MergingCursor::new(cursors.collect());
    merged.first()?;
    let mut last: Option<Bytes> = None;
    while merged.valid() {
        let (user_key, seq) = (Bytes::copy_from_slice(merged.key().user_key), merged.key().seq);
        let (kind, value) = next_unique_entry(&mut merged, &user_key, seq)?;
        let key = InternalKey { user_key: &user_key, seq, kind };
        let Some(entry) = values.salvage(keyspace.1, key, &value)? else { continue };
        if last.as_ref() != Some(&user_key) {
            run.start_key(&user_key)?;
            last = Some(user_key.clone());
        }
        run.table()?.add(entry)?;
    }
    run.finish()
}

/// Moves past all entries with this key and sequence number. Returns the one that is not an operand, if there is one.
fn next_unique_entry<C: Cursor>(
    merged: &mut MergingCursor<C>,
    user_key: &[u8],
    seq: SeqNo,
) -> Result<(EntryKind, Vec<u8>)> {
    let mut entry = (merged.key().kind, merged.value().to_vec());
    merged.next()?;
    while merged.valid() && merged.key().user_key == user_key && merged.key().seq == seq {
        if entry.0 == EntryKind::Merge && merged.key().kind != EntryKind::Merge {
            entry = (merged.key().kind, merged.value().to_vec());
        }
        merged.next()?;
    }
    Ok(entry)
}

/// Writes a sorted run as tables of about [`TABLE_BYTES`] each.
struct RunWriter<'m, 'a> {
    output: &'m mut RepairTables<'a>,
    keyspace: (u32, &'m str),
    /// Range tombstones that are not written yet.
    range_tombstones: RangeTombstoneQueue,
    /// Write time of the oldest tombstone of all tables, in microseconds. `None` if the time of any table is unknown.
    oldest_tombstone_us: Option<u64>,
    table: Option<UnfinishedTable>,
    records: Vec<Arc<TableMeta>>,
}

impl RunWriter<'_, '_> {
    /// Returns the current table, or starts one.
    fn table(&mut self) -> Result<&mut UnfinishedTable> {
        let table = match self.table.take() {
            Some(table) => table,
            None => self.output.start(self.keyspace)?,
        };
        Ok(self.table.insert(table))
    }

    /// Starts a user key. The current table may end before it.
    fn start_key(&mut self, user_key: &[u8]) -> Result<()> {
        while let Some(start) = self.range_tombstones.next_start(Some(user_key)) {
            self.finish_full_table(&start)?;
            self.range_tombstones.take_next();
        }
        self.finish_full_table(user_key)?;
        if self.range_tombstones.next_start(None).is_some_and(|start| *start == *user_key) {
            self.range_tombstones.take_next();
        }
        Ok(())
    }

    /// Ends the current table before the key `next` if it has reached its target size.
    fn finish_full_table(&mut self, next: &[u8]) -> Result<()> {
        let bytes = self.table.as_ref().map_or(0, UnfinishedTable::bytes);
        if bytes + len_u64(self.range_tombstones.current_table_bytes()) < TABLE_BYTES {
            return Ok(());
        }
        self.end_table(Some(next))
    }

    fn end_table(&mut self, next: Option<&[u8]>) -> Result<()> {
        let last = self.table.as_ref().and_then(UnfinishedTable::last_key);
        let tombstones = self.range_tombstones.finish_table(last, next);
        if !tombstones.is_empty() {
            self.table()?;
        }
        if let Some(table) = self.table.take() {
            let written = self.output.finish(table, tombstones, self.oldest_tombstone_us)?;
            self.records.extend(written.record);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Arc<TableMeta>>> {
        while self.range_tombstones.next_start(None).is_some() {
            self.range_tombstones.take_next();
        }
        self.end_table(None)?;
        Ok(self.records)
    }
}
