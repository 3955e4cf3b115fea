//! Seed inputs: the files of databases, and the blocks and records in these files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsmx::internals::format::BlockKind;
use lsmx::internals::format::blob::{
    BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord, ValuePointer, put_record,
    record_bytes,
};
use lsmx::internals::format::block::{self, BlockHandle};
use lsmx::internals::format::footer::{FOOTER_BYTES, Footer};
use lsmx::internals::format::log_record::RECORD_HEADER_BYTES;
use lsmx::internals::format::manifest_header::MANIFEST_HEADER_BYTES;
use lsmx::internals::format::properties::TableProperties;
use lsmx::internals::format::segment_header::SEGMENT_HEADER_BYTES;
use lsmx::internals::format::workload_trace::{TRACE_HEADER_BYTES, TRACE_MAGIC};
use lsmx_base::coding::{get_u32, len_u64, to_usize};
use lsmx_base::file_name::FileName;
use lsmx_compaction::PolicySpec;

use super::blocks::seal_block;
use super::checksums::{OFFSET, UID, repair_index};
use super::policies::policy_toml;
use crate::fuzzing::Seeds;
use crate::world::byte_seeds;

/// Returns seeds for all fuzz targets of the engine. `files` contains the files of a database by path. The database may
/// be open at the same time.
#[must_use]
pub fn seeds_from_files(files: &BTreeMap<PathBuf, Vec<u8>>) -> Seeds {
    let mut seeds = Seeds::default();
    for (path, contents) in files {
        let name = path.file_name().and_then(|name| Path::new(name).to_str());
        let Some(name) = name else { continue };
        seeds.add(&["file_name"], name.as_bytes());
        match FileName::parse(name) {
            Some(FileName::Table(_)) => {
                add_table(&mut seeds, contents);
            }
            Some(FileName::Blob(_)) => {
                add_blob_file(&mut seeds, contents);
            }
            Some(FileName::Segment(_)) => {
                seeds.add(&["wal", "wal_repaired", "recovery_wal"], contents);
                add_payloads(&mut seeds, contents, SEGMENT_HEADER_BYTES, "batch");
            }
            Some(FileName::Manifest(_)) => {
                seeds.add(&["manifest", "manifest_repaired", "recovery_manifest"], contents);
                add_payloads(&mut seeds, contents, MANIFEST_HEADER_BYTES, "edit");
            }
            Some(FileName::Current) => seeds.add(&["current"], contents),
            None if contents.starts_with(&TRACE_MAGIC) => {
                seeds.add(&["trace", "trace_repaired"], contents);
                add_payloads(&mut seeds, contents, TRACE_HEADER_BYTES, "trace_items");
            }
            _ => {}
        }
    }
    for operations in byte_seeds() {
        seeds.add(&["api"], &operations);
    }
    add_policies(&mut seeds);
    seeds
}

/// Adds a table, its footer and its blocks as seeds. Adds only the first two data blocks of each index block.
fn add_table(seeds: &mut Seeds, table: &[u8]) -> Option<()> {
    seeds.add(&["table", "table_repaired"], table);
    let footer = &table[table.len().checked_sub(FOOTER_BYTES)?..];
    seeds.add(&["footer", "footer_repaired"], footer);
    let Footer { properties, uid, .. } = Footer::decode(footer).ok()?;
    let mut add = |handle, kind, target| add_block(seeds, table, uid, handle, kind, target);
    let contents = add(properties, BlockKind::Open, "properties")?;
    let properties = TableProperties::decode(&contents).ok()?;
    if let Some(handle) = properties.filter {
        add(handle, BlockKind::Filter, "filter");
    }
    if let Some(handle) = properties.range_tombstones {
        add(handle, BlockKind::RangeTombstones, "range_tombstones");
    }
    let top = properties.top_index?;
    add(top, BlockKind::TopIndex, "index_block");
    let mut copy = table.to_vec();
    for index in repair_index(&mut copy, uid, top, BlockKind::TopIndex) {
        add(index, BlockKind::Index, "index_block");
        for data in repair_index(&mut copy, uid, index, BlockKind::Index).take(2) {
            add(data, BlockKind::Data, "data_block");
        }
    }
    Some(())
}

/// Adds a block as a seed of the block targets, and its contents as a seed of `target`. Returns the contents.
fn add_block(
    seeds: &mut Seeds,
    table: &[u8],
    uid: u64,
    handle: BlockHandle,
    kind: BlockKind,
    target: &'static str,
) -> Option<Bytes> {
    let start = to_usize("offset", handle.offset).ok()?;
    let stored = table.get(start..to_usize("end", handle.end_offset().ok()?).ok()?)?.to_vec();
    let contents = block::decode_block(stored, kind, uid, handle.offset).ok()?;
    for sealed in seal_block(&contents, kind) {
        seeds.add(&["block", "block_repaired"], &sealed);
    }
    seeds.add(&[target], &contents);
    Some(contents)
}

/// Adds a blob file, its records, and a value pointer to each record as seeds.
fn add_blob_file(seeds: &mut Seeds, file: &[u8]) -> Option<()> {
    seeds.add(&["blob", "blob_repaired"], file);
    let uid = BlobHeader::decode(file.get(..BLOB_HEADER_BYTES)?).ok()?.uid;
    let end = file.len().checked_sub(BLOB_TRAILER_BYTES)?;
    let mut start = BLOB_HEADER_BYTES;
    while start < end {
        let len = to_usize("record", record_bytes(&file[start..]).ok()?).ok()?;
        let stored = file.get(start..start + len)?;
        let record = BlobRecord::decode(stored, uid, len_u64(start)).ok()?;
        let value_bytes = record.value_bytes().ok()?;
        let value = record.value(value_bytes).ok()?;
        let mut moved = Vec::new();
        let entry = (record.key, record.seq);
        let value = (&*value, record.compression);
        put_record(&mut moved, (UID, OFFSET), entry, value, &mut Vec::new());
        seeds.add(&["blob_record", "blob_record_repaired"], &moved);
        let mut pointer = Vec::new();
        let bytes = len_u64(len);
        ValuePointer { file: 9, offset: OFFSET, bytes, value_bytes }.put(&mut pointer);
        seeds.add(&["value_pointer"], &pointer);
        start += len;
    }
    Some(())
}

/// Adds the payload of each log record as a seed for `target`.
fn add_payloads(
    seeds: &mut Seeds,
    log: &[u8],
    header_bytes: usize,
    target: &'static str,
) -> Option<()> {
    let mut start = header_bytes;
    loop {
        let payload_start = start + RECORD_HEADER_BYTES;
        let payload_bytes = to_usize("payload", u64::from(get_u32(log, start + 8)?)).ok()?;
        let payload = log.get(payload_start..payload_start + payload_bytes)?;
        if !payload.is_empty() {
            seeds.add(&[target], payload);
        }
        start = payload_start + payload_bytes;
    }
}

/// Adds compaction policies: each preset, each preset with one parameter set, and each preset written as a composition
/// of primitives.
fn add_policies(seeds: &mut Seeds) {
    for spec in PolicySpec::all_presets() {
        seeds.add(&["policy_spec"], spec.to_string().as_bytes());
        seeds.add(&["policy_file"], format!("policy = \"{spec}\"\n").as_bytes());
        for parameter in spec.preset().into_iter().flat_map(|preset| preset.parameters()) {
            let name = parameter.name();
            let value = spec.parameter_value(*parameter).map(|value| parameter.format(value));
            let text = format!("{}({name}={})", spec.name(), value.unwrap_or_default());
            seeds.add(&["policy_spec"], text.as_bytes());
        }
        if let Ok(composed) = PolicySpec::from_primitives("seed", spec.primitives()) {
            seeds.add(&["policy_spec"], composed.to_string().as_bytes());
            seeds.add(&["policy_file"], policy_toml(&composed).as_bytes());
        }
    }
}
