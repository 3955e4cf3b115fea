//! Who leads commits, and folds operands, for tasks: threads of the blocking pool.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ::tokio::runtime::Handle as Runtime;

use lsmx_base::sync::{Arc, Weak};

use crate::db::Handle;
use crate::lookup::point::ReadScope;
use crate::write::commit::Committer;
use crate::write::ticket::TaskWorkers;

/// Most turns of one errand: then whatever else waits for a thread of the pool has its turn, and the
/// errand goes on behind it. Where requests keep coming faster than syncs end, it would never end.
const TURNS_MAX: usize = 8;

/// Sends threads of the pool of one runtime.
#[derive(Clone, Debug)]
pub(crate) struct PoolAttendant {
    runtime: Runtime,
    committer: Arc<Committer>,
    /// A commit that nobody awaits does not keep the database open: who closes it leads first for all
    /// that has queued.
    db: Weak<Handle>,
}

impl PoolAttendant {
    /// # Panics
    /// Outside of a runtime.
    pub(crate) fn of(handle: &Arc<Handle>) -> Arc<dyn TaskWorkers> {
        Arc::new(PoolAttendant {
            runtime: Runtime::current(),
            committer: Arc::clone(&handle.0.committer),
            db: Arc::downgrade(handle),
        })
    }

    fn send(&self, what: What) {
        let errand = Errand { what, pool: self.clone(), done: false };
        // The runtime panics if the system gives it no thread.
        let sent = AssertUnwindSafe(|| drop(self.runtime.spawn_blocking(move || errand.run())));
        if catch_unwind(sent).is_err() {
            // Should the errand still be run later, it finds nothing to do.
            what.done_here(&self.committer);
        }
    }
}

impl TaskWorkers for PoolAttendant {
    fn start_leader(&self) {
        self.send(What::Lead);
    }

    fn start_folding(&self) {
        self.send(What::Fold);
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Lead,
    Fold,
}

impl What {
    /// Does what must be done, on this thread.
    fn done_here(self, committer: &Committer) {
        match self {
            What::Lead => while committer.lead_for_tasks() {},
            // Left to whoever reads the keys.
            What::Fold => while !committer.take_long_chains().is_empty() {},
        }
    }
}

/// Something to do for tasks. A runtime that is shut down drops it undone: then it is done right there,
/// as far as it must be.
struct Errand {
    what: What,
    pool: PoolAttendant,
    done: bool,
}

impl Errand {
    fn run(mut self) {
        let more = (0..TURNS_MAX).all(|_| self.turn());
        self.done = true;
        if more {
            self.pool.send(self.what);
        }
    }

    /// One group, or one lot of chains; whether there may be more.
    fn turn(&self) -> bool {
        let PoolAttendant { committer, db, .. } = &self.pool;
        match self.what {
            What::Lead => {
                let led = committer.lead_for_tasks();
                // The lead has gone on: what the governor commits may take it.
                if led && let Some(handle) = db.upgrade() {
                    handle.0.after_commit(None);
                }
                led
            }
            What::Fold => {
                let chains = committer.take_long_chains();
                if chains.is_empty() {
                    return false;
                }
                // Without a database, they are left to whoever reads the keys.
                if let Some(handle) = db.upgrade() {
                    handle.0.fold_chains(chains, ReadScope::Storage);
                }
                true
            }
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        // Dropped undone, or in a panic of a listener.
        if !self.done {
            self.what.done_here(&self.pool.committer);
        }
    }
}
