//! Bidirectional cursor over the entries of a data block.
//!
//! A step forward computes the key of the next entry from the current key. A step backward into a restart interval
//! decodes the entries of the interval into a buffer. Further steps backward take the last entry from this buffer. A
//! step backward is therefore as fast as a step forward on average. Without the buffer, each step backward would decode
//! half an interval on average.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;

use super::{DataBlock, ENTRIES_AT, SeekResult, shares_too_much};

/// A decoded entry in the buffer. Its key in `decoded_keys` starts where the key of the previous entry ends.
#[derive(Clone, Copy, Debug)]
struct DecodedEntry {
    at: usize,
    key_end: usize,
    kind: EntryKind,
    seq: SeqNo,
    value_at: usize,
    next: usize,
}

/// A cursor over the entries of one data block. The cursor reuses its buffers when its block is replaced.
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
    /// Decoded entries before `at` in the same restart interval. Empty except after a step backward.
    decoded: Vec<DecodedEntry>,
    decoded_keys: Vec<u8>,
}

impl DataBlockCursor {
    /// Returns a cursor that is not positioned at an entry.
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

    /// Replaces the block. The cursor is then not positioned at an entry.
    pub(crate) fn reset(&mut self, block: DataBlock) {
        self.block = block;
        self.valid = false;
    }

    /// Returns whether the cursor is positioned at an entry.
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

    /// Returns the value as a slice. A short value is copied, and a long value shares the memory of the block. The
    /// cursor must be valid.
    #[inline]
    pub(crate) fn value_slice(&self) -> Slice {
        // A short value is copied, so that the value does not keep the block in memory.
        Slice::new_inline(self.value()).unwrap_or_else(|| {
            let block = self.block.bytes().clone();
            Slice::from_block(block.into_subrange(self.value_at, self.next))
        })
    }

    /// Invalidates the cursor.
    pub(crate) fn invalidate(&mut self) {
        self.valid = false;
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// Fails if the entry is malformed.
    pub fn first(&mut self) -> Result<(), Malformed> {
        self.restart_at(ENTRIES_AT);
        self.next()
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// Fails if an entry in the last restart interval is malformed.
    pub fn last(&mut self) -> Result<(), Malformed> {
        self.at = self.block.entries_end();
        self.decoded.clear();
        self.prev()
    }

    /// Moves to the first entry at or after (`user_key`, `seq`). If there is none, the cursor is positioned after the
    /// last entry.
    ///
    /// # Errors
    /// Fails if the search reads a malformed entry.
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

    /// Moves to the last entry before (`user_key`, `seq`). If there is none, the cursor is positioned before the first
    /// entry.
    ///
    /// # Errors
    /// Fails if the search reads a malformed entry.
    pub fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        self.seek(user_key, seq)?;
        if self.valid { self.prev() } else { self.last() }
    }

    fn restart_at(&mut self, at: usize) {
        self.key.clear();
        self.next = at;
        self.valid = false;
    }

    /// Moves to the next entry. If there is none, the cursor is positioned after the last entry.
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

    /// Moves to the previous entry. If there is none, the cursor is positioned before the first entry.
    ///
    /// # Errors
    /// Fails if an entry in the restart interval of the previous entry is malformed.
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
        // The first restart must be at the first entry. Otherwise, backward iteration would skip the entries before
        // this restart.
        if at != self.at || self.decoded.is_empty() {
            self.decoded.clear();
            return Err(Malformed::Order { what: "data block restarts are" });
        }
        Ok(())
    }
}
