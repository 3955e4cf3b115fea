//! Data block, codings 0 and 1: entries in internal-key order, keys cut to what differs, little-endian.
//!
//! ```text
//!  0  1   coding    u8, 0 or 1
//!  1      entries, each
//!     v   shared    varint, bytes of the user key that are those of the entry before
//!     v   unshared  varint, bytes of the user key that follow
//!     1   kind      u8, see `EntryKind`; 4 (single delete) and the flag 0x80 (a u64 expiry follows
//!                   the kind) are reserved
//!     v   number    varint, sequence number
//!     v   length    varint, bytes of the value
//!     n   suffix    the unshared bytes of the user key
//!     n   value
//!  then, of coding 0 (prefix)
//!  r  4k  restarts  u32 each, offset of an entry whose shared is 0; the first is 1
//!     4   k         u32, how many restarts, at least one
//!  or, of coding 1 (tagged)
//!  t  n   tags      u8 each, byte 1 of the hash that filters take of the key, see `tags`
//!     2k  restarts  u16 each, as above; k is n / interval, rounded up
//!     1   interval  u8, every so many entries there is a restart, from the first on; at least one
//!     2   n         u16, how many entries, at least one
//! ```
//!
//! `shared` is always as large as it can be, but at a restart. So a search from a restart on needs
//! no copy of any key: with `matched` the bytes that the target has in common with the entry before
//! (which is smaller), an entry that shares more is smaller too, one that shares less is larger,
//! and only one that shares just `matched` bytes has to be compared, from there on.

use std::cmp::Ordering;

use super::VALUE_BYTES_MAX;

mod builder;
mod tags;

pub(crate) use builder::{DataBlockBuilder, Mark};
use lsmx_base::coding::{Decoder, get_u32, get_u64, len_u64, to_usize, varint_in_word};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;
use tags::Tail;

/// Restarts behind the entries, to search by halves.
pub(crate) const CODING_PREFIX: u8 = 0;
/// The same with tags for lookups.
pub(crate) const CODING_TAGGED: u8 = 1;

/// Offset of the first entry.
pub(crate) const ENTRIES_AT: usize = 1;

/// Bytes that two keys have in common at their start.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = size_of::<u64>();
    let len = a.len().min(b.len());
    let mut at = 0;
    while at + STEP <= len {
        let (Some(x), Some(y)) = (get_u64(a, at), get_u64(b, at)) else { break };
        if x != y {
            // Little-endian: the first byte that differs has the lowest bits.
            return at + (x ^ y).trailing_zeros() as usize / 8;
        }
        at += STEP;
    }
    at + a[at..len].iter().zip(&b[at..len]).take_while(|(a, b)| a == b).count()
}

/// An entry as it lies in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEntry<'a> {
    /// Bytes of the user key that are those of the entry before.
    pub(crate) shared: usize,
    /// The other bytes of the user key.
    pub(crate) suffix: &'a [u8],
    /// What the entry does.
    pub(crate) kind: EntryKind,
    /// Its sequence number.
    pub(crate) seq: SeqNo,
    /// Offset of its value.
    pub(crate) value_at: usize,
    /// Offset of the next entry, and the end of the value.
    pub(crate) next: usize,
}

impl<'a> RawEntry<'a> {
    /// The next entry; its offsets are those of the decoder.
    fn decode(decoder: &mut Decoder<'a>) -> Result<RawEntry<'a>, Malformed> {
        let shared = decoder.length("shared key length")?;
        let unshared = decoder.length("unshared key length")?;
        let kind = decoder.u8("entry kind")?;
        let Some(kind) = EntryKind::from_u8(kind) else {
            return Err(Malformed::Field {
                what: "entry kind",
                found: u64::from(kind),
                expected: "a kind that this version knows",
            });
        };
        let seq = SeqNo(decoder.varint("sequence number")?);
        let value_bytes = decoder.length("value length")?;
        if seq > SeqNo::MAX || len_u64(value_bytes) > VALUE_BYTES_MAX {
            return Err(Malformed::Field {
                what: "sequence number or value length",
                found: if seq > SeqNo::MAX { seq.0 } else { len_u64(value_bytes) },
                expected: "56 bits, and at most 1 GiB",
            });
        }
        let suffix = decoder.take("key suffix", unshared)?;
        let value_at = decoder.offset();
        decoder.take("value", value_bytes)?;
        Ok(RawEntry { shared, suffix, kind, seq, value_at, next: decoder.offset() })
    }
}

/// The contents of a data block, to be searched in place.
#[derive(Clone, Debug)]
pub(crate) struct DataBlock {
    bytes: BlockBytes,
    entries_end: usize,
    restarts_at: usize,
    restarts: usize,
    /// Of a block with tags.
    tail: Option<Tail>,
}

/// What a search in one block found: an entry's number and kind, and its value's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) seq: SeqNo,
    pub(crate) kind: EntryKind,
    pub(crate) value_at: usize,
    pub(crate) value_end: usize,
}

/// Where a search in one block ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought<'a> {
    /// Offset of the entry.
    pub(crate) at: usize,
    pub(crate) entry: RawEntry<'a>,
    /// Whether it is of the key that was sought.
    pub(crate) is_key: bool,
}

impl DataBlock {
    /// Takes block contents over; the entries are checked as they are read.
    ///
    /// # Errors
    /// When the frame is not that of a data block.
    #[inline]
    pub(crate) fn new(bytes: BlockBytes) -> Result<DataBlock, Malformed> {
        let coding = Decoder::new(&bytes).u8("data block coding")?;
        match coding {
            CODING_PREFIX => DataBlock::without_tags(bytes),
            CODING_TAGGED => {
                let tail = Tail::get(&bytes)?;
                let entries_end = bytes.len() - tail.bytes();
                let restarts_at = entries_end + tail.entries;
                let restarts = tail.restarts();
                Ok(DataBlock { bytes, entries_end, restarts_at, restarts, tail: Some(tail) })
            }
            _ => Err(Malformed::Field {
                what: "data block coding",
                found: u64::from(coding),
                expected: "0 (prefix) or 1 (tagged)",
            }),
        }
    }

    #[inline]
    fn without_tags(bytes: BlockBytes) -> Result<DataBlock, Malformed> {
        let count = bytes.len().checked_sub(size_of::<u32>()).and_then(|at| get_u32(&bytes, at));
        let count = u64::from(count.unwrap_or(0));
        let tail = (count + 1) * len_u64(size_of::<u32>());
        if count == 0 || tail + len_u64(ENTRIES_AT) > len_u64(bytes.len()) {
            return Err(Malformed::Field {
                what: "data block restarts",
                found: count,
                expected: "at least one, and no more than there are bytes for",
            });
        }
        let restarts_at = bytes.len() - to_usize("data block restarts", tail)?;
        let restarts = to_usize("data block restarts", count)?;
        Ok(DataBlock { bytes, entries_end: restarts_at, restarts_at, restarts, tail: None })
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> &BlockBytes {
        &self.bytes
    }

    /// The contents, as they were given to [`DataBlock::new`].
    pub(crate) fn into_bytes(self) -> BlockBytes {
        self.bytes
    }

    /// Offset of the first byte after the last entry.
    pub(crate) fn entries_end(&self) -> usize {
        self.entries_end
    }

    /// Number of restarts.
    pub(crate) fn restarts(&self) -> usize {
        self.restarts
    }

    /// Offset of an entry that has its full key.
    ///
    /// # Errors
    /// When it points anywhere but among the entries.
    #[inline]
    pub(crate) fn restart(&self, index: usize) -> Result<usize, Malformed> {
        let at = match self.tail {
            Some(_) => self.short_restart(index)?,
            None => {
                let at = get_u32(&self.bytes, self.restarts_at + index * size_of::<u32>());
                to_usize("data block restart", u64::from(at.unwrap_or(0)))?
            }
        };
        if at < ENTRIES_AT || at >= self.entries_end {
            return Err(Malformed::Field {
                what: "data block restart",
                found: len_u64(at),
                expected: "the offset of an entry",
            });
        }
        Ok(at)
    }

    /// The entry at an offset.
    ///
    /// # Errors
    /// When there is none.
    #[inline]
    pub(crate) fn entry(&self, at: usize) -> Result<RawEntry<'_>, Malformed> {
        match self.entry_of_short_fields(at) {
            Some(entry) => Ok(entry),
            None => self.entry_of_any_fields(at),
        }
    }

    /// The entry at an offset if its fields are as short as those of nearly all entries, and right.
    #[inline]
    fn entry_of_short_fields(&self, at: usize) -> Option<RawEntry<'_>> {
        /// Three bytes, a number of up to eight, a length of up to two.
        const HEAD_BYTES: usize = 3 + 8 + 2;
        let head: &[u8; HEAD_BYTES] = self.bytes.get(at..)?.first_chunk()?;
        let [shared, unshared, kind, ..] = *head;
        let (seq, seq_bytes) = varint_in_word(u64::from_le_bytes(*head[3..].first_chunk()?))?;
        let (value_bytes, length_bytes) = match head[3 + seq_bytes..] {
            [a, ..] if a < 0x80 => (usize::from(a), 1),
            [a, b, ..] if b < 0x80 && b != 0 => (usize::from(a & 0x7f) | usize::from(b) << 7, 2),
            _ => return None,
        };
        if (shared | unshared) >= 0x80 {
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
    fn entry_of_any_fields(&self, at: usize) -> Result<RawEntry<'_>, Malformed> {
        RawEntry::decode(&mut Decoder::at(&self.bytes[..self.entries_end], at))
    }

    /// The entry at a restart, whose suffix is its whole key.
    fn full_entry(&self, index: usize) -> Result<RawEntry<'_>, Malformed> {
        let entry = self.entry(self.restart(index)?)?;
        if entry.shared != 0 {
            return Err(Malformed::Field {
                what: "shared key length at a restart",
                found: len_u64(entry.shared),
                expected: "0",
            });
        }
        Ok(entry)
    }

    /// Reads all entries and checks what the searches rely on: restarts are entries that share
    /// nothing, in order, and at equal distances where there are tags; all others share as much as they
    /// can; each tag is that of its key.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        let mut key: Vec<u8> = Vec::new();
        let mut restarts = 0;
        let mut ordinal = 0;
        let mut at = ENTRIES_AT;
        while at < self.entries_end {
            let entry = self.entry(at)?;
            if entry.shared > key.len() {
                return Err(shares_too_much(entry.shared));
            }
            let is_restart = restarts < self.restarts && self.restart(restarts)? == at;
            if let Some(tail) = self.tail
                && is_restart != (ordinal % tail.interval == 0)
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
            if let Some(tail) = self.tail
                && self.tags(tail).get(ordinal) != Some(&tags::tag(&key))
            {
                return Err(wrong_tag(ordinal));
            }
            ordinal += 1;
            at = entry.next;
        }
        if let Some(tail) = self.tail
            && tail.entries != ordinal
        {
            return Err(wrong_tag(ordinal));
        }
        // The first entry is a restart in any case.
        if restarts != self.restarts || self.restart(0)? != ENTRIES_AT {
            return Err(Malformed::Order { what: "data block restarts are" });
        }
        Ok(())
    }

    /// The first entry at or after (`user_key`, `seq`), or `None` if all are before. Copies nothing:
    /// bytes that the entry shares with the one before are those of `user_key`.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    #[inline]
    pub(crate) fn seek(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<Sought<'_>>, Malformed> {
        let mut at = self.restart(self.seek_restart(user_key, seq)?)?;
        let mut matched = 0;
        let mut key_bytes = 0;
        while at < self.entries_end {
            let entry = self.entry(at)?;
            if entry.shared > key_bytes {
                return Err(shares_too_much(entry.shared));
            }
            key_bytes = entry.shared + entry.suffix.len();
            let order = if entry.shared != 0 && entry.shared != matched {
                matched.cmp(&entry.shared)
            } else {
                let rest = &user_key[entry.shared..];
                let common = common_prefix(entry.suffix, rest);
                matched = entry.shared + common;
                entry.suffix.get(common).cmp(&rest.get(common))
            };
            match order {
                Ordering::Less => {}
                Ordering::Equal if entry.seq > seq => {}
                _ => return Ok(Some(Sought { at, entry, is_key: order == Ordering::Equal })),
            }
            at = entry.next;
        }
        Ok(None)
    }

    /// Index of the last restart whose entry is before (`user_key`, `seq`), or the first of all.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    #[inline]
    pub(crate) fn seek_restart(&self, user_key: &[u8], seq: SeqNo) -> Result<usize, Malformed> {
        // Restarts below `low` are before the target, those from `high` on are not.
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.full_entry(middle)?;
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

    /// The newest entry of `user_key` that is not newer than `snapshot`. Copies nothing.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    pub(crate) fn get(&self, user_key: &[u8], snapshot: SeqNo) -> Result<Option<Hit>, Malformed> {
        if let Some(tail) = self.tail {
            return self.get_by_tags(tail, user_key, snapshot);
        }
        let found = self.seek(user_key, snapshot)?.filter(|sought| sought.is_key);
        Ok(found.map(|Sought { entry, .. }| Hit {
            seq: entry.seq,
            kind: entry.kind,
            value_at: entry.value_at,
            value_end: entry.next,
        }))
    }
}

/// An entry claims more bytes of the key before it than that has.
#[cold]
pub(crate) fn shares_too_much(shared: usize) -> Malformed {
    Malformed::Field {
        what: "shared key length",
        found: len_u64(shared),
        expected: "no more than the key before has",
    }
}

/// A tag that would hide its entry from lookups, or one without an entry.
#[cold]
fn wrong_tag(ordinal: usize) -> Malformed {
    Malformed::Field {
        what: "data block tag of entry",
        found: len_u64(ordinal),
        expected: "one for each entry, from the hash of its key",
    }
}

/// An entry repeats bytes of the key before it, which a search takes for a difference.
#[cold]
pub(crate) fn shares_too_little(shared: usize) -> Malformed {
    Malformed::Field {
        what: "shared key length",
        found: len_u64(shared),
        expected: "all bytes that the key has in common with the one before",
    }
}

#[cfg(test)]
mod tests;
