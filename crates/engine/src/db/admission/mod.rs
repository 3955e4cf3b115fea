//! Admission of writes to the commit queue.
//!
//! A write waits for room in each of its trees, then for the throttle, then for memtable memory. Memory comes last
//! because the write reserves it, and reserved bytes count as memtable bytes until the commit is decided. A write is
//! admitted while the memtables are below their limit, so concurrent writes together exceed the limit by at most one
//! batch.
//!
//! [`Admission::next_step`] returns each required wait as a step. A thread blocks for it, and an asynchronous task
//! awaits it.

#[cfg(all(test, loom))]
mod models;

use std::mem;

use lsmx_base::sync::Arc;

use crate::callback;
use crate::db::inner::DbInner;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::event::{Event, Stall, StallBegin};
use crate::options::write::WriteOptions;
use crate::state::DbState;
use crate::state::memtable_budget::MemtableReservation;
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::write::batch::WriteBatch;

/// Number of sealed memtables at which writes to a tree wait for a flush.
const SEALED_COUNT_MAX: usize = 4;
/// Maximum number of consecutive [`AdmissionStep::Flush`] steps. If memory is then still full, nothing can be flushed, and the
/// write is admitted.
const FLUSH_ATTEMPTS_MAX: u8 = 4;

/// The next action of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionStep {
    /// Commit the batch.
    Commit,
    /// Call the flush trigger, because memory is full.
    Flush,
    /// Wait until [`Admission::can_continue`] returns true. It is checked after each notification of `progress`.
    Wait(WaitCause),
    /// Pause for a number of microseconds.
    Pause(u64),
}

/// The state of an admission.
#[derive(Clone, Copy, Debug)]
enum AdmissionStage {
    /// Checks the tree of this index for room.
    Room(usize),
    Throttle,
    /// Compacts on the committing thread, because there are no background threads.
    Inline,
    /// Reserves memory. `attempts` is the number of flush attempts since the last wait.
    Memory {
        attempts: u8,
    },
    Admitted,
}

/// A write before its commit.
#[derive(Debug)]
pub(crate) struct Admission<'a, 'b> {
    inner: &'a DbInner,
    trees: &'b [Arc<Tree>],
    /// Number of bytes that the write adds to memtables.
    bytes: u64,
    no_slowdown: bool,
    pub(crate) deadline_us: Option<u64>,
    /// Memtable bytes reserved for the admitted write.
    pub(crate) reservation: Option<MemtableReservation<'a>>,
    stage: AdmissionStage,
    /// True if the throttle was applied.
    is_throttled: bool,
    stall: Option<WriteStall<'a, 'b>>,
}

/// A stalled write. Emits [`Event::Stalled`] when dropped.
#[derive(Debug)]
struct WriteStall<'a, 'b> {
    state: &'a DbState,
    tree: &'b Tree,
    cause: WaitCause,
    start_us: u64,
}

impl Drop for WriteStall<'_, '_> {
    fn drop(&mut self) {
        let WriteStall { state, tree, cause, start_us } = self;
        let waited_us = state.env.now_us().saturating_sub(*start_us);
        tree.counters.update(|counts| counts.stalls.record(*cause, waited_us));
        let (keyspace, cause) = (tree.name(), cause.as_str());
        state.emit(&Event::Stalled(Stall { keyspace, cause, waited_us }));
    }
}

/// Waits until a write can be committed. Returns its deadline and its memory reservation.
///
/// # Errors
/// The errors of [`Admission::next_step`]; [`Error::Deadline`].
pub(crate) fn admit<'a>(
    inner: &'a DbInner,
    batch: &WriteBatch,
    options: WriteOptions,
) -> Result<(Option<u64>, Option<MemtableReservation<'a>>)> {
    let mut admission = Admission::new(inner, batch, options);
    admission.wait()?;
    Ok((admission.deadline_us, admission.reservation.take()))
}

impl<'a, 'b> Admission<'a, 'b> {
    /// Starts the admission of a write. The deadline counts from this call.
    pub(crate) fn new(
        inner: &'a DbInner,
        batch: &'b WriteBatch,
        options: WriteOptions,
    ) -> Admission<'a, 'b> {
        Admission {
            inner,
            trees: &batch.trees,
            bytes: batch.memory_bytes(),
            // A callback must not wait, because its own thread may run the required background work.
            no_slowdown: options.no_slowdown || callback::has_context(),
            deadline_us: inner.committer.deadline_us(options.deadline),
            stage: match inner.state.env.background() {
                Background::Inline => AdmissionStage::Inline,
                _ => AdmissionStage::Room(0),
            },
            reservation: None,
            is_throttled: false,
            stall: None,
        }
    }

    /// Performs all steps on the current thread.
    fn wait(&mut self) -> Result<()> {
        let (inner, env) = (self.inner, &self.inner.state.env);
        loop {
            match self.next_step()? {
                AdmissionStep::Commit => return Ok(()),
                AdmissionStep::Flush => inner.flush_trigger.flush_if_due(self.deadline_us),
                AdmissionStep::Pause(pause_us) => env.pause_us(pause_us),
                AdmissionStep::Wait(cause) => {
                    let committer = &inner.committer;
                    // Queued commits of async tasks may hold reserved memory. If no thread leads their group, this
                    // thread does.
                    let is_offered =
                        || cause == WaitCause::MemoryFull && committer.is_lead_offered();
                    let can_continue = &mut || self.can_continue() || is_offered();
                    let progress = &inner.state.progress;
                    if !env.wait(cause, progress, self.deadline_us, can_continue) {
                        return Err(self.deadline_error());
                    }
                    committer.lead_if_offered();
                }
            }
        }
    }

    /// Returns the next step.
    ///
    /// # Errors
    /// - [`Error::WouldWait`] if the write must not wait.
    /// - [`Error::Deadline`] if the throttle requires a pause beyond the deadline.
    /// - After a wait: [`Error::ReadOnly`], [`Error::Closed`], [`Error::KeyspaceDropped`], or the error of the
    ///   compactions that the write waited for.
    pub(crate) fn next_step(&mut self) -> Result<AdmissionStep> {
        loop {
            match self.stage {
                AdmissionStage::Room(index) => {
                    let Some(tree) = self.trees.get(index) else {
                        self.set_stage(AdmissionStage::Throttle);
                        continue;
                    };
                    if self.stall.take().is_some() {
                        self.check_open()?;
                        tree.check_live()?;
                        if let Some(error) = find_write_obstacle(tree) {
                            self.inner.state.work.push(WorkKind::Compaction, tree.id);
                            return Err(error);
                        }
                    } else if let Some(cause) = lacks_room(tree) {
                        self.begin_stall(tree, cause)?;
                        // Queues a compaction, because the result of a custom policy may have changed since its last
                        // call.
                        if cause == WaitCause::TooManyRuns {
                            self.inner.state.work.push(WorkKind::Compaction, tree.id);
                        }
                        return Ok(AdmissionStep::Wait(cause));
                    }
                    self.set_stage(AdmissionStage::Room(index + 1));
                }
                AdmissionStage::Throttle => {
                    self.stage = AdmissionStage::Memory { attempts: 0 };
                    if mem::replace(&mut self.is_throttled, true) {
                        continue;
                    }
                    let (inner, trees) = (self.inner, self.trees);
                    let pause_us = inner.throttle.pause_us(
                        &inner.state,
                        trees,
                        self.bytes,
                        self.no_slowdown,
                        self.deadline_us,
                    )?;
                    if pause_us > 0 {
                        return Ok(AdmissionStep::Pause(pause_us));
                    }
                }
                AdmissionStage::Inline => {
                    self.stage = AdmissionStage::Admitted;
                    self.compact_inline()?;
                }
                AdmissionStage::Memory { attempts } => {
                    let (inner, trees) = (self.inner, self.trees);
                    let Some(tree) = trees.first() else {
                        self.set_stage(AdmissionStage::Admitted);
                        continue;
                    };
                    let has_waited = self.stall.is_some();
                    if has_waited && trees.iter().any(|tree| lacks_room(tree).is_some()) {
                        self.set_stage(AdmissionStage::Room(0));
                        continue;
                    }
                    let force = attempts == FLUSH_ATTEMPTS_MAX;
                    self.reservation = inner.state.memtables.reserve(self.bytes, force);
                    if self.reservation.is_some() {
                        self.set_stage(AdmissionStage::Admitted);
                        continue;
                    }
                    self.begin_stall(tree, WaitCause::MemoryFull)?;
                    self.check_open()?;
                    if attempts > 0 && self.is_memory_expected() {
                        self.stage = AdmissionStage::Memory { attempts: 0 };
                        return Ok(AdmissionStep::Wait(WaitCause::MemoryFull));
                    }
                    self.stage = AdmissionStage::Memory { attempts: attempts + 1 };
                    return Ok(AdmissionStep::Flush);
                }
                AdmissionStage::Admitted => return Ok(AdmissionStep::Commit),
            }
        }
    }

    /// Returns true if the wait of [`AdmissionStep::Wait`] is over.
    pub(crate) fn can_continue(&self) -> bool {
        let state = &self.inner.state;
        let is_ready = match self.stage {
            AdmissionStage::Memory { .. } => {
                !state.memtables.is_full() || !self.is_memory_expected()
            }
            AdmissionStage::Room(index) => self.trees.get(index).is_none_or(|tree| {
                lacks_room(tree).is_none()
                    || find_write_obstacle(tree).is_some()
                    || tree.is_dropped()
            }),
            AdmissionStage::Throttle | AdmissionStage::Inline | AdmissionStage::Admitted => true,
        };
        is_ready || state.error_state.check_writable().is_err() || state.is_closing()
    }

    /// Ends the stall and returns the error of a write whose deadline has passed.
    pub(crate) fn deadline_error(&mut self) -> Error {
        let cause = self.stall.take().map_or(WaitCause::Throttle, |stall| stall.cause);
        let late = Error::Deadline { cause: cause.as_str() };
        self.check_open().err().unwrap_or(late)
    }

    /// Returns true if flushes or commits in progress will release memtable memory.
    fn is_memory_expected(&self) -> bool {
        let DbInner { state, flush_trigger, .. } = self.inner;
        state.work.has_flush()
            || flush_trigger.is_flush_running()
            || state.memtables.reserved_bytes() > 0
    }

    fn set_stage(&mut self, stage: AdmissionStage) {
        self.stall = None;
        self.stage = stage;
    }

    fn begin_stall(&mut self, tree: &'b Tree, cause: WaitCause) -> Result<()> {
        if self.stall.is_none() {
            if self.no_slowdown {
                return Err(Error::WouldWait { cause: cause.as_str() });
            }
            let state = &self.inner.state;
            let (keyspace, start_us) = (tree.name(), state.env.now_us());
            state.emit(&Event::StallBegin(StallBegin { keyspace, cause: cause.as_str() }));
            self.stall = Some(WriteStall { state, tree, cause, start_us });
        }
        Ok(())
    }

    /// Runs the compactions of trees at their hard stop. Fails if a tree remains there.
    fn compact_inline(&self) -> Result<()> {
        for tree in self.trees.iter().filter(|tree| tree.is_write_stopped()) {
            // Ends the pause after a failed compaction, because no other thread would retry the compaction later.
            tree.jobs.lock().retry_at_us = 0;
            self.inner.state.work.push(WorkKind::Compaction, tree.id);
            self.inner.scheduler.run_inline();
            if let Some(error) = find_write_obstacle(tree) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_open(&mut self) -> Result<()> {
        let state = &self.inner.state;
        let open = state.error_state.check_writable();
        let open = open.and(if state.is_closing() { Err(Error::Closed) } else { Ok(()) });
        if open.is_err() {
            // The listener receives the end of the stall before the caller receives the error.
            self.stall = None;
        }
        open
    }
}

/// Returns the reason why writes to a tree must wait.
fn lacks_room(tree: &Tree) -> Option<WaitCause> {
    if tree.super_version().sealed.len() >= SEALED_COUNT_MAX {
        Some(WaitCause::MemtablesFull)
    } else if tree.is_ingest_waiting() {
        Some(WaitCause::Ingest)
    } else if tree.is_write_stopped() {
        Some(WaitCause::TooManyRuns)
    } else {
        None
    }
}

/// Returns the error of a write that must not wait for a compaction of this tree, because compactions fail or are
/// blocked.
///
/// The caller queues the tree again, so that writes continue soon after the obstacle is removed.
pub(crate) fn find_write_obstacle(tree: &Tree) -> Option<Error> {
    match lacks_room(tree) {
        Some(WaitCause::TooManyRuns) => tree.jobs.lock().write_error(&tree.name()),
        _ => None,
    }
}
