//! Prints a bucket file or a log of a store as text.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use bytes::Bytes;
use lsmx::dump::DumpError;
use lsmx::vfs::Vfs;
use lsmx::{Error, Result};
use lsmx_base::malformed::Malformed;

use crate::files::frame_reader::FrameReader;
use crate::files::io::{io_error, read_exactly};
use crate::format::frame::FrameKind;
use crate::format::header::{BUCKET_HEADER, HEADER_BYTES, LOG_HEADER, VERSION, decode_header};
use crate::format::index::decode_index;
use crate::format::log::{
    RangeMarker, decode_bucket, decode_collection_end, decode_count, decode_delivery_end,
    decode_first_buckets, decode_range_markers, decode_snapshot,
};
use crate::format::record::decode_records;

/// Writes a text description of a bucket file (`NNNNNN.bucket`) or a log (`NNNNNN.operands`), one line per frame.
///
/// The dump stops at the first damaged frame and ends with a line that begins with `damaged:`. The file may contain
/// frames after the end position that the manifest or the log states. Such frames do not belong to the store, but the
/// dump contains them.
///
/// ```no_run
/// use std::path::Path;
///
/// let path = Path::new("db/000007.bucket");
/// lsmx_delta::dump(&lsmx::vfs::OsVfs, path, &mut std::io::stdout())?;
/// # Ok::<(), lsmx::dump::DumpError>(())
/// ```
///
/// # Errors
/// [`DumpError::File`] if the file cannot be read or is damaged, [`DumpError::Output`] if `out` cannot be
/// written.
pub fn dump(vfs: &dyn Vfs, path: &Path, out: &mut dyn io::Write) -> Result<(), DumpError> {
    let result = dump_frames(vfs, path, &mut |line| writeln!(out, "{line}"));
    if let Err(DumpError::File(error)) = &result {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        writeln!(out, "damaged: {error}{}", cause.unwrap_or_default())
            .map_err(DumpError::Output)?;
    }
    result
}

type LineWriter<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

fn dump_frames(
    vfs: &dyn Vfs,
    path: &Path,
    write_line: &mut LineWriter<'_>,
) -> Result<(), DumpError> {
    let file = vfs.open(path).map_err(|e| io_error("open", path, e))?;
    let end = file.len().map_err(|e| io_error("read the size of", path, e))?;
    let header = read_exactly(&*file, path, 0, HEADER_BYTES)?;
    let (decoded, name) = match decode_header(&header, BUCKET_HEADER) {
        Err(Malformed::Magic { .. }) => (decode_header(&header, LOG_HEADER), "log of operands"),
        decoded => (decoded, "bucket file"),
    };
    let uid = decoded.map_err(|malformed| Error::malformed(malformed, path, 0))?;
    write_line(&format!("{name}, version {VERSION}, uid {uid:#018x}, {end} bytes"))
        .map_err(DumpError::Output)?;
    let mut reader = FrameReader::new(path.to_owned(), file, uid, end);
    loop {
        let offset = reader.offset;
        let Some((kind, contents)) = reader.next_frame()? else { return Ok(()) };
        let text = describe_frame(kind, &contents, end)
            .map_err(|malformed| Error::malformed(malformed, path, offset))?;
        write_line(&format!("{offset:>10} {}: {} bytes{text}", kind.name(), contents.len()))
            .map_err(DumpError::Output)?;
    }
}

/// Describes the contents of a frame. `end` is the length of the file.
fn describe_frame(kind: FrameKind, contents: &Bytes, end: u64) -> Result<String, Malformed> {
    let mut text = String::new();
    match kind {
        FrameKind::SortedPage | FrameKind::UnsortedPage | FrameKind::Records => {
            describe_records(&mut text, contents)?;
        }
        FrameKind::Index => {
            let _ = write!(text, ", {} pages", decode_index(contents, end)?.len());
        }
        FrameKind::Filter => {}
        FrameKind::Keyspace => {
            let _ = write!(text, ", \"{}\"", contents.escape_ascii());
        }
        FrameKind::Snapshot => {
            let (through, range_markers) = decode_snapshot(contents)?;
            let _ = write!(text, ", through {through}");
            describe_range_markers(&mut text, &range_markers);
        }
        FrameKind::Bucket => {
            let bucket = decode_bucket(contents)?;
            let (id, through) = (bucket.id, bucket.collected_through);
            let smallest_key = bucket.smallest_key.escape_ascii();
            let _ = write!(text, ", {id} from \"{smallest_key}\", collected through {through}");
            if let Some(sorted) = bucket.sorted {
                let (number, index, end) = (sorted.number, sorted.index_offset, sorted.end);
                let _ = write!(text, ", sorted in {number:06} index {index} end {end}");
            }
            for extent in &bucket.extents {
                let (number, start, end) = (extent.number, extent.start, extent.end);
                let _ = write!(text, ", pages in {number:06} {start}..{end}");
            }
            text.push_str(", tail");
            describe_records(&mut text, &bucket.tail)?;
        }
        FrameKind::SnapshotEnd => {
            let _ = write!(text, ", {} buckets", decode_count(contents, "buckets")?);
        }
        FrameKind::FirstBuckets => {
            for (id, smallest_key) in decode_first_buckets(contents)? {
                let _ = write!(text, ", {id} from \"{}\"", smallest_key.escape_ascii());
            }
        }
        FrameKind::RangeMarkers => {
            describe_range_markers(&mut text, &decode_range_markers(contents)?);
        }
        FrameKind::DeliveryEnd => {
            let (through, record_count) = decode_delivery_end(contents)?;
            let _ = write!(text, ", {record_count} records through {through}");
        }
        FrameKind::CollectionEnd => {
            let collection = decode_collection_end(contents)?;
            let (new, removed) = (collection.new_count, collection.removed_ids);
            let _ = write!(text, ", {new} new, removed {removed:?}");
            describe_range_markers(&mut text, &collection.range_markers);
        }
    }
    Ok(text)
}

fn describe_records(text: &mut String, contents: &Bytes) -> Result<(), Malformed> {
    let records = decode_records(contents)?;
    let operands = records.iter().filter(|record| record.operand.is_some()).count();
    let _ = write!(text, ", {operands} operands, {} delete markers", records.len() - operands);
    if let (Some(first), Some(last)) = (records.first(), records.last()) {
        let (first, last) = (first.key.escape_ascii(), last.key.escape_ascii());
        let newest = records.iter().map(|record| record.last).max().unwrap_or_default();
        let oldest = records.iter().map(|record| record.first).min().unwrap_or_default();
        let _ = write!(text, ", \"{first}\"..=\"{last}\", numbers {oldest} to {newest}");
    }
    Ok(())
}

fn describe_range_markers(text: &mut String, markers: &[RangeMarker]) {
    for marker in markers {
        let end = marker.end.as_ref().map(|end| format!("\"{}\"", end.escape_ascii()));
        let (start, end) = (marker.start.escape_ascii(), end.unwrap_or_default());
        let _ = write!(text, ", void below {} \"{start}\"..{end}", marker.seq);
    }
}
