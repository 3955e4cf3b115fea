//! Shows what a file of a store holds, as text: a line per frame.
//!
//! A file is read on its own. Past its first bytes everything is shown that checks; the first frame that
//! does not is shown as a line that begins with `damaged:`, and is the error. What lies behind what the
//! manifest's token, or the log, names counts for nobody and may look like anything.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use bytes::Bytes;
use lsmx::dump::DumpError;
use lsmx::vfs::{File, Vfs};
use lsmx::{Error, Malformed, Result};
use lsmx_base::coding::len_u64;

use crate::files::{io_error, read_exactly};
use crate::format::frame::{FRAME_HEADER_BYTES, FrameKind, decode_frame, frame_bytes};
use crate::format::header::{self, BUCKET_MAGIC, HEADER_BYTES, LOG_MAGIC};
use crate::format::{index, log, record};

/// Writes what a bucket file (`NNNNNN.bucket`) or a log (`NNNNNN.operands`) holds to `out`, line by line.
///
/// # Errors
/// [`DumpError`]: the file cannot be read or is damaged, or `out` cannot be written.
pub fn dump(vfs: &dyn Vfs, path: &Path, out: &mut dyn io::Write) -> Result<(), DumpError> {
    let shown = dump_frames(vfs, path, &mut |line| writeln!(out, "{line}"));
    if let Err(DumpError::File(error)) = &shown {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        writeln!(out, "damaged: {error}{}", cause.unwrap_or_default())
            .map_err(DumpError::Output)?;
    }
    shown
}

/// Writes one line.
type Line<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

fn dump_frames(vfs: &dyn Vfs, path: &Path, line: &mut Line<'_>) -> Result<(), DumpError> {
    let file = vfs.open(path).map_err(|e| io_error("open", path, e))?;
    let end = file.len().map_err(|e| io_error("read the length of", path, e))?;
    let first = read_exactly(&*file, path, 0, HEADER_BYTES)?;
    let (uid, name) = match header::decode(&first, BUCKET_MAGIC) {
        Ok(uid) => (uid, "bucket file"),
        Err(Malformed::Magic { .. }) => {
            let uid = header::decode(&first, LOG_MAGIC)
                .map_err(|what| Error::malformed(what, path, 0))?;
            (uid, "log of operands")
        }
        Err(what) => return Err(Error::malformed(what, path, 0).into()),
    };
    line(&format!("{name}, version {}, uid {uid:#018x}, {end} bytes", header::VERSION))
        .map_err(DumpError::Output)?;
    let mut at = len_u64(HEADER_BYTES);
    while at < end {
        let (kind, contents) = frame(&*file, path, uid, (at, end))?;
        let shown = show(kind, &contents, end).map_err(|what| Error::malformed(what, path, at))?;
        line(&format!("{at:>10} {}: {} bytes{shown}", kind.name(), contents.len()))
            .map_err(DumpError::Output)?;
        at += len_u64(FRAME_HEADER_BYTES + contents.len());
    }
    Ok(())
}

fn frame(
    file: &dyn File,
    path: &Path,
    uid: u64,
    (at, end): (u64, u64),
) -> Result<(FrameKind, Bytes)> {
    let wrong = |what: Malformed| Error::malformed(what, path, at);
    let header = read_exactly(file, path, at, FRAME_HEADER_BYTES)?;
    let len = frame_bytes(&header).map_err(wrong)?;
    if len_u64(len) > end - at {
        let (what, needed, found) = ("frame", len_u64(len), end - at);
        return Err(wrong(Malformed::Truncated { what, needed, found }));
    }
    let bytes: Bytes = read_exactly(file, path, at, len)?.into();
    let (kind, contents, _) = decode_frame(&bytes, (uid, at)).map_err(wrong)?;
    Ok((kind, bytes.slice_ref(contents)))
}

/// What stands behind the kind of a frame and its length.
fn show(kind: FrameKind, contents: &Bytes, end: u64) -> Result<String, Malformed> {
    let mut text = String::new();
    match kind {
        FrameKind::Sorted | FrameKind::Unsorted | FrameKind::Records => {
            show_records(&mut text, contents)?;
        }
        FrameKind::Index => {
            let entries = index::decode_index(contents, end)?;
            let _ = write!(text, ", {} pages", entries.len());
        }
        FrameKind::Filter => {}
        FrameKind::Name => {
            let _ = write!(text, ", \"{}\"", contents.escape_ascii());
        }
        FrameKind::Snapshot => {
            let (through, ranges) = log::decode_snapshot(contents)?;
            let _ = write!(text, ", through {through}");
            show_ranges(&mut text, &ranges);
        }
        FrameKind::Bucket => {
            let bucket = log::decode_bucket(contents)?;
            let (id, through) = (bucket.id, bucket.made_through);
            let smallest = bucket.smallest.escape_ascii();
            let _ = write!(text, ", {id} from \"{smallest}\", made through {through}");
            if let Some(sorted) = bucket.sorted {
                let (number, index, end) = (sorted.number, sorted.index_offset, sorted.end);
                let _ = write!(text, ", sorted in {number:06} index {index} end {end}");
            }
            for extent in &bucket.extents {
                let _ =
                    write!(text, ", pages in {:06} {}..{}", extent.number, extent.from, extent.to);
            }
            text.push_str(", tail");
            show_records(&mut text, &bucket.tail)?;
        }
        FrameKind::SnapshotEnd => {
            let _ = write!(text, ", {} buckets", log::decode_count(contents, "buckets")?);
        }
        FrameKind::Made => {
            for (id, smallest) in log::decode_made(contents)? {
                let _ = write!(text, ", {id} from \"{}\"", smallest.escape_ascii());
            }
        }
        FrameKind::Ranges => show_ranges(&mut text, &log::decode_ranges(contents)?),
        FrameKind::Delivered => {
            let (through, records) = log::decode_delivered(contents)?;
            let _ = write!(text, ", {records} records through {through}");
        }
        FrameKind::Collected => {
            let collected = log::decode_collected(contents)?;
            let _ = write!(text, ", {} made, gone {:?}", collected.made, collected.gone);
            show_ranges(&mut text, &collected.ranges);
        }
    }
    Ok(text)
}

fn show_records(text: &mut String, contents: &Bytes) -> Result<(), Malformed> {
    let records = record::decode_all(contents)?;
    let operands = records.iter().filter(|record| record.operand.is_some()).count();
    let _ = write!(text, ", {operands} operands, {} anchors", records.len() - operands);
    if let (Some(first), Some(last)) = (records.first(), records.last()) {
        let (first, last) = (first.key.escape_ascii(), last.key.escape_ascii());
        let numbers = records.iter().map(|record| record.last);
        let newest = numbers.max().unwrap_or_default();
        let oldest = records.iter().map(|record| record.first).min().unwrap_or_default();
        let _ = write!(text, ", \"{first}\"..=\"{last}\", numbers {oldest} to {newest}");
    }
    Ok(())
}

fn show_ranges(text: &mut String, ranges: &[log::RangeAnchor]) {
    for range in ranges {
        let end = range.end.as_ref().map(|end| format!("\"{}\"", end.escape_ascii()));
        let (start, end) = (range.start.escape_ascii(), end.unwrap_or_default());
        let _ = write!(text, ", void below {} \"{start}\"..{end}", range.seq);
    }
}
