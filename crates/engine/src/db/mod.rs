//! The database handle [`Db`] and the parts of an open database.

pub(crate) mod admission;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod close;
pub(crate) mod compact_range;
pub(crate) mod deadline;
pub(crate) mod drop_keyspace;
pub(crate) mod inspect;
pub(crate) mod keyspace;
pub(crate) mod metrics;
pub(crate) mod multi_get;
pub(crate) mod open;
pub(crate) mod open_keyspace;
pub(crate) mod operand_store;
pub(crate) mod snapshot;
pub(crate) mod update;

use std::fmt;
use std::mem;
use std::ops::RangeBounds;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};

use crate::callback;
use crate::db::admission::admit;
use crate::db::deadline::run_with_deadline;
use crate::db::multi_get::MultiGet;
use crate::db::open::warm_up::WarmUp;
use crate::db::update::KeyLocks;
use crate::env::{Env, WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};
use crate::jobs::flush_trigger::FlushTrigger;
use crate::jobs::scheduler::JobScheduler;
use crate::lookup::point::{self, ReadScope};
use crate::metrics::{MemoryMetrics, Metrics, ReadMetrics, WalMetrics};
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::memory_plan::MemoryPlan;
use crate::options::read::ReadOptions;
use crate::options::write::{Durability, WriteOptions};
use crate::state::DbState;
use crate::state::memtable_budget::MemtableReservation;
use crate::state::work_queue::WorkKind;
use crate::tree::{OpenId, Tree};
use crate::vfs::LockGuard;
use crate::workload_trace::{ActiveTrace, ScanTrace, Trace, TraceOptions, TraceRecorder};
use crate::write::backpressure;
use crate::write::batch::WriteBatch;
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;
use crate::write::ticket::LongOperandChain;

pub use crate::db::check::repair::{Finding, Loss, LossKind, RepairOptions, RepairReport, repair};
pub use crate::db::check::verify::{VerifyReport, verify};
pub use crate::db::deadline::WaitOptions;
pub use crate::db::inspect::explain::{
    EntryFound, Explanation, MemtableStep, OperandStep, RunStep,
};
pub use crate::db::inspect::health::{BlockedCompaction, Health, QuarantinedFile};
pub use crate::db::inspect::metadata_sizes::MetadataSizes;
pub use crate::db::inspect::observe::{Observation, ObservedKeyspace, ObservedLevel, observe};
pub use crate::db::keyspace::{Entry, Keyspace};
pub use crate::db::snapshot::Snapshot;
pub use crate::db::update::Update;
pub use crate::table::explain::{BlockRead, BlockSource};

pub use crate::options::db::DEFAULT_KEYSPACE;

/// The parts of one open database.
pub(crate) struct DbInner {
    pub(crate) state: Arc<DbState>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) scheduler: Arc<JobScheduler>,
    pub(crate) flush_trigger: Arc<FlushTrigger>,
    pub(crate) options: Options,
    pub(crate) memory: MemoryPlan,
    pub(crate) open_id: OpenId,
    /// Tree of the default keyspace.
    pub(crate) default_tree: Arc<Tree>,
    /// Size of the WAL found by the open. `None` if the database is writable.
    read_only: Option<WalMetrics>,
    /// Lock on the directory. Close releases it.
    lock: Mutex<Option<Box<dyn LockGuard>>>,
    /// Serializes changes of keyspaces and their options. Held during I/O, and locked before `Tree::install`.
    keyspace_changes: Mutex<()>,
    /// Set at the start of close. Pairs with [`DbInner::check_open`].
    closed: AtomicBool,
    /// Number of threads that run calls with a deadline.
    call_threads: AtomicUsize,
    /// Set when close has completed.
    lock_released: AtomicBool,
    pub(crate) key_locks: KeyLocks,
    warm_up: WarmUp,
    recording: Arc<ActiveTrace>,
    /// Whether an [`AdminLock`] exists.
    admin_locked: AtomicBool,
}

/// Serializes `resume`, `drop_keyspace`, `checkpoint`, `operands_to_tree` and `close`.
#[derive(Debug)]
struct AdminLock<'a>(&'a DbInner);

impl Drop for AdminLock<'_> {
    fn drop(&mut self) {
        self.0.admin_locked.store(false, Ordering::Release);
        self.0.state.progress.notify();
    }
}

/// Shared by all handles of one database. Closes the database when dropped.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<DbInner>);

impl fmt::Debug for DbInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbInner").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Fails if the calling thread runs a callback, because a callback must not wait for background work.
///
/// # Errors
/// [`Error::Reentrant`].
fn check_reentry(call: &'static str) -> Result<()> {
    match callback::context_name() {
        Some(context) => Err(Error::Reentrant { call, context }),
        None => Ok(()),
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The listener has received the errors. Callers that need the result call `close`.
        if !callback::has_context() {
            let _ = close::close(&self.0, None);
            return;
        }
        // Close joins the threads of the engine, and the current thread may be one of them.
        let inner = Arc::clone(&self.0);
        let close = move || drop(close::close(&inner, None));
        if self.0.state.env.spawn("lsmx-close", close).is_err() {
            // Engine threads can still write, so the lock must never be released.
            mem::forget(Arc::clone(&self.0));
        }
    }
}

/// An open database. Clones share it; dropping the last handle closes it.
#[derive(Clone, Debug)]
pub struct Db {
    handle: Arc<Handle>,
}

impl Db {
    /// Opens the database in a directory, or creates it.
    ///
    /// A missing or damaged operand store does not fail the open. Calls on its keyspace return
    /// [`Error::NoOperandStore`] instead.
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::Locked`], [`Error::UnsupportedVersion`], [`Error::Corrupt`],
    /// [`Error::Missing`], [`Error::Contradiction`], [`Error::InvalidOption`], [`Error::Io`];
    /// [`Error::NoCompactionPolicy`] for the default keyspace. After an error, existing data is unchanged.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        // A panic in user code, such as an operand store, fails the open and releases the lock.
        let opened = catch_unwind(AssertUnwindSafe(|| match options.read_only {
            true => open::read_only::open(path, options),
            false => open::open(path, options),
        }));
        opened.unwrap_or_else(|panic| Err(Error::from_panic(&*panic))).map(Db::new)
    }

    fn new(inner: DbInner) -> Db {
        Db { handle: Arc::new(Handle(Arc::new(inner))) }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn inner(&self) -> &Arc<DbInner> {
        &self.handle.0
    }

    /// Returns the keyspace named [`DEFAULT_KEYSPACE`], which always exists.
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        Keyspace::new(Arc::clone(&self.handle), Arc::clone(&self.inner().default_tree))
    }

    /// Opens a keyspace, or creates it.
    ///
    /// The options apply until the next call or until the database is closed; [`Keyspace::options`] returns them.
    /// The policy and the names of merge operator and operand store are stored. They stay the same if `options`
    /// does not set them.
    ///
    /// # Errors
    /// - [`Error::Contradiction`] if the keyspace has another merge operator or operand store.
    /// - [`Error::NoOperandStore`] if it needs an operand store that is not set, or the error of opening the store.
    /// - [`Error::NoCompactionPolicy`] if it has a custom policy that is not set.
    /// - [`Error::Reentrant`] if an event listener makes the call and log segments are kept for the store.
    /// - [`Error::InvalidOption`] for an empty name, a name of more than 255 bytes, or an option out of range.
    /// - [`Error::ReadOnly`], [`Error::Closed`].
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let tree = open_keyspace::open_keyspace(self.inner(), name, options, true)?;
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Opens a keyspace that must exist. `None` keeps its current options.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`] if it does not exist. With options, the errors of [`Db::keyspace`]. Without options,
    /// [`Error::NoCompactionPolicy`] if it has a custom policy that was not set since the open, unless the
    /// database is read-only.
    pub fn open_keyspace(&self, name: &str, options: Option<KeyspaceOptions>) -> Result<Keyspace> {
        let (inner, has_options) = (self.inner(), options.is_some());
        let tree = match options {
            Some(options) => open_keyspace::open_keyspace(inner, name, options, false)?,
            None => inner.existing_tree(name)?,
        };
        if !has_options && inner.read_only.is_none() {
            tree.check_policy()?;
        }
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Returns whether a keyspace of this name exists.
    #[must_use]
    pub fn keyspace_exists(&self, name: &str) -> bool {
        self.inner().state.trees.read().by_name(name).is_some()
    }

    /// Drops a keyspace with all its entries, durably.
    ///
    /// Its handles then return [`Error::KeyspaceDropped`]. Running iterators and older snapshots still read it.
    /// A new keyspace of the same name is empty.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`], [`Error::DefaultKeyspace`]: the keyspaces are unchanged.
    /// [`Error::ReadOnly`] with the cause: the keyspace exists until the next open, which may find it dropped.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        check_reentry("drop_keyspace")?;
        drop_keyspace::drop_keyspace(self.inner(), name)
    }

    /// Copies the database to `target`, which must not exist or must be an empty directory.
    ///
    /// The copy is an independent database. It contains every commit before the call, and possibly later ones, and
    /// is on stable storage when the call returns. Tables are hard links where the file system supports them. Writes,
    /// flushes and compactions continue during the call.
    ///
    /// # Errors
    /// [`Error::TargetNotEmpty`]; [`Error::Locked`] if another process uses the target; [`Error::Io`];
    /// [`Error::OutputInDatabase`] if the path has the name of an engine file in a database directory;
    /// [`Error::Closed`]; [`Error::ReadOnly`]. The target then does not open as a database.
    pub fn checkpoint(&self, target: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(target, &WaitOptions::default())
    }

    /// Copies the database to `target` with a deadline; see [`Db::checkpoint`].
    ///
    /// After the deadline the engine removes the partial copy as soon as the current device call returns. Until
    /// then the target is locked.
    ///
    /// # Errors
    /// The errors of [`Db::checkpoint`]; [`Error::Deadline`].
    pub fn checkpoint_with(&self, target: impl AsRef<Path>, options: &WaitOptions) -> Result<()> {
        check_reentry("checkpoint")?;
        let (target, cause) = (target.as_ref().to_owned(), WaitCause::BackgroundWork);
        run_with_deadline(self.inner(), cause, options.deadline, move |inner, deadline_us| {
            checkpoint::checkpoint(inner, &target, deadline_us)
        })
    }

    /// Returns the names of all keyspaces in ascending order.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        let trees = self.inner().state.all_trees();
        let mut names: Vec<_> = trees.iter().map(|tree| tree.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Writes a value to the default keyspace with [`Durability::Buffered`].
    ///
    /// # Errors
    /// The errors of [`Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Put, key.as_ref(), value.as_ref())
    }

    /// Deletes a key of the default keyspace with [`Durability::Buffered`].
    ///
    /// # Errors
    /// The errors of [`Db::write`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Delete, key.as_ref(), &[])
    }

    /// Deletes a range of keys of the default keyspace; see [`Keyspace::delete_range`].
    ///
    /// # Errors
    /// The errors of [`Db::write`].
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.default_keyspace().delete_range(range)
    }

    /// Writes a merge operand to the default keyspace; see [`Keyspace::merge`].
    ///
    /// # Errors
    /// The errors of [`Db::write`].
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Merge, key.as_ref(), operand.as_ref())
    }

    fn write_entry(&self, kind: EntryKind, key: &[u8], value: &[u8]) -> Result<()> {
        let inner = self.inner();
        inner.write_entry(&inner.default_tree, kind, key, value, WriteOptions::default())
    }

    /// Returns the value of a key in the default keyspace. The value shares the memory of its cached block.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`] if a block cannot be read; [`Error::NoMergeOperator`],
    /// [`Error::MergeFailed`] if the operands of the key cannot be combined; [`Error::Closed`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.inner().get(&self.inner().default_tree, key.as_ref(), None, ReadScope::Storage)
    }

    /// Returns the value of a key in the default keyspace, read with options.
    ///
    /// # Errors
    /// The errors of [`Db::get`]; [`Error::WouldBlock`] with [`ReadTier::Memory`](crate::ReadTier::Memory).
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Slice>> {
        self.inner().get(&self.inner().default_tree, key.as_ref(), None, options.into())
    }

    /// Returns whether a key of the default keyspace has a value.
    ///
    /// # Errors
    /// The errors of [`Db::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// Returns the values of many keys of the default keyspace; see [`Keyspace::multi_get`].
    ///
    /// # Errors
    /// The errors of [`Db::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        self.inner().multi_get(&self.inner().default_tree, keys, None)
    }

    /// Commits a batch atomically, across all its keyspaces.
    ///
    /// # Errors
    /// - [`Error::TooLarge`], [`Error::ForeignKeyspace`], [`Error::NoMergeOperator`], [`Error::GuardRefused`],
    ///   [`Error::GuardUnknown`], [`Error::WouldWait`], [`Error::Deadline`], [`Error::Background`],
    ///   [`Error::CompactionBlocked`], [`Error::PolicyStalled`]: the batch is not committed.
    /// - [`Error::Undecided`]: the deadline has passed, and the batch may still become visible.
    /// - [`Error::ReadOnly`] with the cause: the batch is not visible. The next open may find it, as a whole.
    pub fn write(&self, batch: WriteBatch, options: impl Into<WriteOptions>) -> Result<()> {
        self.inner().write(batch, options.into())
    }

    /// Returns a consistent, unchanging view of all keyspaces.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner().begin_operation();
        let state = &self.inner().state;
        loop {
            if let Some(snapshot) = self.try_snapshot() {
                return snapshot;
            }
            // An edit that removes data which a snapshot could see is being installed. It always ends.
            let ended = &mut || !state.sequence.has_entry_removal();
            state.env.wait(WaitCause::BackgroundWork, &state.progress, None, ended);
        }
    }

    /// Returns a snapshot, or `None` if the caller has to wait for a manifest edit.
    pub(crate) fn try_snapshot(&self) -> Option<Snapshot> {
        let state = &self.inner().state;
        let now_us = state.env.now_us();
        let pinned = if failpoint::is_on(Failpoint::SnapshotInTwoSteps) {
            let seq = state.sequence.published();
            state.env.yield_point(YieldKind::UserOperation);
            state.sequence.register_at(now_us, |_| seq)?
        } else {
            state.sequence.register(now_us)?
        };
        Some(Snapshot::new(Arc::clone(&self.handle), pinned))
    }

    /// Syncs the WAL, so that all earlier commits are on stable storage.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause.
    pub fn sync(&self) -> Result<()> {
        self.sync_with(&WaitOptions::default())
    }

    /// Syncs the WAL with a deadline; see [`Db::sync`].
    ///
    /// # Errors
    /// The errors of [`Db::sync`]; [`Error::Deadline`]: the sync may still complete.
    pub fn sync_with(&self, options: &WaitOptions) -> Result<()> {
        let cause = WaitCause::CommitAhead;
        run_with_deadline(self.inner(), cause, options.deadline, |inner, deadline_us| {
            inner.check_writable()?;
            inner.committer.sync(deadline_us)
        })
    }

    /// Writes all memtables to tables on stable storage.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause.
    pub fn flush(&self) -> Result<()> {
        self.flush_with(&WaitOptions::default())
    }

    /// Writes all memtables to tables with a deadline; see [`Db::flush`].
    ///
    /// # Errors
    /// The errors of [`Db::flush`]; [`Error::Deadline`]: the flushes continue in the background.
    pub fn flush_with(&self, options: &WaitOptions) -> Result<()> {
        check_reentry("flush")?;
        run_with_deadline(self.inner(), WaitCause::Flush, options.deadline, DbInner::flush)
    }

    /// Waits until all sealed memtables are flushed and no compaction is due.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause; the error of failing compactions; [`Error::CompactionBlocked`] if a
    /// quarantined file blocks a compaction; the reason of a quarantine; [`Error::PolicyStalled`].
    pub fn wait_idle(&self) -> Result<()> {
        self.wait_idle_with(&WaitOptions::default())
    }

    /// Waits for background work with a deadline; see [`Db::wait_idle`].
    ///
    /// # Errors
    /// The errors of [`Db::wait_idle`]; [`Error::Deadline`].
    pub fn wait_idle_with(&self, options: &WaitOptions) -> Result<()> {
        check_reentry("wait_idle")?;
        let cause = WaitCause::BackgroundWork;
        run_with_deadline(self.inner(), cause, options.deadline, move |inner, deadline_us| {
            inner.check_open()?;
            inner.scheduler.wait_idle(cause, deadline_us)
        })
    }

    /// Makes the database writable again after an error made it read-only.
    ///
    /// All acknowledged writes are first written to new files; failed commits stay lost. This needs about as much
    /// free space as the memtables. Quarantined files are verified, and intact ones are used again.
    /// [`Db::health`] still lists the others.
    ///
    /// # Errors
    /// The obstacle; the database stays read-only. [`Error::CompactionBlocked`] if the database is writable,
    /// except for a keyspace at the hard stop of its policy whose compaction a quarantined file blocks.
    pub fn resume(&self) -> Result<()> {
        self.resume_with(&WaitOptions::default())
    }

    /// Makes the database writable again with a deadline; see [`Db::resume`].
    ///
    /// # Errors
    /// The errors of [`Db::resume`]; [`Error::Deadline`]: a resume in a device call continues when the call returns,
    /// and [`Event::Resumed`](crate::Event::Resumed) reports its success.
    pub fn resume_with(&self, options: &WaitOptions) -> Result<()> {
        check_reentry("resume")?;
        let cause = WaitCause::BackgroundWork;
        run_with_deadline(self.inner(), cause, options.deadline, open::resume::resume)
    }

    /// Loads the metadata that lookups need into the block cache: range tombstones, top indexes, filters, index
    /// blocks. Stops when the cache is full. Filters of the last sorted run are skipped if lookups do not use
    /// them.
    ///
    /// Reads about [`MetadataSizes::inflection_2`] bytes, 0.14 % of the database. Counts no cache hits or misses.
    /// Lookups continue meanwhile. [`Options::warm_up`] does the same in the background after an open.
    ///
    /// # Errors
    /// [`Error::Closed`]; a block cannot be read or is damaged.
    pub fn warm_up(&self) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        open::warm_up::load_metadata(&inner.state, &|| inner.check_open().is_ok())?;
        inner.check_open()
    }

    /// Returns the error that made the database read-only.
    #[must_use]
    pub fn read_only_cause(&self) -> Option<Arc<Error>> {
        self.inner().state.error_state.read_only_cause()
    }

    /// Returns the obstacles to writes and background work: the read-only cause, quarantined files, and keyspaces
    /// whose compaction is blocked. Reads no file.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner().health()
    }

    /// Sets the maximum rate of flush and compaction I/O, in bytes per second; `None` removes the limit. See
    /// [`Options::background_io_rate`].
    pub fn set_background_io_rate(&self, bytes_per_s: Option<u64>) {
        self.inner().state.tables.rate.set_rate(bytes_per_s);
    }

    /// Records all following operations in a new file, until the returned handle is stopped or dropped.
    ///
    /// A trace has keys, value sizes and times. [`crate::workload_trace`] describes its cost and guarantees.
    ///
    /// # Errors
    /// [`Error::Io`] if the file exists or cannot be created; [`Error::InvalidOption`] if a recording is active;
    /// [`Error::OutputInDatabase`] if the path has the name of an engine file in a database directory;
    /// [`Error::Closed`].
    pub fn record_trace(&self, path: impl AsRef<Path>) -> Result<Trace> {
        self.record_trace_with(path, TraceOptions::default())
    }

    /// Records all following operations with options, such as hashed keys; see [`Db::record_trace`].
    ///
    /// # Errors
    /// The errors of [`Db::record_trace`].
    pub fn record_trace_with(
        &self,
        path: impl AsRef<Path>,
        options: TraceOptions,
    ) -> Result<Trace> {
        let (inner, path) = (self.inner(), path.as_ref());
        inner.check_open()?;
        let vfs = Arc::clone(&inner.state.vfs);
        checkpoint::check_output(&*vfs, path)?;
        Trace::start(&inner.recording, vfs, &inner.state.env, path, options)
    }

    /// Returns the use of memory by memtables, caches and indexes.
    #[must_use]
    pub fn memory(&self) -> MemoryMetrics {
        metrics::memory_metrics(self.inner())
    }

    /// Returns all counters and the shape of all trees.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics::metrics(self.inner())
    }

    /// Returns the counters of [`Db::metrics`] that reads change. Cheap enough to call around single operations.
    #[must_use]
    pub fn read_metrics(&self) -> ReadMetrics {
        metrics::read_metrics(self.inner())
    }

    /// Closes the database: flushes, stops background work, marks the WAL and releases the lock.
    ///
    /// Later calls on any handle return [`Error::Closed`]. Memtables that are not flushed before the deadline are
    /// replayed from the WAL by the next open. Iterators and running reads continue. A running read returns
    /// [`Error::Closed`] if the next owner of the database has removed a file that it needs.
    ///
    /// # Errors
    /// The error of the first failed step; the database is closed in any case. After [`Error::Deadline`] the lock
    /// is released when the current device call returns, and a second `close` waits for that. Under
    /// [`Background::Inline`](crate::env::Background::Inline) only a second `close` releases it.
    pub fn close(&self, deadline: Option<Duration>) -> Result<()> {
        check_reentry("close")?;
        close::close(self.inner(), deadline)
    }

    /// Returns the clock and random generator of this database, for experiments.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.inner().state.env
    }
}

/// A commit to record in a workload trace if it succeeds.
pub(crate) struct CommitTrace {
    recorder: Arc<TraceRecorder>,
    payload: Vec<u8>,
    count: u32,
    trees: Vec<Arc<Tree>>,
}

impl CommitTrace {
    /// Records the commit.
    pub(crate) fn committed(self, is_synced: bool) {
        let keyspaces = self.trees.iter().map(|tree| (tree.id, tree.name.as_str()));
        self.recorder.record_commit(&self.payload, self.count, is_synced, keyspaces);
    }
}

impl DbInner {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Fails if the database is closed or was opened read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.read_only.is_some() { Err(Error::OpenedReadOnly) } else { Ok(()) }
    }

    fn existing_tree(&self, name: &str) -> Result<Arc<Tree>> {
        let tree = self.state.trees.read().by_name(name).cloned();
        tree.ok_or_else(|| Error::UnknownKeyspace { name: name.to_owned() })
    }

    /// Waits for the [`AdminLock`].
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`] if the database was closed during the wait.
    fn lock_admin(&self, deadline_us: Option<u64>) -> Result<AdminLock<'_>> {
        let lock = self.lock_admin_to_close(WaitCause::BackgroundWork, deadline_us)?;
        self.check_open()?;
        Ok(lock)
    }

    /// Waits for the [`AdminLock`], even if the database is closed.
    fn lock_admin_to_close(
        &self,
        cause: WaitCause,
        deadline_us: Option<u64>,
    ) -> Result<AdminLock<'_>> {
        let state = &self.state;
        let is_locked = state.env.wait(cause, &state.progress, deadline_us, &mut || {
            // A failed exchange stores nothing. To loom, the store of a failed `swap` looks like an acquisition.
            let locked = &self.admin_locked;
            locked.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        match is_locked {
            true => Ok(AdminLock(self)),
            false => Err(Error::Deadline { cause: cause.as_str() }),
        }
    }

    /// Starts a user operation: advances a simulated clock by 1 µs and lets the stepped environment switch tasks.
    pub(crate) fn begin_operation(&self) {
        self.state.env.advance_us(1);
        self.state.env.yield_point(YieldKind::UserOperation);
    }

    pub(crate) fn write_entry(
        &self,
        tree: &Arc<Tree>,
        kind: EntryKind,
        key: &[u8],
        value: &[u8],
        options: WriteOptions,
    ) -> Result<()> {
        let mut batch = WriteBatch::for_one(tree.id, key, value);
        batch.add(tree, kind, key, value);
        self.write(batch, options)
    }

    pub(crate) fn write(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        if !self.check_write(&batch, options)? {
            return Ok(());
        }
        let (deadline_us, reservation) = admit(self, &batch, options)?;
        let sync = options.durability == Durability::Sync;
        let trace = self.start_commit_trace(&batch);
        let reserved_bytes = reservation.map_or(0, MemtableReservation::into_bytes);
        let long_chains = self.committer.commit(batch, sync, reserved_bytes, deadline_us)?;
        if let Some(trace) = trace {
            trace.committed(sync);
        }
        // The commit is complete, so a caller with a deadline must not wait for a device now.
        let reads = if deadline_us.is_some() { ReadScope::Memory } else { ReadScope::Storage };
        self.fold_chains(long_chains, reads);
        self.after_commit(deadline_us);
        Ok(())
    }

    /// Checks a write before it waits. Returns false if the write has no effect.
    pub(crate) fn check_write(&self, batch: &WriteBatch, options: WriteOptions) -> Result<bool> {
        self.check_writable()?;
        self.begin_operation();
        batch.check()?;
        let guarded = batch.guards.iter().map(|guard| &guard.tree);
        for tree in batch.trees.iter().chain(guarded) {
            if tree.open_id != self.open_id {
                return Err(Error::ForeignKeyspace { name: tree.name.clone() });
            }
            // The commit leader checks this again. The check here fails before the write waits.
            tree.check_accepts_writes()?;
        }
        let sync = options.durability == Durability::Sync;
        if batch.is_empty() && batch.guards.is_empty() && !sync {
            return Ok(false);
        }
        self.state.error_state.check_writable()?;
        if !batch.is_empty() {
            self.state.error_state.check_deferred_error()?;
        }
        Ok(true)
    }

    /// Combines long operand chains and stores the values in their memtables, so that reads need not do it again.
    ///
    /// A chain that cannot be combined is skipped; reads of its key report the error.
    pub(crate) fn fold_chains(&self, chains: Vec<LongOperandChain>, reads: ReadScope) {
        for LongOperandChain { tree, memtable, key, seq } in chains {
            let view = tree.pin_super_version();
            // Older versions are complete only while the view has the memtable, because tables then hold older
            // sequence numbers only. Afterwards, hidden versions that no snapshot needs may be missing.
            if !view.memtables().any(|current| Arc::ptr_eq(current, &memtable)) {
                continue;
            }
            let read_seq =
                if failpoint::is_on(Failpoint::FoldedValueStale) { SeqNo(seq.0 - 1) } else { seq };
            if let Ok(value) = point::get(&tree, &view, &key, read_seq, reads) {
                // The memtable may be flushed or dropped meanwhile; the value is then unused.
                self.state.env.yield_point(YieldKind::Commit);
                let added_bytes = memtable.set_folded(&key, seq, value);
                self.state.memtables.add(added_bytes);
                if !memtable.add_bytes(added_bytes) {
                    self.state.memtables.subtract(added_bytes);
                }
            }
        }
    }

    /// Starts the work that a commit has made due: WAL syncs, flushes, and inline jobs.
    pub(crate) fn after_commit(&self, deadline_us: Option<u64>) {
        let state = &self.state;
        if state.wal.claim_sync_request() || state.request_reserve() {
            state.progress.notify();
        }
        self.flush_trigger.flush_if_due(deadline_us);
        self.scheduler.run_inline();
    }

    /// Returns the value of a key at a snapshot, or the newest value.
    pub(crate) fn get(
        &self,
        tree: &Tree,
        key: &[u8],
        snapshot: Option<SeqNo>,
        reads: ReadScope,
    ) -> Result<Option<Slice>> {
        self.check_open()?;
        if reads != ReadScope::Memory {
            self.begin_operation();
        }
        // The view is read before the sequence number, so it contains every commit up to that number.
        let view = tree.super_version();
        if snapshot.is_none() {
            tree.check_live()?;
        }
        let seq = snapshot.unwrap_or_else(|| self.state.sequence.published());
        let value = point::get(tree, &view, key, seq, reads);
        if reads == ReadScope::Memory {
            if matches!(value, Err(Error::WouldBlock)) {
                // Only the retry is counted.
                return value;
            }
            self.begin_operation();
        }
        tree.counters.gets.add(1);
        let value = value?;
        self.record_get(tree, key, value.as_ref());
        Ok(value)
    }

    fn multi_get<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: impl IntoIterator<Item = K>,
        snapshot: Option<SeqNo>,
    ) -> Result<Vec<Option<Slice>>> {
        let mut multi_get = self.begin_multi_get(tree, keys.into_iter().collect(), snapshot)?;
        multi_get.look_up_all(&self.state.env, tree)?;
        Ok(multi_get.into_values(self, tree))
    }

    /// Pins a view for the lookup of many keys.
    pub(crate) fn begin_multi_get<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: Vec<K>,
        snapshot: Option<SeqNo>,
    ) -> Result<MultiGet<K>> {
        self.check_open()?;
        self.begin_operation();
        tree.counters.gets.add(len_u64(keys.len()));
        // The view is read before the sequence number, so it contains every commit up to that number.
        let view = tree.pin_super_version();
        if snapshot.is_none() {
            tree.check_live()?;
        }
        let seq = snapshot.unwrap_or_else(|| self.state.sequence.published());
        Ok(MultiGet::new(view, seq, keys))
    }

    /// Returns the value of a key before an update, and the sequence number of the read.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub(crate) fn read_to_update(
        &self,
        tree: &Tree,
        key: &[u8],
        reads: ReadScope,
    ) -> Result<(SeqNo, Option<Slice>)> {
        let (read_seq, value) = {
            // The view is read before the sequence number, so it contains every commit up to that number. It is
            // released before the caller's closure, which may take long.
            let view = tree.pin_super_version();
            let read_seq = self.state.sequence.published();
            (read_seq, point::get(tree, &view, key, read_seq, reads))
        };
        if !matches!(value, Err(Error::WouldBlock)) {
            tree.counters.gets.add(1);
        }
        let value = value?;
        self.record_get(tree, key, value.as_ref());
        Ok((read_seq, value))
    }

    fn flush(&self, deadline_us: Option<u64>) -> Result<()> {
        self.check_writable()?;
        self.begin_operation();
        self.committer.sync(deadline_us)?;
        self.flush_trees(&self.state.all_trees(), deadline_us)
    }

    /// Seals the memtables of the trees and waits for their flushes.
    fn flush_trees(&self, trees: &[Arc<Tree>], deadline_us: Option<u64>) -> Result<()> {
        self.committer.seal(trees.to_vec(), deadline_us)?;
        self.scheduler.wait_flushed(trees, self.committer.next_seq(), deadline_us)
    }

    /// Queues each tree that may need a flush or a compaction. Empty trees, often the majority, are not queued.
    pub(crate) fn schedule_all_trees(&self) {
        for tree in self.state.all_trees() {
            backpressure::refresh(&self.state, &self.throttle, &tree);
            let (has_sealed, has_files) = {
                let view = tree.super_version();
                let has_files = !view.version.runs().is_empty() || view.operand_view.is_some();
                (!view.sealed.is_empty(), has_files)
            };
            for (work, is_due) in [(WorkKind::Flush, has_sealed), (WorkKind::Compaction, has_files)]
            {
                if is_due {
                    self.state.work.push(work, tree.id);
                }
            }
        }
    }

    /// Appends an edit to the manifest after a sync of the WAL, so that the edit is not ahead of earlier commits.
    ///
    /// The caller holds `keyspace_changes`.
    pub(crate) fn append_edit(&self, changes: Vec<Change>) -> Result<()> {
        let state = &self.state;
        let synced = match failpoint::is_on(Failpoint::EditWithoutWalSync) {
            true => Ok(()),
            false => state.wal.sync().map(drop),
        };
        let appended = synced.and_then(|()| state.manifest.append(&VersionEdit { changes }));
        appended.map_err(|error| state.fail_locked(error))
    }

    /// Returns a trace of the batch if a recording is active.
    #[inline]
    pub(crate) fn start_commit_trace(&self, batch: &WriteBatch) -> Option<CommitTrace> {
        let recorder = self.recording.recorder().filter(|_| !batch.is_empty())?;
        let (payload, trees) = (batch.payload.clone(), batch.trees.clone());
        Some(CommitTrace { recorder, payload, count: batch.count, trees })
    }

    /// Records a successful lookup if a recording is active.
    #[inline]
    pub(crate) fn record_get(&self, tree: &Tree, key: &[u8], value: Option<&Slice>) {
        if let Some(recorder) = self.recording.recorder() {
            record_get_in(&recorder, tree, key, value);
        }
    }

    /// Returns a trace for a new iterator if a recording is active.
    #[inline]
    pub(crate) fn start_scan_trace(&self, tree: &Tree) -> Option<Box<ScanTrace>> {
        let recorder = self.recording.recorder()?;
        Some(Box::new(ScanTrace::new(recorder, tree.id, tree.name.clone())))
    }
}

#[cold]
fn record_get_in(recorder: &TraceRecorder, tree: &Tree, key: &[u8], value: Option<&Slice>) {
    recorder.record_get((tree.id, &tree.name), key, value.map(|value| value.len()));
}
