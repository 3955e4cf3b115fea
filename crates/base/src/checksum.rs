//! XXH3-64 checksums. The seed of a checksum depends on the file and the offset of the bytes.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Returns the XXH3-64 of `bytes` with seed 0, the value that `xxhsum -H3` prints.
#[inline]
#[must_use]
pub fn xxh3(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Returns the XXH3-64 of `bytes` with a seed.
#[inline]
#[must_use]
pub fn xxh3_seeded(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Returns the checksum seed for bytes at `offset` of the file with this uid.
///
/// A checksum with this seed detects bytes that were copied from another offset, or from the same offset of another
/// file. Distinct offsets of one file have distinct seeds. At one offset, files with distinct uids have distinct seeds.
/// Both hold because multiplication by an odd constant and the finalizer of `SplitMix64` are bijections.
#[inline]
#[must_use]
pub const fn file_location_seed(uid: u64, offset: u64) -> u64 {
    let mut x = uid ^ offset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the checksum of bytes at `offset` of the file with this uid: XXH3-64 with [`file_location_seed`].
#[inline]
#[must_use]
pub fn xxh3_at_file_location(bytes: &[u8], uid: u64, offset: u64) -> u64 {
    xxh3_seeded(bytes, file_location_seed(uid, offset))
}

/// Computes an XXH3-64 over bytes that arrive in pieces.
pub struct StreamingChecksum(Xxh3);

impl StreamingChecksum {
    /// Starts a checksum with this seed. Seed 0 gives the value of [`xxh3`].
    #[must_use]
    pub fn new(seed: u64) -> StreamingChecksum {
        StreamingChecksum(Xxh3::with_seed(seed))
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all pieces so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.0.digest()
    }
}

impl fmt::Debug for StreamingChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamingChecksum").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_checksum_equals_one_shot_checksum() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[1] ^ 0x5a).collect();
        for cut in [0, 1, 255, 256, 1024, 9_999] {
            let mut streaming = StreamingChecksum::new(0);
            streaming.update(&bytes[..cut]);
            streaming.update(&bytes[cut..]);
            assert_eq!(streaming.digest(), xxh3(&bytes));
        }
        let mut streaming = StreamingChecksum::new(7);
        for (index, piece) in bytes.chunks(97).enumerate() {
            streaming.update(piece);
            let end = bytes.len().min((index + 1) * 97);
            assert_eq!(streaming.digest(), xxh3_seeded(&bytes[..end], 7));
        }
    }

    #[test]
    fn location_seed_distinct_locations_have_distinct_seeds() {
        let mut seeds: Vec<u64> = (0..100u64)
            .flat_map(|uid| (0..100u64).map(move |block| file_location_seed(uid, block * 4096)))
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 10_000);
    }

    #[test]
    fn xxh3_empty_input_has_published_value() {
        // Test vector of the XXH3 specification.
        assert_eq!(xxh3(b""), 0x2d06_8005_38d3_94c2);
        assert_ne!(xxh3_seeded(b"", 1), xxh3(b""));
    }
}
