//! Cursor over the operands of a simple store.

use std::cmp::Reverse;
use std::sync::Arc;

use lsmx::operand_store::{Cursor, Operand, OperandReadTier};
use lsmx::{EntryKind, Result, SeqNo, Slice};
use lsmx_base::key::InternalKey;

use super::view::View;

type Entry = (Vec<u8>, Operand);

/// Cursor over operands in ascending key order. The operands of a key are ordered from newest to oldest.
pub(super) struct OperandCursor {
    /// Source of the entries: the view, the read tier, and the sequence number of the reader. `None` after the entries
    /// are loaded.
    source: Option<(Arc<View>, OperandReadTier, SeqNo)>,
    entries: Vec<Entry>,
    position: Option<usize>,
}

impl OperandCursor {
    /// Returns a cursor over entries, which must be in cursor order.
    pub(super) fn over_entries(entries: Vec<Entry>) -> OperandCursor {
        OperandCursor { source: None, entries, position: None }
    }

    /// Returns a cursor over the operands that are visible at sequence number `at`. The first positioning call loads
    /// them.
    pub(super) fn over_view(view: Arc<View>, tier: OperandReadTier, at: SeqNo) -> OperandCursor {
        OperandCursor { source: Some((view, tier, at)), entries: Vec::new(), position: None }
    }

    fn load(&mut self) -> Result<()> {
        self.position = None;
        if let Some((view, tier, at)) = &self.source {
            let contents = view.read_contents(*tier)?;
            let entries = contents.keys.keys().flat_map(|key| {
                let operands = contents.visible_operands(key, *at).into_iter();
                operands.map(|operand| (key.clone(), operand))
            });
            self.entries = entries.collect();
            self.source = None;
        }
        Ok(())
    }

    fn entry(&self) -> &Entry {
        &self.entries[self.position.expect("the cursor is on an entry")]
    }

    fn set_position(&mut self, position: Option<usize>) {
        self.position = position.filter(|position| *position < self.entries.len());
    }

    /// Returns the index of the first entry at or after a key and sequence number.
    fn find(&mut self, key: &[u8], seq: SeqNo) -> Result<usize> {
        self.load()?;
        let is_before =
            |(other, operand): &Entry| (&other[..], Reverse(operand.last)) < (key, Reverse(seq));
        Ok(self.entries.partition_point(is_before))
    }
}

impl Cursor for OperandCursor {
    fn valid(&self) -> bool {
        self.position.is_some()
    }
    fn key(&self) -> InternalKey<'_> {
        let (user_key, operand) = self.entry();
        InternalKey { user_key, seq: operand.last, kind: EntryKind::Merge }
    }
    fn value(&self) -> &[u8] {
        &self.entry().1.bytes
    }
    fn value_slice(&self) -> Slice {
        self.entry().1.bytes.clone()
    }
    fn first(&mut self) -> Result<()> {
        self.load()?;
        self.set_position(Some(0));
        Ok(())
    }
    fn last(&mut self) -> Result<()> {
        self.load()?;
        self.set_position(self.entries.len().checked_sub(1));
        Ok(())
    }
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let position = self.find(user_key, seq)?;
        self.set_position(Some(position));
        Ok(())
    }
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let position = self.find(user_key, seq)?;
        self.set_position(position.checked_sub(1));
        Ok(())
    }
    fn next(&mut self) -> Result<()> {
        self.set_position(self.position.map(|position| position + 1));
        Ok(())
    }
    fn prev(&mut self) -> Result<()> {
        self.set_position(self.position.and_then(|position| position.checked_sub(1)));
        Ok(())
    }
}
