//! Reads of bucket files, counted, or refused where only memory may answer.

use bytes::Bytes;
use lsmx::operand_store::{OperandCounts, OperandReads};
use lsmx::{Error, Malformed, Result};
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::sync::{AtomicU64, Ordering};

use crate::files::BucketFile;
use crate::format::frame::{FrameKind, decode_frame};

/// How one call reads.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    reads: OperandReads,
    from_device: bool,
    counts: Count<'a>,
    /// Reads so far.
    pub(crate) calls: u64,
}

#[derive(Debug)]
enum Count<'a> {
    /// Of users.
    Calls(&'a dyn OperandCounts),
    /// Bytes alone.
    Bytes(&'a AtomicU64),
    /// Not at all.
    Nothing,
}

impl<'a> Reading<'a> {
    pub(crate) fn of_user(reads: OperandReads, counts: &'a dyn OperandCounts) -> Reading<'a> {
        Reading { reads, from_device: false, counts: Count::Calls(counts), calls: 0 }
    }

    /// Counts bytes in a counter.
    pub(crate) fn of_job(bytes: &'a AtomicU64) -> Reading<'a> {
        let reads = OperandReads::Storage;
        Reading { reads, from_device: false, counts: Count::Bytes(bytes), calls: 0 }
    }

    /// As [`Reading::of_job`], from the device, past all caches.
    pub(crate) fn from_device(bytes: &'a AtomicU64) -> Reading<'a> {
        Reading { from_device: true, ..Reading::of_job(bytes) }
    }

    /// Reads nothing.
    pub(crate) fn in_memory() -> Reading<'static> {
        let reads = OperandReads::Memory;
        Reading { reads, from_device: false, counts: Count::Nothing, calls: 0 }
    }

    /// Counts nothing.
    pub(crate) fn uncounted() -> Reading<'static> {
        let reads = OperandReads::Storage;
        Reading { reads, from_device: false, counts: Count::Nothing, calls: 0 }
    }

    /// The bytes from `from` up to `to`.
    pub(crate) fn read(&mut self, file: &BucketFile, from: u64, to: u64) -> Result<Bytes> {
        if self.reads == OperandReads::Memory {
            return Err(Error::WouldBlock);
        }
        let at = |what: Malformed| Error::malformed(what, &file.path, from);
        let len = to_usize("bytes of a bucket", to.saturating_sub(from)).map_err(at)?;
        let bytes = match self.from_device {
            true => file.read_from_device(from, len)?,
            false => file.read(from, len)?,
        };
        self.calls += 1;
        match self.counts {
            Count::Calls(counts) => counts.read(len_u64(len)),
            Count::Bytes(counter) => {
                counter.fetch_add(len_u64(len), Ordering::Relaxed);
            }
            Count::Nothing => {}
        }
        Ok(bytes.into())
    }
}

/// Calls `each` with the frames of `bytes`, which lie at `from`: kind, contents, offset, length of the
/// frame. They must fill them.
pub(crate) fn for_each_frame(
    bytes: &Bytes,
    file: &BucketFile,
    from: u64,
    mut each: impl FnMut(FrameKind, Bytes, u64, u64) -> Result<(), Malformed>,
) -> Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let offset = from + len_u64(at);
        let wrong = |what: Malformed| Error::malformed(what, &file.path, offset);
        let (kind, contents, len) =
            decode_frame(&bytes[at..], (file.uid, offset)).map_err(wrong)?;
        each(kind, bytes.slice_ref(contents), offset, len_u64(len)).map_err(wrong)?;
        at += len;
    }
    Ok(())
}

/// A frame of another kind than its place has.
pub(crate) fn misplaced(kind: FrameKind, expected: &'static str) -> Malformed {
    Malformed::Field { what: "kind of a frame", found: u64::from(kind as u8), expected }
}
