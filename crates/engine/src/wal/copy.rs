//! Copies a WAL segment into the log of another database.
//!
//! The database uid seeds the checksum of every record, so a copy of the bytes would be a segment of the
//! original. The copy keeps the offset, the sequence numbers, the sync mark and the payload of each
//! record; only the uid in the header and the checksums differ.

use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::sync::Arc;

use crate::format::file_name::FileName;
use crate::format::log_record::{LogSeed, RecordHeader};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log::{Found, LogReader};
use crate::vfs::{File, Vfs};
use crate::wal::DurableSegment;
use crate::{Error, Result};

/// Encoded bytes that are collected before an append.
const APPEND_BYTES: usize = 1 << 20;

/// A directory and the uid of the database in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogHome<'a> {
    /// Directory of the database.
    pub(crate) dir: &'a Path,
    /// Uid of the database.
    pub(crate) db_uid: u64,
}

/// Writes the first `segment.bytes` bytes of a segment of `from` as a segment of `to`, which keeps its
/// number. Calls `proceed` after each append. Does not sync the new file; returns it.
///
/// # Errors
/// The segment is damaged or belongs to another database; a read or a write fails; `proceed` fails.
pub(crate) fn copy_segment(
    vfs: &dyn Vfs,
    from: LogHome<'_>,
    to: LogHome<'_>,
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
    let to_seed = LogSeed::new(to.db_uid, segment.id);
    let mut reader =
        LogReader::new(&*source, &path, LogSeed::new(from.db_uid, segment.id), segment.bytes);
    let mut encoded = SegmentHeader { db_uid: to.db_uid, ..header }.encode().to_vec();
    let mut offset = len_u64(SEGMENT_HEADER_BYTES);
    loop {
        match reader.record(offset)? {
            Found::Record(header, payload) => {
                let numbers = (header.first_seq, header.count);
                let place = (to_seed, offset);
                RecordHeader::encode_record(&mut encoded, place, numbers, header.mark, payload)
                    .map_err(|what| Error::malformed(what, &path, offset))?;
                offset += header.record_bytes();
            }
            Found::End => break,
            Found::Bad(what) => return Err(Error::malformed(what, &path, offset)),
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
