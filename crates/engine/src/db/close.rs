//! Closing a database: flush, stop background work, mark the WAL, release the lock.
//!
//! After the deadline, the call returns [`Error::Deadline`], and a background thread continues the close. The background
//! thread starts no further flush. It waits until all writes have ended, and then releases the database lock. With
//! [`Background::Inline`] there are no background threads. The lock is then held until `close` is called again.

use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Ordering};

use crate::db::deadline::run_with_deadline;
use crate::db::inner::DbInner;
use crate::db::metrics_file::remove_metrics_file;
use crate::env::{Background, WaitCause};
use crate::error::{Error, LogArchiveEnd, Result};
use crate::format::version_edit::{Change, VersionEdit};

/// Closes the database. The lock is free when this returns `Ok`. A second call waits for the first.
pub(crate) fn close(inner: &Arc<DbInner>, deadline: Option<Duration>) -> Result<()> {
    inner.closed.store(true, Ordering::Release);
    inner.lock_table.close();
    inner.warm_up.stop();
    // An ingest that holds the admin lock may wait for compactions or for the release of a snapshot. The notification
    // ends its wait.
    inner.state.progress.notify();
    run_with_deadline(inner, WaitCause::Close, deadline, close_by)
}

/// Flushes until the deadline, then closes.
fn close_by(inner: &DbInner, flush_deadline_us: Option<u64>) -> Result<()> {
    let deadline_us = match inner.state.env.background() {
        Background::Inline => flush_deadline_us,
        _ => None,
    };
    let deadline_error = || Error::Deadline { cause: WaitCause::Close.as_str() };
    let _lock = inner.lock_admin_to_close(WaitCause::Close, deadline_us)?;
    if inner.lock_released.load(Ordering::Acquire) {
        return Ok(());
    }
    let state = &inner.state;
    if inner.read_only.is_some() {
        if !inner.warm_up.join(&inner.state, deadline_us) {
            return Err(deadline_error());
        }
        if inner.is_follower() {
            // Iterators pin their files themselves. Other views of the follower still use the descriptor cache.
            inner.lock_released.store(true, Ordering::Release);
            return Ok(());
        }
        state.keep_files_of_iterators_open();
        release_lock(inner);
        return Ok(());
    }
    let flushed = match state.is_closing() {
        true => Ok(()),
        false => state
            .error_state
            .check_writable()
            .and_then(|()| inner.flush_trees(&state.all_trees(), flush_deadline_us)),
    };
    // Calls that began earlier may still run. From now on commits and keyspace changes fail, and waits end.
    state.closing.store(true, Ordering::Release);
    state.progress.notify();
    // Waits for a keyspace change that began before `closed` was set.
    drop(inner.keyspace_changes.lock());
    let has_stopped = inner.committer.wait_until_idle(deadline_us)
        && inner.scheduler.pause(deadline_us)
        && inner.scheduler.join(deadline_us)
        && inner.wait_for_file_writes(WaitCause::Close, deadline_us)
        && inner.warm_up.join(&inner.state, deadline_us)
        && inner.metrics_thread.join(&inner.state, deadline_us);
    if !has_stopped {
        return Err(deadline_error());
    }
    // All threads that defer drops have ended.
    state.tables.deferred_drop.stop();
    let marked = mark_clean_close(inner);
    state.tables.reserve.release_space();
    state.release_dropped_keyspaces(true);
    state.discard_segments(state.log_holds.end_all(&LogArchiveEnd::Closed));
    state.obsolete_files.retry_files_of_followers();
    state.remove_discarded();
    state.keep_files_of_iterators_open();
    if inner.options.metrics_file_us.is_some() {
        remove_metrics_file(&*state.vfs, &state.dir);
    }
    release_lock(inner);
    // If the flush failed or exceeded the deadline, the next open replays the WAL.
    flushed.and(marked)
}

/// Writes to the WAL and to the manifest that the database was closed.
fn mark_clean_close(inner: &DbInner) -> Result<()> {
    let state = &inner.state;
    state.error_state.check_writable()?;
    let (segment, bytes) = state.wal.close()?;
    // Includes the numbers of commits that failed before a `resume`, because no number is used twice.
    let last_seq = SeqNo(inner.committer.next_seq().0.saturating_sub(1));
    state.manifest.append(&VersionEdit {
        changes: vec![
            Change::WalMark { segment, bytes },
            Change::FileNumberNext(state.files.next()),
            Change::ClockUs(state.env.database_time_us()),
            Change::CleanClose { last_seq },
        ],
    })
}

/// Releases the lock on the directory.
///
/// Afterwards this instance changes no file, because another process may open the database. Running reads return
/// [`Error::Closed`] if the next owner has removed their file.
fn release_lock(inner: &DbInner) {
    if !failpoint::is_on(Failpoint::SegmentCutAfterClose) {
        inner.state.wal.disable_preallocation();
    }
    inner.state.tables.descriptors.mark_database_closed();
    drop(inner.lock.lock().take());
    inner.lock_released.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::ingest::BulkLoadOptions;
    use crate::jobs::compaction::pick::tests::DroppingPolicy;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;

    /// Bug: a close waited up to one minute for an ingest that waited for the release of a snapshot.
    #[test]
    fn close_ends_ingest_that_waits_for_release_of_snapshot() {
        for seed in 0..4 {
            let policy = Arc::new(DroppingPolicy { stop_runs: Some(2), ..Default::default() });
            let defaults = KeyspaceOptions::default().policy(Arc::clone(&policy));
            let background = Background::Stepped { seed, workers: 1 };
            let options = Options::default().background(background).keyspace_defaults(defaults);
            let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
            db.put("a", "1").unwrap();
            db.flush().unwrap();
            let snapshot = db.snapshot();
            policy.picks_left.store(1_000, Ordering::Relaxed);
            db.put("b", "1").unwrap();
            db.flush().unwrap();
            db.wait_idle().unwrap();
            let env = db.inner().state.env.clone();
            let keyspace = db.default_keyspace();
            let ingest = move || {
                let loaded = keyspace.bulk_load([("c", "1")], BulkLoadOptions::default());
                assert!(matches!(loaded, Err(Error::Closed)), "{loaded:?}");
            };
            let ingest = env.spawn("ingest", ingest).unwrap();
            env.pause_us(10_000_000);
            assert!(db.inner().admin_locked.load(Ordering::Acquire), "the ingest waits");
            db.close(None).unwrap();
            env.join(ingest).unwrap();
            drop(snapshot);
        }
    }
}
