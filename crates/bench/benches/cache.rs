//! The block caches: a hit, and a fill that puts another block out, by one thread and by two at once.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use criterion::Criterion;
use lsmx::BlockCacheKind;
use lsmx::benching::BenchBlockCache;
use lsmx_bench::clock::Stopwatch;

const CACHE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4096;
/// Blocks that are asked for: they fit with room to spare.
const RESIDENT: u64 = 8_000;

pub(crate) fn data_blocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cache");
    for kind in BlockCacheKind::ALL {
        for threads in [1, 2] {
            let cache = BenchBlockCache::new(kind, CACHE_BYTES, BLOCK_BYTES);
            (0..RESIDENT).for_each(|number| cache.insert(number));
            group.bench_function(format!("hit/{kind}/{threads}"), |bencher| {
                bencher.iter_custom(|rounds| {
                    timed(threads, rounds, |number| {
                        black_box(cache.get(number * 7919 % RESIDENT));
                    })
                });
            });
            // As a lookup does: asked for in vain, then read and put in.
            let mut from = RESIDENT;
            group.bench_function(format!("miss and fill/{kind}/{threads}"), |bencher| {
                bencher.iter_custom(|rounds| {
                    let first = from;
                    from += threads * rounds;
                    timed(threads, rounds, |number| {
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

/// How long it takes when each thread does so many rounds, with numbers of its own.
fn timed(threads: u64, rounds: u64, act: impl Fn(u64) + Sync) -> Duration {
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for first in 0..threads {
            let act = &act;
            scope.spawn(move || (0..rounds).for_each(|round| act(round * threads + first)));
        }
    });
    Duration::from_nanos(watch.elapsed_ns())
}
