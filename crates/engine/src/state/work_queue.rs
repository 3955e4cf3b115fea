//! Queues of trees that may need background work.

use std::collections::{BTreeSet, VecDeque};

use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, RwLock, Signal};

use crate::env::NEVER_US;
use crate::state::keyspaces::Keyspaces;
use crate::tree::Tree;

/// Kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// The tree may have a sealed memtable.
    Flush,
    /// The tree may need a compaction.
    Compaction,
}

const KINDS: [WorkKind; 2] = [WorkKind::Flush, WorkKind::Compaction];

/// Trees that may need background work. There is one queue for each kind of work.
#[derive(Debug)]
pub(crate) struct WorkQueues {
    flush: Mutex<WorkQueue>,
    compaction: Mutex<WorkQueue>,
    /// Time of the next check of all trees, in microseconds. [`NEVER_US`] if no check is scheduled.
    due_us: AtomicU64,
    /// Notified when work is queued, ends or can start.
    progress: Signal,
}

/// Periodic work of one thread. Dropping it ends the work.
#[derive(Debug)]
pub(crate) struct PeriodicWork<'a>(&'a WorkQueues);

impl Drop for PeriodicWork<'_> {
    fn drop(&mut self) {
        let is_paused = {
            let mut queue = self.0.flush.lock();
            queue.periodic -= 1;
            queue.is_paused
        };
        if is_paused {
            self.0.progress.notify();
        }
    }
}

/// Mark of a running flush that has reserved an operand store. Dropping it removes the mark.
#[derive(Debug)]
pub(crate) struct StoreFlush<'a>(&'a WorkQueues);

impl Drop for StoreFlush<'_> {
    fn drop(&mut self) {
        self.0.flush.lock().store_flushes -= 1;
    }
}

/// Trees in the order in which they were queued. A tree is in the queue at most once.
#[derive(Debug, Default)]
struct WorkQueue {
    queue: VecDeque<u32>,
    queued: BTreeSet<u32>,
    /// Trees whose flush waits until another thread releases the reservation of their operand store.
    parked: Vec<Arc<Tree>>,
    /// Number of trees on which threads currently work.
    running: usize,
    /// Number of running flushes that have reserved an operand store. Included in `running`.
    store_flushes: usize,
    /// Number of threads that currently run periodic work. 0 in the queue for compactions.
    periodic: usize,
    /// Whether the queue is paused. No work starts while it is paused.
    is_paused: bool,
}

impl WorkQueue {
    /// Returns the index of a parked tree whose operand store is no longer reserved.
    fn find_unblocked_flush(&self) -> Option<usize> {
        self.parked.iter().position(|tree| !tree.operand_store.is_reserved())
    }
}

impl WorkQueues {
    /// Creates empty queues.
    pub(crate) fn new(progress: Signal) -> WorkQueues {
        let (flush, compaction) = (Mutex::default(), Mutex::default());
        WorkQueues { flush, compaction, due_us: AtomicU64::new(NEVER_US), progress }
    }

    fn queue(&self, kind: WorkKind) -> &Mutex<WorkQueue> {
        match kind {
            WorkKind::Flush => &self.flush,
            WorkKind::Compaction => &self.compaction,
        }
    }

    /// Adds a tree to a queue. Does nothing if the queue already contains the tree.
    pub(crate) fn push(&self, kind: WorkKind, tree: u32) {
        {
            let mut queue = self.queue(kind).lock();
            if queue.queued.insert(tree) {
                queue.queue.push_back(tree);
            }
        }
        self.progress.notify();
    }

    /// Schedules a check of all trees at `due_us`. Does nothing if an earlier check is scheduled.
    pub(crate) fn schedule_tree_check(&self, due_us: u64) {
        if due_us < self.due_us.fetch_min(due_us, Ordering::AcqRel) {
            self.progress.notify();
        }
    }

    /// Returns the time of the next check of all trees, in microseconds.
    pub(crate) fn due_us(&self) -> u64 {
        self.due_us.load(Ordering::Acquire)
    }

    /// Removes the scheduled check if it is due. Returns whether the caller must perform the check.
    pub(crate) fn take_due_tree_check(&self, now_us: u64) -> bool {
        let due_us = self.due_us();
        due_us <= now_us
            && self
                .due_us
                .compare_exchange(due_us, NEVER_US, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Removes and returns the next tree of a queue. The caller must call [`WorkQueues::end_work`] when the work on
    /// this tree ends. Returns `None` if the queue is empty or paused.
    pub(crate) fn take(&self, kind: WorkKind, trees: &RwLock<Keyspaces>) -> Option<Arc<Tree>> {
        loop {
            let id = {
                let mut queue = self.queue(kind).lock();
                if queue.is_paused {
                    return None;
                }
                if let Some(at) = queue.find_unblocked_flush() {
                    queue.running += 1;
                    return Some(queue.parked.remove(at));
                }
                let id = queue.queue.pop_front()?;
                queue.queued.remove(&id);
                queue.running += 1;
                id
            };
            if let Some(tree) = trees.read().by_id(id) {
                return Some(Arc::clone(tree));
            }
            self.end_work(kind);
        }
    }

    /// Starts work that is not in a queue. Returns false if the queue is paused. Otherwise, the caller must call
    /// [`WorkQueues::end_work`].
    pub(crate) fn begin_work(&self, kind: WorkKind) -> bool {
        let mut queue = self.queue(kind).lock();
        if !queue.is_paused {
            queue.running += 1;
        }
        !queue.is_paused
    }

    /// Starts periodic work, such as a sync of the WAL. Returns `None` if the queues are paused. Only a pause waits for
    /// periodic work.
    pub(crate) fn begin_periodic_work(&self) -> Option<PeriodicWork<'_>> {
        let mut queue = self.flush.lock();
        if queue.is_paused {
            return None;
        }
        queue.periodic += 1;
        Some(PeriodicWork(self))
    }

    /// Ends the work on a tree.
    pub(crate) fn end_work(&self, kind: WorkKind) {
        self.queue(kind).lock().running -= 1;
        self.progress.notify();
    }

    /// Returns whether [`WorkQueues::take`] can return a tree.
    pub(crate) fn has_work(&self, kind: WorkKind) -> bool {
        let queue = self.queue(kind).lock();
        !queue.is_paused && (!queue.queue.is_empty() || queue.find_unblocked_flush().is_some())
    }

    /// Postpones the flush of a tree until the reservation of its operand store is released.
    pub(crate) fn postpone_flush(&self, tree: &Arc<Tree>) {
        let mut queue = self.flush.lock();
        if !queue.parked.iter().any(|parked| parked.id == tree.id) {
            queue.parked.push(Arc::clone(tree));
        }
    }

    /// Marks the flush that runs on this thread as one that has reserved an operand store. The flush may wait for the
    /// device of the store.
    pub(crate) fn begin_store_flush(&self) -> StoreFlush<'_> {
        self.flush.lock().store_flushes += 1;
        StoreFlush(self)
    }

    /// Returns whether the queue is paused.
    pub(crate) fn is_paused(&self, kind: WorkKind) -> bool {
        self.queue(kind).lock().is_paused
    }

    /// Returns true if no work is queued or running. Flushes are checked first, because a flush queues a compaction
    /// before it ends.
    pub(crate) fn is_idle(&self) -> bool {
        KINDS.into_iter().all(|kind| {
            let queue = self.queue(kind).lock();
            queue.queue.is_empty() && queue.parked.is_empty() && queue.running == 0
        })
    }

    /// Returns whether a flush is queued, postponed or running.
    pub(crate) fn has_flush(&self) -> bool {
        let queue = self.flush.lock();
        !queue.queue.is_empty() || !queue.parked.is_empty() || queue.running > 0
    }

    /// Returns whether a flush is running or can start. A postponed flush cannot start while its operand store is
    /// reserved. A running flush that has reserved an operand store does not count, because it may wait for the device
    /// of the store.
    pub(crate) fn has_unblocked_flush(&self) -> bool {
        let queue = self.flush.lock();
        !queue.queue.is_empty()
            || queue.find_unblocked_flush().is_some()
            || queue.running > queue.store_flushes
    }

    /// Pauses or resumes all queues.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        for kind in KINDS {
            self.queue(kind).lock().is_paused = is_paused;
        }
        self.progress.notify();
    }

    /// Returns true if no work is running, including periodic work.
    pub(crate) fn has_no_running_work(&self) -> bool {
        KINDS.into_iter().all(|kind| {
            let queue = self.queue(kind).lock();
            queue.running == 0 && queue.periodic == 0
        })
    }
}
