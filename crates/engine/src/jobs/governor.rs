//! The governor of log and memory: which keyspace is flushed when all of them together hold too
//! much, and what becomes of a database that nobody writes to.

use std::collections::HashMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

use crate::error::Result;
use crate::state::{DbState, Work};
use crate::tree::{NEVER, Tree};
use crate::write::commit::Committer;

/// Time between two looks at every tree, in microseconds.
const LOOK_US: u64 = 60_000_000;
/// Shortest time between two looks, however soon memtables count as idle.
const LOOK_US_MIN: u64 = 10_000;

/// A memtable is flushed early only if the closed segments that it pins are larger than this.
const PINNED_BYTES_MIN: u64 = 16 << 20;
/// And only if so many times its own bytes were written to the log since.
const PINNED_TIMES: u64 = 16;
/// Bytes of log between two looks for such memtables.
const PINNED_LOOK_BYTES: u64 = PINNED_BYTES_MIN / 4;

/// Bounds that the governor keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GovernorLimits {
    /// Bytes of log past which the keyspace that holds the oldest segment is flushed.
    pub(crate) wal_bytes: u64,
    /// Bytes of all memtables past which the largest is flushed.
    pub(crate) memtable_bytes: u64,
    /// A memtable that nothing was written to for so long is flushed.
    pub(crate) memtable_idle_us: Option<u64>,
}

/// Decides what is flushed before its memtable is full, and has every tree looked at now and then.
#[derive(Debug)]
pub(crate) struct Governor {
    store: Arc<DbState>,
    committer: Arc<Committer>,
    limits: GovernorLimits,
    /// One at a time.
    governing: AtomicBool,
    /// When every tree is looked at next.
    next_look_us: AtomicU64,
    /// How many bytes the log has been given when pinning memtables are looked for next.
    next_pinned_look: AtomicU64,
    /// Active memtables as the last looks saw them. Guards nothing else.
    seen: Mutex<HashMap<u32, Seen>>,
}

/// A memtable that stays as it is.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first_seq: SeqNo,
    bytes: u64,
    since_us: u64,
}

impl Governor {
    /// A governor whose first look is one interval away.
    pub(crate) fn new(
        store: Arc<DbState>,
        committer: Arc<Committer>,
        limits: GovernorLimits,
    ) -> Governor {
        let governor = Governor {
            committer,
            limits,
            governing: AtomicBool::new(false),
            next_look_us: AtomicU64::new(0),
            next_pinned_look: AtomicU64::new(0),
            seen: Mutex::default(),
            store,
        };
        let first = governor.store.env.now_us().saturating_add(governor.look_us());
        governor.next_look_us.store(first, Ordering::Relaxed);
        governor
    }

    /// When every tree is looked at next, or one in which time alone makes something due.
    pub(crate) fn next_look_us(&self) -> u64 {
        let env = &self.store.env;
        // Converts a time of the database clock to the scheduling clock.
        let left_us = self.store.due_us().saturating_sub(env.database_us());
        let due_us = env.now_us().saturating_add(left_us);
        self.next_look_us.load(Ordering::Relaxed).min(due_us)
    }

    /// Time between two looks: short enough to see that a memtable has become idle.
    fn look_us(&self) -> u64 {
        let half = self.limits.memtable_idle_us.map_or(LOOK_US, |idle_us| idle_us.div_ceil(2));
        half.clamp(LOOK_US_MIN, LOOK_US)
    }

    /// Whether the log or the memtables have grown past their share and no flush is under way, or it is time to
    /// look for small memtables that pin much of the log.
    pub(crate) fn is_due(&self) -> bool {
        let store = &self.store;
        let log = store.wal.live_bytes() > self.limits.wal_bytes;
        let memory = store.memtable_bytes() > self.limits.memtable_bytes;
        // A flush frees both, unless it waits for an operand store.
        ((log || memory) && !store.is_flush_under_way()) || self.is_pinned_look_due()
    }

    fn is_pinned_look_due(&self) -> bool {
        let wal = &self.store.wal;
        wal.live_bytes() > PINNED_BYTES_MIN
            && wal.written_bytes() >= self.next_pinned_look.load(Ordering::Relaxed)
            && !failpoint::is_on(Failpoint::IdleMemtablePinsLog)
    }

    /// Trees whose memtable is small for the log that it pins.
    ///
    /// A memtable pins the segments from that of its first write on. The current segment stays in any case, so
    /// only closed ones count. How much was written since its first write is known to a segment: that of the
    /// first write does not count.
    fn pinning_trees(&self) -> Vec<Arc<Tree>> {
        let store = &self.store;
        let next = store.wal.written_bytes().saturating_add(PINNED_LOOK_BYTES);
        self.next_pinned_look.store(next, Ordering::Relaxed);
        let segments = store.wal.segments();
        let pins = |tree: &Arc<Tree>| {
            let view = tree.view();
            let Some(first) = view.first_unflushed() else { return false };
            let pinned = segments.iter().filter(|it| it.closed && it.last_seq >= first);
            let since = segments.iter().filter(|it| it.first_seq > first);
            // A sealed memtable is flushed anyway.
            view.sealed.is_empty()
                && pinned.map(|it| it.bytes).sum::<u64>() > PINNED_BYTES_MIN
                && since.map(|it| it.bytes).sum::<u64>()
                    > view.active.bytes().saturating_mul(PINNED_TIMES)
        };
        store.all_trees().into_iter().filter(pins).collect()
    }

    /// [`Governor::govern`] if [`Governor::is_due`]. Waits for other commits until the deadline.
    pub(crate) fn govern_if_due(&self, deadline_us: Option<u64>) {
        if self.is_due() && !self.governing.swap(true, Ordering::AcqRel) {
            // A failure has made the database read-only, and the next write fails with it. After a deadline
            // the next write looks again.
            let _ = self.govern(deadline_us);
            self.governing.store(false, Ordering::Release);
            // A write that waits for memory may have nothing left to wait for.
            self.store.progress.notify();
        }
    }

    /// Whether a thread is about to have something flushed.
    pub(crate) fn is_governing(&self) -> bool {
        self.governing.load(Ordering::Acquire)
    }

    /// Flushes small memtables that pin much of the log; else, if log or memtables have grown past their share, the
    /// keyspace that holds the oldest segment, or the one with the largest memtable.
    fn govern(&self, deadline_us: Option<u64>) -> Result<()> {
        let store = &self.store;
        if self.is_pinned_look_due() {
            let pinning = self.pinning_trees();
            if !pinning.is_empty() {
                return self.committer.seal(pinning, deadline_us);
            }
        }
        let log = store.wal.live_bytes() > self.limits.wal_bytes;
        let memory = store.memtable_bytes() > self.limits.memtable_bytes;
        if !(log || memory) || store.is_flush_under_way() {
            return Ok(());
        }
        let trees = store.all_trees();
        let chosen = if log {
            let oldest = |tree: &&Arc<Tree>| tree.view().first_unflushed();
            trees.iter().filter(|tree| oldest(tree).is_some()).min_by_key(oldest)
        } else {
            // The flush of a sealed memtable is due already, or waits for the operand store of its tree.
            let without_sealed = trees.iter().filter(|tree| tree.view().sealed.is_empty());
            without_sealed.max_by_key(|tree| tree.view().active.bytes())
        };
        let Some(tree) = chosen else { return Ok(()) };
        // If it has a sealed memtable already, its flush is on the way.
        if tree.view().sealed.is_empty() {
            self.committer.seal(vec![Arc::clone(tree)], deadline_us)?;
        }
        Ok(())
    }

    /// Looks at every tree if it is time to, so that an untouched one settles too: its policy is
    /// asked again, for what it wants may depend on time and on snapshots that have gone; a memtable
    /// that is idle, or that keeps too much of the log, is flushed.
    pub(crate) fn look_if_due(&self) {
        let store = &self.store;
        let now_us = store.env.now_us();
        self.look_at_due(store.env.database_us());
        let due_us = self.next_look_us.load(Ordering::Relaxed);
        if now_us < due_us {
            return;
        }
        let next_us = now_us.saturating_add(self.look_us());
        let turn = &self.next_look_us;
        if turn.compare_exchange(due_us, next_us, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        if store.health.check().is_err() || store.is_closing() {
            return;
        }
        let trees = store.all_trees();
        for tree in &trees {
            let view = tree.view();
            if !view.version.runs().is_empty() || view.operands.is_some() {
                store.make_ready(Work::Compaction, tree.id);
            }
        }
        let idle = self.idle_trees(&trees, now_us);
        if !idle.is_empty() {
            // A failure has made the database read-only; the next write is told.
            let _ = self.committer.seal(idle, None);
        }
        self.govern_if_due(None);
    }

    /// Looks at the trees in which time alone has made something due: compactions, and flushes of
    /// memtables whose oldest tombstone may not stay there.
    fn look_at_due(&self, now_us: u64) {
        let store = &self.store;
        // While the database is read-only nothing can be done; a resumption looks at every tree.
        if !store.take_due(now_us) || store.health.check().is_err() || store.is_closing() {
            return;
        }
        let (mut full, mut next_us) = (Vec::new(), NEVER);
        for tree in store.all_trees() {
            let (compaction_us, memtable_us) = tree.take_due(now_us);
            if compaction_us <= now_us {
                store.make_ready(Work::Compaction, tree.id);
            } else {
                next_us = next_us.min(compaction_us);
            }
            if memtable_us <= now_us {
                full.push(tree);
            } else {
                next_us = next_us.min(memtable_us);
            }
        }
        store.look_not_after(next_us);
        if !full.is_empty() {
            // A failure has made the database read-only; the next write is told.
            let _ = self.committer.seal(full, None);
        }
    }

    /// Trees whose active memtable has something in it and was not written to for long.
    fn idle_trees(&self, trees: &[Arc<Tree>], now_us: u64) -> Vec<Arc<Tree>> {
        let Some(idle_us) = self.limits.memtable_idle_us else { return Vec::new() };
        let mut seen = self.seen.lock();
        let mut before = std::mem::take(&mut *seen);
        let mut idle = Vec::new();
        for tree in trees {
            let (first_seq, bytes) = {
                let view = tree.view();
                (view.active.first_seq(), view.active.bytes())
            };
            if bytes == 0 {
                continue;
            }
            let same = |old: &Seen| old.first_seq == first_seq && old.bytes == bytes;
            let since_us = before.remove(&tree.id).filter(same).map_or(now_us, |old| old.since_us);
            if now_us.saturating_sub(since_us) >= idle_us {
                idle.push(Arc::clone(tree));
            } else {
                seen.insert(tree.id, Seen { first_seq, bytes, since_us });
            }
        }
        idle
    }
}
