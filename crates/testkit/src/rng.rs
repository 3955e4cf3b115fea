//! Pseudo-random numbers for tests.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Random number generator. Equal seeds give equal sequences in all releases.
#[derive(Clone, Debug)]
pub struct TestRng(ChaCha8Rng);

impl TestRng {
    #[must_use]
    pub fn new(seed: u64) -> TestRng {
        TestRng(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a generator for the seed. Equal seeds with different `stream` numbers give independent sequences.
    #[must_use]
    pub fn with_stream(seed: u64, stream: u64) -> TestRng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        TestRng(rng)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number from 0 to `end - 1`. `end` must be positive.
    pub fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, end: N) -> N {
        let Ok(end) = end.try_into() else { panic!("a negative number") };
        let Ok(number) = N::try_from(self.next_u64() % end) else { unreachable!("below `end`") };
        number
    }

    /// Returns a number from `first` to `last`, both included.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// Returns true with a probability of 1 in `count`, which must be positive.
    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns true with a probability of `percent` per cent.
    pub fn is_true_with_percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items. The slice must not be empty.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// Returns a seed derived from a seed and a number.
#[must_use]
pub fn mix_seeds(seed: u64, number: u64) -> u64 {
    TestRng::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64()
}
