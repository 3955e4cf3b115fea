//! Dump of a workload trace.

use std::path::Path;

use crate::dump::{DumpResult, DumpStop, DumpWriter};
use crate::vfs::Vfs;
use crate::workload_trace::{TraceEvent, TraceHeader, TraceItem, TraceReader, TraceValue};

/// Writes one line per item.
pub(crate) fn dump_trace(vfs: &dyn Vfs, path: &Path, out: &mut DumpWriter<'_>) -> DumpResult {
    let reader = TraceReader::open(vfs, path)?;
    let TraceHeader { keys_hashed, values_kept, uid, begun_us } = reader.header();
    let keys = if keys_hashed { "keys hashed" } else { "keys stored" };
    let values = if values_kept { "values stored" } else { "value sizes stored" };
    writeln!(out, "trace {uid:016x}, begun at {begun_us} us, {keys}, {values}")?;
    let mut time_us = 0u64;
    let end = reader.visit(&mut |item| {
        time_us = time_us.saturating_add(item.after_us);
        dump_trace_item(time_us, &item, out)
    });
    let end = match end {
        Ok(end) => end,
        Err(DumpStop::File(error)) => return out.write_damage_line(error),
        Err(stop) => return Err(stop),
    };
    if !end.complete {
        writeln!(
            out,
            "trace is incomplete: {} operations, then {} bytes without a valid record",
            end.operations, end.bytes_cut
        )?;
    }
    Ok(())
}

fn dump_trace_item(time_us: u64, item: &TraceItem<'_>, out: &mut DumpWriter<'_>) -> DumpResult {
    let key = |key: &[u8]| out.format_key(key);
    let size = |value: TraceValue<'_>| format!("value of {} bytes", value.bytes);
    let bound = |bound: Option<&[u8]>| bound.map_or_else(|| "the end".to_owned(), key);
    let text = match item.event {
        TraceEvent::Put { keyspace, key: at, value } => {
            format!("put {} in keyspace {keyspace}, {}", key(at), size(value))
        }
        TraceEvent::Delete { keyspace, key: at } => {
            format!("delete {} in keyspace {keyspace}", key(at))
        }
        TraceEvent::Merge { keyspace, key: at, operand } => {
            format!("merge {} in keyspace {keyspace}, {}", key(at), size(operand))
        }
        TraceEvent::DeleteRange { keyspace, start, end } => {
            format!("delete range {} to {} in keyspace {keyspace}", key(start), bound(end))
        }
        TraceEvent::Get { keyspace, key: at, found } => {
            let found =
                found.map_or("absent".to_owned(), |bytes| format!("value of {bytes} bytes"));
            format!("get {} in keyspace {keyspace}: {found}", key(at))
        }
        TraceEvent::Scan { keyspace, backward, start, entries } => {
            let direction = if backward { "backward" } else { "forward" };
            let start = bound(start);
            format!("scan {direction} from {start} in keyspace {keyspace}: {entries} entries")
        }
        TraceEvent::Batch { operations } => format!("batch of {operations} operations"),
        TraceEvent::Keyspace { keyspace, name } => format!("keyspace {keyspace} is {name:?}"),
        TraceEvent::Lost { operations } => format!("{operations} operations were not recorded"),
        TraceEvent::End { operations } => format!("end: {operations} operations"),
    };
    let synced = if item.synced { ", synced" } else { "" };
    writeln!(out, "{time_us} us: {text}{synced}")
}
