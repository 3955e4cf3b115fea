//! A cursor over one table, both ways.

use super::reader::{BlockPlace, FillCache, Table};
use crate::cursor::Cursor;
use crate::error::{Malformed, Result};
use crate::format::block::Handle;
use crate::format::data_block::DataBlock;
use crate::format::data_cursor::DataCursor;
use crate::key::{InternalKey, SeqNo};
use crate::slice::Slice;
use crate::sync::Arc;

/// A cursor over the entries of one table.
#[derive(Debug)]
pub struct TableCursor {
    table: Arc<Table>,
    fill: FillCache,
    /// The block the cursor is in, once it has been in one.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    place: BlockPlace,
    handle: Handle,
    entries: DataCursor,
}

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, fill: FillCache) -> TableCursor {
        TableCursor { table, fill, current: None }
    }

    /// The table it walks over.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Goes into a block and moves there.
    fn enter(
        &mut self,
        handle: Handle,
        place: BlockPlace,
        go: impl FnOnce(&mut DataCursor) -> Result<(), Malformed>,
    ) -> Result<()> {
        let table = &*self.table;
        let at = |what: Malformed| what.at(table.path(), handle.offset);
        match &mut self.current {
            // The block it is in already, as a seek to a near key finds it.
            Some(current) if current.handle == handle => {
                current.place = place;
                go(&mut current.entries).map_err(at)
            }
            current => {
                let block = table
                    .data_block(handle, self.fill)
                    .and_then(|contents| DataBlock::new(contents).map_err(at));
                let block = match block {
                    Ok(block) => block,
                    Err(error) => {
                        *current = None;
                        return Err(error);
                    }
                };
                let entries = match current.take() {
                    Some(mut before) => {
                        before.entries.reset(block);
                        before.entries
                    }
                    None => DataCursor::new(block),
                };
                let current = current.insert(Current { place, handle, entries });
                go(&mut current.entries).map_err(at)
            }
        }
    }

    fn invalidate(&mut self) {
        if let Some(current) = &mut self.current {
            current.entries.invalidate();
        }
    }

    /// Moves to the first entry of the block after `place`.
    fn enter_next(&mut self, place: BlockPlace) -> Result<()> {
        let mut next = BlockPlace { block: place.block + 1, ..place };
        let mut handle = self.table.block_at(next, self.fill)?;
        if handle.is_none() {
            next = BlockPlace { top: place.top + 1, block: 0 };
            handle = self.table.block_at(next, self.fill)?;
        }
        match handle {
            Some(handle) => self.enter(handle, next, DataCursor::first),
            None => {
                self.invalidate();
                Ok(())
            }
        }
    }

    /// Moves to the last entry of the block before `place`.
    fn enter_previous(&mut self, place: BlockPlace) -> Result<()> {
        let previous = match place {
            BlockPlace { top: 0, block: 0 } => None,
            BlockPlace { top, block: 0 } => {
                let count = self.table.blocks_of(top - 1, self.fill)?;
                count.map(|count| BlockPlace { top: top - 1, block: count.saturating_sub(1) })
            }
            BlockPlace { top, block } => Some(BlockPlace { top, block: block - 1 }),
        };
        let handle = match previous {
            Some(previous) => self.table.block_at(previous, self.fill)?.zip(Some(previous)),
            None => None,
        };
        match handle {
            Some((handle, previous)) => self.enter(handle, previous, DataCursor::last),
            None => {
                self.invalidate();
                Ok(())
            }
        }
    }

    /// Moves by `go` in the current block, and on to a neighbour by `leave` where that ends.
    fn step(
        &mut self,
        go: impl FnOnce(&mut DataCursor) -> Result<(), Malformed>,
        leave: impl FnOnce(&mut Self, BlockPlace) -> Result<()>,
    ) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if !current.entries.valid() {
            return Ok(());
        }
        go(&mut current.entries)
            .map_err(|what| what.at(self.table.path(), current.handle.offset))?;
        if current.entries.valid() {
            return Ok(());
        }
        let place = current.place;
        leave(self, place)
    }

    fn entries(&self) -> &DataCursor {
        match &self.current {
            Some(current) => &current.entries,
            None => panic!("a cursor that stands nowhere was asked for its entry"),
        }
    }
}

impl Cursor for TableCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.entries.valid())
    }

    #[inline]
    fn key(&self) -> InternalKey<'_> {
        self.entries().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.entries().value()
    }

    fn value_slice(&self) -> Slice {
        Slice::new(self.entries().value_bytes())
    }

    fn first(&mut self) -> Result<()> {
        self.invalidate();
        let first = BlockPlace { top: 0, block: 0 };
        match self.table.block_at(first, self.fill)? {
            Some(handle) => self.enter(handle, first, DataCursor::first),
            None => Ok(()),
        }
    }

    fn last(&mut self) -> Result<()> {
        self.invalidate();
        let past = self.table.index_blocks(self.fill)?;
        self.enter_previous(BlockPlace { top: past, block: 0 })
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.invalidate();
        let Some((handle, place)) = self.table.seek_block(user_key, seq, self.fill)? else {
            return Ok(());
        };
        self.enter(handle, place, |entries| entries.seek(user_key, seq))?;
        if self.valid() {
            return Ok(());
        }
        // All of the block is before the target, its separator is not: the next entry is it.
        self.enter_next(place)
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.invalidate();
        let Some((handle, place)) = self.table.seek_block(user_key, seq, self.fill)? else {
            return self.last();
        };
        self.enter(handle, place, |entries| entries.seek_before(user_key, seq))?;
        if self.valid() {
            return Ok(());
        }
        self.enter_previous(place)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.step(DataCursor::next, Self::enter_next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.step(DataCursor::prev, Self::enter_previous)
    }
}
