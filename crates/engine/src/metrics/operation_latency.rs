//! Sampled durations of operations.

use std::cell::Cell;

use lsmx_base::sync::{AtomicU64, Ordering, thread_local, thread_number};
use serde::{Deserialize, Serialize};

use crate::env::Env;
use crate::metrics::latency::{LatencyHistogram, LatencyMetrics};

/// Operations whose duration is measured, see [`OperationLatencyMetrics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LatencySampling {
    /// No operation is measured.
    #[default]
    Off,
    /// On average one of this many operations is measured. `OneIn(1)` measures all, and `OneIn(0)` none.
    ///
    /// A measured operation reads the clock twice and locks a histogram, which takes about 100 ns. Other operations take
    /// about 1 ns longer.
    OneIn(u32),
}

/// Durations of sampled operations, in nanoseconds. All are empty without
/// [`Options::latency_sampling`](crate::Options::latency_sampling).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OperationLatencyMetrics {
    /// Lookups of single keys.
    pub get_ns: LatencyMetrics,
    /// Calls of `multi_get`, regardless of the number of keys.
    pub multi_get_ns: LatencyMetrics,
    /// Commits of batches and of single writes, including stalls, syncs and the waits for other commits.
    pub commit_ns: LatencyMetrics,
    /// Steps of iterators, and seeks and moves of cursors. The first step opens the tables.
    pub scan_step_ns: LatencyMetrics,
    /// Calls of `fetch_update` and `update_fetch`, including all attempts. Their commits also count in `commit_ns`.
    pub update_ns: LatencyMetrics,
}

/// A kind of operation whose duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOperation {
    Get,
    MultiGet,
    Commit,
    ScanStep,
    Update,
}

const OPERATIONS: usize = 5;

/// Start of a measured operation. `None` if the operation is not measured.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct OperationStart(Option<u64>);

/// Decides which operations are measured, and stores their durations.
#[derive(Debug)]
pub(crate) struct OperationLatencies {
    /// One of this many operations is measured; 0 for none.
    one_in: AtomicU64,
    /// Boxed, so that changes of the histograms do not evict the cache line of `one_in`.
    histograms: Box<[LatencyHistogram; OPERATIONS]>,
}

impl OperationLatencies {
    pub(crate) fn new(sampling: LatencySampling) -> OperationLatencies {
        let latencies =
            OperationLatencies { one_in: AtomicU64::new(0), histograms: Box::default() };
        latencies.set_sampling(sampling);
        latencies
    }

    pub(crate) fn set_sampling(&self, sampling: LatencySampling) {
        let one_in = match sampling {
            LatencySampling::Off => 0,
            LatencySampling::OneIn(operations) => u64::from(operations),
        };
        self.one_in.store(one_in, Ordering::Relaxed);
    }

    /// Returns whether some operations are measured.
    pub(crate) fn is_sampling(&self) -> bool {
        self.one_in.load(Ordering::Relaxed) != 0
    }

    /// Starts an operation, and decides whether it is measured.
    #[inline]
    pub(crate) fn start(&self, env: &Env) -> OperationStart {
        match self.one_in.load(Ordering::Relaxed) {
            0 => OperationStart(None),
            one_in => start_sampled(env, one_in),
        }
    }

    /// Records the duration of a measured operation.
    #[inline]
    pub(crate) fn finish(&self, env: &Env, operation: TimedOperation, start: OperationStart) {
        if let OperationStart(Some(start_ns)) = start {
            let elapsed_ns = env.monotonic_ns().saturating_sub(start_ns);
            self.histograms[operation as usize].record(elapsed_ns);
        }
    }

    pub(crate) fn metrics(&self) -> OperationLatencyMetrics {
        let metrics = |operation: TimedOperation| self.histograms[operation as usize].metrics();
        OperationLatencyMetrics {
            get_ns: metrics(TimedOperation::Get),
            multi_get_ns: metrics(TimedOperation::MultiGet),
            commit_ns: metrics(TimedOperation::Commit),
            scan_step_ns: metrics(TimedOperation::ScanStep),
            update_ns: metrics(TimedOperation::Update),
        }
    }
}

/// Returns the start time for one of `one_in` operations.
#[cold]
fn start_sampled(env: &Env, one_in: u64) -> OperationStart {
    // Uses random numbers, because a counter would always select the same operation of a repeated pattern.
    let is_selected = one_in == 1 || next_random().is_multiple_of(one_in);
    OperationStart(is_selected.then(|| env.monotonic_ns()))
}

/// Returns the next number of a generator of the current thread (xorshift64*).
fn next_random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::default();
    }
    let next = |state: &Cell<u64>| {
        let mut x = match state.get() {
            // The seed is odd, and therefore not 0. From the state 0, the generator would return only zeros.
            0 => (thread_number() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            x => x,
        };
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        state.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    };
    // While a thread ends, its thread local may be destroyed. The operation is then not measured, unless all operations
    // are measured.
    STATE.try_with(next).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Background;

    fn count_measured(sampling: LatencySampling, operations: u64) -> u64 {
        let (env, latencies) =
            (Env::new(Background::Inline, None), OperationLatencies::new(sampling));
        for _ in 0..operations {
            let start = latencies.start(&env);
            env.advance_us(3);
            latencies.finish(&env, TimedOperation::Get, start);
        }
        let metrics = latencies.metrics();
        assert_eq!(metrics.commit_ns, LatencyMetrics::default());
        if metrics.get_ns.count > 0 {
            // Two significant digits.
            assert!((2_970..=3_030).contains(&metrics.get_ns.max), "{metrics:?}");
        }
        metrics.get_ns.count
    }

    #[test]
    fn latency_sampling_measures_the_given_share_of_operations() {
        assert_eq!(count_measured(LatencySampling::Off, 100), 0);
        assert_eq!(count_measured(LatencySampling::OneIn(0), 100), 0);
        assert_eq!(count_measured(LatencySampling::OneIn(1), 100), 100);
        let sampled = count_measured(LatencySampling::OneIn(10), 10_000);
        assert!((700..1_300).contains(&sampled), "{sampled}");
    }
}
