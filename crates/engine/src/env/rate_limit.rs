//! Limits the bytes per second that background jobs read and write.
//!
//! Each priority has a token bucket. The state of a bucket is the time at which its debt is paid. The debt is the
//! charged bytes divided by the rate. A flush charges both buckets, but waits only for its own bucket. Compactions
//! therefore use the bandwidth that flushes leave. No wait exceeds `WAIT_US_MAX`, so compactions progress even during
//! continuous flushes, and jobs notice a shutdown within that time.

use lsmx_base::sync::{AtomicU64, Ordering, Signal};

use crate::env::{Background, Env, WaitCause};

/// Longest wait for one read or write, in microseconds.
const WAIT_US_MAX: u64 = 1_000_000;
/// Maximum burst after an idle period, as the number of microseconds that its bytes take at the rate.
const BURST_US: u64 = 100_000;
/// Minimum wait, in microseconds. A shorter wait is added to the debt of the bucket instead.
const WAIT_US_MIN: u64 = 1_000;

/// Priority of background I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoPriority {
    /// Flushes, because writes may wait for them.
    Flush,
    /// Compactions, which use the remaining bandwidth.
    Compaction,
}

/// Rate limiter for the background I/O of one database.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    env: Env,
    /// Bytes per second; 0 is no limit.
    rate: AtomicU64,
    /// Time when the debt of each priority is paid, by the scheduling clock.
    free_at_us: [AtomicU64; 2],
    /// Bytes acquired by each priority.
    acquired_bytes: [AtomicU64; 2],
    /// Microseconds waited by each priority.
    waited_us: [AtomicU64; 2],
    /// Notified when the rate changes.
    rate_changed: Signal,
}

impl RateLimiter {
    /// Creates a limiter with a rate in bytes per second. `None` is no limit.
    #[must_use]
    pub(crate) fn new(env: Env, bytes_per_s: Option<u64>) -> RateLimiter {
        RateLimiter {
            env,
            rate: AtomicU64::new(bytes_per_s.unwrap_or(0)),
            free_at_us: Default::default(),
            acquired_bytes: Default::default(),
            waited_us: Default::default(),
            rate_changed: Signal::new(),
        }
    }

    /// Returns the environment whose clock the limiter uses.
    #[must_use]
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the rate in bytes per second, or `None` without a limit.
    #[must_use]
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|&rate| rate > 0)
    }

    /// Changes the rate. Ends all current waits.
    pub(crate) fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.rate.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
        for free_at_us in &self.free_at_us {
            free_at_us.store(0, Ordering::Relaxed);
        }
        self.rate_changed.notify();
    }

    /// Returns the bytes that a priority has acquired, and the microseconds that it has waited. Bytes are counted with
    /// or without a limit.
    #[must_use]
    pub(crate) fn acquired_bytes_and_wait_us(&self, priority: IoPriority) -> (u64, u64) {
        let read = |counters: &[AtomicU64; 2]| counters[priority as usize].load(Ordering::Relaxed);
        (read(&self.acquired_bytes), read(&self.waited_us))
    }

    /// Charges bytes that were read or written, and waits until the debt of the bucket is paid.
    ///
    /// Does not wait under [`Background::Inline`], because no other job competes.
    ///
    /// # Panics
    /// Panics under the same conditions as [`Env::wait`].
    pub(crate) fn acquire(&self, priority: IoPriority, bytes: u64) {
        self.acquired_bytes[priority as usize].fetch_add(bytes, Ordering::Relaxed);
        let Some(rate) = self.rate() else { return };
        if self.env.background() == Background::Inline {
            return;
        }
        let now_us = self.env.now_us();
        let cost_us = bytes.saturating_mul(1_000_000) / rate;
        if priority == IoPriority::Flush {
            self.charge_bucket(IoPriority::Compaction, cost_us, now_us);
        }
        let until_us = self.charge_bucket(priority, cost_us, now_us);
        if until_us < now_us.saturating_add(WAIT_US_MIN) {
            return;
        }
        self.env.wait(WaitCause::RateLimit, &self.rate_changed, Some(until_us), &mut || {
            self.rate() != Some(rate)
        });
        let waited_us = self.env.now_us().saturating_sub(now_us);
        self.waited_us[priority as usize].fetch_add(waited_us, Ordering::Relaxed);
    }

    /// Adds `cost_us` to the debt of a bucket. Returns the time when the debt is paid.
    fn charge_bucket(&self, priority: IoPriority, cost_us: u64, now_us: u64) -> u64 {
        let add_cost = |free_at: u64| {
            let from = free_at.max(now_us.saturating_sub(BURST_US));
            from.saturating_add(cost_us).min(now_us.saturating_add(WAIT_US_MAX))
        };
        let bucket = &self.free_at_us[priority as usize];
        let before =
            bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(add_cost(free)));
        add_cost(before.unwrap_or(now_us))
    }
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::Arc;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn stepped(rate: u64) -> (Env, RateLimiter) {
        let env = Env::new(Background::Stepped { seed: 1, workers: 1 }, None);
        (env.clone(), RateLimiter::new(env, Some(rate)))
    }

    #[test]
    fn acquire_takes_the_time_given_by_the_rate() {
        let (env, limiter) = stepped(MIB);
        let start_us = env.now_us();
        for _ in 0..40 {
            limiter.acquire(IoPriority::Compaction, MIB / 4);
        }
        let took_us = env.now_us() - start_us;
        // The burst causes no wait.
        assert!((9_800_000..=10_000_000).contains(&took_us), "{took_us}");
        assert_eq!(limiter.acquired_bytes_and_wait_us(IoPriority::Compaction).0, 10 * MIB);
    }

    #[test]
    fn compaction_uses_bandwidth_left_by_flushes() {
        let (env, limiter) = stepped(MIB);
        limiter.acquire(IoPriority::Flush, MIB / 2);
        let flushed_us = env.now_us();
        // The flush has waited for its debt, so the compaction waits for its own bytes only.
        limiter.acquire(IoPriority::Compaction, MIB / 4);
        let took_us = env.now_us() - flushed_us;
        assert!((249_000..=251_000).contains(&took_us), "{took_us}");
        // The debt of compactions does not delay a flush.
        limiter.charge_bucket(IoPriority::Compaction, 900_000, env.now_us());
        let before_us = env.now_us();
        limiter.acquire(IoPriority::Flush, 10);
        assert_eq!(env.now_us(), before_us);
    }

    #[test]
    fn acquire_waits_at_most_wait_us_max() {
        let (env, limiter) = stepped(1);
        let start_us = env.now_us();
        limiter.acquire(IoPriority::Compaction, u64::MAX);
        assert_eq!(env.now_us() - start_us, WAIT_US_MAX);
    }

    #[test]
    fn acquire_inline_does_not_wait() {
        let env = Env::new(Background::Inline, Some(1));
        let limiter = RateLimiter::new(env.clone(), Some(1));
        let start_us = env.now_us();
        limiter.acquire(IoPriority::Flush, MIB);
        assert_eq!(
            (env.now_us(), limiter.acquired_bytes_and_wait_us(IoPriority::Flush)),
            (start_us, (MIB, 0))
        );
    }

    #[test]
    fn set_rate_ends_current_waits() {
        let env = Env::default();
        let limiter = Arc::new(RateLimiter::new(env, Some(1)));
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| (0..200).for_each(|_| limiter.acquire(IoPriority::Compaction, MIB)));
            limiter.set_rate(None);
            waiting.join().unwrap();
        });
        assert_eq!(limiter.acquired_bytes_and_wait_us(IoPriority::Compaction).0, 200 * MIB);
    }
}
