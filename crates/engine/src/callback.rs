//! Context of threads that belong to the engine or run callbacks: listeners, merge operators, compaction
//! filters, compaction policies and operand stores.
//!
//! If one of these threads waited for background work, the work might need the same thread, and neither could continue.
//! Each of these threads therefore records its context. On a thread with a context, calls that wait for background work
//! fail immediately, and writes do not wait for it. If the last handle is dropped on a thread with a context, another
//! thread closes the database.

use std::any::Any;
use std::cell::Cell;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::thread_local;

thread_local! {
    static CONTEXT: Cell<Option<CallbackContext>> = const { Cell::new(None) };
}

thread_local! {
    /// Number of scopes that defer events on this thread.
    static DEFER_SCOPES: Cell<usize> = const { Cell::new(0) };
}

/// Context of a thread that must not wait for background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallbackContext {
    /// A thread of the engine. It runs compaction policies and operand stores, among others.
    EngineThread,
    /// [`EventListener::on_event`](crate::EventListener::on_event).
    Listener,
    /// A method of a [`CompactionPolicy`](lsmx_compaction::CompactionPolicy).
    CompactionPolicy,
    /// A method of a [`MergeOperator`](crate::merge_operator::MergeOperator).
    MergeOperator,
    /// A method of a [`CompactionFilter`](crate::compaction_filter::CompactionFilter).
    CompactionFilter,
}

impl CallbackContext {
    fn as_str(self) -> &'static str {
        match self {
            CallbackContext::EngineThread => "a thread of the engine",
            CallbackContext::Listener => "an event listener",
            CallbackContext::CompactionPolicy => "a compaction policy",
            CallbackContext::MergeOperator => "a merge operator",
            CallbackContext::CompactionFilter => "a compaction filter",
        }
    }
}

/// Restores the previous context of the current thread when it is dropped.
#[derive(Debug)]
pub(crate) struct CallbackContextGuard {
    outer: Option<CallbackContext>,
}

/// Sets the context of the current thread until the guard is dropped.
pub(crate) fn enter(context: CallbackContext) -> CallbackContextGuard {
    // If the thread locals are destroyed, the thread is ending and makes no more calls.
    let outer = CONTEXT.try_with(|current| current.replace(Some(context))).unwrap_or_default();
    CallbackContextGuard { outer }
}

impl Drop for CallbackContextGuard {
    fn drop(&mut self) {
        let _ = CONTEXT.try_with(|current| current.set(self.outer));
    }
}

fn current_context() -> Option<CallbackContext> {
    CONTEXT
        .try_with(Cell::get)
        .unwrap_or_default()
        .filter(|_| !failpoint::is_on(Failpoint::ReentryUnchecked))
}

/// Returns true if the current thread has a context, so that it must not wait for background work.
pub(crate) fn has_context() -> bool {
    current_context().is_some()
}

/// Returns the name of the current thread's context, such as `an event listener`. Returns `None` if the
/// thread may wait for background work.
pub(crate) fn context_name() -> Option<&'static str> {
    current_context().map(CallbackContext::as_str)
}

/// Starts a scope in which the current thread delivers no events.
pub(crate) fn enter_defer_scope() {
    let _ = DEFER_SCOPES.try_with(|scopes| scopes.set(scopes.get() + 1));
}

/// Ends the innermost scope of [`enter_defer_scope`]. Returns true if no scope remains.
pub(crate) fn leave_defer_scope() -> bool {
    DEFER_SCOPES
        .try_with(|scopes| {
            scopes.set(scopes.get().saturating_sub(1));
            scopes.get() == 0
        })
        .unwrap_or(true)
}

/// Returns true if the current thread is in a scope of [`enter_defer_scope`].
pub(crate) fn is_deferring_events() -> bool {
    DEFER_SCOPES.try_with(Cell::get).unwrap_or(0) > 0
}

/// Returns the message of a caught panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
