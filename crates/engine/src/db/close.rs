//! Closing: flush, end background work, mark the log, free the lock.

use std::time::Duration;

use crate::db::Core;
use crate::env::WaitCause;
use crate::error::Result;
use crate::format::edit::{Change, Edit};
use crate::sync::Ordering;

impl Core {
    /// Closes once; later calls wait until that is done.
    pub(super) fn close(&self, deadline: Option<Duration>) -> Result<()> {
        let store = &self.store;
        if self.closed.swap(true, Ordering::AcqRel) {
            // Whoever returns from here finds the lock free.
            store.env.wait(WaitCause::Close, &store.progress, None, &mut || {
                self.lock_freed.load(Ordering::Acquire)
            });
            return Ok(());
        }
        if self.read_only {
            self.free_lock();
            return Ok(());
        }
        let deadline_us = self.committer.deadline_us(deadline);
        let flushed = store.health.check().and_then(|()| {
            let trees = store.all_trees();
            self.committer.seal(trees.clone())?;
            self.runner.wait_flushed(&trees, self.committer.seq_next(), deadline_us)
        });
        // Calls that began before the close may still be on their way: from here on the leader of a
        // commit, a change of keyspaces and a resumption refuse, and whoever waits for work gives up.
        store.closing.store(true, Ordering::Release);
        store.progress.notify();
        // Those that are past that check are waited for. Whoever takes a turn later sees the flag.
        drop(self.turn_to_close(WaitCause::Close, None));
        drop(self.creating.lock());
        self.committer.drain(None);
        self.runner.pause();
        self.runner.join();
        let marked = store.health.check().and_then(|()| {
            let (segment, bytes) = store.wal.close_mark()?;
            let last_seq = store.sequence.published();
            store.manifest.append(&Edit {
                changes: vec![
                    Change::WalMark { segment, bytes },
                    Change::FileNumberNext(store.files.next()),
                    Change::ClockUs(store.env.now_us()),
                    Change::CleanClose { last_seq },
                ],
            })
        });
        store.release_dropped(true);
        store.remove_discarded();
        self.free_lock();
        // Past the deadline what is left waits in the log, which the next opening replays.
        flushed.and(marked)
    }
    /// Lets the next owner in, and those go who wait for the end of the close.
    fn free_lock(&self) {
        drop(self.lock.lock().take());
        self.lock_freed.store(true, Ordering::Release);
        self.store.progress.notify();
    }
}
