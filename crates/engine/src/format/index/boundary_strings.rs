//! Sorted boundaries as prefix-compressed strings, in groups of 16.
//!
//! ```text
//!    v   area     varint, bytes of all entries
//!    1   numbers  u8, 1 if every entry has a sequence number, else 0
//!    g   groups   u16 each, u32 if the area exceeds 65,535 bytes: offset in the area of each
//!                 group of 16 entries, except the first group
//!    n   entries, each
//!        1   lengths  u8; high nibble: bytes shared with the previous boundary, 0 at the start
//!                     of a group; low nibble: bytes of the suffix. 15 means 15 or more
//!        v   more     varints, the excess over 15, for the shared length first
//!        n   suffix   bytes of the boundary after the shared ones
//!        v   number   varint; 0 for a boundary between two user keys, else 1 plus the sequence
//!                     number of the last version before the boundary
//! ```

use std::cmp::Ordering;

use lsmx_base::coding::{Decoder, len_u64, put_varint, to_usize};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::separator::Boundary;
use super::{key_head, offset_in_block};
use crate::format::KEY_BYTES_MAX;
use crate::format::data_block::{common_prefix, shares_too_little, shares_too_much};

/// Number of entries in a group.
const GROUP_ENTRIES: usize = 16;

/// Value of a nibble for lengths of 15 or more. The excess over 15 follows as a varint.
const NIBBLE_ESCAPE: usize = 15;

/// Appends the encoded boundaries without their first `cut` bytes. Appends nothing if there are no boundaries.
pub(super) fn encode<'a>(
    boundaries: impl Iterator<Item = &'a Boundary> + Clone,
    cut: usize,
    out: &mut Vec<u8>,
) {
    let has_seqs = boundaries.clone().any(|boundary| boundary.last_seq_before().is_some());
    let (mut area, mut groups) = (Vec::new(), Vec::new());
    let mut previous: &[u8] = &[];
    for (index, boundary) in boundaries.enumerate() {
        let key = &boundary.user_key[cut..];
        let shared = if index.is_multiple_of(GROUP_ENTRIES) {
            if index > 0 {
                groups.push(area.len());
            }
            0
        } else {
            common_prefix(previous, key)
        };
        let suffix = &key[shared..];
        area.push(to_nibble(shared) << 4 | to_nibble(suffix.len()));
        for length in [shared, suffix.len()] {
            if let Some(more) = length.checked_sub(NIBBLE_ESCAPE) {
                put_varint(&mut area, len_u64(more));
            }
        }
        area.extend_from_slice(suffix);
        if has_seqs {
            put_varint(&mut area, boundary.last_seq_before().map_or(0, |seq| seq.0 + 1));
        }
        previous = key;
    }
    if area.is_empty() {
        return;
    }
    put_varint(out, len_u64(area.len()));
    out.push(u8::from(has_seqs));
    let group_bytes = usize::from(group_offset_bytes(area.len()));
    for group in groups {
        // Truncation to 4 bytes loses nothing, because an index block is far smaller than 4 GiB.
        out.extend_from_slice(&len_u64(group).to_le_bytes()[..group_bytes]);
    }
    out.append(&mut area);
}

/// Returns the nibble for a length.
fn to_nibble(length: usize) -> u8 {
    u8::try_from(length.min(NIBBLE_ESCAPE)).unwrap_or(u8::MAX)
}

/// Returns the size of a group offset in bytes. `area` is the total size of all entries in bytes.
fn group_offset_bytes(area: usize) -> u8 {
    if area > usize::from(u16::MAX) { 4 } else { 2 }
}

/// Parameters of a sequence of boundaries, and the offsets of its parts in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundaryStrings {
    count: u32,
    groups_at: u32,
    area_at: u32,
    area_end: u32,
    group_bytes: u8,
    has_seqs: bool,
}

/// A boundary without the common prefix of all boundaries: its user key, and a sequence number if the boundary
/// separates two versions of this key.
pub(super) type DecodedBoundary = (Vec<u8>, Option<SeqNo>);

struct StringEntry<'a> {
    shared: usize,
    suffix: &'a [u8],
    seq: Option<SeqNo>,
    next: usize,
}

impl BoundaryStrings {
    /// Decodes the parameters of a sequence of `count` boundaries, and advances the decoder to the end of the sequence.
    pub(super) fn decode(
        decoder: &mut Decoder<'_>,
        count: usize,
    ) -> Result<BoundaryStrings, Malformed> {
        let none = BoundaryStrings {
            count: 0,
            groups_at: 0,
            area_at: 0,
            area_end: 0,
            group_bytes: 0,
            has_seqs: false,
        };
        let Some(groups) = count.checked_sub(1).map(|last| last / GROUP_ENTRIES) else {
            return Ok(none);
        };
        let area = to_usize("boundaries", decoder.varint("bytes of boundaries")?)?;
        let has_seqs = decoder.u8("whether boundaries have numbers")?;
        if has_seqs > 1 {
            return Err(Malformed::invalid_field(
                "whether boundaries have numbers",
                u64::from(has_seqs),
                "0 or 1",
            ));
        }
        let group_bytes = group_offset_bytes(area);
        let groups_at = offset_in_block(decoder.offset())?;
        decoder.take_bytes("groups of boundaries", groups * usize::from(group_bytes))?;
        let area_at = offset_in_block(decoder.offset())?;
        decoder.take_bytes("boundaries", area)?;
        let area_end = offset_in_block(decoder.offset())?;
        let count = offset_in_block(count)?;
        Ok(BoundaryStrings {
            count,
            groups_at,
            area_at,
            area_end,
            group_bytes,
            has_seqs: has_seqs == 1,
        })
    }

    /// Returns the number of boundaries in the sequence.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Returns the number of boundaries at or before (`user_key`, `seq`). `user_key` does not contain the common prefix
    /// of all boundaries.
    #[inline]
    pub(super) fn count_at_or_before(
        &self,
        block: &[u8],
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<usize, Malformed> {
        // Groups before `low` start at or before the target. Groups from `high` on start after the target.
        let (mut low, mut high) = (0, self.count().div_ceil(GROUP_ENTRIES));
        let head = key_head(user_key);
        while low < high {
            let middle = low + (high - low) / 2;
            let at = self.group_offset(block, middle)?;
            let passed = match self.is_group_before_target(block, at, head) {
                Some(passed) => passed,
                None => {
                    let entry = self.decode_entry(block, at)?;
                    is_at_or_before(entry.suffix.cmp(user_key), entry.seq, seq)
                }
            };
            if passed {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(group) = low.checked_sub(1) else { return Ok(0) };
        let mut at = self.group_offset(block, group)?;
        let mut index = group * GROUP_ENTRIES;
        let end = self.count().min(index + GROUP_ENTRIES);
        // `matched` is the length of the common prefix of the target and the previous boundary, which is at or before
        // the target. A boundary that shares more than `matched` bytes with the previous boundary is also before the
        // target. A boundary that shares fewer bytes is after the target. Bytes are compared only if a boundary shares
        // exactly `matched` bytes.
        let (mut matched, mut previous_bytes) = (0, 0);
        while index < end {
            let entry = self.decode_entry(block, at)?;
            if entry.shared > previous_bytes {
                return Err(shares_too_much(entry.shared));
            }
            previous_bytes = entry.shared + entry.suffix.len();
            let order = if entry.shared == matched || index.is_multiple_of(GROUP_ENTRIES) {
                let rest = user_key.get(entry.shared..).unwrap_or_default();
                let common = common_prefix(entry.suffix, rest);
                matched = entry.shared + common;
                entry.suffix.get(common).cmp(&rest.get(common))
            } else {
                matched.cmp(&entry.shared)
            };
            if !is_at_or_before(order, entry.seq, seq) {
                break;
            }
            (index, at) = (index + 1, entry.next);
        }
        Ok(index)
    }

    /// Decodes all boundaries.
    ///
    /// # Errors
    /// Fails if `encode` cannot have written this encoding.
    pub(super) fn decode_all(&self, block: &[u8]) -> Result<Vec<DecodedBoundary>, Malformed> {
        let mut all = Vec::with_capacity(self.count().min(block.len()));
        let mut key: Vec<u8> = Vec::new();
        let mut at = self.area_at as usize;
        for index in 0..self.count() {
            let entry = self.decode_entry(block, at)?;
            let starts = index.is_multiple_of(GROUP_ENTRIES);
            if starts && self.group_offset(block, index / GROUP_ENTRIES)? != at {
                return Err(Malformed::Order { what: "groups of boundaries are" });
            }
            let too_long = len_u64(entry.shared + entry.suffix.len()) > KEY_BYTES_MAX;
            if entry.shared > key.len() || (starts && entry.shared > 0) || too_long {
                return Err(shares_too_much(entry.shared));
            }
            // The search requires that shared prefixes are as long as possible. The first byte of the suffix must
            // therefore differ from the byte at the same position of the previous boundary.
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
            return Err(Malformed::invalid_field(
                "bytes after the last boundary",
                len_u64(self.area_end as usize - at),
                "0",
            ));
        }
        Ok(all)
    }

    /// Returns whether the first boundary of a group is before the target. Compares only up to eight bytes. Returns
    /// `None` if these bytes do not determine the order. `head` contains the first eight bytes of the target.
    #[inline]
    fn is_group_before_target(&self, block: &[u8], at: usize, head: u64) -> Option<bool> {
        let area = &block[..self.area_end as usize];
        let &[lengths, more, ..] = area.get(at..)?.first_chunk::<2>()?;
        let (suffix_at, bytes) = match usize::from(lengths) {
            // The nibble states a suffix of 15 bytes or more, and the excess is a varint of one byte.
            NIBBLE_ESCAPE if more < 0x80 => (at + 2, size_of::<u64>()),
            // A suffix with fewer than eight bytes is compared with the same number of bytes of the target. The mask
            // clears the remaining bytes.
            short @ 1..NIBBLE_ESCAPE => (at + 1, short.min(size_of::<u64>())),
            _ => return None,
        };
        let own = u64::from_be_bytes(*area.get(suffix_at..)?.first_chunk()?);
        let mask = u64::MAX << (u64::BITS as usize - 8 * bytes);
        let (own, head) = (own & mask, head & mask);
        (own != head).then_some(own < head)
    }

    #[inline]
    fn group_offset(&self, block: &[u8], group: usize) -> Result<usize, Malformed> {
        let Some(previous) = group.checked_sub(1) else { return Ok(self.area_at as usize) };
        let group_bytes = usize::from(self.group_bytes);
        let at = self.groups_at as usize + previous * group_bytes;
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
    fn decode_entry<'a>(&self, block: &'a [u8], at: usize) -> Result<StringEntry<'a>, Malformed> {
        let area = &block[..self.area_end as usize];
        match self.decode_short_entry(area, at) {
            Some(entry) => Ok(entry),
            None => self.decode_long_entry(area, at),
        }
    }

    /// Decodes an entry without a sequence number, whose lengths are less than 143. Returns `None` for other entries.
    /// Nearly all entries have this form.
    #[inline]
    fn decode_short_entry<'a>(&self, area: &'a [u8], at: usize) -> Option<StringEntry<'a>> {
        if self.has_seqs {
            return None;
        }
        let lengths = *area.get(at)?;
        let mut suffix_at = at + 1;
        let (mut shared, mut unshared) = (usize::from(lengths >> 4), usize::from(lengths & 0xf));
        for length in [&mut shared, &mut unshared] {
            if *length == NIBBLE_ESCAPE {
                let more = *area.get(suffix_at).filter(|&&more| more < 0x80)?;
                *length += usize::from(more);
                suffix_at += 1;
            }
        }
        let next = suffix_at + unshared;
        Some(StringEntry { shared, suffix: area.get(suffix_at..next)?, seq: None, next })
    }

    #[cold]
    fn decode_long_entry<'a>(
        &self,
        area: &'a [u8],
        at: usize,
    ) -> Result<StringEntry<'a>, Malformed> {
        let mut decoder = Decoder::with_offset(area, at);
        let lengths = decoder.u8("lengths of a boundary")?;
        let mut length = |half: u8| {
            let half = usize::from(half);
            let more =
                if half == NIBBLE_ESCAPE { decoder.length("length of a boundary")? } else { 0 };
            Ok(half.saturating_add(more))
        };
        let shared = length(lengths >> 4)?;
        let unshared = length(lengths & 0xf)?;
        let suffix = decoder.take_bytes("boundary", unshared)?;
        let number = if self.has_seqs { decoder.varint("number of a boundary")? } else { 0 };
        let seq = number.checked_sub(1).map(SeqNo);
        Ok(StringEntry { shared, suffix, seq, next: decoder.offset() })
    }
}

/// Returns whether a boundary is at or before the target. `order` is the order of the user keys of the boundary and the
/// target. `own` is the sequence number of the boundary, and `seq` that of the target.
#[inline]
fn is_at_or_before(order: Ordering, own: Option<SeqNo>, seq: SeqNo) -> bool {
    match order {
        Ordering::Less => true,
        Ordering::Equal => own.is_none_or(|own| own > seq),
        Ordering::Greater => false,
    }
}
