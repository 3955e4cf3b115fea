//! Index block, coding 1: boundaries and places of data blocks, packed, little-endian.
//!
//! ```text
//!  0  1  coding    u8, 1
//!  1  1  form      u8, how boundaries are written: 0 digits, 1 strings
//!     v  count     varint, how many data blocks, 1 to 16,384
//!     v  offset    varint, of the first of them in the file; each begins where the one before ends
//!     v  smallest  varint, bytes of the smallest with its trailer
//!     n  sizes     packed numbers: for each block, how much it and all before it are larger than if
//!                  all were as small as the smallest
//!        boundaries, one less than blocks, nothing at all for one block
//!        form 0:
//!     n  map       from keys to numbers, `radix.rs`
//!     n  numbers   packed numbers: those of the boundaries
//!     v  ties      varint, how many boundaries their numbers do not tell from the key before
//!     2t places    u16 each, ordinals of those boundaries, the first boundary's being 0
//!     n  tied      those boundaries as strings, without the map's prefix
//!        form 1:
//!    v+n prefix    varint length and bytes, what all boundaries begin with
//!     n  strings   all boundaries, without the prefix
//! ```
//!
//! A boundary is the first bytes of the first key after it, as many as tell it from the last key
//! before it; where that is the same user key, it is that key and the number of its last version
//! before. Entries at or after a boundary are in the blocks after it.
//!
//! A number tells as much as its boundary if the largest key before has a smaller one: then keys with
//! the boundary's number or a larger one come after it. Where it has the same one, the boundary is
//! a tie: for keys with just that number the string decides.

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::elias_fano::{self, EliasFano, Sampled};
use super::radix::{Mapped, Plan, Radix};
use super::separator::{Boundary, Separator, Versions};
use super::strings::{self, Strings};
use super::{offset_in_block, prefix};
use crate::format::block::Handle;
use crate::format::data_block::common_prefix;

/// The coding of index blocks.
pub(crate) const CODING_SUCCINCT: u8 = 1;

const FORM_DIGITS: u8 = 0;
const FORM_STRINGS: u8 = 1;

/// Bytes of boundaries from which on a block is full, however small it would get.
const HELD_BYTES_MAX: usize = 1 << 20;

const SIZES_IN_DISORDER: Malformed = Malformed::Order { what: "sizes of data blocks are" };
const NUMBERS_IN_DISORDER: Malformed = Malformed::Order { what: "numbers of boundaries are" };

/// Writes index blocks.
#[derive(Debug, Default)]
pub(crate) struct SuccinctBuilder {
    offset: u64,
    sizes: Vec<u64>,
    /// Between the blocks, and after the last unless that is the table's.
    boundaries: Vec<Boundary>,
    held_bytes: usize,
    /// Bytes if boundaries were written as strings, about, without the one after the last block; and how
    /// many are to come until it is tried how long the block is.
    rough: usize,
    /// What the boundary after the last block adds once there is a block after it.
    rough_last: usize,
    try_at: usize,
    /// What was tried, for so many blocks.
    tried: Option<(usize, Vec<u8>)>,
}

/// Bytes that a boundary written as a string takes beside its own, about, with its block's place.
const ROUGH_BYTES: usize = 3;

impl SuccinctBuilder {
    /// Data blocks so far.
    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Bytes of the contents, were they finished now, about.
    pub(crate) fn bytes(&self) -> usize {
        match &self.tried {
            Some((count, tried)) => tried.len() * self.count() / count,
            None => self.rough,
        }
    }

    /// Adds a data block, which begins where the one before ends, and the boundary after it unless
    /// it is the last of the table.
    pub(crate) fn add(&mut self, handle: Handle, boundary: Option<Boundary>) {
        if self.sizes.is_empty() {
            self.offset = handle.offset;
        }
        self.sizes.push(handle.bytes);
        if let Some(boundary) = boundary {
            let last = self.boundaries.last().map_or(&[][..], |last| &last.user_key);
            let suffix = boundary.user_key.len() - common_prefix(last, &boundary.user_key);
            self.rough += std::mem::replace(&mut self.rough_last, suffix + ROUGH_BYTES);
            self.held_bytes += boundary.user_key.len();
            self.boundaries.push(boundary);
        }
    }

    /// Whether the block has about the target size, or is as large as one can be.
    pub(crate) fn is_full(&mut self, target: usize) -> bool {
        if self.count() >= elias_fano::COUNT_MAX || self.held_bytes >= HELD_BYTES_MAX {
            return true;
        }
        if self.rough < self.try_at.max(target) {
            return false;
        }
        let tried = self.encode();
        let bytes = tried.len();
        self.tried = Some((self.count(), tried));
        // As good as full: the next try would come very soon.
        if bytes + bytes / 16 >= target {
            return true;
        }
        // What is to come may be longer than what was, so no further ahead than that.
        let ahead = self.rough.saturating_mul(target) / bytes.max(1);
        self.try_at = ahead.clamp(self.rough + 1, 2 * self.rough + 1);
        false
    }

    /// Returns the contents, without the boundary after the last block, and starts an empty block.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let built = std::mem::take(self);
        match built.tried {
            Some((count, tried)) if count == built.sizes.len() => tried,
            _ => built.encode(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![CODING_SUCCINCT, FORM_DIGITS];
        put_varint(&mut out, len_u64(self.sizes.len()));
        put_varint(&mut out, self.offset);
        let smallest = self.sizes.iter().copied().min().unwrap_or(0);
        put_varint(&mut out, smallest);
        let mut sum = 0;
        let larger = self.sizes.iter().map(|size| {
            sum += size - smallest;
            sum
        });
        elias_fano::encode(&larger.collect::<Vec<_>>(), Sampled::Places, &mut out);
        let inside = self.sizes.len().saturating_sub(1).min(self.boundaries.len());
        let boundaries = &self.boundaries[..inside];
        let (Some(first), Some(last)) = (boundaries.first(), boundaries.last()) else { return out };
        // The byte that tells a boundary from the key before it has a place in the map.
        let cut = boundaries
            .iter()
            .filter(|boundary| boundary.seq().is_none())
            .map(|boundary| boundary.user_key.len() - 1)
            .fold(common_prefix(&first.user_key, &last.user_key), usize::min);
        let prefix = &first.user_key[..cut];
        let mut as_strings = Vec::new();
        put_bytes(&mut as_strings, prefix);
        strings::encode(boundaries.iter(), cut, &mut as_strings);
        if let Some(as_digits) = digits(boundaries, prefix)
            && as_digits.len() <= as_strings.len()
        {
            out.extend(as_digits);
        } else {
            out[1] = FORM_STRINGS;
            out.append(&mut as_strings);
        }
        out
    }
}

/// Boundaries as numbers, if there are any that differ in their keys.
fn digits(boundaries: &[Boundary], prefix: &[u8]) -> Option<Vec<u8>> {
    let plan = Plan::of(boundaries, prefix.len())?;
    let mut out = Vec::new();
    plan.encode(prefix, &mut out);
    elias_fano::encode(&plan.numbers, Sampled::Values, &mut out);
    put_varint(&mut out, len_u64(plan.ties.len()));
    for &tie in &plan.ties {
        // Below `COUNT_MAX`.
        let place = u16::try_from(tie).unwrap_or(u16::MAX);
        out.extend_from_slice(&place.to_le_bytes());
    }
    let tied = plan.ties.iter().map(|&tie| &boundaries[tie]);
    strings::encode(tied, prefix.len(), &mut out);
    Some(out)
}

/// How the boundaries of a block are written.
#[derive(Clone, Debug)]
enum Form {
    /// There is one data block.
    None,
    Digits {
        map: Radix,
        numbers: EliasFano,
        places_at: u32,
        ties: Strings,
    },
    Strings {
        prefix_at: u32,
        prefix_bytes: u32,
        all: Strings,
    },
}

/// The contents of an index block, to be searched in place.
#[derive(Clone, Debug)]
pub(super) struct SuccinctIndex {
    pub(super) block: Box<[u8]>,
    offset: u64,
    smallest: u64,
    sizes: EliasFano,
    form: Form,
}

impl SuccinctIndex {
    /// Copies block contents; what is packed is checked as it is read.
    ///
    /// # Errors
    /// When the parts are not those of an index block.
    pub(super) fn new(block: &[u8]) -> Result<SuccinctIndex, Malformed> {
        let mut decoder = Decoder::new(block);
        decoder.u8("index coding")?;
        let form = decoder.u8("form of boundaries")?;
        let count = decoder.length("index entries")?;
        if count == 0 || count > elias_fano::COUNT_MAX {
            return Err(Malformed::Field {
                what: "index entries",
                found: len_u64(count),
                expected: "1 to 16384",
            });
        }
        let offset = decoder.varint("block offset")?;
        let smallest = decoder.varint("smallest block size")?;
        let sizes = EliasFano::decode(&mut decoder, count, Sampled::Places)?;
        // So that no sum of what follows runs over.
        Handle { offset, bytes: 0 }
            .end()
            .ok()
            .zip(smallest.checked_mul(len_u64(count)))
            .and_then(|(offset, bytes)| offset.checked_add(bytes)?.checked_add(sizes.last()))
            .ok_or(Malformed::Field {
                what: "block offset",
                found: offset,
                expected: "a place inside the file",
            })?;
        let form = match (count, form) {
            (1, FORM_DIGITS) => Form::None,
            (_, FORM_DIGITS) => {
                let map = Radix::decode(block, &mut decoder)?;
                let numbers = EliasFano::decode(&mut decoder, count - 1, Sampled::Values)?;
                let ties = decoder.length("tied boundaries")?;
                let places_at = decoder.offset();
                if ties >= count {
                    return Err(Malformed::Field {
                        what: "tied boundaries",
                        found: len_u64(ties),
                        expected: "no more than boundaries",
                    });
                }
                decoder.take("tied boundaries", ties * size_of::<u16>())?;
                let places_at = offset_in_block(places_at)?;
                Form::Digits { map, numbers, places_at, ties: Strings::decode(&mut decoder, ties)? }
            }
            (2.., FORM_STRINGS) => {
                let prefix = prefix(&mut decoder)?.len();
                let prefix_at = offset_in_block(decoder.offset() - prefix)?;
                let all = Strings::decode(&mut decoder, count - 1)?;
                Form::Strings { prefix_at, prefix_bytes: offset_in_block(prefix)?, all }
            }
            _ => {
                return Err(Malformed::Field {
                    what: "form of boundaries",
                    found: u64::from(form),
                    expected: "0 (digits) or, of two blocks and more, 1 (strings)",
                });
            }
        };
        if !decoder.is_empty() {
            return Err(Malformed::Field {
                what: "bytes after the index",
                found: len_u64(decoder.remaining()),
                expected: "0",
            });
        }
        Ok(SuccinctIndex { block: block.into(), offset, smallest, sizes, form })
    }

    pub(super) fn count(&self) -> usize {
        self.sizes.count()
    }

    /// The block that can hold (`user_key`, `seq`).
    #[inline]
    pub(super) fn seek(&self, user_key: &[u8], seq: SeqNo) -> Result<(usize, Handle), Malformed> {
        let ordinal = self.passed(user_key, seq)?;
        Ok((ordinal, self.place(ordinal)?))
    }

    /// Where the block with this ordinal lies, or `None` past the last.
    pub(super) fn handle(&self, ordinal: usize) -> Result<Option<Handle>, Malformed> {
        if ordinal >= self.count() {
            return Ok(None);
        }
        self.place(ordinal).map(Some)
    }

    #[inline]
    fn place(&self, ordinal: usize) -> Result<Handle, Malformed> {
        let pair = self.sizes.pair(&self.block, ordinal);
        // `new` saw that these sums fit, but for numbers that go down or up past the last.
        let pair = pair.filter(|&(before, with)| before <= with && with <= self.sizes.last());
        let (before, with) = pair.ok_or(SIZES_IN_DISORDER)?;
        let offset = self.offset + len_u64(ordinal) * self.smallest + before;
        Ok(Handle { offset, bytes: self.smallest + (with - before) })
    }

    /// How many boundaries are at or before (`user_key`, `seq`).
    #[inline]
    fn passed(&self, user_key: &[u8], seq: SeqNo) -> Result<usize, Malformed> {
        let boundaries = self.count() - 1;
        match &self.form {
            Form::None => Ok(0),
            Form::Digits { map, numbers, places_at, ties } => {
                let (number, rest) = match map.map(&self.block, user_key) {
                    Mapped::Before => return Ok(0),
                    Mapped::Number(number, rest) => (number, rest),
                    Mapped::After => return Ok(boundaries),
                };
                let equal = numbers.equal(&self.block, number).ok_or(NUMBERS_IN_DISORDER)?;
                if equal.is_empty() {
                    return Ok(equal.start);
                }
                // Of boundaries with one number, all but perhaps the first are ties.
                let passed = ties.passed(&self.block, rest, seq)?;
                let tie = |index| self.tie(*places_at, index);
                if let Some(last) = passed.checked_sub(1)
                    && tie(last)? >= equal.start
                {
                    return Ok((tie(last)? + 1).min(boundaries));
                }
                let first_is_tie = passed < ties.count() && tie(passed)? == equal.start;
                Ok(equal.start + usize::from(!first_is_tie))
            }
            Form::Strings { prefix_at, prefix_bytes, all } => {
                let prefix = self.stretch(*prefix_at, *prefix_bytes);
                match user_key.strip_prefix(prefix) {
                    Some(rest) => all.passed(&self.block, rest, seq),
                    None if user_key < prefix => Ok(0),
                    None => Ok(boundaries),
                }
            }
        }
    }

    /// The ordinal of a tied boundary.
    #[inline]
    fn tie(&self, places_at: u32, index: usize) -> Result<usize, Malformed> {
        let at = places_at as usize + index * size_of::<u16>();
        let place = self.block.get(at..).and_then(<[u8]>::first_chunk);
        let place = place.ok_or(Malformed::Order { what: "tied boundaries are" })?;
        Ok(usize::from(u16::from_le_bytes(*place)))
    }

    fn stretch(&self, at: u32, bytes: u32) -> &[u8] {
        &self.block[at as usize..(at + bytes) as usize]
    }

    /// All blocks, and the separators after them but the last.
    ///
    /// # Errors
    /// When anything in the block is not what was written.
    pub(super) fn entries(&self) -> Result<Vec<(Option<Separator>, Handle)>, Malformed> {
        self.sizes.all(&self.block).ok_or(SIZES_IN_DISORDER)?;
        let mut separators = match &self.form {
            Form::None => Vec::new(),
            Form::Digits { map, numbers, places_at, ties } => {
                self.separators_of_digits(map, numbers, *places_at, ties)?
            }
            Form::Strings { prefix_at, prefix_bytes, all } => {
                let prefix = self.stretch(*prefix_at, *prefix_bytes);
                all.all(&self.block)?.into_iter().map(|rest| separator(prefix, rest)).collect()
            }
        }
        .into_iter();
        (0..self.count()).map(|ordinal| Ok((separators.next(), self.place(ordinal)?))).collect()
    }

    fn separators_of_digits(
        &self,
        map: &Radix,
        numbers: &EliasFano,
        places_at: u32,
        ties: &Strings,
    ) -> Result<Vec<Separator>, Malformed> {
        let prefix = map.prefix(&self.block);
        let mut separators = Vec::with_capacity(numbers.count());
        let numbers = numbers.all(&self.block).ok_or(NUMBERS_IN_DISORDER)?;
        // What is before the first boundary would have its number.
        if numbers.first() == Some(&0) && map.cuts_off_smaller() {
            return Err(NUMBERS_IN_DISORDER);
        }
        for (ordinal, &number) in numbers.iter().enumerate() {
            let Some(key) = map.key_of(&self.block, number) else {
                return Err(Malformed::Field {
                    what: "number of a boundary",
                    found: number,
                    expected: "one that a key can have",
                });
            };
            // Any but the first of equal ones must be a tie.
            let again = ordinal > 0 && numbers[ordinal - 1] == number;
            separators.push((again, separator(prefix, (key, None))));
        }
        let mut next = 0;
        for (index, rest) in ties.all(&self.block)?.into_iter().enumerate() {
            let place = self.tie(places_at, index)?;
            let known = separators.get_mut(place).filter(|_| place >= next);
            let Some(known) = known else {
                return Err(Malformed::Order { what: "tied boundaries are" });
            };
            let key = [prefix, &rest.0].concat();
            let mapped = map.map(&self.block, &key);
            if !matches!(mapped, Mapped::Number(number, _) if number == numbers[place]) {
                return Err(Malformed::Order { what: "tied boundaries and their numbers are" });
            }
            *known = (false, separator(prefix, rest));
            next = place + 1;
        }
        if separators.iter().any(|(again, _)| *again) {
            return Err(Malformed::Order { what: "boundaries with one number are" });
        }
        Ok(separators.into_iter().map(|(_, separator)| separator).collect())
    }
}

fn separator(prefix: &[u8], (rest, seq): strings::Owned) -> Separator {
    let versions = seq.map_or(Versions::After, Versions::Split);
    Separator { user_key: [prefix, &rest].concat(), versions }
}
