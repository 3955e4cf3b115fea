//! Filter block: "surely absent" or "maybe", about the user keys of one table, little-endian.
//!
//! ```text
//!  0  1  coding                u8, 0 = binary fuse, 8-bit fingerprints
//!  1  8  seed                  u64, chosen by the construction
//!  9  4  segment length        u32, a power of two
//! 13  4  segment count length  u32, a multiple of the segment length
//! 17  n  fingerprints          n = segment count length + 2 × segment length
//! ```
//!
//! A key's hash is XXH3-64 with [`HASH_SEED`]. With `mix` the finisher of MurmurHash3 and
//! `h = mix(hash + seed)`, the fingerprint is the low byte of `h ^ (h >> 32)`, and a key may be
//! there if that equals the exclusive or of the three bytes at
//! `p0 = (h × segment count length) >> 64`, `p1 = (p0 + segment length) ^ (h >> 18 & mask)` and
//! `p2 = (p0 + 2 × segment length) ^ (h & mask)`, `mask = segment length − 1`.
//!
//! Source: Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor Filters", ACM JEA 27
//! (2022); about 9 bits a key, one false "maybe" in 256.

use bytes::Bytes;
use xorf::{BinaryFuse8, BinaryFuse8Ref, DmaSerializable, Filter as _, FilterRef};

use crate::checksum::xxh3_seeded;
use crate::coding::{Decoder, len_u64, put_u32};
use crate::error::Malformed;

/// The one coding of filter blocks so far.
pub const CODING_BINARY_FUSE_8: u8 = 0;

/// Seed of the key hashes, so that they are not those of another use of the hash.
pub const HASH_SEED: u64 = 0x6c73_6d78_6669_6c74;

const HEADER_BYTES: usize = 1 + 8 + 4 + 4;
/// xorf's descriptor: seed, segment length, its mask, segment count length.
const DESCRIPTOR_BYTES: usize = 8 + 3 * 4;
const _: () = assert!(BinaryFuse8::DESCRIPTOR_LEN == DESCRIPTOR_BYTES, "xorf's layout is known");

/// What a filter keeps of a user key.
#[inline]
#[must_use]
pub fn key_hash(user_key: &[u8]) -> u64 {
    xxh3_seeded(user_key, HASH_SEED)
}

/// Builds the contents of a filter block, or `None` if the construction fails (it is randomised:
/// a thousand tries failing is a matter of luck that nobody has had yet). Sorts the hashes and
/// removes duplicates. No hashes, no filter.
#[must_use]
pub fn build(hashes: &mut Vec<u64>) -> Option<Vec<u8>> {
    hashes.sort_unstable();
    hashes.dedup();
    if hashes.is_empty() || u32::try_from(hashes.len()).is_err() {
        return None;
    }
    let filter = BinaryFuse8::try_from(hashes.as_slice()).ok()?;
    let descriptor = &filter.descriptor;
    let mut out = Vec::with_capacity(HEADER_BYTES + filter.fingerprints.len());
    out.push(CODING_BINARY_FUSE_8);
    out.extend_from_slice(&descriptor.seed.to_le_bytes());
    put_u32(&mut out, descriptor.segment_length);
    put_u32(&mut out, descriptor.segment_count_length);
    out.extend_from_slice(&filter.fingerprints);
    Some(out)
}

/// A filter that reads the contents of its block in place.
#[derive(Clone, Debug)]
pub struct Filter {
    block: Bytes,
    descriptor: [u8; DESCRIPTOR_BYTES],
}

impl Filter {
    /// Takes block contents over after checking that no question can lead past their end.
    ///
    /// # Errors
    /// When they are not those of a filter block.
    pub fn new(block: Bytes) -> Result<Filter, Malformed> {
        let mut decoder = Decoder::new(&block);
        let coding = decoder.u8("filter coding")?;
        if coding != CODING_BINARY_FUSE_8 {
            return Err(Malformed::Field {
                what: "filter coding",
                found: u64::from(coding),
                expected: "0 (binary fuse, 8 bits)",
            });
        }
        let seed = decoder.u64("filter seed")?;
        let segment = decoder.u32("filter segment length")?;
        let count = decoder.u32("filter segment count length")?;
        if !segment.is_power_of_two() || segment > 1 << 18 {
            return Err(Malformed::Field {
                what: "filter segment length",
                found: u64::from(segment),
                expected: "a power of two up to 262144",
            });
        }
        if count == 0 || count % segment != 0 {
            return Err(Malformed::Field {
                what: "filter segment count length",
                found: u64::from(count),
                expected: "a multiple of the segment length",
            });
        }
        // Positions reach from 0 to count + 2 × segment − 1, and must do so in 32 bits.
        let needed = u64::from(count) + 2 * u64::from(segment);
        if needed > u64::from(u32::MAX) || needed != len_u64(decoder.remaining()) {
            return Err(Malformed::Field {
                what: "filter fingerprints",
                found: len_u64(decoder.remaining()),
                expected: "one byte for each position of the segments",
            });
        }
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor[..8].copy_from_slice(&seed.to_le_bytes());
        descriptor[8..12].copy_from_slice(&segment.to_le_bytes());
        descriptor[12..16].copy_from_slice(&(segment - 1).to_le_bytes());
        descriptor[16..].copy_from_slice(&count.to_le_bytes());
        Ok(Filter { block, descriptor })
    }

    /// Whether a key with this [`key_hash`] may be in the table.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        BinaryFuse8Ref::from_dma(&self.descriptor, &self.block[HEADER_BYTES..]).contains(&hash)
    }

    /// Bytes of the block's contents.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(count: u64) -> Vec<u64> {
        (0..count).map(|key| key_hash(&key.to_be_bytes())).collect()
    }

    #[test]
    fn every_key_passes_and_few_others_do_at_any_size() {
        for count in (1..200).chain([255, 256, 257, 1_000, 4_096, 10_007, 100_000]) {
            let keys = hashes(count);
            let filter = Filter::new(build(&mut keys.clone()).unwrap().into()).unwrap();
            assert!(keys.iter().all(|&hash| filter.may_contain(hash)), "{count} keys");
            if count > 1_000 {
                let others = (count..count + 20_000).map(|key| key_hash(&key.to_be_bytes()));
                let maybes = others.filter(|&hash| filter.may_contain(hash)).count();
                assert!(maybes < 20_000 / 200, "{maybes} of 20000 at {count} keys");
                assert!(filter.bytes() * 8 < usize::try_from(count).unwrap() * 12 + 2_000);
            }
        }
    }

    #[test]
    fn duplicates_do_no_harm_and_no_keys_make_no_filter() {
        let mut keys = hashes(100);
        keys.extend(hashes(100));
        assert!(build(&mut keys).is_some());
        assert_eq!(keys.len(), 100);
        assert!(build(&mut Vec::new()).is_none());
    }

    #[test]
    fn damage_is_refused_or_answers_without_a_panic() {
        let block = build(&mut hashes(50)).unwrap();
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The block checksum finds such damage; here only that no question runs off the end.
            if let Ok(filter) = Filter::new(damaged.into()) {
                for hash in hashes(200) {
                    let _ = filter.may_contain(hash);
                }
            }
        }
        for len in 0..block.len() {
            assert!(Filter::new(block[..len].to_vec().into()).is_err(), "{len} bytes");
        }
    }
}
