//! Bulk load: writes entries directly to tables, without the log, memtables and compactions.

use std::fmt;

use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, Ordering};

use crate::db::handle::DbHandle;
use crate::db::ingest::entry_buffer::EntryBuffer;
use crate::db::ingest::external_sort::SortedChunks;
use crate::db::ingest::install::install_tables;
use crate::db::ingest::load_tables::LoadTables;
use crate::db::ingest::prepared::{
    IngestSummary, NewFiles, PreparedTable, TreeTables, check_accepts_ingest,
};
use crate::db::inner::{DbInner, check_reentry};
use crate::error::{Error, Result};
use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::tree::Tree;

/// Bytes of sorted entries that are collected before they are added to a table.
const SORTED_BUFFER_BYTES: u64 = 256 << 10;
/// Smallest memory bound of a sort, in bytes.
const SORT_MEMORY_BYTES_MIN: u64 = 64 << 10;
/// Number of written entries between two calls of the progress callback.
const PROGRESS_ENTRIES: u64 = 16 << 10;

/// Phase of a bulk load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BulkLoadPhase {
    /// Entries are received. Sorted entries are written to tables, unsorted ones to sorted temporary files.
    Input,
    /// The temporary files are merged into tables.
    Merge,
    /// The tables are added to the tree.
    Install,
}

/// Progress of a bulk load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkLoadProgress {
    /// Current phase.
    pub phase: BulkLoadPhase,
    /// Number of entries received.
    pub entries: u64,
    /// Bytes of keys and values received.
    pub bytes: u64,
    /// Number of entries written to tables.
    pub written_entries: u64,
}

/// Progress callback.
type OnProgress<'a> = dyn FnMut(&BulkLoadProgress) + Send + 'a;

/// Options of a bulk load.
#[derive(Default)]
#[non_exhaustive]
pub struct BulkLoadOptions<'a> {
    sort_memory_bytes: Option<u64>,
    progress: Option<Box<OnProgress<'a>>>,
}

impl fmt::Debug for BulkLoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = f.debug_struct("BulkLoadOptions");
        options.field("sort_memory_bytes", &self.sort_memory_bytes).finish_non_exhaustive()
    }
}

impl<'a> BulkLoadOptions<'a> {
    /// Accepts entries in any order and sorts them with this many bytes of memory, at least 64 KiB. If a key has
    /// several entries, the last one is loaded. By default, entries must be in ascending order of distinct keys.
    ///
    /// The buffer of the sort allocates at most this memory. An entry that is larger is alone in the buffer. The
    /// [memory budget](crate::Options::memory_budget) does not include the buffer.
    ///
    /// Input that exceeds the memory is written to temporary files in the database directory. The load then needs up to
    /// twice the space of its input. The merge of the temporary files needs additional memory for reads, at most a few
    /// MiB.
    #[must_use]
    pub fn sort_memory_bytes(self, bytes: u64) -> BulkLoadOptions<'a> {
        BulkLoadOptions { sort_memory_bytes: Some(bytes), ..self }
    }

    /// Calls a function after each 16 Ki written entries, after each sorted buffer, and at the start of each phase. The
    /// function must not close or resume the database, because these calls wait for the load.
    #[must_use]
    pub fn progress(
        self,
        progress: impl FnMut(&BulkLoadProgress) + Send + 'a,
    ) -> BulkLoadOptions<'a> {
        BulkLoadOptions { progress: Some(Box::new(progress)), ..self }
    }
}

/// A running bulk load, see [`Keyspace::bulk_loader`](crate::Keyspace::bulk_loader).
///
/// [`BulkLoader::finish`] makes all entries visible together. Dropping an unfinished loader discards them. After an
/// error of [`BulkLoader::put`], later calls return the same error.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// use lsmx::ingest::BulkLoadOptions;
///
/// let words = db.default_keyspace();
/// let options = BulkLoadOptions::default().sort_memory_bytes(64 << 20);
/// let mut loader = words.bulk_loader(options)?;
/// for (line, word) in ["to", "be", "or", "not"].iter().enumerate() {
///     loader.put(word, line.to_string())?;
/// }
/// assert_eq!(words.get("be")?, None);
/// assert_eq!(loader.finish()?.entries, 4);
/// assert_eq!(words.get("be")?.as_deref(), Some(&b"1"[..]));
/// # Ok(())
/// # }
/// ```
pub struct BulkLoader<'a> {
    handle: Arc<DbHandle>,
    tree: Arc<Tree>,
    /// Value of [`DbInner::rewrites`] at the start of the load.
    rewrites: u64,
    /// Entries that were received, but not written.
    buffer: EntryBuffer,
    /// Sorted chunks of unsorted input; `None` if the input must be sorted.
    chunks: Option<SortedChunks>,
    tables: LoadTables,
    new_files: NewFiles,
    options: BulkLoadOptions<'a>,
    progress: BulkLoadProgress,
    first_error: Option<Error>,
}

impl fmt::Debug for BulkLoader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkLoader").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl<'a> BulkLoader<'a> {
    pub(crate) fn new(
        handle: &Arc<DbHandle>,
        tree: &Arc<Tree>,
        options: BulkLoadOptions<'a>,
    ) -> Result<BulkLoader<'a>> {
        check_reentry("bulk_load")?;
        let inner = &handle.0;
        inner.check_can_write_files()?;
        check_accepts_ingest(tree)?;
        if let Some(bytes) =
            options.sort_memory_bytes.filter(|&bytes| bytes < SORT_MEMORY_BYTES_MIN)
        {
            let (name, must) = ("sort_memory_bytes", "at least 65536");
            return Err(Error::InvalidOption { name, value: bytes.to_string(), must });
        }
        let progress = BulkLoadProgress {
            phase: BulkLoadPhase::Input,
            entries: 0,
            bytes: 0,
            written_entries: 0,
        };
        Ok(BulkLoader {
            rewrites: inner.rewrites.load(Ordering::Acquire),
            buffer: EntryBuffer::new(options.sort_memory_bytes.unwrap_or(SORTED_BUFFER_BYTES)),
            chunks: options.sort_memory_bytes.map(|_| SortedChunks::default()),
            tables: LoadTables::new(Arc::clone(tree)),
            new_files: NewFiles::new(&inner.state),
            handle: Arc::clone(handle),
            tree: Arc::clone(tree),
            options,
            progress,
            first_error: None,
        })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Error::UnsortedInput`] if the input must be sorted and the key is not after the last one (a later call may
    /// report it); [`Error::TooLarge`]; [`Error::Io`]; [`Error::Closed`]; [`Error::ReadOnly`]; [`Error::IngestRefused`]
    /// after a [`Db::resume`](crate::Db::resume) that rewrote the database.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        if let Some(error) = &self.first_error {
            return Err(error.clone());
        }
        let added = self.try_put(key, value);
        self.keep_first_error(added)
    }

    fn try_put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        for (what, bytes, limit) in [
            ("key", len_u64(key.len()), KEY_BYTES_MAX),
            ("value", len_u64(value.len()), VALUE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(Error::TooLarge { what, bytes, limit });
            }
        }
        self.progress.entries += 1;
        self.progress.bytes += len_u64(key.len() + value.len());
        if !self.buffer.push(key, value) {
            self.write_buffer()?;
            assert!(self.buffer.push(key, value), "an empty buffer accepts each entry");
        }
        Ok(())
    }

    fn keep_first_error<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.first_error = Some(error.clone());
        }
        result
    }

    /// Writes the entries in the buffer to tables, or to a sorted chunk.
    fn write_buffer(&mut self) -> Result<()> {
        let inner = Arc::clone(&self.handle.0);
        let _writes = inner.begin_file_writes()?;
        self.check_files_exist()?;
        match &mut self.chunks {
            Some(chunks) => chunks.add(&inner, &mut self.buffer)?,
            None => {
                let mut buffer = std::mem::take(&mut self.buffer);
                for (key, value) in buffer.iter() {
                    self.add_to_table(&inner, key, value)?;
                }
                buffer.clear();
                self.buffer = buffer;
            }
        }
        self.report_progress();
        Ok(())
    }

    fn add_to_table(&mut self, inner: &DbInner, key: &[u8], value: &[u8]) -> Result<()> {
        self.tables.add(inner, &mut self.new_files, key, value)?;
        self.progress.written_entries += 1;
        if self.progress.written_entries.is_multiple_of(PROGRESS_ENTRIES) {
            inner.check_can_write_files()?;
            self.report_progress();
        }
        Ok(())
    }

    /// Fails if `resume` ran after the start of the load, because it removes files that the manifest does not list.
    fn check_files_exist(&self) -> Result<()> {
        if self.handle.0.rewrites.load(Ordering::Acquire) == self.rewrites {
            return Ok(());
        }
        let (keyspace, why) = (self.tree.name(), "the database was resumed meanwhile");
        Err(Error::IngestRefused { keyspace, file: None, why })
    }

    fn report_progress(&mut self) {
        if let Some(progress) = &mut self.options.progress {
            progress(&self.progress);
        }
    }

    fn enter_phase(&mut self, phase: BulkLoadPhase) {
        self.progress.phase = phase;
        self.report_progress();
    }

    /// Writes the remaining entries and adds all tables to the keyspace at one sequence number.
    ///
    /// # Errors
    /// As [`BulkLoader::put`] and [`Keyspace::ingest`](crate::Keyspace::ingest). The keyspace is then unchanged. After
    /// [`Error::ReadOnly`], the next open may find all entries.
    pub fn finish(mut self) -> Result<IngestSummary> {
        if let Some(error) = self.first_error.take() {
            return Err(error);
        }
        let inner = Arc::clone(&self.handle.0);
        let tables = self.write_all(&inner)?;
        self.enter_phase(BulkLoadPhase::Install);
        let BulkLoader { tree, rewrites, new_files, .. } = self;
        let prepared = vec![TreeTables { tree, tables }];
        install_tables(&inner, prepared, new_files, rewrites)
    }

    fn write_all(&mut self, inner: &DbInner) -> Result<Vec<PreparedTable>> {
        let _writes = inner.begin_file_writes()?;
        self.check_files_exist()?;
        match self.chunks.take() {
            Some(chunks) if chunks.is_empty() => {
                self.buffer.sort();
                self.write_sorted_buffer(inner)?;
            }
            Some(mut chunks) => {
                if !self.buffer.is_empty() {
                    chunks.add(inner, &mut self.buffer)?;
                }
                self.buffer = EntryBuffer::default();
                self.enter_phase(BulkLoadPhase::Merge);
                chunks.merge(|key, value| self.add_to_table(inner, key, value))?;
            }
            None => self.write_sorted_buffer(inner)?,
        }
        self.tables.finish(inner)
    }

    fn write_sorted_buffer(&mut self, inner: &DbInner) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        for (key, value) in buffer.iter() {
            self.add_to_table(inner, key, value)?;
        }
        Ok(())
    }
}
