//! Non-decreasing sequence of integers in Elias-Fano encoding (1971–74). The encoded bytes are read in place.
//!
//! ```text
//!    v   last     varint, the last and largest number
//!    n   lows     low parts, packed from the lowest bit on; the width of each is
//!                 log2(last ÷ count), both rounded down
//!    8w  highs    u64 words, as many as needed: for each value of the high part, from 0 to that
//!                 of the last number, a one for each number with that high part, then a zero
//!    2s  samples  u16 each, bit positions in the highs: of every 128th one (samples by index)
//!                 or every 128th zero (samples by value), the first left out
//! ```
//!
//! The low parts are padded to whole bytes. Bit p of the high bits is bit p mod 64 of word p ÷ 64, counted from the
//! lowest bit. To compute the width of a low part, log2(0) is defined as 0.
//!
//! On average, a number needs 2 bits plus the logarithm of the mean difference between consecutive numbers. An access
//! by index with samples of ones reads a few words. A search by value with samples of zeros also reads a few words.

use std::ops::Range;

use lsmx_base::coding::{Decoder, get_u64, len_u64, put_varint, to_usize};
use lsmx_base::malformed::Malformed;

use super::offset_in_block;

/// Maximum length of a sequence. The high bits contain one 1 bit and at most two 0 bits per number, so bit positions
/// need at most 16 bits.
pub(super) const COUNT_MAX: usize = 16 << 10;

/// Maximum number of bits of a number. With this limit, one read of eight bytes contains every low part.
pub(super) const NUMBER_BITS_MAX: u8 = 57;

/// Number of 1 bits or 0 bits between two samples.
const SAMPLE_INTERVAL: usize = 128;

/// Length of a range up to which low parts are searched linearly. Longer ranges are first narrowed by binary search.
const LINEAR_SEARCH_MAX: usize = 8;

const WORD_BITS: usize = u64::BITS as usize;

/// The kind of access that the samples make fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceAccess {
    /// Access to the number at an index.
    ByIndex,
    /// Search for a number.
    ByValue,
}

impl SequenceAccess {
    fn sample_count(self, count: usize, high_last: usize) -> usize {
        match self {
            SequenceAccess::ByIndex => count.saturating_sub(1) / SAMPLE_INTERVAL,
            SequenceAccess::ByValue => high_last / SAMPLE_INTERVAL,
        }
    }
}

fn low_width(count: usize, last: u64) -> u8 {
    let step = last / len_u64(count).max(1);
    // The result of `checked_ilog2` is at most 63, so the conversion succeeds.
    let bits = step.checked_ilog2().unwrap_or(0);
    u8::try_from(bits).unwrap_or(NUMBER_BITS_MAX).min(NUMBER_BITS_MAX)
}

/// Estimates the size of an encoded sequence in bits, without samples and without the encoded last number.
pub(super) fn encoded_bits(count: usize, last: u64) -> u64 {
    let low = low_width(count, last);
    len_u64(count) * (u64::from(low) + 1) + (last >> low)
}

/// Appends the encoding of a non-decreasing sequence. The sequence has at most [`COUNT_MAX`] numbers, each with at most
/// [`NUMBER_BITS_MAX`] bits. Appends nothing if the sequence is empty.
pub(super) fn encode(numbers: &[u64], access: SequenceAccess, out: &mut Vec<u8>) {
    debug_assert!(numbers.len() <= COUNT_MAX && numbers.is_sorted());
    let Some(&last) = numbers.last() else { return };
    let low = low_width(numbers.len(), last);
    put_varint(out, last);
    let mask = (1 << low) - 1;
    let (mut bits, mut pending_bits) = (0u128, 0);
    for number in numbers {
        bits |= u128::from(number & mask) << pending_bits;
        pending_bits += u32::from(low);
        while pending_bits >= 8 {
            out.push((bits & 0xff) as u8);
            bits >>= 8;
            pending_bits -= 8;
        }
    }
    if pending_bits > 0 {
        out.push((bits & 0xff) as u8);
    }
    // `low_width` chooses a width for which the high part of the last number is at most twice the count.
    let high_part = |number: u64| usize::try_from(number >> low).unwrap_or(usize::MAX);
    let high_last = high_part(last);
    let mut words = vec![0u64; (numbers.len() + high_last + 1).div_ceil(WORD_BITS)];
    let mut samples = Vec::new();
    let (mut at, mut zeros) = (0usize, 0usize);
    for (index, &number) in numbers.iter().enumerate() {
        while zeros < high_part(number) {
            if access == SequenceAccess::ByValue
                && zeros > 0
                && zeros.is_multiple_of(SAMPLE_INTERVAL)
            {
                samples.push(at);
            }
            (at, zeros) = (at + 1, zeros + 1);
        }
        if access == SequenceAccess::ByIndex && index > 0 && index.is_multiple_of(SAMPLE_INTERVAL) {
            samples.push(at);
        }
        words[at / WORD_BITS] |= 1 << (at % WORD_BITS);
        at += 1;
    }
    if access == SequenceAccess::ByValue && zeros > 0 && zeros.is_multiple_of(SAMPLE_INTERVAL) {
        samples.push(at);
    }
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for sample in samples {
        // The conversion succeeds, because bit positions are less than 3 × `COUNT_MAX`.
        out.extend_from_slice(&u16::try_from(sample).unwrap_or(u16::MAX).to_le_bytes());
    }
}

/// Parameters of an encoded sequence, and the offsets of its parts in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct EliasFano {
    count: u32,
    lows_at: u32,
    highs_at: u32,
    words: u32,
    samples_at: u32,
    last: u64,
    low: u8,
    access: SequenceAccess,
}

impl EliasFano {
    /// Decodes the parameters of a sequence with `count` numbers, and advances the decoder to the end of the sequence.
    /// `count` must be at least one.
    ///
    /// # Errors
    /// Fails if the sequence extends beyond the end of the block, or if `encode` cannot have written its parameters.
    pub(super) fn decode(
        decoder: &mut Decoder<'_>,
        count: usize,
        access: SequenceAccess,
    ) -> Result<EliasFano, Malformed> {
        let last = decoder.varint("last of packed numbers")?;
        let low = low_width(count, last);
        let high_last = to_usize("packed numbers", last >> low)?;
        // `low_width` chooses a width for which the high part is at most twice the count, unless the last number has
        // more than 57 bits.
        if high_last > 2 * count || count == 0 || count > COUNT_MAX {
            return Err(Malformed::invalid_field(
                "last of packed numbers",
                last,
                "a number of at most 57 bits",
            ));
        }
        let words = (count + high_last + 1).div_ceil(WORD_BITS);
        let mut skip = |bytes: usize| {
            let at = decoder.offset();
            decoder.take_bytes("packed numbers", bytes)?;
            offset_in_block(at)
        };
        Ok(EliasFano {
            count: offset_in_block(count)?,
            lows_at: skip((count * usize::from(low)).div_ceil(8))?,
            highs_at: skip(words * size_of::<u64>())?,
            words: offset_in_block(words)?,
            samples_at: skip(access.sample_count(count, high_last) * size_of::<u16>())?,
            last,
            low,
            access,
        })
    }

    /// Returns the length of the sequence.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Returns the largest number, which is the last one.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number before `index` and the number at `index`. The number before the first one is 0. Returns
    /// `None` if the block contains fewer numbers than it declares.
    #[inline]
    pub(super) fn get_with_previous(&self, block: &[u8], index: usize) -> Option<(u64, u64)> {
        let previous = index.saturating_sub(1);
        let (from, skip) = match self.access {
            SequenceAccess::ByIndex => self.sample_before(block, previous),
            SequenceAccess::ByValue => (0, previous),
        };
        let at = self.select_bit(block, from, skip, false)?;
        let number = self.decode_number(block, at, previous)?;
        if index == 0 {
            return Some((0, number));
        }
        let at = self.find_next_bit(block, at + 1, false)?;
        Some((number, self.decode_number(block, at, index)?))
    }

    /// Returns the number at an index. `at` is the position of the 1 bit of this number in the high bits.
    #[inline]
    fn decode_number(&self, block: &[u8], at: usize, index: usize) -> Option<u64> {
        let high = at.checked_sub(index)?;
        Some(len_u64(high) << self.low | self.low_part(block, index))
    }

    /// Decodes all numbers in order. Returns `None` if `encode` would encode these numbers differently.
    pub(super) fn decode_all(&self, block: &[u8]) -> Option<Vec<u64>> {
        let mut numbers = Vec::with_capacity(self.count());
        let (mut at, mut previous) = (0, 0);
        for index in 0..self.count() {
            at = self.find_next_bit(block, at, false)?;
            let number = self.decode_number(block, at, index)?;
            if number < previous {
                return None;
            }
            numbers.push(number);
            previous = number;
            at += 1;
        }
        let mut encoded = Vec::new();
        encode(&numbers, self.access, &mut encoded);
        let end = self.samples_at as usize
            + self.access.sample_count(self.count(), self.high_part(self.last)) * size_of::<u16>();
        // The encoding starts with `last`, which `decode` checked. The comparison starts at the low parts, which follow
        // `last`.
        let length = end - self.lows_at as usize;
        let written = encoded.len().checked_sub(length).and_then(|at| encoded.get(at..));
        let as_written = written == block.get(self.lows_at as usize..end);
        (previous == self.last && as_written).then_some(numbers)
    }

    /// Returns the indexes of all numbers that equal `value`. If there are none, returns an empty range at the index of
    /// the first larger number. Returns `None` if the block contains fewer numbers than it declares.
    #[inline]
    pub(super) fn equal_range(&self, block: &[u8], value: u64) -> Option<Range<usize>> {
        if value > self.last {
            return Some(self.count()..self.count());
        }
        let high = self.high_part(value);
        // Numbers with this high part start after the 0 bit that ends the previous high part.
        let start = match high.checked_sub(1) {
            None => 0,
            Some(zero) => {
                let (from, skip) = match self.access {
                    SequenceAccess::ByValue => self.sample_before(block, zero),
                    SequenceAccess::ByIndex => (0, zero),
                };
                self.select_bit(block, from, skip, true)? + 1
            }
        };
        let first = start.checked_sub(high).filter(|&at| at <= self.count())?;
        let end = self.find_next_bit(block, start, true)?.checked_sub(high);
        let end = end.filter(|&end| end <= self.count())?;
        let low = value & ((1 << self.low) - 1);
        let from = self.lower_bound(block, first..end, |own| own < low);
        let to = self.lower_bound(block, from..end, |own| own == low);
        Some(from..to)
    }

    /// Returns the first index in the range whose low part does not satisfy `precedes`. Returns the end of the range if
    /// there is none.
    #[inline]
    fn lower_bound(
        &self,
        block: &[u8],
        range: Range<usize>,
        precedes: impl Fn(u64) -> bool,
    ) -> usize {
        let Range { mut start, mut end } = range;
        while end - start > LINEAR_SEARCH_MAX {
            let middle = start + (end - start) / 2;
            if precedes(self.low_part(block, middle)) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        while start < end && precedes(self.low_part(block, start)) {
            start += 1;
        }
        start
    }

    /// Returns the high part of a value that is at most `last`. The conversion succeeds, because `decode` checked the
    /// high part of `last`.
    #[inline]
    fn high_part(&self, value: u64) -> usize {
        usize::try_from(value >> self.low).unwrap_or(usize::MAX)
    }

    #[inline]
    fn low_part(&self, block: &[u8], index: usize) -> u64 {
        let bit = index * usize::from(self.low);
        // The high bits follow the low parts. Eight bytes can therefore be read at the start of every low part.
        let word = get_u64(block, self.lows_at as usize + bit / 8).unwrap_or(0);
        word >> (bit % 8) & ((1 << self.low) - 1)
    }

    /// Returns the bit position at which the search for the n-th 1 bit or 0 bit starts, and the number of such bits to
    /// skip from there.
    #[inline]
    fn sample_before(&self, block: &[u8], nth: usize) -> (usize, usize) {
        let Some(sample) = (nth / SAMPLE_INTERVAL).checked_sub(1) else {
            return (0, nth);
        };
        let at = self.samples_at as usize + sample * size_of::<u16>();
        let position = block.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; 2]);
        (usize::from(u16::from_le_bytes(position)), nth % SAMPLE_INTERVAL)
    }

    /// Returns the position of a 1 bit, or of a 0 bit if `zeros` is true. Starts at bit `from` and skips `skip` such
    /// bits. Returns `None` if there are too few.
    #[inline]
    fn select_bit(&self, block: &[u8], from: usize, mut skip: usize, zeros: bool) -> Option<usize> {
        let mut index = from / WORD_BITS;
        let mut word = self.high_word(block, index, zeros)? & u64::MAX << (from % WORD_BITS);
        loop {
            let ones = word.count_ones() as usize;
            if skip < ones {
                return Some(index * WORD_BITS + select_in_word(word, skip));
            }
            skip -= ones;
            index += 1;
            word = self.high_word(block, index, zeros)?;
        }
    }

    /// Returns the position of the first 1 bit at or after `from`, or of the first 0 bit if `zeros` is true.
    #[inline]
    fn find_next_bit(&self, block: &[u8], from: usize, zeros: bool) -> Option<usize> {
        let mut index = from / WORD_BITS;
        let mut word = self.high_word(block, index, zeros)? & u64::MAX << (from % WORD_BITS);
        while word == 0 {
            index += 1;
            word = self.high_word(block, index, zeros)?;
        }
        Some(index * WORD_BITS + word.trailing_zeros() as usize)
    }

    /// Returns a word of the high bits. Inverts the word if `zeros` is true, so that a search for 0 bits becomes a
    /// search for 1 bits.
    #[inline]
    fn high_word(&self, block: &[u8], index: usize, zeros: bool) -> Option<u64> {
        if index >= self.words as usize {
            return None;
        }
        let word = get_u64(block, self.highs_at as usize + index * size_of::<u64>())?;
        Some(if zeros { !word } else { word })
    }
}

/// Returns the position of the 1 bit that follows the first `skip` 1 bits of `word`. The word must have more than
/// `skip` 1 bits.
#[inline]
fn select_in_word(word: u64, skip: usize) -> usize {
    const BYTES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    // First counts the 1 bits per byte. The multiplication then adds the counts of all lower bytes. No byte overflows,
    // because a sum is at most 64.
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let fours = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let sums = ((fours + (fours >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(BYTES);
    // Find the first byte whose sum exceeds `skip`.
    let more = ((sums | TOPS) - (len_u64(skip) + 1) * BYTES) & TOPS;
    let byte = more.trailing_zeros() as usize / 8;
    let previous = (sums << 8 >> (8 * byte) & 0xff) as usize;
    let mut rest = word >> (8 * byte);
    for _ in previous..skip {
        rest &= rest - 1;
    }
    8 * byte + rest.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(numbers: &[u64], access: SequenceAccess) -> (Vec<u8>, EliasFano) {
        let mut block = Vec::new();
        encode(numbers, access, &mut block);
        let mut decoder = Decoder::new(&block);
        let packed = EliasFano::decode(&mut decoder, numbers.len(), access).unwrap();
        assert_eq!(decoder.offset(), block.len());
        (block, packed)
    }

    fn check(numbers: &[u64]) {
        let (block, packed) = decoded(numbers, SequenceAccess::ByIndex);
        assert_eq!(packed.decode_all(&block).unwrap(), numbers);
        for (index, &number) in numbers.iter().enumerate() {
            let previous = index.checked_sub(1).map_or(0, |previous| numbers[previous]);
            assert_eq!(packed.get_with_previous(&block, index).unwrap(), (previous, number));
        }
        let (block, packed) = decoded(numbers, SequenceAccess::ByValue);
        assert_eq!(packed.decode_all(&block).unwrap(), numbers);
        let near = |number: &u64| [number.saturating_sub(1), *number, number + 1];
        for value in numbers.iter().flat_map(near).chain([0, u64::MAX]) {
            let first = numbers.partition_point(|&number| number < value);
            let past = numbers.partition_point(|&number| number <= value);
            assert_eq!(packed.equal_range(&block, value).unwrap(), first..past, "{value}");
        }
    }

    #[test]
    fn select_in_word_any_position_is_found() {
        for word in [1, 1 << 63, u64::MAX, 0x8000_0000_0000_0001, 0xaaaa_0000_ff00_1234] {
            let ones: Vec<usize> = (0..64).filter(|bit| word >> bit & 1 == 1).collect();
            for (skip, &bit) in ones.iter().enumerate() {
                assert_eq!(select_in_word(word, skip), bit, "{word:x}");
            }
        }
    }

    #[test]
    fn elias_fano_any_shape_round_trips() {
        check(&[0]);
        check(&[(1 << 57) - 1]);
        check(&[0; 300]);
        check(&[7; 1000]);
        check(&(0..COUNT_MAX as u64).collect::<Vec<_>>());
        check(&(0..1000).map(|n| n * n * n).collect::<Vec<_>>());
        // One number is much larger than the others, so that all others have the same high part.
        check(&(0..2000).map(|n| if n == 1999 { 1 << 56 } else { n }).collect::<Vec<_>>());
        check(&(0..700).map(|n| n / 100 * 1000).collect::<Vec<_>>());
    }

    #[test]
    fn elias_fano_size_matches_theory() {
        let numbers: Vec<u64> = (1..=1500).map(|n| n * 300 + n * n % 100).collect();
        let (block, _) = decoded(&numbers, SequenceAccess::ByIndex);
        let bits = block.len() as f64 * 8.0 / 1500.0;
        assert!((10.0..10.5).contains(&bits), "{bits}");
    }

    proptest! {
        #[test]
        fn elias_fano_random_sequence_round_trips(
            mut numbers in proptest::collection::vec(
                prop_oneof![0..50u64, 0..5000u64, 0..1u64 << 57], 1..400
            )
        ) {
            numbers.sort_unstable();
            check(&numbers);
        }

        #[test]
        fn elias_fano_damaged_block_does_not_panic(
            mut numbers in proptest::collection::vec(0..5000u64, 1..300),
            flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0..8u32), 1..4),
            values in any::<bool>(),
        ) {
            numbers.sort_unstable();
            let access = if values { SequenceAccess::ByValue } else { SequenceAccess::ByIndex };
            let mut block = Vec::new();
            encode(&numbers, access, &mut block);
            for (at, bit) in flips {
                let at = at.index(block.len());
                block[at] ^= 1 << bit;
            }
            let packed = EliasFano::decode(&mut Decoder::new(&block), numbers.len(), access);
            if let Ok(packed) = packed {
                for value in 0..300 {
                    let _ = packed.get_with_previous(&block, value);
                    let _ = packed.equal_range(&block, len_u64(value));
                }
                if let Some(all) = packed.decode_all(&block) {
                    prop_assert_eq!(all.len(), numbers.len());
                }
            }
        }
    }
}
