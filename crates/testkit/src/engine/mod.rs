//! Fuzz targets for the file formats of the engine and for whole databases.

mod blob_files;
mod blocks;
mod checksums;
mod logs;
mod policies;
mod recovery;
mod seeds;
mod tables;
mod traces;

use lsmx::internals::format::manifest_header::MANIFEST_HEADER_BYTES;
use lsmx::internals::format::segment_header::SEGMENT_HEADER_BYTES;
use lsmx::internals::format::workload_trace::TRACE_HEADER_BYTES;

pub(crate) use checksums::{OFFSET, UID};
pub use seeds::seeds_from_files;

use crate::fuzzing::FuzzTarget;
use crate::world::History;

/// Fuzz targets of the engine.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget::new("data_block", blocks::check_data_block, 94),
    FuzzTarget::new("index_block", blocks::check_index_block, 75),
    FuzzTarget::new("filter", blocks::check_filter, 50),
    FuzzTarget::new("range_tombstones", blocks::check_range_tombstones, 65),
    FuzzTarget::new("properties", blocks::check_properties, 80),
    FuzzTarget::new("block", blocks::check_sealed_block, 20),
    FuzzTarget::repaired(
        "block_repaired",
        |block| checksums::repair_block(block, checksums::UID, checksums::OFFSET),
        blocks::check_sealed_block,
        60,
    ),
    FuzzTarget::new("batch", logs::check_batch, 65),
    FuzzTarget::new("edit", logs::check_version_edit, 66),
    FuzzTarget::new("footer", tables::check_footer, 10),
    FuzzTarget::repaired("footer_repaired", checksums::repair_footer, tables::check_footer, 20),
    FuzzTarget::new("current", logs::check_current_file, 40),
    FuzzTarget::new("value_pointer", blob_files::check_value_pointer, 20),
    FuzzTarget::new("blob_record", blob_files::check_blob_record, 10),
    FuzzTarget::repaired(
        "blob_record_repaired",
        |record| checksums::repair_blob_record(record, checksums::UID, checksums::OFFSET),
        blob_files::check_blob_record,
        30,
    ),
    FuzzTarget::new("blob", blob_files::check_blob_file, 4),
    FuzzTarget::repaired(
        "blob_repaired",
        checksums::repair_blob_file,
        blob_files::check_blob_file,
        20,
    ),
    FuzzTarget::new("file_name", logs::check_file_name, 10),
    FuzzTarget::new("policy_spec", policies::check_policy_text, 40),
    FuzzTarget::new("policy_file", policies::check_policy_toml, 20),
    FuzzTarget::new("table", tables::check_table, 4),
    FuzzTarget::repaired("table_repaired", checksums::repair_table, tables::check_table, 36),
    FuzzTarget::new("wal", logs::check_wal_segment, 15),
    FuzzTarget::repaired(
        "wal_repaired",
        |log| checksums::repair_log(log, SEGMENT_HEADER_BYTES),
        logs::check_wal_segment,
        35,
    ),
    FuzzTarget::new("manifest", logs::check_manifest, 10),
    FuzzTarget::repaired(
        "manifest_repaired",
        |log| checksums::repair_log(log, MANIFEST_HEADER_BYTES),
        logs::check_manifest,
        26,
    ),
    FuzzTarget::new("trace", traces::check_trace, 10),
    FuzzTarget::repaired(
        "trace_repaired",
        |log| checksums::repair_log(log, TRACE_HEADER_BYTES),
        traces::check_trace,
        20,
    ),
    FuzzTarget::new("trace_items", traces::check_trace_items, 40),
    FuzzTarget::repaired(
        "recovery_wal",
        |log| checksums::repair_log(log, SEGMENT_HEADER_BYTES),
        recovery::check_recovery_from_segment,
        2,
    ),
    FuzzTarget::repaired(
        "recovery_manifest",
        |log| checksums::repair_log(log, MANIFEST_HEADER_BYTES),
        recovery::check_recovery_from_manifest,
        2,
    ),
    FuzzTarget::new("api", |input| History::from_bytes(input, None).check(), 1),
];
