//! Computes the admitted write rate of a tree from the debt that its compaction policy reports.
//!
//! The rate is computed whenever the debt may have changed: after a flush, after a change of the policy, and when a
//! compaction job is picked, finishes a table or ends. The debt consists of the bytes that compactions must write
//! before L0 shrinks, and of the headroom: the bytes that can be flushed before writes stop. The bytes in memtables are
//! subtracted from the headroom, because they will be flushed, too.

use lsmx_base::sync::Arc;
use lsmx_compaction::{Debt, TreeShape};

use crate::env::Background;
use crate::error::{Error, UserCode};
use crate::state::DbState;
use crate::tree::Tree;
use crate::write::throttle::Throttle;

/// Delay in microseconds before the policy is called again after a panic.
const RETRY_US: u64 = 1_000_000;

/// Computes the admitted write rate of a tree, and stores it in the tree.
pub(crate) fn refresh_write_limits(state: &DbState, throttle: &Throttle, tree: &Tree) {
    let now_us = state.env.database_time_us();
    // The tree shape and the policy are read while the lock is held. The last thread that stores a rate therefore uses
    // the newest shape and policy. Otherwise, an outdated decision to stop writes could remain in effect without a job
    // that ends it.
    let mut jobs = tree.jobs.lock();
    let policy = Arc::clone(&tree.settings().policy);
    let shape = tree.shape(now_us, &state.sequence);
    let call_policy = || {
        // A job that has become due since the last pick must be picked, too.
        let at_pick = TreeShape { now_us: jobs.picked_at_us, ..shape.clone() };
        let due = (policy.next_pick_due_us(&at_pick), policy.memtable_tombstone_age_max_us(&shape));
        let shape = jobs.quarantine.without_unreadable_runs(&shape);
        (due, policy.debt(&shape, &jobs.running), policy.must_stop_writes(&shape))
    };
    let code = || UserCode::CompactionPolicy(policy.name().to_owned());
    match Error::catch_user_panic(code, call_policy) {
        Ok(((due_us, tombstone_us), debt, must_stop_writes)) => {
            let parts = tree.delete_persistence();
            let garbage_us = parts.and_then(|parts| {
                jobs.blob_garbage.next_due_us(parts.blob_garbage_us(), jobs.picked_at_us)
            });
            let due_us = due_us.into_iter().chain(garbage_us).min();
            state.work.schedule_tree_check(tree.set_due_times(due_us, tombstone_us));
            if let Some(parts) = parts {
                // The tree check empties the WAL if this is due, and reports overdue data.
                state.work.schedule_tree_check(now_us.saturating_add(parts.check_us()));
            }
            let debt = subtract_memtable_bytes(tree, debt);
            tree.set_debt(debt);
            tree.set_backpressure(throttle.admitted_write_rate(debt), must_stop_writes);
        }
        // The previous results of the policy remain in effect until the next job ends or the policy is called again.
        Err(error) => {
            let is_reported = std::mem::replace(&mut jobs.is_error_reported, true);
            jobs.retry_at_us = jobs.retry_at_us.max(state.env.now_us().saturating_add(RETRY_US));
            jobs.last_error = Some(error.clone());
            drop(jobs);
            state.set_compaction_failing(tree.id, true);
            if !is_reported {
                state.report_background_error("compaction", Some(tree), &error);
                state.defer_error("compaction", Some(tree), &error);
            }
        }
    }
}

/// Computes the admitted write rate of a tree while a job is running, if the rate is currently limited.
pub(crate) fn refresh_write_limits_on_job_progress(
    state: &DbState,
    throttle: &Throttle,
    tree: &Tree,
) {
    // Inline jobs run on the thread that writes. No write can wait while such a job is running.
    if state.env.background() != Background::Inline && tree.admitted_write_rate().is_some() {
        refresh_write_limits(state, throttle, tree);
    }
}

/// Subtracts the bytes in memtables from the headroom.
fn subtract_memtable_bytes(tree: &Tree, debt: Debt) -> Debt {
    if debt.pending_bytes == 0 {
        return debt;
    }
    let bytes = tree.super_version().memtable_bytes();
    Debt { headroom_bytes: debt.headroom_bytes.saturating_sub(bytes), ..debt }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{CompactionPolicy, Job, RunningJobs};

    use super::*;
    use crate::db::Db;
    use crate::env::ManualClock;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;

    const PENDING_BYTES: u64 = 1 << 20;
    const HEADROOM_BYTES: u64 = 64 << 10;

    /// Policy that reports a constant debt and never picks a job.
    #[derive(Debug)]
    struct ConstantDebt;

    impl CompactionPolicy for ConstantDebt {
        fn name(&self) -> &str {
            "constant-debt"
        }

        fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
            None
        }

        fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
            Debt { pending_bytes: PENDING_BYTES, headroom_bytes: HEADROOM_BYTES }
        }

        fn must_stop_writes(&self, _: &TreeShape) -> bool {
            false
        }
    }

    /// Regression test: the rate that was computed for an empty memtable remained in effect until the memtable was
    /// full. Writes then stopped until the compaction ended.
    #[test]
    fn admitted_rate_falls_as_memtable_fills() {
        let keyspace =
            KeyspaceOptions::default().memtable_bytes(1 << 20).policy(Arc::new(ConstantDebt));
        let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let core = db.inner();
        let tree = Arc::clone(&core.default_tree);
        let rate = || {
            refresh_write_limits(&core.state, &core.throttle, &tree);
            tree.admitted_write_rate().unwrap()
        };
        let empty = rate();
        let mut rates = vec![empty];
        let memtable_bytes = || tree.super_version().memtable_bytes();
        for key in 0_u64.. {
            if memtable_bytes() >= HEADROOM_BYTES / 2 {
                break;
            }
            db.put(key.to_be_bytes(), [7; 1000]).unwrap();
            rates.push(rate());
        }
        assert!(rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
        let half =
            f64::from(u32::try_from(rate()).unwrap()) / f64::from(u32::try_from(empty).unwrap());
        assert!((0.4..0.52).contains(&half), "{half}");
        let debt = db.metrics().keyspaces["default"].compaction_debt.clone();
        let headroom_bytes = HEADROOM_BYTES - memtable_bytes();
        assert_eq!(
            (debt.pending_bytes, debt.headroom_bytes),
            (PENDING_BYTES, Some(headroom_bytes))
        );
        assert_eq!(debt.write_rate_max, tree.admitted_write_rate());
        while memtable_bytes() < HEADROOM_BYTES {
            db.put(memtable_bytes().to_be_bytes(), [7; 1000]).unwrap();
        }
        assert!(rate() < empty / 10);
    }

    /// Policy whose debt panics.
    #[derive(Debug)]
    struct PanickingDebt;

    impl CompactionPolicy for PanickingDebt {
        fn name(&self) -> &str {
            "panicking-debt"
        }

        fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
            None
        }

        fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
            panic!("no debt")
        }

        fn must_stop_writes(&self, _: &TreeShape) -> bool {
            false
        }
    }

    /// Bug: the end of the pause was a time of the database clock. If the database clock was a year ahead of the
    /// scheduling clock, the pause took a year.
    #[test]
    fn pause_after_panic_of_policy_ignores_database_clock() {
        const START_US: u64 = 1_800_000_000_000_000;
        const YEAR_US: u64 = 365 * 86_400_000_000;
        let vfs = Arc::new(MemVfs::new());
        let open = |wall_us, defaults| {
            let clock = ManualClock::new(wall_us);
            let options = Options::default().background(Background::Inline).clock(clock.clone());
            let options = options.keyspace_defaults(defaults).vfs(vfs.clone());
            (Db::open("db", options).unwrap(), clock)
        };
        let (db, clock) = open(START_US + YEAR_US, KeyspaceOptions::default());
        for _ in 0..4 {
            clock.advance_us(2 * 3_600_000_000);
            db.put("key", "value").unwrap();
            db.flush().unwrap();
        }
        db.close(None).unwrap();
        let (db, _clock) =
            open(START_US, KeyspaceOptions::default().policy(Arc::new(PanickingDebt)));
        let core = db.inner();
        let (state, tree) = (&core.state, &core.default_tree);
        assert!(state.env.database_time_us() >= state.env.now_us() + YEAR_US / 2);
        tree.jobs.lock().retry_at_us = 0;
        refresh_write_limits(state, &core.throttle, tree);
        assert_eq!(tree.jobs.lock().retry_at_us, state.env.now_us() + RETRY_US);
    }
}
