//! Reads more than one block at a time for cursors that walk on.
//!
//! The first block is read alone: a cursor may have come for one entry. Each further read that goes
//! on where the last one ended, in either direction, takes twice as much.

use bytes::Bytes;

use super::reader::{FillCache, Table};
use crate::cache::Cache;
use crate::coding::{len_u64, to_usize};
use crate::error::Result;
use crate::format::BlockKind;
use crate::format::block::Handle;
use crate::sync::Arc;

/// Bytes of the first read ahead.
const FIRST_BYTES: u64 = 16 << 10;

/// Most bytes read ahead.
const BYTES_MAX: u64 = 256 << 10;

/// Bytes of the data part of one table that were read and not yet used up.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    offset: u64,
    window: Vec<u8>,
    /// Where the block asked for last lies.
    last: Option<Handle>,
    /// Bytes of the next read ahead.
    next_bytes: u64,
    /// Where the window is counted, once there was one.
    counted: Option<Arc<Cache>>,
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted {
            cache.read_ahead_freed(len_u64(self.window.len()));
        }
    }
}

impl ReadAhead {
    /// The contents of a data block: from the cache, from what was read ahead, or from the file.
    pub(super) fn block(
        &mut self,
        table: &Table,
        handle: Handle,
        fill: FillCache,
    ) -> Result<Bytes> {
        let last = self.last.replace(handle);
        if let Some(block) = table.peek_data_block(handle, fill) {
            return Ok(block);
        }
        handle.check(table.identity.bytes).map_err(|what| what.at(&table.path, handle.offset))?;
        let stored = match self.taken(handle) {
            Some(stored) => stored,
            None => self.read(table, handle, last, fill)?,
        };
        table.open_block(stored, handle, BlockKind::Data, fill)
    }

    /// The block's bytes, if they were read ahead.
    fn taken(&self, handle: Handle) -> Option<Vec<u8>> {
        let at = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let end = at.checked_add(usize::try_from(handle.bytes).ok()?)?;
        Some(self.window.get(at..end)?.to_vec())
    }

    /// Holds other bytes, and has them counted.
    fn set_window(&mut self, table: &Table, window: Vec<u8>) {
        let cache = self.counted.get_or_insert_with(|| table.cache().clone());
        cache.read_ahead_freed(len_u64(self.window.len()));
        cache.read_ahead_grown(len_u64(window.len()));
        self.window = window;
    }

    /// Reads the block, and what comes next if it goes on from the last one.
    fn read(
        &mut self,
        table: &Table,
        handle: Handle,
        last: Option<Handle>,
        fill: FillCache,
    ) -> Result<Vec<u8>> {
        let from_file = |offset, bytes| match fill {
            FillCache::Job => table.file.read_for_job(offset, bytes),
            FillCache::Yes | FillCache::No => table.file.read_exact(offset, bytes),
        };
        // Handles were checked, so these sums are within the file.
        let end = handle.offset + handle.bytes;
        let onward = last.is_some_and(|last| last.offset + last.bytes == handle.offset);
        let backward = last.is_some_and(|last| end == last.offset);
        if !onward && !backward {
            self.next_bytes = FIRST_BYTES;
            return from_file(handle.offset, handle.bytes);
        }
        let bytes = self.next_bytes.max(handle.bytes);
        self.next_bytes = (self.next_bytes * 2).min(BYTES_MAX);
        let data_end = table.properties.data_bytes.min(table.identity.bytes).max(end);
        let (from, to) = if onward {
            (handle.offset, data_end.min(handle.offset + bytes))
        } else {
            (end.saturating_sub(bytes), end)
        };
        // Nothing of the old window is left if this read fails.
        self.set_window(table, Vec::new());
        let window = from_file(from, to - from)?;
        self.set_window(table, window);
        self.offset = from;
        let at = to_usize("block", handle.offset - from)
            .map_err(|what| what.at(&table.path, handle.offset))?;
        let stop = at
            + to_usize("block", handle.bytes)
                .map_err(|what| what.at(&table.path, handle.offset))?;
        debug_assert!(len_u64(self.window.len()) == to - from && stop <= self.window.len());
        Ok(self.window[at..stop].to_vec())
    }
}
