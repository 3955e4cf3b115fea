//! The database handle: everything below, put together.

pub(crate) mod admission;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod close;
pub(crate) mod compact_range;
pub(crate) mod deadline;
pub(crate) mod drop;
pub(crate) mod inspect;
pub(crate) mod keyspace;
pub(crate) mod metrics;
pub(crate) mod open;
pub(crate) mod operand_store;
pub(crate) mod outputs;
pub(crate) mod reads;
pub(crate) mod snapshot;
pub(crate) mod trace_recording;
pub(crate) mod update;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};

use crate::callback;
use crate::env::{Env, WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::jobs::flush_trigger::FlushTrigger;
use crate::lookup::point::Reads;
use crate::metrics::{MemoryMetrics, Metrics, ReadMetrics, WalMetrics};
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::memory_plan::MemoryPlan;
use crate::options::read::ReadOptions;
use crate::options::write::{Durability, WriteOptions};
use crate::state::DbState;
use crate::state::memtable_budget::MemtableReservation;
use crate::state::work_queue::WorkKind;
use crate::tree::{Opening, Tree};
use crate::vfs::LockGuard;
use crate::workload_trace::Recording;
use crate::write::backpressure;
use crate::write::batch::WriteBatch;
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;
use crate::write::ticket::LongOperandChain;

pub use crate::db::check::repair::{Finding, Lost, LostKind, RepairOptions, RepairReport, repair};
pub use crate::db::check::verify::{VerifyReport, verify};
pub use crate::db::deadline::WaitOptions;
pub use crate::db::inspect::explain::{
    EntryFound, Explanation, MemtableStep, OperandStep, RunStep,
};
pub use crate::db::inspect::health::{BlockedCompaction, Health, QuarantinedFile};
pub use crate::db::inspect::metadata_sizes::MetadataSizes;
pub use crate::db::inspect::observe::{Observation, ObservedKeyspace, ObservedLevel, observe};
pub use crate::db::keyspace::Keyspace;
pub use crate::db::reads::Entry;
#[cfg(feature = "tokio")]
pub(crate) use crate::db::reads::MultiGet;
pub use crate::db::snapshot::Snapshot;
pub use crate::db::update::Update;
pub use crate::table::explain::{BlockRead, BlockSource};

pub use crate::options::db::DEFAULT_KEYSPACE;

/// All parts of one open database.
pub(crate) struct DbInner {
    pub(crate) state: Arc<DbState>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) scheduler: Arc<crate::jobs::scheduler::JobScheduler>,
    pub(crate) flush_trigger: Arc<FlushTrigger>,
    pub(crate) options: Options,
    pub(crate) memory: MemoryPlan,
    pub(crate) opening: Opening,
    pub(crate) default_tree: Arc<Tree>,
    /// If nothing is ever changed: the log as it lay there.
    read_only: Option<WalMetrics>,
    /// Keeps other openers out; let go by closing.
    lock: Mutex<Option<Box<dyn LockGuard>>>,
    /// One keyspace is created or changed at a time; held over I/O, taken by nothing else.
    keyspace_changes: Mutex<()>,
    /// Whether somebody closes, or has closed, the database.
    closed: AtomicBool,
    /// Threads that run calls with a deadline, see [`DbInner::within`].
    call_threads: AtomicUsize,
    /// Whether closing has come to its end.
    lock_released: AtomicBool,
    /// Who may read and write back which keys.
    pub(crate) key_locks: update::KeyLocks,
    /// Who reads metadata ahead.
    warm_up: crate::db::open::warm_up::WarmUp,
    /// Who notes what users do.
    recording: Arc<Recording>,
    /// One resumption, drop of a keyspace or checkpoint at a time, and none while closing ends: see
    /// [`DbInner::turn`].
    admin_locked: AtomicBool,
}

/// The turn to do what goes one after the other.
#[derive(Debug)]
struct AdminLock<'a>(&'a DbInner);

impl Drop for AdminLock<'_> {
    fn drop(&mut self) {
        self.0.admin_locked.store(false, Ordering::Release);
        self.0.state.progress.notify();
    }
}

/// A handle of a user. Dropping the last one closes the database.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<DbInner>);

impl std::fmt::Debug for DbInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DbInner").field("store", &self.state).finish_non_exhaustive()
    }
}

/// Fails if the calling thread must not wait for background work.
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
        // Errors have reached the listener. A caller that needs the result calls `close`.
        if !callback::has_context() {
            let _ = self.0.close(None);
            return;
        }
        // Closing waits for the threads of the engine, and this may be one of them.
        let core = Arc::clone(&self.0);
        let close = move || drop(core.close(None));
        if self.0.state.env.spawn("lsmx-close", close).is_err() {
            // The lock must not become free while threads of the engine still write.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

/// An open database. Clones are handles of the same one; the last one that goes closes it.
#[derive(Clone, Debug)]
pub struct Db {
    handle: Arc<Handle>,
}

impl Db {
    /// Opens the database in a directory, or makes one. A keyspace whose operand store is not given, or cannot be
    /// opened, does not fail the open: calls on it return [`Error::NoOperandStore`].
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::Locked`], [`Error::UnsupportedVersion`],
    /// [`Error::Corrupt`], [`Error::Missing`], [`Error::Contradiction`], [`Error::InvalidOption`],
    /// [`Error::NoCompactionPolicy`] for the default keyspace, [`Error::Io`]. Failing to open changes nothing that is there.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        // A panic in user code, such as an operand store, fails the open and releases the lock.
        let opened = catch_unwind(AssertUnwindSafe(|| match options.read_only {
            true => open::read_only::open(path, options),
            false => open::open(path, options),
        }));
        opened.unwrap_or_else(|panic| Err(Error::from_panic(&*panic))).map(Db::new)
    }

    fn new(core: DbInner) -> Db {
        Db { handle: Arc::new(Handle(Arc::new(core))) }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn inner(&self) -> &Arc<DbInner> {
        &self.handle.0
    }

    /// The keyspace named [`DEFAULT_KEYSPACE`], which every database has.
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        Keyspace::new(Arc::clone(&self.handle), Arc::clone(&self.inner().default_tree))
    }

    /// Opens the keyspace of this name, or makes it. This call is the one place for the options of a keyspace: they
    /// are in force until the next such call or until the database is closed, and
    /// [`Keyspace::options`] shows them. The names of the merge operator and of the operand store, and the policy,
    /// stay with the keyspace if the options leave them out.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the keyspace has another merge operator or operand store;
    /// [`Error::NoOperandStore`] if it needs one that is not given; the error of an operand store that cannot be
    /// opened; [`Error::Reentrant`] if the log is kept for the store and an event listener makes the call;
    /// [`Error::NoCompactionPolicy`] if it has a
    /// custom policy and is given none; [`Error::InvalidOption`] for a name that is empty or longer than 255 bytes, or for options
    /// out of range; [`Error::ReadOnly`], [`Error::Closed`].
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let tree = self.inner().open_keyspace(name, options, true)?;
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Opens the keyspace of this name, which must exist. `None` keeps the options in force.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`] if it does not exist; with options as [`Db::keyspace`]; without options
    /// [`Error::NoCompactionPolicy`] if it has a custom policy that was not given since the database was opened,
    /// unless the database is read-only.
    pub fn open_keyspace(&self, name: &str, options: Option<KeyspaceOptions>) -> Result<Keyspace> {
        if let Some(options) = options {
            let tree = self.inner().open_keyspace(name, options, false)?;
            return Ok(Keyspace::new(Arc::clone(&self.handle), tree));
        }
        let trees = self.inner().state.trees.read();
        let tree = trees.by_name(name).cloned();
        let tree = tree.ok_or_else(|| Error::UnknownKeyspace { name: name.to_owned() })?;
        if self.inner().read_only.is_none() {
            tree.check_policy()?;
        }
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Returns whether a keyspace of this name exists.
    #[must_use]
    pub fn keyspace_exists(&self, name: &str) -> bool {
        self.inner().state.trees.read().by_name(name).is_some()
    }

    /// Drops the keyspace of this name, durably, with everything in it. Its handles answer
    /// [`Error::KeyspaceDropped`] from then on; iterators that are under way and snapshots taken
    /// before go on seeing it. A keyspace made later under the same name is a new, empty one.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`], [`Error::DefaultKeyspace`]: nothing was done.
    /// [`Error::ReadOnly`] with the cause: it is there; after a power loss or a reopening it may be
    /// gone, wholly.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        check_reentry("drop_keyspace")?;
        self.inner().drop_keyspace(name)
    }

    /// Makes a copy of the database in `target`, which must not exist or be an empty directory. The
    /// copy opens as a database of its own and holds everything that was committed before the call,
    /// and perhaps some commits after; it is on stable storage when the call returns. Tables are
    /// linked where the file system can, so it takes little space and time; writes, flushes and
    /// compactions go on meanwhile.
    ///
    /// # Errors
    /// [`Error::TargetNotEmpty`]; [`Error::OutputInDatabase`] for the name of an engine file in a database
    /// directory; [`Error::Locked`] if somebody else is at work there;
    /// [`Error::Io`], [`Error::Closed`], [`Error::ReadOnly`]. Nothing in the target opens as a
    /// database then, and this one is as before.
    pub fn checkpoint(&self, target: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(target, &WaitOptions::default())
    }

    /// [`Db::checkpoint`] with a deadline. If it passes, the copy is removed again, once the device call that
    /// it is in has returned; until then the target is locked.
    ///
    /// # Errors
    /// As [`Db::checkpoint`]; [`Error::Deadline`].
    pub fn checkpoint_with(&self, target: impl AsRef<Path>, options: &WaitOptions) -> Result<()> {
        check_reentry("checkpoint")?;
        self.inner().checkpoint(target.as_ref(), options)
    }

    /// Names of all keyspaces, sorted.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        let trees = self.inner().state.all_trees();
        let mut names: Vec<_> = trees.iter().map(|tree| tree.name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Gives `key` a value in the default keyspace, `Buffered`.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.inner().put(&self.inner().default_tree, key.as_ref(), value.as_ref())
    }

    /// Deletes `key` from the default keyspace, `Buffered`.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.inner().delete(&self.inner().default_tree, key.as_ref())
    }

    /// Deletes all keys of a range from the default keyspace, `Buffered`: see
    /// [`Keyspace::delete_range`].
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl std::ops::RangeBounds<K>) -> Result<()> {
        self.default_keyspace().delete_range(range)
    }

    /// Merges an operand into `key` in the default keyspace, `Buffered`; see [`Keyspace::merge`].
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.inner().merge(&self.inner().default_tree, key.as_ref(), operand.as_ref())
    }

    /// The value of `key` in the default keyspace; shares the memory of the block it lies in.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`] if a block cannot be read; [`Error::NoMergeOperator`],
    /// [`Error::MergeFailed`] if the key's operands do not fold; [`Error::Closed`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.inner().get(&self.inner().default_tree, key.as_ref(), None, Reads::Storage)
    }

    /// Returns the value of `key`, read with these options.
    ///
    /// # Errors
    /// As [`Db::get`]; [`Error::WouldBlock`] with [`ReadTier::Memory`](crate::ReadTier::Memory).
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Slice>> {
        self.inner().get(&self.inner().default_tree, key.as_ref(), None, options.into())
    }

    /// Commits a batch: all of it or nothing, over all its keyspaces.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::ForeignKeyspace`], [`Error::NoMergeOperator`],
    /// [`Error::GuardRefused`], [`Error::GuardUnknown`], [`Error::WouldWait`], [`Error::Deadline`],
    /// [`Error::Background`], [`Error::CompactionBlocked`], [`Error::PolicyStalled`]: nothing was done.
    /// [`Error::Undecided`]: the deadline has passed, and the batch may still become visible.
    /// [`Error::ReadOnly`] with the cause: the batch is not visible; after a power loss or a reopening it may be there, wholly.
    pub fn write(&self, batch: WriteBatch, options: impl Into<WriteOptions>) -> Result<()> {
        self.inner().write(batch, options.into())
    }

    /// A view of all keyspaces as they are now, which stays as it is while it is held.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner().begin_operation();
        let store = &self.inner().state;
        loop {
            if let Some(snapshot) = self.try_snapshot() {
                return snapshot;
            }
            // A manifest edit is on its way that lets files of a queue go; it always ends.
            let ended = &mut || !store.sequence.is_leaving();
            store.env.wait(WaitCause::BackgroundWork, &store.progress, None, ended);
        }
    }

    /// [`Db::snapshot`], unless that has to wait.
    pub(crate) fn try_snapshot(&self) -> Option<Snapshot> {
        let store = &self.inner().state;
        let now_us = store.env.now_us();
        let pinned = if failpoint::is_on(Failpoint::SnapshotInTwoSteps) {
            let seq = store.sequence.published();
            store.env.yield_point(YieldKind::UserOperation);
            store.sequence.register_as(now_us, |_| seq)?
        } else {
            store.sequence.register(now_us)?
        };
        Some(Snapshot::new(Arc::clone(&self.handle), pinned))
    }

    /// Puts everything committed so far on stable storage.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause.
    pub fn sync(&self) -> Result<()> {
        self.sync_with(&WaitOptions::default())
    }

    /// [`Db::sync`] with a deadline.
    ///
    /// # Errors
    /// As [`Db::sync`]; [`Error::Deadline`]: the sync may still be done.
    pub fn sync_with(&self, options: &WaitOptions) -> Result<()> {
        let core = self.inner();
        let deadline_us = core.committer.deadline_us(options.deadline);
        core.run_with_deadline(WaitCause::CommitAhead, deadline_us, move |core| {
            core.check_writable()?;
            core.committer.sync(deadline_us)
        })
    }

    /// Writes all memtables to tables, on stable storage.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause.
    pub fn flush(&self) -> Result<()> {
        self.flush_with(&WaitOptions::default())
    }

    /// [`Db::flush`] with a deadline.
    ///
    /// # Errors
    /// As [`Db::flush`]; [`Error::Deadline`]: the flushes that are due go on in the background.
    pub fn flush_with(&self, options: &WaitOptions) -> Result<()> {
        check_reentry("flush")?;
        let core = self.inner();
        let deadline_us = core.committer.deadline_us(options.deadline);
        core.run_with_deadline(WaitCause::Flush, deadline_us, move |core| core.flush(deadline_us))
    }

    /// Waits until every sealed memtable is flushed and every compaction policy rests.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause; why compactions fail, if they do; [`Error::CompactionBlocked`] if
    /// a quarantined file keeps a policy from the job it wants, else why a file is quarantined, if one is;
    /// [`Error::PolicyStalled`].
    pub fn wait_idle(&self) -> Result<()> {
        self.wait_idle_with(&WaitOptions::default())
    }

    /// [`Db::wait_idle`] with a deadline.
    ///
    /// # Errors
    /// As [`Db::wait_idle`]; [`Error::Deadline`].
    pub fn wait_idle_with(&self, options: &WaitOptions) -> Result<()> {
        check_reentry("wait_idle")?;
        let (core, cause) = (self.inner(), WaitCause::BackgroundWork);
        let deadline_us = core.committer.deadline_us(options.deadline);
        core.run_with_deadline(cause, deadline_us, move |core| {
            core.check_open()?;
            core.scheduler.wait_idle(cause, deadline_us)
        })
    }

    /// Takes writes again after an error made the database read-only. Everything acknowledged is
    /// written to new files first; nothing of a commit that failed comes back. On a full disk this takes about as
    /// much room as the memtables do.
    ///
    /// Quarantined files are read again, whole, and those that are as they should be are used again. Files
    /// that are still unreadable stay in [`Db::health`].
    ///
    /// # Errors
    /// Why it does not work yet; the database stays read-only. [`Error::CompactionBlocked`] if it takes
    /// writes again, but for a keyspace at the hard stop of its policy that a quarantined file keeps from
    /// being compacted.
    pub fn resume(&self) -> Result<()> {
        self.resume_with(&WaitOptions::default())
    }

    /// [`Db::resume`] with a deadline.
    ///
    /// # Errors
    /// As [`Db::resume`]; [`Error::Deadline`]: if the resumption is in a device call, it continues when that
    /// returns, and [`Event::Resumed`](crate::Event::Resumed) reports its success.
    pub fn resume_with(&self, options: &WaitOptions) -> Result<()> {
        check_reentry("resume")?;
        self.inner().resume(options)
    }

    /// Why the database is read-only, if it is.
    #[must_use]
    pub fn read_only_cause(&self) -> Option<Arc<Error>> {
        self.inner().state.error_state.read_only_cause()
    }

    /// Lists the obstacles to writes and background work: why the database is
    /// read-only, which files are quarantined because they cannot be read, which keyspaces cannot be
    /// compacted. Reads no file.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner().health()
    }

    /// Limits the bytes per second that flushes and compactions read and write from here on;
    /// `None`: no limit. See [`Options::background_io_rate`].
    pub fn set_background_io_rate(&self, bytes_per_s: Option<u64>) {
        self.inner().state.tables.rate.set_rate(bytes_per_s);
    }

    /// Where memory goes.
    #[must_use]
    pub fn memory(&self) -> MemoryMetrics {
        self.inner().memory_metrics()
    }

    /// Counters and the shape of all trees.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.inner().metrics()
    }

    /// What of [`Db::metrics`] reads change, cheap enough to be asked around single operations.
    #[must_use]
    pub fn read_metrics(&self) -> ReadMetrics {
        self.inner().read_metrics()
    }

    /// Closes the database: flushes, ends background work, marks the log, frees the lock. Every
    /// later call on any handle answers [`Error::Closed`]. Memtables that the deadline leaves no time
    /// for stay in the log, which the next opening replays. Iterators continue, and a read that began before the
    /// close returns its result, or [`Error::Closed`] if it needs a file that the next owner has removed.
    ///
    /// # Errors
    /// The first step that failed; the database is closed all the same. After [`Error::Deadline`] a thread of the
    /// engine may still be in a device call: the lock is freed when that returns. A later call waits for it. (Under
    /// [`Background::Inline`](crate::env::Background::Inline) the lock is freed by a later call.)
    pub fn close(&self, deadline: Option<Duration>) -> Result<()> {
        check_reentry("close")?;
        self.inner().close(deadline)
    }

    /// Time and randomness of this database, for experiments.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.inner().state.env
    }
}

impl DbInner {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Waits for the turn to do what goes one after the other, and what closing waits for.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`] if the database was closed meanwhile.
    fn lock_admin(&self, deadline_us: Option<u64>) -> Result<AdminLock<'_>> {
        let turn = self.lock_admin_to_close(WaitCause::BackgroundWork, deadline_us)?;
        self.check_open()?;
        Ok(turn)
    }

    /// As [`DbInner::turn`], also of a database that is closed already.
    fn lock_admin_to_close(
        &self,
        cause: WaitCause,
        deadline_us: Option<u64>,
    ) -> Result<AdminLock<'_>> {
        let store = &self.state;
        let met = store.env.wait(cause, &store.progress, deadline_us, &mut || {
            // Who finds it taken stores nothing: a swap would, and loom cannot tell it from a turn.
            self.admin_locked
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if met { Ok(AdminLock(self)) } else { Err(Error::Deadline { cause: cause.as_str() }) }
    }

    /// Every operation of a user begins here: a driven clock moves by 1 µs, a replayed schedule may
    /// switch.
    pub(crate) fn begin_operation(&self) {
        self.state.env.advance_us(1);
        self.state.env.yield_point(YieldKind::UserOperation);
    }

    pub(crate) fn put(&self, tree: &Arc<Tree>, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::for_one(tree.id, key, value);
        batch.add(tree, crate::EntryKind::Put, key, value);
        self.write(batch, WriteOptions::default())
    }

    pub(crate) fn delete(&self, tree: &Arc<Tree>, key: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::for_one(tree.id, key, &[]);
        batch.add(tree, crate::EntryKind::Delete, key, &[]);
        self.write(batch, WriteOptions::default())
    }

    pub(crate) fn merge(&self, tree: &Arc<Tree>, key: &[u8], operand: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::for_one(tree.id, key, operand);
        batch.add(tree, crate::EntryKind::Merge, key, operand);
        self.write(batch, WriteOptions::default())
    }

    pub(crate) fn write(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        if !self.check_write(&batch, options)? {
            return Ok(());
        }
        let (deadline_us, reservation) = self.admit(&batch, options)?;
        let sync = options.durability == Durability::Sync;
        let traced = self.start_commit_trace(&batch);
        let reserved_bytes = reservation.map_or(0, MemtableReservation::into_bytes);
        let long = self.committer.commit(batch, sync, reserved_bytes, deadline_us)?;
        if let Some(traced) = traced {
            traced.committed(sync);
        }
        // The commit is done: with a deadline its caller waits for no device any more.
        let reads = if deadline_us.is_some() { Reads::Memory } else { Reads::Storage };
        self.fold_chains(long, reads);
        self.after_commit(deadline_us);
        Ok(())
    }

    /// Checks a write before it waits for anything; false if there is nothing to do.
    pub(crate) fn check_write(&self, batch: &WriteBatch, options: WriteOptions) -> Result<bool> {
        self.check_writable()?;
        self.begin_operation();
        batch.check()?;
        let guarded = batch.guards.iter().map(|guard| &guard.tree);
        for tree in batch.trees.iter().chain(guarded) {
            if tree.opening != self.opening {
                return Err(Error::ForeignKeyspace { name: tree.name.clone() });
            }
            // Sooner than the leader of the commit could say it.
            tree.check_takes_writes()?;
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

    /// Folds operands that have become many in their memtable, so that nobody has to gather them
    /// again. A chain that does not fold is left to whoever reads its key.
    pub(crate) fn fold_chains(&self, chains: Vec<LongOperandChain>, reads: Reads) {
        for LongOperandChain { tree, memtable, key, seq } in chains {
            let view = tree.pin();
            // Without the memtable the view may lack versions that are hidden at newer numbers and
            // no snapshot holds. With it, all that is older is there: tables hold older numbers only.
            if !view.memtables().any(|there| Arc::ptr_eq(there, &memtable)) {
                continue;
            }
            let as_of =
                if failpoint::is_on(Failpoint::FoldedValueStale) { SeqNo(seq.0 - 1) } else { seq };
            if let Ok(value) = crate::lookup::point::value(&tree, &view, &key, as_of, reads) {
                // The memtable may be sealed, flushed and gone meanwhile: nobody minds.
                self.state.env.yield_point(YieldKind::Commit);
                let bytes = memtable.set_folded(&key, seq, value);
                self.state.memtables.add(bytes);
                if !memtable.add_bytes(bytes) {
                    self.state.memtables.subtract(bytes);
                }
            }
        }
    }

    /// What a commit sets off: the governors of log and memory, and inline the work itself.
    pub(crate) fn after_commit(&self, deadline_us: Option<u64>) {
        let store = &self.state;
        if store.wal.claim_sync_request() || store.request_reserve() {
            store.progress.notify();
        }
        self.flush_trigger.flush_if_due(deadline_us);
        self.scheduler.run_inline();
    }

    pub(crate) fn get(
        &self,
        tree: &Tree,
        key: &[u8],
        snapshot: Option<SeqNo>,
        reads: Reads,
    ) -> Result<Option<Slice>> {
        self.check_open()?;
        if reads != Reads::Memory {
            self.begin_operation();
        }
        // First the view, then the number: whatever the number promises is in the view.
        let view = tree.view();
        if snapshot.is_none() {
            tree.check_live()?;
        }
        let seq = snapshot.unwrap_or_else(|| self.state.sequence.published());
        let value = crate::lookup::point::value(tree, &view, key, seq, reads);
        if reads == Reads::Memory {
            if matches!(value, Err(Error::WouldBlock)) {
                // Whoever tries again counts.
                return value;
            }
            self.begin_operation();
        }
        tree.counters.gets.add(1);
        let value = value?;
        self.record_get(tree, key, value.as_ref());
        Ok(value)
    }

    fn flush(&self, deadline_us: Option<u64>) -> Result<()> {
        self.check_writable()?;
        self.begin_operation();
        let trees = self.state.all_trees();
        self.committer.sync(deadline_us)?;
        self.committer.seal(trees.clone(), deadline_us)?;
        self.scheduler.wait_flushed(&trees, self.committer.next_seq(), deadline_us)
    }

    /// Has every tree looked at, for instance after opening.
    pub(crate) fn schedule_all_trees(&self) {
        for tree in self.state.all_trees() {
            backpressure::refresh(&self.state, &self.throttle, &tree);
            // Of thousands of keyspaces most may be empty.
            let (sealed, files) = {
                let view = tree.view();
                let files = !view.version.runs().is_empty() || view.operands.is_some();
                (!view.sealed.is_empty(), files)
            };
            for (work, there) in [(WorkKind::Flush, sealed), (WorkKind::Compaction, files)] {
                if there {
                    self.state.work.push(work, tree.id);
                }
            }
        }
    }
}
