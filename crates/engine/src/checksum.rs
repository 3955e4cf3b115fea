//! Checksums: XXH3 in 64 bits, seeded by the place where the bytes lie.

use xxhash_rust::xxh3::{Xxh3, Xxh3Default, xxh3_64, xxh3_64_with_seed};

/// XXH3-64 of `bytes` with seed 0, as `xxhsum -H3` prints it.
#[inline]
pub(crate) fn xxh3(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// XXH3-64 of `bytes` with a seed.
#[inline]
pub(crate) fn xxh3_seeded(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Seed that stands for a place: the file's uid and the offset in it.
///
/// For one uid no two offsets share a seed, and for one offset no two uids: the offset is spread by
/// an odd factor (a bijection), the sum goes through the finisher of SplitMix64 (another one). So
/// bytes that moved inside a file, or to the same offset of another, fail their checksum.
#[inline]
pub(crate) const fn place_seed(uid: u64, offset: u64) -> u64 {
    let mut x = uid ^ offset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// XXH3-64 with seed 0 over bytes that come in pieces.
#[derive(Clone, Default)]
pub(crate) struct Streaming(Xxh3Default);

impl Streaming {
    /// Of no bytes yet.
    pub(crate) fn new() -> Streaming {
        Streaming(Xxh3Default::new())
    }

    /// Takes the next bytes in.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub(crate) fn digest(&self) -> u64 {
        self.0.digest()
    }
}

impl std::fmt::Debug for Streaming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streaming").finish_non_exhaustive()
    }
}

/// XXH3-64 with a seed over bytes that come in pieces.
pub(crate) struct SeededStreaming(Xxh3);

impl SeededStreaming {
    /// Of no bytes yet.
    pub(crate) fn new(seed: u64) -> SeededStreaming {
        SeededStreaming(Xxh3::with_seed(seed))
    }

    /// Takes the next bytes in.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub(crate) fn digest(&self) -> u64 {
        self.0.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[1] ^ 0x5a).collect();
        for cut in [0, 1, 255, 256, 1024, 9_999] {
            let mut streaming = Streaming::new();
            streaming.update(&bytes[..cut]);
            streaming.update(&bytes[cut..]);
            assert_eq!(streaming.digest(), xxh3(&bytes));
        }
        let mut streaming = SeededStreaming::new(7);
        for (number, piece) in bytes.chunks(97).enumerate() {
            streaming.update(piece);
            let so_far = bytes.len().min((number + 1) * 97);
            assert_eq!(streaming.digest(), xxh3_seeded(&bytes[..so_far], 7));
        }
    }

    #[test]
    fn places_have_seeds_of_their_own() {
        let mut seeds: Vec<u64> = (0..100u64)
            .flat_map(|uid| (0..100u64).map(move |block| place_seed(uid, block * 4096)))
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 10_000);
    }

    #[test]
    fn checksums_are_the_published_ones() {
        // Of the XXH3 specification: the empty input, and the seed's part in it.
        assert_eq!(xxh3(b""), 0x2d06_8005_38d3_94c2);
        assert_ne!(xxh3_seeded(b"", 1), xxh3(b""));
    }
}
