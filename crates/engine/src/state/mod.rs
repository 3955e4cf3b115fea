//! State of an open database that its parts share: files, WAL, manifest, trees, sequence numbers and background errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::{self, ThreadId};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{
    Arc, AtomicBool, AtomicUsize, Mutex, Ordering, RwLock, Signal, Weak, assert_unlocked,
};
use lsmx_compaction::FileId;

use crate::background_error::BackgroundErrorState;
use crate::callback::{self, CallbackContext};
use crate::env::{Env, YieldKind};
use crate::error::{Error, Result};
use crate::event::{BackgroundError, Event, EventListener};
use crate::followers::PinnedFiles;
use crate::format::version_edit::VersionEdit;
use crate::manifest::{Manifest, ManifestState, is_observable};
use crate::metrics::{LatencyHistogram, OperationLatencies};
use crate::options::stored::kept_logs;
use crate::state::keyspaces::Keyspaces;
use crate::state::memtable_budget::MemtableBudget;
use crate::state::table_factory::TableFactory;
use crate::state::work_queue::WorkQueues;
use crate::tree::Tree;
use crate::tree::file_numbers::FileNumbers;
use crate::tree::guard_history::GuardHistory;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::tree::snapshots::{ReadPoint, SnapshotGuard, SnapshotTracker};
use crate::tree::super_version::SuperVersion;
use crate::tree::version::Version;
use crate::vfs::Vfs;
use crate::wal::{DiskReserveDemand, LogHolds, Wal};

pub(crate) mod keyspaces;
pub(crate) mod memtable_budget;
pub(crate) mod table_factory;
pub(crate) mod work_queue;

/// Shared state of an open database.
pub(crate) struct DbState {
    pub(crate) tables: TableFactory,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) dir: PathBuf,
    pub(crate) env: Env,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    /// Positions of log archivers.
    pub(crate) log_holds: LogHolds,
    pub(crate) error_state: BackgroundErrorState,
    pub(crate) sequence: Arc<SnapshotTracker>,
    pub(crate) guard_history: GuardHistory,
    pub(crate) files: Arc<FileNumbers>,
    pub(crate) obsolete_files: Arc<ObsoleteFiles>,
    pub(crate) trees: RwLock<Keyspaces>,
    /// Set while the database is being closed. No write and no job starts while it is set.
    pub(crate) closing: AtomicBool,
    /// Notified when a job ends, a memtable is sealed, or the error state changes.
    pub(crate) progress: Signal,
    listener: Option<Arc<dyn EventListener>>,
    /// Whether the listener receives the reason for each compaction.
    pub(crate) explains: bool,
    /// Events that are not delivered yet, because they occurred while a lock was held, or because their thread defers
    /// events.
    ///
    /// A thread delivers only the events that it has queued. A listener may wait for another thread. This other thread
    /// could be blocked if it had to deliver the events of other threads first.
    pending: Mutex<Vec<(ThreadId, Event)>>,
    /// Serializes the deletion of WAL segments. Held during I/O.
    pub(crate) retiring: Mutex<()>,
    pub(crate) work: WorkQueues,
    pub(crate) memtables: MemtableBudget,
    /// Durations of flushes.
    pub(crate) flush_us: LatencyHistogram,
    /// Durations of compactions.
    pub(crate) compaction_us: LatencyHistogram,
    /// Durations of operations of users.
    pub(crate) latencies: Arc<OperationLatencies>,
    /// Ids of the trees whose last compaction failed. The set is small, and idle threads read it often.
    failing: Mutex<BTreeSet<u32>>,
    /// True if the last attempt to delete a file failed.
    removals_fail: AtomicBool,
    /// Number of threads that are currently in [`DbState::remove_discarded`].
    removing: AtomicUsize,
    /// Whether a flush thread was notified that the disk reserve must be resized.
    reserve_notified: AtomicBool,
    /// Operand store files that were found when the database was opened, and that no open store uses. They belong to a
    /// store that is not open, or to no store.
    unclaimed: Mutex<BTreeSet<FileName>>,
    /// Dropped keyspaces that older snapshots can still read, each with the number of its drop.
    dropped: Mutex<Vec<(u64, Arc<Tree>)>>,
    /// Super versions of dropped keyspaces that iterators still hold.
    held_views: Mutex<Vec<Weak<SuperVersion>>>,
}

/// Arguments of [`DbState::new`].
pub(crate) struct DbParts {
    pub(crate) tables: TableFactory,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) sequence: Arc<SnapshotTracker>,
    pub(crate) guard_history: GuardHistory,
    /// Size of memtables in bytes at which writes wait.
    pub(crate) memtable_bytes_max: u64,
    pub(crate) trees: Keyspaces,
    pub(crate) latencies: Arc<OperationLatencies>,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
    pub(crate) explains: bool,
    /// Signal that is also used by the list of obsolete files.
    pub(crate) progress: Signal,
}

impl DbState {
    /// Creates the state of a writable database.
    pub(crate) fn new(parts: DbParts) -> DbState {
        let tables = parts.tables;
        let work = WorkQueues::new(parts.progress.clone());
        let memtables = MemtableBudget::new(parts.memtable_bytes_max, parts.progress.clone());
        DbState {
            vfs: Arc::clone(&tables.vfs),
            dir: tables.dir.clone(),
            env: tables.env.clone(),
            files: Arc::clone(&tables.files),
            obsolete_files: Arc::clone(&tables.obsolete_files),
            tables,
            manifest: parts.manifest,
            wal: parts.wal,
            log_holds: LogHolds::default(),
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
            work,
            memtables,
            flush_us: LatencyHistogram::default(),
            compaction_us: LatencyHistogram::default(),
            latencies: parts.latencies,
            failing: Mutex::default(),
            removals_fail: AtomicBool::new(false),
            removing: AtomicUsize::new(0),
            reserve_notified: AtomicBool::new(false),
            unclaimed: Mutex::default(),
            dropped: Mutex::default(),
            held_views: Mutex::default(),
        }
    }

    /// Keeps the data of a dropped keyspace as long as older snapshots can read it. `number` is the number of the drop.
    pub(crate) fn add_dropped_keyspace(&self, number: u64, tree: Arc<Tree>) {
        self.dropped.lock().push((number, tree));
        self.release_dropped_keyspaces(false);
    }

    /// Releases the data of dropped keyspaces that no snapshot can read. If `all` is true, releases the data of all
    /// dropped keyspaces.
    pub(crate) fn release_dropped_keyspaces(&self, all: bool) {
        let released = {
            let mut dropped = self.dropped.lock();
            let (released, kept) =
                std::mem::take(&mut *dropped).into_iter().partition::<Vec<_>, _>(|(number, _)| {
                    all || !self.sequence.has_snapshot_before_drop(*number)
                });
            *dropped = kept;
            released
        };
        for (_, tree) in released {
            let nothing = Arc::new(Version::empty(&self.tables.deferred_drop));
            tree.update_super_version(|view| {
                SuperVersion::new(view.active.kind(), &nothing, SeqNo::MAX)
            });
            tree.operand_store.detach();
            let mut held_views = self.held_views.lock();
            held_views.retain(|view| view.strong_count() > 0);
            held_views.extend(tree.old_super_versions.in_use().iter().map(Arc::downgrade));
        }
    }

    /// Returns the read point of the newest visible state of a tree. Reads the clock only if the tree may contain
    /// expiring entries.
    #[inline]
    pub(crate) fn read_point(&self, tree: &Tree) -> ReadPoint {
        // The sequence number must be read before the flag, see `Tree::may_expire`.
        let seq = self.sequence.published();
        match tree.may_expire() {
            false => ReadPoint::without_time(seq),
            true => self.sequence.read_point(|| self.env.database_time_us()),
        }
    }

    /// Pins the super version of a tree with `pin`, and returns it together with the read point of the newest visible state.
    /// The super version contains all commits up to the read point. The caller must check that the keyspace is live.
    #[inline]
    pub(crate) fn pin_newest<V>(&self, tree: &Tree, pin: impl Fn(&Tree) -> V) -> (V, ReadPoint) {
        loop {
            let changes = tree.super_version_changes();
            // The view is pinned before the sequence number is read. A job that ends between the two steps could otherwise
            // drop the versions that this number reads.
            let view = pin(tree);
            self.env.yield_point(YieldKind::UserOperation);
            let read_point = self.read_point(tree);
            // A seal or an ingest between the two steps is not in the view. The view then lacks commits up to the read point:
            // the ingest, but not the later commits to its memtable, or all commits to a later memtable, which may have
            // renewed values that expire at the time of the read point. Commits are published after the change of the
            // super version that shows them, so this check finds each such change.
            if tree.super_version_changes() == changes
                || failpoint::is_on(Failpoint::SuperVersionChangeIgnored)
            {
                return (view, read_point);
            }
        }
    }

    /// Returns the read point of a snapshot.
    #[inline]
    pub(crate) fn read_point_of_snapshot(&self, snapshot: &SnapshotGuard) -> ReadPoint {
        let read_point = snapshot.read_point();
        match failpoint::is_on(Failpoint::SnapshotIgnoresItsTime) {
            true => ReadPoint { time_us: self.env.database_time_us(), ..read_point },
            false => read_point,
        }
    }

    /// Returns the time up to which entries have expired for all readers, in microseconds of the database clock.
    pub(crate) fn expiry_limit_us(&self) -> u64 {
        // The clock must be read before the snapshots, see `SnapshotTracker::register`.
        self.sequence.expiry_limit_us(self.env.database_time_us())
    }

    /// Returns all trees in the order of their ids.
    pub(crate) fn all_trees(&self) -> Vec<Arc<Tree>> {
        self.trees.read().iter().cloned().collect()
    }

    /// Decides whether compactions bypass the page cache. The decision depends on the size of the database.
    pub(crate) fn select_cache_bypass(&self) {
        self.tables.bypass.select(|| {
            let trees = self.all_trees();
            trees.iter().map(|tree| tree.super_version().version.file_bytes()).sum()
        });
    }

    /// Opens all files that iterators may read, and keeps them open. This is necessary because another owner may delete
    /// the files after this database is closed.
    pub(crate) fn keep_files_of_iterators_open(&self) {
        self.tables.descriptors.pin_store_files();
        let mut views: Vec<_> = self.held_views.lock().iter().filter_map(Weak::upgrade).collect();
        views.extend(self.all_trees().iter().flat_map(|tree| tree.pinned_super_versions()));
        for file in views.iter().flat_map(|view| view.version.blobs().files()) {
            // If the file cannot be opened, the iterator that reads it returns the error.
            let _ = file.file.blob().keep_open();
        }
        for beside in views.iter().filter_map(|view| view.operand_view.as_ref()) {
            beside.view.keep_files_open();
        }
        let runs = views.iter().flat_map(|view| view.version.runs());
        for file in runs.flat_map(|run| run.tables().iter()) {
            // If the file cannot be opened, the iterator that reads it returns the error.
            let _ = file.table().keep_open();
        }
    }

    /// Records whether the last compaction of a tree failed.
    pub(crate) fn set_compaction_failing(&self, tree: u32, failing: bool) {
        let mut all = self.failing.lock();
        if failing {
            all.insert(tree);
        } else {
            all.remove(&tree);
        }
    }

    /// Returns the trees whose last compaction failed.
    pub(crate) fn failing_trees(&self) -> Vec<Arc<Tree>> {
        let failing: Vec<u32> = self.failing.lock().iter().copied().collect();
        let trees = self.trees.read();
        failing.iter().filter_map(|&id| trees.by_id(id).cloned()).collect()
    }

    /// Delivers an event to the listener. If the calling thread defers events, queues the event instead.
    ///
    /// A panic of the listener is caught. The caller must not hold a lock of the engine.
    pub(crate) fn emit(&self, event: &Event) {
        assert_unlocked();
        if callback::is_deferring_events() {
            self.queue_event(event.clone());
        } else {
            emit_to(self.listener.as_deref(), event);
        }
    }

    /// Defers the events of the calling thread until the returned value is dropped. A listener must not run while other
    /// threads wait for the calling thread.
    pub(crate) fn defer_events(&self) -> HeldEvents<'_> {
        callback::enter_defer_scope();
        HeldEvents(self)
    }

    /// Reports the readings of the wall clock that were rejected.
    pub(crate) fn report_clock_jumps(&self) {
        for report in self.env.take_clock_reports() {
            self.emit(&Event::Clock(report));
        }
    }

    /// Makes the database read-only after an error of the write path. Returns the error that writes receive.
    pub(crate) fn make_read_only(&self, error: Error) -> Error {
        let read_only_error = self.make_read_only_under_lock(error);
        self.emit_pending_events();
        read_only_error
    }

    /// Like [`DbState::make_read_only`], but for callers that hold a lock. After releasing the lock, the caller must
    /// call [`DbState::emit_pending_events`].
    pub(crate) fn make_read_only_under_lock(&self, error: Error) -> Error {
        let (read_only_error, first) = self.error_state.set_read_only(error);
        if first && let Error::ReadOnly { cause } = &read_only_error {
            self.queue_event(Event::ReadOnly(Arc::clone(cause)));
        }
        self.progress.notify();
        read_only_error
    }

    fn queue_event(&self, event: Event) {
        self.pending.lock().push((thread::current().id(), event));
    }

    /// Delivers the queued events of the calling thread. Does nothing if the thread defers events.
    pub(crate) fn emit_pending_events(&self) {
        if callback::is_deferring_events() {
            return;
        }
        let this = thread::current().id();
        let is_own = |(thread, _): &mut (ThreadId, Event)| *thread == this;
        let pending: Vec<_> = self.pending.lock().extract_if(.., is_own).collect();
        for (_, event) in pending {
            self.emit(&event);
        }
    }

    /// Reports an error of background work to the event listener.
    pub(crate) fn report_background_error(
        &self,
        work: &'static str,
        keyspace: Option<&Tree>,
        error: &Error,
    ) {
        self.emit(&Event::Failure(BackgroundError {
            work,
            keyspace: keyspace.map(|tree| tree.name()),
            error: error.clone(),
        }));
    }

    /// Stores an error of background work, so that the next write returns it. Returns false if another error is already
    /// stored.
    pub(crate) fn defer_error(
        &self,
        work: &'static str,
        keyspace: Option<&Tree>,
        error: &Error,
    ) -> bool {
        let keyspace = keyspace.map(|tree| tree.name());
        self.error_state.defer_error(Error::Background {
            work,
            keyspace,
            cause: Arc::new(error.clone()),
        })
    }

    /// Appends an edit to the manifest. If the edit changes the results of reads or the structure of the database, all
    /// running log archives end before the edit, because the WAL does not contain it.
    ///
    /// # Errors
    /// Returns the errors of [`Manifest::append`].
    pub(crate) fn append_edit(&self, edit: &VersionEdit) -> Result<()> {
        if self.log_holds.has_holds()
            && self.manifest.with_state(|state| is_observable(state, edit))
        {
            // No durable commit depends on the edit yet.
            self.log_holds.record_structure_change(self.wal.durable_seq());
        }
        self.manifest.append(edit)?;
        if let Some(cause) = self.manifest.failure() {
            // The mark of the edit may be lost. No later commit may be acknowledged until `resume` writes another manifest.
            self.make_read_only_under_lock((*cause).clone());
        }
        Ok(())
    }

    /// Queues WAL segments for deletion.
    pub(crate) fn discard_segments(&self, ids: Vec<u64>) {
        for id in ids {
            self.obsolete_files.discard(FileName::Segment(id).in_dir(&self.dir));
        }
    }

    /// Returns whether the database is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Deletes all files that the manifest does not contain. Crashes and failed jobs leave such files. No other thread
    /// may create files during this call. Errors are reported to the listener, and the next open tries again.
    ///
    /// `operand_files` contains the files that operand stores need. If it is `None`, no operand store file is deleted.
    pub(crate) fn remove_orphans(
        &self,
        state: &ManifestState,
        operand_files: Option<&BTreeSet<FileName>>,
    ) {
        if let Err(error) = self.discard_orphans(state, operand_files) {
            self.report_failed_removal(&error);
        }
    }

    /// Records the operand store files that are not in `live`. Called when the database is opened. These files belong
    /// to a store that is not open, or to no store.
    pub(crate) fn record_unclaimed_files(&self, live: &BTreeSet<FileName>) {
        // If the directory cannot be listed, the next open finds the files.
        let names = self.vfs.list(&self.dir).unwrap_or_default();
        let files = names.iter().filter_map(|name| FileName::parse(name)).filter(|file| {
            matches!(file, FileName::Operands(_) | FileName::Bucket(_)) && !live.contains(file)
        });
        *self.unclaimed.lock() = files.collect();
    }

    /// Removes the files of a newly opened store from the unclaimed files.
    pub(crate) fn claim_files(&self, live: impl IntoIterator<Item = FileName>) {
        let live: BTreeSet<_> = live.into_iter().collect();
        self.unclaimed.lock().retain(|file| !live.contains(file));
    }

    /// Deletes the unclaimed operand store files. Does nothing if the store of any keyspace is not open.
    pub(crate) fn discard_unclaimed_files(&self) {
        if self.all_trees().iter().any(|tree| tree.operand_store.is_unavailable()) {
            return;
        }
        let unclaimed = std::mem::take(&mut *self.unclaimed.lock());
        for file in unclaimed {
            let path = file.in_dir(&self.dir);
            self.emit(&Event::OrphanRemoved(path.clone()));
            self.obsolete_files.discard(path);
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
        let manifest = self.manifest.manifest_number();
        let names = self.vfs.list(&self.dir);
        for name in names.map_err(|error| Error::io("list", &self.dir, error))? {
            if FileName::parse(&name)
                .is_some_and(|file| file.has_unallocated_number(Some(state.file_number_next)))
            {
                self.emit(&Event::StrayFile(self.dir.join(&name)));
                continue;
            }
            let orphan = match FileName::parse(&name) {
                Some(FileName::Table(id) | FileName::Blob(id)) => !named.contains(&id),
                Some(FileName::Segment(id)) => {
                    let is_live = self.wal.segments().iter().any(|at| at.id == id);
                    !is_live && !kept.values().any(|log| log.contains(id))
                }
                Some(FileName::Manifest(number)) => number != manifest,
                Some(FileName::Temporary(_)) => true,
                Some(name @ (FileName::Operands(_) | FileName::Bucket(_))) => {
                    operand_files.is_some_and(|live| !live.contains(&name))
                }
                Some(
                    FileName::Current
                    | FileName::Lock
                    | FileName::Reserve
                    | FileName::Metrics
                    | FileName::MetricsTemporary,
                )
                | None => false,
            };
            if orphan {
                let path = self.dir.join(&name);
                self.emit(&Event::OrphanRemoved(path.clone()));
                match FileName::parse(&name) {
                    // A reader may use the file, even if the descriptor cache has closed its descriptor.
                    Some(FileName::Table(id) | FileName::Blob(id)) => {
                        self.obsolete_files.discard_table(FileId(id), path);
                    }
                    _ => self.obsolete_files.discard(path),
                }
            }
        }
        Ok(())
    }

    /// Frees old super versions and deletes obsolete files. If a file cannot be deleted, the first error is reported.
    /// Periodic work and the next open try again.
    pub(crate) fn remove_discarded(&self) {
        self.release_dropped_keyspaces(false);
        if !self.tables.deferred_drop.has_queued() && !self.obsolete_files.has_deletable_files() {
            return;
        }
        self.removing.fetch_add(1, Ordering::AcqRel);
        self.tables.deferred_drop.drop_queued();
        for path in self.take_files_without_followers() {
            match self.vfs.remove(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let error = Error::io("remove", &path, error);
                    if self.obsolete_files.add_failed_deletion(path, self.env.now_us()) {
                        self.report_failed_removal(&error);
                    }
                }
                _ => {
                    self.obsolete_files.remove_failed_deletion(&path);
                    self.removals_fail.store(false, Ordering::Relaxed);
                }
            }
        }
        self.removing.fetch_sub(1, Ordering::AcqRel);
        self.progress.notify();
    }

    /// Removes and returns the queued files that no follower uses. Other files are kept until the next call.
    fn take_files_without_followers(&self) -> Vec<PathBuf> {
        if !self.obsolete_files.has_deletable_files() {
            return Vec::new();
        }
        let mut files = self.obsolete_files.take_deletable_files();
        // The files must be read after the paths were queued, see `followers`.
        let pinned = PinnedFiles::read(&*self.vfs, &self.dir).unwrap_or_else(|error| {
            self.report_failed_removal(&error);
            let followers = self.obsolete_files.follower_files().followers;
            PinnedFiles { followers, numbers: None }
        });
        let used: Vec<_> = files
            .extract_if(.., |(path, _)| pinned.contains(path))
            .map(|(path, bytes)| {
                let bytes = bytes.unwrap_or_else(|| self.file_bytes(&path));
                (path, bytes)
            })
            .collect();
        if let Some(metrics) = self.obsolete_files.keep_for_followers(pinned.followers, used) {
            self.emit(&Event::Followers(metrics));
        }
        files.into_iter().map(|(path, _)| path).collect()
    }

    /// Returns the size of an obsolete file in bytes, or 0 if it cannot be read.
    fn file_bytes(&self, path: &Path) -> u64 {
        self.vfs.open(path).and_then(|file| file.len()).unwrap_or_default()
    }

    /// Returns whether all obsolete files that can be deleted now have been deleted.
    pub(crate) fn is_clean(&self) -> bool {
        // A thread increments `removing` before it takes files from the queue. Because the queue is read first here, no
        // such thread is missed.
        !self.tables.deferred_drop.has_queued()
            && !self.obsolete_files.has_deletable_files()
            && self.removing.load(Ordering::Acquire) == 0
    }

    /// Estimates how many bytes `resume` would have to write now.
    fn resume_writes(&self) -> DiskReserveDemand {
        let size = self.manifest.size();
        DiskReserveDemand {
            unflushed_bytes: self.memtables.used_bytes().min(self.wal.live_bytes()),
            store_bytes: self.tables.store_rewrite_bytes.load(Ordering::Relaxed),
            manifest_bytes: size.bytes,
            keyspaces: size.keyspaces,
        }
    }

    /// Returns whether the disk reserve must be resized.
    pub(crate) fn must_resize_reserve(&self) -> bool {
        self.tables.reserve.needs_resize(self.resume_writes())
    }

    /// Like [`DbState::must_resize_reserve`], but returns true only once until the next call of
    /// [`DbState::resize_reserve`].
    pub(crate) fn request_reserve_resize(&self) -> bool {
        self.must_resize_reserve() && !self.reserve_notified.swap(true, Ordering::AcqRel)
    }

    /// Returns whether [`DbState::request_reserve_resize`] has returned true since the last call of
    /// [`DbState::resize_reserve`].
    pub(crate) fn is_reserve_resize_requested(&self) -> bool {
        self.reserve_notified.load(Ordering::Acquire)
    }

    /// Resizes the disk reserve to the number of bytes that `resume` would have to write.
    pub(crate) fn resize_reserve(&self) {
        if self.error_state.check_writable().is_err() || self.is_closing() {
            return;
        }
        let file_bytes = || {
            self.all_trees().iter().map(|tree| tree.pin_super_version().version.file_bytes()).sum()
        };
        if let Some(error) = self.tables.reserve.resize(self.resume_writes(), file_bytes) {
            if failpoint::is_on(Failpoint::ReserveRequired) {
                self.make_read_only(error.clone());
            }
            self.emit(&Event::NoReserve(Arc::new(error)));
        }
        self.reserve_notified.store(false, Ordering::Release);
    }

    /// Reports that a file could not be deleted. The first failure after a successful deletion is also returned by the
    /// next write.
    fn report_failed_removal(&self, error: &Error) {
        self.report_background_error("removal", None, error);
        if !self.removals_fail.load(Ordering::Relaxed) {
            self.removals_fail.store(self.defer_error("removal", None, error), Ordering::Relaxed);
        }
    }
}

/// Defers the events of the calling thread until it is dropped, see [`DbState::defer_events`].
pub(crate) struct HeldEvents<'a>(&'a DbState);

impl Drop for HeldEvents<'_> {
    fn drop(&mut self) {
        if callback::leave_defer_scope() {
            self.0.emit_pending_events();
        }
    }
}

impl std::fmt::Debug for DbState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DbState").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Delivers an event to a listener. A panic of the listener is caught.
pub(crate) fn emit_to(listener: Option<&dyn EventListener>, event: &Event) {
    crate::job_tracing::emit_event(event);
    if let Some(listener) = listener {
        let _inside = callback::enter(CallbackContext::Listener);
        // The listener accesses shared data only through `&Event`, so a panic cannot leave inconsistent state in the
        // engine.
        let call = std::panic::AssertUnwindSafe(|| listener.on_event(event));
        let _ = std::panic::catch_unwind(call);
    }
}
