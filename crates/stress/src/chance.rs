//! Draws that follow from a seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Draws that follow from a seed, the same in every release.
#[derive(Clone, Debug)]
pub struct Chance(ChaCha8Rng);

impl Chance {
    /// Draws that follow from this seed.
    #[must_use]
    pub fn new(seed: u64) -> Chance {
        Chance(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Yes, once in so many times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of these, of which there are some.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap_or(0)]
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// Two numbers made one.
#[must_use]
pub fn mix(one: u64, other: u64) -> u64 {
    Chance::new(one ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15)).draw()
}
