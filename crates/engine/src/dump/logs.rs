//! Dump of a WAL segment or a manifest.

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;

use crate::dump::{DumpInput, DumpResult, DumpWriter};
use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::format::expiry::{expiry_of, without_expiry};
use crate::format::log_record::{LogChecksumSeed, RecordHeader};
use crate::format::manifest_header::{MANIFEST_HEADER_BYTES, ManifestHeader};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::version_edit::VersionEdit;
use crate::log_reader::{LogRead, LogReader};

pub(crate) fn dump_segment(input: &DumpInput<'_>, out: &mut DumpWriter<'_>) -> DumpResult {
    let header_bytes = len_u64(SEGMENT_HEADER_BYTES);
    let header = SegmentHeader::decode(&input.read_at_most(0, header_bytes)?)
        .map_err(|what| input.malformed_error(what, 0))?;
    let SegmentHeader { db_uid, id, first_seq, predecessor } = header;
    writeln!(
        out,
        "header: database uid {db_uid:016x}, segment {id}, sequence numbers from {first_seq}"
    )?;
    match predecessor {
        None => writeln!(out, "header: no previous segment"),
        Some(previous) => writeln!(
            out,
            "header: previous segment {}, {} bytes valid, {} synced, last sequence number {}",
            previous.id, previous.bytes, previous.mark, previous.last_seq
        ),
    }?;
    dump_records(input, LogChecksumSeed::new(db_uid, id), header_bytes, out, &dump_batch)
}

fn dump_batch(
    input: &DumpInput<'_>,
    (header, offset): (RecordHeader, u64),
    payload: &[u8],
    out: &mut DumpWriter<'_>,
) -> DumpResult {
    let RecordHeader { count, first_seq, .. } = header;
    let bytes = payload.len();
    writeln!(
        out,
        "record at {offset}: {count} operations from sequence number {first_seq}, {bytes} bytes"
    )?;
    for (index, operation) in (0u64..).zip(BatchOperationIter::new(payload)) {
        let operation = match operation {
            Ok(operation) => operation,
            Err(what) => return out.write_damage_line(input.malformed_error(what, offset)),
        };
        let key = out.format_key(&payload[operation.key]);
        let (seq, keyspace) = (first_seq.saturating_add(index), operation.keyspace);
        match operation.action {
            OperationEffect::Entry { kind, value } => {
                let stored = &payload[value];
                let bytes = without_expiry(kind, stored).len();
                let expiry = expiry_of(kind, stored);
                let expiry = expiry
                    .map_or(String::new(), |expiry_us| format!(", expires at {expiry_us} us"));
                let kind = match kind.without_expiry() {
                    EntryKind::Delete => "delete",
                    EntryKind::Merge => "merge",
                    EntryKind::ValuePointer => "value pointer",
                    _ => "put",
                };
                writeln!(
                    out,
                    "  {seq} {kind} {key} in keyspace {keyspace}, value of {bytes} bytes{expiry}"
                )
            }
            OperationEffect::DeleteRange { end } => {
                let end = end.map_or("the end".to_owned(), |end| out.format_key(&payload[end]));
                writeln!(out, "  {seq} delete range {key} to {end} in keyspace {keyspace}")
            }
        }?;
    }
    Ok(())
}

pub(crate) fn dump_manifest(input: &DumpInput<'_>, out: &mut DumpWriter<'_>) -> DumpResult {
    let header_bytes = len_u64(MANIFEST_HEADER_BYTES);
    let header = ManifestHeader::decode(&input.read_at_most(0, header_bytes)?)
        .map_err(|what| input.malformed_error(what, 0))?;
    let ManifestHeader { db_uid, number } = header;
    writeln!(out, "header: database uid {db_uid:016x}, manifest {number}")?;
    dump_records(input, LogChecksumSeed::new(db_uid, number), header_bytes, out, &dump_edit)
}

fn dump_edit(
    input: &DumpInput<'_>,
    (header, offset): (RecordHeader, u64),
    payload: &[u8],
    out: &mut DumpWriter<'_>,
) -> DumpResult {
    writeln!(out, "edit {} at {offset}, {} bytes", header.first_seq, payload.len())?;
    match VersionEdit::decode(payload) {
        Ok(edit) => edit.changes.iter().try_for_each(|change| writeln!(out, "  {change:?}")),
        Err(what) => out.write_damage_line(input.malformed_error(what, offset)),
    }
}

/// Dumps the payload of a record with the given header and offset.
type DumpRecord =
    dyn Fn(&DumpInput<'_>, (RecordHeader, u64), &[u8], &mut DumpWriter<'_>) -> DumpResult;

fn dump_records(
    input: &DumpInput<'_>,
    seed: LogChecksumSeed,
    mut offset: u64,
    out: &mut DumpWriter<'_>,
    dump_record: &DumpRecord,
) -> DumpResult {
    let mut reader = LogReader::new(&*input.file, input.path, seed, input.bytes);
    loop {
        match reader.read_record(offset)? {
            LogRead::End => return writeln!(out, "end at {offset}"),
            LogRead::Record(header, payload) => {
                if header.is_mark_only() {
                    writeln!(out, "mark at {offset}: synced up to {}", header.mark.position)?;
                } else {
                    dump_record(input, (header, offset), payload, out)?;
                }
                offset += header.record_bytes();
            }
            LogRead::Malformed(what) => {
                return dump_log_tail(input, &mut reader, offset, what, out);
            }
        }
    }
}

/// Describes the bytes after the last valid record: preallocated space, a torn tail, or corruption.
fn dump_log_tail(
    input: &DumpInput<'_>,
    reader: &mut LogReader<'_>,
    offset: u64,
    what: Malformed,
    out: &mut DumpWriter<'_>,
) -> DumpResult {
    let bytes = input.bytes - offset;
    if reader.written_bytes_after(offset)? == 0 {
        return writeln!(out, "end at {offset}, then {bytes} bytes of preallocated space");
    }
    let tail = reader.scan_tail(offset)?;
    out.write_damage_line(input.malformed_error(what, offset))?;
    let records = tail.records;
    if tail.position > offset {
        let synced = tail.position;
        writeln!(
            out,
            "{bytes} bytes from {offset} on, synced up to {synced}; {records} valid records follow"
        )
    } else {
        writeln!(
            out,
            "{bytes} bytes from {offset} on: a torn tail, unless a later file states that they were \
             synced; {records} valid records follow"
        )
    }
}
