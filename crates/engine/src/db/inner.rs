//! The shared state of an open database.

use std::fmt;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};

use crate::callback;
use crate::db::engine_thread::EngineThread;
use crate::db::key_locks::KeyLocks;
use crate::db::open::warm_up::WarmUp;
use crate::db::transaction::counters::TransactionCounters;
use crate::db::transaction::lock_table::LockTable;
use crate::db::write_back::set_folded_value;
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};
use crate::jobs::flush_trigger::FlushTrigger;
use crate::jobs::obsolete_files;
use crate::jobs::scheduler::JobScheduler;
use crate::lookup::point::{self, ReadScope};
use crate::metrics::WalMetrics;
use crate::options::db::Options;
use crate::options::memory_plan::MemoryPlan;
use crate::options::write::{Durability, WriteOptions};
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::tree::snapshots::ReadPoint;
use crate::tree::{OpenId, Tree};
use crate::vfs::LockGuard;
use crate::workload_trace::{ActiveTrace, ScanTrace, TraceRecorder};
use crate::write::backpressure;
use crate::write::batch::WriteBatch;
use crate::write::commit::Committer;
use crate::write::throttle::Throttle;
use crate::write::ticket::LongOperandChain;

/// The state of one open database, shared by its handles and threads.
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
    /// Size of the WAL at the open of a read-only database. `None` if the database is writable.
    pub(super) read_only: Option<WalMetrics>,
    /// Lock on the directory. Close releases it.
    pub(super) lock: Mutex<Option<Box<dyn LockGuard>>>,
    /// Serializes changes of keyspaces and their options. Held during I/O, and locked before `Tree::install`.
    pub(super) keyspace_changes: Mutex<()>,
    /// True after the start of `close`. Stored with Release; [`DbInner::check_open`] loads it with Acquire.
    pub(super) closed: Arc<AtomicBool>,
    /// Number of threads that run calls with a deadline.
    pub(super) call_threads: AtomicUsize,
    /// Set when close has completed.
    pub(super) lock_released: AtomicBool,
    pub(crate) key_locks: KeyLocks,
    pub(crate) lock_table: LockTable,
    pub(crate) transactions: TransactionCounters,
    pub(super) warm_up: WarmUp,
    /// Writes the metrics file.
    pub(super) metrics_thread: EngineThread,
    /// Number of failed writes of the metrics file.
    pub(super) metrics_file_failures: AtomicU64,
    pub(super) recording: Arc<ActiveTrace>,
    /// True while an [`AdminLock`] exists.
    pub(super) admin_locked: AtomicBool,
    /// Number of existing [`FileWrites`] guards.
    pub(super) file_writes: AtomicUsize,
    /// Number of calls of `resume` that rewrote the database. They remove the files of unfinished bulk loads.
    pub(super) rewrites: AtomicU64,
}

/// Guard of a call that writes table files outside of jobs. `close` and `resume` wait until it is dropped.
#[derive(Debug)]
pub(super) struct FileWrites<'a>(&'a DbInner);

impl Drop for FileWrites<'_> {
    fn drop(&mut self) {
        self.0.file_writes.fetch_sub(1, Ordering::AcqRel);
        self.0.state.progress.notify();
    }
}

/// Serializes `resume`, `drop_keyspace`, `rename_keyspace`, `checkpoint`, `archive_log`, `operands_to_tree`, ingests, the first
/// and the last step of `clone_keyspace`, the delivery of a kept log to its operand store, and `close`.
#[derive(Debug)]
pub(super) struct AdminLock<'a>(&'a DbInner);

impl Drop for AdminLock<'_> {
    fn drop(&mut self) {
        self.0.admin_locked.store(false, Ordering::Release);
        self.0.state.progress.notify();
    }
}

impl fmt::Debug for DbInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbInner").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Fails if the calling thread runs a callback, because a callback must not wait for background work.
///
/// # Errors
/// [`Error::Reentrant`].
pub(super) fn check_reentry(call: &'static str) -> Result<()> {
    match callback::context_name() {
        Some(context) => Err(Error::Reentrant { call, context }),
        None => Ok(()),
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
        let names: Vec<_> =
            self.trees.iter().map(|tree| (tree.id, tree.shared_name().load())).collect();
        let keyspaces = names.iter().map(|(id, name)| (*id, name.as_str()));
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

    /// Returns true if this is a view of a follower.
    pub(super) fn is_follower(&self) -> bool {
        self.state.obsolete_files.follower_pin().is_some()
    }

    pub(super) fn existing_tree(&self, name: &str) -> Result<Arc<Tree>> {
        let tree = self.state.trees.read().by_name(name).cloned();
        tree.ok_or_else(|| Error::UnknownKeyspace { name: name.to_owned() })
    }

    /// Waits for the [`AdminLock`].
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`] if the database was closed during the wait.
    pub(super) fn lock_admin(&self, deadline_us: Option<u64>) -> Result<AdminLock<'_>> {
        let lock = self.lock_admin_to_close(WaitCause::BackgroundWork, deadline_us)?;
        self.check_open()?;
        Ok(lock)
    }

    /// Waits for the [`AdminLock`], even if the database is closed.
    pub(super) fn lock_admin_to_close(
        &self,
        cause: WaitCause,
        deadline_us: Option<u64>,
    ) -> Result<AdminLock<'_>> {
        let state = &self.state;
        let is_locked = state.env.wait(cause, &state.progress, deadline_us, &mut || {
            // A failed `compare_exchange` stores nothing. Loom would treat the store of a failed `swap` as an
            // acquisition.
            let locked = &self.admin_locked;
            locked.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        match is_locked {
            true => Ok(AdminLock(self)),
            false => Err(Error::Deadline { cause: cause.as_str() }),
        }
    }

    /// Begins to write table files.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::OpenedReadOnly`], [`Error::ReadOnly`].
    pub(super) fn begin_file_writes(&self) -> Result<FileWrites<'_>> {
        self.file_writes.fetch_add(1, Ordering::AcqRel);
        // The check follows the increment. So either `close` and `resume` see the increment and wait, or the check sees
        // them and fails.
        let writes = FileWrites(self);
        self.check_can_write_files()?;
        Ok(writes)
    }

    /// Fails if table files must not be written, because the database is closed or read-only.
    pub(super) fn check_can_write_files(&self) -> Result<()> {
        self.check_writable()?;
        self.state.error_state.check_writable()
    }

    /// Rewrites the manifest if it has become long, at the end of a call that is not a job.
    pub(super) fn rewrite_manifest(&self) {
        // While this guard exists, `close` and `resume` wait. After `close`, the manifest may belong to another process.
        let Ok(_writes) = self.begin_file_writes() else { return };
        // A failure here has made the database read-only.
        let _ = obsolete_files::rewrite_manifest(&self.state);
    }

    /// Waits until no call writes table files. The caller must have made new calls fail. Returns false at the deadline.
    pub(super) fn wait_for_file_writes(&self, cause: WaitCause, deadline_us: Option<u64>) -> bool {
        let state = &self.state;
        state.env.wait(cause, &state.progress, deadline_us, &mut || {
            self.file_writes.load(Ordering::Acquire) == 0
        })
    }

    /// Starts a user operation: advances a simulated clock by 1 µs and lets the stepped environment switch tasks.
    pub(crate) fn begin_operation(&self) {
        self.state.env.advance_us(1);
        self.state.env.yield_point(YieldKind::UserOperation);
    }

    /// Checks whether a batch can be written, before the write waits for admission. Returns false if the batch has
    /// nothing to commit, check or sync.
    pub(crate) fn validate_write_batch(
        &self,
        batch: &WriteBatch,
        options: WriteOptions,
    ) -> Result<bool> {
        self.check_writable()?;
        self.begin_operation();
        batch.check()?;
        let guarded = batch.guards.iter().map(|guard| &guard.tree);
        for tree in batch.trees.iter().chain(guarded) {
            if tree.open_id != self.open_id {
                return Err(Error::ForeignKeyspace { name: tree.name() });
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

    /// Combines long operand chains and stores the values in their memtables, so that later reads need not combine the
    /// operands.
    ///
    /// A chain that cannot be combined is skipped; reads of its key report the error.
    pub(crate) fn fold_operand_chains(&self, chains: Vec<LongOperandChain>, reads: ReadScope) {
        for LongOperandChain { tree, memtable, key, seq } in chains {
            let view = tree.pin_super_version();
            // While the view contains the memtable, tables hold only older sequence numbers, so all older versions of
            // the key exist. After the flush, jobs may have dropped hidden versions that no snapshot needs.
            if !view.memtables().any(|current| Arc::ptr_eq(current, &memtable)) {
                continue;
            }
            let read_seq =
                if failpoint::is_on(Failpoint::FoldedValueStale) { SeqNo(seq.0 - 1) } else { seq };
            // The result does not depend on the time: a value that expires is not stored below.
            let read_point = ReadPoint::without_time(read_seq);
            let read = (reads, None);
            let found = point::get_with_combined_operands(&tree, &view, &key, read_point, read);
            if let Ok((value, combined)) = found
                && !combined.is_some_and(|combined| combined.has_expiring_base)
            {
                // The memtable may be flushed or dropped meanwhile; the value is then unused.
                self.state.env.yield_point(YieldKind::Commit);
                tree.store_combined_value(|| {
                    set_folded_value(&self.state, &memtable, &key, seq, value)
                });
            }
        }
    }

    /// Starts the work that a commit has made due: WAL syncs, flushes, and inline jobs.
    pub(crate) fn after_commit(&self, deadline_us: Option<u64>) {
        let state = &self.state;
        if state.wal.claim_sync_request() || state.request_reserve_resize() {
            state.progress.notify();
        }
        self.flush_trigger.flush_if_due(deadline_us);
        self.scheduler.run_inline();
    }

    pub(super) fn flush(&self, deadline_us: Option<u64>) -> Result<()> {
        self.check_writable()?;
        self.begin_operation();
        self.committer.sync(deadline_us)?;
        self.flush_trees(&self.state.all_trees(), deadline_us)
    }

    /// Seals the memtables of the trees and waits for their flushes.
    pub(super) fn flush_trees(&self, trees: &[Arc<Tree>], deadline_us: Option<u64>) -> Result<()> {
        self.committer.seal_memtables(trees.to_vec(), deadline_us)?;
        self.scheduler.wait_flushed(trees, self.committer.next_seq(), deadline_us)
    }

    /// Queues each tree that may need a flush or a compaction. Empty trees, often the majority, are not queued.
    pub(crate) fn schedule_all_trees(&self) {
        for tree in self.state.all_trees() {
            backpressure::refresh_write_limits(&self.state, &self.throttle, &tree);
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
            // Followers show only commits that a sync mark on stable storage covers. Without this mark, they would show
            // the edit, but not all commits before it.
            false => state.wal.sync_with_mark(),
        };
        synced.map_err(|error| state.make_read_only_under_lock(error))?;
        // While `resume` replaces a log that has failed, a sync succeeds without effect.
        state.error_state.check_writable()?;
        let appended = state.append_edit(&VersionEdit { changes });
        appended.map_err(|error| state.make_read_only_under_lock(error))
    }

    /// Returns a trace of the batch if a recording is active.
    #[inline]
    pub(crate) fn start_commit_trace(&self, batch: &WriteBatch) -> Option<CommitTrace> {
        let recorder = self.recording.recorder().filter(|_| !batch.is_empty())?;
        let (payload, trees) = (batch.payload.clone(), batch.trees.clone());
        Some(CommitTrace { recorder, payload, count: batch.count, trees })
    }

    /// Returns a trace for a new iterator if a recording is active.
    #[inline]
    pub(crate) fn start_scan_trace(&self, tree: &Tree) -> Option<Box<ScanTrace>> {
        let recorder = self.recording.recorder()?;
        Some(Box::new(ScanTrace::new(recorder, tree.id, tree.name())))
    }
}
