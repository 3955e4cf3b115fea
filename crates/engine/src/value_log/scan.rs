//! Reads values for who walks over keys.
//!
//! Values of one blob file lie in key order as their pointers do: a job writes both together. So a walk
//! comes to each file at places that go one way, with gaps where values have died, and it pays to read
//! on from there. Each file has a window of its own: the first value is read alone, as for a lookup, and
//! while the next one is near, each further read takes twice as much. Windows together are bounded.

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
use crate::table::{Access, FillCache, Source};
use crate::value_log::Blob;

/// Bytes of the first read ahead.
const FIRST_BYTES: u64 = 16 << 10;
/// Most bytes of one window, but for a longer value.
const WINDOW_BYTES_MAX: u64 = 256 << 10;
/// Bytes of all windows together at which the one that rested longest goes.
const WINDOWS_BYTES_MAX: u64 = 16 << 20;

/// Bytes of one blob file that were read ahead.
#[derive(Debug, Default)]
struct Window {
    /// Where it begins in the file.
    offset: u64,
    buffer: Vec<u8>,
    /// Bytes of the next read.
    next_bytes: u64,
    /// When it was used last, by the count of uses.
    used: u64,
}

impl Window {
    fn end(&self) -> u64 {
        self.offset + len_u64(self.buffer.len())
    }

    /// The record's bytes, if they were read.
    fn record(&self, pointer: &ValuePointer) -> Option<&[u8]> {
        let at = usize::try_from(pointer.offset.checked_sub(self.offset)?).ok()?;
        let end = at.checked_add(usize::try_from(pointer.bytes).ok()?)?;
        self.buffer.get(at..end)
    }
}

/// The windows of one walk.
#[derive(Debug, Default)]
pub(crate) struct BlobScan {
    windows: BTreeMap<FileId, Window>,
    bytes: u64,
    uses: u64,
    /// Where the windows are counted, once there was one.
    counted: Option<Arc<BlockCache>>,
}

impl Drop for BlobScan {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted {
            cache.sub_read_ahead_bytes(self.bytes);
        }
    }
}

impl BlobScan {
    /// The value of an entry: from the cache, from what was read ahead, or from the file.
    ///
    /// # Errors
    /// As [`Blob::value`].
    pub(crate) fn value(
        &mut self,
        blob: &Blob,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        access: &mut Access,
    ) -> Result<Slice> {
        let id = blob.record().id;
        self.uses += 1;
        let fill = access.fill();
        blob.reading(fill, |source| {
            if source == Source::Device {
                blob.checked_bytes(pointer)?;
                return blob.record_from_device(entry, pointer, fill).map(Slice::from_block);
            }
            // What was read ahead is nearer than the cache.
            if let Some(value) = self.read_ahead(id, blob, entry, pointer, access) {
                return value;
            }
            if let Some(value) = blob.peek(pointer, access)? {
                return Ok(value);
            }
            let fill = access.may_read_blob()?;
            blob.checked_bytes(pointer)?;
            self.read(blob, pointer, fill)?;
            self.read_ahead(id, blob, entry, pointer, access).unwrap_or_else(|| {
                let (what, needed) = ("value read ahead", pointer.bytes);
                let short = Malformed::Truncated { what, needed, found: 0 };
                Err(Error::malformed(short, blob.path(), pointer.offset))
            })
        })
    }

    /// The value, if its record was read.
    fn read_ahead(
        &mut self,
        id: FileId,
        blob: &Blob,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        access: &Access,
    ) -> Option<Result<Slice>> {
        let window = self.windows.get_mut(&id)?;
        window.used = self.uses;
        let stored = window.record(pointer)?;
        let opened = access.may_read_blob();
        Some(
            opened
                .and_then(|fill| blob.open_record(stored, entry, pointer, fill))
                .map(Slice::from_block),
        )
    }

    /// Reads the record, and what comes next if it goes on from the last one. The pointer was checked.
    fn read(&mut self, blob: &Blob, pointer: &ValuePointer, fill: FillCache) -> Result<()> {
        let id = blob.record().id;
        // Nothing of the old window is left if this read fails.
        let old = self.windows.remove(&id);
        let next = match &old {
            None => NextRead::alone(pointer),
            Some(old) => NextRead::after(old, blob, pointer),
        };
        let NextRead { from, to, next_bytes, .. } = next;
        let old_bytes = old.map_or(0, |old| len_u64(old.buffer.len()));
        let bytes = usize::try_from(to - from).unwrap_or(0);
        let cache = self.counted.get_or_insert_with(|| Arc::clone(blob.cache()));
        cache.sub_read_ahead_bytes(old_bytes);
        self.bytes -= old_bytes;
        let mut buffer = vec![0; bytes];
        blob.fill(from, &mut buffer, fill)?;
        cache.add_read_ahead_bytes(len_u64(bytes));
        self.bytes += len_u64(bytes);
        self.windows.insert(id, Window { offset: from, buffer, next_bytes, used: self.uses });
        if let Some((from, bytes)) = next.then {
            // Only a hint: whoever reads there gets the error.
            let _ = blob.will_need(from, bytes);
        }
        self.make_room(id);
        Ok(())
    }

    /// Lets windows go that rested longest, all but this one, until the rest is within the bound.
    fn make_room(&mut self, kept: FileId) {
        while self.bytes > WINDOWS_BYTES_MAX {
            let others = self.windows.iter().filter(|(id, _)| **id != kept);
            let Some((&id, _)) = others.min_by_key(|(id, window)| (window.used, **id)) else {
                break;
            };
            let Some(window) = self.windows.remove(&id) else { break };
            let bytes = len_u64(window.buffer.len());
            self.bytes -= bytes;
            if let Some(cache) = &self.counted {
                cache.sub_read_ahead_bytes(bytes);
            }
        }
    }
}

/// Where the next read goes.
struct NextRead {
    from: u64,
    to: u64,
    /// How much the one after it takes.
    next_bytes: u64,
    /// Where that will be, if the walk goes on so: offset and bytes.
    then: Option<(u64, u64)>,
}

impl NextRead {
    /// The record and nothing else.
    fn alone(pointer: &ValuePointer) -> NextRead {
        let (from, to) = (pointer.offset, pointer.offset + pointer.bytes);
        NextRead { from, to, next_bytes: FIRST_BYTES, then: None }
    }

    /// More than the record, if it is near the last window, in either direction.
    fn after(old: &Window, blob: &Blob, pointer: &ValuePointer) -> NextRead {
        let (start, end) = (pointer.offset, pointer.offset + pointer.bytes);
        let near = old.next_bytes;
        let bytes = old.next_bytes.max(pointer.bytes);
        let next_bytes = (old.next_bytes * 2).min(WINDOW_BYTES_MAX);
        let first = len_u64(BLOB_HEADER_BYTES);
        let last = blob.record().bytes.saturating_sub(len_u64(BLOB_TRAILER_BYTES));
        if start >= old.offset && start <= old.end().saturating_add(near) {
            let to = (start + bytes).min(last).max(end);
            let then = (to < last).then(|| (to, next_bytes.min(last - to)));
            NextRead { from: start, to, next_bytes, then }
        } else if end <= old.end() && end.saturating_add(near) >= old.offset {
            let from = end.saturating_sub(bytes).max(first).min(start);
            let ahead = next_bytes.min(from.saturating_sub(first));
            let then = (ahead > 0).then(|| (from - ahead, ahead));
            NextRead { from, to: end, next_bytes, then }
        } else {
            NextRead::alone(pointer)
        }
    }
}
