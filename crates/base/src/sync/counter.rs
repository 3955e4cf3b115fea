//! Counters for hot paths.

use std::array;

use super::{AtomicU64, OnceLock, Ordering, std_atomic, thread_local};

/// Returns the number of the current thread. Numbers start at 0. No number is used twice in a process.
#[must_use]
pub fn thread_number() -> usize {
    static NEXT: std_atomic::AtomicUsize = std_atomic::AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // While a thread ends, its thread local may already be destroyed. Any number is valid then.
    NUMBER.try_with(|number| *number).unwrap_or(usize::MAX)
}

/// Number of shards of a [`ShardedCounters`].
const SHARDS: usize = 16;

/// A shard of a counter set. It fills two cache lines, because processors prefetch cache lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub struct CounterShard<const N: usize>([AtomicU64; N]);

impl<const N: usize> CounterShard<N> {
    /// Adds `count` to a counter and returns the new value of this shard.
    ///
    /// # Panics
    /// Panics if `counter` is not below `N`.
    #[inline]
    pub fn add(&self, counter: usize, count: u64) -> u64 {
        self.0[counter].fetch_add(count, Ordering::Relaxed).wrapping_add(count)
    }
}

/// A set of `N` counters that many threads increment without contention. Each thread adds to one shard, and a reader
/// sums all shards. A thread looks up its shard once for all counters of a set, and these counters share cache lines.
///
/// The sum includes all additions that happened before the read. It may miss concurrent additions. The first addition
/// allocates the shards, which take 2 KiB for up to 16 counters. Unused sets take no memory for shards, because a
/// database may have thousands of unused keyspaces.
#[derive(Debug)]
pub struct ShardedCounters<const N: usize> {
    shards: OnceLock<Box<[CounterShard<N>; SHARDS]>>,
}

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> ShardedCounters<N> {
        ShardedCounters { shards: OnceLock::new() }
    }
}

impl<const N: usize> ShardedCounters<N> {
    /// Returns the shard of the current thread.
    #[inline]
    pub fn shard(&self) -> &CounterShard<N> {
        let shards = self.shards.get_or_init(ShardedCounters::allocate);
        &shards[thread_number() % SHARDS]
    }

    #[cold]
    fn allocate() -> Box<[CounterShard<N>; SHARDS]> {
        Box::new(array::from_fn(|_| CounterShard(array::from_fn(|_| AtomicU64::default()))))
    }

    /// Returns the sum of all additions to each counter, modulo 2^64.
    #[must_use]
    pub fn sums(&self) -> [u64; N] {
        array::from_fn(|counter| {
            let shards = self.shards.get().into_iter().flat_map(|shards| shards.iter());
            let values = shards.map(|shard| shard.0[counter].load(Ordering::Relaxed));
            values.fold(0u64, u64::wrapping_add)
        })
    }
}

/// A [`ShardedCounters`] of one counter.
#[derive(Debug, Default)]
pub struct ShardedCounter(ShardedCounters<1>);

impl ShardedCounter {
    /// Creates a counter at zero.
    #[must_use]
    pub fn new() -> ShardedCounter {
        ShardedCounter::default()
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.add_and_get_shard(count);
    }

    /// Adds `count` and returns the new value of the current thread's shard.
    #[inline]
    pub fn add_and_get_shard(&self, count: u64) -> u64 {
        self.0.shard().add(0, count)
    }

    /// Returns the sum of all additions, modulo 2^64.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let [sum] = self.0.sums();
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharded_counter_counts_additions_of_all_threads() {
        let counter = ShardedCounter::new();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let counter = &counter;
                scope.spawn(move || (0..1_000).for_each(|_| counter.add(thread)));
            }
        });
        assert_eq!(counter.sum(), 28_000);
    }

    #[test]
    fn thread_number_is_unique() {
        let mut numbers: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        assert_eq!(thread_number(), thread_number());
                        thread_number()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 8);
    }
}
