//! Prefix-compressed index block (encoding 0): separators and handles of blocks. Integers are little-endian. The writer
//! uses this encoding for the top index. Index blocks of tables that older versions of lsmx wrote also have this
//! encoding.
//!
//! ```text
//!  0  1   encoding  u8, 0
//!  1  1   interval  u8, entries per restart, at least one
//!  2      entries, each
//!     v   shared    varint, bytes of the separator shared with the previous one
//!     v   unshared  varint, twice the bytes of the suffix, plus 1 if a sequence number follows
//!     n   suffix    the unshared bytes of the separator
//!     v   number    varint, sequence number; only if that bit is 1
//!     v   offset    varint; at a restart the block's offset, else the gap after the previous block
//!     v   size      varint, the block's bytes with its trailer
//!  r  4k  restarts  u32 each, offset of every interval-th entry, whose shared is 0
//!     4   count     u32, number of entries, at least one; k = ⌈count ÷ interval⌉
//! ```
//!
//! The separator of a block is at or after the last entry of the block, and before the first entry of the next block.
//! If these two entries have different user keys, the separator is a short user key without a sequence number. If both
//! entries are versions of one user key, the separator is this user key with the sequence number of the last version in
//! the block.

use std::cmp::Ordering;

use lsmx_base::coding::{
    Decoder, decode_varint_word, get_u32, len_u64, put_u32, put_varint, to_usize,
};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::key_head;
use super::separator::{Separator, SeparatorSide};
use crate::format::block::BlockHandle;
use crate::format::data_block::{
    common_prefix, compare_compressed, shares_too_little, shares_too_much,
};

/// Encoding number of prefix-compressed index blocks.
pub const ENCODING_PREFIX: u8 = 0;

/// Number of entries per restart. This is half of the default for data blocks, because entries are short and every
/// lookup searches two index blocks.
pub const RESTART_INTERVAL: u8 = 8;

const ENTRIES_AT: usize = 2;
/// Minimum size of an entry in bytes. An entry has at least four varints.
const ENTRY_BYTES_MIN: usize = 4;

/// Builds an index block or a top index.
#[derive(Debug)]
pub struct PrefixIndexBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    count: u32,
    last: Separator,
    previous_end: u64,
}

impl PrefixIndexBuilder {
    /// Returns a builder of an empty block.
    pub fn new() -> PrefixIndexBuilder {
        PrefixIndexBuilder {
            bytes: vec![ENCODING_PREFIX, RESTART_INTERVAL],
            restarts: Vec::new(),
            count: 0,
            last: Separator::default(),
            previous_end: 0,
        }
    }

    /// Returns the number of entries in the block under construction.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the size of the finished block in bytes if no further entry is added.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + size_of::<u32>() * (self.restarts.len() + 1)
    }

    /// Adds the separator and the handle of a block. Blocks must be added in key order, which must also be their order
    /// in the file.
    pub fn add(&mut self, separator: Separator, handle: BlockHandle) {
        let restart = self.count.is_multiple_of(u32::from(RESTART_INTERVAL));
        let shared = if restart {
            // Index blocks are finished at a few KiB. The table writer fails before a top index reaches 4 GiB.
            // Therefore no restart offset in use is truncated.
            self.restarts.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
            0
        } else {
            common_prefix(&self.last.user_key, &separator.user_key)
        };
        let suffix = &separator.user_key[shared..];
        put_varint(&mut self.bytes, len_u64(shared));
        let seq = match separator.versions {
            SeparatorSide::Split(seq) => Some(seq),
            // `Separator::between` never returns `After`. This encoding cannot represent it.
            SeparatorSide::Before | SeparatorSide::After => None,
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

    /// Returns the encoded block and resets the builder.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut built = std::mem::replace(self, PrefixIndexBuilder::new());
        for &restart in &built.restarts {
            put_u32(&mut built.bytes, restart);
        }
        put_u32(&mut built.bytes, built.count);
        built.bytes
    }
}

struct PrefixIndexEntry<'a> {
    shared: usize,
    suffix: &'a [u8],
    seq: Option<SeqNo>,
    offset: u64,
    bytes: u64,
    next: usize,
}

/// Contents of a prefix-compressed index block or top index. A search reads the encoded bytes.
#[derive(Clone, Debug)]
pub(super) struct PrefixIndex {
    pub(super) block: Box<[u8]>,
    interval: usize,
    restarts_at: usize,
    restarts: usize,
    count: usize,
}

impl PrefixIndex {
    /// Copies the contents of a block. Entries are checked only when they are read.
    pub(super) fn new(block: &[u8]) -> Result<PrefixIndex, Malformed> {
        let mut decoder = Decoder::new(block);
        let coding = decoder.u8("index encoding")?;
        if coding != ENCODING_PREFIX {
            return Err(Malformed::invalid_field(
                "index encoding",
                u64::from(coding),
                "0 (prefix)",
            ));
        }
        let interval = usize::from(decoder.u8("index restart interval")?);
        let count = block.len().checked_sub(size_of::<u32>()).and_then(|at| get_u32(block, at));
        let count = to_usize("index entries", u64::from(count.unwrap_or(0)))?;
        if interval == 0 || count == 0 || count > block.len() / ENTRY_BYTES_MIN {
            return Err(Malformed::invalid_field(
                "index entries",
                len_u64(count),
                "at least one, and as many as fit into the block",
            ));
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
    fn restart_offset(&self, index: usize) -> Result<usize, Malformed> {
        let at = get_u32(&self.block, self.restarts_at + index * size_of::<u32>());
        let at = to_usize("index restart", u64::from(at.unwrap_or(0)))?;
        if at < ENTRIES_AT || at >= self.restarts_at {
            return Err(Malformed::invalid_field(
                "index restart",
                len_u64(at),
                "the offset of an entry",
            ));
        }
        Ok(at)
    }

    #[inline]
    fn decode_entry(&self, at: usize) -> Result<PrefixIndexEntry<'_>, Malformed> {
        match self.decode_short_entry(at) {
            Some(entry) => Ok(entry),
            None => self.decode_long_entry(at),
        }
    }

    /// Decodes an entry without a sequence number whose lengths have one byte each. Returns `None` for other entries.
    /// Nearly all entries have this form.
    #[inline]
    fn decode_short_entry(&self, at: usize) -> Option<PrefixIndexEntry<'_>> {
        let &[shared, unshared] = self.block.get(at..)?.first_chunk()?;
        if (shared | unshared) >= 0x80 || unshared % 2 != 0 {
            return None;
        }
        let suffix_at = at + 2;
        let handle_at = suffix_at + usize::from(unshared / 2);
        let tail = self.block.get(handle_at..)?;
        let (offset, offset_bytes) = decode_varint_word(u64::from_le_bytes(*tail.first_chunk()?))?;
        let tail = tail.get(offset_bytes..)?;
        let (bytes, size_bytes) = decode_varint_word(u64::from_le_bytes(*tail.first_chunk()?))?;
        let next = handle_at + offset_bytes + size_bytes;
        if next > self.restarts_at {
            return None;
        }
        let suffix = self.block.get(suffix_at..handle_at)?;
        Some(PrefixIndexEntry {
            shared: usize::from(shared),
            suffix,
            seq: None,
            offset,
            bytes,
            next,
        })
    }

    #[cold]
    fn decode_long_entry(&self, at: usize) -> Result<PrefixIndexEntry<'_>, Malformed> {
        let mut decoder = Decoder::with_offset(&self.block[..self.restarts_at], at);
        let shared = decoder.length("shared separator length")?;
        let unshared = decoder.length("unshared separator length")?;
        let suffix = decoder.take_bytes("separator suffix", unshared / 2)?;
        let seq = match unshared % 2 {
            0 => None,
            _ => Some(SeqNo(decoder.varint("separator number")?)),
        };
        let offset = decoder.varint("block offset")?;
        let bytes = decoder.varint("block size")?;
        Ok(PrefixIndexEntry { shared, suffix, seq, offset, bytes, next: decoder.offset() })
    }

    /// Returns whether the entry at a restart is before (`user_key`, `seq`). `head` is the [`key_head`] of `user_key`.
    /// In most cases, `head` is sufficient to determine the order.
    #[inline]
    fn restart_is_before(
        &self,
        index: usize,
        head: u64,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<bool, Malformed> {
        let at = self.restart_offset(index)?;
        if let Some([0, unshared]) = self.block.get(at..).and_then(<[u8]>::first_chunk)
            && let Some(word) = self.block.get(at + 2..).and_then(<[u8]>::first_chunk)
            && *unshared < 0x80
            && *unshared > 1
        {
            // A separator with fewer than eight bytes is compared with the same number of bytes of the target. The mask
            // clears the remaining bytes.
            let bits = 8 * u32::from(unshared / 2).min(8);
            let mask = u64::MAX << (u64::BITS - bits);
            let own = u64::from_be_bytes(*word) & mask;
            if own != head & mask {
                return Ok(own < head & mask);
            }
        }
        let entry = self.decode_entry(at)?;
        Ok(match entry.suffix.cmp(user_key) {
            Ordering::Less => true,
            Ordering::Equal => entry.seq.is_some_and(|own| own > seq),
            Ordering::Greater => false,
        })
    }

    /// Returns the first block that can contain an entry at or after (`user_key`, `seq`), as ordinal and handle.
    /// Returns `None` if all blocks are before this position.
    pub(super) fn seek(
        &self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<(usize, BlockHandle)>, Malformed> {
        // Restarts before `low` are before the target. Restarts from `high` on are at or after the target.
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
        let mut iter = self.iter_from(restart)?;
        let mut matched = 0;
        while let Some((ordinal, entry, handle)) = iter.next()? {
            let order = compare_compressed(entry.shared, entry.suffix, user_key, &mut matched);
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

    /// Returns the handle of the block with this ordinal, or `None` if there is no such block.
    pub(super) fn handle(&self, ordinal: usize) -> Result<Option<BlockHandle>, Malformed> {
        if ordinal >= self.count {
            return Ok(None);
        }
        let mut iter = self.iter_from(ordinal / self.interval)?;
        while let Some((at, _, handle)) = iter.next()? {
            if at == ordinal {
                return Ok(Some(handle));
            }
        }
        Ok(None)
    }

    /// Returns all separators and handles in order. Fails if the entries violate an invariant of the encoding.
    pub(super) fn entries(&self) -> Result<Vec<(Option<Separator>, BlockHandle)>, Malformed> {
        let mut entries = Vec::new();
        let mut key: Vec<u8> = Vec::new();
        let mut iter = self.iter_from(0)?;
        while let Some((ordinal, entry, handle)) = iter.next()? {
            let at_restart = ordinal.is_multiple_of(self.interval);
            let is_misplaced = ordinal == 0 && iter.entry_at != ENTRIES_AT;
            if is_misplaced
                || (at_restart && self.restart_offset(ordinal / self.interval)? != iter.entry_at)
            {
                return Err(Malformed::Order { what: "index restarts are" });
            }
            // The search requires that shared prefixes are as long as possible. The first byte of the suffix must
            // therefore differ from the byte at the same position of the previous separator.
            if !at_restart
                && !entry.suffix.is_empty()
                && key.get(entry.shared) == entry.suffix.first()
            {
                return Err(shares_too_little(entry.shared));
            }
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            let versions = entry.seq.map_or(SeparatorSide::Before, SeparatorSide::Split);
            entries.push((Some(Separator { user_key: key.clone(), versions }), handle));
        }
        if iter.at != self.restarts_at {
            return Err(Malformed::invalid_field(
                "bytes after the last index entry",
                len_u64(self.restarts_at - iter.at.min(self.restarts_at)),
                "0",
            ));
        }
        Ok(entries)
    }

    fn iter_from(&self, restart: usize) -> Result<PrefixIndexIter<'_>, Malformed> {
        Ok(PrefixIndexIter {
            index: self,
            at: self.restart_offset(restart)?,
            entry_at: 0,
            ordinal: restart * self.interval,
            until_restart: 0,
            key_bytes: 0,
            previous_end: 0,
        })
    }
}

/// Iterator over the entries from a restart on. Computes the offsets of the blocks.
struct PrefixIndexIter<'a> {
    index: &'a PrefixIndex,
    at: usize,
    entry_at: usize,
    ordinal: usize,
    until_restart: usize,
    key_bytes: usize,
    previous_end: u64,
}

impl<'a> PrefixIndexIter<'a> {
    #[inline]
    fn next(&mut self) -> Result<Option<(usize, PrefixIndexEntry<'a>, BlockHandle)>, Malformed> {
        if self.ordinal >= self.index.count {
            return Ok(None);
        }
        let entry = self.index.decode_entry(self.at)?;
        let restart = self.until_restart == 0;
        self.until_restart = if restart { self.index.interval } else { self.until_restart } - 1;
        if entry.shared > self.key_bytes || (restart && entry.shared != 0) {
            return Err(shares_too_much(entry.shared));
        }
        self.key_bytes = entry.shared + entry.suffix.len();
        let base = if restart { 0 } else { self.previous_end };
        let Some(offset) = base.checked_add(entry.offset) else {
            return Err(Malformed::invalid_field(
                "block offset",
                entry.offset,
                "an offset inside the file",
            ));
        };
        let handle = BlockHandle { offset, bytes: entry.bytes };
        self.previous_end = handle.end_offset()?;
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
    use crate::format::copies_with_flipped_bit;

    fn separator(user_key: &[u8], seq: Option<u64>) -> Separator {
        let versions = seq.map_or(SeparatorSide::Before, |seq| SeparatorSide::Split(SeqNo(seq)));
        Separator { user_key: user_key.to_vec(), versions }
    }

    fn build(separators: &[Separator]) -> (Vec<u8>, Vec<BlockHandle>) {
        let mut builder = PrefixIndexBuilder::new();
        let mut handles = Vec::new();
        let mut offset = 0;
        for (index, separator) in separators.iter().enumerate() {
            let handle = BlockHandle { offset, bytes: 11 + len_u64(index) * 300 };
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

    // Regression test: a restart that pointed into the header was decoded as an entry.
    #[test]
    fn prefix_index_restart_outside_entries_is_error() {
        let (good, _) = build(&sample()[..3]);
        let ordinal = good.len() - 8;
        for at in [0, 1, u32::try_from(ordinal).unwrap(), u32::MAX] {
            let mut bad = good.clone();
            bad[ordinal..ordinal + 4].copy_from_slice(&at.to_le_bytes());
            let index = IndexBlock::new(bad.into()).unwrap();
            assert!(index.entries().is_err() && index.handle(0).is_err(), "restart at {at}");
            assert!(index.seek(b"", SeqNo::MAX).is_err());
        }
    }

    #[test]
    fn prefix_index_entry_shares_too_little_is_error() {
        let shared = [0, 4, 1, 2, 0, 20];
        let repeated = [0, 6, 1, 1, 2, 0, 20];
        for (second, good) in
            [(&shared[..], false), (&repeated[..], false), (&[1, 2, 2, 0, 20], true)]
        {
            let mut block = vec![ENCODING_PREFIX, RESTART_INTERVAL, 0, 4, 1, 1, 0, 20];
            block.extend_from_slice(second);
            block.extend_from_slice(&[2, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(IndexBlock::new(block.into()).unwrap().entries().is_ok(), good);
        }
    }

    #[test]
    fn prefix_index_seek_finds_first_separator_at_or_after() {
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
    fn prefix_index_damaged_block_does_not_panic() {
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
        for (_, damaged) in copies_with_flipped_bit(&whole) {
            probe(damaged);
        }
    }

    proptest! {
        #[test]
        fn prefix_index_random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = bytes;
            if let Some(coding) = bytes.first_mut() {
                *coding = ENCODING_PREFIX;
            }
            if let Ok(index) = IndexBlock::new(bytes.into()) {
                let _ = index.seek(b"key", SeqNo::MAX);
                let _ = index.entries();
            }
        }
    }
}
