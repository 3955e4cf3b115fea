//! Reads of data blocks by background jobs.
//!
//! A job reads the blocks of a table in order, so a read covers the following blocks, too. If the data of jobs does not
//! stay in the page cache, the reads bypass it: they neither evict pages that lookups use nor drop them.

use std::ops::Range;

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::format::block::BlockHandle;
use crate::table::fd_cache::{JobFile, ReadSource};
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::reader::Table;

/// Bytes of one read, at most as many as the data blocks have.
const READ_BYTES: u64 = 256 << 10;

/// Offsets and memory addresses of reads are multiples of this, so that direct reads need no copy.
const ALIGNMENT: u64 = 4096;

/// Bytes of one table's data blocks that a job has read.
#[derive(Debug, Default)]
pub(super) struct JobReads {
    /// Opened by the first read.
    file: Option<JobFile>,
    buffer: Vec<u8>,
    /// Part of the buffer with bytes of the file.
    window: Range<usize>,
    /// Offset of the window in the file.
    offset: u64,
    /// The cache that counts the buffer. Set with the first buffer.
    counted_by: Option<Arc<BlockCache>>,
}

impl Drop for JobReads {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted_by {
            cache.sub_read_ahead_bytes(len_u64(self.buffer.len()));
        }
    }
}

impl JobReads {
    /// Returns the contents of a data block from the cache, the last read or the file.
    pub(super) fn read_block(
        &mut self,
        table: &Table,
        handle: BlockHandle,
        context: &mut ReadContext,
    ) -> Result<BlockBytes> {
        if let Some(block) = table.peek_data_block(handle, context) {
            return Ok(block);
        }
        let at = |what: Malformed| Error::malformed(what, table.path(), handle.offset);
        handle.check_bounds(table.identity().bytes).map_err(at)?;
        table.file.read_with_retry(ReadPurpose::Job, |source| {
            if source == ReadSource::Device {
                let stored = table.file.read_exact_from(source, handle.offset, handle.bytes)?;
                return table.decode_data_block(&stored, handle, ReadPurpose::Job);
            }
            if self.stored_block(handle).is_none() {
                self.fill_window(table, handle)?;
            }
            let Some(stored) = self.stored_block(handle) else {
                let what = "block read ahead";
                return Err(at(Malformed::Truncated { what, needed: handle.bytes, found: 0 }));
            };
            table.decode_data_block(stored, handle, ReadPurpose::Job)
        })
    }

    /// Returns the stored bytes of a block if they are in the window.
    fn stored_block(&self, handle: BlockHandle) -> Option<&[u8]> {
        let start = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(usize::try_from(handle.bytes).ok()?)?;
        self.buffer[self.window.clone()].get(start..end)
    }

    /// Reads a block, whose handle was checked, and the following blocks.
    fn fill_window(&mut self, table: &Table, handle: BlockHandle) -> Result<()> {
        // After a failed read the window is empty.
        self.window = 0..0;
        let start = handle.offset - handle.offset % ALIGNMENT;
        let data_bytes = table.properties().data_bytes.min(table.identity().bytes);
        let end = data_bytes.min(start + READ_BYTES).max(handle.offset + handle.bytes);
        let bytes = to_usize("data blocks", end - start)
            .map_err(|what| Error::malformed(what, table.path(), handle.offset))?;
        self.grow_buffer(table, bytes);
        let alignment = usize::try_from(ALIGNMENT).unwrap_or(1);
        // `align_offset` may fail, but does so only in constant evaluation. The read is then slower.
        let at = self.buffer.as_ptr().align_offset(alignment);
        let at = if at < alignment { at } else { 0 };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(table.file.open_for_job()?),
        };
        table.file.read_for_job(file, start, &mut self.buffer[at..at + bytes])?;
        (self.offset, self.window) = (start, at..at + bytes);
        Ok(())
    }

    /// Makes the buffer long enough for an aligned read of `bytes` bytes.
    fn grow_buffer(&mut self, table: &Table, bytes: usize) {
        let needed = bytes + usize::try_from(ALIGNMENT).unwrap_or(0);
        if self.buffer.len() >= needed {
            return;
        }
        let cache = self.counted_by.get_or_insert_with(|| table.cache().clone());
        cache.sub_read_ahead_bytes(len_u64(self.buffer.len()));
        cache.add_read_ahead_bytes(len_u64(needed));
        self.buffer = vec![0; needed];
    }
}
