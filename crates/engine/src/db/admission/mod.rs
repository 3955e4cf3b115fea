//! Admission of a write before it queues: it waits for room in each of its trees, the throttle, memory for
//! memtables.
//!
//! Memory comes last, because the write reserves it: reserved bytes count as bytes of memtables until the
//! commit is decided. A write is admitted while memtables are below their bound, so they exceed it by
//! one batch at most, however many writes are on their way.
//!
//! It is told step by step what to wait for, so that a thread can park where a task awaits.

#[cfg(all(test, loom))]
mod models;

use lsmx_base::sync::Arc;

use crate::callback;
use crate::db::DbInner;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::event::{Event, Stall, StallBegin};
use crate::options::write::WriteOptions;
use crate::state::DbState;
use crate::state::memtable_budget::MemtableReservation;
use crate::state::work_queue::WorkKind;
use crate::tree::Tree;
use crate::write::batch::WriteBatch;

/// What a write has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Queue.
    Queue,
    /// Have the governor look, which may commit: memory is full, and perhaps nobody flushes.
    Flush,
    /// Wait until [`Admission::can_continue`]; `progress` tells when to ask.
    Wait(WaitCause),
    /// Pause for so many microseconds.
    Pause(u64),
}

/// Most times in a row that a write has the governor look for something to flush. After that nothing can
/// be flushed, and the write is admitted.
const GOVERN_TRIES_MAX: u8 = 4;

/// Where a write stands.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// At the tree of this index.
    Room(usize),
    Throttle,
    /// The committing thread itself flushes and compacts: there is no other thread to wait for.
    Inline,
    /// The governor has looked so many times since the write last waited.
    Memory {
        tries: u8,
    },
    Admitted,
}

/// A write on its way to the queue.
#[derive(Debug)]
pub(crate) struct Admission<'a, 'b> {
    core: &'a DbInner,
    trees: &'b [Arc<Tree>],
    /// What it adds to the memtables.
    bytes: u64,
    no_slowdown: bool,
    pub(crate) deadline_us: Option<u64>,
    /// Memtable bytes of the write, once it is admitted.
    pub(crate) reservation: Option<MemtableReservation<'a>>,
    stage: Stage,
    /// Whether the throttle has let it pass.
    throttled: bool,
    stalled: Option<Stalled<'a, 'b>>,
}

/// A write that stands still: told when it begins and, be it given up, when it ends.
#[derive(Debug)]
struct Stalled<'a, 'b> {
    store: &'a DbState,
    tree: &'b Tree,
    cause: WaitCause,
    start_us: u64,
}

impl<'a, 'b> Stalled<'a, 'b> {
    fn begin(store: &'a DbState, tree: &'b Tree, cause: WaitCause) -> Stalled<'a, 'b> {
        let (keyspace, start_us) = (tree.name.clone(), store.env.now_us());
        store.emit(&Event::StallBegin(StallBegin { keyspace, cause: cause.as_str() }));
        Stalled { store, tree, cause, start_us }
    }
}

impl Drop for Stalled<'_, '_> {
    fn drop(&mut self) {
        let Stalled { store, tree, cause, start_us } = self;
        let waited_us = store.env.now_us().saturating_sub(*start_us);
        let counter = match cause {
            WaitCause::MemoryFull => &tree.counters.memory_stalls,
            WaitCause::MemtablesFull => &tree.counters.memtable_stalls,
            _ => &tree.counters.run_stalls,
        };
        counter.waited(waited_us);
        let (keyspace, cause) = (tree.name.clone(), cause.as_str());
        store.emit(&Event::Stalled(Stall { keyspace, cause, waited_us }));
    }
}

impl DbInner {
    /// Waits until a write may queue. Returns its deadline and what is reserved for it.
    ///
    /// # Errors
    /// As [`Admission::step`]; [`Error::Deadline`].
    pub(crate) fn admit(
        &self,
        batch: &WriteBatch,
        by: WriteOptions,
    ) -> Result<(Option<u64>, Option<MemtableReservation<'_>>)> {
        let mut admission = self.admission(batch, by);
        self.go_through(&mut admission)?;
        Ok((admission.deadline_us, admission.reservation.take()))
    }

    fn go_through(&self, admission: &mut Admission<'_, '_>) -> Result<()> {
        let env = &self.state.env;
        loop {
            match admission.step()? {
                Step::Queue => return Ok(()),
                Step::Flush => self.flush_trigger.flush_if_due(admission.deadline_us),
                Step::Pause(us) => env.pause_us(us),
                Step::Wait(cause) => {
                    let progress = &self.state.progress;
                    let committer = &self.committer;
                    // The memory may be reserved by tasks that no thread leads for.
                    let promised = || cause == WaitCause::MemoryFull && committer.is_lead_offered();
                    let can_continue = &mut || admission.can_continue() || promised();
                    if !env.wait(cause, progress, admission.deadline_us, can_continue) {
                        return Err(admission.deadline_error());
                    }
                    committer.lead_if_offered();
                }
            }
        }
    }

    /// The way of a write to the queue; its deadline begins here.
    pub(crate) fn admission<'a, 'b>(
        &'a self,
        batch: &'b WriteBatch,
        by: WriteOptions,
    ) -> Admission<'a, 'b> {
        Admission {
            core: self,
            trees: &batch.trees,
            bytes: batch.memory_bytes(),
            // The background work that a write would wait for may be what this thread does.
            no_slowdown: by.no_slowdown || callback::has_context(),
            deadline_us: self.committer.deadline_us(by.deadline),
            stage: match self.state.env.background() {
                Background::Inline => Stage::Inline,
                _ => Stage::Room(0),
            },
            reservation: None,
            throttled: false,
            stalled: None,
        }
    }

    /// Whether memtables will shrink, or fewer bytes be reserved, without any help of the write.
    fn memory_is_on_its_way(&self) -> bool {
        self.state.work.has_flush()
            || self.flush_trigger.is_running()
            || self.state.memtables.reserved_bytes() > 0
    }
}

impl Admission<'_, '_> {
    /// What the write has to do next.
    ///
    /// # Errors
    /// [`Error::WouldWait`] if it would have to wait and must not; [`Error::Deadline`] if the throttle
    /// wants a longer pause; after a wait what has ended it: [`Error::ReadOnly`], [`Error::Closed`],
    /// [`Error::KeyspaceDropped`], or why compactions fail, where writes must wait for them.
    pub(crate) fn step(&mut self) -> Result<Step> {
        loop {
            match self.stage {
                Stage::Room(index) => {
                    let Some(tree) = self.trees.get(index) else {
                        self.go_on_to(Stage::Throttle);
                        continue;
                    };
                    if self.stalled.take().is_some() {
                        self.check_open()?;
                        tree.check_live()?;
                        if let Some(error) = find_write_obstacle(tree) {
                            self.core.state.work.push(WorkKind::Compaction, tree.id);
                            return Err(error);
                        }
                    } else if let Some(cause) = lacks_room(tree) {
                        self.stall(tree, cause)?;
                        // The answers of a custom policy may have changed since compactions last asked it.
                        if cause == WaitCause::TooManyRuns {
                            self.core.state.work.push(WorkKind::Compaction, tree.id);
                        }
                        return Ok(Step::Wait(cause));
                    }
                    self.go_on_to(Stage::Room(index + 1));
                }
                Stage::Throttle => {
                    self.stage = Stage::Memory { tries: 0 };
                    if std::mem::replace(&mut self.throttled, true) {
                        continue;
                    }
                    let (core, trees) = (self.core, self.trees);
                    let pause = core.throttle.pause_us(
                        &core.state,
                        trees,
                        self.bytes,
                        self.no_slowdown,
                        self.deadline_us,
                    )?;
                    if pause > 0 {
                        return Ok(Step::Pause(pause));
                    }
                }
                Stage::Inline => {
                    self.stage = Stage::Admitted;
                    self.check_inline()?;
                }
                Stage::Memory { tries } => {
                    let (core, trees) = (self.core, self.trees);
                    let Some(tree) = trees.first() else {
                        self.go_on_to(Stage::Admitted);
                        continue;
                    };
                    let waited = self.stalled.is_some();
                    if waited && trees.iter().any(|tree| lacks_room(tree).is_some()) {
                        self.go_on_to(Stage::Room(0));
                        continue;
                    }
                    let nothing_to_flush = tries == GOVERN_TRIES_MAX;
                    self.reservation = core.state.memtables.reserve(self.bytes, nothing_to_flush);
                    if self.reservation.is_some() {
                        self.go_on_to(Stage::Admitted);
                        continue;
                    }
                    self.stall(tree, WaitCause::MemoryFull)?;
                    self.check_open()?;
                    if tries > 0 && core.memory_is_on_its_way() {
                        self.stage = Stage::Memory { tries: 0 };
                        return Ok(Step::Wait(WaitCause::MemoryFull));
                    }
                    self.stage = Stage::Memory { tries: tries + 1 };
                    return Ok(Step::Flush);
                }
                Stage::Admitted => return Ok(Step::Queue),
            }
        }
    }

    /// Whether what [`Step::Wait`] waits for is there, or will not come.
    pub(crate) fn can_continue(&self) -> bool {
        let store = &self.core.state;
        let there = match self.stage {
            Stage::Memory { .. } => !store.memtables.is_full() || !self.core.memory_is_on_its_way(),
            Stage::Room(index) => self.trees.get(index).is_none_or(|tree| {
                lacks_room(tree).is_none()
                    || find_write_obstacle(tree).is_some()
                    || tree.is_dropped()
            }),
            Stage::Throttle | Stage::Inline | Stage::Admitted => true,
        };
        there || store.error_state.check_writable().is_err() || store.is_closing()
    }

    /// What a write is told whose deadline has passed during [`Step::Wait`].
    pub(crate) fn deadline_error(&mut self) -> Error {
        let cause = self.stalled.take().map_or(WaitCause::Throttle, |stalled| stalled.cause);
        let late = Error::Deadline { cause: cause.as_str() };
        self.check_open().err().unwrap_or(late)
    }

    fn go_on_to(&mut self, stage: Stage) {
        self.stalled = None;
        self.stage = stage;
    }

    /// Fails if a tree is at its hard stop and compactions on this thread cannot change that.
    fn check_inline(&self) -> Result<()> {
        for tree in self.trees.iter().filter(|tree| tree.must_stop()) {
            // No other thread would try again at the end of the pause.
            tree.jobs.lock().retry_at_us = 0;
            self.core.state.work.push(WorkKind::Compaction, tree.id);
            self.core.scheduler.run_inline();
            if let Some(error) = find_write_obstacle(tree) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_open(&mut self) -> Result<()> {
        let store = &self.core.state;
        let open = store.error_state.check_writable();
        let open = open.and(if store.is_closing() { Err(Error::Closed) } else { Ok(()) });
        if open.is_err() {
            // Told before the error is.
            self.stalled = None;
        }
        open
    }
}

impl<'b> Admission<'_, 'b> {
    fn stall(&mut self, tree: &'b Tree, cause: WaitCause) -> Result<()> {
        if self.stalled.is_none() {
            if self.no_slowdown {
                return Err(Error::WouldWait { cause: cause.as_str() });
            }
            self.stalled = Some(Stalled::begin(&self.core.state, tree, cause));
        }
        Ok(())
    }
}

/// Sealed memtables of one tree at which its writes wait for a flush.
const SEALED_COUNT_MAX: usize = 4;

/// What a tree needs before it takes a write.
fn lacks_room(tree: &Tree) -> Option<WaitCause> {
    if tree.view().sealed.len() >= SEALED_COUNT_MAX {
        Some(WaitCause::MemtablesFull)
    } else if tree.must_stop() {
        Some(WaitCause::TooManyRuns)
    } else {
        None
    }
}

/// Why a write must not wait for a compaction of this tree: compactions alone release runs, and they fail or
/// are blocked.
///
/// The caller requests another look at the tree, so that writes continue soon after the obstacle has ended.
pub(crate) fn find_write_obstacle(tree: &Tree) -> Option<Error> {
    match lacks_room(tree) {
        Some(WaitCause::TooManyRuns) => tree.jobs.lock().write_trouble(&tree.name),
        _ => None,
    }
}
