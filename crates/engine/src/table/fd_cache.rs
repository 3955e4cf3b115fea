//! Cache of file descriptors. It limits the number of open table files, blob files and operand store files.
//!
//! The metadata of a table stays in memory while the table is open, but its file may be closed and reopened. A read
//! gets the open file with one atomic load. If the file is closed, the read reopens it and checks that it is still the
//! same file. If the limit is reached, the CLOCK algorithm (second chance) first closes another file.
//!
//! While the database is open, the file of an open table is not deleted, so the cache can always reopen it. After the
//! database is closed, its next owner may delete files that the previous owner still reads. Iterators that outlive the
//! database therefore keep their files open, see [`CachedFile::keep_open`].

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use arc_swap::ArcSwapOption;
use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, Weak};

use crate::env::rate_limit::{IoPriority, RateLimiter};
use crate::env::thread_time::{IoKind, measure_wait};
use crate::error::{Error, Result};
use crate::format::blob::{BLOB_HEADER_BYTES, BlobHeader};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::table::read_context::ReadPurpose;
use crate::vfs::cache_bypass::CacheBypass;
use crate::vfs::resource_retry::ReleaseResource;
use crate::vfs::{File, Vfs, has_no_direct_reads, is_out_of_descriptors};

/// Maximum number of errors in `FdCache::repeated_reads`. Further repeated reads are only counted.
const REPEATED_READS_MAX: usize = 64;

/// Size in bytes of the reads that compute the checksum of a file.
const CHECKSUM_READ_BYTES: u64 = 256 << 10;

/// File descriptors of a database.
#[derive(Debug)]
pub(crate) struct FdCache {
    vfs: Arc<dyn Vfs>,
    max_open_files: usize,
    clock: Mutex<ClockHand>,
    /// Serializes the releases of descriptors by calls that find no free descriptor, including the closing of the files.
    release: Mutex<()>,
    /// Number of releases that have closed files. Written after the files are closed, and only while `release` is
    /// locked. The increment (release) pairs with the load (acquire) before a call.
    releases: AtomicU64,
    /// Number of files that were reopened after the cache had closed them.
    reopened: AtomicU64,
    /// Number of job reads that returned corrupt data and succeeded when they were repeated from the device.
    reads_repeated: AtomicU64,
    /// Error of the first attempt of each repeated read, until [`FdCache::take_repeated_reads`] takes it. Contains at
    /// most [`REPEATED_READS_MAX`] errors.
    repeated_reads: Mutex<Vec<Error>>,
    /// Whether files are opened for direct I/O.
    direct_io: bool,
    job_reads: Option<JobReadOptions>,
    /// Set before the database lock is released, because the next owner may delete files. The release store pairs with
    /// the acquire load after a failed open.
    is_closed: Arc<AtomicBool>,
    /// Set while the database is being closed. Files that operand stores open from then on stay open and are not
    /// counted.
    pins_store_files: AtomicBool,
    open_stores: AtomicUsize,
    /// Number of descriptors that jobs use, see [`JobFile`].
    job_files: AtomicUsize,
}

/// Options for the reads of background jobs.
#[derive(Debug)]
pub(crate) struct JobReadOptions {
    /// Rate limit of the reads.
    pub(crate) rate: Arc<RateLimiter>,
    /// Decides whether the reads bypass the page cache.
    pub(crate) bypass: Arc<CacheBypass>,
}

/// A file that a job has opened for its reads.
#[derive(Debug, Default)]
pub(crate) struct JobFile {
    /// Descriptor for direct reads, and the cache that counts it. `None` if the job uses the cached descriptor.
    direct: Option<(Arc<dyn File>, Arc<FdCache>)>,
}

impl Drop for JobFile {
    fn drop(&mut self) {
        if let Some((file, cache)) = self.direct.take() {
            drop(file);
            cache.release_job_fd();
        }
    }
}

/// State of the CLOCK algorithm.
#[derive(Debug, Default)]
struct ClockHand {
    /// Files that may be closed. The CLOCK hand is at the front.
    files: VecDeque<Weak<CachedFile>>,
    /// Number of descriptors that are open or being opened.
    open: usize,
}

impl FdCache {
    /// Creates a cache for at most `max_open_files` descriptors. A limit of 0 is treated as 1.
    ///
    /// If the cache evicts a file while a read uses it, the file stays open until the read ends.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        max_open_files: usize,
        direct_io: bool,
        job_reads: Option<JobReadOptions>,
    ) -> Arc<FdCache> {
        Arc::new(FdCache {
            vfs,
            max_open_files: max_open_files.max(1),
            clock: Mutex::default(),
            release: Mutex::default(),
            releases: AtomicU64::new(0),
            reopened: AtomicU64::new(0),
            reads_repeated: AtomicU64::new(0),
            repeated_reads: Mutex::default(),
            direct_io,
            job_reads,
            is_closed: Arc::default(),
            pins_store_files: AtomicBool::new(false),
            open_stores: AtomicUsize::new(0),
            job_files: AtomicUsize::new(0),
        })
    }

    /// Pins all files that operand stores open after this call: the files stay open and are not counted.
    pub(crate) fn pin_store_files(&self) {
        self.pins_store_files.store(true, Ordering::Relaxed);
    }

    pub(super) fn pins_store_files(&self) -> bool {
        self.pins_store_files.load(Ordering::Relaxed)
    }

    /// Counts an operand store that was opened.
    pub(super) fn add_store(&self) {
        self.open_stores.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an operand store that was closed.
    pub(super) fn remove_store(&self) {
        self.open_stores.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of open operand stores.
    pub(crate) fn store_count(&self) -> usize {
        self.open_stores.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of files that one operand store may have open for appending. Half of the limit is
    /// divided equally among all open stores.
    pub(crate) fn max_store_writers(&self) -> usize {
        if failpoint::is_on(Failpoint::StoreFilesOutsideBudget) {
            return self.max_open_files.max(16);
        }
        (self.max_open_files / 2 / self.store_count().max(1)).max(1)
    }

    /// Creates a file that counts towards the limit while it is open. The cache never closes this file.
    pub(super) fn create(
        self: &Arc<Self>,
        vfs: &dyn Vfs,
        path: &Path,
    ) -> io::Result<Arc<CachedFile>> {
        self.reserve_fd();
        match vfs.create(path) {
            Ok(file) => {
                let file = CachedFile::with_file(Some(Arc::clone(self)), path, None, Some(file));
                Ok(Arc::new(file))
            }
            Err(error) => {
                self.release_fd();
                Err(error)
            }
        }
    }

    /// Marks the database as closed. If a file cannot be reopened from then on, the read fails with [`Error::Closed`].
    pub(crate) fn mark_database_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Returns the flag that [`FdCache::mark_database_closed`] sets.
    pub(crate) fn database_closed_flag(&self) -> &Arc<AtomicBool> {
        &self.is_closed
    }

    /// Returns the error for a failed open. After the database is closed, this is [`Error::Closed`], because the next
    /// owner may have deleted or replaced the file.
    fn open_error(&self, error: Error) -> Error {
        let closed = self.is_closed.load(Ordering::Acquire);
        if closed && !failpoint::is_on(Failpoint::ReadDuringCloseNamesFile) {
            Error::Closed
        } else {
            error
        }
    }

    /// Returns the maximum number of open descriptors.
    pub(crate) fn max_open_files(&self) -> usize {
        self.max_open_files
    }

    /// Returns the number of open descriptors.
    pub(crate) fn open_count(&self) -> usize {
        self.clock.lock().open
    }

    /// Returns the number of files that were reopened after the cache had closed them.
    pub(crate) fn reopen_count(&self) -> u64 {
        self.reopened.load(Ordering::Relaxed)
    }

    /// Returns the number of job reads that returned corrupt data and succeeded when they were repeated from the
    /// device.
    pub(crate) fn repeated_read_count(&self) -> u64 {
        self.reads_repeated.load(Ordering::Relaxed)
    }

    /// Removes and returns the errors of the first attempts of repeated reads.
    pub(crate) fn take_repeated_reads(&self) -> Vec<Error> {
        std::mem::take(&mut *self.repeated_reads.lock())
    }

    fn record_repeated_read(&self, first: Error) {
        self.reads_repeated.fetch_add(1, Ordering::Relaxed);
        let mut repeated = self.repeated_reads.lock();
        if repeated.len() < REPEATED_READS_MAX {
            repeated.push(first);
        }
    }

    /// Counts a further descriptor. If the limit is reached, closes other files.
    fn reserve_fd(&self) {
        let mut evicted = Vec::new();
        let mut clock = self.clock.lock();
        // The first round clears the use bits, so that the second round can close any file. If all counted descriptors
        // are still being opened by other threads, no file can be closed, and the limit is exceeded.
        let mut visits = 2 * clock.files.len();
        while clock.open >= self.max_open_files && visits > 0 {
            visits -= 1;
            let second_chance = visits >= clock.files.len();
            evicted.extend(clock.visit_next_file(second_chance));
        }
        clock.open += 1;
        drop(clock);
        // The files are dropped after the lock is released, because the destructor of `CachedFile` acquires the lock.
        drop(evicted);
    }

    /// Subtracts a descriptor that was closed or could not be opened.
    fn release_fd(&self) {
        self.clock.lock().open -= 1;
    }

    /// Like [`FdCache::reserve_fd`], but for a [`JobFile`]. Returns false and counts nothing if jobs already use half
    /// of the limit.
    fn reserve_job_fd(&self) -> bool {
        let others = self.job_files.fetch_add(1, Ordering::Relaxed);
        let is_free =
            others < self.max_open_files / 2 || failpoint::is_on(Failpoint::JobFilesOutsideBudget);
        match is_free {
            true => self.reserve_fd(),
            false => drop(self.job_files.fetch_sub(1, Ordering::Relaxed)),
        }
        is_free
    }

    fn release_job_fd(&self) {
        self.release_fd();
        self.job_files.fetch_sub(1, Ordering::Relaxed);
    }

    fn add_to_clock(&self, file: &Arc<CachedFile>) {
        let mut clock = self.clock.lock();
        if clock.files.len() == clock.files.capacity() {
            // Remove the entries of dropped files before the queue grows.
            clock.files.retain(|file| file.strong_count() > 0);
        }
        clock.files.push_back(Arc::downgrade(file));
    }
}

impl ClockHand {
    /// Visits the next file, and takes its descriptor if the file may be closed. If `second_chance` is true and the
    /// file was used, only clears its use bit.
    ///
    /// The caller must drop the result after releasing the lock.
    fn visit_next_file(
        &mut self,
        second_chance: bool,
    ) -> Option<(Arc<CachedFile>, Option<Arc<OpenFile>>)> {
        let cached = self.files.pop_front()?.upgrade()?;
        if cached.is_kept_open.load(Ordering::Relaxed) {
            return Some((cached, None));
        }
        if second_chance && cached.was_used.swap(false, Ordering::Relaxed) {
            self.files.push_back(Arc::downgrade(&cached));
            return Some((cached, None));
        }
        let file = cached.file.swap(None);
        self.open -= usize::from(file.is_some());
        Some((cached, file))
    }
}

impl ReleaseResource for FdCache {
    fn release_count(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// Closes half of the open files, unless another thread has closed files since `count_before`.
    fn release_resource(&self, count_before: u64) -> bool {
        let _release = self.release.lock();
        if self.release_count() != count_before {
            return true;
        }
        let mut evicted = Vec::new();
        let mut clock = self.clock.lock();
        let (before, mut visits) = (clock.open, clock.files.len());
        while visits > 0 && clock.open > before / 2 {
            visits -= 1;
            evicted.extend(clock.visit_next_file(false));
        }
        let has_closed = clock.open < before;
        drop(clock);
        drop(evicted);
        self.releases.fetch_add(u64::from(has_closed), Ordering::Release);
        has_closed
    }
}

/// Source from which bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    /// A read through the cached descriptor. The read uses the page cache, except with direct I/O.
    Cached,
    /// A read that bypasses all caches, see [`CachedFile::read_from_device`].
    Device,
}

#[derive(Debug)]
struct OpenFile(Arc<dyn File>);

/// Size and uid of a file. They are checked when the file is reopened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileIdentity {
    bytes: u64,
    uid: u64,
    is_blob_file: bool,
}

impl FileIdentity {
    /// Returns the identity of a table file.
    pub(crate) fn of_table(bytes: u64, uid: u64) -> FileIdentity {
        FileIdentity { bytes, uid, is_blob_file: false }
    }

    /// Returns the identity of a blob file.
    pub(crate) fn of_blob_file(bytes: u64, uid: u64) -> FileIdentity {
        FileIdentity { bytes, uid, is_blob_file: true }
    }
}

/// A file that the cache may close and reopen.
#[derive(Debug)]
pub(crate) struct CachedFile {
    /// `None` if the file stays open and is not counted.
    cache: Option<Arc<FdCache>>,
    path: PathBuf,
    /// `None` for a file of an operand store. Such a file is not checked when it is reopened, because each of its
    /// frames contains the uid.
    identity: Option<FileIdentity>,
    file: ArcSwapOption<OpenFile>,
    /// Use bit of the CLOCK algorithm. Relaxed ordering is sufficient, because a lost update costs at most one
    /// reopening.
    was_used: AtomicBool,
    /// Whether the CLOCK algorithm ignores the file. Accessed only while the lock of the CLOCK state is held.
    is_kept_open: AtomicBool,
    /// True if a flush has written the file through the page cache. Reads of jobs then keep its pages in the page
    /// cache. Set before the file is shared between threads.
    was_written_cached: AtomicBool,
}

impl CachedFile {
    /// Creates a file from an open descriptor, which stays open.
    pub(crate) fn new_pinned(
        file: Arc<dyn File>,
        path: &Path,
        identity: FileIdentity,
    ) -> CachedFile {
        CachedFile::with_file(None, path, Some(identity), Some(file))
    }

    /// Creates a file that is not open yet.
    pub(crate) fn new(
        cache: &Arc<FdCache>,
        path: &Path,
        identity: FileIdentity,
    ) -> Arc<CachedFile> {
        Arc::new(CachedFile::with_file(Some(Arc::clone(cache)), path, Some(identity), None))
    }

    /// Opens a file of an operand store for reading.
    pub(super) fn open_store_file(
        cache: &Arc<FdCache>,
        path: &Path,
    ) -> io::Result<Arc<CachedFile>> {
        let file = Arc::new(CachedFile::with_file(Some(Arc::clone(cache)), path, None, None));
        file.open_initially().map_err(into_io_error)?;
        Ok(file)
    }

    fn with_file(
        cache: Option<Arc<FdCache>>,
        path: &Path,
        identity: Option<FileIdentity>,
        file: Option<Arc<dyn File>>,
    ) -> CachedFile {
        CachedFile {
            cache,
            path: path.to_owned(),
            identity,
            file: ArcSwapOption::from_pointee(file.map(OpenFile)),
            was_used: AtomicBool::new(false),
            is_kept_open: AtomicBool::new(false),
            was_written_cached: AtomicBool::new(false),
        }
    }

    /// Returns the open file. Reopens the file if it is closed.
    fn open_file(self: &Arc<Self>) -> Result<Arc<OpenFile>> {
        self.file.load_full().map_or_else(|| self.open(true), Ok)
    }

    /// Opens the file for the first time.
    pub(crate) fn open_initially(self: &Arc<Self>) -> Result<Arc<dyn File>> {
        Ok(Arc::clone(&self.open(false)?.0))
    }

    /// Calls `call` with the open file. Reopens the file if it is closed.
    pub(super) fn with_open_file<R>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn File) -> io::Result<R>,
    ) -> io::Result<R> {
        if let Some(open) = &*self.file.load() {
            self.was_used.store(true, Ordering::Relaxed);
            return call(&*open.0);
        }
        let open = self.open(true).map_err(into_io_error)?;
        call(&*open.0)
    }

    /// Calls `call` with the file if it is open.
    pub(super) fn with_file_if_open(&self, call: impl FnOnce(&dyn File)) {
        if let Some(open) = &*self.file.load() {
            call(&*open.0);
        }
    }

    /// Returns the size of the file as the file system reports it.
    pub(crate) fn len(self: &Arc<Self>) -> Result<u64> {
        let open = self.open_file()?;
        open.0.len().map_err(|error| Error::io("read the size of", &self.path, error))
    }

    /// Opens the file if it is closed. The file then stays open, even if the limit is reached.
    pub(crate) fn keep_open(self: &Arc<Self>) -> Result<()> {
        let Some(cache) = &self.cache else { return Ok(()) };
        {
            let _clock = cache.clock.lock();
            self.is_kept_open.store(true, Ordering::Relaxed);
        }
        self.open_file().map(drop)
    }

    /// Reads `bytes` bytes at `offset`. The caller has checked that this range is inside the file.
    pub(crate) fn read_exact(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.read_exact_from(ReadSource::Cached, offset, bytes)
    }

    /// Like [`CachedFile::read_exact`], but reads from the given source.
    pub(crate) fn read_exact_from(
        self: &Arc<Self>,
        source: ReadSource,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<u8>> {
        let mut buffer = new_buffer(&self.path, offset, bytes)?;
        self.read_from_source(source, offset, &mut buffer)?;
        Ok(buffer)
    }

    /// Fills the buffer with the bytes at `offset`, read from the given source.
    #[inline]
    pub(crate) fn read_from_source(
        self: &Arc<Self>,
        source: ReadSource,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        match source {
            ReadSource::Cached => self.read_into(offset, buffer),
            ReadSource::Device => self.read_from_device(offset, buffer),
        }
    }

    /// Fills the buffer with the bytes at `offset`. A read of a job is rate-limited. Its pages are also dropped from
    /// the page cache if jobs bypass the page cache.
    pub(crate) fn read_for_purpose(
        self: &Arc<Self>,
        purpose: ReadPurpose,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        self.measure_read(purpose, || self.read_into(offset, buffer))?;
        if let Some(options) = self.job_read_options(purpose) {
            let bytes = len_u64(buffer.len());
            if options.bypass.is_on() && !self.was_written_cached.load(Ordering::Relaxed) {
                self.with_file_if_open(|file| file.drop_cached_pages(offset, bytes));
            }
            options.rate.acquire(IoPriority::Compaction, bytes);
        }
        Ok(())
    }

    /// Calls `read`. If the purpose is a job, measures how long the call waits.
    pub(super) fn measure_read<T>(&self, purpose: ReadPurpose, read: impl FnOnce() -> T) -> T {
        match self.job_read_options(purpose) {
            Some(options) => measure_wait(options.rate.env(), IoKind::Read, read),
            None => read(),
        }
    }

    /// Returns the options for reads of jobs. Returns `None` if the purpose is not a job.
    fn job_read_options(&self, purpose: ReadPurpose) -> Option<&JobReadOptions> {
        match purpose {
            ReadPurpose::Job => self.cache.as_ref()?.job_reads.as_ref(),
            _ => None,
        }
    }

    /// Records that a flush has written the file through the page cache. Jobs then read the file through the page
    /// cache, too.
    pub(crate) fn mark_written_cached(&self) {
        self.was_written_cached.store(true, Ordering::Relaxed);
    }

    /// Opens the file for the reads of a job.
    ///
    /// If jobs bypass the page cache, the job gets a separate descriptor for direct reads. If no descriptor is
    /// available, or if the file system does not support direct reads, the job uses the cached descriptor.
    pub(crate) fn open_for_job(&self) -> Result<JobFile> {
        let needs_descriptor = |cache: &&Arc<FdCache>| {
            let bypasses = cache.job_reads.as_ref().is_some_and(|options| options.bypass.is_on());
            let is_cached = self.was_written_cached.load(Ordering::Relaxed);
            bypasses && !is_cached && !cache.direct_io && cache.reserve_job_fd()
        };
        let Some(cache) = self.cache.as_ref().filter(needs_descriptor) else {
            return Ok(JobFile::default());
        };
        match cache.vfs.open_direct(&self.path) {
            Ok(file) => Ok(JobFile { direct: Some((file, Arc::clone(cache))) }),
            Err(error) => {
                cache.release_job_fd();
                let is_optional = has_no_direct_reads(&error) || is_out_of_descriptors(&error);
                match is_optional {
                    true => Ok(JobFile::default()),
                    false => Err(cache.open_error(Error::io("open", &self.path, error))),
                }
            }
        }
    }

    /// Fills the buffer with the bytes at `offset`. The read is rate-limited like all reads of jobs. If the file system
    /// fails direct reads, uses the cached descriptor.
    pub(crate) fn read_for_job(
        self: &Arc<Self>,
        file: &JobFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        match &file.direct {
            None => self.read_for_purpose(ReadPurpose::Job, offset, buffer),
            Some((direct, cache)) => {
                let read = || read_exact_into(&**direct, &self.path, offset, buffer);
                match self.measure_read(ReadPurpose::Job, read) {
                    Err(error) if is_direct_read_refused(&error) => {
                        return self.read_for_purpose(ReadPurpose::Job, offset, buffer);
                    }
                    done => done?,
                }
                if let Some(options) = &cache.job_reads {
                    options.rate.acquire(IoPriority::Compaction, len_u64(buffer.len()));
                }
                Ok(())
            }
        }
    }

    #[inline]
    fn read_into(self: &Arc<Self>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let open = self.file.load();
        if let Some(open) = &*open {
            // The bit is set only if it is clear, because a store would invalidate the cache line in other cores.
            if !self.was_used.load(Ordering::Relaxed) {
                self.was_used.store(true, Ordering::Relaxed);
            }
            return read_exact_into(&*open.0, &self.path, offset, buffer);
        }
        drop(open);
        let open = self.open(true)?;
        read_exact_into(&*open.0, &self.path, offset, buffer)
    }

    /// Hints to the file system that a range will be read. Returns whether the file system prefetches the range or has
    /// it in memory.
    pub(crate) fn will_need(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<bool> {
        Ok(self.open_file()?.0.will_need(offset, bytes))
    }

    /// Calls `read`, which reads and verifies bytes of this file. If the bytes are corrupt and the purpose is a job,
    /// calls `read` again with [`ReadSource::Device`]. A transient read error therefore does not fail the job.
    #[inline]
    pub(crate) fn read_with_retry<R>(
        &self,
        purpose: ReadPurpose,
        mut read: impl FnMut(ReadSource) -> Result<R>,
    ) -> Result<R> {
        match read(ReadSource::Cached) {
            Err(first @ Error::Corrupt { .. })
                if purpose == ReadPurpose::Job
                    && !failpoint::is_on(Failpoint::CorruptReadNotRepeated) =>
            {
                let repeated = read(ReadSource::Device)?;
                if let Some(cache) = &self.cache {
                    cache.record_repeated_read(first);
                }
                Ok(repeated)
            }
            result => result,
        }
    }

    /// Fills the buffer with the bytes at `offset`, read from the device.
    ///
    /// The read uses a new descriptor. If the file system supports direct I/O, the read is direct. The pages are also
    /// dropped from the page cache, so that later reads access the device as well.
    #[cold]
    fn read_from_device(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if let Some(open) = &*self.file.load() {
            open.0.drop_cached_pages(offset, len_u64(buffer.len()));
            if self.cache.is_none() {
                return read_exact_into(&*open.0, &self.path, offset, buffer);
            }
        }
        let Some(cache) = &self.cache else {
            return Err(Error::io("open", &self.path, io::ErrorKind::NotFound.into()));
        };
        let open_error = |error| cache.open_error(Error::io("open", &self.path, error));
        let file = cache.vfs.open_uncached(&self.path).map_err(open_error)?;
        read_exact_into(&*file, &self.path, offset, buffer)
    }

    /// Returns the XXH3-64 checksum of the first `bytes` bytes of the file.
    pub(crate) fn compute_checksum(self: &Arc<Self>, bytes: u64) -> Result<u64> {
        let (mut checksum, mut offset) = (StreamingChecksum::new(0), 0);
        while offset < bytes {
            let read_bytes = CHECKSUM_READ_BYTES.min(bytes - offset);
            checksum.update(&self.read_exact(offset, read_bytes)?);
            offset += read_bytes;
        }
        Ok(checksum.digest())
    }

    /// Opens the file. If `is_reopened` is true, checks that it is the same file as before.
    ///
    /// # Errors
    /// [`Error::Closed`] if the file cannot be opened and the database is closed.
    #[cold]
    fn open(self: &Arc<Self>, is_reopened: bool) -> Result<Arc<OpenFile>> {
        let Some(cache) = &self.cache else {
            // Unreachable: a pinned file is always open.
            let closed = io::Error::other("the descriptor is closed");
            return Err(Error::io("open", &self.path, closed));
        };
        cache.reserve_fd();
        let opened = match cache.direct_io {
            false => cache.vfs.open(&self.path),
            true => cache.vfs.open_direct(&self.path),
        };
        let opened =
            opened.map_err(|error| Error::io("open", &self.path, error)).and_then(|file| {
                if is_reopened {
                    self.check_identity(&*file)?;
                    cache.reopened.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Arc::new(OpenFile(file)))
            });
        match opened {
            Err(error) => {
                cache.release_fd();
                // If a concurrent call of `keep_open` opened the file before the database was closed, its descriptor is
                // used.
                self.file.load_full().ok_or_else(|| cache.open_error(error))
            }
            Ok(open) => {
                let none: Option<Arc<OpenFile>> = None;
                match &*self.file.compare_and_swap(&none, Some(Arc::clone(&open))) {
                    None => cache.add_to_clock(self),
                    // Another thread has opened the file first. This descriptor is closed after the read.
                    Some(_) => cache.release_fd(),
                }
                Ok(open)
            }
        }
    }

    /// Checks the size and the uid of a reopened file. This detects a file that was replaced while it was closed.
    fn check_identity(&self, file: &dyn File) -> Result<()> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let bytes = file.len().map_err(|error| Error::io("read the size of", &self.path, error))?;
        if bytes != identity.bytes {
            let what = "file size";
            let wrong = Malformed::Identity { what, expected: identity.bytes, found: bytes };
            return Err(Error::malformed(wrong, &self.path, 0));
        }
        let (uid_at, found) = if identity.is_blob_file {
            let header = read_exact(file, &self.path, 0, len_u64(BLOB_HEADER_BYTES).min(bytes))?;
            let header = BlobHeader::decode(&header)
                .map_err(|what| Error::malformed(what, &self.path, 0))?;
            (0, header.uid)
        } else {
            let footer_at = bytes.saturating_sub(len_u64(FOOTER_BYTES));
            let footer = read_exact(file, &self.path, footer_at, bytes - footer_at)?;
            let footer = Footer::decode(&footer)
                .map_err(|what| Error::malformed(what, &self.path, footer_at))?;
            (footer_at, footer.uid)
        };
        if found != identity.uid {
            let what = "uid of the file";
            let wrong = Malformed::Identity { what, expected: identity.uid, found };
            return Err(Error::malformed(wrong, &self.path, uid_at));
        }
        Ok(())
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        if let (Some(cache), Some(_)) = (&self.cache, self.file.swap(None)) {
            cache.release_fd();
        }
    }
}

/// Converts an error of the engine to the error type of [`File`].
fn into_io_error(error: Error) -> io::Error {
    match error {
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(source.kind(), source),
        },
        other => io::Error::other(other),
    }
}

/// Returns whether a read failed because the file system has no direct reads.
fn is_direct_read_refused(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if has_no_direct_reads(source))
}

/// Returns a zeroed buffer of `bytes` bytes for a read at `offset`.
fn new_buffer(path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let bytes = to_usize("block", bytes).map_err(|what| Error::malformed(what, path, offset))?;
    Ok(vec![0; bytes])
}

/// Reads `bytes` bytes at `offset`. The caller has checked that this range is inside the file.
pub(super) fn read_exact(file: &dyn File, path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let mut buffer = new_buffer(path, offset, bytes)?;
    read_exact_into(file, path, offset, &mut buffer)?;
    Ok(buffer)
}

fn read_exact_into(file: &dyn File, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let found = file.read_at(buffer, offset).map_err(|error| Error::io("read", path, error))?;
    if found != buffer.len() {
        let (needed, found) = (len_u64(buffer.len()), len_u64(found));
        return Err(Error::malformed(
            Malformed::Truncated { what: "file", needed, found },
            path,
            offset,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::fault::{Errno, Fault, FaultRule, FaultVfs};
    use crate::vfs::resource_retry::ResourceRetryVfs;

    /// A job whose direct reads failed did not use the page cache, so compactions failed again and again. A repeated
    /// read failed, too, and the file was quarantined.
    #[test]
    fn direct_read_refused_by_file_system_is_repeated_through_page_cache() {
        let vfs = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        vfs.refuse_direct_reads();
        let path = Path::new("f");
        vfs.create(path).unwrap().append(b"abc").unwrap();
        let cache = FdCache::new(Arc::new(vfs.clone()), 9, false, None);
        let file = CachedFile::open_store_file(&cache, path).unwrap();
        let mut found = [0; 2];
        file.read_from_source(ReadSource::Device, 1, &mut found).unwrap();
        assert_eq!(&found, b"bc");
        assert!(cache.reserve_job_fd());
        let direct = Some((vfs.open_direct(path).unwrap(), Arc::clone(&cache)));
        file.read_for_job(&JobFile { direct }, 0, &mut found).unwrap();
        assert_eq!(&found, b"ab");
    }

    /// Two threads found no free descriptor. The first one closed all files of the cache, so the second one had nothing
    /// to close and failed. The delay hook is the first thread: it runs before the call of the second thread fails.
    #[test]
    fn call_without_descriptors_is_retried_after_release_by_other_thread() {
        let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        let vfs = ResourceRetryVfs::new(Arc::new(faults.clone()));
        let cache = FdCache::new(vfs.clone(), 9, false, None);
        let owner: Arc<dyn ReleaseResource> = cache.clone();
        vfs.set_descriptor_owner(Arc::downgrade(&owner));
        let path = Path::new("f");
        vfs.create(path).unwrap();
        let file = CachedFile::open_store_file(&cache, path).unwrap();
        let other = Arc::clone(&cache);
        faults.set_delay_hook(Some(Arc::new(move |_, _| {
            assert!(other.release_resource(other.release_count()));
        })));
        for fault in [Fault::Delay, Fault::Error(Errno::TooManyFiles)] {
            faults.add_rule(FaultRule::new(fault).for_calls(&[VfsCall::Create]));
        }
        assert!(vfs.create(Path::new("g")).is_ok());
        assert_eq!(cache.open_count(), 0);
        assert!(!cache.release_resource(cache.release_count()), "no file is open");
        drop(file);
    }
}
