//! Data block (encodings 0 and 1): prefix-compressed entries in internal-key order. Integers are little-endian.
//!
//! ```text
//!  0  1   encoding  u8, 0 or 1
//!  1      entries, each
//!     v   shared    varint, bytes of the user key shared with the previous entry
//!     v   unshared  varint, bytes of the suffix
//!     1   kind      u8, see `EntryKind`; 4 (single delete) is reserved. With the flag 0x80, the value begins
//!                   with an expiry time, see `expiry.rs`
//!     v   number    varint, sequence number
//!     v   length    varint, bytes of the value
//!     n   suffix    the unshared bytes of the user key
//!     n   value
//!  then, for encoding 0 (prefix)
//!  r  4k  restarts  u32 each, offset of an entry whose shared is 0; the first is 1
//!     4   k         u32, number of restarts, at least one
//!  or, for encoding 1 (tagged)
//!  t  n   tags      u8 each, byte 1 of the filter hash of the key, see `tags`
//!     2k  restarts  u16 each, as above; k = ⌈n ÷ interval⌉
//!     1   interval  u8, entries per restart, counted from the first entry; at least one
//!     2   n         u16, number of entries, at least one
//! ```
//!
//! `shared` is the length of the common prefix with the previous key. At a restart, `shared` is 0. A search that starts
//! at a restart can compare keys without reconstructing them. Assume that the previous key is before the target, and
//! let `matched` be the length of the common prefix of the previous key and the target:
//!
//! - If an entry shares more than `matched` bytes with the previous key, it is also before the target.
//! - If an entry shares fewer than `matched` bytes, it is after the target.
//! - If an entry shares exactly `matched` bytes, the search compares its suffix with the target from byte `matched` on.

mod builder;
pub mod cursor;
mod tags;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use lsmx_base::coding::{Decoder, decode_varint_word, get_u32, get_u64, len_u64, to_usize};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use super::VALUE_BYTES_MAX;
use super::expiry::check_expiring_value;

pub use builder::{DataBlockBuilder, SplitPoint};
use tags::TagCounts;

/// Encoding number of blocks without tags.
pub(crate) const ENCODING_PREFIX: u8 = 0;
/// Encoding number of blocks with tags.
pub(crate) const ENCODING_TAGGED: u8 = 1;

/// Offset of the first entry.
pub const ENTRIES_AT: usize = 1;

/// Returns the order of a prefix-compressed key relative to `user_key`.
///
/// `matched` is the length of the common prefix of `user_key` and the previous key. The previous key must be less than
/// `user_key`. At a restart, `shared` is 0. The function updates `matched` for the next key. The function compares
/// bytes only at a restart or if `shared` equals `matched`. Otherwise, `shared` and `matched` determine the order.
#[inline]
pub(crate) fn compare_compressed(
    shared: usize,
    suffix: &[u8],
    user_key: &[u8],
    matched: &mut usize,
) -> Ordering {
    if shared != 0 && shared != *matched {
        return (*matched).cmp(&shared);
    }
    let rest = &user_key[shared..]; // `shared` is 0 or `matched`, and therefore at most the length of the key
    let common = common_prefix(suffix, rest);
    *matched = shared + common;
    suffix.get(common).cmp(&rest.get(common))
}

/// Returns the length of the common prefix of two keys in bytes.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = size_of::<u64>();
    let len = a.len().min(b.len());
    let mut at = 0;
    while at + STEP <= len {
        let (Some(x), Some(y)) = (get_u64(a, at), get_u64(b, at)) else { break };
        if x != y {
            // The words are little-endian, so the first byte that differs is in the lowest bits.
            return at + (x ^ y).trailing_zeros() as usize / 8;
        }
        at += STEP;
    }
    at + a[at..len].iter().zip(&b[at..len]).take_while(|(a, b)| a == b).count()
}

/// An entry as it is stored in a block.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry<'a> {
    /// Number of bytes that the user key shares with the previous user key.
    pub shared: usize,
    /// Remaining bytes of the user key.
    pub suffix: &'a [u8],
    pub kind: EntryKind,
    /// Sequence number.
    pub seq: SeqNo,
    /// Offset of the value in the block.
    pub value_at: usize,
    /// Offset of the next entry, which is also the end of the value.
    pub next: usize,
}

impl<'a> RawEntry<'a> {
    /// Decodes the next entry. The offsets in the result are relative to the start of the decoder's input.
    fn decode(decoder: &mut Decoder<'a>) -> Result<RawEntry<'a>, Malformed> {
        let shared = decoder.length("shared key length")?;
        let unshared = decoder.length("unshared key length")?;
        let kind = decoder.u8("entry kind")?;
        let Some(kind) = EntryKind::from_u8(kind) else {
            return Err(Malformed::invalid_field("entry kind", u64::from(kind), "a known kind"));
        };
        let seq = SeqNo(decoder.varint("sequence number")?);
        let value_bytes = decoder.length("value length")?;
        if seq > SeqNo::MAX || len_u64(value_bytes) > VALUE_BYTES_MAX {
            return Err(Malformed::invalid_field(
                "sequence number or value length",
                if seq > SeqNo::MAX { seq.0 } else { len_u64(value_bytes) },
                "56 bits, and at most 1 GiB",
            ));
        }
        check_expiring_value(kind, value_bytes)?;
        let suffix = decoder.take_bytes("key suffix", unshared)?;
        let value_at = decoder.offset();
        decoder.take_bytes("value", value_bytes)?;
        Ok(RawEntry { shared, suffix, kind, seq, value_at, next: decoder.offset() })
    }
}

/// Contents of a data block. A search reads the encoded bytes.
#[derive(Clone, Debug)]
pub struct DataBlock {
    bytes: BlockBytes,
    entries_end: usize,
    restarts_at: usize,
    restarts: usize,
    /// Fields at the end of a block with encoding 1. `None` for encoding 0.
    tag_counts: Option<TagCounts>,
}

/// Result of a point lookup in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupResult {
    pub seq: SeqNo,
    pub kind: EntryKind,
    pub value_at: usize,
    pub value_end: usize,
}

/// Result of a seek in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeekResult<'a> {
    /// Offset of the entry.
    pub at: usize,
    pub entry: RawEntry<'a>,
    /// Whether the user key of the entry equals the target.
    pub is_key: bool,
}

impl DataBlock {
    /// Creates a data block from its decompressed contents. Entries are checked only when they are read.
    #[inline]
    pub fn new(bytes: BlockBytes) -> Result<DataBlock, Malformed> {
        let encoding = Decoder::new(&bytes).u8("data block encoding")?;
        match encoding {
            ENCODING_PREFIX => DataBlock::new_untagged(bytes),
            ENCODING_TAGGED => {
                let tag_counts = TagCounts::read(&bytes)?;
                let entries_end = bytes.len() - tag_counts.bytes();
                let restarts_at = entries_end + tag_counts.entries;
                let restarts = tag_counts.restart_count();
                Ok(DataBlock {
                    bytes,
                    entries_end,
                    restarts_at,
                    restarts,
                    tag_counts: Some(tag_counts),
                })
            }
            _ => Err(Malformed::invalid_field(
                "data block encoding",
                u64::from(encoding),
                "0 (prefix) or 1 (tagged)",
            )),
        }
    }

    #[inline]
    fn new_untagged(bytes: BlockBytes) -> Result<DataBlock, Malformed> {
        let count = bytes.len().checked_sub(size_of::<u32>()).and_then(|at| get_u32(&bytes, at));
        let count = u64::from(count.unwrap_or(0));
        let tail = (count + 1) * len_u64(size_of::<u32>());
        // A block contains at least one entry. A cursor would take a block without entries for the end of its table.
        if count == 0 || tail + len_u64(ENTRIES_AT) >= len_u64(bytes.len()) {
            return Err(Malformed::invalid_field(
                "data block restarts",
                count,
                "at least one, and as many as fit into the block after an entry",
            ));
        }
        let restarts_at = bytes.len() - to_usize("data block restarts", tail)?;
        let restarts = to_usize("data block restarts", count)?;
        Ok(DataBlock { bytes, entries_end: restarts_at, restarts_at, restarts, tag_counts: None })
    }

    /// Returns the decompressed contents.
    pub fn bytes(&self) -> &BlockBytes {
        &self.bytes
    }

    pub(crate) fn into_bytes(self) -> BlockBytes {
        self.bytes
    }

    /// Returns the offset after the last entry.
    pub fn entries_end(&self) -> usize {
        self.entries_end
    }

    /// Returns the number of restarts.
    pub fn restart_count(&self) -> usize {
        self.restarts
    }

    /// Returns the offset of the entry at a restart. Restarts are numbered from 0.
    #[inline]
    pub(crate) fn restart_offset(&self, index: usize) -> Result<usize, Malformed> {
        let at = match self.tag_counts {
            Some(_) => self.restart_offset_by_tags(index)?,
            None => {
                let at = get_u32(&self.bytes, self.restarts_at + index * size_of::<u32>());
                to_usize("data block restart", u64::from(at.unwrap_or(0)))?
            }
        };
        if at < ENTRIES_AT || at >= self.entries_end {
            return Err(Malformed::invalid_field(
                "data block restart",
                len_u64(at),
                "the offset of an entry",
            ));
        }
        Ok(at)
    }

    /// Decodes the entry at offset `at`.
    #[inline]
    pub fn entry(&self, at: usize) -> Result<RawEntry<'_>, Malformed> {
        match self.decode_short_entry(at) {
            Some(entry) => Ok(entry),
            None => self.decode_long_entry(at),
        }
    }

    /// Decodes an entry that does not expire, whose key lengths have one byte each, and whose value length has at most
    /// two bytes. Returns `None` for other entries. Nearly all entries have this form.
    #[inline]
    fn decode_short_entry(&self, at: usize) -> Option<RawEntry<'_>> {
        /// Three fields of one byte, a sequence number of at most eight bytes, and a value length of at most two bytes.
        const HEAD_BYTES: usize = 3 + 8 + 2;
        let head: &[u8; HEAD_BYTES] = self.bytes.get(at..)?.first_chunk()?;
        let [shared, unshared, kind, ..] = *head;
        let (seq, seq_bytes) = decode_varint_word(u64::from_le_bytes(*head[3..].first_chunk()?))?;
        let (value_bytes, length_bytes) = match head[3 + seq_bytes..] {
            [a, ..] if a < 0x80 => (usize::from(a), 1),
            [a, b, ..] if b < 0x80 && b != 0 => (usize::from(a & 0x7f) | usize::from(b) << 7, 2),
            _ => return None,
        };
        // One comparison checks that both key lengths have one byte and that the entry does not expire.
        // `decode_long_entry` checks the length of an expiring value.
        if (shared | unshared | kind) >= 0x80 {
            return None;
        }
        let suffix_at = at + 3 + seq_bytes + length_bytes;
        let value_at = suffix_at + usize::from(unshared);
        let next = value_at + value_bytes;
        if next > self.entries_end {
            return None;
        }
        Some(RawEntry {
            shared: usize::from(shared),
            suffix: self.bytes.get(suffix_at..value_at)?,
            kind: EntryKind::from_u8(kind)?,
            seq: SeqNo(seq),
            value_at,
            next,
        })
    }

    #[cold]
    fn decode_long_entry(&self, at: usize) -> Result<RawEntry<'_>, Malformed> {
        RawEntry::decode(&mut Decoder::with_offset(&self.bytes[..self.entries_end], at))
    }

    /// Decodes the entry at a restart. The suffix of this entry is its whole user key.
    fn restart_entry(&self, index: usize) -> Result<RawEntry<'_>, Malformed> {
        let entry = self.entry(self.restart_offset(index)?)?;
        if entry.shared != 0 {
            return Err(Malformed::invalid_field(
                "shared key length at a restart",
                len_u64(entry.shared),
                "0",
            ));
        }
        Ok(entry)
    }

    /// Reads all entries and checks the invariants that searches depend on:
    /// - Restarts are in order, and entries at restarts share no bytes.
    /// - All other entries share as many bytes as possible with the previous entry.
    /// - In a block with tags, restarts have equal distances, and each tag matches the hash of its key.
    ///
    /// # Errors
    /// Returns the first violation of an invariant.
    pub fn check_invariants(&self) -> Result<(), Malformed> {
        let mut key: Vec<u8> = Vec::new();
        let mut restarts = 0;
        let mut ordinal = 0;
        let mut at = ENTRIES_AT;
        while at < self.entries_end {
            let entry = self.entry(at)?;
            if entry.shared > key.len() {
                return Err(shares_too_much(entry.shared));
            }
            let is_restart = restarts < self.restarts && self.restart_offset(restarts)? == at;
            if let Some(tag_counts) = self.tag_counts
                && is_restart != (ordinal % tag_counts.interval == 0)
            {
                return Err(Malformed::Order { what: "data block restarts are" });
            }
            if is_restart {
                restarts += 1;
                if entry.shared != 0 {
                    return Err(shares_too_much(entry.shared));
                }
            } else if !entry.suffix.is_empty() && key.get(entry.shared) == entry.suffix.first() {
                return Err(shares_too_little(entry.shared));
            }
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            if let Some(tag_counts) = self.tag_counts
                && self.tags(tag_counts).get(ordinal) != Some(&tags::key_hash_tag(&key))
            {
                return Err(tag_error(ordinal));
            }
            ordinal += 1;
            at = entry.next;
        }
        if let Some(tag_counts) = self.tag_counts
            && tag_counts.entries != ordinal
        {
            return Err(tag_error(ordinal));
        }
        // The first entry of a block is always a restart.
        if restarts != self.restarts || self.restart_offset(0)? != ENTRIES_AT {
            return Err(Malformed::Order { what: "data block restarts are" });
        }
        Ok(())
    }

    /// Returns the first entry at or after (`user_key`, `seq`). Returns `None` if all entries are before this position.
    /// The full key of the entry is not reconstructed. Its shared bytes equal the first bytes of `user_key`.
    #[inline]
    pub(crate) fn seek(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<SeekResult<'_>>, Malformed> {
        let mut at = self.restart_offset(self.seek_restart(user_key, seq)?)?;
        let mut matched = 0;
        let mut key_bytes = 0;
        while at < self.entries_end {
            let entry = self.entry(at)?;
            if entry.shared > key_bytes {
                return Err(shares_too_much(entry.shared));
            }
            key_bytes = entry.shared + entry.suffix.len();
            let order = compare_compressed(entry.shared, entry.suffix, user_key, &mut matched);
            match order {
                Ordering::Less => {}
                Ordering::Equal if entry.seq > seq => {}
                _ => return Ok(Some(SeekResult { at, entry, is_key: order == Ordering::Equal })),
            }
            at = entry.next;
        }
        Ok(None)
    }

    /// Returns the index of the last restart whose entry is before (`user_key`, `seq`), or 0 if there is none.
    #[inline]
    pub(crate) fn seek_restart(&self, user_key: &[u8], seq: SeqNo) -> Result<usize, Malformed> {
        // Restarts before `low` are before the target. Restarts from `high` on are at or after the target.
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.restart_entry(middle)?;
            let before = match entry.suffix.cmp(user_key) {
                Ordering::Less => true,
                Ordering::Equal => entry.seq > seq,
                Ordering::Greater => false,
            };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.saturating_sub(1))
    }

    /// Returns the newest entry of `user_key` that is visible at `snapshot`. The result contains the offsets of the
    /// value.
    ///
    /// # Errors
    /// Fails if the search reads a malformed entry.
    pub fn get(&self, user_key: &[u8], snapshot: SeqNo) -> Result<Option<LookupResult>, Malformed> {
        if let Some(tag_counts) = self.tag_counts {
            return self.get_by_tags(tag_counts, user_key, snapshot);
        }
        let found = self.seek(user_key, snapshot)?.filter(|sought| sought.is_key);
        Ok(found.map(|SeekResult { entry, .. }| LookupResult {
            seq: entry.seq,
            kind: entry.kind,
            value_at: entry.value_at,
            value_end: entry.next,
        }))
    }
}

/// Returns the error for an entry that shares more bytes than the previous key has.
#[cold]
pub(crate) fn shares_too_much(shared: usize) -> Malformed {
    Malformed::invalid_field(
        "shared key length",
        len_u64(shared),
        "at most the length of the previous key",
    )
}

/// Returns the error for a wrong tag or a wrong number of tags. A lookup would not find an entry with a wrong tag.
#[cold]
fn tag_error(ordinal: usize) -> Malformed {
    Malformed::invalid_field(
        "data block tag of entry",
        len_u64(ordinal),
        "one for each entry, from the hash of its key",
    )
}

/// Returns the error for an entry that shares fewer bytes than possible with the previous key. Searches require that
/// the first byte of the suffix differs from the byte of the previous key at this position.
#[cold]
pub(crate) fn shares_too_little(shared: usize) -> Malformed {
    Malformed::invalid_field(
        "shared key length",
        len_u64(shared),
        "the length of the common prefix with the previous key",
    )
}
