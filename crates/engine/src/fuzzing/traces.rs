//! Targets for traces: a whole file, the items of a record.

use std::path::Path;

use lsmx_base::coding::len_u64;

use crate::error::Error;
use crate::format::workload_trace::{TRACE_HEADER_BYTES, TraceHeader, TraceItems};
use crate::fuzzing::repair;
use crate::vfs::MemVfs;
use crate::workload_trace::{TraceEnd, TraceReader};

const PATH: &str = "/trace";

/// Reads a trace; returns its items as they would be written, and how it ends.
fn read(bytes: &[u8]) -> Result<(Vec<u8>, TraceEnd), Error> {
    let vfs = MemVfs::new();
    vfs.write_all(Path::new(PATH), bytes).expect("the root is there");
    let reader = TraceReader::open(&vfs, Path::new(PATH))?;
    let kept = reader.header().values_kept;
    let mut items = Vec::new();
    let end = reader.visit(&mut |item| {
        item.encode(kept, &mut items);
        Ok::<(), Error>(())
    })?;
    Ok((items, end))
}

/// A trace.
pub fn trace(bytes: &[u8]) {
    if let Ok(header) = TraceHeader::decode(bytes) {
        assert_eq!(header.encode(), bytes[..TRACE_HEADER_BYTES], "other bytes, same header");
    }
    let Ok((items, end)) = read(bytes) else { return };
    assert!(end.bytes_cut <= len_u64(bytes.len()) && !(end.complete && end.bytes_cut > 0));
    assert!(items.len() <= bytes.len());
    // What was cut is gone for good: without it, the same items, and nothing to cut.
    let kept = len_u64(bytes.len()) - end.bytes_cut;
    let kept = &bytes[..usize::try_from(kept).expect("it is in memory")];
    let again = read(kept).expect("a prefix is good");
    assert_eq!(again, (items, TraceEnd { bytes_cut: 0, ..end }));
}

/// As [`trace`], with the right checksums.
pub fn trace_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, TRACE_HEADER_BYTES);
    trace(&bytes);
}

/// The items of a record, with values and without: what is read is what is there.
pub fn trace_items(bytes: &[u8]) {
    for kept in [false, true] {
        let mut again = Vec::new();
        let mut whole = true;
        for item in TraceItems::new(bytes, kept) {
            match item {
                Ok(item) => item.encode(kept, &mut again),
                Err(_) => whole = false,
            }
        }
        assert!(bytes.starts_with(&again) && (!whole || again.len() == bytes.len()));
    }
}
