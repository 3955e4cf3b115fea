//! Sorted boundaries as strings, each cut to what differs from the one before.
//!
//! ```text
//!    v   area     varint, bytes of the entries
//!    1   numbers  u8, 1 if every entry has a number, else 0
//!    g   groups   u16 each, u32 if the area has more than 65,535 bytes: where each group of 16
//!                 entries begins in the area, the first left out
//!    n   entries, each
//!        1   lengths  u8, upper half: bytes that are those of the boundary before, 0 at the start
//!                     of a group; lower half: bytes that follow. 15 stands for 15 and more
//!        v   more     varints, what is above 15, the first length's before the second's
//!        n   suffix   the bytes that follow
//!        v   number   varint, 0 for a boundary between user keys; else the sequence number of the
//!                     last version before it, plus 1
//! ```

use std::cmp::Ordering;

use lsmx_base::coding::{Decoder, len_u64, put_varint, to_usize};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::separator::Boundary;
use super::{key_head, offset_in_block};
use crate::format::KEY_BYTES_MAX;
use crate::format::data_block::{common_prefix, shares_too_little, shares_too_much};

/// Entries of a group.
const GROUP: usize = 16;

/// What half a byte says of a length that does not fit.
const LONG: usize = 15;

/// Appends boundaries without their first `cut` bytes. Nothing at all for no boundaries.
pub(super) fn encode<'a>(
    boundaries: impl Iterator<Item = &'a Boundary> + Clone,
    cut: usize,
    out: &mut Vec<u8>,
) {
    let numbers = boundaries.clone().any(|boundary| boundary.seq().is_some());
    let (mut area, mut groups) = (Vec::new(), Vec::new());
    let mut before: &[u8] = &[];
    for (place, boundary) in boundaries.enumerate() {
        let key = &boundary.user_key[cut..];
        let shared = if place.is_multiple_of(GROUP) {
            if place > 0 {
                groups.push(area.len());
            }
            0
        } else {
            common_prefix(before, key)
        };
        let suffix = &key[shared..];
        area.push(half_byte(shared) << 4 | half_byte(suffix.len()));
        for length in [shared, suffix.len()] {
            if let Some(more) = length.checked_sub(LONG) {
                put_varint(&mut area, len_u64(more));
            }
        }
        area.extend_from_slice(suffix);
        if numbers {
            put_varint(&mut area, boundary.seq().map_or(0, |seq| seq.0 + 1));
        }
        before = key;
    }
    if area.is_empty() {
        return;
    }
    put_varint(out, len_u64(area.len()));
    out.push(u8::from(numbers));
    let group_bytes = usize::from(group_bytes(area.len()));
    for group in groups {
        // An index block has far less than 4 GiB.
        out.extend_from_slice(&len_u64(group).to_le_bytes()[..group_bytes]);
    }
    out.append(&mut area);
}

/// A length as half a byte says it.
fn half_byte(length: usize) -> u8 {
    u8::try_from(length.min(LONG)).unwrap_or(u8::MAX)
}

/// Bytes of a group's place.
fn group_bytes(area: usize) -> u8 {
    if area > usize::from(u16::MAX) { 4 } else { 2 }
}

/// Where the parts of such a sequence lie in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strings {
    count: u32,
    groups_at: u32,
    area_at: u32,
    area_end: u32,
    group_bytes: u8,
    numbers: bool,
}

/// Key and number of a boundary.
pub(super) type Owned = (Vec<u8>, Option<SeqNo>);

struct Entry<'a> {
    shared: usize,
    suffix: &'a [u8],
    seq: Option<SeqNo>,
    next: usize,
}

impl Strings {
    /// Finds the parts of `count` boundaries and goes past them.
    ///
    /// # Errors
    /// When they are longer than the block.
    pub(super) fn decode(decoder: &mut Decoder<'_>, count: usize) -> Result<Strings, Malformed> {
        let none = Strings {
            count: 0,
            groups_at: 0,
            area_at: 0,
            area_end: 0,
            group_bytes: 0,
            numbers: false,
        };
        let Some(groups) = count.checked_sub(1).map(|last| last / GROUP) else {
            return Ok(none);
        };
        let area = to_usize("boundaries", decoder.varint("bytes of boundaries")?)?;
        let numbers = decoder.u8("whether boundaries have numbers")?;
        if numbers > 1 {
            return Err(Malformed::Field {
                what: "whether boundaries have numbers",
                found: u64::from(numbers),
                expected: "0 or 1",
            });
        }
        let group_bytes = group_bytes(area);
        let groups_at = offset_in_block(decoder.offset())?;
        decoder.take("groups of boundaries", groups * usize::from(group_bytes))?;
        let area_at = offset_in_block(decoder.offset())?;
        decoder.take("boundaries", area)?;
        let area_end = offset_in_block(decoder.offset())?;
        let count = offset_in_block(count)?;
        Ok(Strings { count, groups_at, area_at, area_end, group_bytes, numbers: numbers == 1 })
    }

    /// How many boundaries there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// How many boundaries are at or before (`user_key`, `seq`), whose first bytes, those cut from all
    /// boundaries, are left out.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    #[inline]
    pub(super) fn passed(
        &self,
        block: &[u8],
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<usize, Malformed> {
        // Groups below `low` begin at or before the target, those from `high` on after it.
        let (mut low, mut high) = (0, self.count().div_ceil(GROUP));
        let head = key_head(user_key);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = self.group(block, middle)?;
            let passed = match self.passed_by_head(block, at, head) {
                Some(passed) => passed,
                None => {
                    let entry = self.entry(block, at)?;
                    is_passed(entry.suffix.cmp(user_key), entry.seq, seq)
                }
            };
            if passed {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(group) = low.checked_sub(1) else { return Ok(0) };
        let mut at = self.group(block, group)?;
        let mut place = group * GROUP;
        let end = self.count().min(place + GROUP);
        // As in a data block: what an entry shares with the one before tells its order, unless it
        // is just the bytes that that one has in common with the target.
        let (mut matched, mut before_bytes) = (0, 0);
        while place < end {
            let entry = self.entry(block, at)?;
            if entry.shared > before_bytes {
                return Err(shares_too_much(entry.shared));
            }
            before_bytes = entry.shared + entry.suffix.len();
            let order = if entry.shared == matched || place.is_multiple_of(GROUP) {
                let rest = user_key.get(entry.shared..).unwrap_or_default();
                let common = common_prefix(entry.suffix, rest);
                matched = entry.shared + common;
                entry.suffix.get(common).cmp(&rest.get(common))
            } else {
                matched.cmp(&entry.shared)
            };
            if !is_passed(order, entry.seq, seq) {
                break;
            }
            (place, at) = (place + 1, entry.next);
        }
        Ok(place)
    }

    /// All boundaries, as keys without what was cut from them, and numbers.
    ///
    /// # Errors
    /// When they are not what was written.
    pub(super) fn all(&self, block: &[u8]) -> Result<Vec<Owned>, Malformed> {
        let mut all = Vec::with_capacity(self.count().min(block.len()));
        let mut key: Vec<u8> = Vec::new();
        let mut at = self.area_at as usize;
        for place in 0..self.count() {
            let entry = self.entry(block, at)?;
            let starts = place.is_multiple_of(GROUP);
            if starts && self.group(block, place / GROUP)? != at {
                return Err(Malformed::Order { what: "groups of boundaries are" });
            }
            let too_long = len_u64(entry.shared + entry.suffix.len()) > KEY_BYTES_MAX;
            if entry.shared > key.len() || (starts && entry.shared > 0) || too_long {
                return Err(shares_too_much(entry.shared));
            }
            // A search takes a byte that is not shared for one that differs.
            if !starts && !entry.suffix.is_empty() && key.get(entry.shared) == entry.suffix.first()
            {
                return Err(shares_too_little(entry.shared));
            }
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            all.push((key.clone(), entry.seq));
            at = entry.next;
        }
        if at != self.area_end as usize {
            return Err(Malformed::Field {
                what: "bytes after the last boundary",
                found: len_u64(self.area_end as usize - at),
                expected: "0",
            });
        }
        Ok(all)
    }

    /// Whether the first boundary of a group is at or before a target, if the target's first eight
    /// bytes tell.
    #[inline]
    fn passed_by_head(&self, block: &[u8], at: usize, head: u64) -> Option<bool> {
        let area = &block[..self.area_end as usize];
        let &[lengths, more, ..] = area.get(at..)?.first_chunk::<2>()?;
        let (suffix_at, bytes) = match usize::from(lengths) {
            // Fifteen and more, in one byte.
            LONG if more < 0x80 => (at + 2, size_of::<u64>()),
            // What follows a shorter boundary is masked off; so is as much of the key.
            short @ 1..LONG => (at + 1, short.min(size_of::<u64>())),
            _ => return None,
        };
        let own = u64::from_be_bytes(*area.get(suffix_at..)?.first_chunk()?);
        let mask = u64::MAX << (u64::BITS as usize - 8 * bytes);
        let (own, head) = (own & mask, head & mask);
        (own != head).then_some(own < head)
    }

    /// Where a group begins.
    #[inline]
    fn group(&self, block: &[u8], group: usize) -> Result<usize, Malformed> {
        let Some(before) = group.checked_sub(1) else { return Ok(self.area_at as usize) };
        let group_bytes = usize::from(self.group_bytes);
        let at = self.groups_at as usize + before * group_bytes;
        let mut bytes = [0; size_of::<u32>()];
        if let Some(stored) = block.get(at..at + group_bytes) {
            bytes[..group_bytes].copy_from_slice(stored);
        }
        to_usize("group of boundaries", u64::from(u32::from_le_bytes(bytes)))?
            .checked_add(self.area_at as usize)
            .filter(|&at| at < self.area_end as usize)
            .ok_or(Malformed::Order { what: "groups of boundaries are" })
    }

    #[inline]
    fn entry<'a>(&self, block: &'a [u8], at: usize) -> Result<Entry<'a>, Malformed> {
        let area = &block[..self.area_end as usize];
        match self.short_entry(area, at) {
            Some(entry) => Ok(entry),
            None => self.long_entry(area, at),
        }
    }

    /// The entry at an offset if its lengths are below 143 and it has no number, as nearly all.
    #[inline]
    fn short_entry<'a>(&self, area: &'a [u8], at: usize) -> Option<Entry<'a>> {
        if self.numbers {
            return None;
        }
        let lengths = *area.get(at)?;
        let mut suffix_at = at + 1;
        let (mut shared, mut unshared) = (usize::from(lengths >> 4), usize::from(lengths & 0xf));
        for length in [&mut shared, &mut unshared] {
            if *length == LONG {
                let more = *area.get(suffix_at).filter(|&&more| more < 0x80)?;
                *length += usize::from(more);
                suffix_at += 1;
            }
        }
        let next = suffix_at + unshared;
        Some(Entry { shared, suffix: area.get(suffix_at..next)?, seq: None, next })
    }

    #[cold]
    fn long_entry<'a>(&self, area: &'a [u8], at: usize) -> Result<Entry<'a>, Malformed> {
        let mut decoder = Decoder::at(area, at);
        let lengths = decoder.u8("lengths of a boundary")?;
        let mut length = |half: u8| {
            let half = usize::from(half);
            let more = if half == LONG { decoder.length("length of a boundary")? } else { 0 };
            Ok(half.saturating_add(more))
        };
        let shared = length(lengths >> 4)?;
        let unshared = length(lengths & 0xf)?;
        let suffix = decoder.take("boundary", unshared)?;
        let number = if self.numbers { decoder.varint("number of a boundary")? } else { 0 };
        let seq = number.checked_sub(1).map(SeqNo);
        Ok(Entry { shared, suffix, seq, next: decoder.offset() })
    }
}

/// Whether a target is at or after a boundary whose key has this order to the target's.
#[inline]
fn is_passed(order: Ordering, own: Option<SeqNo>, seq: SeqNo) -> bool {
    match order {
        Ordering::Less => true,
        Ordering::Equal => own.is_none_or(|own| own > seq),
        Ordering::Greater => false,
    }
}
