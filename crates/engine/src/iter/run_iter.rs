//! Cursor over a sorted run.
//!
//! If range tombstones hide all entries in a part of a table, the cursor skips this part without reading its blocks.
//! Whether an entry is skipped depends only on its key and its table. Both directions therefore return the same
//! entries.

use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::Result;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::iter::range_tombstone_filter::RangeTombstoneFilter;
use crate::table::{ReadPurpose, ScanHints, TableCursor};
use crate::tree::table_file::TableFile;

/// Cursor over the tables of a sorted run. A table is opened when the cursor reaches it.
#[derive(Debug)]
pub(crate) struct RunCursor {
    tables: Arc<[Arc<TableFile>]>,
    purpose: ReadPurpose,
    hints: ScanHints,
    /// Index of the table to which `current` belongs.
    index: usize,
    current: Option<TableCursor>,
    /// Data block cursor of a closed table. The next table reuses its buffers.
    spare: Option<DataBlockCursor>,
    deleted: Option<RangeTombstoneFilter>,
}

/// Returns whether range tombstones hide all entries of a table in the filter window that contains `user_key`.
fn is_table_deleted(
    deleted: &mut RangeTombstoneFilter,
    table: &TableFile,
    user_key: &[u8],
) -> bool {
    let shape = table.shape();
    deleted.is_window_deleted(user_key, SeqNo(shape.seq_smallest), SeqNo(shape.seq_largest))
}

impl RunCursor {
    /// Creates a cursor. `tables` must be in key order and have disjoint key ranges. The cursor may skip entries that
    /// `deleted` hides.
    pub(crate) fn new(
        tables: Arc<[Arc<TableFile>]>,
        purpose: ReadPurpose,
        deleted: Option<RangeTombstoneFilter>,
    ) -> RunCursor {
        let hints = ScanHints::default();
        RunCursor { tables, purpose, hints, index: 0, current: None, spare: None, deleted }
    }

    /// Limits the read-ahead to the blocks that a scan needs, and sets its read options.
    pub(crate) fn with_hints(self, hints: ScanHints) -> RunCursor {
        RunCursor { hints, ..self }
    }

    /// Prefetches the blocks that a seek to (`user_key`, `seq`) and the following moves need. If `backward` is true,
    /// the seek is [`Cursor::seek_before`], and the following moves go to smaller keys.
    ///
    /// # Errors
    /// Fails if metadata of the table cannot be read. The seek reads the same metadata.
    pub(crate) fn announce_seek(
        &mut self,
        user_key: &[u8],
        seq: SeqNo,
        backward: bool,
    ) -> Result<()> {
        let index = match backward {
            true => self.find_table_before(user_key),
            false => Some(self.find_table_from(user_key)),
        };
        let hints = self.hints.clone();
        match index.and_then(|index| self.open_table(index)) {
            Some(cursor) => cursor.announce_seek(user_key, seq, &hints, backward),
            None => Ok(()),
        }
    }

    /// Returns the index of the first table whose largest key is not before `user_key`.
    fn find_table_from(&self, user_key: &[u8]) -> usize {
        self.tables.partition_point(|table| table.shape().range.largest < user_key)
    }

    /// Returns the index of the last table whose smallest key is not after `user_key`.
    fn find_table_before(&self, user_key: &[u8]) -> Option<usize> {
        let after = self.tables.partition_point(|table| table.shape().range.smallest <= user_key);
        after.checked_sub(1)
    }

    fn table_cursor(&self) -> &TableCursor {
        // Callers of `Cursor::key` and `Cursor::value` must have checked that the cursor is valid.
        self.current.as_ref().expect("the cursor is valid")
    }

    /// Opens the table at `index`. Returns `None` if `index` is out of range.
    fn open_table(&mut self, index: usize) -> Option<&mut TableCursor> {
        if index != self.index {
            self.close_table();
        }
        let table = self.tables.get(index)?;
        self.index = index;
        let spare = &mut self.spare;
        Some(self.current.get_or_insert_with(|| {
            let cursor = TableCursor::new(table.table(), self.purpose).with_hints(&self.hints);
            cursor.with_spare(spare.take())
        }))
    }

    /// Closes the current table. The cursor is then not positioned at an entry.
    fn close_table(&mut self) {
        if let Some(cursor) = self.current.take() {
            self.spare = cursor.into_spare();
        }
    }

    /// Returns whether the cursor is at an entry after a move of the current table. Otherwise, closes this table.
    ///
    /// # Errors
    /// The error of the move.
    #[inline]
    fn has_entry_after(&mut self, moved: Result<()>) -> Result<bool> {
        if moved.is_ok() && self.valid() {
            return Ok(true);
        }
        self.close_table();
        moved.map(|()| false)
    }

    /// Completes a forward move. If the move has left the table, continues in the next table.
    #[inline]
    fn finish_move_or_open_next(&mut self, moved: Result<()>) -> Result<()> {
        match self.has_entry_after(moved)? {
            true => Ok(()),
            false => self.move_to_first_entry_from_table(self.index + 1),
        }
    }

    /// Completes a backward move. If the move has left the table, continues in the previous table.
    fn finish_move_or_open_previous(&mut self, moved: Result<()>) -> Result<()> {
        match self.has_entry_after(moved)? {
            true => Ok(()),
            false => self.move_to_last_entry_from_table(self.index.checked_sub(1)),
        }
    }

    /// Moves to the first entry of the tables from `index` on.
    fn move_to_first_entry_from_table(&mut self, mut index: usize) -> Result<()> {
        while let Some(cursor) = self.open_table(index) {
            let moved = cursor.first();
            if self.has_entry_after(moved)? {
                break;
            }
            index += 1;
        }
        Ok(())
    }

    /// Moves to the last entry of the tables up to `index`.
    fn move_to_last_entry_from_table(&mut self, mut index: Option<usize>) -> Result<()> {
        self.close_table();
        while let Some(cursor) = index.and_then(|index| self.open_table(index)) {
            let moved = cursor.last();
            if self.has_entry_after(moved)? {
                break;
            }
            index = self.index.checked_sub(1);
        }
        Ok(())
    }

    /// Calls `skip` if there are range tombstones.
    #[inline]
    fn skip_deleted(
        &mut self,
        skip: impl FnOnce(&mut RunCursor, &mut RangeTombstoneFilter) -> Result<()>,
    ) -> Result<()> {
        if self.deleted.is_none() {
            return Ok(());
        }
        let Some(mut deleted) = self.deleted.take() else { return Ok(()) };
        let skipped = skip(self, &mut deleted);
        self.deleted = Some(deleted);
        skipped
    }

    /// Moves forward to the first entry that is not in a hidden part of its table. Does not move if this is the current
    /// entry.
    fn skip_forward(&mut self, deleted: &mut RangeTombstoneFilter) -> Result<()> {
        while let Some(cursor) = &mut self.current {
            let table = &self.tables[self.index];
            if !is_table_deleted(deleted, table, cursor.key().user_key) {
                break;
            }
            match deleted.end() {
                Some(end) if *end <= *table.shape().range.largest => {
                    let moved = cursor.seek(end, SeqNo::MAX);
                    self.finish_move_or_open_next(moved)?;
                }
                _ => {
                    let from = self.index + 1;
                    let hidden = self.tables[from..].iter().take_while(|table| {
                        let range = &table.shape().range;
                        is_table_deleted(deleted, table, &range.smallest)
                            && deleted.end().is_none_or(|end| *range.largest < *end)
                    });
                    let next = from + hidden.count();
                    self.move_to_first_entry_from_table(next)?;
                }
            }
        }
        Ok(())
    }

    /// Moves backward to the last entry that is not in a hidden part of its table. Does not move if this is the current
    /// entry.
    fn skip_backward(&mut self, deleted: &mut RangeTombstoneFilter) -> Result<()> {
        while let Some(cursor) = &mut self.current {
            let table = &self.tables[self.index];
            if !is_table_deleted(deleted, table, cursor.key().user_key) {
                break;
            }
            let start = deleted.start();
            if *start > *table.shape().range.smallest {
                let moved = cursor.seek_before(start, SeqNo::MAX);
                self.finish_move_or_open_previous(moved)?;
            } else {
                let hidden = self.tables[..self.index].iter().rev().take_while(|table| {
                    let range = &table.shape().range;
                    is_table_deleted(deleted, table, &range.largest)
                        && *deleted.start() <= *range.smallest
                });
                let remaining = self.index - hidden.count();
                self.move_to_last_entry_from_table(remaining.checked_sub(1))?;
            }
        }
        Ok(())
    }
}

impl Cursor for RunCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.current.as_ref().is_some_and(Cursor::valid)
    }

    #[inline]
    fn key(&self) -> InternalKey<'_> {
        self.table_cursor().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.table_cursor().value()
    }

    fn value_slice(&self) -> Slice {
        self.table_cursor().value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.move_to_first_entry_from_table(0)?;
        self.skip_deleted(RunCursor::skip_forward)
    }

    fn last(&mut self) -> Result<()> {
        self.move_to_last_entry_from_table(self.tables.len().checked_sub(1))?;
        self.skip_deleted(RunCursor::skip_backward)
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let index = self.find_table_from(user_key);
        let Some(cursor) = self.open_table(index) else { return Ok(()) };
        let moved = cursor.seek(user_key, seq);
        self.finish_move_or_open_next(moved)?;
        self.skip_deleted(RunCursor::skip_forward)
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let Some(index) = self.find_table_before(user_key) else {
            self.close_table();
            return Ok(());
        };
        let Some(cursor) = self.open_table(index) else { return Ok(()) };
        let moved = cursor.seek_before(user_key, seq);
        self.finish_move_or_open_previous(moved)?;
        self.skip_deleted(RunCursor::skip_backward)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some(cursor) = self.current.as_mut() else { return Ok(()) };
        let moved = cursor.next();
        self.finish_move_or_open_next(moved)?;
        self.skip_deleted(RunCursor::skip_forward)
    }

    fn prev(&mut self) -> Result<()> {
        let Some(cursor) = self.current.as_mut() else { return Ok(()) };
        let moved = cursor.prev();
        self.finish_move_or_open_previous(moved)?;
        self.skip_deleted(RunCursor::skip_backward)
    }
}
