//! Top index, and index blocks before there was a succinct coding, coding 0: separators and handles, little-endian.
//!
//! ```text
//!  0  1   coding    u8, 0
//!  1  1   interval  u8, entries from one restart to the next, at least one
//!  2      entries, each
//!     v   shared    varint, bytes of the separator that are those of the one before
//!     v   unshared  varint, twice the bytes that follow, plus 1 if a number follows them
//!     n   suffix    the unshared bytes of the separator
//!     v   number    varint, sequence number; only with that 1
//!     v   offset    varint; at a restart the block's offset, else the gap to the block before
//!     v   size      varint, the block's bytes with its trailer
//!  r  4k  restarts  u32 each, offset of every interval-th entry; its shared is 0
//!     4   count     u32, how many entries, at least one; k = count ÷ interval, rounded up
//! ```
//!
//! A block's separator is at or after its last entry and before the first of the next block. Where
//! their user keys differ it is a short user key that stands for all its versions; where one user
//! key goes on in the next block it is that key and the number of its last version in this one.

use std::cmp::Ordering;

use lsmx_base::coding::{Decoder, get_u32, len_u64, put_u32, put_varint, to_usize, varint_in_word};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::key_head;
use super::separator::{Separator, Versions};
use crate::format::block::Handle;
use crate::format::data_block::{common_prefix, shares_too_little, shares_too_much};

/// The coding of top indexes.
pub(crate) const CODING_PREFIX: u8 = 0;

/// Entries from one restart to the next. Half of what data blocks take by default: entries are
/// short, and every lookup searches two index blocks.
pub(crate) const RESTART_INTERVAL: u8 = 8;

const ENTRIES_AT: usize = 2;
/// Fewest bytes of an entry: four varints.
const ENTRY_BYTES_MIN: usize = 4;

/// Writes an index block or a top index.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    count: u32,
    last: Separator,
    previous_end: u64,
}

impl IndexBuilder {
    /// An empty block.
    pub(crate) fn new() -> IndexBuilder {
        IndexBuilder {
            bytes: vec![CODING_PREFIX, RESTART_INTERVAL],
            restarts: Vec::new(),
            count: 0,
            last: Separator::default(),
            previous_end: 0,
        }
    }

    /// Entries so far.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the contents, were they finished now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + size_of::<u32>() * (self.restarts.len() + 1)
    }

    /// Adds a block after those added before, in key order and in the file.
    pub(crate) fn add(&mut self, separator: Separator, handle: Handle) {
        let restart = self.count.is_multiple_of(u32::from(RESTART_INTERVAL));
        let shared = if restart {
            // Index blocks close at some KiB, and a top index anywhere near 4 GiB is refused by
            // the writer of the table, so no offset that counts is cut.
            self.restarts.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
            0
        } else {
            common_prefix(&self.last.user_key, &separator.user_key)
        };
        let suffix = &separator.user_key[shared..];
        put_varint(&mut self.bytes, len_u64(shared));
        let seq = match separator.versions {
            Versions::Split(seq) => Some(seq),
            // What `Separator::between` makes; the coding has no third.
            Versions::Before | Versions::After => None,
        };
        put_varint(&mut self.bytes, len_u64(suffix.len()) * 2 + u64::from(seq.is_some()));
        self.bytes.extend_from_slice(suffix);
        if let Some(seq) = seq {
            put_varint(&mut self.bytes, seq.0);
        }
        let base = if restart { 0 } else { self.previous_end };
        put_varint(&mut self.bytes, handle.offset - base);
        put_varint(&mut self.bytes, handle.bytes);
        self.previous_end = handle.offset + handle.bytes;
        self.last = separator;
        self.count += 1;
    }

    /// Returns the contents and starts an empty block.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut built = std::mem::replace(self, IndexBuilder::new());
        for &restart in &built.restarts {
            put_u32(&mut built.bytes, restart);
        }
        put_u32(&mut built.bytes, built.count);
        built.bytes
    }
}

struct RawEntry<'a> {
    shared: usize,
    suffix: &'a [u8],
    seq: Option<SeqNo>,
    offset: u64,
    bytes: u64,
    next: usize,
}

/// The contents of an index block or a top index, to be searched in place.
#[derive(Clone, Debug)]
pub(super) struct PrefixIndex {
    pub(super) block: Box<[u8]>,
    interval: usize,
    restarts_at: usize,
    restarts: usize,
    count: usize,
}

impl PrefixIndex {
    /// Copies block contents; the entries are checked as they are read.
    ///
    /// # Errors
    /// When the frame is not that of an index block.
    pub(super) fn new(block: &[u8]) -> Result<PrefixIndex, Malformed> {
        let mut decoder = Decoder::new(block);
        let coding = decoder.u8("index coding")?;
        if coding != CODING_PREFIX {
            return Err(Malformed::Field {
                what: "index coding",
                found: u64::from(coding),
                expected: "0 (prefix)",
            });
        }
        let interval = usize::from(decoder.u8("index restart interval")?);
        let count = block.len().checked_sub(size_of::<u32>()).and_then(|at| get_u32(block, at));
        let count = to_usize("index entries", u64::from(count.unwrap_or(0)))?;
        if interval == 0 || count == 0 || count > block.len() / ENTRY_BYTES_MIN {
            return Err(Malformed::Field {
                what: "index entries",
                found: len_u64(count),
                expected: "at least one, and no more than there are bytes for",
            });
        }
        let restarts = count.div_ceil(interval);
        let tail = (restarts + 1) * size_of::<u32>();
        let Some(restarts_at) = block.len().checked_sub(tail).filter(|&at| at >= ENTRIES_AT) else {
            return Err(Malformed::Truncated {
                what: "index restarts",
                needed: len_u64(tail + ENTRIES_AT),
                found: len_u64(block.len()),
            });
        };
        Ok(PrefixIndex { block: block.into(), interval, restarts_at, restarts, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    fn restart(&self, index: usize) -> Result<usize, Malformed> {
        let at = get_u32(&self.block, self.restarts_at + index * size_of::<u32>());
        let at = to_usize("index restart", u64::from(at.unwrap_or(0)))?;
        if at < ENTRIES_AT || at >= self.restarts_at {
            return Err(Malformed::Field {
                what: "index restart",
                found: len_u64(at),
                expected: "the offset of an entry",
            });
        }
        Ok(at)
    }

    #[inline]
    fn entry(&self, at: usize) -> Result<RawEntry<'_>, Malformed> {
        match self.entry_of_short_fields(at) {
            Some(entry) => Ok(entry),
            None => self.entry_of_any_fields(at),
        }
    }

    /// The entry at an offset if its fields are as short as those of nearly all entries, and right.
    #[inline]
    fn entry_of_short_fields(&self, at: usize) -> Option<RawEntry<'_>> {
        let &[shared, unshared] = self.block.get(at..)?.first_chunk()?;
        if (shared | unshared) >= 0x80 || unshared % 2 != 0 {
            return None;
        }
        let suffix_at = at + 2;
        let handle_at = suffix_at + usize::from(unshared / 2);
        let tail = self.block.get(handle_at..)?;
        let (offset, offset_bytes) = varint_in_word(u64::from_le_bytes(*tail.first_chunk()?))?;
        let tail = tail.get(offset_bytes..)?;
        let (bytes, size_bytes) = varint_in_word(u64::from_le_bytes(*tail.first_chunk()?))?;
        let next = handle_at + offset_bytes + size_bytes;
        if next > self.restarts_at {
            return None;
        }
        let suffix = self.block.get(suffix_at..handle_at)?;
        Some(RawEntry { shared: usize::from(shared), suffix, seq: None, offset, bytes, next })
    }

    #[cold]
    fn entry_of_any_fields(&self, at: usize) -> Result<RawEntry<'_>, Malformed> {
        let mut decoder = Decoder::at(&self.block[..self.restarts_at], at);
        let shared = decoder.length("shared separator length")?;
        let unshared = decoder.length("unshared separator length")?;
        let suffix = decoder.take("separator suffix", unshared / 2)?;
        let seq = match unshared % 2 {
            0 => None,
            _ => Some(SeqNo(decoder.varint("separator number")?)),
        };
        let offset = decoder.varint("block offset")?;
        let bytes = decoder.varint("block size")?;
        Ok(RawEntry { shared, suffix, seq, offset, bytes, next: decoder.offset() })
    }

    /// Whether the entry at a restart is before (`user_key`, `seq`). `head` is the first eight bytes of
    /// the key, the first the highest, padded with zeros: nearly always they tell.
    #[inline]
    fn restart_is_before(
        &self,
        index: usize,
        head: u64,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<bool, Malformed> {
        let at = self.restart(index)?;
        if let Some([0, unshared]) = self.block.get(at..).and_then(<[u8]>::first_chunk)
            && let Some(word) = self.block.get(at + 2..).and_then(<[u8]>::first_chunk)
            && *unshared < 0x80
            && *unshared > 1
        {
            // What follows the separator is masked off; so is as much of the key.
            let bits = 8 * u32::from(unshared / 2).min(8);
            let mask = u64::MAX << (u64::BITS - bits);
            let own = u64::from_be_bytes(*word) & mask;
            if own != head & mask {
                return Ok(own < head & mask);
            }
        }
        let entry = self.entry(at)?;
        Ok(match entry.suffix.cmp(user_key) {
            Ordering::Less => true,
            Ordering::Equal => entry.seq.is_some_and(|own| own > seq),
            Ordering::Greater => false,
        })
    }

    /// The first block that can hold an entry at or after (`user_key`, `seq`): its ordinal and
    /// where it lies, or `None` if all entries are before.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    pub(super) fn seek(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<(usize, Handle)>, Malformed> {
        // Restarts below `low` are before the target, those from `high` on are not.
        let (mut low, mut high) = (0, self.restarts);
        let head = key_head(user_key);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.restart_is_before(middle, head, user_key, seq)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let restart = low.saturating_sub(1);
        let mut walk = self.walk_from(restart)?;
        // As in a data block: what an entry shares with the one before tells its order, unless it
        // is just the bytes that this one has in common with the target.
        let mut matched = 0;
        while let Some((ordinal, entry, handle)) = walk.next()? {
            let order = if entry.shared != 0 && entry.shared != matched {
                matched.cmp(&entry.shared)
            } else {
                let rest = &user_key[entry.shared..];
                let common = common_prefix(entry.suffix, rest);
                matched = entry.shared + common;
                entry.suffix.get(common).cmp(&rest.get(common))
            };
            let before = match order {
                Ordering::Less => true,
                Ordering::Equal => entry.seq.is_some_and(|own| own > seq),
                Ordering::Greater => false,
            };
            if !before {
                return Ok(Some((ordinal, handle)));
            }
        }
        Ok(None)
    }

    /// Where the block with this ordinal lies, or `None` past the last.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    pub(super) fn handle(&self, ordinal: usize) -> Result<Option<Handle>, Malformed> {
        if ordinal >= self.count {
            return Ok(None);
        }
        let mut walk = self.walk_from(ordinal / self.interval)?;
        while let Some((at, _, handle)) = walk.next()? {
            if at == ordinal {
                return Ok(Some(handle));
            }
        }
        Ok(None)
    }

    /// All separators and handles, in order.
    ///
    /// # Errors
    /// When the block is malformed anywhere.
    pub(super) fn entries(&self) -> Result<Vec<(Option<Separator>, Handle)>, Malformed> {
        let mut entries = Vec::new();
        let mut key: Vec<u8> = Vec::new();
        let mut walk = self.walk_from(0)?;
        while let Some((ordinal, entry, handle)) = walk.next()? {
            let at_restart = ordinal.is_multiple_of(self.interval);
            let misplaced = ordinal == 0 && walk.entry_at != ENTRIES_AT;
            if misplaced || (at_restart && self.restart(ordinal / self.interval)? != walk.entry_at)
            {
                return Err(Malformed::Order { what: "index restarts are" });
            }
            // A search takes a byte that is not shared for one that differs.
            if !at_restart
                && !entry.suffix.is_empty()
                && key.get(entry.shared) == entry.suffix.first()
            {
                return Err(shares_too_little(entry.shared));
            }
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            let versions = entry.seq.map_or(Versions::Before, Versions::Split);
            entries.push((Some(Separator { user_key: key.clone(), versions }), handle));
        }
        if walk.at != self.restarts_at {
            return Err(Malformed::Field {
                what: "bytes after the last index entry",
                found: len_u64(self.restarts_at - walk.at.min(self.restarts_at)),
                expected: "0",
            });
        }
        Ok(entries)
    }

    fn walk_from(&self, restart: usize) -> Result<Walk<'_>, Malformed> {
        Ok(Walk {
            index: self,
            at: self.restart(restart)?,
            entry_at: 0,
            ordinal: restart * self.interval,
            until_restart: 0,
            key_bytes: 0,
            previous_end: 0,
        })
    }
}

/// Goes over entries from a restart on, adding the offsets up.
struct Walk<'a> {
    index: &'a PrefixIndex,
    at: usize,
    entry_at: usize,
    ordinal: usize,
    until_restart: usize,
    key_bytes: usize,
    previous_end: u64,
}

impl<'a> Walk<'a> {
    #[inline]
    fn next(&mut self) -> Result<Option<(usize, RawEntry<'a>, Handle)>, Malformed> {
        if self.ordinal >= self.index.count {
            return Ok(None);
        }
        let entry = self.index.entry(self.at)?;
        let restart = self.until_restart == 0;
        self.until_restart = if restart { self.index.interval } else { self.until_restart } - 1;
        if entry.shared > self.key_bytes || (restart && entry.shared != 0) {
            return Err(shares_too_much(entry.shared));
        }
        self.key_bytes = entry.shared + entry.suffix.len();
        let base = if restart { 0 } else { self.previous_end };
        let Some(offset) = base.checked_add(entry.offset) else {
            return Err(Malformed::Field {
                what: "block offset",
                found: entry.offset,
                expected: "a place inside the file",
            });
        };
        let handle = Handle { offset, bytes: entry.bytes };
        self.previous_end = handle.end()?;
        let ordinal = self.ordinal;
        self.ordinal += 1;
        self.entry_at = self.at;
        self.at = entry.next;
        Ok(Some((ordinal, entry, handle)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::IndexBlock;
    use super::*;

    fn separator(user_key: &[u8], seq: Option<u64>) -> Separator {
        let versions = seq.map_or(Versions::Before, |seq| Versions::Split(SeqNo(seq)));
        Separator { user_key: user_key.to_vec(), versions }
    }

    fn build(separators: &[Separator]) -> (Vec<u8>, Vec<Handle>) {
        let mut builder = IndexBuilder::new();
        let mut handles = Vec::new();
        let mut offset = 0;
        for (index, separator) in separators.iter().enumerate() {
            let handle = Handle { offset, bytes: 11 + len_u64(index) * 300 };
            builder.add(separator.clone(), handle);
            offset += handle.bytes + len_u64(index) % 3;
            handles.push(handle);
        }
        let bytes = builder.bytes();
        let block = builder.finish();
        assert_eq!(block.len(), bytes);
        (block, handles)
    }

    fn sample() -> Vec<Separator> {
        let mut separators = vec![separator(&[], None)];
        for first in 0..20u8 {
            separators.push(separator(&[first, 7], Some(1 << 40)));
            separators.push(separator(&[first, 7], Some(5)));
            separators.push(separator(&[first, 8, 8, 8], None));
        }
        separators
    }

    // Found by comparing what decodes with what the builder makes of it: a restart could point at
    // the header, which then read as an entry.
    #[test]
    fn a_restart_outside_the_entries_is_refused() {
        let (good, _) = build(&sample()[..3]);
        let place = good.len() - 8;
        for at in [0, 1, u32::try_from(place).unwrap(), u32::MAX] {
            let mut bad = good.clone();
            bad[place..place + 4].copy_from_slice(&at.to_le_bytes());
            let index = IndexBlock::new(bad.into()).unwrap();
            assert!(index.entries().is_err() && index.handle(0).is_err(), "restart at {at}");
            assert!(index.seek(b"", SeqNo::MAX).is_err());
        }
    }

    #[test]
    fn an_entry_that_shares_too_little_does_not_check() {
        let shared = [0, 4, 1, 2, 0, 20];
        let repeated = [0, 6, 1, 1, 2, 0, 20];
        for (second, good) in
            [(&shared[..], false), (&repeated[..], false), (&[1, 2, 2, 0, 20], true)]
        {
            let mut block = vec![CODING_PREFIX, RESTART_INTERVAL, 0, 4, 1, 1, 0, 20];
            block.extend_from_slice(second);
            block.extend_from_slice(&[2, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(IndexBlock::new(block.into()).unwrap().entries().is_ok(), good);
        }
    }

    #[test]
    fn seek_finds_the_first_separator_that_is_not_before() {
        let separators = sample();
        let (block, handles) = build(&separators);
        let index = IndexBlock::new(block.into()).unwrap();
        assert_eq!(index.count(), separators.len());
        let entries: Vec<_> =
            separators.iter().cloned().map(Some).zip(handles.iter().copied()).collect();
        assert_eq!(index.entries().unwrap(), entries);
        for (ordinal, handle) in handles.iter().enumerate() {
            assert_eq!(index.handle(ordinal).unwrap(), Some(*handle));
        }
        assert_eq!(index.handle(handles.len()).unwrap(), None);
        for first in 0..21u8 {
            for rest in [&[][..], &[7], &[7, 0], &[8, 8], &[8, 8, 8], &[9]] {
                for seq in [0, 4, 5, 6, 1 << 40, (1 << 40) + 1] {
                    let target = [&[first], rest].concat();
                    let expected = separators
                        .iter()
                        .position(|separator| !separator.is_before(&target, SeqNo(seq)))
                        .map(|ordinal| (ordinal, handles[ordinal]));
                    assert_eq!(index.seek(&target, SeqNo(seq)).unwrap(), expected);
                }
            }
        }
        assert_eq!(index.seek(&[], SeqNo(0)).unwrap(), Some((0, handles[0])));
    }

    #[test]
    fn no_truncation_and_no_flipped_bit_panics() {
        let (whole, _) = build(&sample());
        let probe = |bytes: Vec<u8>| {
            let Ok(index) = IndexBlock::new(bytes.into()) else { return };
            let _ = index.seek(&[9, 7], SeqNo(9));
            let _ = index.handle(index.count() - 1);
            let _ = index.entries();
        };
        for len in 0..whole.len() {
            probe(whole[..len].to_vec());
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            probe(damaged);
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = bytes;
            if let Some(coding) = bytes.first_mut() {
                *coding = CODING_PREFIX;
            }
            if let Ok(index) = IndexBlock::new(bytes.into()) {
                let _ = index.seek(b"key", SeqNo::MAX);
                let _ = index.entries();
            }
        }
    }
}
