//! Copies WAL segments into the log of another database, such as a checkpoint.
//!
//! The database uid is part of the seed of every record checksum, so a copy of the bytes would be invalid in the other
//! database. The copy has the same offset, sequence numbers, sync mark and payload for each record. The uid in the
//! segment header and all checksums differ.

use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::log_record::{LogChecksumSeed, RecordHeader};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log_reader::{LogRead, LogReader};
use crate::vfs::{File, Vfs};
use crate::wal::DurableSegment;

/// Number of encoded bytes after which the copy appends to the new file.
const APPEND_BYTES: usize = 1 << 20;

/// Directory and uid of a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLocation<'a> {
    /// Directory of the database.
    pub(crate) dir: &'a Path,
    /// Uid of the database.
    pub(crate) db_uid: u64,
}

/// Copies the first `segment.bytes` bytes of a segment of `from` to a new segment of `to` with the same number.
///
/// Calls `proceed` after each append and stops with its error, so that the caller can cancel the copy. Returns the new
/// file, which is not synced.
///
/// # Errors
/// Fails when I/O fails, when the source segment belongs to another database or is malformed, or when `proceed` fails.
pub(crate) fn copy_segment(
    vfs: &dyn Vfs,
    from: LogLocation<'_>,
    to: LogLocation<'_>,
    segment: DurableSegment,
    proceed: &dyn Fn() -> Result<()>,
) -> Result<Arc<dyn File>> {
    let name = FileName::Segment(segment.id);
    let (path, to_path) = (name.in_dir(from.dir), name.in_dir(to.dir));
    let source = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
    let mut first = [0; SEGMENT_HEADER_BYTES];
    let read = source.read_at(&mut first, 0).map_err(|error| Error::io("read", &path, error))?;
    let header =
        SegmentHeader::decode(&first[..read]).map_err(|what| Error::malformed(what, &path, 0))?;
    header
        .check_identity(from.db_uid, segment.id)
        .map_err(|what| Error::malformed(what, &path, 0))?;
    let target = vfs.create(&to_path).map_err(|error| Error::io("create", &to_path, error))?;
    let append = |bytes: &mut Vec<u8>| {
        target.append(bytes).map_err(|error| Error::io("append to", &to_path, error))?;
        bytes.clear();
        proceed()
    };
    let to_seed = LogChecksumSeed::new(to.db_uid, segment.id);
    let mut reader = LogReader::new(
        &*source,
        &path,
        LogChecksumSeed::new(from.db_uid, segment.id),
        segment.bytes,
    );
    let mut encoded = SegmentHeader { db_uid: to.db_uid, ..header }.encode().to_vec();
    let mut offset = len_u64(SEGMENT_HEADER_BYTES);
    loop {
        match reader.read_record(offset)? {
            LogRead::Record(header, payload) => {
                let numbers = (header.first_seq, header.count);
                let location = (to_seed, offset);
                RecordHeader::encode_record(&mut encoded, location, numbers, header.mark, payload)
                    .map_err(|what| Error::malformed(what, &path, offset))?;
                offset += header.record_bytes();
            }
            LogRead::End => break,
            LogRead::Malformed(what) => return Err(Error::malformed(what, &path, offset)),
        }
        if encoded.len() >= APPEND_BYTES {
            append(&mut encoded)?;
        }
    }
    if !encoded.is_empty() {
        append(&mut encoded)?;
    }
    Ok(target)
}
