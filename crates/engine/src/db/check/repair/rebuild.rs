//! A tree made anew of tables of which nobody knows where they stood.
//!
//! Which entry is newer their numbers tell, so all tables are merged into one run, whatever their order was. Tables
//! that a job had replaced may be among them. Then an entry comes twice; where one of the two is an
//! operand and the other is not, the other is what it was folded into.

use bytes::Bytes;
use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::{RangeTombstone, fragment};
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::db::check::repair::make::{Made, Maker, NewTable, Values};
use crate::error::{Error, Result};
use crate::format::version_edit::FileRecord;
use crate::iter::merging_iter::MergingCursor;
use crate::jobs::compaction::range_tombstone_queue::RangeTombstoneQueue;
use crate::table::{ReadPurpose, Table, TableCursor, TableIdentity, verify_table};
use crate::vfs::Vfs;

/// Bytes of a table from which on the next begins.
const TABLE_BYTES: u64 = 64 << 20;
/// Bytes of one read while a whole file is summed.
const CHUNK_BYTES: usize = 256 << 10;

/// Opens a table that no manifest vouches for, and checks it against itself.
///
/// # Errors
/// It cannot be read, or something is wrong with it.
pub(crate) fn open_sound(
    vfs: &dyn Vfs,
    path: &std::path::Path,
    (id, uid): (FileId, u64),
    cache: &Arc<BlockCache>,
) -> Result<Arc<Table>> {
    let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
    let (mut sum, mut bytes, mut chunk) = (StreamingChecksum::new(0), 0, vec![0; CHUNK_BYTES]);
    loop {
        let read = file.read_at(&mut chunk, bytes);
        let read = read.map_err(|error| Error::io("read", path, error))?;
        if read == 0 {
            break;
        }
        sum.update(&chunk[..read]);
        bytes += len_u64(read);
    }
    let identity = TableIdentity { id, bytes, uid, checksum: sum.digest() };
    let table = Table::open(vfs, path, &identity, cache)?;
    verify_table(&table)?;
    Ok(Arc::new(table))
}

/// Writes all that these tables hold as one run, values included.
///
/// # Errors
/// A table cannot be read after all, or a new one cannot be written.
pub(crate) fn merge(
    maker: &mut Maker<'_>,
    keyspace: (u32, &str),
    tables: &[Arc<Table>],
    values: &mut Values<'_>,
) -> Result<Vec<Arc<FileRecord>>> {
    let mut spans: Vec<RangeTombstone> = Vec::new();
    for table in tables {
        spans.extend_from_slice(table.range_tombstones(ReadPurpose::Job)?.as_slice());
    }
    let oldest = tables.iter().filter_map(|table| table.properties().oldest_tombstone_us).min();
    let mut run = Run {
        maker,
        keyspace,
        spans: RangeTombstoneQueue::new(fragment(&spans)),
        oldest,
        table: None,
        files: Vec::new(),
    };
    let mut merged = MergingCursor::new(
        tables.iter().map(|table| TableCursor::new(table, ReadPurpose::Job)).collect(),
    );
    merged.first()?;
    let mut last: Option<Bytes> = None;
    while merged.valid() {
        let (user_key, seq) = (Bytes::copy_from_slice(merged.key().user_key), merged.key().seq);
        let (kind, value) = one_of(&mut merged, &user_key, seq)?;
        let key = InternalKey { user_key: &user_key, seq, kind };
        let Some(placed) = values.place(keyspace.1, key, &value) else { continue };
        if last.as_ref() != Some(&user_key) {
            run.begin_key(&user_key)?;
            last = Some(user_key.clone());
        }
        run.table()?.add(placed)?;
    }
    run.finish()
}

/// Takes the entry at hand, and whatever else has its key and number.
fn one_of<C: Cursor>(
    merged: &mut MergingCursor<C>,
    user_key: &[u8],
    seq: SeqNo,
) -> Result<(EntryKind, Vec<u8>)> {
    let mut chosen = (merged.key().kind, merged.value().to_vec());
    merged.next()?;
    while merged.valid() && merged.key().user_key == user_key && merged.key().seq == seq {
        if chosen.0 == EntryKind::Merge && merged.key().kind != EntryKind::Merge {
            chosen = (merged.key().kind, merged.value().to_vec());
        }
        merged.next()?;
    }
    Ok(chosen)
}

/// The run that is being written.
struct Run<'m, 'a> {
    maker: &'m mut Maker<'a>,
    keyspace: (u32, &'m str),
    spans: RangeTombstoneQueue,
    oldest: Option<u64>,
    table: Option<NewTable>,
    files: Vec<Arc<FileRecord>>,
}

impl Run<'_, '_> {
    fn table(&mut self) -> Result<&mut NewTable> {
        if self.table.is_none() {
            self.table = Some(self.maker.begin(self.keyspace)?);
        }
        Ok(self.table.as_mut().expect("a table was begun just now"))
    }

    /// Begins a user key; the table at hand may end before it.
    fn begin_key(&mut self, user_key: &[u8]) -> Result<()> {
        while let Some(start) = self.spans.next_start(Some(user_key)) {
            self.cut_before(&start)?;
            self.spans.take_next();
        }
        self.cut_before(user_key)?;
        if self.spans.next_start(None).is_some_and(|start| *start == *user_key) {
            self.spans.take_next();
        }
        Ok(())
    }

    fn cut_before(&mut self, next: &[u8]) -> Result<()> {
        let bytes = self.table.as_ref().map_or(0, NewTable::bytes);
        if bytes + len_u64(self.spans.current_bytes()) < TABLE_BYTES {
            return Ok(());
        }
        self.end_table(Some(next))
    }

    fn end_table(&mut self, next: Option<&[u8]>) -> Result<()> {
        let last = self.table.as_ref().and_then(NewTable::last_key);
        let spans = self.spans.finish_table(last, next);
        if !spans.is_empty() {
            self.table()?;
        }
        if let Some(table) = self.table.take() {
            let Made { record, .. } = self.maker.finish(table, spans, self.oldest)?;
            self.files.extend(record);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Arc<FileRecord>>> {
        while self.spans.next_start(None).is_some() {
            self.spans.take_next();
        }
        self.end_table(None)?;
        Ok(self.files)
    }
}
