//! Keys as numbers that order as they do: each byte a digit, in the base of the bytes that occur in
//! its place.
//!
//! ```text
//!    v+n  prefix   varint length and bytes, what all boundaries begin with
//!    1    places   u8, how many places behind the prefix count, at least one
//!         place, so many times:
//!      1  form     u8; 1: there is a lowest digit for what is before the first byte; 2: a set follows
//!      1  first    u8, the first byte that has a digit
//!      1  last     u8, the last one
//!      s  set      bits, the lowest first, for each byte from the first to the last: 1 if it has a
//!                  digit; only with form 2, else all have; s = ⌈(last − first + 1) ÷ 8⌉
//!    1    shift    u8, lower bits of the number that are left out
//!    v    base     varint, taken off what is left
//! ```
//!
//! A key's number is that of its digits, the highest first. A key that ends has the lowest digit in
//! all places left. A byte without a digit gets the one below its own place, or the lowest, and fixes
//! all digits after it: the highest if it is above the digit it got, the lowest if below. So a larger
//! key never has a smaller number, whatever its bytes.

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::malformed::Malformed;

use super::elias_fano::{self, NUMBER_BITS_MAX};
use super::separator::{Below, Boundary};
use super::{offset_in_block, prefix};

/// Most places that count.
const PLACES_MAX: usize = 64;

/// Numbers stay below this, to be packed.
const NUMBER_END: u64 = 1 << NUMBER_BITS_MAX;

const FORM_FLOOR: u8 = 1;
const FORM_SET: u8 = 2;

/// The digits of one place.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    /// 1 if there is a lowest digit for what is before the first byte.
    floor: u64,
    first: u8,
    last: u8,
    /// A bit for each byte from the first to the last; none if all have a digit.
    set: &'a [u8],
}

/// What a byte is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digit {
    /// It has this digit.
    Own(u64),
    /// It is above all that begins with this digit, and below the next.
    Above(u64),
    /// It is below all digits.
    Below,
}

impl Place<'_> {
    /// How many digits there are.
    #[inline]
    fn base(&self) -> u64 {
        let bytes = match self.set {
            [] => u64::from(self.last - self.first) + 1,
            set => set.iter().map(|bits| u64::from(bits.count_ones())).sum(),
        };
        self.floor + bytes
    }

    #[inline]
    fn digit(&self, byte: u8) -> Digit {
        if byte < self.first {
            return if self.floor == 1 { Digit::Above(0) } else { Digit::Below };
        }
        if byte > self.last {
            return Digit::Above(self.base() - 1);
        }
        let at = byte - self.first;
        if self.set.is_empty() {
            return Digit::Own(self.floor + u64::from(at));
        }
        let (whole, bit) = (usize::from(at / 8), at % 8);
        let before: u64 = self.set[..whole].iter().map(|bits| u64::from(bits.count_ones())).sum();
        let bits = self.set[whole];
        let digit = self.floor + before + u64::from((bits & ((1 << bit) - 1)).count_ones());
        if bits >> bit & 1 == 1 {
            Digit::Own(digit)
        } else {
            // The first byte has a digit, so there is one below.
            Digit::Above(digit - 1)
        }
    }

    /// The byte of a digit; `None` for the lowest if that is for what has none.
    fn byte(&self, digit: u64) -> Option<u8> {
        // Below the base, which is at most 257.
        let nth = usize::try_from(digit.checked_sub(self.floor)?).unwrap_or(usize::MAX);
        let mut bytes = self.first..=self.last;
        if self.set.is_empty() {
            return bytes.nth(nth);
        }
        let has = |byte: &u8| {
            let at = byte - self.first;
            self.set[usize::from(at / 8)] >> (at % 8) & 1 == 1
        };
        bytes.filter(has).nth(nth)
    }
}

/// Which bytes get digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    /// Those that occur.
    Tight,
    /// All where many occur, so that lower bits of the number are those of the key: data blocks end where
    /// keys differ in a high bit, and the bits below are then not needed.
    Whole,
}

/// Eight times the logarithm of a number of bytes, at most 256.
fn eighths_of_bits(bytes: usize) -> usize {
    len_u64(bytes).checked_pow(8).map_or(64, |power| power.ilog2() as usize)
}

/// Bytes that occur in a place from which on all of them may get digits.
const WHOLE_FROM: usize = 64;

/// The places of a map, while it is made.
#[derive(Clone, Debug)]
struct OwnedPlace {
    floor: bool,
    first: u8,
    last: u8,
    set: Vec<u8>,
}

impl OwnedPlace {
    /// The digits that the boundaries need at a place, `None` if none gets as far.
    fn of(boundaries: &[Boundary], cut: usize, place: usize, digits: Digits) -> Option<OwnedPlace> {
        let mut bytes = [false; 256];
        let mut reach = 0usize;
        let at = cut + place;
        for boundary in boundaries.iter().filter(|boundary| boundary.seq().is_none()) {
            if let Some(&byte) = boundary.user_key.get(at) {
                bytes[usize::from(byte)] = true;
                reach += 1;
            }
        }
        let has = |byte: &u8| bytes[usize::from(*byte)];
        let mut first = (0..=u8::MAX).find(has)?;
        let mut last = (0..=u8::MAX).rev().find(has)?;
        let count = bytes.iter().filter(|has| **has).count();
        // Of the first place it only takes whole multiples off.
        let whole = digits == Digits::Whole && place > 0 && count >= WHOLE_FROM;
        if whole {
            (first, last) = (0, u8::MAX);
        }
        // What is just before a boundary in this place may be before all bytes that have a digit.
        let floor = boundaries.iter().any(|boundary| {
            boundary.seq().is_none()
                && boundary.user_key.len() == at + 1
                && boundary.user_key.last() == Some(&first)
        });
        let span = usize::from(last - first) + 1;
        // A set saves as many bits as the base gets smaller, for every boundary that has a digit here.
        let saves = reach * (eighths_of_bits(span) - eighths_of_bits(count)) / 64;
        let mut set = Vec::new();
        if !whole && saves > span.div_ceil(8) {
            set.resize(span.div_ceil(8), 0);
            for byte in (first..=last).filter(has) {
                set[usize::from((byte - first) / 8)] |= 1 << ((byte - first) % 8);
            }
        }
        Some(OwnedPlace { floor, first, last, set })
    }

    fn place(&self) -> Place<'_> {
        Place { floor: u64::from(self.floor), first: self.first, last: self.last, set: &self.set }
    }

    fn bytes(&self) -> usize {
        3 + self.set.len()
    }
}

/// Numbers of boundaries while places are added, the highest first.
#[derive(Clone, Copy, Debug, Default)]
struct Growing {
    number: u64,
    /// The digits of the places to come, if they are settled: `Some(true)` for the highest.
    fill: Option<bool>,
}

impl Growing {
    #[inline]
    fn add(&mut self, place: &Place<'_>, base: u64, byte: Option<u8>) {
        let digit = match self.fill {
            Some(true) => base - 1,
            Some(false) => 0,
            None => match byte.map(|byte| place.digit(byte)) {
                Some(Digit::Own(digit)) => digit,
                Some(Digit::Above(digit)) => {
                    self.fill = Some(true);
                    digit
                }
                Some(Digit::Below) | None => {
                    self.fill = Some(false);
                    0
                }
            },
        };
        self.number = self.number * base + digit;
    }
}

/// A map from keys to numbers, and what it makes of the boundaries it was made for.
#[derive(Debug)]
pub(super) struct Plan {
    cut: usize,
    /// What map and boundaries take, about.
    bytes: usize,
    places: Vec<OwnedPlace>,
    shift: u8,
    base: u64,
    /// The boundaries' numbers.
    pub(super) numbers: Vec<u64>,
    /// Those of boundaries that the numbers do not tell from what is just before them.
    pub(super) ties: Vec<usize>,
}

impl Plan {
    /// The map that makes the block smallest, `None` if there is none: no boundary between different
    /// user keys.
    pub(super) fn of(boundaries: &[Boundary], cut: usize) -> Option<Plan> {
        let plan = |digits| Plan::with(boundaries, cut, digits);
        let plans = [Digits::Tight, Digits::Whole].into_iter().filter_map(plan);
        plans.min_by_key(|plan| plan.bytes)
    }

    fn with(boundaries: &[Boundary], cut: usize, digits: Digits) -> Option<Plan> {
        let mut grown = vec![Growing::default(); boundaries.len()];
        // Of the largest key that may be before each boundary.
        let mut below = vec![Growing::default(); boundaries.len()];
        let mut places: Vec<OwnedPlace> = Vec::new();
        let (mut end, mut place_bytes) = (1u64, 0);
        let mut best: Option<Plan> = None;
        while places.len() < PLACES_MAX {
            let Some(owned) = OwnedPlace::of(boundaries, cut, places.len(), digits) else { break };
            let (place, at) = (owned.place(), cut + places.len());
            let base = place.base();
            let Some(grows) = end.checked_mul(base).filter(|&end| end <= NUMBER_END) else { break };
            end = grows;
            for ((grown, below), boundary) in grown.iter_mut().zip(&mut below).zip(boundaries) {
                grown.add(&place, base, boundary.user_key.get(at).copied());
                let is_last = boundary.user_key.len() == at + 1;
                match boundary.below {
                    Below::Version(_) => *below = *grown,
                    Below::Byte(byte) if is_last => {
                        below.add(&place, base, Some(byte));
                        // Whatever follows that byte.
                        below.fill = below.fill.or(Some(true));
                    }
                    Below::End if is_last => below.add(&place, base, None),
                    _ => below.add(&place, base, boundary.user_key.get(at).copied()),
                }
            }
            place_bytes += owned.bytes();
            places.push(owned);
            if base == 1 {
                continue;
            }
            let (bytes, shift) = best_shift(boundaries, cut, &grown, &below);
            let bytes = bytes + place_bytes;
            if best.as_ref().is_none_or(|best| bytes < best.bytes) {
                let shifted = |growing: &Growing| growing.number >> shift;
                let is_tie = |&at: &usize| shifted(&grown[at]) == shifted(&below[at]);
                best = Some(Plan {
                    cut,
                    bytes,
                    places: places.clone(),
                    shift,
                    base: 0,
                    numbers: grown.iter().map(shifted).collect(),
                    ties: (0..boundaries.len()).filter(is_tie).collect(),
                });
            }
        }
        let mut plan = best?;
        // So that what is before the first boundary stays before it.
        plan.base = plan.numbers.first()?.saturating_sub(1);
        for number in &mut plan.numbers {
            *number -= plan.base;
        }
        Some(plan)
    }

    /// Appends the map.
    pub(super) fn encode(&self, prefix: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(prefix.len(), self.cut);
        put_bytes(out, prefix);
        // At most `PLACES_MAX`.
        out.push(u8::try_from(self.places.len()).unwrap_or(u8::MAX));
        for place in &self.places {
            let set = if place.set.is_empty() { 0 } else { FORM_SET };
            out.extend_from_slice(&[set | u8::from(place.floor), place.first, place.last]);
            out.extend_from_slice(&place.set);
        }
        out.push(self.shift);
        put_varint(out, self.base);
    }
}

/// How many lower bits to leave out, and the bytes that boundaries then take, about.
fn best_shift(
    boundaries: &[Boundary],
    cut: usize,
    grown: &[Growing],
    below: &[Growing],
) -> (usize, u8) {
    // By the largest shift that still tells a boundary from what is before it.
    let mut ties_above = [0usize; u64::BITS as usize + 1];
    for ((grown, below), boundary) in grown.iter().zip(below).zip(boundaries) {
        // Two for its place, one for its lengths.
        let bytes = boundary.user_key.len() - cut + 3;
        let differing = grown.number ^ below.number;
        let tie_from = differing.checked_ilog2().map_or(0, |highest| highest as usize + 1);
        ties_above[tie_from] += bytes;
    }
    let (Some(first), Some(last)) = (grown.first(), grown.last()) else { return (0, 0) };
    let mut ties = 0;
    let mut best = (usize::MAX, 0);
    for (shift, more) in (0u8..).zip(ties_above.iter().take(u64::BITS as usize)) {
        ties += more;
        let range = (last.number >> shift) - (first.number >> shift) + 1;
        // Less than 2^57 numbers leave less than three bits for each in the upper parts.
        let bits = elias_fano::bits(grown.len(), range);
        let bytes = usize::try_from(bits / 8).unwrap_or(usize::MAX).saturating_add(ties);
        if bytes < best.0 {
            best = (bytes, shift);
        }
    }
    best
}

/// A map as it lies in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Radix {
    base: u64,
    prefix_at: u32,
    prefix_bytes: u32,
    places_at: u32,
    places: u8,
    shift: u8,
}

/// A key's number, and the key without the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapped<'a> {
    /// The key is before all that begin with the prefix.
    Before,
    Number(u64, &'a [u8]),
    /// The key is after all that begin with the prefix.
    After,
}

impl Radix {
    /// Finds the parts of a map and goes past them.
    ///
    /// # Errors
    /// When they are longer than the block, or no map.
    pub(super) fn decode(block: &[u8], decoder: &mut Decoder<'_>) -> Result<Radix, Malformed> {
        let prefix_bytes = prefix(decoder)?.len();
        let prefix_at = offset_in_block(decoder.offset() - prefix_bytes)?;
        let prefix_bytes = offset_in_block(prefix_bytes)?;
        let places = decoder.u8("places of digits")?;
        let places_at = offset_in_block(decoder.offset())?;
        let mut end = 1u64;
        for _ in 0..places {
            let (place, next) = place_at(block, decoder.offset()).ok_or(NO_PLACE)?;
            decoder.take("place of digits", next - decoder.offset())?;
            let base = place.base();
            let set_fits = match *place.set {
                [] => true,
                [first, .., last] => first & 1 == 1 && last.leading_zeros() == unused(&place),
                [only] => only & 1 == 1 && only.leading_zeros() == unused(&place),
            };
            let grows = end.checked_mul(base).filter(|&end| end <= NUMBER_END);
            let (Some(grows), true) = (grows, set_fits) else {
                return Err(Malformed::Field {
                    what: "digits of a place",
                    found: base,
                    expected: "those of the bytes from the first to the last, and 2^57 numbers",
                });
            };
            end = grows;
        }
        let shift = decoder.u8("bits left out")?;
        if u32::from(shift) >= u64::BITS || places == 0 || usize::from(places) > PLACES_MAX {
            return Err(Malformed::Field {
                what: "bits left out",
                found: u64::from(shift),
                expected: "below 64, of 1 to 64 places",
            });
        }
        let base = decoder.varint("base of boundaries")?;
        Ok(Radix { base, prefix_at, prefix_bytes, places_at, places, shift })
    }

    /// What all boundaries begin with.
    pub(super) fn prefix<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        let at = self.prefix_at as usize;
        &block[at..at + self.prefix_bytes as usize]
    }

    /// Whether all numbers up to some become 0.
    pub(super) fn cuts_off_smaller(&self) -> bool {
        self.base > 0
    }

    /// The number of a key.
    #[inline]
    pub(super) fn map<'k>(&self, block: &[u8], key: &'k [u8]) -> Mapped<'k> {
        let prefix = self.prefix(block);
        let Some(rest) = key.strip_prefix(prefix) else {
            return if key < prefix { Mapped::Before } else { Mapped::After };
        };
        let mut growing = Growing::default();
        let mut at = self.places_at as usize;
        for index in 0..usize::from(self.places) {
            // `decode` saw them all.
            let Some((place, next)) = place_at(block, at) else { break };
            growing.add(&place, place.base(), rest.get(index).copied());
            at = next;
        }
        Mapped::Number((growing.number >> self.shift).saturating_sub(self.base), rest)
    }

    /// The smallest key, without the prefix, whose number is not below this one: what is smaller has a
    /// smaller number. `None` if no key has so large a number.
    pub(super) fn key_of(&self, block: &[u8], number: u64) -> Option<Vec<u8>> {
        let number = number
            .checked_add(self.base)
            .and_then(|number| (number <= u64::MAX >> self.shift).then(|| number << self.shift));
        let mut places = Vec::with_capacity(usize::from(self.places));
        let mut at = self.places_at as usize;
        let mut end = 1u64;
        for _ in 0..self.places {
            let (place, next) = place_at(block, at)?;
            // `decode` saw that this fits.
            end = end.saturating_mul(place.base());
            places.push(place);
            at = next;
        }
        let mut number = number.filter(|&number| number < end)?;
        let mut key = Vec::new();
        for place in places {
            // With all digits left at their lowest, the key may end.
            if number == 0 {
                break;
            }
            end /= place.base();
            let digit = number / end;
            number %= end;
            match place.byte(digit) {
                Some(byte) => key.push(byte),
                None => {
                    // Above the key that ends here, and below all with a digit of their own.
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

/// Bits of a set's last byte that are past the last byte with a digit.
fn unused(place: &Place<'_>) -> u32 {
    7 - u32::from(place.last - place.first) % 8
}

const NO_PLACE: Malformed = Malformed::Order { what: "places of digits are" };

/// A place, and the offset of the next.
#[inline]
fn place_at(block: &[u8], at: usize) -> Option<(Place<'_>, usize)> {
    let &[form, first, last] = block.get(at..)?.first_chunk()?;
    if form > (FORM_FLOOR | FORM_SET) || first > last {
        return None;
    }
    let set_at = at + 3;
    let set_bytes = if form & FORM_SET == 0 { 0 } else { usize::from(last - first) / 8 + 1 };
    let set = block.get(set_at..set_at + set_bytes)?;
    Some((Place { floor: u64::from(form & FORM_FLOOR), first, last, set }, set_at + set_bytes))
}
