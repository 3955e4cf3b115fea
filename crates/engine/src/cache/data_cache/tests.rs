#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

use lsmx_base::coding::len_u64;
use lsmx_base::slice::BlockMemoryCounter;
use lsmx_base::sync::Arc;

use crate::cache::data_cache::*;

const BLOCK_BYTES: usize = 4096;

/// Deterministic pseudorandom numbers.
struct NumberStream(u64);

impl NumberStream {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number below `bound` that follows a Zipf distribution with exponent 1, by inverse transform sampling.
    fn skewed(&mut self, bound: u64) -> u64 {
        let share = self.below(1 << 30) as f64 / f64::from(1 << 30);
        ((bound as f64).powf(share) - 1.0) as u64
    }
}

fn id(number: u64) -> BlockId {
    BlockId { table: number % 7, offset: number }
}

fn block(number: u64, live: Option<&Arc<BlockMemoryCounter>>) -> BlockBytes {
    let mut contents = vec![0; BLOCK_BYTES];
    contents[..8].copy_from_slice(&number.to_le_bytes());
    BlockBytes::copy_and_count(&contents, live)
}

fn number_in(block: &BlockBytes) -> u64 {
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

#[test]
#[cfg_attr(miri, ignore = "fills megabytes")]
fn data_cache_stays_within_a_changing_capacity() {
    for kind in BlockCacheKind::ALL {
        let largest = 3 << 20;
        let store = new_data_cache(kind, largest);
        let (mut capacity, mut numbers, mut fullest) = (largest, NumberStream(1), 0.0_f64);
        for round in 0..20_000 {
            if round % 1_000 == 999 {
                capacity = numbers.below(largest + 1);
                store.set_capacity(capacity);
                assert!(store.bytes() <= capacity, "{kind}: {} of {capacity}", store.bytes());
            }
            let number = numbers.below(2_000);
            store.insert(id(number), block(number, None));
            let bytes = store.bytes();
            assert!(bytes <= capacity, "{kind}: {bytes} of {capacity}");
            if round % 1_000 == 998 && capacity > 1 << 20 {
                fullest = fullest.max(bytes as f64 / capacity as f64);
            }
        }
        assert!(fullest > 0.8, "{kind}: fills at most {fullest} of the capacity");
        store.set_capacity(0);
        assert_eq!((store.bytes(), store.bytes_without_overhead()), (0, 0), "{kind}");
    }
}

#[test]
fn data_cache_returns_the_inserted_block() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5_000 };
    for kind in BlockCacheKind::ALL {
        let store = new_data_cache(kind, 2 << 20);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let store = &store;
                scope.spawn(move || {
                    let mut numbers = NumberStream(seed);
                    for round in 0..ROUNDS {
                        let number = numbers.below(1_000);
                        match store.get(id(number)) {
                            Some(block) => assert_eq!(number_in(&block), number),
                            None => store.insert(id(number), block(number, None)),
                        }
                        if let Some(block) = store.peek(id(number)) {
                            assert_eq!(number_in(&block), number);
                        }
                        if seed == 0 && round % 50 == 0 {
                            store.set_capacity(numbers.below(2 << 20));
                        }
                    }
                });
            }
        });
        // A block that is inserted after the capacity was 0 is found.
        store.set_capacity(0);
        store.set_capacity(2 << 20);
        store.insert(id(7), block(7, None));
        assert_eq!(store.get(id(7)).as_ref().map(number_in), Some(7), "{kind}");
    }
}

/// Returns the hit rate of lookups. A missing block is inserted.
fn hit_rate(kind: BlockCacheKind, capacity: u64, draw: fn(&mut NumberStream) -> u64) -> f64 {
    let store = new_data_cache(kind, capacity);
    let mut numbers = NumberStream(3);
    let mut hits = 0;
    for round in 0..80_000 {
        let number = draw(&mut numbers);
        match store.get(id(number)) {
            Some(_) => hits += u32::from(round >= 20_000),
            None => store.insert(id(number), block(number, None)),
        }
    }
    f64::from(hits) / 60_000.0
}

#[test]
#[cfg_attr(miri, ignore = "counts what many lookups hit")]
fn data_caches_have_similar_hit_rates() {
    let uniform: fn(&mut NumberStream) -> u64 = |numbers| numbers.below(4_000);
    let skewed: fn(&mut NumberStream) -> u64 = |numbers| numbers.skewed(4_000);
    for (name, draw) in [("uniform", uniform), ("skewed", skewed)] {
        for blocks in [500, 1_000, 2_000] {
            let capacity = blocks * (len_u64(BLOCK_BYTES) + 512) + (192 << 10);
            let rates = BlockCacheKind::ALL.map(|kind| hit_rate(kind, capacity, draw));
            assert!((rates[0] - rates[1]).abs() < 0.06, "{name}, {blocks} blocks: {rates:?}");
            // The cache is deterministic, so a second run has the same hit rate.
            let again = BlockCacheKind::ALL.map(|kind| hit_rate(kind, capacity, draw));
            assert_eq!(rates, again, "{name}, {blocks} blocks");
        }
    }
}

/// Returns the hit rate after the working set has changed. Before that, `change_capacity` may change the capacity.
fn hit_rate_of_second_working_set(
    kind: BlockCacheKind,
    change_capacity: fn(&dyn DataBlockCache, u64),
) -> f64 {
    const BLOCKS: u64 = 1_000;
    let capacity = BLOCKS * (len_u64(BLOCK_BYTES) + 512) + (192 << 10);
    let store = new_data_cache(kind, capacity);
    change_capacity(&*store, capacity);
    let mut numbers = NumberStream(3);
    let mut hits = 0;
    for round in 0..80_000 {
        let first = if round < 20_000 { 0 } else { 100_000 };
        let number = first + numbers.below(BLOCKS * 3 / 2);
        match store.get(id(number)) {
            Some(_) => hits += u32::from(round >= 50_000),
            None => store.insert(id(number), block(number, None)),
        }
    }
    f64::from(hits) / 30_000.0
}

#[test]
#[cfg_attr(miri, ignore = "counts what many lookups hit")]
fn changes_of_the_capacity_keep_the_hit_rate_of_later_working_sets() {
    let small: fn(&dyn DataBlockCache, u64) = |store, capacity| {
        for _ in 0..300 {
            store.set_capacity(capacity - capacity / 256);
            store.set_capacity(capacity);
        }
    };
    let large: fn(&dyn DataBlockCache, u64) = |store, capacity| {
        for _ in 0..300 {
            store.set_capacity(capacity - capacity / 5);
            store.set_capacity(capacity);
        }
    };
    let to_zero: fn(&dyn DataBlockCache, u64) = |store, capacity| {
        store.set_capacity(0);
        store.set_capacity(capacity);
    };
    for kind in BlockCacheKind::ALL {
        let unchanged = hit_rate_of_second_working_set(kind, |_, _| {});
        for (name, change) in [("small", small), ("large", large), ("to zero", to_zero)] {
            let changed = hit_rate_of_second_working_set(kind, change);
            assert!((unchanged - changed).abs() < 0.06, "{kind}, {name}: {unchanged}, {changed}");
        }
    }
}

#[test]
fn evicted_blocks_leave_memory() {
    const BLOCKS: u64 = if cfg!(miri) { 40 } else { 20_000 };
    // The capacity is smaller than the total size of the inserted blocks.
    let capacity = if cfg!(miri) { 1 << 17 } else { 4 << 20 };
    for kind in BlockCacheKind::ALL {
        let live = Arc::new(BlockMemoryCounter::default());
        let store = new_data_cache(kind, capacity);
        let mut uncached_max = 0;
        for number in 0..BLOCKS {
            // `moka` admits a block only if it was looked up more often than the block that it would replace.
            for _ in 0..3 {
                let _ = store.get(id(number));
            }
            store.insert(id(number), block(number, Some(&live)));
            let uncached = live.bytes().saturating_sub(store.bytes_without_overhead());
            uncached_max = uncached_max.max(uncached / len_u64(BLOCK_BYTES));
        }
        assert!(uncached_max <= 1, "{kind}: {uncached_max} evicted blocks are still in memory");
    }
}

#[test]
fn block_cache_kind_parses_its_name() {
    for kind in BlockCacheKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("clock".parse::<BlockCacheKind>().is_err());
}
