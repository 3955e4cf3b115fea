//! Bucket files and their file descriptors.
//!
//! Views share ownership of the bucket files that they use. When the last owner is dropped, the file is removed if no
//! durable log entry refers to it.
//!
//! A delivery appends only to files that were created since the store was opened. The file must end with the last page
//! of the view. After a failed append or sync, or after an abandoned delivery, a file accepts no more appends.

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

/// Maximum number of files open for reading, and of files open for appends. The engine may lower the second limit.
const OPEN_FILES_MAX: usize = 1024;

/// Assumed page size of the operating system's page cache, in bytes. If the actual pages are larger, the first and the
/// last page of a read may stay in the page cache.
const SYSTEM_PAGE_BYTES: u64 = 4 << 10;
/// Number of bytes at the end of a new file that the operating system may not have written to the disk yet.
const WRITEBACK_BYTES: u64 = 128 << 10;

/// Table of the bucket files of one store.
#[derive(Debug)]
pub struct FileTable {
    pub context: StoreContext,
    /// Files in use, by file number.
    known: Mutex<BTreeMap<u64, Weak<BucketFile>>>,
    readers: Mutex<OpenFiles>,
    writers: Mutex<OpenFiles>,
    pub written_bytes: AtomicU64,
    /// Set after a failed sync. The acquire load in `has_failed_sync` pairs with the release store, so that a reader
    /// that sees the flag also sees the file's `lost_from`.
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

    /// Creates a file, marked as obsolete. [`BucketFile::set_obsolete`] clears the mark.
    pub fn create_bucket_file(self: &Arc<FileTable>) -> Result<Arc<BucketFile>> {
        self.create_file(false)
    }

    /// Creates a file for a collection. The file stays open for appends until [`FileTable::unpin_writer`].
    pub fn create_pinned(self: &Arc<FileTable>) -> Result<Arc<BucketFile>> {
        self.create_file(true)
    }

    fn create_file(self: &Arc<FileTable>, is_pinned: bool) -> Result<Arc<BucketFile>> {
        let (number, writer) = self.context.files.create(OperandFileKind::Bucket)?;
        let uid = self.context.env.random_u64();
        let file = self.insert(number, uid, true);
        file.append_with(&*writer, &encode_header(BUCKET_HEADER, uid))?;
        let mut writers = self.writers.lock();
        writers.insert(number, writer);
        if is_pinned {
            // Pinned under the same lock. Otherwise, a delivery could count the file as not pinned, and close the file
            // that it has just created.
            writers.pin(number);
        }
        drop(writers);
        Ok(file)
    }

    /// Unpins a file that [`FileTable::create_pinned`] created. Closes it if too many files are open. The file must be
    /// synced.
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

    /// Closes the least recently used writers until their number is within the limit. Syncs each file before it closes
    /// the writer. Never closes the writer of `kept`. Reads use open writers too, so a file that was created just before
    /// may be the least recently used one.
    ///
    /// Only the thread of a delivery may call this method. Another thread might close a writer to which a delivery is
    /// about to append.
    pub fn close_excess_writers(&self, kept: Option<&BucketFile>) -> Result<()> {
        let kept = kept.map(|file| file.number);
        loop {
            let limit = self.writers_max();
            let evicted = self.writers.lock().evict_if_over(limit, kept);
            let Some((number, writer)) = evicted else { return Ok(()) };
            let file = self.known.lock().get(&number).and_then(Weak::upgrade);
            if let Some(file) = file {
                // Later log entries refer to the appended pages, so the pages must be durable first.
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

    /// Returns all files in use.
    pub fn live_files(&self) -> Vec<Arc<BucketFile>> {
        self.known.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Closes all writers. Existing files accept no more appends.
    pub fn close_writers(&self) {
        let closed = std::mem::take(&mut *self.writers.lock());
        drop(closed);
    }
}

/// A bucket file that a view uses, or that is being written.
#[derive(Debug)]
pub struct BucketFile {
    pub number: u64,
    pub uid: u64,
    pub path: PathBuf,
    /// Offset of the next append. `u64::MAX` if the file accepts no more appends.
    end: AtomicU64,
    /// Value of `end` at the last successful sync.
    synced_end: AtomicU64,
    /// Offset from which bytes may be lost because a sync failed. `u64::MAX` if no sync failed.
    lost_from: AtomicU64,
    /// Number of finished appends.
    appends: AtomicU64,
    /// Value of `appends` at the last successful sync.
    synced_appends: AtomicU64,
    /// If true, no durable log entry refers to the file. The release store in `set_obsolete` pairs with the load in
    /// `drop`.
    obsolete: AtomicBool,
    /// File descriptor for views that are still in use after the database was closed.
    kept_open: OnceLock<Arc<dyn File>>,
    table: Arc<FileTable>,
}

impl Drop for BucketFile {
    fn drop(&mut self) {
        let table = &self.table;
        {
            let mut known = table.known.lock();
            // `from_existing` may have inserted a new entry for this number after the last owner was dropped.
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
    /// Stops appends to the file and marks the contents as synced.
    pub fn seal(&self) {
        self.synced_appends.store(self.appends.load(Ordering::Acquire), Ordering::Release);
        self.end.store(u64::MAX, Ordering::Release);
    }

    /// Sets whether the file is removed when its last owner is dropped.
    pub fn set_obsolete(&self, obsolete: bool) {
        self.obsolete.store(obsolete, Ordering::Release);
    }

    fn writer(&self) -> Option<Arc<dyn File>> {
        self.table.writers.lock().get(self.number)
    }

    /// Returns whether the file accepts appends and ends at offset `end`.
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
            // The file may contain a part of the bytes, so it accepts no more appends.
            Err(_) => self.end.store(u64::MAX, Ordering::Release),
        }
        self.appends.fetch_add(1, Ordering::AcqRel);
        result
    }

    pub fn end_offset(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns whether a failed sync may have lost bytes before offset `end`.
    pub fn may_have_lost_bytes(&self, end: u64) -> bool {
        self.lost_from.load(Ordering::Acquire) < end
    }

    fn writer_for(&self, action: &'static str) -> Result<Arc<dyn File>> {
        let closed = || std::io::Error::other("the file is closed for appends");
        self.writer().ok_or_else(|| io_error(action, &self.path, closed()))
    }

    /// Appends bytes. The caller must have created the file or called [`BucketFile::can_append_at`] before.
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        let writer = self.writer_for("append to")?;
        let offset = self.end_offset();
        self.append_with(&*writer, bytes)?;
        if self.table.context.direct_reads {
            // Starts the write-back of the new pages and drops older pages from the page cache. Their write-back has
            // finished by now.
            let from = offset.saturating_sub(WRITEBACK_BYTES);
            let from = from - from % SYSTEM_PAGE_BYTES;
            writer.drop_cached_pages(from, offset - from + len_u64(bytes.len()));
        }
        Ok(())
    }

    /// Syncs all appended bytes.
    ///
    /// After a failed append or sync, all further syncs fail and [`BucketFile::can_append_at`] returns false. A later
    /// successful sync would not cover the lost bytes.
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
        // The sync may not cover appends that finished while it ran.
        self.synced_appends.fetch_max(appends, Ordering::AcqRel);
        Ok(())
    }

    /// Opens the file and keeps the descriptor open until the last owner of the file is dropped.
    pub fn keep_descriptor_open(&self) -> Result<()> {
        if self.kept_open.get().is_none() {
            let file = match self.writer() {
                Some(writer) => writer,
                None => self.open()?,
            };
            // Another thread may have set the descriptor first.
            let _ = self.kept_open.set(file);
        }
        Ok(())
    }

    /// Closes the descriptor that reads have opened. The next read opens the file again.
    pub fn close_reader(&self) {
        let reader = self.table.readers.lock().remove(self.number);
        drop(reader);
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
            readers.evict_if_over(OPEN_FILES_MAX, Some(self.number))
        };
        drop(evicted);
        Ok(file)
    }

    /// Reads a part of the file. Does not check the file header, because a frame is valid only with the uid from the
    /// log.
    ///
    /// With direct reads, reads the bytes through the page cache and then drops them from it, because
    /// [`BucketFile::prefetch`] needs the page cache.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.reader()?;
        let bytes = read_exactly(&*file, &self.path, offset, len)?;
        if self.table.context.direct_reads {
            // The operating system drops only whole pages.
            let from = offset - offset % SYSTEM_PAGE_BYTES;
            let to = offset.saturating_add(len_u64(len)).next_multiple_of(SYSTEM_PAGE_BYTES);
            file.drop_cached_pages(from, to - from);
        }
        Ok(bytes)
    }

    /// Reads a part of the file from the device, see [`lsmx::vfs::Vfs::open_uncached`]. Drops the part from the page
    /// cache first.
    pub fn read_from_device(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.reader()?.drop_cached_pages(offset, len_u64(len));
        let opened = self.table.context.files.vfs().open_uncached(&self.path);
        let file = opened.map_err(|e| io_error("open", &self.path, e))?;
        read_exactly(&*file, &self.path, offset, len)
    }

    /// Gives a read-ahead hint for a part of the file to the operating system.
    pub fn prefetch(&self, start: u64, end: u64) {
        if let Ok(file) = self.reader() {
            file.will_need(start, end.saturating_sub(start));
        }
    }

    pub fn verify_header(&self) -> Result<()> {
        check_header(&*self.reader()?, &self.path, BUCKET_HEADER, self.uid, "uid of a bucket file")
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test of real threads")]
mod tests {
    use std::path::{Path, PathBuf};

    use lsmx::operand_store::OperandFiles;
    use lsmx::vfs::{MemVfs, Vfs};
    use lsmx_testkit::delta::{StoreDir, store_context};

    use super::*;

    /// A directory in which one file may be open for appends.
    #[derive(Debug)]
    struct OneWriterDir(Arc<StoreDir>);

    impl OperandFiles for OneWriterDir {
        fn vfs(&self) -> &Arc<dyn Vfs> {
            self.0.vfs()
        }

        fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
            self.0.path(kind, number)
        }

        fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
            self.0.create(kind)
        }

        fn writers_max(&self) -> usize {
            1
        }

        fn sync_directory(&self) -> Result<()> {
            self.0.sync_directory()
        }

        fn discard(&self, kind: OperandFileKind, number: u64) {
            self.0.discard(kind, number);
        }
    }

    /// Returns a table in which one file may be open for appends.
    fn one_writer_table() -> Arc<FileTable> {
        let vfs = MemVfs::new();
        vfs.create_dir(Path::new("db")).unwrap();
        let dir = StoreDir::new(Arc::new(vfs), "db", 1);
        let context = StoreContext {
            files: Arc::new(OneWriterDir(dir.clone())),
            ..store_context(&dir, &Arc::default(), 0)
        };
        FileTable::new(context)
    }

    /// Regression: a delivery closed the file that it had just created, because a lookup had read an older file since.
    /// The append to the closed file failed.
    #[test]
    fn file_of_delivery_stays_open_after_read_of_older_file() {
        let table = one_writer_table();
        let older = table.create_bucket_file().unwrap();
        let file = table.create_bucket_file().unwrap();
        older.read(0, 1).unwrap();
        table.close_excess_writers(Some(&file)).unwrap();
        file.append(b"page").unwrap();
        assert!(!older.can_append_at(older.end_offset()));
    }

    /// Regression: a delivery closed the file that it had just created, because it counted a file that a collection was
    /// about to pin. The append to the closed file failed.
    #[test]
    fn file_of_delivery_stays_open_while_collection_creates_files() {
        const FILES: usize = 2_000;
        let table = one_writer_table();
        let table_of_collection = table.clone();
        let collection = std::thread::spawn(move || {
            for _ in 0..FILES {
                let file = table_of_collection.create_pinned().unwrap();
                file.append(b"sorted part").unwrap();
                file.sync().unwrap();
                table_of_collection.unpin_writer(&file);
            }
        });
        for _ in 0..FILES {
            let file = table.create_bucket_file().unwrap();
            table.close_excess_writers(Some(&file)).unwrap();
            file.append(b"page").unwrap();
        }
        collection.join().unwrap();
    }
}
