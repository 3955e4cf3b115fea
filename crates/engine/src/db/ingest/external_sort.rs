//! External sort of the entries of a bulk load.
//!
//! 1. Entries are collected in memory up to a bound. A full buffer is sorted and written to a temporary file, a *sorted
//!    chunk*. A chunk has the format of a table without a filter.
//! 2. [`FAN_IN`] chunks of one generation are merged into one chunk of the next generation. The number of chunks, and so
//!    the memory for reading them, is logarithmic in the input.
//! 3. The remaining chunks are merged into the output.
//!
//! Chunks are numbered in input order, and the entries of a chunk have its number as their sequence number. If several
//! chunks contain a key, a merge returns the entry of the newest chunk. A merge combines adjacent chunks, so its output
//! takes the number of the newest input.

use std::path::PathBuf;

use lsmx_base::file_name::FileName;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::db::ingest::entry_buffer::EntryBuffer;
use crate::db::ingest::prepared::NewFiles;
use crate::db::inner::DbInner;
use crate::env::rate_limit::IoPriority;
use crate::error::Result;
use crate::iter::merging_iter::MergingCursor;
use crate::table::{
    Compression, ReadPurpose, Table, TableCursor, TableIdentity, TableOptions, TableWriter,
};

/// Number of chunks of one generation that are merged together.
const FAN_IN: usize = 16;

/// Number of entries that are written between two checks that the database is open and writable.
const CHECK_ENTRIES: u64 = 1024;

/// A sorted temporary file. Dropping the last reference removes it.
#[derive(Debug)]
struct SortedChunk {
    table: Arc<Table>,
    _file: NewFiles,
}

/// Sorted chunks by generation. The oldest chunk of a generation is first. Chunks of later generations are older.
#[derive(Debug, Default)]
pub(super) struct SortedChunks {
    generations: Vec<Vec<SortedChunk>>,
    /// Number of the newest chunk.
    newest: u64,
}

impl SortedChunks {
    pub(super) fn is_empty(&self) -> bool {
        self.generations.iter().all(Vec::is_empty)
    }

    /// Writes the entries of a buffer to a new chunk.
    pub(super) fn add(&mut self, inner: &DbInner, buffer: &mut EntryBuffer) -> Result<()> {
        buffer.sort();
        self.newest += 1;
        let mut chunk = ChunkWriter::create(inner)?;
        for (key, value) in buffer.iter() {
            chunk.add(inner, key, value)?;
        }
        buffer.clear();
        let chunk = chunk.finish(inner, SeqNo(self.newest))?;
        self.add_chunk(inner, 0, chunk)
    }

    fn add_chunk(&mut self, inner: &DbInner, generation: usize, chunk: SortedChunk) -> Result<()> {
        if self.generations.len() <= generation {
            self.generations.resize_with(generation + 1, Vec::new);
        }
        let chunks = &mut self.generations[generation];
        chunks.push(chunk);
        if chunks.len() < FAN_IN {
            return Ok(());
        }
        let inputs = std::mem::take(chunks);
        let newest = inputs.last().and_then(|chunk| chunk.table.ingest_seq()).unwrap_or_default();
        let mut merged = ChunkWriter::create(inner)?;
        merge_chunks(&inputs, |key, value| merged.add(inner, key, value))?;
        let merged = merged.finish(inner, newest)?;
        drop(inputs);
        self.add_chunk(inner, generation + 1, merged)
    }

    /// Passes the entries of all chunks to `visit`, in key order, each key once.
    pub(super) fn merge(self, visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let chunks: Vec<_> = self.generations.into_iter().flatten().collect();
        merge_chunks(&chunks, visit)
    }
}

/// Passes the newest entry of each key to `visit`, in key order.
fn merge_chunks(
    chunks: &[SortedChunk],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let cursors = chunks.iter().map(|chunk| TableCursor::new(&chunk.table, ReadPurpose::Job));
    let mut merged = MergingCursor::new(cursors.collect());
    merged.first()?;
    let mut last: Option<Vec<u8>> = None;
    while merged.valid() {
        let key = merged.key().user_key;
        if last.as_deref() != Some(key) {
            visit(key, merged.value())?;
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
        }
        merged.next()?;
    }
    Ok(())
}

/// Writes one sorted chunk.
struct ChunkWriter {
    writer: TableWriter,
    path: PathBuf,
    number: u64,
    file: NewFiles,
    entries: u64,
}

impl ChunkWriter {
    fn create(inner: &DbInner) -> Result<ChunkWriter> {
        let tables = &inner.state.tables;
        let number = tables.files.allocate();
        let path = FileName::Temporary(number).in_dir(&tables.dir);
        let mut file = NewFiles::new(&inner.state);
        file.add(path.clone());
        let options = TableOptions {
            block_bytes: 16 << 10,
            compression: Compression::Lz4,
            filter: None,
            ..TableOptions::default()
        };
        let vfs = tables.with_rate_limit(IoPriority::Compaction);
        let mut writer = TableWriter::create(&vfs, &path, tables.env.random_u64(), &options)?;
        writer.set_external();
        Ok(ChunkWriter { writer, path, number, file, entries: 0 })
    }

    fn add(&mut self, inner: &DbInner, user_key: &[u8], value: &[u8]) -> Result<()> {
        if self.entries.is_multiple_of(CHECK_ENTRIES) {
            inner.check_can_write_files()?;
        }
        self.entries += 1;
        self.writer.add(InternalKey { user_key, seq: SeqNo::ZERO, kind: EntryKind::Put }, value)
    }

    fn finish(self, inner: &DbInner, seq: SeqNo) -> Result<SortedChunk> {
        let ChunkWriter { writer, path, number, file, .. } = self;
        let tables = &inner.state.tables;
        let summary = writer.finish()?;
        let identity = TableIdentity {
            id: FileId(number),
            bytes: summary.bytes,
            uid: summary.uid,
            checksum: summary.checksum,
            seq_largest: seq,
        };
        let cache = BlockCache::new(0);
        let table = Table::open_cached(&tables.descriptors, &path, &identity, &cache)?;
        Ok(SortedChunk { table: Arc::new(table), _file: file })
    }
}
