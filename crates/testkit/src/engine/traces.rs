//! Fuzz targets for workload traces.

use std::path::Path;

use lsmx::Result;
use lsmx::internals::format::workload_trace::{TraceHeader, TraceItems};
use lsmx::vfs::MemVfs;
use lsmx::workload_trace::{TraceEnd, TraceReader};
use lsmx_base::coding::len_u64;

use super::logs::check_header;

const PATH: &str = "/trace";

/// Decodes a trace. Returns the encoding of the decoded items, and a description of the end of the trace.
fn read_trace(input: &[u8]) -> Result<(Vec<u8>, TraceEnd)> {
    let vfs = MemVfs::new();
    vfs.write_all(Path::new(PATH), input).expect("I/O in memory succeeds");
    let reader = TraceReader::open(&vfs, Path::new(PATH))?;
    let values_kept = reader.header().values_kept;
    let mut items = Vec::new();
    let end = reader.visit(&mut |item| {
        item.encode(values_kept, &mut items);
        Ok::<(), lsmx::Error>(())
    })?;
    Ok((items, end))
}

pub(super) fn check_trace(input: &[u8]) {
    if let Ok(header) = TraceHeader::decode(input) {
        check_header(&header.encode(), input);
    }
    let Ok((items, end)) = read_trace(input) else { return };
    assert!(end.bytes_cut <= len_u64(input.len()) && !(end.complete && end.bytes_cut > 0));
    assert!(items.len() <= input.len());
    let kept_bytes = len_u64(input.len()) - end.bytes_cut;
    let kept = &input[..usize::try_from(kept_bytes).expect("the offset is within the input")];
    let reread = read_trace(kept).expect("the trace without its torn end is valid");
    assert_eq!(reread, (items, TraceEnd { bytes_cut: 0, ..end }));
}

/// Checks the items of a trace record, decoded with and without values.
pub(super) fn check_trace_items(input: &[u8]) {
    for values_kept in [false, true] {
        let mut encoded = Vec::new();
        let mut is_valid = true;
        for item in TraceItems::new(input, values_kept) {
            match item {
                Ok(item) => item.encode(values_kept, &mut encoded),
                Err(_) => is_valid = false,
            }
        }
        assert!(input.starts_with(&encoded) && (!is_valid || encoded.len() == input.len()));
    }
}
