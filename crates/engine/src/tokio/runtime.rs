//! Runs calls on the blocking pool of the runtime, and lets async tasks wait for conditions and deadlines.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use ::tokio::runtime::Handle;
use ::tokio::task::{JoinError, JoinHandle};
use ::tokio::time::{Sleep, sleep};
use lsmx_base::sync::{Arc, Mutex, Signal};

use crate::env::{Env, WaitCause};
use crate::error::{Error, Result};

/// Starts a call on the blocking pool of `runtime`. The output is `None` only if the call was not started.
///
/// If the pool has no thread and the operating system creates none, the call is returned. `None` is returned if a thread
/// of the pool has started the call nevertheless.
pub(crate) fn spawn_on_pool<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    runtime: &Handle,
    call: F,
) -> Result<JoinHandle<Option<T>>, Option<F>> {
    let call = Arc::new(Mutex::new(Some(call)));
    let shared = Arc::clone(&call);
    let run = move || {
        let call = shared.lock().take();
        call.map(|call| call())
    };
    // `spawn_blocking` panics if the operating system creates no thread. The runtime may still run the task later.
    let spawned = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(run)));
    spawned.map_err(|_| call.lock().take())
}

/// Drops a value on the blocking pool of the current runtime. If this is not possible, drops it on this thread.
pub(crate) fn drop_on_pool(value: impl Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(spawn_on_pool(&runtime, move || drop(value))),
        Err(_) => drop(value),
    }
}

/// Calls `call` on the blocking pool. The call completes even if the future is dropped.
///
/// # Errors
/// - The error of `call`.
/// - [`Error::RuntimeEnded`] if the runtime is shut down before the call starts.
/// - [`Error::NoThread`] if the operating system creates no thread for the pool.
///
/// # Panics
/// Panics if `call` panics, or if the function is called outside of a runtime.
pub(crate) async fn run_on_pool<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match spawn_on_pool(&Handle::current(), call) {
        Ok(task) => task.await.map_err(join_error)?.unwrap_or(Err(Error::NoThread)),
        Err(_) => Err(Error::NoThread),
    }
}

/// Calls `call` like [`run_on_pool`], but returns [`Error::Deadline`] with `cause` at the deadline. The call completes even
/// then.
///
/// # Errors
/// The errors of [`run_on_pool`], and [`Error::Deadline`].
pub(crate) async fn run_on_pool_until<T: Send + 'static>(
    env: &Env,
    deadline_us: Option<u64>,
    cause: WaitCause,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let mut call = pin!(run_on_pool(call));
    let mut timer = DeadlineTimer::new(env, deadline_us);
    poll_fn(|task| {
        let result = call.as_mut().poll(task);
        if result.is_pending() && timer.poll_deadline_passed(task) {
            return Poll::Ready(Err(Error::Deadline { cause: cause.as_str() }));
        }
        result
    })
    .await
}

/// Returns the error for a task that was cancelled. If the task panicked, resumes the panic.
pub(crate) fn join_error(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Error::RuntimeEnded,
    }
}

/// Timer for a deadline. `None` if there is no deadline, or after the deadline has passed.
#[derive(Debug)]
pub(crate) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Creates a timer that ends when the clock of `env` reaches `deadline_us`.
    pub(crate) fn new(env: &Env, deadline_us: Option<u64>) -> DeadlineTimer {
        DeadlineTimer(deadline_us.map(|deadline_us| {
            let left_us = deadline_us.saturating_sub(env.now_us());
            Box::pin(sleep(Duration::from_micros(left_us)))
        }))
    }

    /// Returns true once, when the deadline has passed. Before that, registers the task to be woken at the deadline.
    pub(crate) fn poll_deadline_passed(&mut self, task: &mut Context<'_>) -> bool {
        let passed = self.0.as_mut().is_some_and(|sleep| sleep.as_mut().poll(task).is_ready());
        if passed {
            self.0 = None;
        }
        passed
    }
}

/// Waits until `condition` is true, like [`Env::wait`]. Returns false if the deadline passes first.
pub(crate) async fn wait_until(
    env: &Env,
    signal: &Signal,
    deadline_us: Option<u64>,
    mut condition: impl FnMut() -> bool,
) -> bool {
    let waiter = signal.task_waiter();
    let mut timer = DeadlineTimer::new(env, deadline_us);
    poll_fn(|task| {
        loop {
            let generation = signal.generation();
            if condition() {
                return Poll::Ready(true);
            }
            if timer.poll_deadline_passed(task) {
                return Poll::Ready(false);
            }
            // The registration fails if the signal was notified after `generation` was read.
            if waiter.register(generation, task.waker()) {
                return Poll::Pending;
            }
        }
    })
    .await
}
