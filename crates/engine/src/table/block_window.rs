//! A part of a table that was read into memory at once.

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

/// Maximum bytes of a window, except for a longer block.
pub(super) const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Stored bytes of adjacent data blocks of one table.
#[derive(Debug, Default)]
pub(super) struct BlockWindow {
    buffer: Vec<u8>,
    /// Part of the buffer with bytes of the file.
    filled: Range<usize>,
    /// Offset of the filled part in the file.
    offset: u64,
    /// The cache that counts the buffer. Set with the first buffer.
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
    /// Returns the contents of a data block. If the block is not in the window, `fill` reads it and its neighbours.
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

    /// Returns the stored bytes of a block if they are in the window.
    fn stored_block(&self, handle: BlockHandle) -> Option<&[u8]> {
        let start = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(usize::try_from(handle.bytes).ok()?)?;
        self.buffer[self.filled.clone()].get(start..end)
    }

    /// Replaces the window by the bytes between two offsets, which `read` writes to memory. The address of the memory
    /// is a multiple of `alignment`, at least 1.
    pub(super) fn fill(
        &mut self,
        table: &Table,
        (start, end): (u64, u64),
        alignment: usize,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        // After a failed read the window is empty.
        self.filled = 0..0;
        let bytes = to_usize("read ahead", end - start)
            .map_err(|what| Error::malformed(what, table.path(), start))?;
        self.resize_buffer(table, bytes + (alignment - 1));
        // `align_offset` may fail, but does so only in constant evaluation. The read is then slower.
        let at = self.buffer.as_ptr().align_offset(alignment);
        let at = if at < alignment { at } else { 0 };
        read(&mut self.buffer[at..at + bytes])?;
        (self.offset, self.filled) = (start, at..at + bytes);
        Ok(())
    }

    /// Makes the buffer at least `bytes` long. A buffer for a longer block than a window is replaced by one of exactly
    /// this length.
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
