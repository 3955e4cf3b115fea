//! Pseudo-random numbers for tests.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Generator whose sequence depends on a seed alone and is the same in every release.
#[derive(Clone, Debug)]
pub struct TestRng(ChaCha8Rng);

impl TestRng {
    /// Returns a generator for the seed. Equal seeds with different `stream` numbers give independent sequences.
    #[must_use]
    pub fn with_stream(seed: u64, stream: u64) -> TestRng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        TestRng(rng)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, which must be positive.
    pub fn below(&mut self, end: usize) -> usize {
        self.between(0, end - 1)
    }

    /// Returns a number from `first` to `last`, both included.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        let count = (last - first) as u64 + 1;
        first + usize::try_from(self.next_u64() % count).unwrap_or(0)
    }

    /// Returns one of the items. The slice must not be empty.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
