//! Closing: flush, end background work, mark the log, free the lock.
//!
//! Every wait of the caller ends at its deadline. The close itself then continues on a thread of the engine: it
//! flushes no more, waits until no thread of the database can write, and frees the lock. Under
//! `Background::Inline` there is no such thread; there the lock stays taken until the next close.

use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Ordering};

use crate::db::DbInner;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};

impl DbInner {
    /// Closes the database. The lock is free when this returns `Ok`. A second call waits for the first.
    pub(crate) fn close(self: &Arc<DbInner>, deadline: Option<Duration>) -> Result<()> {
        let deadline_us = self.committer.deadline_us(deadline);
        self.closed.store(true, Ordering::Release);
        self.stop_warm_up();
        self.run_with_deadline(WaitCause::Close, deadline_us, move |core| {
            core.close_by(deadline_us)
        })
    }

    /// Flushes until the deadline, and closes.
    fn close_by(&self, flush_deadline_us: Option<u64>) -> Result<()> {
        let deadline_us = match self.state.env.background() {
            Background::Inline => flush_deadline_us,
            _ => None,
        };
        let _turn = self.lock_admin_to_close(WaitCause::Close, deadline_us)?;
        if self.lock_released.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.read_only.is_some() {
            if !self.join_warm_up(deadline_us) {
                return Err(Error::Deadline { cause: WaitCause::Close.as_str() });
            }
            self.state.keep_files_of_iterators_open();
            self.free_lock();
            return Ok(());
        }
        let store = &self.state;
        let flushed =
            if store.is_closing() { Ok(()) } else { self.flush_to_close(flush_deadline_us) };
        // Calls that began before the close may still be on their way: from here on the leader of a
        // commit and a change of keyspaces refuse, and whoever waits for work gives up.
        store.closing.store(true, Ordering::Release);
        store.progress.notify();
        // Those that are past that check are waited for.
        drop(self.keyspace_changes.lock());
        let ended = self.committer.drain(deadline_us)
            && self.scheduler.pause(deadline_us)
            && self.scheduler.join(deadline_us)
            && self.join_warm_up(deadline_us);
        if !ended {
            return Err(Error::Deadline { cause: WaitCause::Close.as_str() });
        }
        // Nobody is left who frees for readers.
        store.tables.deferred_drop.stop();
        let marked = self.mark_clean();
        store.tables.reserve.release();
        store.release_dropped_keyspaces(true);
        store.remove_discarded();
        store.keep_files_of_iterators_open();
        self.free_lock();
        // Past the deadline what is left waits in the log, which the next opening replays.
        flushed.and(marked)
    }

    fn flush_to_close(&self, deadline_us: Option<u64>) -> Result<()> {
        self.state.error_state.check_writable()?;
        let trees = self.state.all_trees();
        self.committer.seal(trees.clone(), deadline_us)?;
        self.scheduler.wait_flushed(&trees, self.committer.next_seq(), deadline_us)
    }

    /// Has log and manifest say that this is where everything ends.
    fn mark_clean(&self) -> Result<()> {
        let store = &self.state;
        store.error_state.check_writable()?;
        let (segment, bytes) = store.wal.close()?;
        // Numbers of commits that failed before a `resume` are among them: none is given twice.
        let last_seq = SeqNo(self.committer.next_seq().0.saturating_sub(1));
        store.manifest.append(&VersionEdit {
            changes: vec![
                Change::WalMark { segment, bytes },
                Change::FileNumberNext(store.files.next()),
                Change::ClockUs(store.env.database_us()),
                Change::CleanClose { last_seq },
            ],
        })
    }

    /// Releases the lock. Reads that still run and find a file removed return [`Error::Closed`] from here on. This
    /// database changes no file any more, because the next owner may be reading it.
    fn free_lock(&self) {
        if !failpoint::is_on(Failpoint::SegmentCutAfterClose) {
            self.state.wal.stop_growing();
        }
        self.state.tables.descriptors.set_closed();
        drop(self.lock.lock().take());
        self.lock_released.store(true, Ordering::Release);
    }
}
