//! Seed inputs: the files of operand stores, and the frames in these files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lsmx_base::coding::len_u64;
use lsmx_delta::internals::frame::{FrameKind, decode_frame, put_frame};
use lsmx_delta::internals::header::HEADER_BYTES;

use super::checksums::{OFFSET, UID, file_uid, frame_ranges};
use crate::fuzzing::Seeds;
use crate::world::byte_seeds;

/// Returns the name of the fuzz target for the contents of a frame.
fn target_for_contents(kind: FrameKind) -> Option<&'static str> {
    Some(match kind {
        FrameKind::SortedPage | FrameKind::UnsortedPage | FrameKind::Records => "delta_records",
        FrameKind::Index => "delta_index",
        FrameKind::Bucket => "delta_bucket",
        FrameKind::Snapshot => "delta_snapshot",
        FrameKind::RangeMarkers => "delta_ranges",
        FrameKind::FirstBuckets => "delta_made",
        FrameKind::SnapshotEnd | FrameKind::DeliveryEnd => "delta_delivered",
        FrameKind::CollectionEnd => "delta_collected",
        // A fuzz target of the engine covers filters.
        FrameKind::Filter | FrameKind::Keyspace => return None,
    })
}

/// Returns seeds for all fuzz targets of `lsmx-delta`. `files` contains the files of operand stores by path.
#[must_use]
pub fn seeds_from_files(files: &BTreeMap<PathBuf, Vec<u8>>) -> Seeds {
    let mut seeds = Seeds::default();
    for operations in byte_seeds() {
        seeds.add(&["delta_api"], &operations);
    }
    for (path, contents) in files {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("operands") => {
                seeds.add(&["delta_log", "delta_log_repaired", "delta_recovery"], contents);
            }
            Some("bucket") => {
                seeds.add(&["delta_bucket_file", "delta_bucket_file_repaired"], contents);
            }
            _ => continue,
        }
        let header = contents.get(..HEADER_BYTES).unwrap_or_default();
        seeds.add(&["delta_header", "delta_header_repaired"], header);
        for (start, end) in frame_ranges(contents) {
            let location = (file_uid(contents), len_u64(start));
            let Ok((kind, contents, _)) = decode_frame(&contents[start..end], location) else {
                continue;
            };
            let mut moved = Vec::new();
            let fill = |out: &mut Vec<u8>| out.extend_from_slice(contents);
            if put_frame(&mut moved, (UID, OFFSET), kind, fill).is_ok() {
                seeds.add(&["delta_frame", "delta_frame_repaired"], &moved);
            }
            if let Some(target) = target_for_contents(kind) {
                seeds.add(&[target], contents);
            }
        }
    }
    seeds
}
