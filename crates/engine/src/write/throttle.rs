//! Backpressure: writes slow down smoothly by debt, and stop only where they must.
//!
//! The admitted rate of a tree is the measured drain of its compactions × headroom ÷ pending bytes
//! of its policy's [`Debt`](lsmx_compaction::Debt), in bytes of memtables (`backpressure.rs`). A batch goes at the slowest rate among its
//! keyspaces, by one token bucket per database, with rare short pauses. Where a policy's hard stop
//! is reached, or memtables wait for their flush, the write waits with a named cause
//! (`db/admission.rs`).

use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_compaction::Debt;

use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::options::write::WriteControl;
use crate::state::DbState;
use crate::tree::Tree;
use crate::tree::counters::add;

/// What compactions are taken to drain before the first was measured, in bytes per second.
const DRAIN_START: u64 = 64 << 20;
/// Slowest admitted rate in bytes per second: past it the hard stop is the better answer.
const RATE_MIN: u64 = 256 << 10;
/// Pauses shorter than this are saved up.
const PAUSE_US_MIN: u64 = 1_000;
/// Longest single pause.
const PAUSE_US_MAX: u64 = 10_000;

/// The token bucket of one database and the measured drain of its compactions.
#[derive(Debug)]
pub(crate) struct Throttle {
    control: WriteControl,
    /// When the bucket is empty again, as the environment's clock counts.
    free_at_us: AtomicU64,
    /// Bytes per second that compactions write, averaged.
    drain: AtomicU64,
}

impl Throttle {
    /// A throttle that knows nothing yet.
    pub(crate) fn new(control: WriteControl) -> Throttle {
        let drain = AtomicU64::new(DRAIN_START);
        Throttle { control, free_at_us: AtomicU64::new(0), drain }
    }

    /// Takes a finished compaction into the measured drain: a moving average over about eight.
    pub(crate) fn drained(&self, bytes: u64, us: u64) {
        if bytes == 0 {
            return;
        }
        let rate = bytes.saturating_mul(1_000_000) / us.max(1);
        let before = self.drain.load(Ordering::Relaxed);
        self.drain.store(before - before / 8 + rate / 8, Ordering::Relaxed);
    }

    /// The rate that writes to a tree with this debt are admitted at; 0: no limit.
    pub(crate) fn rate(&self, debt: Debt) -> u64 {
        if self.control == WriteControl::Stop || debt.pending_bytes == 0 {
            return 0;
        }
        let drain = u128::from(self.drain.load(Ordering::Relaxed));
        let rate = drain * u128::from(debt.headroom_bytes) / u128::from(debt.pending_bytes);
        u64::try_from(rate).unwrap_or(u64::MAX).max(RATE_MIN)
    }

    /// How long a write that adds `bytes` to the memtables of these trees has to pause.
    ///
    /// # Errors
    /// [`Error::WouldWait`] if it would have to wait and must not, [`Error::Deadline`].
    pub(crate) fn pause_us(
        &self,
        store: &DbState,
        trees: &[Arc<Tree>],
        bytes: u64,
        no_slowdown: bool,
        deadline_us: Option<u64>,
    ) -> Result<u64> {
        let Some(rate) = trees.iter().filter_map(|tree| tree.admitted_rate()).min() else {
            return Ok(0);
        };
        let now = store.env.now_us();
        let cost = bytes.saturating_mul(1_000_000) / rate;
        // The debt of the bucket is bounded by one pause: what is past it is forgiven, or a burst
        // of large batches would slow small ones down long after. The hard stop is behind it.
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
        add(&trees[0].counters.throttle_us, pause);
        Ok(pause)
    }
}
