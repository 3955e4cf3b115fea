//! The bucket files that views stand on, and the descriptors they take.
//!
//! A [`BucketFile`] is alive as long as a view needs it. Once it is told that nothing durable names it, its
//! last owner has it removed. Only what created a file in this opening appends to it, and only while its
//! end is where the view says: whatever a failed or taken back delivery left behind closes the file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::path::PathBuf;

use lsmx::operand_store::{OperandFileKind, Place};
use lsmx::vfs::{File, open_uncached};
use lsmx::{Error, Malformed, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering};

use crate::format::header::{self, BUCKET_MAGIC, HEADER_BYTES};

/// Most files that are open for appending, where the engine names no limit, and most that are open for reading.
const HANDLES_MAX: usize = 1024;

/// Pages of systems' caches; where they are larger, those at the ends of what was read stay.
const PAGE_BYTES: u64 = 4 << 10;
/// Bytes before the end of a file of which the system may still be writing some.
const WRITING_BYTES: u64 = 128 << 10;
/// Reads of more bytes ask the file's length first.
const READ_UNASKED_BYTES: usize = 1 << 20;

/// An error of a file.
pub(crate) fn io_error(action: &'static str, path: &std::path::Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
}

/// Reads exactly `len` bytes, which a file that is whole has.
pub(crate) fn read_exactly(
    file: &dyn File,
    path: &std::path::Path,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>> {
    if len > READ_UNASKED_BYTES {
        // Nothing is allocated for a length that the file does not have.
        let there = file.len().map_err(|e| io_error("read the length of", path, e))?;
        let found = there.saturating_sub(offset);
        if found < len_u64(len) {
            let needed = len_u64(len);
            return Err(Error::malformed(
                Malformed::Truncated { what: "file", needed, found },
                path,
                offset,
            ));
        }
    }
    let mut buffer = vec![0; len];
    let read = file.read_at(&mut buffer, offset).map_err(|e| io_error("read", path, e))?;
    if read < len {
        let (needed, found) = (len_u64(len), len_u64(read));
        return Err(Error::malformed(
            Malformed::Truncated { what: "file", needed, found },
            path,
            offset,
        ));
    }
    Ok(buffer)
}

/// Files of one store, and what they share.
#[derive(Debug)]
pub(crate) struct FileTable {
    pub(crate) place: Place,
    known: Mutex<BTreeMap<u64, std::sync::Weak<BucketFile>>>,
    readers: Mutex<Handles>,
    writers: Mutex<Handles>,
    pub(crate) written_bytes: AtomicU64,
    /// A sync has failed: some file may have lost what was appended last.
    has_lost: AtomicBool,
}

/// Open files, the least used of which go first.
#[derive(Default)]
struct Handles {
    open: HashMap<u64, (u64, Arc<dyn File>), xxhash_rust::xxh3::Xxh3DefaultBuilder>,
    /// Files that a collection appends to. They are not among those in excess.
    held: BTreeSet<u64>,
    order: BTreeMap<u64, u64>,
    tick: u64,
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} open files", self.open.len())
    }
}

impl Handles {
    fn get(&mut self, number: u64) -> Option<Arc<dyn File>> {
        let (tick, file) = self.open.get_mut(&number)?;
        self.order.remove(tick);
        self.tick += 1;
        *tick = self.tick;
        self.order.insert(self.tick, number);
        Some(file.clone())
    }

    fn put(&mut self, number: u64, file: Arc<dyn File>) {
        self.remove(number);
        self.tick += 1;
        self.open.insert(number, (self.tick, file));
        self.order.insert(self.tick, number);
    }

    fn remove(&mut self, number: u64) -> Option<Arc<dyn File>> {
        self.held.remove(&number);
        let (tick, file) = self.open.remove(&number)?;
        self.order.remove(&tick);
        Some(file)
    }

    /// Takes the least used out while there are more than `most`.
    fn excess(&mut self, most: usize) -> Option<(u64, Arc<dyn File>)> {
        if self.open.len() - self.held.len() <= most {
            return None;
        }
        let number = *self.order.values().find(|number| !self.held.contains(number))?;
        Some((number, self.remove(number)?))
    }
}

impl FileTable {
    pub(crate) fn new(place: Place) -> Arc<FileTable> {
        Arc::new(FileTable {
            place,
            known: Mutex::default(),
            readers: Mutex::default(),
            writers: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            has_lost: AtomicBool::new(false),
        })
    }

    /// Whether the sync of some file has failed since the store was opened.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }

    /// Creates a file, which goes with its last owner unless [`BucketFile::doom`] takes that back.
    pub(crate) fn create(self: &Arc<FileTable>) -> Result<Arc<BucketFile>> {
        let (number, file) = self.place.files.create(OperandFileKind::Bucket)?;
        let uid = self.place.env.random_u64();
        let made = self.insert(number, uid, true);
        made.append_to(&*file, &header::encode(BUCKET_MAGIC, uid))?;
        self.writers.lock().put(number, file);
        Ok(made)
    }

    /// As [`FileTable::create`], for a collection: deliveries leave the file open until [`FileTable::release`].
    pub(crate) fn create_held(self: &Arc<FileTable>) -> Result<Arc<BucketFile>> {
        let made = self.create()?;
        self.writers.lock().held.insert(made.number);
        Ok(made)
    }

    /// Ends [`FileTable::create_held`] for a file that is synced, and closes it if too many files are open.
    pub(crate) fn release(&self, file: &BucketFile) {
        let most = self.writers_max();
        let closed = {
            let mut writers = self.writers.lock();
            writers.held.remove(&file.number);
            let is_excess = writers.open.len() - writers.held.len() > most;
            if is_excess { writers.remove(file.number) } else { None }
        };
        drop(closed);
    }

    fn writers_max(&self) -> usize {
        self.place.files.writers_max().clamp(1, HANDLES_MAX)
    }

    /// Closes files for appending while there are too many: the least used. For deliveries, which alone
    /// append to files that are not theirs: nobody may be about to append to what is closed.
    pub(crate) fn close_excess(&self) -> Result<()> {
        loop {
            let most = self.writers_max();
            let excess = self.writers.lock().excess(most);
            let Some((number, writer)) = excess else { return Ok(()) };
            let file = self.known.lock().get(&number).and_then(std::sync::Weak::upgrade);
            if let Some(file) = file {
                // What was appended must not go unsynced when a log no longer has it.
                file.sync_with(&*writer)?;
            }
        }
    }

    /// The file of this number, which is there already.
    pub(crate) fn existing(self: &Arc<FileTable>, number: u64, uid: u64) -> Arc<BucketFile> {
        let known = self.known.lock().get(&number).and_then(std::sync::Weak::upgrade);
        known.filter(|file| file.uid == uid).unwrap_or_else(|| self.insert(number, uid, false))
    }

    fn insert(self: &Arc<FileTable>, number: u64, uid: u64, doomed: bool) -> Arc<BucketFile> {
        let file = Arc::new(BucketFile {
            number,
            uid,
            path: self.place.files.path(OperandFileKind::Bucket, number),
            end: AtomicU64::new(0),
            end_synced: AtomicU64::new(0),
            lost_from: AtomicU64::new(u64::MAX),
            appends: AtomicU64::new(0),
            appends_synced: AtomicU64::new(0),
            doomed: AtomicBool::new(doomed),
            kept: OnceLock::new(),
            table: self.clone(),
        });
        self.known.lock().insert(number, Arc::downgrade(&file));
        file
    }

    /// All files that somebody has.
    pub(crate) fn alive(&self) -> Vec<Arc<BucketFile>> {
        self.known.lock().values().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// Has no file appended to any more.
    pub(crate) fn close_writers(&self) {
        let closed = std::mem::take(&mut *self.writers.lock());
        drop(closed);
    }
}

/// A bucket file that a view needs, or one that is being written.
#[derive(Debug)]
pub(crate) struct BucketFile {
    pub(crate) number: u64,
    pub(crate) uid: u64,
    pub(crate) path: PathBuf,
    /// Where the next append goes, in a file that this opening created.
    end: AtomicU64,
    /// Where it ended when it was synced last.
    end_synced: AtomicU64,
    /// From where on it may have lost what was appended, for a sync of it has failed.
    lost_from: AtomicU64,
    /// Appends that have ended, and how many of them are synced.
    appends: AtomicU64,
    appends_synced: AtomicU64,
    /// Nothing durable names it: the last owner has it removed.
    doomed: AtomicBool,
    /// Open as long as somebody has the file, once its database is closed.
    kept: OnceLock<Arc<dyn File>>,
    table: Arc<FileTable>,
}

impl Drop for BucketFile {
    fn drop(&mut self) {
        let table = &self.table;
        {
            let mut known = table.known.lock();
            // Another may have taken the place of one that nobody could reach any more.
            if known.get(&self.number).is_some_and(|file| file.strong_count() == 0) {
                known.remove(&self.number);
            }
        }
        let reader = table.readers.lock().remove(self.number);
        let writer = table.writers.lock().remove(self.number);
        drop((reader, writer));
        if self.doomed.load(Ordering::Acquire) && !table.place.read_only {
            table.place.files.discard(OperandFileKind::Bucket, self.number);
        }
    }
}

impl BucketFile {
    /// What counts of it is on stable storage already, and nothing will be appended.
    pub(crate) fn settle(&self) {
        self.appends_synced.store(self.appends.load(Ordering::Acquire), Ordering::Release);
        self.end.store(u64::MAX, Ordering::Release);
    }

    /// Whether the last owner removes the file.
    pub(crate) fn doom(&self, doomed: bool) {
        self.doomed.store(doomed, Ordering::Release);
    }

    fn writer(&self) -> Option<Arc<dyn File>> {
        self.table.writers.lock().get(self.number)
    }

    /// Whether an append would come right behind `end`.
    pub(crate) fn appends_at(&self, end: u64) -> bool {
        self.end.load(Ordering::Acquire) == end && self.writer().is_some()
    }

    fn append_to(&self, file: &dyn File, bytes: &[u8]) -> Result<()> {
        let result = file.append(bytes).map_err(|e| io_error("append to", &self.path, e));
        match &result {
            Ok(()) => {
                self.end.fetch_add(len_u64(bytes.len()), Ordering::AcqRel);
                self.table.written_bytes.fetch_add(len_u64(bytes.len()), Ordering::Relaxed);
            }
            // A part may be there: no view's end is this file's any more.
            Err(_) => self.end.store(u64::MAX, Ordering::Release),
        }
        self.appends.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// Where the next append goes.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Whether something before `end` may be lost, though it was there once.
    pub(crate) fn has_lost(&self, end: u64) -> bool {
        self.lost_from.load(Ordering::Acquire) < end
    }

    /// Appends; the caller knows from [`BucketFile::appends_at`] or from creation that it may.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<()> {
        let file = self.writer().ok_or_else(|| {
            let closed = io::Error::other("the file was closed for appending");
            io_error("append to", &self.path, closed)
        })?;
        let offset = self.end();
        self.append_to(&*file, bytes)?;
        if self.table.place.direct_reads {
            // What is not written yet begins its way to the disk and stays; what came shortly before has
            // arrived, and goes.
            let from = offset.saturating_sub(WRITING_BYTES);
            let from = from - from % PAGE_BYTES;
            file.forget(from, offset - from + len_u64(bytes.len()));
        }
        Ok(())
    }

    /// Puts what was appended on stable storage. After a failure nothing is appended any more, and every
    /// further sync fails: one that did not would say nothing of what the first one has lost.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.appends.load(Ordering::Acquire) == self.appends_synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let file = self.writer().ok_or_else(|| {
            let closed = io::Error::other("the file was closed before it was synced");
            io_error("sync", &self.path, closed)
        })?;
        self.sync_with(&*file)
    }

    fn sync_with(&self, file: &dyn File) -> Result<()> {
        let appends = self.appends.load(Ordering::Acquire);
        if appends == self.appends_synced.load(Ordering::Acquire) {
            return Ok(());
        }
        let end = self.end();
        if end == u64::MAX {
            let failed =
                io::Error::other("an append to the file or a sync of it has failed before");
            return Err(io_error("sync", &self.path, failed));
        }
        file.sync().map_err(|e| {
            self.end.store(u64::MAX, Ordering::Release);
            self.lost_from.store(self.end_synced.load(Ordering::Acquire), Ordering::Release);
            self.table.has_lost.store(true, Ordering::Release);
            io_error("sync", &self.path, e)
        })?;
        let synced = self.end_synced.fetch_max(end, Ordering::AcqRel);
        if self.table.place.direct_reads {
            let from = synced - synced % PAGE_BYTES;
            file.forget(from, end.saturating_sub(from));
        }
        // What was appended meanwhile is not known to be synced.
        self.appends_synced.fetch_max(appends, Ordering::AcqRel);
        Ok(())
    }

    /// Opens it for as long as somebody has it.
    pub(crate) fn keep_open(&self) -> Result<()> {
        if self.kept.get().is_none() {
            let file = match self.writer() {
                Some(writer) => writer,
                None => self.open()?,
            };
            // Another thread may have opened the same file.
            let _ = self.kept.set(file);
        }
        Ok(())
    }

    fn open(&self) -> Result<Arc<dyn File>> {
        let opened = self.table.place.files.vfs().open(&self.path);
        opened.map_err(|e| io_error("open", &self.path, e))
    }

    fn reader(&self) -> Result<Arc<dyn File>> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept.clone());
        }
        if !self.table.place.direct_reads
            && let Some(file) = self.writer()
        {
            return Ok(file);
        }
        if let Some(file) = self.table.readers.lock().get(self.number) {
            return Ok(file);
        }
        let file = self.open()?;
        let excess = {
            let mut readers = self.table.readers.lock();
            readers.put(self.number, file.clone());
            readers.excess(HANDLES_MAX)
        };
        drop(excess);
        Ok(file)
    }

    /// Reads a part of the file. Its header need not be asked: frames check only in the file of the uid
    /// that the log names.
    ///
    /// Where reads go past the system's cache, these go through it and leave nothing behind: so the system
    /// can be told ahead what is read while tables are (see [`BucketFile::will_need`]).
    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.reader()?;
        let bytes = read_exactly(&*file, &self.path, offset, len)?;
        if self.table.place.direct_reads {
            // Pages that are there in part stay, so all of the first and the last are told.
            let from = offset - offset % PAGE_BYTES;
            let to = offset.saturating_add(len_u64(len)).next_multiple_of(PAGE_BYTES);
            file.forget(from, to - from);
        }
        Ok(bytes)
    }

    /// Reads a part of the file from the device, see [`open_uncached`]. Its pages leave the page cache.
    pub(crate) fn read_from_device(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.reader()?.forget(offset, len_u64(len));
        let opened = open_uncached(&**self.table.place.files.vfs(), &self.path);
        let file = opened.map_err(|e| io_error("open", &self.path, e))?;
        read_exactly(&*file, &self.path, offset, len)
    }

    /// Has the system begin to read a part of the file. A hint.
    pub(crate) fn will_need(&self, from: u64, to: u64) {
        if let Ok(file) = self.reader() {
            file.will_need(from, to.saturating_sub(from));
        }
    }

    /// Checks the first bytes of the file.
    pub(crate) fn verify_header(&self) -> Result<()> {
        let bytes = read_exactly(&*self.reader()?, &self.path, 0, HEADER_BYTES)?;
        let at = |what: Malformed| Error::malformed(what, &self.path, 0);
        let found = header::decode(&bytes, BUCKET_MAGIC).map_err(at)?;
        if found != self.uid {
            let what = "uid of a bucket file";
            return Err(at(Malformed::Identity { what, expected: self.uid, found }));
        }
        Ok(())
    }
}
