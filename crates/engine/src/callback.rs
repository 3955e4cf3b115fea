//! User code that the engine runs: listeners, merge operators, policies, operand stores.
//!
//! A call that waits for background work never returns on a thread that this work needs. So each thread knows
//! whether it belongs to the engine, or runs a callback of it at the moment: such calls fail there at once,
//! writes do not wait for background work, and the drop of the last handle closes on another thread.

use std::cell::Cell;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::thread_local;

thread_local! {
    static CONTEXT: Cell<Option<Context>> = const { Cell::new(None) };
}

thread_local! {
    /// How many scopes hold events back on this thread.
    static HOLDS: Cell<usize> = const { Cell::new(0) };
}

/// Where a thread is that must not wait for background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// A thread of the engine. Compaction policies and operand stores run here, among others.
    EngineThread,
    /// [`EventListener::on_event`](crate::EventListener::on_event).
    Listener,
    /// A method of a [`CompactionPolicy`](lsmx_compaction::CompactionPolicy).
    CompactionPolicy,
    /// A method of a [`MergeOperator`](crate::merge_operator::MergeOperator).
    MergeOperator,
}

impl Context {
    fn as_str(self) -> &'static str {
        match self {
            Context::EngineThread => "a thread of the engine",
            Context::Listener => "an event listener",
            Context::CompactionPolicy => "a compaction policy",
            Context::MergeOperator => "a merge operator",
        }
    }
}

/// Marks the calling thread until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    outer: Option<Context>,
}

/// Marks the calling thread as being in this context.
pub(crate) fn enter(context: Context) -> Entered {
    // Without thread-locals the thread is ending, and no mark is needed.
    let outer = CONTEXT.try_with(|current| current.replace(Some(context))).unwrap_or_default();
    Entered { outer }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = CONTEXT.try_with(|current| current.set(self.outer));
    }
}

fn current() -> Option<Context> {
    CONTEXT
        .try_with(Cell::get)
        .unwrap_or_default()
        .filter(|_| !failpoint::is_on(Failpoint::ReentryUnchecked))
}

/// Whether the calling thread must not wait for background work.
pub(crate) fn is_inside() -> bool {
    current().is_some()
}

/// The context of the calling thread, such as `an event listener`, if it must not wait for background work.
pub(crate) fn context() -> Option<&'static str> {
    current().map(Context::as_str)
}

/// Begins a scope in which the calling thread delivers no events.
pub(crate) fn hold_events() {
    let _ = HOLDS.try_with(|holds| holds.set(holds.get() + 1));
}

/// Ends such a scope; returns whether it was the outermost one.
pub(crate) fn release_events() -> bool {
    HOLDS
        .try_with(|holds| {
            holds.set(holds.get().saturating_sub(1));
            holds.get() == 0
        })
        .unwrap_or(true)
}

/// Whether the calling thread delivers no events now.
pub(crate) fn holds_events() -> bool {
    HOLDS.try_with(Cell::get).unwrap_or(0) > 0
}
