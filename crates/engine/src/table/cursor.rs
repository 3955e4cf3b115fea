//! Bidirectional cursor over the entries of a table.

use bytes::Bytes;
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::block::BlockHandle;
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::index::IndexBlock;
use crate::table::job_reads::JobReads;
use crate::table::read_ahead::{ANNOUNCED_BYTES_MAX, BlockReadAhead, ScanHints};
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::reader::Table;

/// Cursor over the entries of a table. The cursor holds its current index block and data block. A move inside these
/// blocks therefore does not access the cache.
#[derive(Debug)]
pub struct TableCursor {
    table: Arc<Table>,
    context: ReadContext,
    read_ahead: BlockReadAhead,
    /// Smallest and largest key of the scan, if they are known.
    bounds: [Option<Bytes>; 2],
    job_reads: JobReads,
    top: Option<Arc<IndexBlock>>,
    /// The index block that was used last, and its ordinal.
    index: Option<(usize, Arc<IndexBlock>)>,
    /// The data block that was used last.
    current: Option<CurrentBlock>,
    /// Cursor over an earlier data block. Its buffers are reused for the next data block.
    spare: Option<DataBlockCursor>,
}

/// Position of a data block in the two-level index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockPosition {
    /// Ordinal of the index block in the top index.
    index_block: usize,
    /// Ordinal of the data block in the index block.
    block: usize,
}

#[derive(Debug)]
struct CurrentBlock {
    position: BlockPosition,
    handle: BlockHandle,
    entries: DataBlockCursor,
}

impl TableCursor {
    /// Creates a cursor that is not positioned at an entry.
    #[must_use]
    pub fn new(table: &Arc<Table>, purpose: ReadPurpose) -> TableCursor {
        TableCursor::with_read_context(table, ReadContext::new(purpose))
    }

    /// Creates a cursor that is not positioned at an entry. The cursor counts its reads in `context`.
    pub(crate) fn with_read_context(table: &Arc<Table>, context: ReadContext) -> TableCursor {
        let (table, read_ahead) = (Arc::clone(table), BlockReadAhead::new(u64::MAX));
        let (bounds, job_reads, top, index, current, spare) = Default::default();
        TableCursor { table, context, read_ahead, bounds, job_reads, top, index, current, spare }
    }

    /// Limits the read-ahead to the blocks that a scan needs, and sets its read options.
    pub(crate) fn with_hints(mut self, hints: &ScanHints) -> TableCursor {
        let estimate = |entries| self.table.estimate_scan_bytes(entries);
        let scan_bytes = hints.entries.map_or(u64::MAX, estimate);
        self.read_ahead = BlockReadAhead::new(scan_bytes).with_options(hints);
        self.bounds = [hints.lower.clone(), hints.upper.clone()];
        self.context.set_deadline(hints.deadline.clone());
        self
    }

    /// Makes a scan leave the blocks that it reads out of the cache.
    pub(crate) fn bypassing_cache(mut self) -> TableCursor {
        self.read_ahead.bypass_cache();
        self
    }

    /// Makes the cursor reuse the buffers of a data block cursor.
    pub(crate) fn with_spare(self, spare: Option<DataBlockCursor>) -> TableCursor {
        TableCursor { spare, ..self }
    }

    /// Returns a data block cursor whose buffers can be reused.
    pub(crate) fn into_spare(self) -> Option<DataBlockCursor> {
        self.current.map(|current| current.entries).or(self.spare)
    }

    /// Prefetches the data blocks that a seek to (`user_key`, `seq`) and the following moves need. Does nothing if the
    /// first of these blocks is in memory. Reads metadata blocks that are not in memory.
    ///
    /// # Errors
    /// Fails if a metadata block cannot be read. The seek returns the same error.
    pub(crate) fn announce_seek(
        &mut self,
        user_key: &[u8],
        seq: SeqNo,
        hints: &ScanHints,
        backward: bool,
    ) -> Result<()> {
        let found = match self.find_block(user_key, seq)? {
            None if backward => self.last_block()?,
            found => found,
        };
        let Some((handle, _)) = found else { return Ok(()) };
        if self.table.is_data_block_resident(handle) {
            return Ok(());
        }
        let bytes_max = hints.read_ahead_bytes_max.unwrap_or(u64::MAX).min(ANNOUNCED_BYTES_MAX);
        let bytes = self.table.estimate_scan_bytes(hints.entries.unwrap_or(1));
        let bytes = bytes.min(bytes_max).max(handle.bytes);
        let end = handle.offset.saturating_add(handle.bytes);
        let (start, end) = match backward {
            true => (end.saturating_sub(bytes), end),
            false => {
                let data_end = self.table.properties().data_bytes;
                (handle.offset, handle.offset.saturating_add(bytes).min(data_end).max(end))
            }
        };
        self.table.will_need(BlockHandle { offset: start, bytes: end - start }).map(drop)
    }

    /// Returns the range of file offsets of the data blocks that the scan needs. Fails if this requires a read from the
    /// file.
    fn scan_limits(&mut self) -> Result<(u64, u64)> {
        // Only cached index blocks are used, because a scan that ends early does not need the index blocks of its
        // bounds.
        let memory_only = ReadContext::new(ReadPurpose::MemoryOnly);
        let context = std::mem::replace(&mut self.context, memory_only);
        let bounds = self.bounds.clone();
        let mut find = |key: &Option<Bytes>, seq| match key {
            Some(key) => self.find_block(key, seq),
            None => Ok(None),
        };
        let (first, last) = (find(&bounds[0], SeqNo::MAX), find(&bounds[1], SeqNo::ZERO));
        self.context = context;
        let end = |handle: BlockHandle| handle.offset.saturating_add(handle.bytes);
        Ok((
            first?.map_or(0, |(handle, _)| handle.offset),
            last?.map_or(u64::MAX, |(handle, _)| end(handle)),
        ))
    }

    /// Returns the offset of the data block with the current entry, in bytes.
    pub(crate) fn block_offset(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.handle.offset)
    }

    /// Returns the context with the counts of all reads.
    pub(crate) fn into_context(self) -> ReadContext {
        self.context
    }

    /// Returns the top index, or `None` if the table has no entries.
    fn top_index(&mut self) -> Result<Option<Arc<IndexBlock>>> {
        if self.top.is_none() {
            self.top = self.table.top_index(&mut self.context)?;
        }
        Ok(self.top.clone())
    }

    fn index_block(
        &mut self,
        top: &IndexBlock,
        ordinal: usize,
        handle: BlockHandle,
    ) -> Result<Arc<IndexBlock>> {
        match &self.index {
            Some((held, index)) if *held == ordinal => Ok(index.clone()),
            _ => {
                let index = self.table.index_block(ordinal, top, handle, &mut self.context)?;
                self.index = Some((ordinal, index.clone()));
                Ok(index)
            }
        }
    }

    /// Returns the first data block that can contain an entry at or after (`user_key`, `seq`).
    fn find_block(
        &mut self,
        user_key: &[u8],
        seq: SeqNo,
    ) -> Result<Option<(BlockHandle, BlockPosition)>> {
        let Some(top) = self.top_index()? else {
            return Ok(None);
        };
        let at = |what: Malformed| self.top_index_error(what);
        let Some((ordinal, handle)) = top.seek(user_key, seq).map_err(at)? else {
            return Ok(None);
        };
        let index = self.index_block(&top, ordinal, handle)?;
        let found = index
            .seek(user_key, seq)
            .map_err(|what| Error::malformed(what, self.table.path(), handle.offset))?;
        match found {
            Some((block, data)) => Ok(Some((data, BlockPosition { index_block: ordinal, block }))),
            None => Err(self.table.index_order_error(handle)),
        }
    }

    /// Returns a data block of an index block. `block` is the ordinal of the data block, or `None` for the last one.
    /// Returns `None` if the index block or the data block does not exist.
    fn block_at(
        &mut self,
        index_block: usize,
        block: Option<usize>,
    ) -> Result<Option<(BlockHandle, BlockPosition)>> {
        let Some(top) = self.top_index()? else {
            return Ok(None);
        };
        let at = |what: Malformed| self.top_index_error(what);
        let Some(handle) = top.handle(index_block).map_err(at)? else {
            return Ok(None);
        };
        let index = self.index_block(&top, index_block, handle)?;
        // An index block contains at least one data block.
        let block = block.unwrap_or(index.count() - 1);
        let data = index
            .handle(block)
            .map_err(|what| Error::malformed(what, self.table.path(), handle.offset))?;
        Ok(data.map(|data| (data, BlockPosition { index_block, block })))
    }

    fn last_block(&mut self) -> Result<Option<(BlockHandle, BlockPosition)>> {
        let index_blocks = self.top_index()?.map_or(0, |top| top.count());
        index_blocks.checked_sub(1).map_or(Ok(None), |last| self.block_at(last, None))
    }

    #[cold]
    fn top_index_error(&self, what: Malformed) -> crate::error::Error {
        let offset = self.table.properties().top_index.map_or(0, |handle| handle.offset);
        Error::malformed(what, self.table.path(), offset)
    }

    /// Makes a data block the current one, and calls `position_entries` with its cursor.
    fn enter_block(
        &mut self,
        (handle, position): (BlockHandle, BlockPosition),
        position_entries: impl FnOnce(&mut DataBlockCursor) -> Result<(), Malformed>,
    ) -> Result<()> {
        if self.bounds.iter().any(Option::is_some)
            && self.read_ahead.lacks_limits()
            && let Ok(limits) = self.scan_limits()
        {
            self.read_ahead.set_limits(limits);
        }
        let at = |what: Malformed| Error::malformed(what, self.table.path(), handle.offset);
        // A seek to a near key often stays in the current block.
        if self.current.as_ref().is_none_or(|current| current.handle != handle) {
            // If the read fails, the cursor has no current block.
            if let Some(previous) = self.current.take() {
                self.spare = Some(previous.entries);
            }
            let contents = match self.context.purpose() {
                ReadPurpose::Lookup => self.table.data_block(handle, &mut self.context)?,
                ReadPurpose::Job => {
                    self.job_reads.read_block(&self.table, handle, &mut self.context)?
                }
                _ => self.read_ahead.read_block(&self.table, handle, &mut self.context)?,
            };
            let block = DataBlock::new(contents).map_err(at)?;
            let entries = match self.spare.take() {
                Some(mut entries) => {
                    entries.reset(block);
                    entries
                }
                None => DataBlockCursor::new(block),
            };
            self.current = Some(CurrentBlock { position, handle, entries });
        }
        match &mut self.current {
            Some(current) => {
                current.position = position;
                position_entries(&mut current.entries).map_err(at)
            }
            None => Ok(()),
        }
    }

    fn invalidate(&mut self) {
        if let Some(current) = &mut self.current {
            current.entries.invalidate();
        }
    }

    /// Moves to the first entry of the data block after `position`.
    fn enter_next_block(&mut self, position: BlockPosition) -> Result<()> {
        let BlockPosition { index_block, block } = position;
        let mut next = self.block_at(index_block, Some(block + 1))?;
        if next.is_none() {
            next = self.block_at(index_block + 1, Some(0))?;
        }
        match next {
            Some(next) => self.enter_block(next, DataBlockCursor::first),
            None => {
                self.invalidate();
                Ok(())
            }
        }
    }

    /// Moves to the last entry of the data block before `position`.
    fn enter_previous_block(&mut self, position: BlockPosition) -> Result<()> {
        let previous = match position {
            BlockPosition { index_block: 0, block: 0 } => None,
            BlockPosition { index_block, block: 0 } => self.block_at(index_block - 1, None)?,
            BlockPosition { index_block, block } => self.block_at(index_block, Some(block - 1))?,
        };
        match previous {
            Some(previous) => self.enter_block(previous, DataBlockCursor::last),
            None => {
                self.invalidate();
                Ok(())
            }
        }
    }

    /// Moves inside the current block with `step_entry`. At the end of the block, moves to a neighbouring block with
    /// `leave_block`.
    fn step_to_neighbour(
        &mut self,
        step_entry: impl FnOnce(&mut DataBlockCursor) -> Result<(), Malformed>,
        leave_block: impl FnOnce(&mut Self, BlockPosition) -> Result<()>,
    ) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if !current.entries.valid() {
            return Ok(());
        }
        step_entry(&mut current.entries)
            .map_err(|what| Error::malformed(what, self.table.path(), current.handle.offset))?;
        if current.entries.valid() {
            return Ok(());
        }
        let position = current.position;
        leave_block(self, position)
    }

    fn current_entries(&self) -> &DataBlockCursor {
        match &self.current {
            Some(current) => &current.entries,
            None => panic!("the cursor has no current entry"),
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
        let key = self.current_entries().key();
        match self.table.ingest_seq() {
            None => key,
            Some(seq) => InternalKey { seq, ..key },
        }
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current_entries().value()
    }

    fn value_slice(&self) -> Slice {
        self.current_entries().value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.invalidate();
        match self.block_at(0, Some(0))? {
            Some(first) => self.enter_block(first, DataBlockCursor::first),
            None => Ok(()),
        }
    }

    fn last(&mut self) -> Result<()> {
        self.invalidate();
        match self.last_block()? {
            Some(last) => self.enter_block(last, DataBlockCursor::last),
            None => Ok(()),
        }
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        if self.table.is_invisible_at(seq) {
            // The table was ingested after `seq`, so its only entry of this key is before the target.
            self.seek_in_file(user_key, SeqNo::ZERO)?;
            return if self.is_at_key(user_key) { self.next() } else { Ok(()) };
        }
        self.seek_in_file(user_key, seq)
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        if self.table.is_invisible_at(seq) {
            self.seek_in_file(user_key, SeqNo::ZERO)?;
            if self.is_at_key(user_key) {
                return Ok(());
            }
            return self.seek_before_in_file(user_key, SeqNo::ZERO);
        }
        match self.table.ingest_seq() {
            // The only entry of this key has the sequence number 0 in the file. It is at or after the target.
            Some(_) => self.seek_before_in_file(user_key, SeqNo::MAX),
            None => self.seek_before_in_file(user_key, seq),
        }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        self.step_to_neighbour(DataBlockCursor::next, Self::enter_next_block)
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        self.step_to_neighbour(DataBlockCursor::prev, Self::enter_previous_block)
    }
}

/// Seeks that use the sequence numbers in the file. In an external table, these are 0.
impl TableCursor {
    fn is_at_key(&self, user_key: &[u8]) -> bool {
        self.valid() && self.current_entries().key().user_key == user_key
    }

    fn seek_in_file(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.invalidate();
        let Some((handle, position)) = self.find_block(user_key, seq)? else {
            return Ok(());
        };
        self.enter_block((handle, position), |entries| entries.seek(user_key, seq))?;
        if self.valid() {
            return Ok(());
        }
        // The target is between the last entry of the block and the separator after the block.
        self.enter_next_block(position)
    }

    fn seek_before_in_file(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.invalidate();
        let Some((handle, position)) = self.find_block(user_key, seq)? else {
            return self.last();
        };
        self.enter_block((handle, position), |entries| entries.seek_before(user_key, seq))?;
        if self.valid() {
            return Ok(());
        }
        self.enter_previous_block(position)
    }
}
