//! Dump of a blob file.

use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;

use crate::dump::{DumpInput, DumpResult, DumpWriter};
use crate::format::blob::{
    BLOB_HEADER_BYTES, BLOB_RECORD_BYTES_MIN, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord,
    BlobTrailer, record_bytes,
};

pub(crate) fn dump_blob_file(input: &DumpInput<'_>, out: &mut DumpWriter<'_>) -> DumpResult {
    // The uid in the header is the seed of all other checksums, so the file cannot be read without its header.
    let header = BlobHeader::decode(&input.read_at_most(0, len_u64(BLOB_HEADER_BYTES))?)
        .map_err(|what| input.malformed_error(what, 0))?;
    writeln!(
        out,
        "header: blob file {}, keyspace {}, uid {:016x}",
        header.number, header.keyspace, header.uid
    )?;
    let trailer_offset = input.bytes.saturating_sub(len_u64(BLOB_TRAILER_BYTES));
    dump_records(input, header.uid, trailer_offset, out)?;
    let trailer = input.read(trailer_offset, input.bytes - trailer_offset)?;
    match BlobTrailer::decode(&trailer, header.uid, trailer_offset) {
        Ok(trailer) => writeln!(
            out,
            "trailer at {trailer_offset}: {} records, {} value bytes",
            trailer.records, trailer.value_bytes
        ),
        Err(what) => out.write_damage_line(input.malformed_error(what, trailer_offset)),
    }
}

/// Dumps the records before `end`. Stops at a record with an invalid length.
fn dump_records(input: &DumpInput<'_>, uid: u64, end: u64, out: &mut DumpWriter<'_>) -> DumpResult {
    let mut offset = len_u64(BLOB_HEADER_BYTES);
    while offset < end {
        let left = end - offset;
        let head = input.read(offset, left.min(len_u64(BLOB_RECORD_BYTES_MIN)))?;
        let bytes = match record_bytes(&head) {
            Ok(bytes) if bytes <= left => bytes,
            Ok(needed) => {
                let what = Malformed::Truncated { what: "blob record", needed, found: left };
                return out.write_damage_line(input.malformed_error(what, offset));
            }
            Err(what) => return out.write_damage_line(input.malformed_error(what, offset)),
        };
        let stored = input.read(offset, bytes)?;
        let decoded = BlobRecord::decode(&stored, uid, offset)
            .and_then(|record| record.value_bytes().map(|value_bytes| (record, value_bytes)));
        match decoded {
            Ok((record, value_bytes)) => writeln!(
                out,
                "record at {offset}, {bytes} bytes: {} at {}, value of {value_bytes} bytes, \
                 compression {:?}",
                out.format_key(record.key),
                record.seq,
                record.compression
            ),
            Err(what) => out.write_damage_line(input.malformed_error(what, offset)),
        }?;
        offset += bytes;
    }
    Ok(())
}
