//! Blob files: header, records, trailer.

use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;

use crate::dump::{Input, Lines, Shown};
use crate::error::Error;
use crate::format::blob::{
    BLOB_HEADER_BYTES, BLOB_RECORD_BYTES_MIN, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord,
    BlobTrailer, record_bytes,
};

pub(crate) fn show(input: &Input<'_>, lines: &mut Lines<'_>) -> Shown {
    let header = input.read(0, len_u64(BLOB_HEADER_BYTES).min(input.bytes))?;
    // Only it says what seeds the checksums of everything else.
    let header =
        BlobHeader::decode(&header).map_err(|what| Error::malformed(what, input.path, 0))?;
    lines.line(format_args!(
        "header: blob file {}, keyspace {}, uid {:016x}",
        header.number, header.keyspace, header.uid
    ))?;
    let trailer_at = input.bytes.saturating_sub(len_u64(BLOB_TRAILER_BYTES));
    show_records(input, header.uid, trailer_at, lines)?;
    let trailer = input.read(trailer_at, input.bytes - trailer_at)?;
    match BlobTrailer::decode(&trailer, header.uid, trailer_at) {
        Ok(trailer) => lines.line(format_args!(
            "trailer at {trailer_at}: {} records, {} value bytes",
            trailer.records, trailer.value_bytes
        )),
        Err(what) => lines.damaged(Error::malformed(what, input.path, trailer_at)),
    }
}

/// Shows records as long as it can be told where they begin.
fn show_records(input: &Input<'_>, uid: u64, end: u64, lines: &mut Lines<'_>) -> Shown {
    let mut offset = len_u64(BLOB_HEADER_BYTES);
    while offset < end {
        let at = |what: Malformed| Error::malformed(what, input.path, offset);
        let left = end - offset;
        let head = input.read(offset, left.min(len_u64(BLOB_RECORD_BYTES_MIN)))?;
        let bytes = match record_bytes(&head) {
            Ok(bytes) if bytes <= left => bytes,
            Ok(needed) => {
                let short = Malformed::Truncated { what: "blob record", needed, found: left };
                return lines.damaged(at(short));
            }
            Err(what) => return lines.damaged(at(what)),
        };
        let stored = input.read(offset, bytes)?;
        let shown = BlobRecord::decode(&stored, uid, offset)
            .and_then(|record| record.value_bytes().map(|value_bytes| (record, value_bytes)));
        match shown {
            Ok((record, value_bytes)) => {
                let (key, seq, compression) =
                    (lines.key(record.key), record.seq, record.compression);
                lines.line(format_args!(
                    "record at {offset}, {bytes} bytes: {key} at {seq}, value of {value_bytes} bytes, \
                     compression {compression:?}"
                ))?;
            }
            Err(what) => lines.damaged(at(what))?,
        }
        offset += bytes;
    }
    Ok(())
}
