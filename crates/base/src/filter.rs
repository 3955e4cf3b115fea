//! Filter block: a binary fuse filter over the user keys of one table. If the table has a prefix extractor, the filter
//! also contains the prefixes of these keys. Numbers are little-endian.
//!
//! ```text
//!  0  1  coding                u8, 0 for 8-bit fingerprints, 1 for 16-bit fingerprints
//!  1  8  seed                  u64, chosen when the filter is built
//!  9  4  segment length        u32, a power of two
//! 13  4  segment count length  u32, a multiple of the segment length
//! 17  n  fingerprints          segment count length + 2 × segment length, each a u8 or a u16
//! ```
//!
//! A lookup computes these values:
//! 1. `hash`, the XXH3-64 of the key with [`KEY_HASH_SEED`], or of the prefix with [`PREFIX_HASH_SEED`];
//! 2. `h = mix_hash(hash + seed)` with the finalizer of MurmurHash3;
//! 3. the fingerprint of the key: the low byte, or the two low bytes, of `h ^ (h >> 32)`;
//! 4. three positions, with `mask = segment length − 1`: `p0 = (h × segment count length) >> 64`,
//!    `p1 = (p0 + segment length) ^ (h >> 18 & mask)` and `p2 = (p0 + 2 × segment length) ^ (h & mask)`.
//!
//! The table may contain the key if the fingerprint equals the XOR of the fingerprints at these positions.
//!
//! A filter with 8-bit fingerprints takes about 9 bits per key and has a false-positive rate of 1/256. A filter with
//! 16-bit fingerprints takes about 18 bits per key and has a false-positive rate of 1/65,536.
//!
//! Source: Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor Filters", ACM JEA 27 (2022).

use crate::checksum::xxh3_seeded;
use crate::coding::{Decoder, len_u64, put_u32};
use crate::malformed::Malformed;
use bytes::Bytes;
use xorf::{BinaryFuse8, BinaryFuse8Ref, BinaryFuse16, DmaSerializable, Filter as _, FilterRef};

/// Stored number of [`FilterWidth::Fuse8`].
pub const CODING_BINARY_FUSE_8: u8 = 0;

/// Stored number of [`FilterWidth::Fuse16`].
pub const CODING_BINARY_FUSE_16: u8 = 1;

/// Seed of [`key_hash`], a constant of the file format.
pub const KEY_HASH_SEED: u64 = 0x6c73_6d78_6669_6c74;

/// Returns the hash of a user key for filters: XXH3-64 with [`KEY_HASH_SEED`].
#[inline]
#[must_use]
pub fn key_hash(user_key: &[u8]) -> u64 {
    xxh3_seeded(user_key, KEY_HASH_SEED)
}

/// Seed of [`prefix_hash`], a constant of the file format.
pub const PREFIX_HASH_SEED: u64 = 0x6c73_6d78_7072_6566;

/// Returns the hash of a prefix of keys for filters: XXH3-64 with [`PREFIX_HASH_SEED`].
#[inline]
#[must_use]
pub fn prefix_hash(prefix: &[u8]) -> u64 {
    xxh3_seeded(prefix, PREFIX_HASH_SEED)
}

const HEADER_BYTES: usize = 1 + 8 + 4 + 4;
/// Size of the descriptor of `xorf`: seed, segment length, segment mask, segment count length.
const DESCRIPTOR_BYTES: usize = 8 + 3 * 4;
const _: () =
    assert!(BinaryFuse8::DESCRIPTOR_LEN == DESCRIPTOR_BYTES, "xorf has the expected layout");

/// Fingerprint size of a filter. Wider fingerprints give fewer false positives.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum FilterWidth {
    /// 8-bit fingerprints: about 9 bits per key, false-positive rate 1/256.
    #[default]
    Fuse8,
    /// 16-bit fingerprints: about 18 bits per key, false-positive rate 1/65,536.
    Fuse16,
}

impl FilterWidth {
    /// Returns the size of a fingerprint, in bits.
    #[must_use]
    pub const fn fingerprint_bits(self) -> u32 {
        match self {
            FilterWidth::Fuse8 => 8,
            FilterWidth::Fuse16 => 16,
        }
    }

    /// Returns the approximate size of a large filter, in bits per key.
    #[must_use]
    pub const fn bits_per_key(self) -> u32 {
        match self {
            FilterWidth::Fuse8 => 9,
            FilterWidth::Fuse16 => 18,
        }
    }

    /// Returns the expected share of absent keys for which the filter returns true.
    #[must_use]
    pub fn false_positive_rate(self) -> f64 {
        0.5_f64.powi(self.fingerprint_bits().cast_signed())
    }

    /// Returns the number by which the filter block stores this width.
    #[must_use]
    pub const fn format_code(self) -> u8 {
        match self {
            FilterWidth::Fuse8 => CODING_BINARY_FUSE_8,
            FilterWidth::Fuse16 => CODING_BINARY_FUSE_16,
        }
    }

    fn from_format_code(code: u8) -> Result<FilterWidth, Malformed> {
        match code {
            CODING_BINARY_FUSE_8 => Ok(FilterWidth::Fuse8),
            CODING_BINARY_FUSE_16 => Ok(FilterWidth::Fuse16),
            _ => Err(Malformed::Field {
                what: "filter coding",
                found: u64::from(code),
                expected: "0 or 1 (binary fuse, 8 or 16 bits)",
            }),
        }
    }

    const fn fingerprint_bytes(self) -> usize {
        self.fingerprint_bits() as usize / 8
    }
}

/// Builds the contents of a filter block. Sorts `hashes` and removes duplicates.
///
/// Returns `None` if there are no hashes or at least 2^32. Also returns `None` if the randomized construction fails
/// 1,000 times in a row, which is practically impossible.
#[must_use]
pub fn build_filter(hashes: &mut Vec<u64>, width: FilterWidth) -> Option<Vec<u8>> {
    hashes.sort_unstable();
    hashes.dedup();
    if hashes.is_empty() || u32::try_from(hashes.len()).is_err() {
        return None;
    }
    match width {
        FilterWidth::Fuse8 => {
            let filter = BinaryFuse8::try_from(hashes.as_slice()).ok()?;
            let descriptor = &filter.descriptor;
            let lengths = (descriptor.segment_length, descriptor.segment_count_length);
            let mut out = encode_header(width, descriptor.seed, lengths, filter.fingerprints.len());
            out.extend_from_slice(&filter.fingerprints);
            Some(out)
        }
        FilterWidth::Fuse16 => {
            let filter = BinaryFuse16::try_from(hashes.as_slice()).ok()?;
            let descriptor = &filter.descriptor;
            let lengths = (descriptor.segment_length, descriptor.segment_count_length);
            let mut out = encode_header(width, descriptor.seed, lengths, filter.fingerprints.len());
            for fingerprint in &filter.fingerprints {
                out.extend_from_slice(&fingerprint.to_le_bytes());
            }
            Some(out)
        }
    }
}

/// Encodes the fields before the fingerprints, and reserves memory for the fingerprints.
fn encode_header(
    width: FilterWidth,
    seed: u64,
    (segment, count): (u32, u32),
    fingerprints: usize,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + fingerprints * width.fingerprint_bytes());
    out.push(width.format_code());
    out.extend_from_slice(&seed.to_le_bytes());
    put_u32(&mut out, segment);
    put_u32(&mut out, count);
    out
}

/// A filter that reads the fingerprints directly from its block.
#[derive(Clone, Debug)]
pub struct Filter {
    block: Bytes,
    width: FilterWidth,
    descriptor: [u8; DESCRIPTOR_BYTES],
}

impl Filter {
    /// Opens a filter block. Checks that no lookup can read past the end of the block.
    ///
    /// # Errors
    /// Fails if `block` is not a valid filter block.
    pub fn new(block: Bytes) -> Result<Filter, Malformed> {
        let mut decoder = Decoder::new(&block);
        let width = FilterWidth::from_format_code(decoder.u8("filter coding")?)?;
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
        // `contains` computes fingerprint positions below `count + 2 * segment` in 32 bits.
        let positions = u64::from(count) + 2 * u64::from(segment);
        let needed = positions * len_u64(width.fingerprint_bytes());
        if positions > u64::from(u32::MAX) || needed != len_u64(decoder.remaining()) {
            return Err(Malformed::Field {
                what: "filter fingerprints",
                found: len_u64(decoder.remaining()),
                expected: "one per position of the segments",
            });
        }
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor[..8].copy_from_slice(&seed.to_le_bytes());
        descriptor[8..12].copy_from_slice(&segment.to_le_bytes());
        descriptor[12..16].copy_from_slice(&(segment - 1).to_le_bytes());
        descriptor[16..].copy_from_slice(&count.to_le_bytes());
        Ok(Filter { block, width, descriptor })
    }

    /// Returns whether a key with this [`key_hash`] may be in the table.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let fingerprints = &self.block[HEADER_BYTES..];
        match self.width {
            FilterWidth::Fuse8 => {
                BinaryFuse8Ref::from_dma(&self.descriptor, fingerprints).contains(&hash)
            }
            FilterWidth::Fuse16 => self.may_contain_fuse16(fingerprints, hash),
        }
    }

    /// Implements `xorf::BinaryFuse16::contains` for fingerprints at any address. The function in `xorf` requires an
    /// even address, but the fingerprints in a block may start at an odd address.
    #[inline]
    fn may_contain_fuse16(&self, fingerprints: &[u8], hash: u64) -> bool {
        let (seed, fields) = self.descriptor.split_at(8);
        let seed = seed.try_into().map_or(0, u64::from_le_bytes);
        let field = |at: usize| fields[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let (segment, mask, count) = (field(0), field(4), field(8));
        let hash = mix_hash(hash.wrapping_add(seed));
        let low = |number: u64| u32::try_from(number & u64::from(mask)).unwrap_or(0);
        // The product is less than count, so it fits in 32 bits.
        let p0 = u32::try_from((u128::from(hash) * u128::from(count)) >> 64).unwrap_or(0);
        let p1 = (p0 + segment) ^ low(hash >> 18);
        let p2 = (p0 + 2 * segment) ^ low(hash);
        let at = |position: u32| {
            let offset = 2 * position as usize;
            u16::from_le_bytes([fingerprints[offset], fingerprints[offset + 1]])
        };
        let [.., high, lowest] = (hash ^ (hash >> 32)).to_be_bytes();
        u16::from_be_bytes([high, lowest]) == at(p0) ^ at(p1) ^ at(p2)
    }

    /// Returns the fingerprint size.
    #[must_use]
    pub fn width(&self) -> FilterWidth {
        self.width
    }

    /// Returns the size of the block, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.len()
    }
}

/// The 64-bit finalizer of MurmurHash3.
#[inline]
fn mix_hash(mut hash: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [FilterWidth; 2] = [FilterWidth::Fuse8, FilterWidth::Fuse16];

    fn hashes(count: u64) -> Vec<u64> {
        (0..count).map(|key| key_hash(&key.to_be_bytes())).collect()
    }

    fn filter(count: u64, width: FilterWidth) -> Filter {
        Filter::new(build_filter(&mut hashes(count), width).unwrap().into()).unwrap()
    }

    #[test]
    fn filter_of_any_size_contains_its_keys_and_few_others() {
        for width in WIDTHS {
            for count in (1..200).chain([255, 256, 257, 1_000, 4_096, 10_007, 100_000]) {
                let filter = filter(count, width);
                assert_eq!(filter.width(), width);
                assert!(hashes(count).iter().all(|&hash| filter.may_contain(hash)), "{count} keys");
                if count > 1_000 {
                    let others = (count..count + 20_000).map(|key| key_hash(&key.to_be_bytes()));
                    let false_positives = others.filter(|&hash| filter.may_contain(hash)).count();
                    let limit = if width == FilterWidth::Fuse8 { 20_000 / 200 } else { 4 };
                    assert!(false_positives <= limit, "{false_positives} of 20000 at {count} keys");
                    let bits = filter.bytes() * 8 / width.fingerprint_bytes();
                    assert!(bits < usize::try_from(count).unwrap() * 12 + 2_000);
                }
            }
        }
    }

    #[test]
    fn may_contain_fuse16_equals_the_library() {
        for count in [1, 2, 50, 3_000, 60_000] {
            let keys = hashes(count);
            let library = BinaryFuse16::try_from(keys.as_slice()).unwrap();
            let ours = filter(count, FilterWidth::Fuse16);
            for hash in hashes(count + 200_000) {
                assert_eq!(ours.may_contain(hash), library.contains(&hash), "{count} keys");
            }
        }
    }

    #[test]
    fn build_filter_removes_duplicates_and_returns_none_for_no_keys() {
        for width in WIDTHS {
            let mut keys = hashes(100);
            keys.extend(hashes(100));
            assert!(build_filter(&mut keys, width).is_some());
            assert_eq!(keys.len(), 100);
            assert!(build_filter(&mut Vec::new(), width).is_none());
        }
    }

    #[test]
    fn damaged_filter_fails_to_open_or_answers_without_panic() {
        for width in WIDTHS {
            let block = build_filter(&mut hashes(50), width).unwrap();
            for bit in 0..block.len() * 8 {
                let mut damaged = block.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                // In a database, the checksum of the block detects the damage. This test checks only that no lookup
                // panics.
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
        let mut unknown = build_filter(&mut hashes(50), FilterWidth::Fuse16).unwrap();
        unknown[0] = 2;
        assert!(Filter::new(unknown.into()).is_err());
    }
}
