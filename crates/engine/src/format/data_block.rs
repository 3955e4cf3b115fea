//! Data block, codings 0 and 1: entries in internal-key order, keys cut to what differs, little-endian.
//!
//! ```text
//!  0  1   coding    u8, 0 or 1
//!  1      entries, each
//!     v   shared    varint, bytes of the user key that are those of the entry before
//!     v   unshared  varint, bytes of the user key that follow
//!     1   kind      u8, see `Kind`; 4 (single delete) and the flag 0x80 (a u64 expiry follows
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
use crate::coding::{
    Decoder, get_u32, get_u64, len_u64, put_u32, put_varint, to_usize, varint_in_word, varint_len,
};
use crate::error::Malformed;
use crate::key::{InternalKey, Kind, SeqNo};
use crate::slice::BlockBytes;

mod tags;

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

/// Writes a data block.
#[derive(Debug)]
pub(crate) struct DataBlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    /// One for each entry, if the block is to have them where they pay.
    tags: Option<Vec<u8>>,
    entries: usize,
    restart_interval: u32,
    since_restart: u32,
    /// Of the entry before, be it in the block before.
    last_key: Vec<u8>,
}

impl DataBlockBuilder {
    /// An empty block that starts afresh every `restart_interval` entries, and has tags where they pay
    /// if `tagged`.
    pub(crate) fn new(restart_interval: u32, tagged: bool) -> DataBlockBuilder {
        DataBlockBuilder {
            bytes: vec![CODING_PREFIX],
            restarts: Vec::new(),
            tags: tagged.then(Vec::new),
            entries: 0,
            restart_interval,
            since_restart: 0,
            last_key: Vec::new(),
        }
    }

    /// The highest coding that its blocks may have.
    pub(crate) fn coding(&self) -> u8 {
        if self.tags.is_some() { CODING_TAGGED } else { CODING_PREFIX }
    }

    /// Whether no entry was added since the last [`DataBlockBuilder::finish`].
    pub(crate) fn is_empty(&self) -> bool {
        self.restarts.is_empty()
    }

    /// Bytes of the contents, were they finished now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.tail_bytes(self.entries, self.bytes.len(), self.restarts.len())
    }

    /// Bytes behind so many entries that end at this offset.
    fn tail_bytes(&self, entries: usize, entries_end: usize, restarts: usize) -> usize {
        match self.tail(entries, entries_end) {
            Some(tail) => tail.bytes(),
            None => size_of::<u32>() * (restarts + 1),
        }
    }

    fn tail(&self, entries: usize, entries_end: usize) -> Option<Tail> {
        self.tags.as_ref().and_then(|_| Tail::of(entries, entries_end, self.restart_interval))
    }

    /// The user key of the last entry that was added, in this block or the one before.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Bytes of the contents, were they finished after this entry, whose user key has its first
    /// `common` bytes in common with the last one.
    pub(crate) fn bytes_with(&self, key: InternalKey<'_>, common: usize, value: &[u8]) -> usize {
        let (shared, restart) = self.shared(common);
        let unshared = key.user_key.len() - shared;
        let entries_end = self.bytes.len()
            + varint_len(len_u64(shared))
            + varint_len(len_u64(unshared))
            + 1
            + varint_len(key.seq.0)
            + varint_len(len_u64(value.len()))
            + unshared
            + value.len();
        let restarts = self.restarts.len() + usize::from(restart);
        entries_end + self.tail_bytes(self.entries + 1, entries_end, restarts)
    }

    fn shared(&self, common: usize) -> (usize, bool) {
        if self.is_empty() || self.since_restart == self.restart_interval {
            (0, true)
        } else {
            (common, false)
        }
    }

    /// Adds an entry, which is larger than the one before.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn add(&mut self, key: InternalKey<'_>, value: &[u8]) {
        let common = common_prefix(&self.last_key, key.user_key);
        self.add_with(key, common, value);
    }

    /// Adds an entry, which is larger than the one before and has the first `common` bytes of its
    /// user key in common with that.
    pub(crate) fn add_with(&mut self, key: InternalKey<'_>, common: usize, value: &[u8]) {
        let (shared, restart) = self.shared(common);
        if restart {
            // A block closes before its entries pass its target size by much, which fits in 32 bits; only
            // the last entry may be long, and it starts before that.
            let at = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
            self.restarts.push(at);
            self.since_restart = 0;
        }
        self.since_restart += 1;
        self.entries += 1;
        if let Some(tags) = &mut self.tags {
            tags.push(tags::tag(key.user_key));
        }
        let suffix = &key.user_key[shared..];
        put_varint(&mut self.bytes, len_u64(shared));
        put_varint(&mut self.bytes, len_u64(suffix.len()));
        self.bytes.push(key.kind as u8);
        put_varint(&mut self.bytes, key.seq.0);
        put_varint(&mut self.bytes, len_u64(value.len()));
        self.bytes.extend_from_slice(suffix);
        self.bytes.extend_from_slice(value);
        self.last_key.truncate(common);
        self.last_key.extend_from_slice(&key.user_key[common..]);
    }

    /// Remembers that the block may end before the entry that is added next.
    pub(crate) fn mark(&self, mark: &mut Mark, last: (SeqNo, Kind)) {
        mark.at = self.bytes.len();
        mark.restarts = self.restarts.len();
        mark.entries = self.entries;
        mark.last_key.clone_from(&self.last_key);
        mark.last = last;
    }

    /// Puts the contents up to a mark into `out`, and starts a block with the entries from there on, of
    /// which there must be one. Returns what `ask` makes of the first.
    ///
    /// # Errors
    /// When these entries cannot be read back. Nothing of the block is to be used then.
    pub(crate) fn finish_at<R>(
        &mut self,
        mark: &Mark,
        out: &mut Vec<u8>,
        ask: impl FnOnce(InternalKey<'_>) -> R,
    ) -> Result<R, Malformed> {
        let tail = self.bytes.split_off(mark.at);
        self.restarts.truncate(mark.restarts);
        self.entries = mark.entries;
        if let Some(tags) = &mut self.tags {
            tags.truncate(mark.entries);
        }
        self.finish(out);
        let mut key = mark.last_key.clone();
        let mut decoder = Decoder::new(&tail);
        let mut ask = Some(ask);
        let mut answer = None;
        while !decoder.is_empty() {
            let entry = RawEntry::decode(&mut decoder)?;
            let common = common_prefix(&key[entry.shared..], entry.suffix) + entry.shared;
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            let entry_key = InternalKey { user_key: &key, seq: entry.seq, kind: entry.kind };
            if let Some(ask) = ask.take() {
                // What the block before ended with, to share bytes with.
                self.last_key.clone_from(&mark.last_key);
                answer = Some(ask(entry_key));
            }
            self.add_with(entry_key, common, &tail[entry.value_at..entry.next]);
        }
        answer.ok_or(Malformed::Truncated { what: "entry after a mark", needed: 1, found: 0 })
    }

    /// Puts the contents into `out` and starts an empty block.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        match (self.tail(self.entries, self.bytes.len()), &self.tags) {
            (Some(tail), Some(tags)) => {
                self.bytes[0] = CODING_TAGGED;
                tail.put(tags, &self.restarts, &mut self.bytes);
            }
            _ => {
                let mut count = 0u32;
                for &restart in &self.restarts {
                    put_u32(&mut self.bytes, restart);
                    count += 1;
                }
                put_u32(&mut self.bytes, count);
            }
        }
        out.clear();
        out.append(&mut self.bytes);
        self.bytes.push(CODING_PREFIX);
        self.restarts.clear();
        self.entries = 0;
        if let Some(tags) = &mut self.tags {
            tags.clear();
        }
        self.since_restart = 0;
    }
}

/// A place where a block that is being written may end.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    at: usize,
    restarts: usize,
    entries: usize,
    /// User key of the entry before.
    last_key: Vec<u8>,
    /// Its number and kind.
    last: (SeqNo, Kind),
}

impl Default for Mark {
    fn default() -> Mark {
        Mark {
            at: 0,
            restarts: 0,
            entries: 0,
            last_key: Vec::new(),
            last: (SeqNo::ZERO, Kind::Put),
        }
    }
}

impl Mark {
    /// The last entry before it.
    pub(crate) fn last(&self) -> InternalKey<'_> {
        let (seq, kind) = self.last;
        InternalKey { user_key: &self.last_key, seq, kind }
    }
}

/// An entry as it lies in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEntry<'a> {
    /// Bytes of the user key that are those of the entry before.
    pub(crate) shared: usize,
    /// The other bytes of the user key.
    pub(crate) suffix: &'a [u8],
    /// What the entry does.
    pub(crate) kind: Kind,
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
        let Some(kind) = Kind::from_u8(kind) else {
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
    pub(crate) kind: Kind,
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
            kind: Kind::from_u8(kind)?,
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::data_cursor::DataCursor;

    type Owned = (Vec<u8>, u64, Kind, Vec<u8>);

    fn build(entries: &[Owned], interval: u32, tagged: bool) -> Vec<u8> {
        let mut builder = DataBlockBuilder::new(interval, tagged);
        for (user_key, seq, kind, value) in entries {
            let key = InternalKey { user_key, seq: SeqNo(*seq), kind: *kind };
            let common = common_prefix(builder.last_key(), key.user_key);
            let expected = builder.bytes_with(key, common, value);
            builder.add(key, value);
            assert_eq!(builder.bytes(), expected);
        }
        let mut out = Vec::new();
        builder.finish(&mut out);
        assert!(builder.is_empty());
        assert_eq!(DataBlock::new(out.clone().into()).unwrap().has_tags(), tagged);
        out
    }

    fn sample() -> Vec<Owned> {
        let mut entries = Vec::new();
        for (index, key) in ["", "\0", "a", "aa", "ab", "abcdef", "abcdeg", "b", "\u{7f}\u{7f}"]
            .into_iter()
            .enumerate()
        {
            for version in (0..=index as u64 % 4).rev() {
                let kind = Kind::from_u8(u8::try_from(version % 4).unwrap()).unwrap();
                entries.push((key.into(), 10 * version + 1, kind, vec![7; 30 + index * 3]));
            }
        }
        entries
    }

    fn model_get(entries: &[Owned], key: &[u8], snapshot: u64) -> Option<Owned> {
        entries.iter().find(|entry| entry.0 == key && entry.1 <= snapshot).cloned()
    }

    fn get(block: &DataBlock, key: &[u8], snapshot: u64) -> Option<Owned> {
        let hit = block.get(key, SeqNo(snapshot)).unwrap()?;
        let value = block.bytes()[hit.value_at..hit.value_end].to_vec();
        Some((key.to_vec(), hit.seq.0, hit.kind, value))
    }

    #[test]
    fn common_prefixes_are_as_long_as_they_are() {
        for len in 0..40 {
            let a: Vec<u8> = (0..len).collect();
            for at in 0..a.len() {
                for bit in 0..8 {
                    let mut b = a.clone();
                    b[at] ^= 1 << bit;
                    assert_eq!(common_prefix(&a, &b), at);
                }
                assert_eq!(common_prefix(&a, &a[..at]), at);
                assert_eq!(common_prefix(&a[..at], &a), at);
            }
            assert_eq!(common_prefix(&a, &a), a.len());
        }
    }

    #[test]
    fn every_version_of_every_key_is_found_at_any_interval() {
        let entries = sample();
        for (interval, tagged) in [1, 2, 3, 16].into_iter().flat_map(|n| [(n, false), (n, true)]) {
            let block = DataBlock::new(build(&entries, interval, tagged).into()).unwrap();
            block.check().unwrap();
            for key in ["", "\0", "\0\0", "a", "aaa", "ab", "abc", "abcdef", "abcdeh", "b", "~"] {
                for snapshot in 0..45 {
                    let expected = model_get(&entries, key.as_bytes(), snapshot);
                    assert_eq!(get(&block, key.as_bytes(), snapshot), expected, "{key} {snapshot}");
                }
            }
        }
    }

    #[test]
    fn no_truncation_and_no_flipped_bit_panics() {
        damage(&build(&sample(), 3, false));
        damage(&build(&sample(), 3, true));
    }

    fn damage(whole: &[u8]) {
        let probe = |bytes: Vec<u8>| {
            let Ok(block) = DataBlock::new(bytes.into()) else { return };
            for key in ["", "a", "abcdef", "zz"] {
                let _ = block.get(key.as_bytes(), SeqNo(20));
            }
            let mut cursor = DataCursor::new(block);
            if cursor.first().is_ok() {
                while cursor.valid() && cursor.next().is_ok() {}
            }
            if cursor.last().is_ok() {
                while cursor.valid() && cursor.prev().is_ok() {}
            }
            let _ = cursor.seek(b"abc", SeqNo(7));
        };
        for len in 0..whole.len() {
            probe(whole[..len].to_vec());
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            probe(damaged);
        }
    }

    // Found by mutating tables behind right checksums: `verify` walks forward and never looked at
    // restarts, so a block whose entries no search finds was called good, and a walk backward ended
    // early without a word.
    #[test]
    fn a_block_that_searches_go_wrong_in_does_not_check() {
        let good = build(&sample(), 3, false);
        let block = DataBlock::new(good.clone().into()).unwrap();
        block.check().unwrap();
        for index in 0..block.restarts() {
            let second = block.entry(block.restart(index).unwrap()).unwrap().next;
            for at in
                [second, ENTRIES_AT - 1, block.entries_end(), block.restart(index).unwrap() + 1]
            {
                let mut bad = good.clone();
                let place = block.entries_end() + 4 * index;
                bad[place..place + 4].copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
                assert!(DataBlock::new(bad.into()).unwrap().check().is_err(), "{index} at {at}");
            }
        }
        // `b` shares nothing where it could share one byte.
        let shares_too_little =
            [0, 0, 2, 1, 1, 0, b'a', b'a', 0, 2, 1, 1, 0, b'a', b'b', 1, 0, 0, 0, 1, 0, 0, 0];
        let block = DataBlock::new(shares_too_little.to_vec().into()).unwrap();
        assert!(block.check().is_err());
    }

    #[test]
    fn a_block_whose_tags_lead_astray_does_not_check() {
        let entries = sample();
        let good = build(&entries, 3, true);
        let block = DataBlock::new(good.clone().into()).unwrap();
        let tail_at = block.entries_end();
        assert_eq!(good.len() - tail_at, entries.len() + 2 * entries.len().div_ceil(3) + 3);
        for at in tail_at..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let block = DataBlock::new(bad.into());
                assert!(block.is_err() || block.unwrap().check().is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    // Where entries are short a tag would be much of them; where offsets do not fit, there is none.
    #[test]
    fn tags_are_left_out_where_they_do_not_pay_or_fit() {
        let entry = |n: u32, value: usize| {
            let key = n.to_be_bytes().to_vec();
            (key, 1, Kind::Put, vec![1; value])
        };
        let has_tags = |count: u32, value: usize, interval: u32| {
            let mut builder = DataBlockBuilder::new(interval, true);
            for (key, seq, kind, value) in (0..count).map(|n| entry(n, value)) {
                builder.add(InternalKey { user_key: &key, seq: SeqNo(seq), kind }, &value);
            }
            let (bytes, mut out) = (builder.bytes(), Vec::new());
            builder.finish(&mut out);
            assert_eq!(out.len(), bytes);
            let block = DataBlock::new(out.into()).unwrap();
            block.check().unwrap();
            assert!((0..count).all(|n| block.get(&n.to_be_bytes(), SeqNo::MAX).unwrap().is_some()));
            block.has_tags()
        };
        assert!(has_tags(20, 40, 16));
        assert!(!has_tags(20, 10, 16));
        assert!(has_tags(1, 65_000, 16) && !has_tags(1, 66_000, 16));
        assert!(has_tags(600, 80, 255) && !has_tags(600, 80, 256));
        assert!(!has_tags(3_000, 40, 1));
    }

    #[test]
    fn a_walk_backward_leaves_no_entry_out_in_silence() {
        let entries = [b"a", b"b"].map(|key| (key.to_vec(), 1, Kind::Put, b"v".to_vec()));
        let mut bytes = build(&entries, 16, false);
        let second = DataBlock::new(bytes.clone().into()).unwrap().entry(ENTRIES_AT).unwrap().next;
        let place = bytes.len() - 8;
        bytes[place..place + 4].copy_from_slice(&u32::try_from(second).unwrap().to_le_bytes());
        let mut cursor = DataCursor::new(DataBlock::new(bytes.into()).unwrap());
        cursor.last().unwrap();
        assert_eq!(cursor.key().user_key, b"b");
        assert!(cursor.prev().is_err());
    }

    #[test]
    fn unknown_and_reserved_kinds_are_errors() {
        let whole = build(&[(b"k".to_vec(), 1, Kind::Put, b"v".to_vec())], 16, false);
        let kind_at = ENTRIES_AT + 2;
        assert_eq!(whole[kind_at], Kind::Put as u8);
        for kind in (4..=u8::MAX).chain([4, 0x80, 0x81]) {
            let mut bytes = whole.clone();
            bytes[kind_at] = kind;
            let error = DataBlock::new(bytes.into()).unwrap().get(b"k", SeqNo::MAX).unwrap_err();
            assert!(matches!(error, Malformed::Field { what: "entry kind", .. }), "{error}");
        }
    }

    proptest! {
        /// With tags or without, a lookup finds what a look at all entries finds.
        #[test]
        fn lookups_find_what_is_there(
            keys in proptest::collection::btree_map("[ab]{0,5}", 1u64..4, 1..60),
            asked in proptest::collection::vec(("[abc]{0,6}", 0u64..5), 1..40),
            interval in 1u32..20,
        ) {
            let mut entries: Vec<Owned> = Vec::new();
            for (key, versions) in keys {
                for seq in (1..=versions).rev() {
                    entries.push((key.clone().into(), seq, Kind::Put, vec![7; 40]));
                }
            }
            for tagged in [false, true] {
                let block = DataBlock::new(build(&entries, interval, tagged).into()).unwrap();
                block.check().unwrap();
                for (key, snapshot) in &asked {
                    let expected = model_get(&entries, key.as_bytes(), *snapshot);
                    prop_assert_eq!(get(&block, key.as_bytes(), *snapshot), expected);
                }
                for (key, seq, ..) in &entries {
                    prop_assert_eq!(get(&block, key, *seq).map(|found| found.1), Some(*seq));
                }
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if let Some(coding) = bytes.first_mut() {
                *coding %= 2;
            }
            if let Ok(block) = DataBlock::new(bytes.into()) {
                let _ = block.get(b"key", SeqNo::MAX);
                let mut cursor = DataCursor::new(block);
                if cursor.last().is_ok() {
                    while cursor.valid() && cursor.prev().is_ok() {}
                }
            }
        }
    }
}
