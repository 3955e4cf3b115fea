//! Deadline of a call that reads files.

use std::time::Duration;

use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use crate::env::Env;
use crate::error::{Error, Result};

/// Deadline of a point lookup or of the current move of an iterator. All source cursors of an iterator share one
/// deadline.
#[derive(Debug)]
pub(crate) struct ReadDeadline {
    env: Env,
    limit_ns: u64,
    /// Deadline of the current call on the monotonic clock, in nanoseconds. Only the thread that moves the iterator
    /// accesses it, so relaxed ordering is sufficient.
    end_ns: AtomicU64,
}

impl ReadDeadline {
    /// Creates the deadline of a call that starts now.
    pub(crate) fn new(env: &Env, limit: Duration) -> Arc<ReadDeadline> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let deadline = ReadDeadline { env: env.clone(), limit_ns, end_ns: AtomicU64::new(0) };
        deadline.begin_call();
        Arc::new(deadline)
    }

    /// Starts another call with the same time limit.
    pub(crate) fn begin_call(&self) {
        let end_ns = self.env.monotonic_ns().saturating_add(self.limit_ns);
        self.end_ns.store(end_ns, Ordering::Relaxed);
    }

    /// Checks whether the current call may continue.
    ///
    /// # Errors
    /// [`Error::Deadline`] if the deadline has passed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.env.monotonic_ns() < self.end_ns.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Deadline { cause: "a file read" })
    }
}
