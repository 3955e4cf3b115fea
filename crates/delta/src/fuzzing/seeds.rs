//! Inputs to begin with: the files of stores, and the pieces they consist of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lsmx::fuzzing::feed::Seeds;
use lsmx_base::coding::len_u64;

use super::repair::{OFFSET, UID, frames, uid_of};
use crate::format::frame::{FrameKind, decode_frame, put_frame};
use crate::format::header::HEADER_BYTES;

/// The target that reads what such a frame holds.
fn reader_of(kind: FrameKind) -> Option<&'static str> {
    Some(match kind {
        FrameKind::SortedPage | FrameKind::UnsortedPage | FrameKind::Records => "delta_records",
        FrameKind::Index => "delta_index",
        FrameKind::Bucket => "delta_bucket",
        FrameKind::Snapshot => "delta_snapshot",
        FrameKind::RangeMarkers => "delta_ranges",
        FrameKind::FirstBuckets => "delta_made",
        FrameKind::SnapshotEnd | FrameKind::DeliveryEnd => "delta_delivered",
        FrameKind::CollectionEnd => "delta_collected",
        // A filter is the engine's, which has a target for it.
        FrameKind::Filter | FrameKind::Keyspace => return None,
    })
}

/// Takes the files of stores apart into inputs for each target.
#[must_use]
pub fn seeds(files: &BTreeMap<PathBuf, Vec<u8>>) -> Seeds {
    let mut seeds = Seeds::new();
    seeds.insert("delta_api", lsmx::fuzzing::api_seeds());
    let mut add = |targets: &[&'static str], bytes: &[u8]| {
        for target in targets {
            seeds.entry(target).or_default().push(bytes.to_vec());
        }
    };
    for (path, bytes) in files {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("operands") => add(&["delta_log", "delta_log_repaired", "delta_recovery"], bytes),
            Some("bucket") => add(&["delta_bucket_file", "delta_bucket_file_repaired"], bytes),
            _ => continue,
        }
        let header = bytes.get(..HEADER_BYTES).unwrap_or_default();
        add(&["delta_header", "delta_header_repaired"], header);
        for (from, to) in frames(bytes) {
            let place = (uid_of(bytes), len_u64(from));
            let Ok((kind, contents, _)) = decode_frame(&bytes[from..to], place) else { continue };
            let mut moved = Vec::new();
            let fill = |out: &mut Vec<u8>| out.extend_from_slice(contents);
            if put_frame(&mut moved, (UID, OFFSET), kind, fill).is_ok() {
                add(&["delta_frame", "delta_frame_repaired"], &moved);
            }
            if let Some(target) = reader_of(kind) {
                add(&[target], contents);
            }
        }
    }
    seeds
}
