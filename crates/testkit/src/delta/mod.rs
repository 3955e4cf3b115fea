//! Fuzz targets for the file formats of `lsmx-delta`, and for databases with its operand stores.

mod checksums;
mod files;
mod frames;
mod recovery;
mod seeds;
mod store_context;

pub use checksums::{frame_ranges, repair_file};
pub use seeds::seeds_from_files;
pub use store_context::{ReadCounts, StoreDir, store_context};

use crate::fuzzing::FuzzTarget;
use crate::simple_store::SimpleStore;
use crate::world::History;

/// Fuzz targets of `lsmx-delta`.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget::new("delta_header", frames::check_header, 20),
    FuzzTarget::repaired(
        "delta_header_repaired",
        checksums::repair_header,
        frames::check_header,
        40,
    ),
    FuzzTarget::new("delta_frame", frames::check_frame, 30),
    FuzzTarget::repaired(
        "delta_frame_repaired",
        |frame| checksums::repair_frame(frame, checksums::UID, checksums::OFFSET),
        frames::check_frame,
        80,
    ),
    FuzzTarget::new("delta_records", frames::check_records, 157),
    FuzzTarget::new("delta_index", frames::check_index, 130),
    FuzzTarget::new("delta_bucket", frames::check_bucket_entry, 110),
    FuzzTarget::new("delta_snapshot", frames::check_snapshot_start, 50),
    FuzzTarget::new("delta_ranges", frames::check_range_markers, 60),
    FuzzTarget::new("delta_made", frames::check_first_buckets, 50),
    FuzzTarget::new("delta_delivered", frames::check_delivery_end, 30),
    FuzzTarget::new("delta_collected", frames::check_collection_end, 60),
    FuzzTarget::new("delta_log", files::check_log, 20),
    FuzzTarget::repaired("delta_log_repaired", checksums::repair_file, files::check_log, 50),
    FuzzTarget::new("delta_bucket_file", files::check_bucket_file, 10),
    FuzzTarget::repaired(
        "delta_bucket_file_repaired",
        checksums::repair_file,
        files::check_bucket_file,
        40,
    ),
    FuzzTarget::repaired(
        "delta_recovery",
        checksums::repair_file,
        recovery::check_recovery_from_log,
        60,
    ),
    FuzzTarget::new("delta_api", check_operations_with_store, 3),
];

/// Applies operations to a database with operand stores. The buckets are so small that bucket splits and collections
/// occur.
fn check_operations_with_store(input: &[u8]) {
    // `SimpleStore::or_delta` converts these options to a store with at most 4 buckets of 512 bytes and a log of at
    // most 1024 bytes.
    let store = SimpleStore { collect_after: 15, to_tree_one_in: 1, lazy: true };
    History::from_bytes(input, Some(store)).check();
}
