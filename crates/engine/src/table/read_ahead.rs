//! Reads more than one block at a time for cursors that walk on.
//!
//! What a search leads to is read alone and stays in the cache, as for a lookup, and so is the block
//! after it, for short ranges that happen to begin at the end of one. A cursor that goes on from
//! there, in either direction, is a scan: each further read takes twice as much, and none stays.

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::format::block::Handle;
use crate::table::access::Access;
use crate::table::descriptors::Source;
use crate::table::reader::{FillCache, Table};

/// Bytes of the first read ahead.
const FIRST_BYTES: u64 = 16 << 10;

/// Most bytes read ahead.
const BYTES_MAX: u64 = 256 << 10;

/// Blocks from a search on before a reader's walk counts as a scan.
const SEARCH_BLOCKS: u32 = 2;

/// Bytes of the data part of one table that were read and not yet used up.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Where the window begins in the file.
    offset: u64,
    /// Keeps its memory; the first `held` bytes are the window.
    buffer: Vec<u8>,
    held: usize,
    /// Where the block asked for last lies.
    last: Option<Handle>,
    /// Neighbours asked for one after the other since the last search.
    walked: u32,
    /// Bytes of the next read ahead.
    next_bytes: u64,
    /// Where the window is counted, once there was one.
    counted: Option<Arc<BlockCache>>,
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted {
            cache.sub_read_ahead_bytes(len_u64(self.buffer.len()));
        }
    }
}

impl ReadAhead {
    /// The contents of a data block: from the cache, from what was read ahead, or from the file.
    pub(crate) fn block(
        &mut self,
        table: &Table,
        handle: Handle,
        access: &mut Access,
    ) -> Result<BlockBytes> {
        // Offsets that were not checked yet may be anything.
        let follows = |a: Handle, b: Handle| a.offset.checked_add(a.bytes) == Some(b.offset);
        let last = self.last.replace(handle);
        let onward = last.is_some_and(|last| follows(last, handle));
        let backward = last.is_some_and(|last| follows(handle, last));
        if onward || backward {
            self.walked = self.walked.saturating_add(1);
        } else {
            self.walked = 0;
            self.next_bytes = FIRST_BYTES;
        }
        if self.walked < SEARCH_BLOCKS {
            match access.fill() {
                FillCache::No => return table.data_block(handle, &mut Access::of(FillCache::Yes)),
                FillCache::Memory => return table.data_block(handle, access),
                FillCache::Yes | FillCache::Job | FillCache::Ahead => {}
            }
        }
        if let Some(block) = table.peek_data_block(handle, access) {
            return Ok(block);
        }
        let fill = access.may_read(handle)?;
        let at = |what: Malformed| Error::malformed(what, &table.path, handle.offset);
        handle.check(table.identity.bytes).map_err(at)?;
        table.file.reading(fill, |source| {
            if source == Source::Device {
                let stored = table.file.read_exact_from(source, handle.offset, handle.bytes)?;
                return table.open_data_block(&stored, handle, fill);
            }
            if self.window(handle).is_none() {
                self.read(table, handle, (onward, backward), fill)?;
            }
            let Some(stored) = self.window(handle) else {
                let what = "block read ahead";
                return Err(at(Malformed::Truncated { what, needed: handle.bytes, found: 0 }));
            };
            table.open_data_block(stored, handle, fill)
        })
    }

    /// The block's bytes, if they were read ahead.
    fn window(&self, handle: Handle) -> Option<&[u8]> {
        let at = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let end = at.checked_add(usize::try_from(handle.bytes).ok()?)?;
        self.buffer[..self.held].get(at..end)
    }

    /// Takes memory for a window of so many bytes, and has it counted.
    fn make_room(&mut self, table: &Table, bytes: usize) {
        if self.buffer.len() >= bytes && len_u64(self.buffer.len()) <= BYTES_MAX {
            return;
        }
        let cache = self.counted.get_or_insert_with(|| table.cache().clone());
        cache.sub_read_ahead_bytes(len_u64(self.buffer.len()));
        cache.add_read_ahead_bytes(len_u64(bytes));
        self.buffer = vec![0; bytes];
    }

    /// Reads the block, and what comes next if it goes on from the last one. The handle was
    /// checked.
    fn read(
        &mut self,
        table: &Table,
        handle: Handle,
        (onward, backward): (bool, bool),
        fill: FillCache,
    ) -> Result<()> {
        // Nothing of the old window is left if this read fails.
        self.held = 0;
        let end = handle.offset + handle.bytes;
        let (from, to) = if !onward && !backward {
            (handle.offset, end)
        } else {
            let bytes = self.next_bytes.max(handle.bytes);
            self.next_bytes = (self.next_bytes * 2).min(BYTES_MAX);
            let data_end = table.properties.data_bytes.min(table.identity.bytes).max(end);
            match onward {
                true => (handle.offset, data_end.min(handle.offset + bytes)),
                false => (end.saturating_sub(bytes), end),
            }
        };
        let bytes = to_usize("read ahead", to - from)
            .map_err(|what| Error::malformed(what, &table.path, handle.offset))?;
        self.make_room(table, bytes);
        let window = &mut self.buffer[..bytes];
        match fill {
            FillCache::Job => table.file.fill_for_job(from, window)?,
            FillCache::Yes | FillCache::No | FillCache::Ahead | FillCache::Memory => {
                table.file.fill(from, window)?;
            }
        }
        (self.offset, self.held) = (from, bytes);
        Ok(())
    }
}
