//! What a write waits for before it queues: memory for memtables, room in each of its trees, the
//! throttle.
//!
//! It is told step by step what to wait for, so that a thread can park where a task awaits.

#[cfg(all(test, loom))]
mod models;

use crate::db::Core;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::event::{Event, Stall, StallBegin};
use crate::keyspace::Tree;
use crate::store::Store;
use crate::sync::Arc;
use crate::write::options::WriteOptions;

/// What a write has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Queue.
    Queue,
    /// Have the governor look, which may commit: memory is full, and perhaps nobody flushes.
    Govern,
    /// Wait until [`Admission::may_go_on`]; `progress` tells when to ask.
    Wait(WaitCause),
    /// Pause for so many microseconds.
    Pause(u64),
}

/// Where a write stands.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Memory {
        governed: bool,
    },
    /// At the tree of this index.
    Room(usize),
    Throttle,
    /// The committing thread itself flushes and compacts: there is no other thread to wait for.
    Inline,
    Admitted,
}

/// A write on its way to the queue.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    core: &'a Core,
    trees: &'a [Arc<Tree>],
    /// What it adds to the memtables.
    bytes: u64,
    no_slowdown: bool,
    pub(crate) deadline_us: Option<u64>,
    stage: Stage,
    stalled: Option<Stalled<'a>>,
}

/// A write that stands still: told when it begins and, be it given up, when it ends.
#[derive(Debug)]
struct Stalled<'a> {
    store: &'a Store,
    tree: &'a Tree,
    cause: WaitCause,
    start_us: u64,
}

impl<'a> Stalled<'a> {
    fn begin(store: &'a Store, tree: &'a Tree, cause: WaitCause) -> Stalled<'a> {
        let (keyspace, start_us) = (tree.name.clone(), store.env.now_us());
        store.tell(&Event::StallBegin(StallBegin { keyspace, cause: cause.as_str() }));
        Stalled { store, tree, cause, start_us }
    }
}

impl Drop for Stalled<'_> {
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
        store.tell(&Event::Stalled(Stall { keyspace, cause, waited_us }));
    }
}

impl Core {
    /// Waits until a write may queue; returns its deadline.
    ///
    /// # Errors
    /// As [`Admission::step`]; [`Error::Deadline`].
    pub(super) fn admit(
        &self,
        trees: &[Arc<Tree>],
        bytes: u64,
        by: WriteOptions,
    ) -> Result<Option<u64>> {
        self.go_through(self.admission(trees, bytes, by))
    }

    fn go_through(&self, mut admission: Admission<'_>) -> Result<Option<u64>> {
        let env = &self.store.env;
        loop {
            match admission.step()? {
                Step::Queue => return Ok(admission.deadline_us),
                Step::Govern => self.governor.govern_if_due(),
                Step::Pause(us) => env.pause_us(us),
                Step::Wait(cause) => {
                    let progress = &self.store.progress;
                    let may_go_on = &mut || admission.may_go_on();
                    if !env.wait(cause, progress, admission.deadline_us, may_go_on) {
                        return Err(admission.give_up());
                    }
                }
            }
        }
    }

    /// The way of a write to the queue; its deadline begins here.
    pub(crate) fn admission<'a>(
        &'a self,
        trees: &'a [Arc<Tree>],
        bytes: u64,
        by: WriteOptions,
    ) -> Admission<'a> {
        Admission {
            core: self,
            trees,
            bytes,
            no_slowdown: by.no_slowdown,
            deadline_us: self.committer.deadline_us(by.deadline),
            stage: match self.store.env.background() {
                Background::Inline => Stage::Inline,
                _ => Stage::Memory { governed: false },
            },
            stalled: None,
        }
    }

    /// Whether all memtables together are at their bound. What readers still hold of memtables that
    /// are flushed does not count: a writer may be that reader.
    fn memory_is_full(&self) -> bool {
        self.store.memtable_bytes() >= self.memory.memtables
    }
}

impl Admission<'_> {
    /// What the write has to do next.
    ///
    /// # Errors
    /// [`Error::WouldWait`] if it would have to wait and must not; [`Error::Deadline`] if the throttle
    /// wants a longer pause; after a wait what has ended it: [`Error::ReadOnly`], [`Error::Closed`],
    /// [`Error::KeyspaceDropped`], or why compactions fail, where writes must wait for them.
    pub(crate) fn step(&mut self) -> Result<Step> {
        loop {
            match self.stage {
                Stage::Memory { governed } => {
                    let Some(tree) = self.trees.first().filter(|_| self.core.memory_is_full())
                    else {
                        self.go_on_to(Stage::Room(0));
                        continue;
                    };
                    self.stall(tree, WaitCause::MemoryFull)?;
                    self.check_open()?;
                    self.stage = Stage::Memory { governed: !governed };
                    if !governed {
                        return Ok(Step::Govern);
                    }
                    if self.core.store.is_flushing() {
                        return Ok(Step::Wait(WaitCause::MemoryFull));
                    }
                    // Nothing is left to flush: what fills the memory is not in a memtable of ours
                    // to wait for, such as commits that are just being inserted.
                    self.go_on_to(Stage::Room(0));
                }
                Stage::Room(index) => {
                    let Some(tree) = self.trees.get(index) else {
                        self.go_on_to(Stage::Throttle);
                        continue;
                    };
                    if self.stalled.take().is_some() {
                        self.check_open()?;
                        tree.check_live()?;
                        if let Some(error) = hopeless(tree) {
                            return Err(error);
                        }
                    } else if let Some(cause) = lacks_room(tree) {
                        self.stall(tree, cause)?;
                        return Ok(Step::Wait(cause));
                    }
                    self.go_on_to(Stage::Room(index + 1));
                }
                Stage::Throttle => {
                    self.stage = Stage::Admitted;
                    let (core, trees) = (self.core, self.trees);
                    let pause = core.throttle.pause_us(
                        &core.store,
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
                Stage::Admitted => return Ok(Step::Queue),
            }
        }
    }

    /// Whether what [`Step::Wait`] waits for is there, or will not come.
    pub(crate) fn may_go_on(&self) -> bool {
        let store = &self.core.store;
        let there = match self.stage {
            Stage::Memory { .. } => !self.core.memory_is_full() || !store.is_flushing(),
            Stage::Room(index) => self.trees.get(index).is_none_or(|tree| {
                lacks_room(tree).is_none() || hopeless(tree).is_some() || tree.is_dropped()
            }),
            Stage::Throttle | Stage::Inline | Stage::Admitted => true,
        };
        there || store.health.check().is_err() || store.is_closing()
    }

    /// What a write is told whose deadline has passed during [`Step::Wait`].
    pub(crate) fn give_up(mut self) -> Error {
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
            self.core.runner.run_inline();
            if let Some(error) = hopeless(tree) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_open(&mut self) -> Result<()> {
        let store = &self.core.store;
        let open = store.health.check();
        let open = open.and(if store.is_closing() { Err(Error::Closed) } else { Ok(()) });
        if open.is_err() {
            // Told before the error is.
            self.stalled = None;
        }
        open
    }
}

impl<'a> Admission<'a> {
    fn stall(&mut self, tree: &'a Tree, cause: WaitCause) -> Result<()> {
        if self.stalled.is_none() {
            if self.no_slowdown {
                return Err(Error::WouldWait { cause: cause.as_str() });
            }
            self.stalled = Some(Stalled::begin(&self.core.store, tree, cause));
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
pub(super) fn hopeless(tree: &Tree) -> Option<Error> {
    match lacks_room(tree) {
        Some(WaitCause::TooManyRuns) => tree.jobs.lock().write_trouble(),
        _ => None,
    }
}
