//! Waiting for what threads wait for, without a thread.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::tokio::time::{Sleep, sleep};

use lsmx_base::sync::Signal;

use crate::env::Env;

/// The end of somebody's patience.
#[derive(Debug)]
pub(crate) struct Patience(Option<Pin<Box<Sleep>>>);

impl Patience {
    /// Ends when the clock of `env` stands at `deadline_us`; without one never.
    pub(crate) fn until(env: &Env, deadline_us: Option<u64>) -> Patience {
        Patience(deadline_us.map(|deadline_us| {
            let left = deadline_us.saturating_sub(env.now_us());
            Box::pin(sleep(Duration::from_micros(left)))
        }))
    }

    /// Whether it has ended; if not, the task is woken when it does. Tells of the end once.
    pub(crate) fn has_ended(&mut self, task: &mut Context<'_>) -> bool {
        let ended = self.0.as_mut().is_some_and(|sleep| sleep.as_mut().poll(task).is_ready());
        if ended {
            self.0 = None;
        }
        ended
    }
}

/// As [`Env::wait`]: waits until `condition` holds, and returns true; or until the deadline has passed,
/// and returns false.
pub(crate) async fn wait(
    env: &Env,
    signal: &Signal,
    deadline_us: Option<u64>,
    mut condition: impl FnMut() -> bool,
) -> bool {
    let waiter = signal.task_waiter();
    let mut patience = Patience::until(env, deadline_us);
    poll_fn(|task| {
        loop {
            let seen = signal.generation();
            if condition() {
                return Poll::Ready(true);
            }
            if patience.has_ended(task) {
                return Poll::Ready(false);
            }
            if waiter.register(seen, task.waker()) {
                return Poll::Pending;
            }
        }
    })
    .await
}
