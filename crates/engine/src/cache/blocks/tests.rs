#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

use lsmx_base::coding::len_u64;
use lsmx_base::slice::LiveBlocks;
use lsmx_base::sync::Arc;

use crate::cache::blocks::*;

const BLOCK_BYTES: usize = 4096;

/// Numbers that look like chance and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }

    /// Below `bound`, and with the square of the chance the smaller it is.
    fn skewed(&mut self, bound: u64) -> u64 {
        let share = self.below(1 << 30) as f64 / f64::from(1 << 30);
        // Zipf of exponent one, by the inverse of its sum.
        ((bound as f64).powf(share) - 1.0) as u64
    }
}

fn id(number: u64) -> BlockId {
    BlockId { table: number % 7, offset: number }
}

fn block(number: u64, live: Option<&Arc<LiveBlocks>>) -> BlockBytes {
    let mut contents = vec![0; BLOCK_BYTES];
    contents[..8].copy_from_slice(&number.to_le_bytes());
    BlockBytes::copy_counted(&contents, live)
}

fn number_in(block: &BlockBytes) -> u64 {
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

#[test]
#[cfg_attr(miri, ignore = "fills megabytes")]
fn a_capacity_is_kept_wherever_it_moves() {
    for kind in BlockCacheKind::ALL {
        let largest = 3 << 20;
        let store = store(kind, largest);
        let (mut capacity, mut numbers, mut fullest) = (largest, Numbers(1), 0.0_f64);
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
        assert!(fullest > 0.8, "{kind}: never more than {fullest} of the capacity");
        store.set_capacity(0);
        assert_eq!((store.bytes(), store.content_bytes()), (0, 0), "{kind}");
    }
}

#[test]
fn what_is_there_is_what_was_put() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5_000 };
    for kind in BlockCacheKind::ALL {
        let store = store(kind, 2 << 20);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let store = &store;
                scope.spawn(move || {
                    let mut numbers = Numbers(seed);
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
        // And what was put is there, where nothing else is.
        store.set_capacity(0);
        store.set_capacity(2 << 20);
        store.insert(id(7), block(7, None));
        assert_eq!(store.get(id(7)).as_ref().map(number_in), Some(7), "{kind}");
    }
}

/// Hits of so many lookups, each of which puts in what it misses.
fn hit_rate(kind: BlockCacheKind, capacity: u64, draw: fn(&mut Numbers) -> u64) -> f64 {
    let store = store(kind, capacity);
    let mut numbers = Numbers(3);
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
fn both_hit_about_as_often() {
    let uniform: fn(&mut Numbers) -> u64 = |numbers| numbers.below(4_000);
    let skewed: fn(&mut Numbers) -> u64 = |numbers| numbers.skewed(4_000);
    for (name, draw) in [("uniform", uniform), ("skewed", skewed)] {
        for blocks in [500, 1_000, 2_000] {
            let capacity = blocks * (len_u64(BLOCK_BYTES) + 512) + (192 << 10);
            let rates = BlockCacheKind::ALL.map(|kind| hit_rate(kind, capacity, draw));
            assert!((rates[0] - rates[1]).abs() < 0.06, "{name}, {blocks} blocks: {rates:?}");
            // Chance and no timer decides what is kept.
            let again = BlockCacheKind::ALL.map(|kind| hit_rate(kind, capacity, draw));
            assert_eq!(rates, again, "{name}, {blocks} blocks");
        }
    }
}

#[test]
fn blocks_that_were_put_out_leave_memory() {
    const BLOCKS: u64 = if cfg!(miri) { 40 } else { 20_000 };
    // Room for a part of them.
    let capacity = if cfg!(miri) { 1 << 17 } else { 4 << 20 };
    for kind in BlockCacheKind::ALL {
        let live = Arc::new(LiveBlocks::default());
        let store = store(kind, capacity);
        let mut most_beside = 0;
        for number in 0..BLOCKS {
            // What was asked for more often puts others out.
            for _ in 0..3 {
                let _ = store.get(id(number));
            }
            store.insert(id(number), block(number, Some(&live)));
            let beside = live.bytes().saturating_sub(store.content_bytes());
            most_beside = most_beside.max(beside / len_u64(BLOCK_BYTES));
        }
        assert!(most_beside <= 1, "{kind}: {most_beside} blocks neither there nor gone");
    }
}

#[test]
fn kinds_have_names() {
    for kind in BlockCacheKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("clock".parse::<BlockCacheKind>().is_err());
}
