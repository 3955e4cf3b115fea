//! Who leads commits, and folds operands, for tasks: threads of the blocking pool.

use ::tokio::runtime::Handle as Runtime;

use crate::db::Handle;
use crate::sync::{Arc, Weak};
use crate::write::commit::Committer;
use crate::write::group::Attendant;

/// Sends threads of the pool of one runtime.
#[derive(Debug)]
pub(super) struct PoolAttendant {
    runtime: Runtime,
    committer: Arc<Committer>,
    /// A commit that nobody awaits does not keep the database open: who closes it leads first for all
    /// that has queued.
    db: Weak<Handle>,
}

impl PoolAttendant {
    /// # Panics
    /// Outside of a runtime.
    pub(super) fn of(handle: &Arc<Handle>) -> Arc<dyn Attendant> {
        Arc::new(PoolAttendant {
            runtime: Runtime::current(),
            committer: Arc::clone(&handle.0.committer),
            db: Arc::downgrade(handle),
        })
    }

    fn send(&self, what: What) {
        let (committer, db) = (Arc::clone(&self.committer), self.db.clone());
        let errand = Errand { what, committer, db, done: false };
        self.runtime.spawn_blocking(move || errand.run());
    }
}

impl Attendant for PoolAttendant {
    fn lead(&self) {
        self.send(What::Lead);
    }

    fn fold(&self) {
        self.send(What::Fold);
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Lead,
    Fold,
}

/// Something to do for tasks. A runtime that is shut down drops it undone: then it is done right there,
/// as far as it must be.
struct Errand {
    what: What,
    committer: Arc<Committer>,
    db: Weak<Handle>,
    done: bool,
}

impl Errand {
    fn run(mut self) {
        match self.what {
            What::Lead => {
                while self.committer.attend() {
                    // The lead has gone on: what the governor commits may take it.
                    if let Some(handle) = self.db.upgrade() {
                        handle.0.after_commit();
                    }
                }
            }
            What::Fold => loop {
                let chains = self.committer.chains();
                let Some(handle) = self.db.upgrade().filter(|_| !chains.is_empty()) else { break };
                handle.0.fold_chains(chains);
            },
        }
        self.done = true;
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Dropped undone, or in a panic of a listener.
        match self.what {
            What::Lead => while self.committer.attend() {},
            // Left to whoever reads the keys.
            What::Fold => while !self.committer.chains().is_empty() {},
        }
    }
}
