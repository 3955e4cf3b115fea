//! Order-preserving map from keys to integers. Each byte position of a key is a digit of the integer. The base of a
//! digit is the number of different bytes at this position, so the integers are numbers in a mixed radix.
//!
//! ```text
//!    v+n  prefix     varint length and bytes, common prefix of all boundaries
//!    1    positions  u8, number of positions after the prefix, 1 to 64
//!         position, repeated:
//!      1  flags      u8; 1: the lowest digit stands for all bytes before `first`; 2: a bitmap follows
//!      1  first      u8, the first byte that has a digit
//!      1  last       u8, the last byte that has a digit
//!      s  bitmap     a bit for each byte from first to last, lowest bit first: 1 if the byte has a
//!                    digit; only with flag 2, else all have one; s = ⌈(last − first + 1) ÷ 8⌉
//!    1    shift      u8, number of low bits to drop
//!    v    base       varint, subtracted after the shift; negative results become 0
//! ```
//!
//! The prefix has at most 65,536 bytes. The product of all bases is at most 2^57.
//!
//! The number of a key consists of its digits. The digit of the first position is the most significant one:
//!
//! - A key that ends before a position has the lowest digit at this position and at all later positions.
//! - A byte without a digit gets the next lower digit. All later positions then get the highest digit.
//! - If there is no lower digit, the byte gets the lowest digit. All later positions then get the lowest digit.
//!
//! Therefore the number of a larger key is never smaller than the number of a smaller key.

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::malformed::Malformed;

use super::elias_fano::{self, NUMBER_BITS_MAX};
use super::separator::{Boundary, PrecedingKey};
use super::{decode_prefix, offset_in_block};

/// Maximum number of positions in a map.
const POSITIONS_MAX: usize = 64;

/// Exclusive upper bound of the numbers before the shift. An Elias-Fano sequence stores numbers of at most 57 bits.
const NUMBER_END: u64 = 1 << NUMBER_BITS_MAX;

const FLAG_FLOOR: u8 = 1;
const FLAG_BITMAP: u8 = 2;

/// Digits of the bytes at one position of the keys.
#[derive(Clone, Copy, Debug)]
struct DigitPosition<'a> {
    /// 1 if the digit 0 stands for all bytes less than `first`, and 0 if no digit stands for them.
    floor: u64,
    first: u8,
    last: u8,
    /// One bit for each byte from `first` to `last`, which is 1 if the byte has a digit. If the bitmap is empty, all of
    /// these bytes have digits.
    bitmap: &'a [u8],
}

/// Digit of a byte, or the position of a byte between digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteDigit {
    /// The byte has this digit.
    Exact(u64),
    /// The byte has no digit. It sorts after this digit and before the next digit.
    After(u64),
    /// The byte has no digit. It sorts before the lowest digit.
    Before,
}

impl DigitPosition<'_> {
    /// Returns the number of digits.
    #[inline]
    fn base(&self) -> u64 {
        let bytes = match self.bitmap {
            [] => u64::from(self.last - self.first) + 1,
            bitmap => bitmap.iter().map(|bits| u64::from(bits.count_ones())).sum(),
        };
        self.floor + bytes
    }

    #[inline]
    fn digit_of_byte(&self, byte: u8) -> ByteDigit {
        if byte < self.first {
            return if self.floor == 1 { ByteDigit::After(0) } else { ByteDigit::Before };
        }
        if byte > self.last {
            return ByteDigit::After(self.base() - 1);
        }
        let at = byte - self.first;
        if self.bitmap.is_empty() {
            return ByteDigit::Exact(self.floor + u64::from(at));
        }
        let (byte_index, bit) = (usize::from(at / 8), at % 8);
        let before: u64 =
            self.bitmap[..byte_index].iter().map(|bits| u64::from(bits.count_ones())).sum();
        let bits = self.bitmap[byte_index];
        let digit = self.floor + before + u64::from((bits & ((1 << bit) - 1)).count_ones());
        if bits >> bit & 1 == 1 {
            ByteDigit::Exact(digit)
        } else {
            // The byte `first` always has a digit, so there is a lower digit.
            ByteDigit::After(digit - 1)
        }
    }

    /// Returns the byte that a digit represents. Returns `None` for the lowest digit if this digit represents the end
    /// of the key and all bytes less than `first`.
    fn byte_of_digit(&self, digit: u64) -> Option<u8> {
        // The conversion succeeds, because a digit is at most 256.
        let nth = usize::try_from(digit.checked_sub(self.floor)?).unwrap_or(usize::MAX);
        let mut bytes = self.first..=self.last;
        if self.bitmap.is_empty() {
            return bytes.nth(nth);
        }
        let has = |byte: &u8| {
            let at = byte - self.first;
            self.bitmap[usize::from(at / 8)] >> (at % 8) & 1 == 1
        };
        bytes.filter(has).nth(nth)
    }
}

/// Rule that selects which bytes get digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DigitSelection {
    /// Only bytes that occur in boundaries get digits.
    Occurring,
    /// All 256 bytes get digits at positions where at least [`ALL_DIGITS_FROM`] different bytes occur. The low bits of
    /// a number then equal the low bits of the key. Boundaries usually differ in their high bits, so the low bits can
    /// be dropped.
    All,
}

/// Returns eight times the base-2 logarithm of a count between 1 and 256, rounded down.
fn log2_times_8(bytes: usize) -> usize {
    len_u64(bytes).checked_pow(8).map_or(64, |power| power.ilog2() as usize)
}

/// Minimum number of different bytes at a position at which [`DigitSelection::All`] gives digits to all 256 bytes.
const ALL_DIGITS_FROM: usize = 64;

/// Digits of the bytes at one position, used while a map is built.
#[derive(Clone, Debug)]
struct OwnedDigitPosition {
    floor: bool,
    first: u8,
    last: u8,
    bitmap: Vec<u8>,
}

impl OwnedDigitPosition {
    /// Returns the digits at a position for these boundaries. Ignores boundaries between two versions of one user key.
    /// Returns `None` if all other boundaries end before this position.
    fn from_boundaries(
        boundaries: &[Boundary],
        cut: usize,
        position: usize,
        selection: DigitSelection,
    ) -> Option<OwnedDigitPosition> {
        let mut bytes = [false; 256];
        let mut boundary_count = 0usize;
        let at = cut + position;
        for boundary in boundaries.iter().filter(|boundary| boundary.last_seq_before().is_none()) {
            if let Some(&byte) = boundary.user_key.get(at) {
                bytes[usize::from(byte)] = true;
                boundary_count += 1;
            }
        }
        let has = |byte: &u8| bytes[usize::from(*byte)];
        let mut first = (0..=u8::MAX).find(has)?;
        let mut last = (0..=u8::MAX).rev().find(has)?;
        let count = bytes.iter().filter(|has| **has).count();
        // At the first position, more digits would increase the range of the numbers without a benefit.
        let all_bytes =
            selection == DigitSelection::All && position > 0 && count >= ALL_DIGITS_FROM;
        if all_bytes {
            (first, last) = (0, u8::MAX);
        }
        // If a boundary ends with the byte `first` at this position, the key before the boundary may have a smaller
        // byte here. The digit 0 then represents all smaller bytes.
        let floor = boundaries.iter().any(|boundary| {
            boundary.last_seq_before().is_none()
                && boundary.user_key.len() == at + 1
                && boundary.user_key.last() == Some(&first)
        });
        let span = usize::from(last - first) + 1;
        // A bitmap decreases the base. This saves bits in every boundary that reaches this position.
        let saves = boundary_count * (log2_times_8(span) - log2_times_8(count)) / 64;
        let mut bitmap = Vec::new();
        if !all_bytes && saves > span.div_ceil(8) {
            bitmap.resize(span.div_ceil(8), 0);
            for byte in (first..=last).filter(has) {
                bitmap[usize::from((byte - first) / 8)] |= 1 << ((byte - first) % 8);
            }
        }
        Some(OwnedDigitPosition { floor, first, last, bitmap })
    }

    fn position(&self) -> DigitPosition<'_> {
        DigitPosition {
            floor: u64::from(self.floor),
            first: self.first,
            last: self.last,
            bitmap: &self.bitmap,
        }
    }

    fn bytes(&self) -> usize {
        3 + self.bitmap.len()
    }
}

/// Accumulator for the number of a key. The digits are added in order, starting with the most significant one.
#[derive(Clone, Copy, Debug, Default)]
struct DigitAccumulator {
    number: u64,
    /// `None` while digits depend on the bytes of the key. `Some(true)` if all later digits are the highest ones, and
    /// `Some(false)` if all later digits are the lowest ones.
    fill_highest: Option<bool>,
}

impl DigitAccumulator {
    #[inline]
    fn push(&mut self, position: &DigitPosition<'_>, base: u64, byte: Option<u8>) {
        let digit = match self.fill_highest {
            Some(true) => base - 1,
            Some(false) => 0,
            None => match byte.map(|byte| position.digit_of_byte(byte)) {
                Some(ByteDigit::Exact(digit)) => digit,
                Some(ByteDigit::After(digit)) => {
                    self.fill_highest = Some(true);
                    digit
                }
                Some(ByteDigit::Before) | None => {
                    self.fill_highest = Some(false);
                    0
                }
            },
        };
        self.number = self.number * base + digit;
    }
}

/// A map under construction, with the numbers of the boundaries for which it is built.
#[derive(Debug)]
pub(super) struct MixedRadixPlan {
    cut: usize,
    /// Estimated encoded size of the map and the boundaries in bytes.
    bytes: usize,
    positions: Vec<OwnedDigitPosition>,
    shift: u8,
    base: u64,
    /// Numbers of the boundaries, after shift and subtraction of the base.
    pub(super) numbers: Vec<u64>,
    /// Indexes of the boundaries that are ties: their number equals the number of the largest key before them.
    pub(super) ties: Vec<usize>,
}

impl MixedRadixPlan {
    /// Returns the map with the smallest estimated encoded size. Returns `None` if each boundary separates two versions
    /// of one user key. `cut` is the length of the common prefix in bytes.
    pub(super) fn smallest_plan(boundaries: &[Boundary], cut: usize) -> Option<MixedRadixPlan> {
        let plan = |selection| MixedRadixPlan::with_digit_selection(boundaries, cut, selection);
        let plans = [DigitSelection::Occurring, DigitSelection::All].into_iter().filter_map(plan);
        plans.min_by_key(|plan| plan.bytes)
    }

    fn with_digit_selection(
        boundaries: &[Boundary],
        cut: usize,
        selection: DigitSelection,
    ) -> Option<MixedRadixPlan> {
        let mut accumulators = vec![DigitAccumulator::default(); boundaries.len()];
        // Numbers of the largest possible key before each boundary.
        let mut preceding = vec![DigitAccumulator::default(); boundaries.len()];
        let mut positions: Vec<OwnedDigitPosition> = Vec::new();
        let (mut end, mut position_bytes) = (1u64, 0);
        let mut best: Option<MixedRadixPlan> = None;
        while positions.len() < POSITIONS_MAX {
            let Some(owned) =
                OwnedDigitPosition::from_boundaries(boundaries, cut, positions.len(), selection)
            else {
                break;
            };
            let (position, at) = (owned.position(), cut + positions.len());
            let base = position.base();
            let Some(new_end) = end.checked_mul(base).filter(|&end| end <= NUMBER_END) else {
                break;
            };
            end = new_end;
            for ((accumulator, preceding), boundary) in
                accumulators.iter_mut().zip(&mut preceding).zip(boundaries)
            {
                accumulator.push(&position, base, boundary.user_key.get(at).copied());
                let is_last = boundary.user_key.len() == at + 1;
                match boundary.preceding {
                    PrecedingKey::Version(_) => *preceding = *accumulator,
                    PrecedingKey::Byte(byte) if is_last => {
                        preceding.push(&position, base, Some(byte));
                        // The preceding key may continue after this byte. All later digits are the highest ones, so
                        // that the number is an upper bound.
                        preceding.fill_highest = preceding.fill_highest.or(Some(true));
                    }
                    PrecedingKey::End if is_last => preceding.push(&position, base, None),
                    _ => preceding.push(&position, base, boundary.user_key.get(at).copied()),
                }
            }
            position_bytes += owned.bytes();
            positions.push(owned);
            if base == 1 {
                continue;
            }
            let (bytes, shift) = choose_shift(boundaries, cut, &accumulators, &preceding);
            let bytes = bytes + position_bytes;
            if best.as_ref().is_none_or(|best| bytes < best.bytes) {
                let shifted = |accumulator: &DigitAccumulator| accumulator.number >> shift;
                let is_tie = |&at: &usize| shifted(&accumulators[at]) == shifted(&preceding[at]);
                best = Some(MixedRadixPlan {
                    cut,
                    bytes,
                    positions: positions.clone(),
                    shift,
                    base: 0,
                    numbers: accumulators.iter().map(shifted).collect(),
                    ties: (0..boundaries.len()).filter(is_tie).collect(),
                });
            }
        }
        let mut plan = best?;
        // The base is one less than the number of the first boundary. Smaller keys then have the number 0, and the
        // first boundary has the number 1.
        plan.base = plan.numbers.first()?.saturating_sub(1);
        for number in &mut plan.numbers {
            *number -= plan.base;
        }
        Some(plan)
    }

    /// Appends the encoded map. `prefix` is the common prefix of all boundaries.
    pub(super) fn encode(&self, prefix: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(prefix.len(), self.cut);
        put_bytes(out, prefix);
        // The conversion succeeds, because there are at most `POSITIONS_MAX` positions.
        out.push(u8::try_from(self.positions.len()).unwrap_or(u8::MAX));
        for position in &self.positions {
            let bitmap = if position.bitmap.is_empty() { 0 } else { FLAG_BITMAP };
            out.extend_from_slice(&[
                bitmap | u8::from(position.floor),
                position.first,
                position.last,
            ]);
            out.extend_from_slice(&position.bitmap);
        }
        out.push(self.shift);
        put_varint(out, self.base);
    }
}

/// Chooses how many low bits of the numbers are dropped. Returns the estimated size of the encoded boundaries in bytes,
/// and the number of dropped bits that minimizes this size.
fn choose_shift(
    boundaries: &[Boundary],
    cut: usize,
    accumulators: &[DigitAccumulator],
    preceding: &[DigitAccumulator],
) -> (usize, u8) {
    // The element at index `shift` is the encoded size in bytes of the boundaries that become ties at this shift. A
    // boundary is a tie if its number equals the number of the preceding key.
    let mut ties_above = [0usize; u64::BITS as usize + 1];
    for ((accumulator, preceding), boundary) in accumulators.iter().zip(preceding).zip(boundaries) {
        // A tie needs two bytes for the ordinal, about one byte for the lengths, and the bytes of the boundary.
        let bytes = boundary.user_key.len() - cut + 3;
        let differing = accumulator.number ^ preceding.number;
        let tie_from = differing.checked_ilog2().map_or(0, |highest| highest as usize + 1);
        ties_above[tie_from] += bytes;
    }
    let (Some(first), Some(last)) = (accumulators.first(), accumulators.last()) else {
        return (0, 0);
    };
    let mut ties = 0;
    let mut best = (usize::MAX, 0);
    for (shift, more) in (0u8..).zip(ties_above.iter().take(u64::BITS as usize)) {
        ties += more;
        let range = (last.number >> shift) - (first.number >> shift) + 1;
        // The range starts at the number of the first boundary, because the base is subtracted.
        let bits = elias_fano::encoded_bits(accumulators.len(), range);
        let bytes = usize::try_from(bits / 8).unwrap_or(usize::MAX).saturating_add(ties);
        if bytes < best.0 {
            best = (bytes, shift);
        }
    }
    best
}

/// Parameters of an encoded map, and the offsets of its parts in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct MixedRadixMap {
    base: u64,
    prefix_at: u32,
    prefix_bytes: u32,
    positions_at: u32,
    positions: u8,
    shift: u8,
}

/// Result of mapping a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappedKey<'a> {
    /// The key sorts before all keys that start with the prefix.
    Before,
    Number(u64, &'a [u8]),
    /// The key sorts after all keys that start with the prefix.
    After,
}

impl MixedRadixMap {
    /// Decodes the parameters of a map, checks its positions, and advances the decoder to the end of the map.
    pub(super) fn decode(
        block: &[u8],
        decoder: &mut Decoder<'_>,
    ) -> Result<MixedRadixMap, Malformed> {
        let prefix_bytes = decode_prefix(decoder)?.len();
        let prefix_at = offset_in_block(decoder.offset() - prefix_bytes)?;
        let prefix_bytes = offset_in_block(prefix_bytes)?;
        let positions = decoder.u8("digit positions")?;
        let positions_at = offset_in_block(decoder.offset())?;
        let mut end = 1u64;
        for _ in 0..positions {
            let (position, next) =
                position_at(block, decoder.offset()).ok_or(UNORDERED_POSITIONS)?;
            decoder.take_bytes("digit position", next - decoder.offset())?;
            let base = position.base();
            let is_bitmap_valid = match *position.bitmap {
                [] => true,
                [first, .., last] => {
                    first & 1 == 1 && last.leading_zeros() == unused_bits(&position)
                }
                [only] => only & 1 == 1 && only.leading_zeros() == unused_bits(&position),
            };
            let new_end = end.checked_mul(base).filter(|&end| end <= NUMBER_END);
            let (Some(new_end), true) = (new_end, is_bitmap_valid) else {
                return Err(Malformed::invalid_field(
                    "digits of a position",
                    base,
                    "digits for bytes from first to last, and at most 2^57 numbers",
                ));
            };
            end = new_end;
        }
        let shift = decoder.u8("dropped low bits")?;
        if u32::from(shift) >= u64::BITS || positions == 0 || usize::from(positions) > POSITIONS_MAX
        {
            return Err(Malformed::invalid_field(
                "dropped low bits",
                u64::from(shift),
                "below 64, with 1 to 64 positions",
            ));
        }
        let base = decoder.varint("base of boundaries")?;
        Ok(MixedRadixMap { base, prefix_at, prefix_bytes, positions_at, positions, shift })
    }

    /// Returns the common prefix of all boundaries.
    pub(super) fn prefix<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        let at = self.prefix_at as usize;
        &block[at..at + self.prefix_bytes as usize]
    }

    /// Returns whether a base is subtracted from all numbers. If it is, keys before the first boundary have the number
    /// 0.
    pub(super) fn has_base(&self) -> bool {
        self.base > 0
    }

    /// Maps a key to its number.
    #[inline]
    pub(super) fn map_key<'k>(&self, block: &[u8], key: &'k [u8]) -> MappedKey<'k> {
        let prefix = self.prefix(block);
        let Some(rest) = key.strip_prefix(prefix) else {
            return if key < prefix { MappedKey::Before } else { MappedKey::After };
        };
        let mut accumulator = DigitAccumulator::default();
        let mut at = self.positions_at as usize;
        for index in 0..usize::from(self.positions) {
            // `decode` checked that all positions can be read.
            let Some((position, next)) = position_at(block, at) else { break };
            accumulator.push(&position, position.base(), rest.get(index).copied());
            at = next;
        }
        MappedKey::Number((accumulator.number >> self.shift).saturating_sub(self.base), rest)
    }

    /// Returns the smallest key whose number is at least `number`, without the prefix. Returns `None` if no key has
    /// such a number.
    pub(super) fn smallest_key(&self, block: &[u8], number: u64) -> Option<Vec<u8>> {
        let number = number
            .checked_add(self.base)
            .and_then(|number| (number <= u64::MAX >> self.shift).then(|| number << self.shift));
        let mut positions = Vec::with_capacity(usize::from(self.positions));
        let mut at = self.positions_at as usize;
        let mut end = 1u64;
        for _ in 0..self.positions {
            let (position, next) = position_at(block, at)?;
            // `decode` checked that this product does not overflow.
            end = end.saturating_mul(position.base());
            positions.push(position);
            at = next;
        }
        let mut number = number.filter(|&number| number < end)?;
        let mut key = Vec::new();
        for position in positions {
            // If all remaining digits are the lowest ones, the smallest key ends here.
            if number == 0 {
                break;
            }
            end /= position.base();
            let digit = number / end;
            number %= end;
            match position.byte_of_digit(digit) {
                Some(byte) => key.push(byte),
                None => {
                    // This digit represents the end of the key and all bytes less than `first`. If a later digit is not
                    // the lowest one, the key cannot end here. The smallest byte in this case is 0.
                    if number > 0 {
                        key.push(0);
                    }
                    break;
                }
            }
        }
        Some(key)
    }
}

/// Returns the number of unused bits in the last byte of a bitmap.
fn unused_bits(position: &DigitPosition<'_>) -> u32 {
    7 - u32::from(position.last - position.first) % 8
}

const UNORDERED_POSITIONS: Malformed = Malformed::Order { what: "digit positions are" };

/// Decodes the position at offset `at`. Returns the position and the offset after it. Returns `None` if the position is
/// malformed.
#[inline]
fn position_at(block: &[u8], at: usize) -> Option<(DigitPosition<'_>, usize)> {
    let &[flags, first, last] = block.get(at..)?.first_chunk()?;
    if flags > (FLAG_FLOOR | FLAG_BITMAP) || first > last {
        return None;
    }
    let bitmap_at = at + 3;
    let bitmap_bytes = if flags & FLAG_BITMAP == 0 { 0 } else { usize::from(last - first) / 8 + 1 };
    let bitmap = block.get(bitmap_at..bitmap_at + bitmap_bytes)?;
    Some((
        DigitPosition { floor: u64::from(flags & FLAG_FLOOR), first, last, bitmap },
        bitmap_at + bitmap_bytes,
    ))
}
