//! How fast writes to a tree may come, worked out anew whenever that may have changed: after a flush,
//! when a job is picked, has finished a table, has ended, and when the policy changes.
//!
//! A policy says how much must be written before its next run is released, and how many bytes of
//! memtables fit until then. What the memtables hold by now is taken off that, so that the last of
//! them is full when the run is released, and not before.

use lsmx_base::sync::Arc;
use lsmx_compaction::Debt;

use crate::env::Background;
use crate::error::{Error, UserCode};
use crate::state::DbState;
use crate::tree::Tree;
use crate::write::throttle::Throttle;

/// Pause after a panic of the policy, in microseconds.
const RETRY_US: u64 = 1_000_000;

/// Says how fast writes to a tree may come from now on.
pub(crate) fn refresh(store: &DbState, throttle: &Throttle, tree: &Tree) {
    let (now_us, snapshots) = (store.env.database_us(), store.sequence.snapshot_bounds());
    // Shape and policy are read under the lock, so that of two threads the later one has the
    // newer ones. Otherwise an old "stop" could be the last word, with no job left to take it
    // back.
    let mut jobs = tree.jobs.lock();
    let policy = Arc::clone(&tree.settings().policy);
    let shape = tree.shape(now_us, snapshots);
    let ask = || {
        let due = (policy.next_due_us(&shape), policy.memtable_tombstone_age_max_us(&shape));
        let shape = jobs.quarantine.counted(&shape);
        (due, policy.debt(&shape, &jobs.busy), policy.must_stop(&shape))
    };
    let code = || UserCode::CompactionPolicy(policy.name().to_owned());
    match Error::catch_user(code, ask) {
        Ok(((due_us, tombstone_us), debt, must_stop)) => {
            store.work.schedule_check(tree.set_due(due_us, tombstone_us));
            let debt = with_room_left(tree, debt);
            tree.set_backpressure(throttle.rate(debt), must_stop);
        }
        // Its last answers stand until it is asked again, with the next job or after a pause.
        Err(error) => {
            let known = std::mem::replace(&mut jobs.told, true);
            jobs.retry_at_us = jobs.retry_at_us.max(now_us.saturating_add(RETRY_US));
            jobs.last_error = Some(error.clone());
            drop(jobs);
            store.set_failing(tree.id, true);
            if !known {
                store.report("compaction", Some(tree), &error);
                store.defer_error("compaction", Some(tree), &error);
            }
        }
    }
}

/// The same while a job goes on: its end has come nearer.
pub(crate) fn refresh_on_progress(store: &DbState, throttle: &Throttle, tree: &Tree) {
    // Inline, nobody writes meanwhile.
    if store.env.background() != Background::Inline && tree.admitted_rate().is_some() {
        refresh(store, throttle, tree);
    }
}

/// A debt with the room that is left in memtables, too.
fn with_room_left(tree: &Tree, debt: Debt) -> Debt {
    if debt.pending_bytes == 0 {
        return debt;
    }
    let held = tree.view().memtable_bytes();
    Debt { headroom_bytes: debt.headroom_bytes.saturating_sub(held), ..debt }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{CompactionPolicy, Job, RunningJobs, TreeShape};

    use super::*;
    use crate::vfs::MemVfs;
    use crate::{Db, KeyspaceOptions, Options};

    const PENDING_BYTES: u64 = 1 << 20;
    const HEADROOM_BYTES: u64 = 64 << 10;

    /// Is always behind by the same, and does nothing about it.
    #[derive(Debug)]
    struct Behind;

    impl CompactionPolicy for Behind {
        fn name(&self) -> &str {
            "behind"
        }

        fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
            None
        }

        fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
            Debt { pending_bytes: PENDING_BYTES, headroom_bytes: HEADROOM_BYTES }
        }

        fn must_stop(&self, _: &TreeShape) -> bool {
            false
        }
    }

    /// Writes once ran on at the rate of an empty memtable until it was full, and then stopped for as
    /// long as the merge had still to go.
    #[test]
    fn the_fuller_the_last_memtable_the_slower_writes_come() {
        let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 20).policy(Arc::new(Behind));
        let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let core = db.inner();
        let tree = Arc::clone(&core.default_tree);
        let rate = || {
            refresh(&core.state, &core.throttle, &tree);
            tree.admitted_rate().unwrap()
        };
        let empty = rate();
        let mut rates = vec![empty];
        let held = || tree.view().memtable_bytes();
        for key in 0_u64.. {
            if held() >= HEADROOM_BYTES / 2 {
                break;
            }
            db.put(key.to_be_bytes(), [7; 1000]).unwrap();
            rates.push(rate());
        }
        assert!(rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
        let half =
            f64::from(u32::try_from(rate()).unwrap()) / f64::from(u32::try_from(empty).unwrap());
        assert!((0.4..0.52).contains(&half), "{half}");
        while held() < HEADROOM_BYTES {
            db.put(held().to_be_bytes(), [7; 1000]).unwrap();
        }
        assert!(rate() < empty / 10);
    }
}
