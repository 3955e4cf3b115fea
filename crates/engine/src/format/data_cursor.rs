//! Walks over the entries of one data block, both ways.
//!
//! Forward, each key is made from the one before. Backward that cannot be done, so a whole restart
//! interval is unfolded at once and then handed out from its end: a step back costs as much as a
//! step forward, not half an interval.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;

use super::data_block::{DataBlock, ENTRIES_AT, Sought, shares_too_much};

/// An entry of the unfolded interval; its key begins where that of the entry before ends.
#[derive(Clone, Copy, Debug)]
struct Unfolded {
    at: usize,
    key_end: usize,
    kind: EntryKind,
    seq: SeqNo,
    value_at: usize,
    next: usize,
}

/// A cursor over one data block. Keeps its buffers when it goes on to another block.
#[derive(Debug)]
pub(crate) struct DataCursor {
    block: DataBlock,
    valid: bool,
    key: Vec<u8>,
    kind: EntryKind,
    seq: SeqNo,
    at: usize,
    value_at: usize,
    next: usize,
    /// Entries before `at`, of the same interval.
    unfolded: Vec<Unfolded>,
    unfolded_keys: Vec<u8>,
}

impl DataCursor {
    /// A cursor that stands nowhere.
    pub(crate) fn new(block: DataBlock) -> DataCursor {
        DataCursor {
            block,
            valid: false,
            key: Vec::new(),
            kind: EntryKind::Delete,
            seq: SeqNo::ZERO,
            at: 0,
            value_at: 0,
            next: 0,
            unfolded: Vec::new(),
            unfolded_keys: Vec::new(),
        }
    }

    /// Goes on to another block, standing nowhere.
    pub(crate) fn reset(&mut self, block: DataBlock) {
        self.block = block;
        self.valid = false;
    }

    /// Whether the cursor stands on an entry.
    #[inline]
    pub(crate) fn valid(&self) -> bool {
        self.valid
    }

    /// The entry's key. Only while valid.
    #[inline]
    pub(crate) fn key(&self) -> InternalKey<'_> {
        InternalKey { user_key: &self.key, seq: self.seq, kind: self.kind }
    }

    /// The entry's value. Only while valid.
    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        &self.block.bytes()[self.value_at..self.next]
    }

    /// The entry's value, sharing the block's memory. Only while valid.
    #[inline]
    pub(crate) fn value_slice(&self) -> Slice {
        // What is short is not worth an owner of the block.
        Slice::inline(self.value()).unwrap_or_else(|| {
            let block = self.block.bytes().clone();
            Slice::of_block(block.into_part(self.value_at, self.next))
        })
    }

    /// Stands on no entry any more.
    pub(crate) fn invalidate(&mut self) {
        self.valid = false;
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn first(&mut self) -> Result<(), Malformed> {
        self.restart_at(ENTRIES_AT);
        self.next()
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// When it, or one it shares key bytes with, is malformed.
    pub(crate) fn last(&mut self) -> Result<(), Malformed> {
        self.at = self.block.entries_end();
        self.unfolded.clear();
        self.prev()
    }

    /// Moves to the first entry at or after (`user_key`, `seq`), or past the end.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    pub(crate) fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        self.valid = false;
        self.unfolded.clear();
        match self.block.seek(user_key, seq)? {
            None => self.next = self.block.entries_end(),
            Some(Sought { at, entry, .. }) => {
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
    /// When an entry on the way is malformed.
    pub(crate) fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        self.seek(user_key, seq)?;
        if self.valid { self.prev() } else { self.last() }
    }

    fn restart_at(&mut self, at: usize) {
        self.key.clear();
        self.next = at;
        self.valid = false;
    }

    /// Moves to the next entry, or past the end.
    ///
    /// # Errors
    /// When it is malformed.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<(), Malformed> {
        self.valid = false;
        self.unfolded.clear();
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

    /// Moves to the entry before, or before the first.
    ///
    /// # Errors
    /// When it, or one it shares key bytes with, is malformed.
    pub(crate) fn prev(&mut self) -> Result<(), Malformed> {
        self.valid = false;
        if self.unfolded.is_empty() {
            if self.at <= ENTRIES_AT {
                return Ok(());
            }
            self.unfold()?;
        }
        let Some(entry) = self.unfolded.pop() else {
            return Ok(());
        };
        let key_at = self.unfolded.last().map_or(0, |before| before.key_end);
        self.key.clear();
        self.key.extend_from_slice(&self.unfolded_keys[key_at..entry.key_end]);
        self.unfolded_keys.truncate(key_at);
        self.at = entry.at;
        (self.kind, self.seq) = (entry.kind, entry.seq);
        (self.value_at, self.next) = (entry.value_at, entry.next);
        self.valid = true;
        Ok(())
    }

    /// Unfolds the entries before `at`, back to the nearest restart.
    fn unfold(&mut self) -> Result<(), Malformed> {
        self.unfolded_keys.clear();
        let (mut low, mut high) = (0, self.block.restarts());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.block.restart(middle)? < self.at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut at = self.block.restart(low.saturating_sub(1))?;
        let mut key_at = 0;
        while at < self.at {
            let entry = self.block.entry(at)?;
            let key_end = self.unfolded_keys.len();
            if entry.shared > key_end - key_at {
                return Err(shares_too_much(entry.shared));
            }
            self.unfolded_keys.extend_from_within(key_at..key_at + entry.shared);
            self.unfolded_keys.extend_from_slice(entry.suffix);
            key_at = key_end;
            self.unfolded.push(Unfolded {
                at,
                key_end: self.unfolded_keys.len(),
                kind: entry.kind,
                seq: entry.seq,
                value_at: entry.value_at,
                next: entry.next,
            });
            at = entry.next;
        }
        // The first restart is the first entry: without one before `at`, entries would be left out.
        if at != self.at || self.unfolded.is_empty() {
            self.unfolded.clear();
            return Err(Malformed::Order { what: "data block restarts are" });
        }
        Ok(())
    }
}
