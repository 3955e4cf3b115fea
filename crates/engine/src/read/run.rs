//! One sorted run: many tables with disjoint ranges as one source.

use crate::cursor::Cursor;
use crate::error::Result;
use crate::key::{InternalKey, SeqNo};
use crate::slice::Slice;
use crate::sync::Arc;
use crate::table::{FillCache, TableCursor};
use crate::version::TableFile;

/// Walks the tables of a run, which it keeps alive, one after the other; opens a cursor on a table
/// only when it gets there.
#[derive(Debug)]
pub(crate) struct RunCursor {
    tables: Arc<[Arc<TableFile>]>,
    fill: FillCache,
    index: usize,
    current: Option<TableCursor>,
}

impl RunCursor {
    /// A cursor over tables in key order with disjoint ranges.
    pub(crate) fn new(tables: Arc<[Arc<TableFile>]>, fill: FillCache) -> RunCursor {
        RunCursor { tables, fill, index: 0, current: None }
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
        Some(self.current.get_or_insert_with(|| table.table().cursor(self.fill)))
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
        self.forward_from(0)
    }

    fn last(&mut self) -> Result<()> {
        self.backward_from(self.tables.len().checked_sub(1))
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let index = self.tables.partition_point(|table| table.shape().range.largest < user_key);
        let Some(cursor) = self.open(index) else { return Ok(()) };
        let moved = cursor.seek(user_key, seq);
        self.settle(moved)?;
        if self.valid() { Ok(()) } else { self.forward_from(index + 1) }
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
        if self.valid() { Ok(()) } else { self.backward_from(index.checked_sub(1)) }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some(cursor) = self.current.as_mut() else { return Ok(()) };
        let moved = cursor.next();
        self.settle(moved)?;
        if self.valid() { Ok(()) } else { self.forward_from(self.index + 1) }
    }

    fn prev(&mut self) -> Result<()> {
        let Some(cursor) = self.current.as_mut() else { return Ok(()) };
        let moved = cursor.prev();
        self.settle(moved)?;
        if self.valid() { Ok(()) } else { self.backward_from(self.index.checked_sub(1)) }
    }
}
