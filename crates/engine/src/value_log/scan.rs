//! Reads the values of consecutive keys with read-ahead.
//!
//! A job writes entries and their values in the same order, so the values in one blob file are in key order. A scan
//! therefore reads each blob file in one direction, and skips values that are garbage. For each blob file, the scan
//! keeps a window: a buffer of bytes that were read ahead.
//!
//! 1. The first value of a file is read alone, as for a lookup.
//! 2. If the next value is near the window, the next read covers twice as many bytes as the previous read-ahead.
//!    Otherwise the value is read alone again.
//! 3. The total size of all windows is limited. If the limit is exceeded, the least recently used window is dropped.

use std::collections::BTreeMap;

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::format::blob::{BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, ValuePointer};
use crate::table::{ReadContext, ReadPurpose, ReadSource};
use crate::value_log::reader::BlobReader;

/// Bytes of the first read-ahead of a file.
const READ_BYTES_FIRST: u64 = 16 << 10;
/// Maximum bytes of a window that contains several values. A longer value is read alone, by one call.
const WINDOW_BYTES_MAX: u64 = 256 << 10;
/// Maximum bytes of all windows of a scan.
const WINDOWS_BYTES_MAX: u64 = 16 << 20;

/// Window of one blob file: bytes that were read ahead.
#[derive(Debug, Default)]
struct BlobReadBuffer {
    /// Offset of the window in the file.
    offset: u64,
    buffer: Vec<u8>,
    /// Number of bytes of the next read-ahead.
    next_bytes: u64,
    /// Value of [`BlobScan::uses`] when the window was last used.
    last_use: u64,
}

impl BlobReadBuffer {
    fn end_offset(&self) -> u64 {
        self.offset + len_u64(self.buffer.len())
    }

    /// Returns the stored bytes of a record if the window contains the whole record.
    fn stored_record(&self, pointer: &ValuePointer) -> Option<&[u8]> {
        let start = usize::try_from(pointer.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(usize::try_from(pointer.bytes).ok()?)?;
        self.buffer.get(start..end)
    }
}

/// Reads the values of one scan.
#[derive(Debug, Default)]
pub struct BlobScan {
    windows: BTreeMap<FileId, BlobReadBuffer>,
    /// Total bytes of all windows.
    bytes: u64,
    /// Number of values read so far.
    uses: u64,
    /// The block cache that counts the memory of the windows. Set when the first window is read.
    counted_by: Option<Arc<BlockCache>>,
}

impl Drop for BlobScan {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted_by {
            cache.sub_read_ahead_bytes(self.bytes);
        }
    }
}

impl BlobScan {
    /// Returns the value of an entry from a window, from the block cache or from the file.
    ///
    /// # Errors
    /// The same errors as [`BlobReader::read_value`].
    pub fn read_value(
        &mut self,
        blob: &BlobReader,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        context: &mut ReadContext,
    ) -> Result<Slice> {
        self.uses += 1;
        let purpose = context.purpose();
        blob.read_with_retry(purpose, |source| {
            if source == ReadSource::Device {
                return blob.read_value_from_device(entry, pointer, purpose);
            }
            // The window is searched first, because this is cheaper than a lookup in the block cache.
            if let Some(value) = self.value_in_window(blob, entry, pointer, context) {
                return value;
            }
            if let Some(value) = blob.peek_value(pointer, context)? {
                return Ok(value);
            }
            let purpose = context.admit_blob_read()?;
            self.read_window(blob, pointer, purpose)?;
            self.value_in_window(blob, entry, pointer, context).unwrap_or_else(|| {
                let (what, needed) = ("value read ahead", pointer.bytes);
                let short = Malformed::Truncated { what, needed, found: 0 };
                Err(Error::malformed(short, blob.path(), pointer.offset))
            })
        })
    }

    fn value_in_window(
        &mut self,
        blob: &BlobReader,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        context: &ReadContext,
    ) -> Option<Result<Slice>> {
        let window = self.windows.get_mut(&blob.manifest_record().id)?;
        window.last_use = self.uses;
        let stored = window.stored_record(pointer)?;
        let opened = context
            .admit_blob_read()
            .and_then(|purpose| blob.decode_record(stored, entry, pointer, purpose));
        Some(opened.map(Slice::from_block))
    }

    /// Replaces the window of a blob file by a window that contains the record. The caller has checked the pointer.
    fn read_window(
        &mut self,
        blob: &BlobReader,
        pointer: &ValuePointer,
        purpose: ReadPurpose,
    ) -> Result<()> {
        let id = blob.manifest_record().id;
        // The old window is removed first, so that the file has no window if the read fails.
        let old = self.windows.remove(&id);
        let plan = match &old {
            None => WindowPlan::of_record(pointer),
            Some(old) => WindowPlan::after_window(old, blob, pointer),
        };
        let cache = self.counted_by.get_or_insert_with(|| Arc::clone(blob.cache()));
        let old_bytes = old.map_or(0, |old| len_u64(old.buffer.len()));
        cache.sub_read_ahead_bytes(old_bytes);
        self.bytes -= old_bytes;
        let bytes = plan.end - plan.start;
        let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(0)];
        blob.read_into(plan.start, &mut buffer, purpose)?;
        cache.add_read_ahead_bytes(bytes);
        self.bytes += bytes;
        let (offset, next_bytes, last_use) = (plan.start, plan.next_bytes, self.uses);
        self.windows.insert(id, BlobReadBuffer { offset, buffer, next_bytes, last_use });
        if let Some((offset, bytes)) = plan.following {
            // Errors of the hint are ignored, because the later read returns them.
            let _ = blob.will_need(offset, bytes);
        }
        self.drop_excess_windows(id);
        Ok(())
    }

    /// Drops the least recently used windows until the total size is within the limit. Never drops the window of
    /// `kept`.
    fn drop_excess_windows(&mut self, kept: FileId) {
        while self.bytes > WINDOWS_BYTES_MAX {
            let others = self.windows.iter().filter(|(id, _)| **id != kept);
            let Some((&id, _)) = others.min_by_key(|(id, window)| (window.last_use, **id)) else {
                break;
            };
            let Some(window) = self.windows.remove(&id) else { break };
            let bytes = len_u64(window.buffer.len());
            self.bytes -= bytes;
            if let Some(cache) = &self.counted_by {
                cache.sub_read_ahead_bytes(bytes);
            }
        }
    }
}

/// Range of the next read.
struct WindowPlan {
    start: u64,
    end: u64,
    /// Number of bytes of the read-ahead that follows this read.
    next_bytes: u64,
    /// Expected range of the read after this one, as offset and number of bytes. The range is prefetched.
    following: Option<(u64, u64)>,
}

impl WindowPlan {
    /// Plans a read of one record alone.
    fn of_record(pointer: &ValuePointer) -> WindowPlan {
        let (start, end) = (pointer.offset, pointer.offset + pointer.bytes);
        WindowPlan { start, end, next_bytes: READ_BYTES_FIRST, following: None }
    }

    /// Plans a read-ahead if the record is near the old window, in ascending or descending direction. Otherwise plans a
    /// read of the record alone.
    fn after_window(old: &BlobReadBuffer, blob: &BlobReader, pointer: &ValuePointer) -> WindowPlan {
        let (start, end) = (pointer.offset, pointer.offset + pointer.bytes);
        let distance_max = old.next_bytes;
        let bytes = old.next_bytes.max(pointer.bytes);
        let next_bytes = (old.next_bytes * 2).min(WINDOW_BYTES_MAX);
        let records_start = len_u64(BLOB_HEADER_BYTES);
        let records_end = blob.manifest_record().bytes.saturating_sub(len_u64(BLOB_TRAILER_BYTES));
        if start >= old.offset && start <= old.end_offset().saturating_add(distance_max) {
            let end = (start + bytes).min(records_end).max(end);
            let left = records_end.saturating_sub(end);
            let following = (left > 0).then(|| (end, next_bytes.min(left)));
            WindowPlan { start, end, next_bytes, following }
        } else if end <= old.end_offset() && end.saturating_add(distance_max) >= old.offset {
            let start = end.saturating_sub(bytes).max(records_start).min(start);
            let left = next_bytes.min(start.saturating_sub(records_start));
            let following = (left > 0).then(|| (start - left, left));
            WindowPlan { start, end, next_bytes, following }
        } else {
            WindowPlan::of_record(pointer)
        }
    }
}
