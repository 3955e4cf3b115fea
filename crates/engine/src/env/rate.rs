//! A limit on the bytes per second that background work reads and writes.
//!
//! Two token buckets, each one number: the moment from which it owes nothing. A flush pays into its
//! own bucket and waits for that alone. What it pays is owed by the bucket of compactions too, which
//! therefore get what flushes leave. No wait is longer than `WAIT_US_MAX`, so however much
//! flushes take, a compaction gets on, and a job notices within that time that it is to end.

use lsmx_base::sync::{AtomicU64, Ordering, Signal};

use crate::env::{Background, Env, WaitCause};

/// Longest wait for one read or write, in microseconds.
const WAIT_US_MAX: u64 = 1_000_000;
/// What may be taken at once after a time of rest, in microseconds of the rate.
const BURST_US: u64 = 100_000;
/// Waits shorter than this are saved up.
const WAIT_US_MIN: u64 = 1_000;

/// Who reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A flush, which writes may wait for.
    Flush,
    /// A compaction, which gets what flushes leave.
    Compaction,
}

/// The limit of one database.
#[derive(Debug)]
pub struct RateLimit {
    env: Env,
    /// Bytes per second; 0: no limit.
    rate: AtomicU64,
    /// When each lane's bucket is empty, as the environment's clock counts.
    free_at_us: [AtomicU64; 2],
    /// Bytes that each lane took.
    taken: [AtomicU64; 2],
    /// Microseconds that each lane waited.
    waited_us: [AtomicU64; 2],
    /// Given when the rate changes.
    changed: Signal,
}

impl RateLimit {
    /// A limit in bytes per second; `None`: no limit.
    #[must_use]
    pub fn new(env: Env, bytes_per_s: Option<u64>) -> RateLimit {
        RateLimit {
            env,
            rate: AtomicU64::new(bytes_per_s.unwrap_or(0)),
            free_at_us: Default::default(),
            taken: Default::default(),
            waited_us: Default::default(),
            changed: Signal::new(),
        }
    }

    /// The limit in bytes per second, if there is one.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|&rate| rate > 0)
    }

    /// Sets another limit; who waits for the old one goes on at once.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.rate.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
        for lane in &self.free_at_us {
            lane.store(0, Ordering::Relaxed);
        }
        self.changed.notify();
    }

    /// Bytes that a lane took, limit or not, and microseconds that it waited.
    #[must_use]
    pub fn taken(&self, lane: Lane) -> (u64, u64) {
        let read = |counters: &[AtomicU64; 2]| counters[lane as usize].load(Ordering::Relaxed);
        (read(&self.taken), read(&self.waited_us))
    }

    /// Pays for bytes that were just read or written, and waits until that is paid off. Inline
    /// there is nobody to make room for, and nothing waits.
    ///
    /// # Panics
    /// As [`Env::wait`].
    pub fn take(&self, lane: Lane, bytes: u64) {
        self.taken[lane as usize].fetch_add(bytes, Ordering::Relaxed);
        let Some(rate) = self.rate() else { return };
        if self.env.background() == Background::Inline {
            return;
        }
        let now_us = self.env.now_us();
        let cost_us = bytes.saturating_mul(1_000_000) / rate;
        if lane == Lane::Flush {
            self.pay(Lane::Compaction, cost_us, now_us);
        }
        let until_us = self.pay(lane, cost_us, now_us);
        if until_us < now_us.saturating_add(WAIT_US_MIN) {
            return;
        }
        self.env.wait(WaitCause::RateLimit, &self.changed, Some(until_us), &mut || {
            self.rate() != Some(rate)
        });
        let waited_us = self.env.now_us().saturating_sub(now_us);
        self.waited_us[lane as usize].fetch_add(waited_us, Ordering::Relaxed);
    }

    /// Puts a cost on a lane's bucket; returns when it is paid off.
    fn pay(&self, lane: Lane, cost_us: u64, now_us: u64) -> u64 {
        let paid = |free_at: u64| {
            let from = free_at.max(now_us.saturating_sub(BURST_US));
            from.saturating_add(cost_us).min(now_us.saturating_add(WAIT_US_MAX))
        };
        let bucket = &self.free_at_us[lane as usize];
        let before =
            bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(paid(free)));
        paid(before.unwrap_or(now_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_base::sync::Arc;

    const MIB: u64 = 1 << 20;

    fn stepped(rate: u64) -> (Env, RateLimit) {
        let env = Env::new(Background::Stepped { seed: 1, workers: 1 }, None);
        (env.clone(), RateLimit::new(env, Some(rate)))
    }

    #[test]
    fn bytes_take_the_time_that_the_rate_says() {
        let (env, limit) = stepped(MIB);
        let start_us = env.now_us();
        for _ in 0..40 {
            limit.take(Lane::Compaction, MIB / 4);
        }
        let took_us = env.now_us() - start_us;
        // The burst is for free.
        assert!((9_800_000..=10_000_000).contains(&took_us), "{took_us}");
        assert_eq!(limit.taken(Lane::Compaction).0, 10 * MIB);
    }

    #[test]
    fn compactions_get_what_flushes_leave() {
        let (env, limit) = stepped(MIB);
        limit.take(Lane::Flush, MIB / 2);
        let flushed_us = env.now_us();
        // The flush has been paid off by waiting, so the compaction waits for its own bytes alone.
        limit.take(Lane::Compaction, MIB / 4);
        let took_us = env.now_us() - flushed_us;
        assert!((249_000..=251_000).contains(&took_us), "{took_us}");
        // A compaction does not hold up a flush.
        limit.pay(Lane::Compaction, 900_000, env.now_us());
        let before_us = env.now_us();
        limit.take(Lane::Flush, 10);
        assert_eq!(env.now_us(), before_us);
    }

    #[test]
    fn no_wait_is_without_end() {
        let (env, limit) = stepped(1);
        let start_us = env.now_us();
        limit.take(Lane::Compaction, u64::MAX);
        assert_eq!(env.now_us() - start_us, WAIT_US_MAX);
    }

    #[test]
    fn inline_nothing_waits() {
        let env = Env::new(Background::Inline, Some(1));
        let limit = RateLimit::new(env.clone(), Some(1));
        let start_us = env.now_us();
        limit.take(Lane::Flush, MIB);
        assert_eq!((env.now_us(), limit.taken(Lane::Flush)), (start_us, (MIB, 0)));
    }

    #[test]
    fn another_rate_wakes_who_waits() {
        let env = Env::default();
        let limit = Arc::new(RateLimit::new(env, Some(1)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| (0..200).for_each(|_| limit.take(Lane::Compaction, MIB)));
            limit.set_rate(None);
            waiting.join().unwrap();
        });
        assert_eq!(limit.taken(Lane::Compaction).0, 200 * MIB);
    }
}
