//! Read-ahead of data blocks for cursors.
//!
//! 1. The first two data blocks after a seek are read one at a time. Both are added to the cache, as by a point lookup.
//! 2. If a cursor moves on to further adjacent blocks, in either direction, it is considered a scan. Each further read
//!    is twice as long as the previous one, and its blocks are not added to the cache. After a read of at least 64 KiB,
//!    the cursor prefetches the range of the next read, so that the device reads while the cursor decodes.
//! 3. [`ScanHints`] limit the read-ahead to the blocks that the scan needs. If a scan reads more than expected, its
//!    expected size is doubled.

use bytes::Bytes;
use lsmx_base::slice::BlockBytes;
use lsmx_base::sync::Arc;

use crate::error::Result;
use crate::format::block::BlockHandle;
use crate::table::block_window::{BlockWindow, WINDOW_BYTES_MAX};
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::read_deadline::ReadDeadline;
use crate::table::reader::Table;

/// Size of the first read-ahead in bytes.
const READ_BYTES_FIRST: u64 = 16 << 10;

/// Minimum size in bytes of a read after which the range of the next read is prefetched. A scan with shorter reads
/// often ends before the next read.
const ANNOUNCED_WINDOW_BYTES_MIN: u64 = 64 << 10;

/// Maximum number of bytes that a seek prefetches.
pub(super) const ANNOUNCED_BYTES_MAX: u64 = 128 << 10;

/// Number of adjacent blocks that a cursor must read after a seek to be considered a scan.
const SCAN_BLOCKS_MIN: u32 = 2;

/// Known bounds of a scan over a sorted run, and the read options of the scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanHints {
    /// Expected number of entries after the seek.
    pub(crate) entries: Option<u64>,
    /// Smallest key of a backward scan.
    pub(crate) lower: Option<Bytes>,
    /// Largest key of a forward scan.
    pub(crate) upper: Option<Bytes>,
    /// Maximum size of a read-ahead in bytes. `None` stands for [`WINDOW_BYTES_MAX`].
    pub(crate) read_ahead_bytes_max: Option<u64>,
    /// True if the first two blocks after a seek are not added to the cache. Further blocks never are.
    pub(crate) bypasses_cache: bool,
    /// Deadline of each call that moves the iterator.
    pub(crate) deadline: Option<Arc<ReadDeadline>>,
}

/// Data blocks of a table that were read ahead.
#[derive(Debug)]
pub(super) struct BlockReadAhead {
    window: BlockWindow,
    /// The block that was requested last.
    last_block: Option<BlockHandle>,
    /// Number of adjacent blocks that were requested since the last seek.
    adjacent_blocks: u32,
    /// Size of the next read-ahead in bytes.
    next_bytes: u64,
    /// Expected size in bytes of all data blocks that a scan reads, including the block to which it seeks.
    scan_bytes: u64,
    /// Size in bytes of the data blocks that the scan has left since the seek.
    passed_bytes: u64,
    /// Expected size in bytes of the data blocks that the scan still reads, including the last requested block.
    remaining_bytes: u64,
    /// Range of file offsets of the data blocks that the scan needs. `None` if it is unknown.
    limits: Option<(u64, u64)>,
    /// Maximum size of a read-ahead in bytes. A longer block is read with a single read.
    window_bytes_max: u64,
    /// True if the first two blocks after a seek are not added to the cache.
    bypasses_cache: bool,
}

/// Direction in which a cursor moves from one block to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadDirection {
    Forward,
    Backward,
}

impl BlockReadAhead {
    /// Creates a read-ahead for scans that read about `scan_bytes` bytes of data blocks after a seek.
    pub(super) fn new(scan_bytes: u64) -> BlockReadAhead {
        BlockReadAhead {
            window: BlockWindow::default(),
            last_block: None,
            adjacent_blocks: 0,
            next_bytes: 0,
            scan_bytes,
            passed_bytes: 0,
            remaining_bytes: scan_bytes,
            limits: None,
            window_bytes_max: WINDOW_BYTES_MAX,
            bypasses_cache: false,
        }
    }

    /// Applies the read options of a scan.
    pub(super) fn with_options(self, hints: &ScanHints) -> BlockReadAhead {
        let bytes_max = hints.read_ahead_bytes_max.unwrap_or(WINDOW_BYTES_MAX);
        let window_bytes_max = bytes_max.min(WINDOW_BYTES_MAX);
        BlockReadAhead { window_bytes_max, bypasses_cache: hints.bypasses_cache, ..self }
    }

    /// Keeps the blocks that a scan reads out of the cache.
    pub(super) fn bypass_cache(&mut self) {
        self.bypasses_cache = true;
    }

    /// Returns true if the next block may be read ahead and the limits of the scan are not set yet.
    pub(super) fn lacks_limits(&self) -> bool {
        self.limits.is_none() && self.adjacent_blocks + 1 >= SCAN_BLOCKS_MIN
    }

    /// Sets the range of file offsets of the data blocks that the scan needs.
    pub(super) fn set_limits(&mut self, limits: (u64, u64)) {
        self.limits = Some(limits);
    }

    /// Returns the contents of a data block from the cache, from the last read-ahead, or from the file.
    pub(super) fn read_block(
        &mut self,
        table: &Table,
        handle: BlockHandle,
        context: &mut ReadContext,
    ) -> Result<BlockBytes> {
        let direction = self.record_block_access(handle);
        if self.adjacent_blocks < SCAN_BLOCKS_MIN {
            match context.purpose() {
                ReadPurpose::Scan if !self.bypasses_cache => {
                    let lookup = &mut context.for_purpose(ReadPurpose::Lookup);
                    return table.data_block(handle, lookup);
                }
                ReadPurpose::Scan | ReadPurpose::MemoryOnly => {
                    return table.data_block(handle, context);
                }
                ReadPurpose::Lookup | ReadPurpose::Job | ReadPurpose::WarmUp => {}
            }
        }
        if let Some(block) = table.peek_data_block(handle, context) {
            return Ok(block);
        }
        let purpose = context.admit_read(handle)?;
        let mut window = std::mem::take(&mut self.window);
        let block = window.read_block(table, handle, purpose, |window| {
            self.fill_window(window, table, handle, direction, purpose)
        });
        self.window = window;
        block
    }

    /// Records that a block is requested. If the block is adjacent to the last block, returns the direction.
    fn record_block_access(&mut self, handle: BlockHandle) -> Option<ReadDirection> {
        // The handles have not been checked, so their sum may overflow.
        let is_before =
            |a: BlockHandle, b: BlockHandle| a.offset.checked_add(a.bytes) == Some(b.offset);
        let last = self.last_block.replace(handle);
        let direction = match last {
            Some(last) if is_before(last, handle) => Some(ReadDirection::Forward),
            Some(last) if is_before(handle, last) => Some(ReadDirection::Backward),
            _ => None,
        };
        if direction.is_some() {
            self.adjacent_blocks = self.adjacent_blocks.saturating_add(1);
            let passed = last.map_or(0, |last| last.bytes);
            self.passed_bytes = self.passed_bytes.saturating_add(passed);
            self.remaining_bytes = self.remaining_bytes.saturating_sub(passed);
            if self.remaining_bytes == 0 {
                // The sorted run has more entries of the scan than expected, because other runs have fewer. Doubling
                // the expected size keeps the reads long, and reads at most twice as much as needed.
                self.remaining_bytes = self.passed_bytes;
            }
        } else {
            self.adjacent_blocks = 0;
            self.next_bytes = READ_BYTES_FIRST.min(self.window_bytes_max);
            (self.passed_bytes, self.remaining_bytes) = (0, self.scan_bytes);
        }
        direction
    }

    /// Reads a block and the blocks that follow it in the direction of the cursor. The caller has checked the bounds of
    /// the handle.
    fn fill_window(
        &mut self,
        window: &mut BlockWindow,
        table: &Table,
        handle: BlockHandle,
        direction: Option<ReadDirection>,
        purpose: ReadPurpose,
    ) -> Result<()> {
        let block = (handle.offset, handle.offset + handle.bytes);
        let (start, end) = match direction {
            None => block,
            Some(direction) => {
                let window_bytes = self.next_bytes.min(self.remaining_bytes).max(handle.bytes);
                self.next_bytes = (self.next_bytes * 2).min(self.window_bytes_max);
                let limits = self.limits(table);
                match direction {
                    ReadDirection::Forward => {
                        (block.0, (block.0 + window_bytes).min(limits.1).max(block.1))
                    }
                    ReadDirection::Backward => {
                        (block.1.saturating_sub(window_bytes).max(limits.0).min(block.0), block.1)
                    }
                }
            }
        };
        window.fill(table, (start, end), 1, |buffer| {
            table.file.read_for_purpose(purpose, start, buffer)
        })?;
        if let Some(direction) = direction {
            self.announce_next_window(table, (start, end), direction);
        }
        Ok(())
    }

    /// Returns the range of file offsets of the data blocks that the scan needs.
    fn limits(&self, table: &Table) -> (u64, u64) {
        let data_bytes = table.properties().data_bytes.min(table.identity().bytes);
        let (start, end) = self.limits.unwrap_or((0, u64::MAX));
        (start, end.min(data_bytes))
    }

    /// Prefetches the range that the scan reads after a window. Does nothing after a short window, because the system
    /// call would cost more than it saves.
    fn announce_next_window(
        &self,
        table: &Table,
        (start, end): (u64, u64),
        direction: ReadDirection,
    ) {
        let remaining_bytes = self.remaining_bytes.saturating_sub(end - start);
        let bytes = self.next_bytes.min(remaining_bytes);
        let limits = self.limits(table);
        let (offset, next_end) = match direction {
            ReadDirection::Forward => (end, end.saturating_add(bytes).min(limits.1)),
            ReadDirection::Backward => (start.saturating_sub(bytes).max(limits.0), start),
        };
        if end - start >= ANNOUNCED_WINDOW_BYTES_MIN && offset < next_end {
            // If the file cannot be opened, the next read returns the error.
            let _ = table.will_need(BlockHandle { offset, bytes: next_end - offset });
        }
    }
}
