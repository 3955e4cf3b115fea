//! Retries of failed background jobs, and reports of their errors to writes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::failpoint::{self, Failpoint};

use crate::error::{Error, Result};
use crate::state::DbState;
use crate::tree::{RetryState, Tree, TreeJobState};

/// Pause after the first failure in microseconds. With each further failure, the pause doubles, up to [`RETRY_US_MAX`].
const RETRY_US_FIRST: u64 = 100_000;
/// Maximum pause between two attempts in microseconds.
pub(crate) const RETRY_US_MAX: u64 = 60_000_000;

/// Runs a job. Converts a panic to an error.
///
/// After a panic of user code, only the job fails. After a panic of the engine, the database also becomes read-only,
/// because partial results must not become durable.
pub(crate) fn catch_panics<T>(state: &DbState, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let error = Error::from_panic(&*panic);
        Err(if error.is_user_panic() { error } else { state.make_read_only(error) })
    })
}

/// Handles an error of background work outside of a job: records it, so that the work is retried after a pause, and
/// reports it.
pub(crate) fn handle_failure(state: &DbState, work: &'static str, tree: &Tree, error: &Error) {
    record_failure(state, tree, error);
    state.report_background_error(work, Some(tree), error);
    defer_error(state, work, tree, error);
}

/// Resets the pause between retries after a successful compaction.
///
/// Another job of the tree may have failed while this job was running. Its pause must be reset, too. Otherwise, no
/// thread would check the tree after the pause, and writes that wait for a compaction would never continue.
pub(crate) fn record_success(state: &DbState, tree: &Tree) {
    let mut jobs = tree.jobs.lock();
    (jobs.failures, jobs.retry_at_us, jobs.is_error_reported) = (0, 0, false);
    if jobs.last_error.take().is_some() && jobs.next_retry_us().is_none() {
        state.set_compaction_failing(tree.id, false);
    }
}

/// Resets the pause between retries after a successful blob garbage collection.
pub(crate) fn record_blob_gc_success(state: &DbState, tree: &Tree) {
    let mut jobs = tree.jobs.lock();
    let has_failed = std::mem::take(&mut jobs.blob_gc_retry).error.is_some();
    if has_failed && jobs.next_retry_us().is_none() {
        state.set_compaction_failing(tree.id, false);
    }
}

/// Starts a pause before the next retry. Does nothing if the job was cancelled.
pub(crate) fn record_failure(state: &DbState, tree: &Tree, error: &Error) {
    if is_cancelled(error) || matches!(error, Error::ReadOnly { .. }) {
        return;
    }
    let mut jobs = tree.jobs.lock();
    jobs.retry_at_us = state.env.now_us().saturating_add(backoff_us(jobs.failures));
    jobs.failures = jobs.failures.saturating_add(1);
    if failpoint::is_on(Failpoint::RetriedWithoutPause) {
        jobs.retry_at_us = 0;
    }
    jobs.last_error = Some(error.clone());
    state.set_compaction_failing(tree.id, true);
    tree.counters.update(|counts| counts.compaction.failures += 1);
}

/// Starts a pause before the next blob garbage collection. Other compactions of the tree start without a pause. Does
/// nothing if the job was cancelled.
///
/// Successful compactions do not end the pause. Otherwise, a collection that fails for a long time, for example because
/// the disk is full, would be retried and would make a write fail after each of them.
pub(crate) fn record_blob_gc_failure(state: &DbState, tree: &Tree, error: &Error) {
    if is_cancelled(error) || matches!(error, Error::ReadOnly { .. }) {
        return;
    }
    let mut jobs = tree.jobs.lock();
    start_pause(&mut jobs.blob_gc_retry, state.env.now_us(), error);
    state.set_compaction_failing(tree.id, true);
    tree.counters.update(|counts| counts.compaction.failures += 1);
}

/// Records a failure, and starts a pause before the next attempt.
pub(crate) fn start_pause(retry: &mut RetryState, now_us: u64, error: &Error) {
    retry.retry_at_us = now_us.saturating_add(backoff_us(retry.failures));
    retry.failures = retry.failures.saturating_add(1);
    retry.error = Some(error.clone());
}

/// Returns the pause in microseconds after `failures` earlier consecutive failures.
fn backoff_us(failures: u32) -> u64 {
    RETRY_US_FIRST.saturating_mul(1 << failures.min(20)).min(RETRY_US_MAX)
}

/// Stores the first error since the last success, so that the next write returns it. Later errors are not stored,
/// because otherwise each retry would make a write fail.
pub(crate) fn defer_error(state: &DbState, work: &'static str, tree: &Tree, error: &Error) {
    defer_first_error(state, work, tree, error, |jobs| &mut jobs.is_error_reported);
}

/// Like [`defer_error`], for an error of a blob garbage collection: stores the first error since the last successful
/// collection.
pub(crate) fn defer_blob_gc_error(state: &DbState, tree: &Tree, error: &Error) {
    defer_first_error(state, "compaction", tree, error, |jobs| {
        &mut jobs.blob_gc_retry.is_error_reported
    });
}

/// Like [`defer_error`], for an error of a collection of an operand store: stores the first error since the last
/// successful collection.
pub(crate) fn defer_collection_error(state: &DbState, tree: &Tree, error: &Error) {
    defer_first_error(state, "collection", tree, error, |jobs| {
        &mut jobs.collection_retry.is_error_reported
    });
}

/// Stores an error for the next write, unless the flag that `is_reported` returns is set. Sets the flag.
fn defer_first_error(
    state: &DbState,
    work: &'static str,
    tree: &Tree,
    error: &Error,
    is_reported: impl FnOnce(&mut TreeJobState) -> &mut bool,
) {
    // In a read-only database, all writes fail in any case.
    if is_cancelled(error) || matches!(error, Error::ReadOnly { .. }) {
        return;
    }
    let mut jobs = tree.jobs.lock();
    let is_reported = is_reported(&mut jobs);
    // Another error may already be stored for the next write. This error then counts as not reported, and the next
    // failed attempt stores its error.
    *is_reported = *is_reported || state.defer_error(work, Some(tree), error);
}

/// Clears the last failure of a tree that needs no job of the policy, unless a job is running. Unless a blob garbage
/// collection is due, also clears the failures of these collections. Otherwise, `wait_idle` would return the old error,
/// and idle threads would check the tree until a job succeeds.
pub(crate) fn clear_last_failure(
    state: &DbState,
    tree: &Tree,
    jobs: &mut TreeJobState,
    is_blob_gc_due: bool,
) {
    if !jobs.running.jobs.is_empty() {
        return;
    }
    let mut has_failed = jobs.last_error.take().is_some();
    if has_failed {
        (jobs.failures, jobs.is_error_reported) = (0, false);
    }
    if !is_blob_gc_due {
        has_failed |= std::mem::take(&mut jobs.blob_gc_retry).error.is_some();
    }
    if has_failed && jobs.next_retry_us().is_none() {
        state.set_compaction_failing(tree.id, false);
    }
}

/// Returns whether a job ended because its result is no longer needed.
pub(crate) fn is_cancelled(error: &Error) -> bool {
    matches!(error, Error::Closed | Error::KeyspaceDropped { .. } | Error::Deadline { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;
    use lsmx_base::sync::Arc;

    /// Regression test: one job of a tree failed, and another job succeeded during the pause. The pause was not reset,
    /// no thread checked the tree after it, and writes that waited for a compaction did not continue.
    #[test]
    fn retry_successful_job_ends_back_off_of_failed_job() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let core = db.inner();
        let (state, tree) = (&core.state, &core.default_tree);
        let cause = std::io::Error::other("no space");
        record_failure(state, tree, &Error::io("append to", std::path::Path::new("1.sst"), cause));
        assert!(tree.jobs.lock().retry_at_us > state.env.now_us());
        assert_eq!(state.failing_trees().len(), 1);
        record_success(state, tree);
        let blocked = state.env.now_us() < tree.jobs.lock().retry_at_us;
        assert_eq!((blocked, state.failing_trees().len()), (false, 0));
    }
}
