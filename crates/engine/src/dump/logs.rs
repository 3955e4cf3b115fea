//! Segments of the write-ahead log and manifests: records, marks, and what is behind the last good
//! one.

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;

use crate::dump::{Input, Lines, Shown};
use crate::error::Error;
use crate::format::batch::{BatchAction, BatchOperations};
use crate::format::log_record::{LogSeed, RecordHeader};
use crate::format::manifest_header::{MANIFEST_HEADER_BYTES, ManifestHeader};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::version_edit::VersionEdit;
use crate::log_reader::{LogRead, LogReader};

pub(crate) fn show_segment(input: &Input<'_>, lines: &mut Lines<'_>) -> Shown {
    let first = input.read(0, input.bytes.min(len_u64(SEGMENT_HEADER_BYTES)))?;
    let header =
        SegmentHeader::decode(&first).map_err(|what| Error::malformed(what, input.path, 0))?;
    let SegmentHeader { db_uid, id, first_seq, predecessor } = header;
    lines.line(format_args!(
        "header: database uid {db_uid:016x}, segment {id}, numbers from {first_seq}"
    ))?;
    match predecessor {
        None => lines.line(format_args!("header: starts a chain"))?,
        Some(before) => lines.line(format_args!(
            "header: follows segment {}, of which {} bytes count, {} were synced, last number {}",
            before.id, before.bytes, before.mark, before.last_seq
        ))?,
    }
    let seed = LogSeed::new(db_uid, id);
    show_records(
        input,
        seed,
        len_u64(SEGMENT_HEADER_BYTES),
        lines,
        &mut |header, payload, lines| {
            lines.line(format_args!(
                "record at {}: {} operations from number {}, {} bytes",
                header.offset,
                header.record.count,
                header.record.first_seq,
                payload.len()
            ))?;
            for (at, operation) in (0u64..).zip(BatchOperations::new(payload)) {
                let operation = match operation {
                    Ok(operation) => operation,
                    Err(what) => {
                        return lines.damaged(Error::malformed(what, input.path, header.offset));
                    }
                };
                let key = lines.key(&payload[operation.key]);
                let seq = header.record.first_seq.saturating_add(at);
                let keyspace = operation.keyspace;
                match operation.action {
                    BatchAction::Entry { kind, value } => {
                        let kind = match kind {
                            EntryKind::Put => "put",
                            EntryKind::Delete => "delete",
                            EntryKind::Merge => "merge",
                            EntryKind::ValuePointer => "value pointer",
                        };
                        let bytes = value.len();
                        lines.line(format_args!(
                            "  {seq} {kind} {key} in keyspace {keyspace}, value of {bytes} bytes"
                        ))?;
                    }
                    BatchAction::DeleteRange { end } => {
                        let end = end.map(|end| lines.key(&payload[end]));
                        let end = end.unwrap_or_else(|| "the end".to_owned());
                        lines.line(format_args!(
                            "  {seq} delete range {key} to {end} in keyspace {keyspace}"
                        ))?;
                    }
                }
            }
            Ok(())
        },
    )
}

pub(crate) fn show_manifest(input: &Input<'_>, lines: &mut Lines<'_>) -> Shown {
    let first = input.read(0, input.bytes.min(len_u64(MANIFEST_HEADER_BYTES)))?;
    let header =
        ManifestHeader::decode(&first).map_err(|what| Error::malformed(what, input.path, 0))?;
    let ManifestHeader { db_uid, number } = header;
    lines.line(format_args!("header: database uid {db_uid:016x}, manifest {number}"))?;
    let seed = LogSeed::new(db_uid, number);
    show_records(
        input,
        seed,
        len_u64(MANIFEST_HEADER_BYTES),
        lines,
        &mut |header, payload, lines| {
            lines.line(format_args!(
                "edit {} at {}, {} bytes",
                header.record.first_seq,
                header.offset,
                payload.len()
            ))?;
            match VersionEdit::decode(payload) {
                Ok(edit) => edit
                    .changes
                    .iter()
                    .try_for_each(|change| lines.line(format_args!("  {change:?}"))),
                Err(what) => lines.damaged(Error::malformed(what, input.path, header.offset)),
            }
        },
    )
}

/// A record and where it stands.
struct Placed {
    record: RecordHeader,
    offset: u64,
}

type ShowRecord<'a> = &'a mut dyn FnMut(&Placed, &[u8], &mut Lines<'_>) -> Shown;

fn show_records(
    input: &Input<'_>,
    seed: LogSeed,
    mut offset: u64,
    lines: &mut Lines<'_>,
    show: ShowRecord<'_>,
) -> Shown {
    let mut reader = LogReader::new(&*input.file, input.path, seed, input.bytes);
    loop {
        let what = match reader.read_record(offset)? {
            LogRead::End => return lines.line(format_args!("end at {offset}")),
            LogRead::Record(record, payload) => {
                let mark = record.mark;
                if record.is_mark_only() {
                    lines.line(format_args!("mark at {offset}: synced up to {}", mark.position))?;
                } else {
                    show(&Placed { record, offset }, payload, lines)?;
                }
                offset += record.record_bytes();
                continue;
            }
            LogRead::Malformed(what) => what,
        };
        return show_end(input, &mut reader, (offset, what), lines);
    }
}

/// What is behind the last good record: a torn tail, or damage with records behind it.
fn show_end(
    input: &Input<'_>,
    reader: &mut LogReader<'_>,
    (offset, what): (u64, Malformed),
    lines: &mut Lines<'_>,
) -> Shown {
    let left = input.bytes - offset;
    if reader.written_bytes_after(offset)? == 0 {
        return lines
            .line(format_args!("end at {offset}, then {left} zeros by which the file has grown"));
    }
    let tail = reader.scan_tail(offset)?;
    let error: Error = Error::malformed(what, input.path, offset);
    lines.damaged(error)?;
    if tail.position > offset {
        lines.line(format_args!(
            "{left} bytes from {offset} on had been synced, as far as {}; {} whole records behind",
            tail.position, tail.records
        ))
    } else {
        lines.line(format_args!(
            "{left} bytes from {offset} on may never have been on stable storage: a torn tail, if no \
             later file says otherwise; {} whole records behind",
            tail.records
        ))
    }
}
