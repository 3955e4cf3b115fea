//! Updates the admitted write rate of a tree from the debt of its compaction policy.
//!
//! The rate is updated when the debt may have changed: after a flush, when a job is picked, finishes a table or ends, and
//! when the policy changes. The debt contains the bytes to rewrite before the next run is released, and the headroom
//! of memtable bytes until then. Current memtable bytes are subtracted from the headroom, so that writes do not stop
//! before that run is released.

use lsmx_base::sync::Arc;
use lsmx_compaction::Debt;

use crate::env::Background;
use crate::error::{Error, UserCode};
use crate::state::DbState;
use crate::tree::Tree;
use crate::write::throttle::Throttle;

/// Delay after a panic of the policy, in microseconds.
const RETRY_US: u64 = 1_000_000;

/// Updates the admitted write rate of a tree.
pub(crate) fn refresh_write_limits(state: &DbState, throttle: &Throttle, tree: &Tree) {
    let now_us = state.env.database_time_us();
    // Shape and policy are read under the lock, so that the last thread to set the rate uses the newest ones. An outdated
    // stop could otherwise remain, without a job that would end it.
    let mut jobs = tree.jobs.lock();
    let policy = Arc::clone(&tree.settings().policy);
    let shape = tree.shape(now_us, &state.sequence);
    let call_policy = || {
        let due = (policy.next_pick_due_us(&shape), policy.memtable_tombstone_age_max_us(&shape));
        let shape = jobs.quarantine.without_unreadable_runs(&shape);
        (due, policy.debt(&shape, &jobs.running), policy.must_stop_writes(&shape))
    };
    let code = || UserCode::CompactionPolicy(policy.name().to_owned());
    match Error::catch_user_panic(code, call_policy) {
        Ok(((due_us, tombstone_us), debt, must_stop_writes)) => {
            state.work.schedule_tree_check(tree.set_due_times(due_us, tombstone_us));
            let debt = subtract_memtable_bytes(tree, debt);
            tree.set_backpressure(throttle.admitted_write_rate(debt), must_stop_writes);
        }
        // The last results of the policy stay in effect until the next job ends or the failed call is repeated.
        Err(error) => {
            let is_reported = std::mem::replace(&mut jobs.is_error_reported, true);
            jobs.retry_at_us = jobs.retry_at_us.max(now_us.saturating_add(RETRY_US));
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

/// Updates the admitted rate of a limited tree while a job is running.
pub(crate) fn refresh_write_limits_on_job_progress(
    state: &DbState,
    throttle: &Throttle,
    tree: &Tree,
) {
    // Inline jobs run on the only writing thread, so no write waits for their progress.
    if state.env.background() != Background::Inline && tree.admitted_write_rate().is_some() {
        refresh_write_limits(state, throttle, tree);
    }
}

/// Subtracts the current memtable bytes from the headroom.
fn subtract_memtable_bytes(tree: &Tree, debt: Debt) -> Debt {
    if debt.pending_bytes == 0 {
        return debt;
    }
    let bytes = tree.super_version().memtable_bytes();
    Debt { headroom_bytes: debt.headroom_bytes.saturating_sub(bytes), ..debt }
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{CompactionPolicy, Job, RunningJobs, TreeShape};

    use super::*;
    use crate::db::Db;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;

    const PENDING_BYTES: u64 = 1 << 20;
    const HEADROOM_BYTES: u64 = 64 << 10;

    /// A policy with a constant debt that never picks a job.
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

    /// Bug: the rate of an empty memtable was kept until the memtable was full. Writes then stopped until the compaction
    /// ended.
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
        while memtable_bytes() < HEADROOM_BYTES {
            db.put(memtable_bytes().to_be_bytes(), [7; 1000]).unwrap();
        }
        assert!(rate() < empty / 10);
    }
}
