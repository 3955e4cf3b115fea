//! State that all asynchronous handles of a database share, and their writes and updates.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use ::tokio::runtime::Handle;
use ::tokio::task::consume_budget;
use ::tokio::time::sleep;
use lsmx_base::sync::{Arc, AtomicBool, Ordering};

use crate::db::Db;
use crate::db::admission::{Admission, AdmissionStep};
use crate::db::inner::DbInner;
use crate::db::key_locks::KeyLock;
use crate::db::point_read::{self, ReadToUpdate};
use crate::db::update::{Update, UpdateResult, apply_update};
use crate::db::write::write;
use crate::env::{Background, Env, WaitCause};
use crate::error::{Error, Result};
use crate::job_tracing::CommitSpan;
use crate::lookup::point::ReadScope;
use crate::metrics::TimedOperation;
use crate::options::write::{Durability, WriteOptions};
use crate::state::memtable_budget::MemtableReservation;
use crate::tokio::blocking_worker::BlockingPoolWorkers;
use crate::tokio::runtime::{
    DeadlineTimer, drop_on_pool, run_on_pool, run_on_pool_until, spawn_on_pool, wait_until,
};
use crate::tree::Tree;
use crate::tree::snapshots::SnapshotGuard;
use crate::write::batch::{KeyGuard, WriteBatch};
use crate::write::commit::PendingCommit;
use crate::write::group::check_ranges;
use crate::write::ticket::TaskWorkerStarter;

/// State that all asynchronous handles of a database share.
///
/// Each asynchronous handle declares its field of this type after its blocking handle. Unless the application has further
/// blocking handles, the destructor of this type therefore drops the last reference to the database.
#[derive(Debug)]
pub(crate) struct AsyncDbInner {
    /// Set until this value is dropped.
    db: Option<Db>,
    /// True while a blocking task that flushes memtables is queued or runs. There is at most one such task.
    is_flushing: AtomicBool,
}

/// Checks that asynchronous handles support the environment of a database.
///
/// # Errors
/// [`Error::Contradiction`] if the environment is [`Background::Stepped`].
pub(crate) fn check_background(db: &Db) -> Result<()> {
    match db.inner().state.env.background() {
        Background::Stepped { .. } => Err(Error::Contradiction {
            first: "background = stepped".to_owned(),
            second: "asynchronous handle".to_owned(),
            why: "a stepped schedule does not control the threads of a runtime",
        }),
        _ => Ok(()),
    }
}

impl AsyncDbInner {
    /// Creates the shared state. The caller must have called [`check_background`].
    pub(crate) fn new(db: Db) -> Arc<AsyncDbInner> {
        Arc::new(AsyncDbInner { db: Some(db), is_flushing: AtomicBool::new(false) })
    }

    pub(crate) fn db(&self) -> &Db {
        self.db.as_ref().expect("set until drop")
    }

    pub(crate) fn db_inner(&self) -> &DbInner {
        self.db().inner()
    }

    /// Writes a batch like [`DbInner::write`], but does not block the task.
    pub(crate) async fn write(
        self: &Arc<Self>,
        batch: WriteBatch,
        options: WriteOptions,
    ) -> Result<()> {
        let db = self.db_inner();
        if db.state.env.background() == Background::Inline {
            // With `Background::Inline`, the write also runs the background jobs that it triggers.
            let inner = Arc::clone(self);
            return run_on_pool(move || write(inner.db_inner(), batch, options)).await;
        }
        let (env, latencies) = (&db.state.env, &db.state.latencies);
        let start = latencies.start(env);
        let sync = options.durability == Durability::Sync;
        // The span is not entered, because the task may continue on another thread.
        let span = CommitSpan::new(batch.count, batch.payload.len(), sync);
        let written = self.commit(batch, options).await;
        match &written {
            Ok(()) => latencies.finish(env, TimedOperation::Commit, start),
            Err(error) => span.record_error(error),
        }
        written
    }

    async fn commit(self: &Arc<Self>, mut batch: WriteBatch, options: WriteOptions) -> Result<()> {
        let db = self.db_inner();
        if !db.validate_write_batch(&batch, options)? {
            return Ok(());
        }
        let deadline_us = db.committer.deadline_us(options.deadline);
        // The check waits for a thread of the pool, and this thread may be waiting for memtable memory. The check
        // therefore precedes the admission, which reserves this memory.
        if batch.guards.iter().any(KeyGuard::protects_range) {
            batch = self.check_ranges_on_pool(batch, deadline_us).await?;
        }
        let reservation = self.admit(&batch, options, deadline_us).await?;
        let sync = options.durability == Durability::Sync;
        let traced = db.start_commit_trace(&batch);
        let pending = {
            let workers: Arc<dyn TaskWorkerStarter> =
                Arc::new(BlockingPoolWorkers::new(self.db().handle()));
            let reserved_bytes = reservation.map_or(0, MemtableReservation::into_bytes);
            db.committer.commit_for_task(batch, sync, reserved_bytes, &workers)
        };
        wait_for_commit(&db.state.env, pending, deadline_us).await?;
        if let Some(traced) = traced {
            traced.committed(sync);
        }
        if db.state.wal.claim_sync_request() {
            db.state.progress.notify();
        }
        Ok(())
    }

    /// Checks the guards of ranges. The check visits the entries of the ranges, which may take long.
    async fn check_ranges_on_pool(
        self: &Arc<Self>,
        mut batch: WriteBatch,
        deadline_us: Option<u64>,
    ) -> Result<WriteBatch> {
        let inner = Arc::clone(self);
        let check = move || {
            check_ranges(&inner.db_inner().state, &mut batch.guards)?;
            Ok(batch)
        };
        let env = &self.db_inner().state.env;
        run_on_pool_until(env, deadline_us, WaitCause::CommitAhead, check).await
    }

    /// Waits until the batch may be added to the commit queue. Returns its reservation of memtable memory.
    async fn admit<'a>(
        self: &'a Arc<Self>,
        batch: &WriteBatch,
        options: WriteOptions,
        deadline_us: Option<u64>,
    ) -> Result<Option<MemtableReservation<'a>>> {
        let db = self.db_inner();
        let state = &db.state;
        let mut admission = Admission::new(db, batch, options);
        admission.deadline_us = deadline_us;
        loop {
            let in_time = match admission.next_step()? {
                AdmissionStep::Commit => return Ok(admission.reservation.take()),
                AdmissionStep::Flush => self.flush_if_due(deadline_us).await,
                AdmissionStep::Pause(us) => {
                    sleep(Duration::from_micros(us)).await;
                    true
                }
                AdmissionStep::Wait(_) => {
                    let can_continue = || admission.can_continue();
                    wait_until(&state.env, &state.progress, deadline_us, can_continue).await
                }
            };
            if !in_time {
                return Err(admission.deadline_error());
            }
        }
    }

    /// If a flush is due, flushes memtables on the blocking pool and waits until this is done. Returns false if the
    /// deadline passes first.
    async fn flush_if_due(self: &Arc<Self>, deadline_us: Option<u64>) -> bool {
        let db = self.db_inner();
        if !db.flush_trigger.is_flush_due() && !self.is_flushing.load(Ordering::Acquire) {
            return true;
        }
        if !self.is_flushing.swap(true, Ordering::AcqRel) {
            let guard = FlushInProgressGuard(Arc::clone(self));
            let flush = move || guard.0.db_inner().flush_trigger.flush_if_due(deadline_us);
            if let Err(Some(flush)) = spawn_on_pool(&Handle::current(), flush) {
                flush();
            }
        }
        let state = &db.state;
        // Also checks the trigger, because another task may have set `is_flushing` again before this task is woken.
        let is_done =
            || !self.is_flushing.load(Ordering::Acquire) || !db.flush_trigger.is_flush_due();
        wait_until(&state.env, &state.progress, deadline_us, is_done).await
    }

    /// Updates a key like [`Keyspace::fetch_update`](crate::Keyspace::fetch_update). `update` runs on the task.
    pub(crate) async fn update(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        key: &[u8],
        options: WriteOptions,
        update: &mut (dyn FnMut(Option<&[u8]>) -> Update + Send),
    ) -> Result<UpdateResult> {
        let state = &self.db_inner().state;
        let start = state.latencies.start(&state.env);
        let result = self.update_unmeasured(tree, key, options, update).await?;
        state.latencies.finish(&state.env, TimedOperation::Update, start);
        Ok(result)
    }

    async fn update_unmeasured(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        key: &[u8],
        options: WriteOptions,
        update: &mut (dyn FnMut(Option<&[u8]>) -> Update + Send),
    ) -> Result<UpdateResult> {
        let db = self.db_inner();
        db.check_open()?;
        let _lock = self.wait_for_key_lock(tree, key).await;
        loop {
            consume_budget().await;
            db.begin_operation();
            let read = self.read_to_update(tree, key, None).await?;
            let (updated, batch) = apply_update(tree, key, read, update);
            let Some(batch) = batch else { return Ok(updated) };
            match self.write(batch, options).await {
                Err(Error::Conflict { .. } | Error::ConflictUnknown { .. }) => {}
                result => return result.map(|()| updated),
            }
        }
    }

    /// Reads a key like [`point_read::read_to_update`]: from memory on the task, or else on the blocking pool.
    pub(crate) async fn read_to_update(
        self: &Arc<Self>,
        tree: &Arc<Tree>,
        key: &[u8],
        snapshot: Option<Arc<SnapshotGuard>>,
    ) -> Result<ReadToUpdate> {
        let db = self.db_inner();
        match point_read::read_to_update(db, tree, key, snapshot.as_deref(), ReadScope::Memory) {
            Err(Error::WouldBlock) => {
                let (inner, tree, key) = (Arc::clone(self), Arc::clone(tree), key.to_vec());
                run_on_pool(move || {
                    let (db, snapshot) = (inner.db_inner(), snapshot.as_deref());
                    point_read::read_to_update(db, &tree, &key, snapshot, ReadScope::Storage)
                })
                .await
            }
            read => read,
        }
    }

    /// Waits for the update lock of a key. Returns `None` after the maximum waiting time.
    async fn wait_for_key_lock(&self, tree: &Tree, key: &[u8]) -> Option<KeyLock<'_>> {
        let (env, locks) = (&self.db_inner().state.env, &self.db_inner().key_locks);
        let mut lock = locks.try_lock(tree, key);
        if lock.is_none() {
            let deadline_us = Some(locks.wait_limit_us(env));
            let is_locked = || {
                lock = locks.try_lock(tree, key);
                lock.is_some()
            };
            wait_until(env, locks.release_signal(), deadline_us, is_locked).await;
        }
        lock
    }
}

impl Drop for AsyncDbInner {
    fn drop(&mut self) {
        // Only the last handle of the database closes it, which performs I/O.
        if let Some(last) = self.db.take().and_then(|db| Arc::into_inner(db.into_handle())) {
            drop_on_pool(last);
        }
    }
}

/// Clears `is_flushing` when the blocking task ends, or when it is dropped before it has started.
struct FlushInProgressGuard(Arc<AsyncDbInner>);

impl Drop for FlushInProgressGuard {
    fn drop(&mut self) {
        self.0.is_flushing.store(false, Ordering::Release);
        self.0.db_inner().state.progress.notify();
    }
}

/// Waits for the result of a commit. At the deadline, withdraws the commit if no leader has taken it.
async fn wait_for_commit(
    env: &Env,
    pending: PendingCommit,
    deadline_us: Option<u64>,
) -> Result<()> {
    let mut timer = DeadlineTimer::new(env, deadline_us);
    poll_fn(|task| {
        let result = pending.poll(task);
        if result.is_ready() || !timer.poll_deadline_passed(task) {
            return result;
        }
        if pending.withdraw() {
            let cause = WaitCause::CommitAhead.as_str();
            return Poll::Ready(Err(Error::Deadline { cause }));
        }
        match pending.poll(task) {
            Poll::Pending => Poll::Ready(Err(pending.deadline_error())),
            result => result,
        }
    })
    .await
}
