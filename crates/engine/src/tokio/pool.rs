//! What may block, on the runtime's blocking pool.

use std::panic::resume_unwind;

use crate::error::{Error, Result};

/// Has a thread of the pool do it. It is done to its end, whether or not anybody awaits that.
///
/// # Errors
/// What it says; [`Error::RuntimeEnded`] if it was never begun.
///
/// # Panics
/// As it does; outside of a runtime.
pub(crate) async fn on_pool<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ended = ::tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(ended_badly(error)))
}

/// What a task that did not end well leaves: its panic goes on here.
pub(crate) fn ended_badly(error: ::tokio::task::JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Error::RuntimeEnded,
    }
}
