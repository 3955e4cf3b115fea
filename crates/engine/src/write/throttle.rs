//! Write throttle: delays writes as the compaction debt grows.
//!
//! The admitted write rate of a tree in bytes per second is drain rate × headroom ÷ pending bytes. Headroom and pending
//! bytes are the [`Debt`](lsmx_compaction::Debt) of the compaction policy, see `backpressure.rs`. The tree with the
//! lowest rate limits a batch. One token bucket per database converts the rate to short pauses. If the policy stops
//! writes, or if too many memtables wait to be flushed, writes stall instead, see `db/admission`.

use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_compaction::Debt;

use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::options::write::WriteControl;
use crate::state::DbState;
use crate::tree::Tree;

/// Drain rate in bytes per second before the first compaction has been measured.
const INITIAL_DRAIN_RATE: u64 = 64 << 20;
/// Minimum admitted rate in bytes per second. A lower rate would be worse than stopping writes.
const RATE_MIN: u64 = 256 << 10;
/// Minimum pause in microseconds. Shorter pauses accumulate until they reach this minimum.
const PAUSE_US_MIN: u64 = 1_000;
/// Maximum pause in microseconds.
const PAUSE_US_MAX: u64 = 10_000;

/// Token bucket of a database, and the measured drain rate of its compactions.
#[derive(Debug)]
pub(crate) struct Throttle {
    control: WriteControl,
    /// Time of the environment's clock at which the token bucket has no debt any more.
    free_at_us: AtomicU64,
    /// Moving average of the rate at which compactions write, in bytes per second.
    drain_rate: AtomicU64,
}

impl Throttle {
    /// Creates a throttle with the initial drain rate.
    pub(crate) fn new(control: WriteControl) -> Throttle {
        let drain_rate = AtomicU64::new(INITIAL_DRAIN_RATE);
        Throttle { control, free_at_us: AtomicU64::new(0), drain_rate }
    }

    /// Updates the drain rate after a compaction that wrote `bytes` in `us` microseconds. The compaction has a weight
    /// of one eighth.
    pub(crate) fn record_compaction(&self, bytes: u64, us: u64) {
        if bytes == 0 {
            return;
        }
        let rate = bytes.saturating_mul(1_000_000) / us.max(1);
        let before = self.drain_rate.load(Ordering::Relaxed);
        self.drain_rate.store(before - before / 8 + rate / 8, Ordering::Relaxed);
    }

    /// Returns the admitted write rate in bytes per second for a tree with this debt. 0 means that the rate is not
    /// limited.
    pub(crate) fn admitted_write_rate(&self, debt: Debt) -> u64 {
        if self.control == WriteControl::Stop || debt.pending_bytes == 0 {
            return 0;
        }
        let drain = u128::from(self.drain_rate.load(Ordering::Relaxed));
        let rate = drain * u128::from(debt.headroom_bytes) / u128::from(debt.pending_bytes);
        u64::try_from(rate).unwrap_or(u64::MAX).max(RATE_MIN)
    }

    /// Admits a write of `bytes` to the memtables of these trees. Returns how long the write must pause, in
    /// microseconds.
    ///
    /// # Errors
    /// - [`Error::WouldWait`] if the write must pause and `no_slowdown` is set.
    /// - [`Error::Deadline`] if the pause would end after the deadline.
    pub(crate) fn pause_us(
        &self,
        store: &DbState,
        trees: &[Arc<Tree>],
        bytes: u64,
        no_slowdown: bool,
        deadline_us: Option<u64>,
    ) -> Result<u64> {
        let Some(rate) = trees.iter().filter_map(|tree| tree.admitted_write_rate()).min() else {
            return Ok(0);
        };
        let now = store.env.now_us();
        let cost = bytes.saturating_mul(1_000_000) / rate;
        // A write delays later writes by at most the maximum pause. Otherwise, several large batches could delay the
        // next small batch for a long time. The limit at which writes stop bounds the size of the memtables in any
        // case.
        let slot = |free_at: u64| {
            free_at.max(now).saturating_add(cost).min(now.saturating_add(PAUSE_US_MAX))
        };
        let wait = slot(self.free_at_us.load(Ordering::Relaxed)) - now;
        if wait >= PAUSE_US_MIN {
            if no_slowdown {
                return Err(Error::WouldWait { cause: WaitCause::Throttle.as_str() });
            }
            if deadline_us.is_some_and(|deadline| now.saturating_add(wait) > deadline) {
                return Err(Error::Deadline { cause: WaitCause::Throttle.as_str() });
            }
        }
        let taken = self
            .free_at_us
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free_at| Some(slot(free_at)));
        let pause = slot(taken.unwrap_or(now)) - now;
        if pause < PAUSE_US_MIN {
            return Ok(0);
        }
        trees[0].counters.update(|counts| counts.stalls.throttle_us_total += pause);
        Ok(pause)
    }
}
