//! One sorted run: many tables with disjoint ranges as one source.
//!
//! Where range deletes hide all that a table holds around the current key, the run leaps to where they
//! end: blocks and tables in between are never read. Whether an entry is left out depends on its key
//! and its table alone, so the run looks the same from both sides.

use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::Result;
use crate::iter::range_tombstone_filter::Deleted;
use crate::table::{ReadPurpose, TableCursor};
use crate::tree::version::TableFile;

/// Walks the tables of a run, which it keeps alive, one after the other; opens a cursor on a table
/// only when it gets there.
#[derive(Debug)]
pub(crate) struct RunCursor {
    tables: Arc<[Arc<TableFile>]>,
    fill: ReadPurpose,
    index: usize,
    current: Option<TableCursor>,
    /// What is leapt over.
    deleted: Option<Deleted>,
}

/// Whether range deletes hide everything that a table holds in the window around `user_key`.
fn hides_table(deleted: &mut Deleted, table: &TableFile, user_key: &[u8]) -> bool {
    let shape = table.shape();
    deleted.hides_all(user_key, SeqNo(shape.seq_smallest), SeqNo(shape.seq_largest))
}

impl RunCursor {
    /// A cursor over tables in key order with disjoint ranges, which may leave out what `deleted`
    /// hides.
    pub(crate) fn new(
        tables: Arc<[Arc<TableFile>]>,
        fill: ReadPurpose,
        deleted: Option<Deleted>,
    ) -> RunCursor {
        RunCursor { tables, fill, index: 0, current: None, deleted }
    }

    fn stand(&self) -> &TableCursor {
        // `Cursor` allows `key`, `value` and moves by one only while `valid()`, which is this.
        self.current.as_ref().expect("the cursor stands on an entry")
    }

    /// Opens the table at `index`, or stands nowhere if there is none.
    fn open(&mut self, index: usize) -> Option<&mut TableCursor> {
        if index != self.index {
            self.current = None;
        }
        let table = self.tables.get(index)?;
        self.index = index;
        Some(self.current.get_or_insert_with(|| TableCursor::new(table.table(), self.fill)))
    }

    /// Drops the table's cursor if moving it failed or it stands nowhere.
    fn settle(&mut self, moved: Result<()>) -> Result<()> {
        if moved.is_err() || !self.valid() {
            self.current = None;
        }
        moved
    }

    fn forward_from(&mut self, mut index: usize) -> Result<()> {
        while let Some(cursor) = self.open(index) {
            let moved = cursor.first();
            self.settle(moved)?;
            if self.valid() {
                break;
            }
            index += 1;
        }
        Ok(())
    }

    fn backward_from(&mut self, index: Option<usize>) -> Result<()> {
        let mut next = index;
        self.current = None;
        while let Some(index) = next {
            let Some(cursor) = self.open(index) else { break };
            let moved = cursor.last();
            self.settle(moved)?;
            if self.valid() {
                break;
            }
            next = index.checked_sub(1);
        }
        Ok(())
    }
}

impl RunCursor {
    /// Goes on to the first entry at or after the current one that is not hidden with all of its
    /// table around it.
    #[inline]
    fn leap_forward(&mut self) -> Result<()> {
        match self.deleted.take() {
            None => Ok(()),
            Some(mut deleted) => {
                let leapt = self.leap_forward_over(&mut deleted);
                self.deleted = Some(deleted);
                leapt
            }
        }
    }

    fn leap_forward_over(&mut self, deleted: &mut Deleted) -> Result<()> {
        while let Some(cursor) = &mut self.current {
            let table = &self.tables[self.index];
            if !hides_table(deleted, table, cursor.key().user_key) {
                break;
            }
            match deleted.end() {
                Some(end) if *end <= *table.shape().range.largest => {
                    let moved = cursor.seek(end, SeqNo::MAX);
                    self.settle(moved)?;
                    if !self.valid() {
                        self.forward_from(self.index + 1)?;
                    }
                }
                _ => {
                    let from = self.index + 1;
                    let hidden = self.tables[from..].iter().take_while(|table| {
                        let range = &table.shape().range;
                        hides_table(deleted, table, &range.smallest)
                            && deleted.end().is_none_or(|end| *range.largest < *end)
                    });
                    let next = from + hidden.count();
                    self.forward_from(next)?;
                }
            }
        }
        Ok(())
    }

    /// As [`RunCursor::leap_forward`], the other way.
    #[inline]
    fn leap_backward(&mut self) -> Result<()> {
        match self.deleted.take() {
            None => Ok(()),
            Some(mut deleted) => {
                let leapt = self.leap_backward_over(&mut deleted);
                self.deleted = Some(deleted);
                leapt
            }
        }
    }

    fn leap_backward_over(&mut self, deleted: &mut Deleted) -> Result<()> {
        while let Some(cursor) = &mut self.current {
            let table = &self.tables[self.index];
            if !hides_table(deleted, table, cursor.key().user_key) {
                break;
            }
            let start = deleted.start();
            if *start > *table.shape().range.smallest {
                let moved = cursor.seek_before(start, SeqNo::MAX);
                self.settle(moved)?;
                if !self.valid() {
                    self.backward_from(self.index.checked_sub(1))?;
                }
            } else {
                let hidden = self.tables[..self.index].iter().rev().take_while(|table| {
                    let range = &table.shape().range;
                    hides_table(deleted, table, &range.largest)
                        && *deleted.start() <= *range.smallest
                });
                let left = self.index - hidden.count();
                self.backward_from(left.checked_sub(1))?;
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
        self.stand().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.stand().value()
    }

    fn value_slice(&self) -> Slice {
        self.stand().value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.forward_from(0)?;
        self.leap_forward()
    }

    fn last(&mut self) -> Result<()> {
        self.backward_from(self.tables.len().checked_sub(1))?;
        self.leap_backward()
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let index = self.tables.partition_point(|table| table.shape().range.largest < user_key);
        let Some(cursor) = self.open(index) else { return Ok(()) };
        let moved = cursor.seek(user_key, seq);
        self.settle(moved)?;
        if !self.valid() {
            self.forward_from(index + 1)?;
        }
        self.leap_forward()
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let after = self.tables.partition_point(|table| table.shape().range.smallest <= user_key);
        let Some(index) = after.checked_sub(1) else {
            self.current = None;
            return Ok(());
        };
        let Some(cursor) = self.open(index) else { return Ok(()) };
        let moved = cursor.seek_before(user_key, seq);
        self.settle(moved)?;
        if !self.valid() {
            self.backward_from(index.checked_sub(1))?;
        }
        self.leap_backward()
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some(cursor) = self.current.as_mut() else { return Ok(()) };
        let moved = cursor.next();
        self.settle(moved)?;
        if !self.valid() {
            self.forward_from(self.index + 1)?;
        }
        self.leap_forward()
    }

    fn prev(&mut self) -> Result<()> {
        let Some(cursor) = self.current.as_mut() else { return Ok(()) };
        let moved = cursor.prev();
        self.settle(moved)?;
        if !self.valid() {
            self.backward_from(self.index.checked_sub(1))?;
        }
        self.leap_backward()
    }
}
