//! Hits in the block cache, and misses with insertion and eviction, with one and two threads.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use criterion::Criterion;
use lsmx::BlockCacheKind;
use lsmx::benching::BenchBlockCache;
use lsmx_bench::clock::Stopwatch;

const CACHE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4096;
/// Number of blocks in the benchmark of cache hits. All blocks fit into the cache.
const RESIDENT: u64 = 8_000;

pub(crate) fn bench_data_blocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cache");
    for kind in BlockCacheKind::ALL {
        for threads in [1, 2] {
            let cache = BenchBlockCache::new(kind, CACHE_BYTES, BLOCK_BYTES);
            (0..RESIDENT).for_each(|number| cache.insert(number));
            group.bench_function(format!("hit/{kind}/{threads}"), |bencher| {
                bencher.iter_custom(|rounds| {
                    time_threads(threads, rounds, |number| {
                        black_box(cache.get(number * 7919 % RESIDENT));
                    })
                });
            });
            // Each block is new, so the lookup misses and inserts the block.
            let mut from = RESIDENT;
            group.bench_function(format!("miss and fill/{kind}/{threads}"), |bencher| {
                bencher.iter_custom(|rounds| {
                    let first = from;
                    from += threads * rounds;
                    time_threads(threads, rounds, |number| {
                        if !cache.get(first + number) {
                            cache.insert(first + number);
                        }
                    })
                });
            });
        }
    }
    group.finish();
}

/// Returns the time until each thread has called `act` `rounds` times. The argument of `act` is different in each call.
fn time_threads(threads: u64, rounds: u64, act: impl Fn(u64) + Sync) -> Duration {
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for first in 0..threads {
            let act = &act;
            scope.spawn(move || (0..rounds).for_each(|round| act(round * threads + first)));
        }
    });
    Duration::from_nanos(watch.elapsed_ns())
}
