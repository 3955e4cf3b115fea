//! Descriptors of open tables and blob files, within a budget.
//!
//! A table keeps its metadata slots as long as it is open; the descriptor of its file comes and
//! goes. A read finds it by one atomic load. Where it is closed, the file is opened again and
//! checked to be the same; if the budget is used up, another table's descriptor is closed first, by
//! a clock: one that was used since the last round is passed over once.
//!
//! The file of a table that versions name is never removed, so it can be opened again: it is handed
//! to the janitor only when the last handle of the table goes. Another owner of the database knows
//! nothing of such handles, so what iterators hold over a close keeps its descriptor from then on.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use arc_swap::ArcSwapOption;
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, Weak};

use crate::env::rate_limit::{IoPriority, RateLimiter};
use crate::error::{Error, Result};
use crate::format::blob::{BLOB_HEADER_BYTES, BlobHeader};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::version_edit::BlobFileRecord;
use crate::table::pooled::PooledFile;
use crate::table::reader::{FillCache, TableIdentity};
use crate::vfs::{File, ReleaseResource, Vfs, open_uncached};

/// Repeated reads that are kept to be reported; further ones are only counted.
const REPEATED_KEPT_MAX: usize = 64;

/// Descriptors of all open tables of a database.
#[derive(Debug)]
pub(crate) struct DescriptorPool {
    vfs: Arc<dyn Vfs>,
    limit: usize,
    round: Mutex<Round>,
    /// Files opened again after their descriptor had been closed.
    reopened: AtomicU64,
    /// Corrupt reads of jobs whose repetition past all caches succeeded.
    reads_repeated: AtomicU64,
    /// What these first reads found, until it is reported; at most [`REPEATED_KEPT_MAX`].
    repeated: Mutex<Vec<Error>>,
    /// Whether reads go past the system's cache.
    direct: bool,
    /// How jobs read; without one as everybody does.
    job_reads: Option<JobReads>,
    /// Set before the lock of the database is released, after which its next owner may remove files. Pairs with
    /// the load that follows a failed read.
    closed: Arc<AtomicBool>,
    /// Whether files that operand stores open from now on stay open: the database closes.
    keeps_opened: AtomicBool,
    /// Operand stores that are open.
    stores: AtomicUsize,
}

/// How jobs read.
#[derive(Debug)]
pub(crate) struct JobReads {
    /// Limits them.
    pub(crate) rate: Arc<RateLimiter>,
    /// Whether what they read stays in the system's cache.
    pub(crate) keep_cached: bool,
}

/// Tables with an open descriptor, in the order of the clock's rounds.
#[derive(Debug, Default)]
struct Round {
    places: VecDeque<Weak<Descriptor>>,
    /// Descriptors that are open or are being opened.
    open: usize,
}

impl DescriptorPool {
    /// A pool that keeps at most `limit` descriptors, at least one, opened for reads past the system's
    /// cache if `direct`. Readers that are at a file while
    /// its descriptor is taken away keep it for that one read.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        limit: usize,
        direct: bool,
        job_reads: Option<JobReads>,
    ) -> Arc<DescriptorPool> {
        let (round, reopened) = (Mutex::default(), AtomicU64::new(0));
        let (reads_repeated, repeated) = (AtomicU64::new(0), Mutex::default());
        let limit = limit.max(1);
        Arc::new(DescriptorPool {
            vfs,
            limit,
            round,
            reopened,
            reads_repeated,
            repeated,
            direct,
            job_reads,
            closed: Arc::default(),
            keeps_opened: AtomicBool::new(false),
            stores: AtomicUsize::new(0),
        })
    }

    /// Has files that operand stores open from now on stay open.
    pub(crate) fn keep_opened(&self) {
        self.keeps_opened.store(true, Ordering::Relaxed);
    }

    /// Whether files that operand stores open stay open.
    pub(crate) fn keeps_opened(&self) -> bool {
        self.keeps_opened.load(Ordering::Relaxed)
    }

    /// Counts an operand store that has been opened.
    pub(crate) fn add_store(&self) {
        self.stores.fetch_add(1, Ordering::Relaxed);
    }

    /// An operand store that was counted is closed.
    pub(crate) fn remove_store(&self) {
        self.stores.fetch_sub(1, Ordering::Relaxed);
    }

    /// Most files that one operand store may have open for appending: all stores together get half of the budget.
    pub(crate) fn writers_max(&self) -> usize {
        if failpoint::is_on(Failpoint::StoreFilesOutsideBudget) {
            return self.limit.max(16);
        }
        (self.limit / 2 / self.store_count().max(1)).max(1)
    }

    /// Operand stores that are open.
    pub(crate) fn store_count(&self) -> usize {
        self.stores.load(Ordering::Relaxed)
    }

    /// Creates a file that counts in the budget as long as it is open. The pool does not close it.
    pub(crate) fn create(
        self: &Arc<Self>,
        vfs: &dyn Vfs,
        path: &Path,
    ) -> io::Result<Arc<dyn File>> {
        self.reserve();
        match vfs.create(path) {
            Ok(file) => {
                let pool = Some(Arc::clone(self));
                Ok(Arc::new(PooledFile(Arc::new(Descriptor::open(pool, file, path, None)))))
            }
            Err(error) => {
                self.released();
                Err(error)
            }
        }
    }

    /// Marks the database as closed: files that cannot be opened again are no error of theirs any more.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the database is closed.
    pub(crate) fn closed(&self) -> &Arc<AtomicBool> {
        &self.closed
    }

    /// The error of a file that cannot be opened again: [`Error::Closed`] once the database is closed, because
    /// the next owner may have removed or replaced the file.
    fn open_error(&self, error: Error) -> Error {
        let closed = self.closed.load(Ordering::Acquire);
        if closed && !failpoint::is_on(Failpoint::ReadDuringCloseNamesFile) {
            Error::Closed
        } else {
            error
        }
    }

    /// Most descriptors that stay open.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Descriptors open now.
    pub(crate) fn open_count(&self) -> usize {
        self.round.lock().open
    }

    /// Files opened again after their descriptor had been closed.
    pub(crate) fn reopened(&self) -> u64 {
        self.reopened.load(Ordering::Relaxed)
    }

    /// Corrupt reads of jobs whose repetition past all caches succeeded.
    pub(crate) fn reads_repeated(&self) -> u64 {
        self.reads_repeated.load(Ordering::Relaxed)
    }

    /// Takes what such first reads found since the last call.
    pub(crate) fn take_repeated(&self) -> Vec<Error> {
        std::mem::take(&mut *self.repeated.lock())
    }

    fn note_repeated(&self, first: Error) {
        self.reads_repeated.fetch_add(1, Ordering::Relaxed);
        let mut repeated = self.repeated.lock();
        if repeated.len() < REPEATED_KEPT_MAX {
            repeated.push(first);
        }
    }

    /// Makes room for one more descriptor and counts it.
    fn reserve(&self) {
        let mut victims = Vec::new();
        let mut round = self.round.lock();
        // Two rounds see every table idle once, whatever readers do meanwhile. If all descriptors
        // are just being opened, there is none to close, and one more than the limit is open.
        let mut visits = 2 * round.places.len();
        while round.open >= self.limit && visits > 0 {
            visits -= 1;
            let patient = visits >= round.places.len();
            victims.extend(round.visit(patient));
        }
        round.open += 1;
        drop(round);
        // Closing is a system call, and the last handle of a dropped table may be among them.
        drop(victims);
    }

    /// A descriptor that was counted is not there any more.
    fn released(&self) {
        self.round.lock().open -= 1;
    }

    fn admit(&self, descriptor: &Arc<Descriptor>) {
        let mut round = self.round.lock();
        if round.places.len() == round.places.capacity() {
            // Places of dropped tables leave before the queue grows.
            round.places.retain(|place| place.strong_count() > 0);
        }
        round.places.push_back(Arc::downgrade(descriptor));
    }
}

impl Round {
    /// Looks at the next table; takes its file if it may be closed.
    fn visit(&mut self, patient: bool) -> Option<(Arc<Descriptor>, Option<Arc<OpenFile>>)> {
        let descriptor = self.places.pop_front()?.upgrade()?;
        if descriptor.kept.load(Ordering::Relaxed) {
            // It stays, and is not visited again.
            return Some((descriptor, None));
        }
        if patient && descriptor.used.swap(false, Ordering::Relaxed) {
            self.places.push_back(Arc::downgrade(&descriptor));
            return Some((descriptor, None));
        }
        let file = descriptor.file.swap(None);
        self.open -= usize::from(file.is_some());
        Some((descriptor, file))
    }
}

impl ReleaseResource for DescriptorPool {
    /// Closes half of what is open.
    fn release(&self) -> bool {
        let mut victims = Vec::new();
        let mut round = self.round.lock();
        let (before, mut visits) = (round.open, round.places.len());
        while visits > 0 && round.open > before / 2 {
            visits -= 1;
            victims.extend(round.visit(false));
        }
        let closed = round.open < before;
        drop(round);
        drop(victims);
        closed
    }
}

/// Where bytes of a file come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The descriptor of the pool, and the caches on its way.
    Usual,
    /// The device: see [`Descriptor::fill_from_device`].
    Device,
}

#[derive(Debug)]
struct OpenFile(Arc<dyn File>);

/// What tells that a file which is opened again is the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileIdentity {
    bytes: u64,
    uid: u64,
    is_blob: bool,
}

impl FileIdentity {
    /// Of a table.
    pub(crate) fn table(identity: &TableIdentity) -> FileIdentity {
        FileIdentity { bytes: identity.bytes, uid: identity.uid, is_blob: false }
    }

    /// Of a blob file.
    pub(crate) fn blob(record: &BlobFileRecord) -> FileIdentity {
        FileIdentity { bytes: record.bytes, uid: record.uid, is_blob: true }
    }
}

/// The file of one open table or blob file, whose descriptor may be closed at the moment.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// Without one the descriptor stays open.
    pool: Option<Arc<DescriptorPool>>,
    path: PathBuf,
    /// Checked when the file is opened again. Files of operand stores have none: the uid is in each frame.
    identity: Option<FileIdentity>,
    file: ArcSwapOption<OpenFile>,
    /// The clock bit; pairs with nothing: a use that the clock misses costs at most an opening.
    used: AtomicBool,
    /// Whether the clock passes it over for good; written and read by the clock under its lock.
    kept: AtomicBool,
}

impl Descriptor {
    /// The file of a table that was just opened, whose descriptor stays.
    pub(crate) fn staying(file: Arc<dyn File>, path: &Path, identity: FileIdentity) -> Self {
        Descriptor::open(None, file, path, Some(identity))
    }

    fn open(
        pool: Option<Arc<DescriptorPool>>,
        file: Arc<dyn File>,
        path: &Path,
        identity: Option<FileIdentity>,
    ) -> Self {
        Descriptor {
            pool,
            path: path.to_owned(),
            identity,
            file: ArcSwapOption::from_pointee(OpenFile(file)),
            used: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        }
    }

    /// The file of a table whose descriptor the pool may close; it is not open yet.
    pub(crate) fn pooled(
        pool: &Arc<DescriptorPool>,
        path: &Path,
        identity: FileIdentity,
    ) -> Arc<Self> {
        Descriptor::pooled_with(pool, path, Some(identity))
    }

    fn pooled_with(
        pool: &Arc<DescriptorPool>,
        path: &Path,
        identity: Option<FileIdentity>,
    ) -> Arc<Self> {
        Arc::new(Descriptor {
            pool: Some(Arc::clone(pool)),
            path: path.to_owned(),
            identity,
            file: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        })
    }

    /// Opens the file for the first time.
    pub(crate) fn open_first(self: &Arc<Self>) -> Result<Arc<dyn File>> {
        Ok(Arc::clone(&self.open_checked(false)?.0))
    }

    /// The file of an operand store, open for reading.
    pub(crate) fn open_operands(
        pool: &Arc<DescriptorPool>,
        path: &Path,
    ) -> io::Result<Arc<Descriptor>> {
        let descriptor = Descriptor::pooled_with(pool, path, None);
        descriptor.open_first().map_err(into_io)?;
        Ok(descriptor)
    }

    /// Makes a call on the file, which is opened if need be.
    pub(crate) fn call<R>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn File) -> io::Result<R>,
    ) -> io::Result<R> {
        if let Some(open) = &*self.file.load() {
            self.used.store(true, Ordering::Relaxed);
            return call(&*open.0);
        }
        let open = self.open_checked(true).map_err(into_io)?;
        call(&*open.0)
    }

    /// Makes a call on the file if it is open.
    pub(crate) fn call_if_open(&self, call: impl FnOnce(&dyn File)) {
        if let Some(open) = &*self.file.load() {
            call(&*open.0);
        }
    }

    /// Bytes of the file, as the file system has it.
    pub(crate) fn len(self: &Arc<Self>) -> Result<u64> {
        let len = match &*self.file.load() {
            Some(open) => open.0.len(),
            None => self.open_checked(true)?.0.len(),
        };
        len.map_err(|error| Error::io("read the size of", &self.path, error))
    }

    /// Opens the file, if it is not open, and keeps it open until the table goes, whatever the budget.
    pub(crate) fn keep_open(self: &Arc<Self>) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        {
            let _round = pool.round.lock();
            self.kept.store(true, Ordering::Relaxed);
        }
        if self.file.load().is_none() { self.open_checked(true).map(drop) } else { Ok(()) }
    }

    /// Reads `bytes` at `offset`; the caller has checked them against the size of the file.
    pub(crate) fn read_exact(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.read_exact_from(Source::Usual, offset, bytes)
    }

    /// As [`Descriptor::read_exact`], from this source.
    pub(crate) fn read_exact_from(
        self: &Arc<Self>,
        source: Source,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<u8>> {
        let needed =
            to_usize("block", bytes).map_err(|what| Error::malformed(what, &self.path, offset))?;
        let mut buffer = vec![0; needed];
        self.fill_from(source, offset, &mut buffer)?;
        Ok(buffer)
    }

    /// Reads as many bytes at `offset` as the buffer has, from this source.
    #[inline]
    pub(crate) fn fill_from(
        self: &Arc<Self>,
        source: Source,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        match source {
            Source::Usual => self.fill(offset, buffer),
            Source::Device => self.fill_from_device(offset, buffer),
        }
    }

    /// Reads as many bytes at `offset` as the buffer has.
    #[inline]
    pub(crate) fn fill(self: &Arc<Self>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let open = self.file.load();
        if let Some(open) = &*open {
            // Read first: a bit that is set already needs no write.
            if !self.used.load(Ordering::Relaxed) {
                self.used.store(true, Ordering::Relaxed);
            }
            return fill_exact(&*open.0, &self.path, offset, buffer);
        }
        drop(open);
        let open = self.open_checked(true)?;
        fill_exact(&*open.0, &self.path, offset, buffer)
    }

    /// Says that bytes are about to be read; returns whether the file system reads them ahead.
    pub(crate) fn will_need(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<bool> {
        if let Some(open) = &*self.file.load() {
            return Ok(open.0.will_need(offset, bytes));
        }
        Ok(self.open_checked(true)?.0.will_need(offset, bytes))
    }

    /// As [`Descriptor::fill`] for a job: pays for the bytes at the limited rate, and has the system
    /// forget them where that is wanted.
    pub(crate) fn fill_for_job(self: &Arc<Self>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.fill(offset, buffer)?;
        if let Some(pace) = self.pool.as_ref().and_then(|pool| pool.job_reads.as_ref()) {
            let bytes = len_u64(buffer.len());
            if !pace.keep_cached
                && let Some(open) = &*self.file.load()
            {
                open.0.forget(offset, bytes);
            }
            pace.rate.acquire(IoPriority::Compaction, bytes);
        }
        Ok(())
    }

    /// Runs `read`, which reads and checks bytes of this file. If a job finds them corrupt, `read` runs once
    /// more with [`Source::Device`], so that a transient bad read does not fail the job.
    ///
    /// # Errors
    /// Those of the last run.
    #[inline]
    pub(crate) fn reading<R>(
        &self,
        fill: FillCache,
        mut read: impl FnMut(Source) -> Result<R>,
    ) -> Result<R> {
        match read(Source::Usual) {
            Err(first @ Error::Corrupt { .. })
                if fill == FillCache::Job
                    && !failpoint::is_on(Failpoint::CorruptReadNotRepeated) =>
            {
                let again = read(Source::Device)?;
                if let Some(pool) = &self.pool {
                    pool.note_repeated(first);
                }
                Ok(again)
            }
            read => read,
        }
    }

    /// Reads as many bytes at `offset` as the buffer has from the device: through a descriptor of its own,
    /// past the page cache where the file system has such reads. The pages leave the page cache, so that
    /// later reads get them from the device too.
    #[cold]
    pub(crate) fn fill_from_device(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if let Some(open) = &*self.file.load() {
            open.0.forget(offset, len_u64(buffer.len()));
            if self.pool.is_none() {
                return fill_exact(&*open.0, &self.path, offset, buffer);
            }
        }
        let Some(pool) = &self.pool else {
            return Err(Error::io("open", &self.path, io::ErrorKind::NotFound.into()));
        };
        let opened = open_uncached(&*pool.vfs, &self.path);
        let file = opened.map_err(|error| pool.open_error(Error::io("open", &self.path, error)))?;
        fill_exact(&*file, &self.path, offset, buffer)
    }

    /// Opens the file; if it was open before, checks that it is the same.
    ///
    /// # Errors
    /// [`Error::Closed`] if that fails and the database is closed.
    #[cold]
    fn open_checked(self: &Arc<Self>, again: bool) -> Result<Arc<OpenFile>> {
        let Some(pool) = &self.pool else {
            // The descriptor is there from the start and nobody closes it.
            let gone = io::Error::other("the descriptor is closed");
            return Err(Error::io("open", &self.path, gone));
        };
        pool.reserve();
        let opened = match pool.direct {
            false => pool.vfs.open(&self.path),
            true => pool.vfs.open_direct(&self.path),
        };
        let opened =
            opened.map_err(|error| Error::io("open", &self.path, error)).and_then(|file| {
                if again {
                    self.check_same(&*file)?;
                    pool.reopened.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Arc::new(OpenFile(file)))
            });
        match opened {
            Err(error) => {
                pool.released();
                // A close may have opened the file meanwhile, see `Descriptor::keep_open`.
                self.file.load_full().ok_or_else(|| pool.open_error(error))
            }
            Ok(open) => {
                let none: Option<Arc<OpenFile>> = None;
                match &*self.file.compare_and_swap(&none, Some(Arc::clone(&open))) {
                    None => pool.admit(self),
                    // Somebody was faster; ours goes after this read.
                    Some(_) => pool.released(),
                }
                Ok(open)
            }
        }
    }

    /// A file that was replaced while its descriptor was closed must not be taken for ours. Blocks
    /// are checked one by one against the table's uid as well.
    fn check_same(&self, file: &dyn File) -> Result<()> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let bytes = file.len().map_err(|error| Error::io("read the size of", &self.path, error))?;
        if bytes != identity.bytes {
            let what = "file size";
            let wrong = Malformed::Identity { what, expected: identity.bytes, found: bytes };
            return Err(Error::malformed(wrong, &self.path, 0));
        }
        let (uid_at, found) = if identity.is_blob {
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

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let (Some(pool), Some(_)) = (&self.pool, self.file.swap(None)) {
            pool.released();
        }
    }
}

/// The error of a call to the file system that failed with it.
fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(source.kind(), source),
        },
        other => io::Error::other(other),
    }
}

/// Reads `bytes` at `offset`; the caller has checked them against the size of the file.
pub(crate) fn read_exact(file: &dyn File, path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let needed = to_usize("block", bytes).map_err(|what| Error::malformed(what, path, offset))?;
    let mut buffer = vec![0; needed];
    fill_exact(file, path, offset, &mut buffer)?;
    Ok(buffer)
}

/// Reads as many bytes at `offset` as the buffer has.
fn fill_exact(file: &dyn File, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
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
