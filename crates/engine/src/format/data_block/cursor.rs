//! Bidirectional cursor over the entries of a data block.
//!
//! A step forward derives the key of the next entry from the current key. A step backward into a restart interval
//! decodes the whole interval into a buffer. Further steps backward take entries from the end of this buffer. On
//! average a step backward therefore costs as much as a step forward. Without the buffer, each step would decode half
//! an interval.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;

use super::{DataBlock, ENTRIES_AT, SeekResult, shares_too_much};

/// A buffered entry of a restart interval. Its key in `decoded_keys` starts where the key of the previous entry ends.
#[derive(Clone, Copy, Debug)]
struct DecodedEntry {
    at: usize,
    key_end: usize,
    kind: EntryKind,
    seq: SeqNo,
    value_at: usize,
    next: usize,
}

/// A cursor over one data block. It keeps its buffers when it moves to another block.
#[derive(Debug)]
pub struct DataBlockCursor {
    block: DataBlock,
    valid: bool,
    key: Vec<u8>,
    kind: EntryKind,
    seq: SeqNo,
    at: usize,
    value_at: usize,
    next: usize,
    /// Decoded entries before `at` in the same restart interval.
    decoded: Vec<DecodedEntry>,
    decoded_keys: Vec<u8>,
}

impl DataBlockCursor {
    /// Returns a cursor that is not valid until it is positioned.
    pub fn new(block: DataBlock) -> DataBlockCursor {
        DataBlockCursor {
            block,
            valid: false,
            key: Vec::new(),
            kind: EntryKind::Delete,
            seq: SeqNo::ZERO,
            at: 0,
            value_at: 0,
            next: 0,
            decoded: Vec::new(),
            decoded_keys: Vec::new(),
        }
    }

    /// Replaces the block. The cursor is then not valid.
    pub(crate) fn reset(&mut self, block: DataBlock) {
        self.block = block;
        self.valid = false;
    }

    /// Returns whether the cursor is at an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// Returns the key of the entry. The cursor must be valid.
    #[inline]
    pub fn key(&self) -> InternalKey<'_> {
        InternalKey { user_key: &self.key, seq: self.seq, kind: self.kind }
    }

    /// Returns the value of the entry. The cursor must be valid.
    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.block.bytes()[self.value_at..self.next]
    }

    /// Returns the value as a slice that may share the block's memory. The cursor must be valid.
    #[inline]
    pub(crate) fn value_slice(&self) -> Slice {
        // A short value is copied, so that it does not keep the block in memory.
        Slice::new_inline(self.value()).unwrap_or_else(|| {
            let block = self.block.bytes().clone();
            Slice::from_block(block.into_subrange(self.value_at, self.next))
        })
    }

    /// Makes the cursor not valid.
    pub(crate) fn invalidate(&mut self) {
        self.valid = false;
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// Fails when the entry is malformed.
    pub fn first(&mut self) -> Result<(), Malformed> {
        self.restart_at(ENTRIES_AT);
        self.next()
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// Fails when an entry of the last restart interval is malformed.
    pub fn last(&mut self) -> Result<(), Malformed> {
        self.at = self.block.entries_end();
        self.decoded.clear();
        self.prev()
    }

    /// Moves to the first entry at or after (`user_key`, `seq`), or past the end.
    ///
    /// # Errors
    /// Fails when an entry read by the search is malformed.
    pub fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        self.valid = false;
        self.decoded.clear();
        match self.block.seek(user_key, seq)? {
            None => self.next = self.block.entries_end(),
            Some(SeekResult { at, entry, .. }) => {
                self.key.clear();
                self.key.extend_from_slice(&user_key[..entry.shared]);
                self.key.extend_from_slice(entry.suffix);
                self.at = at;
                (self.kind, self.seq) = (entry.kind, entry.seq);
                (self.value_at, self.next) = (entry.value_at, entry.next);
                self.valid = true;
            }
        }
        Ok(())
    }

    /// Moves to the last entry before (`user_key`, `seq`), or before the first.
    ///
    /// # Errors
    /// Fails when an entry read by the search is malformed.
    pub fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        self.seek(user_key, seq)?;
        if self.valid { self.prev() } else { self.last() }
    }

    fn restart_at(&mut self, at: usize) {
        self.key.clear();
        self.next = at;
        self.valid = false;
    }

    /// Moves to the next entry, or past the end.
    #[inline]
    pub fn next(&mut self) -> Result<(), Malformed> {
        self.valid = false;
        self.decoded.clear();
        if self.next >= self.block.entries_end() {
            return Ok(());
        }
        let entry = self.block.entry(self.next)?;
        if entry.shared > self.key.len() {
            return Err(shares_too_much(entry.shared));
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(entry.suffix);
        self.at = self.next;
        (self.kind, self.seq) = (entry.kind, entry.seq);
        (self.value_at, self.next) = (entry.value_at, entry.next);
        self.valid = true;
        Ok(())
    }

    /// Moves to the previous entry, or before the first.
    ///
    /// # Errors
    /// Fails when an entry of its restart interval is malformed.
    pub fn prev(&mut self) -> Result<(), Malformed> {
        self.valid = false;
        if self.decoded.is_empty() {
            if self.at <= ENTRIES_AT {
                return Ok(());
            }
            self.decode_interval()?;
        }
        let Some(entry) = self.decoded.pop() else {
            return Ok(());
        };
        let key_at = self.decoded.last().map_or(0, |before| before.key_end);
        self.key.clear();
        self.key.extend_from_slice(&self.decoded_keys[key_at..entry.key_end]);
        self.decoded_keys.truncate(key_at);
        self.at = entry.at;
        (self.kind, self.seq) = (entry.kind, entry.seq);
        (self.value_at, self.next) = (entry.value_at, entry.next);
        self.valid = true;
        Ok(())
    }

    /// Decodes the entries from the last restart before `at` up to `at` into `decoded`.
    fn decode_interval(&mut self) -> Result<(), Malformed> {
        self.decoded_keys.clear();
        let (mut low, mut high) = (0, self.block.restart_count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.block.restart_offset(middle)? < self.at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut at = self.block.restart_offset(low.saturating_sub(1))?;
        let mut key_at = 0;
        while at < self.at {
            let entry = self.block.entry(at)?;
            let key_end = self.decoded_keys.len();
            if entry.shared > key_end - key_at {
                return Err(shares_too_much(entry.shared));
            }
            self.decoded_keys.extend_from_within(key_at..key_at + entry.shared);
            self.decoded_keys.extend_from_slice(entry.suffix);
            key_at = key_end;
            self.decoded.push(DecodedEntry {
                at,
                key_end: self.decoded_keys.len(),
                kind: entry.kind,
                seq: entry.seq,
                value_at: entry.value_at,
                next: entry.next,
            });
            at = entry.next;
        }
        // The first restart must be at the first entry. Otherwise iteration backward would skip the entries before the
        // restart.
        if at != self.at || self.decoded.is_empty() {
            self.decoded.clear();
            return Err(Malformed::Order { what: "data block restarts are" });
        }
        Ok(())
    }
}
