//! Block window: adjacent data blocks of a table that were fetched with one read.

use std::ops::Range;

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::format::block::BlockHandle;
use crate::table::fd_cache::ReadSource;
use crate::table::read_context::ReadPurpose;
use crate::table::reader::Table;

/// Maximum size of a window in bytes. A longer block is read with a single read.
pub(super) const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Stored bytes of adjacent data blocks of a table.
#[derive(Debug, Default)]
pub(super) struct BlockWindow {
    buffer: Vec<u8>,
    /// Range of the buffer that contains bytes of the file.
    filled: Range<usize>,
    /// File offset of the first of these bytes.
    offset: u64,
    /// The cache that counts the memory of the buffer. Set when the buffer is allocated.
    counted_by: Option<Arc<BlockCache>>,
}

impl Drop for BlockWindow {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted_by {
            cache.sub_read_ahead_bytes(len_u64(self.buffer.len()));
        }
    }
}

impl BlockWindow {
    /// Returns the contents of a data block. If the window does not contain the block, calls `fill`, which must read
    /// the block into the window.
    pub(super) fn read_block(
        &mut self,
        table: &Table,
        handle: BlockHandle,
        purpose: ReadPurpose,
        mut fill: impl FnMut(&mut BlockWindow) -> Result<()>,
    ) -> Result<BlockBytes> {
        let at = |what: Malformed| Error::malformed(what, table.path(), handle.offset);
        handle.check_bounds(table.identity().bytes).map_err(at)?;
        table.file.read_with_retry(purpose, |source| {
            if source == ReadSource::Device {
                let stored = table.file.read_exact_from(source, handle.offset, handle.bytes)?;
                return table.decode_data_block(&stored, handle, purpose);
            }
            if self.stored_block(handle).is_none() {
                fill(self)?;
            }
            let Some(stored) = self.stored_block(handle) else {
                let what = "block read ahead";
                return Err(at(Malformed::Truncated { what, needed: handle.bytes, found: 0 }));
            };
            table.decode_data_block(stored, handle, purpose)
        })
    }

    /// Returns the stored bytes of a block if the window contains the block.
    fn stored_block(&self, handle: BlockHandle) -> Option<&[u8]> {
        let start = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(usize::try_from(handle.bytes).ok()?)?;
        self.buffer[self.filled.clone()].get(start..end)
    }

    /// Replaces the contents of the window by the bytes between two file offsets. `read` writes these bytes to a buffer
    /// whose address is a multiple of `alignment`. `alignment` must be at least 1.
    pub(super) fn fill(
        &mut self,
        table: &Table,
        (start, end): (u64, u64),
        alignment: usize,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        // If the read fails, the window is empty.
        self.filled = 0..0;
        let bytes = to_usize("read ahead", end - start)
            .map_err(|what| Error::malformed(what, table.path(), start))?;
        self.resize_buffer(table, bytes + (alignment - 1));
        // `align_offset` can fail only during constant evaluation. If it failed here, the read would only be slower.
        let at = self.buffer.as_ptr().align_offset(alignment);
        let at = if at < alignment { at } else { 0 };
        read(&mut self.buffer[at..at + bytes])?;
        (self.offset, self.filled) = (start, at..at + bytes);
        Ok(())
    }

    /// Makes the buffer at least `bytes` long. A buffer that was allocated for a very long block is replaced by a
    /// buffer with exactly this length.
    fn resize_buffer(&mut self, table: &Table, bytes: usize) {
        let is_usual = len_u64(self.buffer.len()) < 2 * WINDOW_BYTES_MAX;
        if self.buffer.len() >= bytes && is_usual {
            return;
        }
        let cache = self.counted_by.get_or_insert_with(|| table.cache().clone());
        cache.sub_read_ahead_bytes(len_u64(self.buffer.len()));
        cache.add_read_ahead_bytes(len_u64(bytes));
        self.buffer = vec![0; bytes];
    }
}
