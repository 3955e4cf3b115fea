//! Pseudo-random numbers for policy checks and tests. Equal seeds give equal sequences.

/// Random number generator with 64 bits of state.
///
/// Source: Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64).
#[derive(Clone, Debug)]
pub struct TestRng(u64);

impl TestRng {
    /// Returns a generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> TestRng {
        TestRng(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `end - 1`. `end` must be positive.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Returns a number from `start` to `end - 1`.
    pub fn between(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start)
    }

    /// Returns true with a probability of `percent` per cent.
    pub fn is_true_with_percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a random element, or `None` for an empty slice.
    pub fn choose<'a, T>(&mut self, values: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(values.len()).ok().filter(|count| *count > 0)?;
        values.get(usize::try_from(self.below(count)).ok()?)
    }
}
