//! Retries of transactions that conflict with other commits.

use crate::db::inner::DbInner;
use crate::error::Error;
use crate::tree::counters::add;

/// Maximum number of attempts of one call.
const ATTEMPTS_MAX: u32 = 24;
/// Maximum pause after the first attempt, in microseconds. It doubles with each further attempt.
const FIRST_PAUSE_US_MAX: u64 = 50;
/// Maximum pause between two attempts, in microseconds.
const PAUSE_US_MAX: u64 = 20_000;

/// The attempts of one call to commit a transaction.
#[derive(Debug)]
pub(crate) struct TransactionAttempts {
    /// Number of further attempts.
    left: u32,
    pause_us_max: u64,
}

impl TransactionAttempts {
    /// Begins the first attempt.
    pub(crate) fn new() -> TransactionAttempts {
        TransactionAttempts { left: ATTEMPTS_MAX - 1, pause_us_max: FIRST_PAUSE_US_MAX }
    }

    /// Returns the pause before the next attempt after a commit failed, in microseconds. Returns `None` if the commit had no
    /// conflict or no attempt is left.
    ///
    /// The pause is random, so that two transactions do not repeat their conflict.
    pub(crate) fn begin_next(&mut self, inner: &DbInner, error: &Error) -> Option<u64> {
        let is_conflict = matches!(error, Error::Conflict { .. } | Error::ConflictUnknown { .. });
        self.left = if is_conflict { self.left.checked_sub(1)? } else { return None };
        let pause_us = inner.state.env.random_u64() % self.pause_us_max;
        self.pause_us_max = (self.pause_us_max * 2).min(PAUSE_US_MAX);
        add(&inner.transactions.retries, 1);
        Some(pause_us)
    }
}
