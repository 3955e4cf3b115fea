//! Traces: a line for each item.

use std::path::Path;

use crate::dump::{Lines, Shown, Stop};
use crate::vfs::Vfs;
use crate::workload_trace::{TraceEvent, TraceHeader, TraceItem, TraceReader, TraceValue};

pub(crate) fn show(vfs: &dyn Vfs, path: &Path, lines: &mut Lines<'_>) -> Shown {
    let reader = TraceReader::open(vfs, path)?;
    let TraceHeader { keys_hashed, values_kept, uid, begun_us } = reader.header();
    let keys = if keys_hashed { "keys hashed" } else { "keys as they were" };
    let values = if values_kept { "with values" } else { "values by their sizes" };
    lines.line(format_args!("trace {uid:016x}, begun at {begun_us} us, {keys}, {values}"))?;
    let mut at_us = 0u64;
    let end = reader.visit(&mut |item| {
        at_us = at_us.saturating_add(item.after_us);
        show_item(at_us, &item, lines)
    });
    let end = match end {
        Ok(end) => end,
        Err(Stop::File(error)) => return lines.damaged(error),
        Err(stop) => return Err(stop),
    };
    if !end.complete {
        lines.line(format_args!(
            "not ended in order: {} operations, {} bytes behind them",
            end.operations, end.bytes_cut
        ))?;
    }
    Ok(())
}

fn show_item(at_us: u64, item: &TraceItem<'_>, lines: &mut Lines<'_>) -> Shown {
    let synced = if item.synced { ", synced" } else { "" };
    let size = |value: TraceValue<'_>| format!("value of {} bytes", value.bytes);
    let what = match item.event {
        TraceEvent::Put { keyspace, key, value } => {
            format!("put {} in keyspace {keyspace}, {}", lines.key(key), size(value))
        }
        TraceEvent::Delete { keyspace, key } => {
            format!("delete {} in keyspace {keyspace}", lines.key(key))
        }
        TraceEvent::Merge { keyspace, key, operand } => {
            format!("merge {} in keyspace {keyspace}, {}", lines.key(key), size(operand))
        }
        TraceEvent::DeleteRange { keyspace, start, end } => {
            let end = end.map_or_else(|| "the end".to_owned(), |end| lines.key(end));
            format!("delete range {} to {end} in keyspace {keyspace}", lines.key(start))
        }
        TraceEvent::Get { keyspace, key, found } => {
            let found = found.map_or_else(
                || "absent".to_owned(),
                |bytes| size(TraceValue { bytes, content: None }),
            );
            format!("get {} in keyspace {keyspace}: {found}", lines.key(key))
        }
        TraceEvent::Scan { keyspace, backward, start, entries } => {
            let way = if backward { "backward" } else { "forward" };
            let start = start.map_or_else(|| "the end".to_owned(), |start| lines.key(start));
            format!("scan {way} from {start} in keyspace {keyspace}: {entries} entries")
        }
        TraceEvent::Batch { operations } => format!("batch of {operations} operations"),
        TraceEvent::Keyspace { keyspace, name } => format!("keyspace {keyspace} is {name:?}"),
        TraceEvent::Lost { operations } => format!("{operations} operations were not recorded"),
        TraceEvent::End { operations } => format!("end: {operations} operations"),
    };
    lines.line(format_args!("{at_us} us: {what}{synced}"))
}
