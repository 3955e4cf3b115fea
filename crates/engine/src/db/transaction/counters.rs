//! Counters of transactions.

use lsmx_base::sync::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::metrics::TransactionMetrics;
use crate::tree::counters::add;

/// Counters of the transactions of a database since it was opened.
#[derive(Debug, Default)]
pub(crate) struct TransactionCounters {
    pub(crate) begun: AtomicU64,
    committed: AtomicU64,
    read_only: AtomicU64,
    conflicts: AtomicU64,
    unknown: AtomicU64,
    pub(crate) retries: AtomicU64,
}

/// Counters of the key locks of a database since it was opened. A lock of a free key changes none of them.
#[derive(Debug, Default)]
pub(super) struct LockCounters {
    /// Locks that waited for another transaction, and the total time of the waits that have ended.
    pub(super) waits: AtomicU64,
    pub(super) wait_us: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) deadlocks: AtomicU64,
}

impl TransactionCounters {
    /// Counts the end of a commit.
    pub(crate) fn record_commit(&self, has_writes: bool, result: &Result<()>) {
        let counter = match result {
            Ok(()) if has_writes => &self.committed,
            Ok(()) => &self.read_only,
            Err(Error::Conflict { .. }) => &self.conflicts,
            Err(Error::ConflictUnknown { .. }) => &self.unknown,
            Err(_) => return,
        };
        add(counter, 1);
    }

    /// Returns the metrics of transactions, without those of locks.
    pub(crate) fn metrics(&self) -> TransactionMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TransactionMetrics {
            begun: read(&self.begun),
            committed: read(&self.committed),
            read_only: read(&self.read_only),
            conflicts: read(&self.conflicts),
            unknown: read(&self.unknown),
            retries: read(&self.retries),
            ..TransactionMetrics::default()
        }
    }
}
