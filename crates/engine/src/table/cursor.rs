//! A cursor over one table, both ways.

use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::block::Handle;
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::index::IndexBlock;
use crate::table::access::Access;
use crate::table::read_ahead::ReadAhead;
use crate::table::reader::{FillCache, Table};

/// A cursor over the entries of one table. It holds on to the index block and the data block it is
/// in, so that going on asks no cache for them again.
#[derive(Debug)]
pub struct TableCursor {
    table: Arc<Table>,
    access: Access,
    ahead: ReadAhead,
    top: Option<Arc<IndexBlock>>,
    /// An index block with its ordinal.
    index: Option<(usize, Arc<IndexBlock>)>,
    /// The block the cursor is in, once it has been in one.
    current: Option<Current>,
}

/// Where a data block stands in the two-level index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Ordinal of its index block in the top index.
    top: usize,
    /// Its ordinal in that index block.
    block: usize,
}

#[derive(Debug)]
struct Current {
    place: Place,
    handle: Handle,
    entries: DataBlockCursor,
}

impl TableCursor {
    pub(crate) fn new(table: Arc<Table>, access: Access) -> TableCursor {
        let ahead = ReadAhead::default();
        TableCursor { table, access, ahead, top: None, index: None, current: None }
    }

    /// What a lookup that it was part of has met.
    pub(crate) fn into_access(self) -> Access {
        self.access
    }

    /// The table it walks over.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The top index, or `None` if the table has no entries.
    fn top(&mut self) -> Result<Option<Arc<IndexBlock>>> {
        if self.top.is_none() {
            self.top = self.table.top_index(&mut self.access)?;
        }
        Ok(self.top.clone())
    }

    /// The index block with this ordinal, which lies at `handle`.
    fn index(
        &mut self,
        top: &IndexBlock,
        ordinal: usize,
        handle: Handle,
    ) -> Result<Arc<IndexBlock>> {
        match &self.index {
            Some((held, index)) if *held == ordinal => Ok(index.clone()),
            _ => {
                let index = self.table.index_block(ordinal, top, handle, &mut self.access)?;
                self.index = Some((ordinal, index.clone()));
                Ok(index)
            }
        }
    }

    /// The first data block that can hold an entry at or after (`user_key`, `seq`).
    fn seek_block(&mut self, user_key: &[u8], seq: SeqNo) -> Result<Option<(Handle, Place)>> {
        let Some(top) = self.top()? else {
            return Ok(None);
        };
        let top_at = self.table.properties.top_index.map_or(0, |handle| handle.offset);
        let at = |what: Malformed| Error::malformed(what, self.table.path(), top_at);
        let Some((ordinal, handle)) = top.seek(user_key, seq).map_err(at)? else {
            return Ok(None);
        };
        let index = self.index(&top, ordinal, handle)?;
        let found = index
            .seek(user_key, seq)
            .map_err(|what| Error::malformed(what, self.table.path(), handle.offset))?;
        match found {
            Some((block, data)) => Ok(Some((data, Place { top: ordinal, block }))),
            None => Err(self.table.levels_disagree(handle)),
        }
    }

    /// The data block with this ordinal in an index block, or its last with `None`. There is none
    /// past the last of either.
    fn block_at(
        &mut self,
        ordinal: usize,
        block: Option<usize>,
    ) -> Result<Option<(Handle, Place)>> {
        let Some(top) = self.top()? else {
            return Ok(None);
        };
        let top_at = self.table.properties.top_index.map_or(0, |handle| handle.offset);
        let at = |what: Malformed| Error::malformed(what, self.table.path(), top_at);
        let Some(handle) = top.handle(ordinal).map_err(at)? else {
            return Ok(None);
        };
        let index = self.index(&top, ordinal, handle)?;
        // An index block has at least one entry.
        let block = block.unwrap_or(index.count() - 1);
        let data = index
            .handle(block)
            .map_err(|what| Error::malformed(what, self.table.path(), handle.offset))?;
        Ok(data.map(|data| (data, Place { top: ordinal, block })))
    }

    /// Goes into a block and moves there.
    fn enter(
        &mut self,
        (handle, place): (Handle, Place),
        go: impl FnOnce(&mut DataBlockCursor) -> Result<(), Malformed>,
    ) -> Result<()> {
        let at = |what: Malformed| Error::malformed(what, self.table.path(), handle.offset);
        // It may be in this block already, as when it seeks a near key.
        if self.current.as_ref().is_none_or(|current| current.handle != handle) {
            // Should the block not be readable, the cursor is in none.
            let before = self.current.take();
            let contents = match self.access.fill() {
                FillCache::Yes => self.table.data_block(handle, &mut self.access)?,
                FillCache::No | FillCache::Job | FillCache::Ahead | FillCache::Memory => {
                    self.ahead.block(&self.table, handle, &mut self.access)?
                }
            };
            let block = DataBlock::new(contents).map_err(at)?;
            let entries = match before {
                Some(Current { mut entries, .. }) => {
                    entries.reset(block);
                    entries
                }
                None => DataBlockCursor::new(block),
            };
            self.current = Some(Current { place, handle, entries });
        }
        match &mut self.current {
            Some(current) => {
                current.place = place;
                go(&mut current.entries).map_err(at)
            }
            None => Ok(()),
        }
    }

    fn invalidate(&mut self) {
        if let Some(current) = &mut self.current {
            current.entries.invalidate();
        }
    }

    /// Moves to the first entry of the block after `place`.
    fn enter_next(&mut self, place: Place) -> Result<()> {
        let mut next = self.block_at(place.top, Some(place.block + 1))?;
        if next.is_none() {
            next = self.block_at(place.top + 1, Some(0))?;
        }
        match next {
            Some(next) => self.enter(next, DataBlockCursor::first),
            None => {
                self.invalidate();
                Ok(())
            }
        }
    }

    /// Moves to the last entry of the block before `place`.
    fn enter_previous(&mut self, place: Place) -> Result<()> {
        let previous = match place {
            Place { top: 0, block: 0 } => None,
            Place { top, block: 0 } => self.block_at(top - 1, None)?,
            Place { top, block } => self.block_at(top, Some(block - 1))?,
        };
        match previous {
            Some(previous) => self.enter(previous, DataBlockCursor::last),
            None => {
                self.invalidate();
                Ok(())
            }
        }
    }

    /// Moves by `go` in the current block, and on to a neighbour by `leave` where that ends.
    fn step(
        &mut self,
        go: impl FnOnce(&mut DataBlockCursor) -> Result<(), Malformed>,
        leave: impl FnOnce(&mut Self, Place) -> Result<()>,
    ) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if !current.entries.valid() {
            return Ok(());
        }
        go(&mut current.entries)
            .map_err(|what| Error::malformed(what, self.table.path(), current.handle.offset))?;
        if current.entries.valid() {
            return Ok(());
        }
        let place = current.place;
        leave(self, place)
    }

    fn entries(&self) -> &DataBlockCursor {
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
        self.entries().value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.invalidate();
        match self.block_at(0, Some(0))? {
            Some(first) => self.enter(first, DataBlockCursor::first),
            None => Ok(()),
        }
    }

    fn last(&mut self) -> Result<()> {
        self.invalidate();
        let past = self.top()?.map_or(0, |top| top.count());
        self.enter_previous(Place { top: past, block: 0 })
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.invalidate();
        let Some((handle, place)) = self.seek_block(user_key, seq)? else {
            return Ok(());
        };
        self.enter((handle, place), |entries| entries.seek(user_key, seq))?;
        if self.valid() {
            return Ok(());
        }
        // All of the block is before the target, its separator is not: the next entry is it.
        self.enter_next(place)
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.invalidate();
        let Some((handle, place)) = self.seek_block(user_key, seq)? else {
            return self.last();
        };
        self.enter((handle, place), |entries| entries.seek_before(user_key, seq))?;
        if self.valid() {
            return Ok(());
        }
        self.enter_previous(place)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.step(DataBlockCursor::next, Self::enter_next)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.step(DataBlockCursor::prev, Self::enter_previous)
    }
}
