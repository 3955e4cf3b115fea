//! Bucket files and their descriptors.
//!
//! Views own the bucket files that they use. The last owner removes a file that no durable log entry names.
//!
//! Deliveries append only to files that were created after the store was opened, and only if the file has no bytes after the
//! last page of the view. A failed append or an abandoned delivery closes a file for appends.

pub mod frame_reader;
pub mod io;
mod open_files;

use std::collections::BTreeMap;
use std::path::PathBuf;

use lsmx::Result;
use lsmx::operand_store::{OperandFileKind, StoreContext};
use lsmx::vfs::File;
use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, Weak};

use self::io::{check_header, io_error, read_exactly};
use self::open_files::OpenFiles;
use crate::format::header::{BUCKET_HEADER, encode_header};

/// Maximum number of files open for reading. The engine may set a lower limit for files open for appends.
const OPEN_FILES_MAX: usize = 1024;

/// Assumed page size of the page cache, in bytes. On systems with larger pages, the first and the last page of a read may
/// stay in the cache.
const SYSTEM_PAGE_BYTES: u64 = 4 << 10;
/// Number of bytes at the end of a new file that the page cache may not have written to the disk yet.
const WRITEBACK_BYTES: u64 = 128 << 10;

/// Bucket files of one store.
#[derive(Debug)]
pub struct FileTable {
    pub context: StoreContext,
    /// Files that views use, by number.
    known: Mutex<BTreeMap<u64, Weak<BucketFile>>>,
    readers: Mutex<OpenFiles>,
    writers: Mutex<OpenFiles>,
    pub written_bytes: AtomicU64,
    /// Set after a failed sync. The release store pairs with the load in `has_failed_sync`, which orders the
    /// file's `lost_from` before it.
    failed_sync: AtomicBool,
}

impl FileTable {
    pub fn new(context: StoreContext) -> Arc<FileTable> {
        Arc::new(FileTable {
            context,
            known: Mutex::default(),
            readers: Mutex::default(),
            writers: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            failed_sync: AtomicBool::new(false),
        })
    }

    /// Returns whether the sync of any file has failed since the store was opened.
    pub fn has_failed_sync(&self) -> bool {
        self.failed_sync.load(Ordering::Acquire)
    }

    /// Creates a file. It is obsolete until [`BucketFile::set_obsolete`] clears the mark.
    pub fn create_bucket_file(self: &Arc<FileTable>) -> Result<Arc<BucketFile>> {
        let (number, writer) = self.context.files.create(OperandFileKind::Bucket)?;
        let uid = self.context.env.random_u64();
        let file = self.insert(number, uid, true);
        file.append_with(&*writer, &encode_header(BUCKET_HEADER, uid))?;
        self.writers.lock().insert(number, writer);
        Ok(file)
    }

    /// Creates a file for a collection. It stays open for appends until [`FileTable::unpin_writer`].
    pub fn create_pinned(self: &Arc<FileTable>) -> Result<Arc<BucketFile>> {
        let file = self.create_bucket_file()?;
        self.writers.lock().pin(file.number);
        Ok(file)
    }

    /// Unpins a synced file of [`FileTable::create_pinned`]. Closes it if too many files are open.
    pub fn unpin_writer(&self, file: &BucketFile) {
        let limit = self.writers_max();
        let closed = {
            let mut writers = self.writers.lock();
            writers.unpin(file.number);
            if writers.has_more_unpinned_than(limit) { writers.remove(file.number) } else { None }
        };
        drop(closed);
    }

    fn writers_max(&self) -> usize {
        self.context.files.writers_max().clamp(1, OPEN_FILES_MAX)
    }

    /// Closes the least recently used writers until the limit on open writers is met. Syncs each file before its
    /// writer is closed.
    ///
    /// Only the thread of a delivery may call this method. Another thread could close a writer to which a delivery is
    /// about to append.
    pub fn close_excess_writers(&self) -> Result<()> {
        loop {
            let limit = self.writers_max();
            let evicted = self.writers.lock().evict_if_over(limit);
            let Some((number, writer)) = evicted else { return Ok(()) };
            let file = self.known.lock().get(&number).and_then(Weak::upgrade);
            if let Some(file) = file {
                // Later log entries refer to the appended pages, so the pages must be durable before them.
                file.sync_with_writer(&*writer)?;
            }
        }
    }

    pub fn from_existing(self: &Arc<FileTable>, number: u64, uid: u64) -> Arc<BucketFile> {
        let known = self.known.lock().get(&number).and_then(Weak::upgrade);
        known.filter(|file| file.uid == uid).unwrap_or_else(|| self.insert(number, uid, false))
    }

    fn insert(self: &Arc<FileTable>, number: u64, uid: u64, obsolete: bool) -> Arc<BucketFile> {
        let file = Arc::new(BucketFile {
            number,
            uid,
            path: self.context.files.path(OperandFileKind::Bucket, number),
            end: AtomicU64::new(0),
            synced_end: AtomicU64::new(0),
            lost_from: AtomicU64::new(u64::MAX),
            appends: AtomicU64::new(0),
            synced_appends: AtomicU64::new(0),
            obsolete: AtomicBool::new(obsolete),
            kept_open: OnceLock::new(),
            table: self.clone(),
        });
        self.known.lock().insert(number, Arc::downgrade(&file));
        file
    }

    /// Returns all files that have an owner.
    pub fn live_files(&self) -> Vec<Arc<BucketFile>> {
        self.known.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Closes all writers. No existing file is appended to afterwards.
    pub fn close_writers(&self) {
        let closed = std::mem::take(&mut *self.writers.lock());
        drop(closed);
    }
}

/// A bucket file that a view uses or that is being written.
#[derive(Debug)]
pub struct BucketFile {
    pub number: u64,
    pub uid: u64,
    pub path: PathBuf,
    /// Offset of the next append; `u64::MAX` if the file is closed for appends.
    end: AtomicU64,
    /// Value of `end` at the last sync.
    synced_end: AtomicU64,
    /// Offset from which bytes may be lost because a sync failed; `u64::MAX` if none failed.
    lost_from: AtomicU64,
    /// Count of finished appends.
    appends: AtomicU64,
    /// Value of `appends` at the last sync.
    synced_appends: AtomicU64,
    /// No durable log entry names the file. The release store in `set_obsolete` pairs with the load in `drop`.
    obsolete: AtomicBool,
    /// Descriptor for views that are used after the database was closed.
    kept_open: OnceLock<Arc<dyn File>>,
    table: Arc<FileTable>,
}

impl Drop for BucketFile {
    fn drop(&mut self) {
        let table = &self.table;
        {
            let mut known = table.known.lock();
            // A call of `from_existing` after the drop of the last owner has inserted a new value for this number.
            if known.get(&self.number).is_some_and(|file| file.strong_count() == 0) {
                known.remove(&self.number);
            }
        }
        let reader = table.readers.lock().remove(self.number);
        let writer = table.writers.lock().remove(self.number);
        drop((reader, writer));
        if self.obsolete.load(Ordering::Acquire) && !table.context.read_only {
            table.context.files.discard(OperandFileKind::Bucket, self.number);
        }
    }
}

impl BucketFile {
    /// Closes the file for appends and marks its content as synced.
    pub fn seal(&self) {
        self.synced_appends.store(self.appends.load(Ordering::Acquire), Ordering::Release);
        self.end.store(u64::MAX, Ordering::Release);
    }

    /// Sets whether the last owner removes the file.
    pub fn set_obsolete(&self, obsolete: bool) {
        self.obsolete.store(obsolete, Ordering::Release);
    }

    fn writer(&self) -> Option<Arc<dyn File>> {
        self.table.writers.lock().get(self.number)
    }

    /// Returns whether the file is open for appends and ends at `end`.
    pub fn can_append_at(&self, end: u64) -> bool {
        self.end.load(Ordering::Acquire) == end && self.writer().is_some()
    }

    fn append_with(&self, writer: &dyn File, bytes: &[u8]) -> Result<()> {
        let result = writer.append(bytes).map_err(|e| io_error("append to", &self.path, e));
        match &result {
            Ok(()) => {
                self.end.fetch_add(len_u64(bytes.len()), Ordering::AcqRel);
                self.table.written_bytes.fetch_add(len_u64(bytes.len()), Ordering::Relaxed);
            }
            // A part of the bytes may be in the file.
            Err(_) => self.end.store(u64::MAX, Ordering::Release),
        }
        self.appends.fetch_add(1, Ordering::AcqRel);
        result
    }

    pub fn end_offset(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns whether bytes before `end` may be lost because a sync failed.
    pub fn may_have_lost_bytes(&self, end: u64) -> bool {
        self.lost_from.load(Ordering::Acquire) < end
    }

    fn writer_for(&self, action: &'static str) -> Result<Arc<dyn File>> {
        let closed = || std::io::Error::other("the file is closed for appends");
        self.writer().ok_or_else(|| io_error(action, &self.path, closed()))
    }

    /// Appends bytes. The caller has created the file or checked [`BucketFile::can_append_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        let writer = self.writer_for("append to")?;
        let offset = self.end_offset();
        self.append_with(&*writer, bytes)?;
        if self.table.context.direct_reads {
            // Starts the write-back of new pages and drops the older ones, which are written back by now.
            let from = offset.saturating_sub(WRITEBACK_BYTES);
            let from = from - from % SYSTEM_PAGE_BYTES;
            writer.drop_cached_pages(from, offset - from + len_u64(bytes.len()));
        }
        Ok(())
    }

    /// Syncs all appended bytes.
    ///
    /// After a failed sync, appends and further syncs fail: a later success would not cover the lost bytes.
    pub fn sync(&self) -> Result<()> {
        if self.is_synced() {
            return Ok(());
        }
        self.sync_with_writer(&*self.writer_for("sync")?)
    }

    fn is_synced(&self) -> bool {
        self.appends.load(Ordering::Acquire) == self.synced_appends.load(Ordering::Acquire)
    }

    fn sync_with_writer(&self, writer: &dyn File) -> Result<()> {
        if self.is_synced() {
            return Ok(());
        }
        let appends = self.appends.load(Ordering::Acquire);
        let end = self.end_offset();
        if end == u64::MAX {
            let failed = std::io::Error::other("an earlier append or sync of the file has failed");
            return Err(io_error("sync", &self.path, failed));
        }
        writer.sync().map_err(|e| {
            self.end.store(u64::MAX, Ordering::Release);
            self.lost_from.store(self.synced_end.load(Ordering::Acquire), Ordering::Release);
            self.table.failed_sync.store(true, Ordering::Release);
            io_error("sync", &self.path, e)
        })?;
        let synced = self.synced_end.fetch_max(end, Ordering::AcqRel);
        if self.table.context.direct_reads {
            let from = synced - synced % SYSTEM_PAGE_BYTES;
            writer.drop_cached_pages(from, end.saturating_sub(from));
        }
        // The sync may not cover appends that finished during it.
        self.synced_appends.fetch_max(appends, Ordering::AcqRel);
        Ok(())
    }

    /// Opens the file and keeps it open until the last owner is dropped.
    pub fn keep_descriptor_open(&self) -> Result<()> {
        if self.kept_open.get().is_none() {
            let file = match self.writer() {
                Some(writer) => writer,
                None => self.open()?,
            };
            // Another thread may have set it.
            let _ = self.kept_open.set(file);
        }
        Ok(())
    }

    fn open(&self) -> Result<Arc<dyn File>> {
        let opened = self.table.context.files.vfs().open(&self.path);
        opened.map_err(|e| io_error("open", &self.path, e))
    }

    fn reader(&self) -> Result<Arc<dyn File>> {
        if let Some(file) = self.kept_open.get() {
            return Ok(file.clone());
        }
        if !self.table.context.direct_reads
            && let Some(file) = self.writer()
        {
            return Ok(file);
        }
        if let Some(file) = self.table.readers.lock().get(self.number) {
            return Ok(file);
        }
        let file = self.open()?;
        let evicted = {
            let mut readers = self.table.readers.lock();
            readers.insert(self.number, file.clone());
            readers.evict_if_over(OPEN_FILES_MAX)
        };
        drop(evicted);
        Ok(file)
    }

    /// Reads a part of the file. The header is not checked: frames are valid only with the uid from the log.
    ///
    /// With the option for direct reads, the bytes are read through the page cache and then dropped from it, because
    /// [`BucketFile::prefetch`] needs the page cache.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.reader()?;
        let bytes = read_exactly(&*file, &self.path, offset, len)?;
        if self.table.context.direct_reads {
            // The system does not drop partial pages.
            let from = offset - offset % SYSTEM_PAGE_BYTES;
            let to = offset.saturating_add(len_u64(len)).next_multiple_of(SYSTEM_PAGE_BYTES);
            file.drop_cached_pages(from, to - from);
        }
        Ok(bytes)
    }

    /// Reads a part of the file from the device, see [`lsmx::vfs::Vfs::open_uncached`]. Drops it from the system's cache.
    pub fn read_from_device(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.reader()?.drop_cached_pages(offset, len_u64(len));
        let opened = self.table.context.files.vfs().open_uncached(&self.path);
        let file = opened.map_err(|e| io_error("open", &self.path, e))?;
        read_exactly(&*file, &self.path, offset, len)
    }

    /// Advises the system to read a part of the file in the background.
    pub fn prefetch(&self, start: u64, end: u64) {
        if let Ok(file) = self.reader() {
            file.will_need(start, end.saturating_sub(start));
        }
    }

    pub fn verify_header(&self) -> Result<()> {
        check_header(&*self.reader()?, &self.path, BUCKET_HEADER, self.uid, "uid of a bucket file")
    }
}
