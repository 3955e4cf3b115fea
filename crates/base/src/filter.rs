//! Filter block: "surely absent" or "maybe", about the user keys of one table, little-endian.
//!
//! ```text
//!  0  1  coding                u8, 0 = binary fuse, 8-bit fingerprints; 1 = the same, 16-bit
//!  1  8  seed                  u64, chosen by the construction
//!  9  4  segment length        u32, a power of two
//! 13  4  segment count length  u32, a multiple of the segment length
//! 17  n  fingerprints          segment count length + 2 × segment length, each a u8 or a u16
//! ```
//!
//! A key's hash is XXH3-64 with [`KEY_HASH_SEED`]. With `mix` the finisher of MurmurHash3 and
//! `h = mix(hash + seed)`, the fingerprint is the low byte, or the two low bytes, of `h ^ (h >> 32)`, and a
//! key may be there if that equals the exclusive or of the three fingerprints at
//! `p0 = (h × segment count length) >> 64`, `p1 = (p0 + segment length) ^ (h >> 18 & mask)` and
//! `p2 = (p0 + 2 × segment length) ^ (h & mask)`, `mask = segment length − 1`.
//!
//! Source: Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor Filters", ACM JEA 27
//! (2022); about 9 bits a key and one false "maybe" in 256, or 18 bits and one in 65,536.

use crate::checksum::xxh3_seeded;
use crate::coding::{Decoder, len_u64, put_u32};
use crate::malformed::Malformed;
use bytes::Bytes;
use xorf::{BinaryFuse8, BinaryFuse8Ref, BinaryFuse16, DmaSerializable, Filter as _, FilterRef};

/// Coding of filters with 8-bit fingerprints.
pub const CODING_BINARY_FUSE_8: u8 = 0;

/// Coding of filters with 16-bit fingerprints.
pub const CODING_BINARY_FUSE_16: u8 = 1;

/// Seed of [`key_hash`], a constant of the file format.
pub const KEY_HASH_SEED: u64 = 0x6c73_6d78_6669_6c74;

/// Returns the hash under which filters store a user key: XXH3-64 with [`KEY_HASH_SEED`].
#[inline]
#[must_use]
pub fn key_hash(user_key: &[u8]) -> u64 {
    xxh3_seeded(user_key, KEY_HASH_SEED)
}

const HEADER_BYTES: usize = 1 + 8 + 4 + 4;
/// xorf's descriptor: seed, segment length, its mask, segment count length.
const DESCRIPTOR_BYTES: usize = 8 + 3 * 4;
const _: () = assert!(BinaryFuse8::DESCRIPTOR_LEN == DESCRIPTOR_BYTES, "xorf's layout is known");

/// What a filter keeps of a key: the wider, the fewer false answers.
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
    /// Fingerprints of 8 bits: about 9 bits a key, one false answer in 256.
    #[default]
    Fuse8,
    /// Fingerprints of 16 bits: about 18 bits a key, one false answer in 65,536.
    Fuse16,
}

impl FilterWidth {
    /// Bits of a fingerprint.
    #[must_use]
    pub const fn fingerprint_bits(self) -> u32 {
        match self {
            FilterWidth::Fuse8 => 8,
            FilterWidth::Fuse16 => 16,
        }
    }

    /// Bits that a key takes in a large filter, about.
    #[must_use]
    pub const fn bits_per_key(self) -> u32 {
        match self {
            FilterWidth::Fuse8 => 9,
            FilterWidth::Fuse16 => 18,
        }
    }

    /// Share of absent keys that pass.
    #[must_use]
    pub fn false_positive_rate(self) -> f64 {
        0.5_f64.powi(self.fingerprint_bits().cast_signed())
    }

    /// Its number on disk.
    #[must_use]
    pub const fn coding(self) -> u8 {
        match self {
            FilterWidth::Fuse8 => CODING_BINARY_FUSE_8,
            FilterWidth::Fuse16 => CODING_BINARY_FUSE_16,
        }
    }

    fn of_coding(coding: u8) -> Result<FilterWidth, Malformed> {
        match coding {
            CODING_BINARY_FUSE_8 => Ok(FilterWidth::Fuse8),
            CODING_BINARY_FUSE_16 => Ok(FilterWidth::Fuse16),
            _ => Err(Malformed::Field {
                what: "filter coding",
                found: u64::from(coding),
                expected: "0 or 1 (binary fuse, 8 or 16 bits)",
            }),
        }
    }

    const fn fingerprint_bytes(self) -> usize {
        self.fingerprint_bits() as usize / 8
    }
}

/// Builds the contents of a filter block, or `None` if the construction fails (it is randomised:
/// a thousand tries failing is a matter of luck that nobody has had yet). Sorts the hashes and
/// removes duplicates. No hashes, no filter.
#[must_use]
pub fn build(hashes: &mut Vec<u64>, width: FilterWidth) -> Option<Vec<u8>> {
    hashes.sort_unstable();
    hashes.dedup();
    if hashes.is_empty() || u32::try_from(hashes.len()).is_err() {
        return None;
    }
    match width {
        FilterWidth::Fuse8 => {
            let filter = BinaryFuse8::try_from(hashes.as_slice()).ok()?;
            let descriptor = &filter.descriptor;
            let place = (descriptor.segment_length, descriptor.segment_count_length);
            let mut out = header(width, descriptor.seed, place, filter.fingerprints.len());
            out.extend_from_slice(&filter.fingerprints);
            Some(out)
        }
        FilterWidth::Fuse16 => {
            let filter = BinaryFuse16::try_from(hashes.as_slice()).ok()?;
            let descriptor = &filter.descriptor;
            let place = (descriptor.segment_length, descriptor.segment_count_length);
            let mut out = header(width, descriptor.seed, place, filter.fingerprints.len());
            for fingerprint in &filter.fingerprints {
                out.extend_from_slice(&fingerprint.to_le_bytes());
            }
            Some(out)
        }
    }
}

/// A block as far as its fingerprints, with room for those.
fn header(width: FilterWidth, seed: u64, (segment, count): (u32, u32), length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + length * width.fingerprint_bytes());
    out.push(width.coding());
    out.extend_from_slice(&seed.to_le_bytes());
    put_u32(&mut out, segment);
    put_u32(&mut out, count);
    out
}

/// A filter that reads the contents of its block in place.
#[derive(Clone, Debug)]
pub struct Filter {
    block: Bytes,
    width: FilterWidth,
    descriptor: [u8; DESCRIPTOR_BYTES],
}

impl Filter {
    /// Takes block contents over after checking that no question can lead past their end.
    ///
    /// # Errors
    /// When they are not those of a filter block.
    pub fn new(block: Bytes) -> Result<Filter, Malformed> {
        let mut decoder = Decoder::new(&block);
        let width = FilterWidth::of_coding(decoder.u8("filter coding")?)?;
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
        let positions = u64::from(count) + 2 * u64::from(segment);
        let needed = positions * len_u64(width.fingerprint_bytes());
        if positions > u64::from(u32::MAX) || needed != len_u64(decoder.remaining()) {
            return Err(Malformed::Field {
                what: "filter fingerprints",
                found: len_u64(decoder.remaining()),
                expected: "one for each position of the segments",
            });
        }
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor[..8].copy_from_slice(&seed.to_le_bytes());
        descriptor[8..12].copy_from_slice(&segment.to_le_bytes());
        descriptor[12..16].copy_from_slice(&(segment - 1).to_le_bytes());
        descriptor[16..].copy_from_slice(&count.to_le_bytes());
        Ok(Filter { block, width, descriptor })
    }

    /// Whether a key with this [`key_hash`] may be in the table.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let fingerprints = &self.block[HEADER_BYTES..];
        match self.width {
            FilterWidth::Fuse8 => {
                BinaryFuse8Ref::from_dma(&self.descriptor, fingerprints).contains(&hash)
            }
            FilterWidth::Fuse16 => self.may_contain_wide(fingerprints, hash),
        }
    }

    /// The question of `xorf`'s filter of that width, which wants its fingerprints at even addresses;
    /// ours lie where the block does.
    #[inline]
    fn may_contain_wide(&self, fingerprints: &[u8], hash: u64) -> bool {
        let (seed, fields) = self.descriptor.split_at(8);
        let seed = seed.try_into().map_or(0, u64::from_le_bytes);
        let field = |at: usize| fields[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let (segment, mask, count) = (field(0), field(4), field(8));
        let hash = mix(hash.wrapping_add(seed));
        let low = |number: u64| u32::try_from(number & u64::from(mask)).unwrap_or(0);
        // Less than the count, which has 32 bits.
        let place = (u128::from(hash) * u128::from(count)) >> 64;
        let p0 = u32::try_from(place).unwrap_or(0);
        let p1 = (p0 + segment) ^ low(hash >> 18);
        let p2 = (p0 + 2 * segment) ^ low(hash);
        let at = |place: u32| {
            let from = 2 * place as usize;
            u16::from_le_bytes([fingerprints[from], fingerprints[from + 1]])
        };
        let [.., high, lowest] = (hash ^ (hash >> 32)).to_be_bytes();
        u16::from_be_bytes([high, lowest]) == at(p0) ^ at(p1) ^ at(p2)
    }

    /// What it keeps of a key.
    #[must_use]
    pub fn width(&self) -> FilterWidth {
        self.width
    }

    /// Bytes of the block's contents.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.len()
    }
}

/// The finisher of MurmurHash3.
#[inline]
fn mix(mut hash: u64) -> u64 {
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
        Filter::new(build(&mut hashes(count), width).unwrap().into()).unwrap()
    }

    #[test]
    fn every_key_passes_and_few_others_do_at_any_size() {
        for width in WIDTHS {
            for count in (1..200).chain([255, 256, 257, 1_000, 4_096, 10_007, 100_000]) {
                let filter = filter(count, width);
                assert_eq!(filter.width(), width);
                assert!(hashes(count).iter().all(|&hash| filter.may_contain(hash)), "{count} keys");
                if count > 1_000 {
                    let others = (count..count + 20_000).map(|key| key_hash(&key.to_be_bytes()));
                    let maybes = others.filter(|&hash| filter.may_contain(hash)).count();
                    let most = if width == FilterWidth::Fuse8 { 20_000 / 200 } else { 4 };
                    assert!(maybes <= most, "{maybes} of 20000 at {count} keys");
                    let bits = filter.bytes() * 8 / width.fingerprint_bytes();
                    assert!(bits < usize::try_from(count).unwrap() * 12 + 2_000);
                }
            }
        }
    }

    // Ours reads its fingerprints at any address, and must come to the same answers.
    #[test]
    fn the_wide_question_is_the_one_of_the_library() {
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
    fn duplicates_do_no_harm_and_no_keys_make_no_filter() {
        for width in WIDTHS {
            let mut keys = hashes(100);
            keys.extend(hashes(100));
            assert!(build(&mut keys, width).is_some());
            assert_eq!(keys.len(), 100);
            assert!(build(&mut Vec::new(), width).is_none());
        }
    }

    #[test]
    fn damage_is_refused_or_answers_without_a_panic() {
        for width in WIDTHS {
            let block = build(&mut hashes(50), width).unwrap();
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
        let mut unknown = build(&mut hashes(50), FilterWidth::Fuse16).unwrap();
        unknown[0] = 2;
        assert!(Filter::new(unknown.into()).is_err());
    }
}
