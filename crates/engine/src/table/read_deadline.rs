//! Deadline of a call that reads files.

use std::time::Duration;

use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use crate::env::Env;
use crate::error::{Error, Result};

/// Deadline of a lookup, or of the current move of an iterator. All sources of an iterator share one deadline.
#[derive(Debug)]
pub(crate) struct ReadDeadline {
    env: Env,
    limit_ns: u64,
    /// End of the current call on the monotonic clock. Only the thread that moves the iterator accesses it, so all
    /// accesses are relaxed.
    end_ns: AtomicU64,
}

impl ReadDeadline {
    /// Returns the deadline of a call that begins now.
    pub(crate) fn new(env: &Env, limit: Duration) -> Arc<ReadDeadline> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let deadline = ReadDeadline { env: env.clone(), limit_ns, end_ns: AtomicU64::new(0) };
        deadline.begin_call();
        Arc::new(deadline)
    }

    /// Begins another call.
    pub(crate) fn begin_call(&self) {
        let end_ns = self.env.monotonic_ns().saturating_add(self.limit_ns);
        self.end_ns.store(end_ns, Ordering::Relaxed);
    }

    /// Returns an error if the current call must end.
    ///
    /// # Errors
    /// [`Error::Deadline`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.env.monotonic_ns() < self.end_ns.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Deadline { cause: "a file read" })
    }
}
