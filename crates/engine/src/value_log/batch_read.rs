//! Batch reads of values: reads the values of several entries that are known in advance, such as the next entries of a
//! scan.
//!
//! If one job has written the values of neighbouring keys, these values are adjacent in a blob file. One read can
//! therefore return several values. Reads at different offsets can run concurrently.

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::Result;
use crate::format::blob::ValuePointer;
use crate::table::ReadPurpose;
use crate::value_log::reader::BlobReader;

/// Maximum gap in bytes between two values in one read: first for reads from the page cache, then for reads from a
/// device. Reading a gap of this size is cheaper than a second read.
const GAP_BYTES_MAX: [u64; 2] = [2 << 10, 32 << 10];
/// Maximum bytes of one read that contains several values. A longer value is read alone, by one call.
const READ_BYTES_MAX: u64 = 256 << 10;

/// Request to read one value. `F` is the type of a reference to an open blob file.
#[derive(Debug)]
pub(crate) struct ValueRequest<F> {
    /// Index of the entry in the caller's list of entries.
    pub(crate) index: usize,
    pub(crate) seq: SeqNo,
    pub(crate) file: Arc<F>,
    /// Position of the value. The caller has checked that the position is inside the file.
    pub(crate) pointer: ValuePointer,
}

impl<F: AsRef<BlobReader>> ValueRequest<F> {
    fn blob(&self) -> &BlobReader {
        (*self.file).as_ref()
    }

    fn end_offset(&self) -> u64 {
        self.pointer.offset + self.pointer.bytes
    }
}

/// One read that covers several values of a blob file.
#[derive(Debug)]
pub(crate) struct BatchRead<'a, F> {
    /// Requests for one blob file, in order of ascending offset. Contains at least one request.
    requests: &'a [ValueRequest<F>],
    start: u64,
    end: u64,
}

/// A reusable buffer for batch reads. The block cache counts the memory of the buffer as read-ahead memory.
#[derive(Debug, Default)]
pub(crate) struct BatchReadBuffer {
    bytes: Vec<u8>,
    /// The block cache that counts the memory. Set by the first read.
    counted_by: Option<Arc<BlockCache>>,
}

impl BatchReadBuffer {
    /// Returns the first `bytes` bytes of the buffer. Their contents are undefined.
    fn slice_of_len(&mut self, bytes: usize, cache: &Arc<BlockCache>) -> &mut [u8] {
        if let Some(added) = bytes.checked_sub(self.bytes.len()) {
            let counted_by = self.counted_by.get_or_insert_with(|| Arc::clone(cache));
            counted_by.add_read_ahead_bytes(len_u64(added));
            self.bytes.resize(bytes, 0);
        }
        &mut self.bytes[..bytes]
    }
}

impl Drop for BatchReadBuffer {
    fn drop(&mut self) {
        if let Some(cache) = &self.counted_by {
            cache.sub_read_ahead_bytes(len_u64(self.bytes.len()));
        }
    }
}

/// Sorts the requests by position and groups them into reads. `from_device` is true if the values are probably not in
/// the page cache, so that the reads access a device.
pub(crate) fn plan_batch_reads<F: AsRef<BlobReader>>(
    requests: &mut [ValueRequest<F>],
    from_device: bool,
) -> Vec<BatchRead<'_, F>> {
    requests.sort_unstable_by_key(|request| (request.pointer.file, request.pointer.offset));
    let gap_bytes_max = GAP_BYTES_MAX[usize::from(from_device)];
    let mut reads = Vec::new();
    let mut left = &*requests;
    while let Some(first) = left.first() {
        let start = first.pointer.offset;
        let mut end = first.end_offset();
        let others = left[1..].iter().take_while(|request| {
            let is_near = request.pointer.file == first.pointer.file
                && request.pointer.offset <= end.saturating_add(gap_bytes_max)
                && request.end_offset() <= start.saturating_add(READ_BYTES_MAX);
            if is_near {
                end = end.max(request.end_offset());
            }
            is_near
        });
        let count = 1 + others.count();
        let (requests, rest) = left.split_at(count);
        reads.push(BatchRead { requests, start, end });
        left = rest;
    }
    reads
}

impl<F: AsRef<BlobReader>> BatchRead<'_, F> {
    /// Hints to the file system that the bytes of this read will be needed. Returns whether the file system prefetches
    /// the bytes or has them in memory.
    pub(crate) fn will_need(&self) -> bool {
        let Some(first) = self.requests.first() else { return true };
        // The error of a file that cannot be opened is ignored here, because the read returns the same error.
        first.blob().will_need(self.start, self.bytes()).unwrap_or(true)
    }

    /// Returns the length of the read in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Reads the values and calls `set_value` for each request, with the index and the value or error. `key` returns
    /// the user key of an index. If the read fails, all requests get the error, and no value is retried alone.
    pub(crate) fn read<'k>(
        &self,
        buffer: &mut BatchReadBuffer,
        purpose: ReadPurpose,
        key: impl Fn(usize) -> &'k [u8],
        mut set_value: impl FnMut(usize, Result<Slice>),
    ) {
        let Some(first) = self.requests.first() else { return };
        // The conversion succeeds, because the pointers were checked.
        let bytes = usize::try_from(self.bytes()).unwrap_or(0);
        let buffer = buffer.slice_of_len(bytes, first.blob().cache());
        let filled = first.blob().read_into(self.start, buffer, purpose);
        for request in self.requests {
            let ValueRequest { index, seq, pointer, .. } = request;
            let value = filled.clone().and_then(|()| {
                let start = usize::try_from(pointer.offset - self.start).unwrap_or(0);
                let end = start + usize::try_from(pointer.bytes).unwrap_or(0);
                let entry = (key(*index), *seq);
                request.blob().decode_record(&buffer[start..end], entry, pointer, purpose)
            });
            set_value(*index, value.map(Slice::from_block));
        }
    }
}
