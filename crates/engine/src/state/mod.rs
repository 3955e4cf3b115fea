//! What all paths of one database share: files, log, manifest, cache, trees, numbers, health.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::thread::{self, ThreadId};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, RwLock, Signal, Weak, assert_unlocked,
};
use lsmx_compaction::{FileId, TableMeta};

use crate::background_error::BackgroundErrorState;
use crate::cache::BlockCache;
use crate::callback::{self, CallbackContext};
use crate::deferred_drop::DeferredDrop;
use crate::env::Env;
use crate::env::rate_limit::{IoPriority, RateLimiter};
use crate::error::{Error, Result};
use crate::event::{BackgroundError, Event, EventListener};
use crate::format::file_name::FileName;
use crate::format::version_edit::{BlobFileRecord, FileRecord};
use crate::manifest::{Manifest, ManifestState};
use crate::metrics::Latencies;
use crate::options::keyspace::kept_logs;
use crate::table::{FdCache, FdCacheVfs, Table, TableIdentity, TableSummary};
use crate::tree::guard_history::GuardHistory;
use crate::tree::snapshots::Sequence;
pub(crate) use crate::tree::version::FileNumbers;
use crate::tree::version::{BlobFile, BlobUse, Janitor, SuperVersion, TableFile, Version};
use crate::tree::{NEVER, Tree};
use crate::value_log::BlobReader;
use crate::vfs::{PacedVfs, Vfs};
use crate::wal::{DiskReserve, ResumeWrites, Wal};

/// Trees by id and by name.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    by_id: BTreeMap<u32, Arc<Tree>>,
    by_name: BTreeMap<String, Arc<Tree>>,
}

impl Trees {
    /// Adds a tree.
    pub(crate) fn insert(&mut self, tree: Arc<Tree>) {
        self.by_name.insert(tree.name.clone(), Arc::clone(&tree));
        self.by_id.insert(tree.id, tree);
    }

    /// Takes a tree out.
    pub(crate) fn remove(&mut self, tree: &Tree) {
        self.by_name.remove(&tree.name);
        self.by_id.remove(&tree.id);
    }

    /// The tree with this id.
    pub(crate) fn id(&self, id: u32) -> Option<&Arc<Tree>> {
        self.by_id.get(&id)
    }

    /// The tree with this name.
    pub(crate) fn name(&self, name: &str) -> Option<&Arc<Tree>> {
        self.by_name.get(name)
    }

    /// All trees, by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Tree>> {
        self.by_id.values()
    }
}

/// Where tables come into being and are opened.
#[derive(Debug)]
pub(crate) struct TableSpace {
    pub(crate) vfs: Arc<dyn Vfs>,
    /// As `vfs`, but its calls do not take the reserve: a compaction would use it up and fail all the same.
    pub(crate) compaction_vfs: Arc<dyn Vfs>,
    pub(crate) reserve: Arc<DiskReserve>,
    pub(crate) dir: PathBuf,
    pub(crate) env: Env,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) descriptors: Arc<FdCache>,
    pub(crate) files: Arc<FileNumbers>,
    pub(crate) janitor: Arc<Janitor>,
    /// Frees what readers let go.
    pub(crate) deferred_drop: DeferredDrop,
    /// Limits what jobs read and write.
    pub(crate) rate: Arc<RateLimiter>,
    /// Whether what compactions read and write stays in the system's cache.
    pub(crate) keep_cached: bool,
    /// Whether what flushes write does.
    pub(crate) keep_flushed_cached: bool,
    /// Order in which tables were made.
    pub(crate) creation: AtomicU64,
    /// What operand stores together may have to write anew.
    pub(crate) beside_bytes: Arc<AtomicU64>,
}

impl TableSpace {
    /// Where a table lies.
    pub(crate) fn path(&self, id: FileId) -> PathBuf {
        FileName::Table(id.0).in_dir(&self.dir)
    }

    /// Where a blob file lies.
    pub(crate) fn blob_path(&self, id: FileId) -> PathBuf {
        FileName::Blob(id.0).in_dir(&self.dir)
    }

    /// Where a job of this lane creates its files.
    pub(crate) fn paced(&self, lane: IoPriority) -> PacedVfs {
        let (vfs, forget) = match lane {
            IoPriority::Flush => (&self.vfs, !self.keep_flushed_cached),
            IoPriority::Compaction => (&self.compaction_vfs, !self.keep_cached),
        };
        PacedVfs::new(Arc::clone(vfs), Arc::clone(&self.rate), lane, forget)
    }

    /// Where an operand store creates its files: at the pace of flushes, within the budget of descriptors.
    pub(crate) fn paced_store(&self, pooled: &Arc<FdCacheVfs>) -> PacedVfs {
        let (rate, forget) = (Arc::clone(&self.rate), !self.keep_flushed_cached);
        PacedVfs::new(Arc::clone(pooled) as Arc<_>, rate, IoPriority::Flush, forget)
    }

    /// Opens a table that was just written and synced, and points into these blob files.
    ///
    /// # Errors
    /// When it cannot be read again.
    pub(crate) fn open_new(
        &self,
        id: FileId,
        summary: &TableSummary,
        blobs: Vec<BlobUse>,
    ) -> Result<Arc<TableFile>> {
        let creation = self.creation.fetch_add(1, Ordering::Relaxed);
        let shape = shape_of(id, summary, self.env.creation_time_us(), creation);
        self.open_shape(shape, summary.uid, summary.checksum, blobs)
    }

    /// Opens a table that the manifest names.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub(crate) fn open(&self, record: &FileRecord, blobs: Vec<BlobUse>) -> Result<Arc<TableFile>> {
        self.open_shape(record.shape(), record.uid, record.checksum, blobs)
    }

    /// Opens a blob file of a keyspace, just written and synced or named by the manifest.
    ///
    /// # Errors
    /// As [`BlobReader::open_in`].
    pub(crate) fn open_blob(&self, keyspace: u32, blob: &BlobFileRecord) -> Result<Arc<BlobFile>> {
        let path = self.blob_path(blob.id);
        let blob = BlobReader::open_in(&self.descriptors, &path, keyspace, blob, &self.cache)?;
        Ok(Arc::new(BlobFile::new(blob, Arc::clone(&self.janitor))))
    }

    fn open_shape(
        &self,
        shape: TableMeta,
        uid: u64,
        checksum: u64,
        blobs: Vec<BlobUse>,
    ) -> Result<Arc<TableFile>> {
        let identity = TableIdentity { id: shape.id, bytes: shape.bytes, uid, checksum };
        let path = self.path(shape.id);
        let table = Table::open_in(&self.descriptors, &path, &identity, &self.cache)?;
        let janitor = Arc::clone(&self.janitor);
        Ok(Arc::new(TableFile::new(Arc::new(table), Arc::new(shape), blobs, path, janitor)))
    }
}

/// What all paths of one open database share.
pub(crate) struct DbState {
    pub(crate) tables: TableSpace,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) dir: PathBuf,
    pub(crate) env: Env,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) error_state: BackgroundErrorState,
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) guard_history: GuardHistory,
    pub(crate) files: Arc<FileNumbers>,
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) trees: RwLock<Trees>,
    /// Set while the database closes: no new writes, no new jobs.
    pub(crate) closing: AtomicBool,
    /// Given whenever a job has ended, a memtable was sealed, or the health has changed.
    pub(crate) progress: Signal,
    listener: Option<Arc<dyn EventListener>>,
    /// Whether the listener is told what led to each compaction.
    pub(crate) explains: bool,
    /// Events that are not delivered yet, because they happened under a lock or their thread holds events back.
    ///
    /// Each is delivered by its own thread: another one may be the thread that the listener waits for.
    pending: Mutex<Vec<(ThreadId, Event)>>,
    /// Held over I/O by whoever lets WAL segments go; taken by nothing else.
    pub(crate) retiring: Mutex<()>,
    flush_ready: Mutex<Ready>,
    compaction_ready: Mutex<Ready>,
    /// Bytes of all memtables, about.
    memtable_bytes: AtomicU64,
    /// Bytes that admitted commits are about to add to memtables.
    reserved_bytes: AtomicU64,
    /// Bytes of memtables at which writes wait.
    memtable_bytes_max: u64,
    /// When time alone next makes something due in a tree, in microseconds; [`NEVER`] if it does not.
    due_us: AtomicU64,
    /// How long flushes took.
    pub(crate) flush_us: Latencies,
    /// How long merges took.
    pub(crate) compaction_us: Latencies,
    /// Trees whose last compaction failed: few, and idle threads ask for them often.
    failing: Mutex<BTreeSet<u32>>,
    /// Whether the last file that was to be removed could not be.
    removals_fail: AtomicBool,
    /// Threads in [`DbState::remove_discarded`].
    removing: AtomicUsize,
    /// Whether the flush thread was notified that the reserve is due.
    reserve_notified: AtomicBool,
    /// Operand files found by the open that belong to a store that is not open, or to none.
    unclaimed: Mutex<BTreeSet<FileName>>,
    /// Dropped keyspaces that snapshots from before still see, with the numbers of their drops.
    dropped: Mutex<Vec<(u64, Arc<Tree>)>>,
    /// What iterators still held of dropped keyspaces when all else of these went.
    left: Mutex<Vec<Weak<SuperVersion>>>,
}

/// Trees that have to be looked at, in the order they came; each at most once.
#[derive(Debug, Default)]
struct Ready {
    queue: VecDeque<u32>,
    queued: BTreeSet<u32>,
    /// Trees whose flush waits until another thread is done with their operand store. They leave this list
    /// once the store is free.
    parked: Vec<Arc<Tree>>,
    /// Looks that are under way.
    taken: usize,
    /// No tree is handed out.
    paused: bool,
}

impl Ready {
    /// The position of a parked tree whose operand store is free.
    fn unblocked(&self) -> Option<usize> {
        self.parked.iter().position(|tree| !tree.beside.is_reserved())
    }
}

/// What kind of work a tree may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A sealed memtable.
    Flush,
    /// A shape that its policy does not want.
    Compaction,
}

/// The parts a store is made of, as opening put them together.
pub(crate) struct StoreParts {
    pub(crate) tables: TableSpace,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) guard_history: GuardHistory,
    /// Bytes of memtables at which writes wait.
    pub(crate) memtable_bytes_max: u64,
    pub(crate) trees: Trees,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
    pub(crate) explains: bool,
    /// The one that the janitor gives.
    pub(crate) progress: Signal,
}

impl DbState {
    /// A store that takes writes.
    pub(crate) fn new(parts: StoreParts) -> DbState {
        let tables = parts.tables;
        DbState {
            vfs: Arc::clone(&tables.vfs),
            dir: tables.dir.clone(),
            env: tables.env.clone(),
            files: Arc::clone(&tables.files),
            janitor: Arc::clone(&tables.janitor),
            tables,
            manifest: parts.manifest,
            wal: parts.wal,
            error_state: BackgroundErrorState::default(),
            sequence: parts.sequence,
            guard_history: parts.guard_history,
            trees: RwLock::new(parts.trees),
            closing: AtomicBool::new(false),
            progress: parts.progress,
            listener: parts.listener,
            explains: parts.explains,
            pending: Mutex::default(),
            retiring: Mutex::default(),
            flush_ready: Mutex::default(),
            compaction_ready: Mutex::default(),
            memtable_bytes: AtomicU64::new(0),
            reserved_bytes: AtomicU64::new(0),
            memtable_bytes_max: parts.memtable_bytes_max,
            due_us: AtomicU64::new(NEVER),
            flush_us: Latencies::default(),
            compaction_us: Latencies::default(),
            failing: Mutex::default(),
            removals_fail: AtomicBool::new(false),
            removing: AtomicUsize::new(0),
            reserve_notified: AtomicBool::new(false),
            unclaimed: Mutex::default(),
            dropped: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Keeps the contents of a dropped keyspace for the snapshots from before the drop.
    pub(crate) fn keep_dropped(&self, number: u64, tree: Arc<Tree>) {
        self.dropped.lock().push((number, tree));
        self.release_dropped(false);
    }

    /// Lets the contents of dropped keyspaces go that no snapshot sees any more, or all.
    pub(crate) fn release_dropped(&self, all: bool) {
        let released = {
            let mut dropped = self.dropped.lock();
            let (released, kept) =
                std::mem::take(&mut *dropped).into_iter().partition::<Vec<_>, _>(|(number, _)| {
                    all || !self.sequence.sees_before_drop(*number)
                });
            *dropped = kept;
            released
        };
        for (_, tree) in released {
            let nothing = Arc::new(Version::empty(&self.tables.deferred_drop));
            tree.change(|_| SuperVersion::fresh(&nothing, SeqNo::MAX));
            tree.beside.detach();
            let mut left = self.left.lock();
            left.retain(|view| view.strong_count() > 0);
            left.extend(tree.old_views.held().iter().map(Arc::downgrade));
        }
    }

    /// All trees, by id.
    pub(crate) fn all_trees(&self) -> Vec<Arc<Tree>> {
        self.trees.read().all().cloned().collect()
    }

    /// Opens the files of all that iterators hold, and keeps them open: the next owner of the database
    /// may remove them. Where that fails, the iterator that needs the file gets the error.
    pub(crate) fn keep_held_files_open(&self) {
        self.tables.descriptors.pin_store_files();
        let mut views: Vec<_> = self.left.lock().iter().filter_map(Weak::upgrade).collect();
        views.extend(self.all_trees().iter().flat_map(|tree| tree.held_views()));
        for file in views.iter().flat_map(|view| view.version.blobs().files()) {
            // Ignored for the reason above.
            let _ = file.file.blob().keep_open();
        }
        for beside in views.iter().filter_map(|view| view.operands.as_ref()) {
            beside.view.keep_open();
        }
        let runs = views.iter().flat_map(|view| view.version.runs());
        for file in runs.flat_map(|run| run.tables().iter()) {
            // Ignored for the reason above.
            let _ = file.table().keep_open();
        }
    }

    /// Notes whether the last compaction of a tree failed.
    pub(crate) fn set_failing(&self, tree: u32, failing: bool) {
        let mut all = self.failing.lock();
        if failing {
            all.insert(tree);
        } else {
            all.remove(&tree);
        }
    }

    /// Trees whose last compaction failed.
    pub(crate) fn failing_trees(&self) -> Vec<Arc<Tree>> {
        let failing: Vec<u32> = self.failing.lock().iter().copied().collect();
        let trees = self.trees.read();
        failing.iter().filter_map(|&id| trees.id(id).cloned()).collect()
    }

    /// Delivers an event to the listener, or keeps it for later where the thread holds events back. A panic in
    /// the listener is caught. No lock of the engine is held.
    pub(crate) fn tell(&self, event: &Event) {
        assert_unlocked();
        if callback::is_deferring_events() {
            self.keep_event(event.clone());
        } else {
            tell(self.listener.as_deref(), event);
        }
    }

    /// Holds back the events of the calling thread until the result is dropped: a listener must not run while
    /// other threads wait for what the calling thread is about to do.
    pub(crate) fn hold_events(&self) -> EventsHeld<'_> {
        callback::enter_defer_scope();
        EventsHeld(self)
    }

    /// Reports wall clock readings that were not believed.
    pub(crate) fn report_clock(&self) {
        for report in self.env.take_clock_reports() {
            self.tell(&Event::Clock(report));
        }
    }

    /// Makes the database read-only because of a write-path error; returns what writers are told.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let told = self.fail_locked(error);
        self.tell_pending();
        told
    }

    /// As [`DbState::fail`], for callers that hold a lock: the listener is told by
    /// [`DbState::tell_pending`], which they call once it is free.
    pub(crate) fn fail_locked(&self, error: Error) -> Error {
        let (told, first) = self.error_state.set_read_only(error);
        if first && let Error::ReadOnly { cause } = &told {
            self.keep_event(Event::ReadOnly(Arc::clone(cause)));
        }
        self.progress.notify();
        told
    }

    fn keep_event(&self, event: Event) {
        self.pending.lock().push((thread::current().id(), event));
    }

    /// Delivers the events that the calling thread kept for later, unless it holds events back.
    pub(crate) fn tell_pending(&self) {
        if callback::is_deferring_events() {
            return;
        }
        let this = thread::current().id();
        let is_own = |(thread, _): &mut (ThreadId, Event)| *thread == this;
        let pending: Vec<_> = self.pending.lock().extract_if(.., is_own).collect();
        for (_, event) in pending {
            self.tell(&event);
        }
    }

    /// Reports background work that failed.
    pub(crate) fn report(&self, work: &'static str, keyspace: Option<&Tree>, error: &Error) {
        self.tell(&Event::Failure(BackgroundError {
            work,
            keyspace: keyspace.map(|tree| tree.name.clone()),
            error: error.clone(),
        }));
    }

    /// Has the next write told of background work that failed; false if it is told of something else already.
    pub(crate) fn owe(&self, work: &'static str, keyspace: Option<&Tree>, error: &Error) -> bool {
        let keyspace = keyspace.map(|tree| tree.name.clone());
        self.error_state.defer_error(Error::Background {
            work,
            keyspace,
            cause: Arc::new(error.clone()),
        })
    }

    fn ready(&self, work: Work) -> &Mutex<Ready> {
        match work {
            Work::Flush => &self.flush_ready,
            Work::Compaction => &self.compaction_ready,
        }
    }

    /// Has somebody look whether this tree has such work.
    pub(crate) fn make_ready(&self, work: Work, tree: u32) {
        {
            let mut ready = self.ready(work).lock();
            if ready.queued.insert(tree) {
                ready.queue.push_back(tree);
            }
        }
        self.progress.notify();
    }

    /// Has the trees looked at again at this time, if not before.
    pub(crate) fn look_not_after(&self, due_us: u64) {
        if due_us < self.due_us.fetch_min(due_us, Ordering::AcqRel) {
            self.progress.notify();
        }
    }

    /// When time alone next makes something due in a tree.
    pub(crate) fn due_us(&self) -> u64 {
        self.due_us.load(Ordering::Acquire)
    }

    /// Takes the time at which something is due, if that has come: whoever took it looks.
    pub(crate) fn take_due(&self, now_us: u64) -> bool {
        let due_us = self.due_us();
        let taken =
            |at| self.due_us.compare_exchange(at, NEVER, Ordering::AcqRel, Ordering::Relaxed);
        due_us <= now_us && taken(due_us).is_ok()
    }

    /// Takes the tree that has waited longest for such a look; [`DbState::looked`] ends the look.
    pub(crate) fn take_ready(&self, work: Work) -> Option<Arc<Tree>> {
        loop {
            let id = {
                let mut ready = self.ready(work).lock();
                if ready.paused {
                    return None;
                }
                if let Some(at) = ready.unblocked() {
                    ready.taken += 1;
                    return Some(ready.parked.remove(at));
                }
                let id = ready.queue.pop_front()?;
                ready.queued.remove(&id);
                ready.taken += 1;
                id
            };
            if let Some(tree) = self.trees.read().id(id) {
                return Some(Arc::clone(tree));
            }
            self.looked(work);
        }
    }

    /// Begins a look at a tree of one's own choice, which [`DbState::looked`] ends; false while none
    /// may begin.
    pub(crate) fn begin_look(&self, work: Work) -> bool {
        let mut ready = self.ready(work).lock();
        if !ready.paused {
            ready.taken += 1;
        }
        !ready.paused
    }

    /// Ends a look.
    pub(crate) fn looked(&self, work: Work) {
        self.ready(work).lock().taken -= 1;
        self.progress.notify();
    }

    /// Whether a tree waits for such a look and may have it.
    pub(crate) fn has_ready(&self, work: Work) -> bool {
        let ready = self.ready(work).lock();
        !ready.paused && (!ready.queue.is_empty() || ready.unblocked().is_some())
    }

    /// Puts the flush of a tree off until its operand store is free.
    pub(crate) fn park_flush(&self, tree: &Arc<Tree>) {
        let mut ready = self.ready(Work::Flush).lock();
        if !ready.parked.iter().any(|parked| parked.id == tree.id) {
            ready.parked.push(Arc::clone(tree));
        }
    }

    /// Whether no look may begin.
    pub(crate) fn is_paused(&self, work: Work) -> bool {
        self.ready(work).lock().paused
    }

    /// Whether no look is under way and none is waited for. Flushes make compactions ready before
    /// they end, so they are asked first.
    pub(crate) fn is_idle(&self) -> bool {
        [Work::Flush, Work::Compaction].into_iter().all(|work| {
            let ready = self.ready(work).lock();
            ready.queue.is_empty() && ready.parked.is_empty() && ready.taken == 0
        })
    }

    /// Whether a flush runs or is due.
    pub(crate) fn is_flushing(&self) -> bool {
        let ready = self.ready(Work::Flush).lock();
        !ready.queue.is_empty() || !ready.parked.is_empty() || ready.taken > 0
    }

    /// Whether a flush runs, or is due and waits for no operand store.
    pub(crate) fn is_flush_under_way(&self) -> bool {
        let ready = self.ready(Work::Flush).lock();
        !ready.queue.is_empty() || ready.unblocked().is_some() || ready.taken > 0
    }

    /// Hands out no tree any more, or does so again.
    pub(crate) fn set_paused(&self, paused: bool) {
        for work in [Work::Flush, Work::Compaction] {
            self.ready(work).lock().paused = paused;
        }
        self.progress.notify();
    }

    /// Whether no look is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        [Work::Flush, Work::Compaction].into_iter().all(|work| self.ready(work).lock().taken == 0)
    }

    /// Counts what an insert put into a memtable.
    pub(crate) fn memtable_bytes_grown(&self, bytes: u64) {
        self.memtable_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a memtable that is let go.
    pub(crate) fn memtable_bytes_freed(&self, bytes: u64) {
        self.memtable_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of all memtables.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtable_bytes.load(Ordering::Relaxed)
    }

    /// Whether memtables, with what admitted commits add to them, have reached their bound. Memory of
    /// flushed memtables that readers hold does not count: a writer may be that reader.
    pub(crate) fn memtables_are_full(&self) -> bool {
        self.are_full_with(self.reserved_bytes())
    }

    fn are_full_with(&self, reserved_bytes: u64) -> bool {
        self.memtable_bytes().saturating_add(reserved_bytes) >= self.memtable_bytes_max
    }

    /// Bytes that admitted commits are about to add to memtables.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Acquire)
    }

    /// Reserves memtable bytes for a commit. Without `force` it fails while memtables are full, so they
    /// exceed their bound by one batch at most.
    pub(crate) fn reserve(&self, bytes: u64, force: bool) -> Option<Reservation<'_>> {
        let reserved = |reserved: u64| {
            let full = self.are_full_with(reserved)
                && !failpoint::is_on(Failpoint::AdmissionIgnoresReserved);
            (force || !full).then(|| reserved.saturating_add(bytes))
        };
        let reserved =
            self.reserved_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, reserved);
        reserved.ok().map(|_| Reservation { store: self, bytes })
    }

    /// Releases reserved bytes, after the memtables have grown by the commit or it has failed.
    pub(crate) fn release_reserved(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let reserved = self.reserved_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // Writes wait only while memtables are full, so the release that ends this wakes them.
        if self.are_full_with(reserved) {
            self.progress.notify();
        }
    }

    /// Whether the database is closing.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Has every file of the directory removed that this state does not name: what crashes and failed
    /// jobs left behind. Only while nothing else makes files. What does not work now is reported,
    /// and done by the next opening.
    ///
    /// Which files operand stores need, only they know: `operand_files` are all of these, and without them
    /// none goes.
    pub(crate) fn sweep(&self, state: &ManifestState, operand_files: Option<&BTreeSet<FileName>>) {
        if let Err(error) = self.discard_orphans(state, operand_files) {
            self.removal_failed(&error);
        }
    }

    /// Notes the operand files of the directory that no open store has, when the database is opened. They
    /// belong to stores that are not open, or are orphans.
    pub(crate) fn note_unclaimed_files(&self, live: &BTreeSet<FileName>) {
        // Without the list the next open finds them.
        let names = self.vfs.list(&self.dir).unwrap_or_default();
        let files = names.iter().filter_map(|name| FileName::parse(name)).filter(|file| {
            matches!(file, FileName::Operands(_) | FileName::Bucket(_)) && !live.contains(file)
        });
        *self.unclaimed.lock() = files.collect();
    }

    /// Says that a store that was just opened has these files.
    pub(crate) fn claim_files(&self, live: impl IntoIterator<Item = FileName>) {
        let live: BTreeSet<_> = live.into_iter().collect();
        self.unclaimed.lock().retain(|file| !live.contains(file));
    }

    /// Discards the operand files that no store has claimed, once no keyspace lacks its store.
    pub(crate) fn discard_unclaimed_files(&self) {
        if self.all_trees().iter().any(|tree| tree.beside.lacks()) {
            return;
        }
        let unclaimed = std::mem::take(&mut *self.unclaimed.lock());
        for file in unclaimed {
            let path = file.in_dir(&self.dir);
            self.tell(&Event::OrphanRemoved(path.clone()));
            self.janitor.discard(path);
        }
    }

    fn discard_orphans(
        &self,
        state: &ManifestState,
        operand_files: Option<&BTreeSet<FileName>>,
    ) -> Result<()> {
        let named = state.file_numbers();
        let kept = match failpoint::is_on(Failpoint::KeptLogRemoved) {
            true => BTreeMap::new(),
            false => kept_logs(state),
        };
        let manifest = self.manifest.number();
        let names = self.vfs.list(&self.dir);
        for name in names.map_err(|error| Error::io("list", &self.dir, error))? {
            if FileName::parse(&name)
                .is_some_and(|file| file.is_stray(Some(state.file_number_next)))
            {
                self.tell(&Event::StrayFile(self.dir.join(&name)));
                continue;
            }
            let orphan = match FileName::parse(&name) {
                Some(FileName::Table(id) | FileName::Blob(id)) => !named.contains(&id),
                Some(FileName::Segment(id)) => {
                    let is_live = self.wal.segments().iter().any(|at| at.id == id);
                    !is_live && !kept.values().any(|log| log.holds(id))
                }
                Some(FileName::Manifest(number)) => number != manifest,
                Some(FileName::Temporary(_)) => true,
                Some(name @ (FileName::Operands(_) | FileName::Bucket(_))) => {
                    operand_files.is_some_and(|live| !live.contains(&name))
                }
                Some(FileName::Current | FileName::Lock | FileName::Reserve) | None => false,
            };
            if orphan {
                let path = self.dir.join(&name);
                self.tell(&Event::OrphanRemoved(path.clone()));
                match FileName::parse(&name) {
                    // A reader may hold it, with its descriptor closed.
                    Some(FileName::Table(id) | FileName::Blob(id)) => {
                        self.janitor.discard_table(FileId(id), path);
                    }
                    _ => self.janitor.discard(path),
                }
            }
        }
        Ok(())
    }

    /// Frees old views and removes obsolete files. A file that cannot be removed is reported and left to the next
    /// opening.
    pub(crate) fn remove_discarded(&self) {
        self.release_dropped(false);
        if !self.tables.deferred_drop.has_queued() && !self.janitor.has_some() {
            return;
        }
        self.removing.fetch_add(1, Ordering::AcqRel);
        self.tables.deferred_drop.drop_queued();
        for path in self.janitor.take() {
            match self.vfs.remove(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    self.removal_failed(&Error::io("remove", &path, error));
                }
                _ => self.removals_fail.store(false, Ordering::Relaxed),
            }
        }
        self.removing.fetch_sub(1, Ordering::AcqRel);
        self.progress.notify();
    }

    /// Whether no obsolete file remains that may be removed now, and no thread is removing one.
    pub(crate) fn is_clean(&self) -> bool {
        // Files are taken over before `removing` falls, so they are asked for first.
        !self.tables.deferred_drop.has_queued()
            && !self.janitor.has_some()
            && self.removing.load(Ordering::Acquire) == 0
    }

    /// What a resumption would have to write now.
    fn resume_writes(&self) -> ResumeWrites {
        let size = self.manifest.size();
        ResumeWrites {
            unflushed_bytes: self.memtable_bytes().min(self.wal.live_bytes()),
            store_bytes: self.tables.beside_bytes.load(Ordering::Relaxed),
            manifest_bytes: size.bytes,
            keyspaces: size.keyspaces,
        }
    }

    /// Whether [`DbState::fit_reserve`] has something to do.
    pub(crate) fn is_reserve_due(&self) -> bool {
        self.tables.reserve.needs_resize(self.resume_writes())
    }

    /// [`DbState::is_reserve_due`], true once until the next [`DbState::fit_reserve`].
    pub(crate) fn asks_for_reserve(&self) -> bool {
        self.is_reserve_due() && !self.reserve_notified.swap(true, Ordering::AcqRel)
    }

    /// Whether [`DbState::asks_for_reserve`] has returned true since the last [`DbState::fit_reserve`].
    pub(crate) fn is_reserve_requested(&self) -> bool {
        self.reserve_notified.load(Ordering::Acquire)
    }

    /// Adapts the reserve to what a resumption would write.
    pub(crate) fn fit_reserve(&self) {
        if self.error_state.check_writable().is_err() || self.is_closing() {
            return;
        }
        let file_bytes =
            || self.all_trees().iter().map(|tree| tree.pin().version.file_bytes()).sum();
        if let Some(error) = self.tables.reserve.resize(self.resume_writes(), file_bytes) {
            if failpoint::is_on(Failpoint::ReserveRequired) {
                self.fail(error.clone());
            }
            self.tell(&Event::NoReserve(Arc::new(error)));
        }
        self.reserve_notified.store(false, Ordering::Release);
    }

    /// Tells the listener, and the next write if files could be removed before.
    fn removal_failed(&self, error: &Error) {
        self.report("removal", None, error);
        if !self.removals_fail.load(Ordering::Relaxed) {
            self.removals_fail.store(self.owe("removal", None, error), Ordering::Relaxed);
        }
    }
}

/// Memtable bytes reserved for a commit on its way to the queue. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    store: &'a DbState,
    bytes: u64,
}

impl Reservation<'_> {
    /// Returns the bytes, which the caller releases with [`DbState::release_reserved`].
    pub(crate) fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.store.release_reserved(self.bytes);
    }
}

/// The calling thread delivers no events until this is dropped; see [`DbState::hold_events`].
pub(crate) struct EventsHeld<'a>(&'a DbState);

impl Drop for EventsHeld<'_> {
    fn drop(&mut self) {
        if callback::leave_defer_scope() {
            self.0.tell_pending();
        }
    }
}

impl std::fmt::Debug for DbState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DbState").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Tells a listener; a panic in it is caught.
pub(crate) fn tell(listener: Option<&dyn EventListener>, event: &Event) {
    crate::job_tracing::emit_event(event);
    if let Some(listener) = listener {
        let _inside = callback::enter(CallbackContext::Listener);
        // The listener sees shared data only through `&Event`, so no state of ours is left broken.
        let told = std::panic::AssertUnwindSafe(|| listener.on_event(event));
        let _ = std::panic::catch_unwind(told);
    }
}

/// What policies know of a table from its writer's summary.
pub(crate) fn shape_of(
    id: FileId,
    summary: &TableSummary,
    now_us: u64,
    creation: u64,
) -> TableMeta {
    TableMeta {
        id,
        range: lsmx_compaction::KeyRange {
            smallest: summary.properties.smallest.clone(),
            largest: summary.properties.largest.clone(),
        },
        bytes: summary.bytes,
        entries: summary.properties.entries,
        tombstones: summary.properties.tombstones + summary.properties.range_tombstone_count,
        tombstone_seq_smallest: summary.tombstone_seq_smallest.map(|seq| seq.0),
        value_bytes: summary.properties.value_bytes,
        oldest_tombstone_us: summary.properties.oldest_tombstone_us,
        seq_smallest: summary.properties.seq_smallest.0,
        seq_largest: summary.properties.seq_largest.0,
        last_read_us: now_us,
        created_us: now_us,
        creation,
    }
}

/// What the manifest keeps of an open table.
pub(crate) fn record_of(table: &TableFile) -> Arc<FileRecord> {
    let identity = table.table().identity();
    Arc::new(FileRecord::from_shape(table.shape(), identity.uid, identity.checksum))
}
