//! Blocking tasks that lead commit groups and fold operands for async tasks.

use ::tokio::runtime::Handle as Runtime;
use lsmx_base::sync::{Arc, Weak};

use crate::db::handle::DbHandle;
use crate::lookup::point::ReadScope;
use crate::tokio::runtime::spawn_on_pool;
use crate::write::commit::Committer;
use crate::write::ticket::TaskWorkerStarter;

/// Maximum number of rounds that one blocking task runs. After that, a new blocking task continues the work. Other
/// calls can therefore use the pool, even if commits arrive faster than they are synced.
const ROUNDS_MAX: usize = 8;

/// Starts blocking tasks on one runtime.
#[derive(Clone, Debug)]
pub(crate) struct BlockingPoolWorkers {
    runtime: Runtime,
    committer: Arc<Committer>,
    /// Weak, because a queued commit must not keep the database open. `close` leads all queued commits.
    db: Weak<DbHandle>,
}

impl BlockingPoolWorkers {
    /// Creates a starter of blocking tasks on the current runtime.
    ///
    /// # Panics
    /// Panics if the function is called outside of a runtime.
    pub(crate) fn new(handle: &Arc<DbHandle>) -> BlockingPoolWorkers {
        BlockingPoolWorkers {
            runtime: Runtime::current(),
            committer: Arc::clone(&handle.0.committer),
            db: Arc::downgrade(handle),
        }
    }

    fn spawn(&self, kind: WorkerKind) {
        let worker = BlockingWorker { kind, pool: self.clone(), is_done: false };
        // If no thread can be started, the destructor of the worker completes the work.
        drop(spawn_on_pool(&self.runtime, move || worker.run()));
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
    /// Leads all queued commit groups on this thread, because commits must not be lost. Discards queued operand chains,
    /// because reads can fold them later.
    fn finish(self, committer: &Committer) {
        match self {
            WorkerKind::LeadCommits => while committer.lead_next_commit_group() {},
            WorkerKind::FoldOperands => while !committer.take_long_operand_chains().is_empty() {},
        }
    }
}

/// A blocking task. If the runtime does not run the task, or if the task panics, the destructor completes the work.
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

    /// Leads one commit group, or folds one set of operand chains. Returns whether there may be further work.
    fn run_round(&self) -> bool {
        let BlockingPoolWorkers { committer, db, .. } = &self.pool;
        match self.kind {
            WorkerKind::LeadCommits => {
                let has_led = committer.lead_next_commit_group();
                // This thread must not be the leader during `after_commit`, which may queue a commit and wait for it.
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
