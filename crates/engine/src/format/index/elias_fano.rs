//! A sequence of numbers that never go down, packed by Elias and Fano (1971–74), read in place.
//!
//! ```text
//!    v   last     varint, the last and largest number
//!    n   lows     the lower parts, one after the other, the first in the lowest bits: of each
//!                 as many bits as the logarithm of last ÷ count, both rounded down
//!    8w  highs    u64 words: for each value of the upper part, from 0 to that of the last number, a
//!                 one for each number that has it and then a zero; w = as many words as that takes
//!    2s  samples  u16 each, bit positions in the highs: of every 128th one (places), or of
//!                 every 128th zero (values), the first left out
//! ```
//!
//! A number takes 2 bits and the logarithm of the mean step; at random it is read by its place (samples
//! of ones), or looked for by its value (samples of zeros), in the time of a few words.

use std::ops::Range;

use lsmx_base::coding::{Decoder, get_u64, len_u64, put_varint, to_usize};
use lsmx_base::malformed::Malformed;

use super::offset_in_block;

/// Most numbers of a sequence, so that bit positions fit in 16 bits: there are at most two zeros
/// for each one.
pub(super) const COUNT_MAX: usize = 16 << 10;

/// Most bits of a number, so that one read of eight bytes has all of a lower part.
pub(super) const NUMBER_BITS_MAX: u8 = 57;

/// Ones, or zeros, from one sample to the next.
const SAMPLE: usize = 128;

/// Numbers with one upper part that are searched one by one.
const SCAN: usize = 8;

const WORD_BITS: usize = u64::BITS as usize;

/// What numbers will be asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampled {
    /// Their place in the sequence.
    Places,
    /// Their value.
    Values,
}

impl Sampled {
    fn samples(self, count: usize, high_last: usize) -> usize {
        match self {
            Sampled::Places => count.saturating_sub(1) / SAMPLE,
            Sampled::Values => high_last / SAMPLE,
        }
    }
}

fn low_bits(count: usize, last: u64) -> u8 {
    let step = last / len_u64(count).max(1);
    // A u64 has at most 63 bits after its highest.
    let bits = step.checked_ilog2().unwrap_or(0);
    u8::try_from(bits).unwrap_or(NUMBER_BITS_MAX).min(NUMBER_BITS_MAX)
}

/// Bits of so many numbers but for what their block has once.
pub(super) fn bits(count: usize, last: u64) -> u64 {
    let low = low_bits(count, last);
    len_u64(count) * (u64::from(low) + 1) + (last >> low)
}

/// Appends numbers that never go down, at most [`COUNT_MAX`] of at most [`NUMBER_BITS_MAX`] bits.
/// Nothing at all for no numbers.
pub(super) fn encode(numbers: &[u64], sampled: Sampled, out: &mut Vec<u8>) {
    debug_assert!(numbers.len() <= COUNT_MAX && numbers.is_sorted());
    let Some(&last) = numbers.last() else { return };
    let low = low_bits(numbers.len(), last);
    put_varint(out, last);
    let mask = (1 << low) - 1;
    let (mut bits, mut held) = (0u128, 0);
    for number in numbers {
        bits |= u128::from(number & mask) << held;
        held += u32::from(low);
        while held >= 8 {
            out.push((bits & 0xff) as u8);
            bits >>= 8;
            held -= 8;
        }
    }
    if held > 0 {
        out.push((bits & 0xff) as u8);
    }
    // At most two for each number, by the choice of `low`.
    let high_of = |number: u64| usize::try_from(number >> low).unwrap_or(usize::MAX);
    let high_last = high_of(last);
    let mut words = vec![0u64; (numbers.len() + high_last + 1).div_ceil(WORD_BITS)];
    let mut samples = Vec::new();
    let (mut at, mut zeros) = (0usize, 0usize);
    for (place, &number) in numbers.iter().enumerate() {
        while zeros < high_of(number) {
            if sampled == Sampled::Values && zeros > 0 && zeros.is_multiple_of(SAMPLE) {
                samples.push(at);
            }
            (at, zeros) = (at + 1, zeros + 1);
        }
        if sampled == Sampled::Places && place > 0 && place.is_multiple_of(SAMPLE) {
            samples.push(at);
        }
        words[at / WORD_BITS] |= 1 << (at % WORD_BITS);
        at += 1;
    }
    if sampled == Sampled::Values && zeros > 0 && zeros.is_multiple_of(SAMPLE) {
        samples.push(at);
    }
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for sample in samples {
        // Positions are below 3 × COUNT_MAX.
        out.extend_from_slice(&u16::try_from(sample).unwrap_or(u16::MAX).to_le_bytes());
    }
}

/// Where the parts of a sequence lie in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct EliasFano {
    count: u32,
    lows_at: u32,
    highs_at: u32,
    words: u32,
    samples_at: u32,
    last: u64,
    low: u8,
    sampled: Sampled,
}

impl EliasFano {
    /// Finds the parts of a sequence of `count` numbers, at least one, and goes past them.
    ///
    /// # Errors
    /// When they are longer than the block, or cannot be what was written.
    pub(super) fn decode(
        decoder: &mut Decoder<'_>,
        count: usize,
        sampled: Sampled,
    ) -> Result<EliasFano, Malformed> {
        let last = decoder.varint("last of packed numbers")?;
        let low = low_bits(count, last);
        let high_last = to_usize("packed numbers", last >> low)?;
        // By the choice of the lower bits; only a last one with too many bits makes it not so.
        if high_last > 2 * count || count == 0 || count > COUNT_MAX {
            return Err(Malformed::Field {
                what: "last of packed numbers",
                found: last,
                expected: "a number of at most 57 bits",
            });
        }
        let words = (count + high_last + 1).div_ceil(WORD_BITS);
        let mut skip = |bytes: usize| {
            let at = decoder.offset();
            decoder.take("packed numbers", bytes)?;
            offset_in_block(at)
        };
        Ok(EliasFano {
            count: offset_in_block(count)?,
            lows_at: skip((count * usize::from(low)).div_ceil(8))?,
            highs_at: skip(words * size_of::<u64>())?,
            words: offset_in_block(words)?,
            samples_at: skip(sampled.samples(count, high_last) * size_of::<u16>())?,
            last,
            low,
            sampled,
        })
    }

    /// How many numbers there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// The largest number.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The number at a place, and before it the one before, 0 before the first; `None` if the block
    /// does not hold as many numbers as it says.
    #[inline]
    pub(super) fn pair(&self, block: &[u8], place: usize) -> Option<(u64, u64)> {
        let before = place.saturating_sub(1);
        let (from, skip) = match self.sampled {
            Sampled::Places => self.sample(block, before),
            Sampled::Values => (0, before),
        };
        let at = self.nth(block, from, skip, false)?;
        let number = self.number(block, at, before)?;
        if place == 0 {
            return Some((0, number));
        }
        let at = self.next(block, at + 1, false)?;
        Some((number, self.number(block, at, place)?))
    }

    /// The number at a place whose one is at a bit position.
    #[inline]
    fn number(&self, block: &[u8], at: usize, place: usize) -> Option<u64> {
        let high = at.checked_sub(place)?;
        Some(len_u64(high) << self.low | self.low_part(block, place))
    }

    /// All numbers, in order; `None` if they are not what was written: too few, too many, or going
    /// down.
    pub(super) fn all(&self, block: &[u8]) -> Option<Vec<u64>> {
        let mut numbers = Vec::with_capacity(self.count());
        let (mut at, mut before) = (0, 0);
        for place in 0..self.count() {
            at = self.next(block, at, false)?;
            let number = self.number(block, at, place)?;
            if number < before {
                return None;
            }
            numbers.push(number);
            before = number;
            at += 1;
        }
        let mut encoded = Vec::new();
        encode(&numbers, self.sampled, &mut encoded);
        let end = self.samples_at as usize
            + self.sampled.samples(self.count(), self.high_of(self.last)) * size_of::<u16>();
        // `last`, which is before the lows, was looked at by `decode`.
        let length = end - self.lows_at as usize;
        let written = encoded.len().checked_sub(length).and_then(|at| encoded.get(at..));
        let as_written = written == block.get(self.lows_at as usize..end);
        (before == self.last && as_written).then_some(numbers)
    }

    /// The places of the numbers that are `value`; where none is, the empty range at the place of the
    /// first larger one. `None` if the block does not hold as many numbers as it says.
    #[inline]
    pub(super) fn equal(&self, block: &[u8], value: u64) -> Option<Range<usize>> {
        if value > self.last {
            return Some(self.count()..self.count());
        }
        let high = self.high_of(value);
        // The zero that ends the upper parts below.
        let start = match high.checked_sub(1) {
            None => 0,
            Some(zero) => {
                let (from, skip) = match self.sampled {
                    Sampled::Values => self.sample(block, zero),
                    Sampled::Places => (0, zero),
                };
                self.nth(block, from, skip, true)? + 1
            }
        };
        let first = start.checked_sub(high).filter(|&at| at <= self.count())?;
        let end = self.next(block, start, true)?.checked_sub(high);
        let end = end.filter(|&end| end <= self.count())?;
        let low = value & ((1 << self.low) - 1);
        let from = self.lower_bound(block, first..end, |own| own < low);
        let to = self.lower_bound(block, from..end, |own| own == low);
        Some(from..to)
    }

    /// The first place in a range whose lower part is not `passed`.
    #[inline]
    fn lower_bound(
        &self,
        block: &[u8],
        range: Range<usize>,
        passed: impl Fn(u64) -> bool,
    ) -> usize {
        let Range { mut start, mut end } = range;
        while end - start > SCAN {
            let middle = start + (end - start) / 2;
            if passed(self.low_part(block, middle)) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        while start < end && passed(self.low_part(block, start)) {
            start += 1;
        }
        start
    }

    /// `last` has the most, and its upper part was found to fit.
    #[inline]
    fn high_of(&self, value: u64) -> usize {
        usize::try_from(value >> self.low).unwrap_or(usize::MAX)
    }

    #[inline]
    fn low_part(&self, block: &[u8], place: usize) -> u64 {
        let bit = place * usize::from(self.low);
        // The highs follow, so that eight bytes are there for every lower part.
        let word = get_u64(block, self.lows_at as usize + bit / 8).unwrap_or(0);
        word >> (bit % 8) & ((1 << self.low) - 1)
    }

    /// Where to begin looking for the n-th one or zero, and how many to pass from there.
    #[inline]
    fn sample(&self, block: &[u8], nth: usize) -> (usize, usize) {
        let Some(sample) = (nth / SAMPLE).checked_sub(1) else {
            return (0, nth);
        };
        let at = self.samples_at as usize + sample * size_of::<u16>();
        let position = block.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; 2]);
        (usize::from(u16::from_le_bytes(position)), nth % SAMPLE)
    }

    /// The position of the one (or zero) that comes after `skip` others, from a position on.
    #[inline]
    fn nth(&self, block: &[u8], from: usize, mut skip: usize, zeros: bool) -> Option<usize> {
        let mut index = from / WORD_BITS;
        let mut word = self.word(block, index, zeros)? & u64::MAX << (from % WORD_BITS);
        loop {
            let ones = word.count_ones() as usize;
            if skip < ones {
                return Some(index * WORD_BITS + select_in_word(word, skip));
            }
            skip -= ones;
            index += 1;
            word = self.word(block, index, zeros)?;
        }
    }

    /// The position of the first one (or zero) from a position on.
    #[inline]
    fn next(&self, block: &[u8], from: usize, zeros: bool) -> Option<usize> {
        let mut index = from / WORD_BITS;
        let mut word = self.word(block, index, zeros)? & u64::MAX << (from % WORD_BITS);
        while word == 0 {
            index += 1;
            word = self.word(block, index, zeros)?;
        }
        Some(index * WORD_BITS + word.trailing_zeros() as usize)
    }

    /// A word of the highs, with ones for zeros if those are what is looked for.
    #[inline]
    fn word(&self, block: &[u8], index: usize, zeros: bool) -> Option<u64> {
        if index >= self.words as usize {
            return None;
        }
        let word = get_u64(block, self.highs_at as usize + index * size_of::<u64>())?;
        Some(if zeros { !word } else { word })
    }
}

/// The position of the one that comes after `skip` others; there must be so many.
#[inline]
fn select_in_word(word: u64, skip: usize) -> usize {
    const BYTES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    // Ones of each byte, then of it and all below it: at most 64, so no byte runs over.
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let fours = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let sums = ((fours + (fours >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(BYTES);
    // The first byte with more than `skip` up to its end.
    let more = ((sums | TOPS) - (len_u64(skip) + 1) * BYTES) & TOPS;
    let byte = more.trailing_zeros() as usize / 8;
    let before = (sums << 8 >> (8 * byte) & 0xff) as usize;
    let mut rest = word >> (8 * byte);
    for _ in before..skip {
        rest &= rest - 1;
    }
    8 * byte + rest.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(numbers: &[u64], sampled: Sampled) -> (Vec<u8>, EliasFano) {
        let mut block = Vec::new();
        encode(numbers, sampled, &mut block);
        let mut decoder = Decoder::new(&block);
        let packed = EliasFano::decode(&mut decoder, numbers.len(), sampled).unwrap();
        assert_eq!(decoder.offset(), block.len());
        (block, packed)
    }

    fn check(numbers: &[u64]) {
        let (block, packed) = decoded(numbers, Sampled::Places);
        assert_eq!(packed.all(&block).unwrap(), numbers);
        for (place, &number) in numbers.iter().enumerate() {
            let before = place.checked_sub(1).map_or(0, |before| numbers[before]);
            assert_eq!(packed.pair(&block, place).unwrap(), (before, number));
        }
        let (block, packed) = decoded(numbers, Sampled::Values);
        assert_eq!(packed.all(&block).unwrap(), numbers);
        let near = |number: &u64| [number.saturating_sub(1), *number, number + 1];
        for value in numbers.iter().flat_map(near).chain([0, u64::MAX]) {
            let first = numbers.partition_point(|&number| number < value);
            let past = numbers.partition_point(|&number| number <= value);
            assert_eq!(packed.equal(&block, value).unwrap(), first..past, "{value}");
        }
    }

    #[test]
    fn select_finds_every_one_of_a_word() {
        for word in [1, 1 << 63, u64::MAX, 0x8000_0000_0000_0001, 0xaaaa_0000_ff00_1234] {
            let ones: Vec<usize> = (0..64).filter(|bit| word >> bit & 1 == 1).collect();
            for (skip, &bit) in ones.iter().enumerate() {
                assert_eq!(select_in_word(word, skip), bit, "{word:x}");
            }
        }
    }

    #[test]
    fn sequences_of_every_form_come_back() {
        check(&[0]);
        check(&[(1 << 57) - 1]);
        check(&[0; 300]);
        check(&[7; 1000]);
        check(&(0..COUNT_MAX as u64).collect::<Vec<_>>());
        check(&(0..1000).map(|n| n * n * n).collect::<Vec<_>>());
        // One far away, so that all others have the same upper part.
        check(&(0..2000).map(|n| if n == 1999 { 1 << 56 } else { n }).collect::<Vec<_>>());
        check(&(0..700).map(|n| n / 100 * 1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_number_takes_two_bits_and_the_logarithm_of_the_step() {
        let numbers: Vec<u64> = (1..=1500).map(|n| n * 300 + n * n % 100).collect();
        let (block, _) = decoded(&numbers, Sampled::Places);
        let bits = block.len() as f64 * 8.0 / 1500.0;
        assert!((10.0..10.5).contains(&bits), "{bits}");
    }

    proptest! {
        #[test]
        fn any_sequence_comes_back(
            mut numbers in proptest::collection::vec(
                prop_oneof![0..50u64, 0..5000u64, 0..1u64 << 57], 1..400
            )
        ) {
            numbers.sort_unstable();
            check(&numbers);
        }

        #[test]
        fn damage_is_an_error_or_an_answer(
            mut numbers in proptest::collection::vec(0..5000u64, 1..300),
            flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0..8u32), 1..4),
            values in any::<bool>(),
        ) {
            numbers.sort_unstable();
            let sampled = if values { Sampled::Values } else { Sampled::Places };
            let mut block = Vec::new();
            encode(&numbers, sampled, &mut block);
            for (at, bit) in flips {
                let at = at.index(block.len());
                block[at] ^= 1 << bit;
            }
            let packed = EliasFano::decode(&mut Decoder::new(&block), numbers.len(), sampled);
            if let Ok(packed) = packed {
                for value in 0..300 {
                    let _ = packed.pair(&block, value);
                    let _ = packed.equal(&block, len_u64(value));
                }
                if let Some(all) = packed.all(&block) {
                    prop_assert_eq!(all.len(), numbers.len());
                }
            }
        }
    }
}
