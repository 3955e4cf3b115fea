//! Threads of the blocking pool that lead commits and fold operands for tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ::tokio::runtime::Handle as Runtime;
use lsmx_base::sync::{Arc, Weak};

use crate::db::handle::DbHandle;
use crate::lookup::point::ReadScope;
use crate::write::commit::Committer;
use crate::write::ticket::TaskWorkerStarter;

/// Maximum number of rounds of one blocking task. It then continues at the end of the pool's queue, so that other
/// calls can run even if requests arrive faster than syncs complete.
const ROUNDS_MAX: usize = 8;

/// Spawns blocking tasks on one runtime.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPoolWorkers {
    runtime: Runtime,
    committer: Arc<Committer>,
    /// Weak, because a queued commit must not keep the database open. `close` leads all queued commits first.
    db: Weak<DbHandle>,
}

impl BlockingPoolWorkers {
    /// # Panics
    /// Outside of a runtime.
    pub(crate) fn new(handle: &Arc<DbHandle>) -> BlockingPoolWorkers {
        BlockingPoolWorkers {
            runtime: Runtime::current(),
            committer: Arc::clone(&handle.0.committer),
            db: Arc::downgrade(handle),
        }
    }

    fn spawn(&self, kind: WorkerKind) {
        let worker = BlockingWorker { kind, pool: self.clone(), is_done: false };
        // `spawn_blocking` panics if the system cannot create a thread.
        let spawn = AssertUnwindSafe(|| drop(self.runtime.spawn_blocking(move || worker.run())));
        if catch_unwind(spawn).is_err() {
            // If the runtime runs the task later anyway, it finds nothing to do.
            kind.finish(&self.committer);
        }
    }
}

impl TaskWorkerStarter for BlockingPoolWorkers {
    fn start_leader(&self) {
        self.spawn(WorkerKind::LeadCommits);
    }

    fn start_folding(&self) {
        self.spawn(WorkerKind::FoldOperands);
    }
}

#[derive(Clone, Copy, Debug)]
enum WorkerKind {
    LeadCommits,
    FoldOperands,
}

impl WorkerKind {
    /// Does the work that must not be lost, on this thread: commits, but not folds, which reads can do.
    fn finish(self, committer: &Committer) {
        match self {
            WorkerKind::LeadCommits => while committer.lead_next_commit_group() {},
            WorkerKind::FoldOperands => while !committer.take_long_operand_chains().is_empty() {},
        }
    }
}

/// A blocking task. If it is dropped before it has run, because the runtime shuts down, or if it panics, its destructor
/// finishes the work.
struct BlockingWorker {
    kind: WorkerKind,
    pool: BlockingPoolWorkers,
    is_done: bool,
}

impl BlockingWorker {
    fn run(mut self) {
        let has_more = (0..ROUNDS_MAX).all(|_| self.run_round());
        self.is_done = true;
        if has_more {
            self.pool.spawn(self.kind);
        }
    }

    /// Leads one group, or folds one set of operand chains. Returns whether there may be more.
    fn run_round(&self) -> bool {
        let BlockingPoolWorkers { committer, db, .. } = &self.pool;
        match self.kind {
            WorkerKind::LeadCommits => {
                let has_led = committer.lead_next_commit_group();
                // The lead is free again, because the governor may commit.
                if has_led && let Some(handle) = db.upgrade() {
                    handle.0.after_commit(None);
                }
                has_led
            }
            WorkerKind::FoldOperands => {
                let chains = committer.take_long_operand_chains();
                if chains.is_empty() {
                    return false;
                }
                if let Some(handle) = db.upgrade() {
                    handle.0.fold_operand_chains(chains, ReadScope::Storage);
                }
                true
            }
        }
    }
}

impl Drop for BlockingWorker {
    fn drop(&mut self) {
        if !self.is_done {
            self.kind.finish(&self.pool.committer);
        }
    }
}
