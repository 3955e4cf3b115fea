//! Reads frames of bucket files, and counts the bytes for the metrics.

use bytes::Bytes;
use lsmx::operand_store::{OperandReadCounters, OperandReadTier};
use lsmx::{Error, Result};
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::{AtomicU64, Ordering};

use crate::files::BucketFile;
use crate::format::frame::{FrameKind, decode_frame};

/// Reads bucket files for one operation, and counts the reads.
#[derive(Debug)]
pub struct BucketReader<'a> {
    reads: OperandReadTier,
    from_device: bool,
    counter: ReadCounter<'a>,
    /// Number of file reads so far.
    pub read_count: u64,
}

#[derive(Debug)]
enum ReadCounter<'a> {
    /// Counts the reads and bytes of a user operation.
    User(&'a dyn OperandReadCounters),
    /// Counts the bytes that a background job reads.
    Bytes(&'a AtomicU64),
    None,
}

impl<'a> BucketReader<'a> {
    fn new(reads: OperandReadTier, counter: ReadCounter<'a>) -> BucketReader<'a> {
        BucketReader { reads, from_device: false, counter, read_count: 0 }
    }

    /// Returns a reader for a user operation.
    pub fn for_user(
        reads: OperandReadTier,
        read_counters: &'a dyn OperandReadCounters,
    ) -> BucketReader<'a> {
        BucketReader::new(reads, ReadCounter::User(read_counters))
    }

    /// Returns a reader for a background job. The reader adds the bytes that it reads to `bytes`.
    pub fn for_job(bytes: &'a AtomicU64) -> BucketReader<'a> {
        BucketReader::new(OperandReadTier::Storage, ReadCounter::Bytes(bytes))
    }

    /// Returns a reader that bypasses all caches. It adds the bytes that it reads to `bytes`.
    pub fn for_device_check(bytes: &'a AtomicU64) -> BucketReader<'a> {
        BucketReader { from_device: true, ..BucketReader::for_job(bytes) }
    }

    /// Returns a reader that reads no file: each read fails with [`Error::WouldBlock`].
    pub fn for_memory() -> BucketReader<'static> {
        BucketReader::new(OperandReadTier::Memory, ReadCounter::None)
    }

    /// Returns a reader that updates no metrics.
    pub fn without_counters() -> BucketReader<'static> {
        BucketReader::new(OperandReadTier::Storage, ReadCounter::None)
    }

    /// Reads the bytes from offset `start` to `end`.
    pub fn read(&mut self, file: &BucketFile, start: u64, end: u64) -> Result<Bytes> {
        if self.reads == OperandReadTier::Memory {
            return Err(Error::WouldBlock);
        }
        let located = |malformed: Malformed| Error::malformed(malformed, &file.path, start);
        let len = to_usize("bytes of a bucket", end.saturating_sub(start)).map_err(located)?;
        let bytes = match self.from_device {
            true => file.read_from_device(start, len)?,
            false => file.read(start, len)?,
        };
        self.read_count += 1;
        match self.counter {
            ReadCounter::User(read_counters) => read_counters.record_read(len_u64(len)),
            ReadCounter::Bytes(counter) => {
                counter.fetch_add(len_u64(len), Ordering::Relaxed);
            }
            ReadCounter::None => {}
        }
        Ok(bytes.into())
    }
}

/// Calls `visit` with the kind, contents, file offset and size of each frame in `bytes`. `start` is the file offset of
/// `bytes`.
///
/// Fails with [`Error::Corrupt`] if `bytes` do not consist of complete, valid frames.
pub fn for_each_frame(
    bytes: &Bytes,
    file: &BucketFile,
    start: u64,
    mut visit: impl FnMut(FrameKind, Bytes, u64, u64) -> Result<(), Malformed>,
) -> Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let offset = start + len_u64(at);
        let located = |malformed: Malformed| Error::malformed(malformed, &file.path, offset);
        let (kind, contents, len) =
            decode_frame(&bytes[at..], (file.uid, offset)).map_err(located)?;
        visit(kind, bytes.slice_ref(contents), offset, len_u64(len)).map_err(located)?;
        at += len;
    }
    Ok(())
}
