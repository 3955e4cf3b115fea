//! Corrects the checksums of changed files. Otherwise, decoders would reject each changed file because of a wrong
//! checksum.

use bytes::Bytes;
use lsmx::internals::format::BlockKind;
use lsmx::internals::format::blob::{
    BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, record_bytes, record_checksum, trailer_checksum,
};
use lsmx::internals::format::block::{self, BlockHandle, TRAILER_BYTES};
use lsmx::internals::format::footer::{FOOTER_BYTES, Footer};
use lsmx::internals::format::index::IndexBlock;
use lsmx::internals::format::log_record::{
    LogChecksumSeed, RECORD_HEADER_BYTES, RecordHeader, SyncMark,
};
use lsmx::internals::format::properties::TableProperties;
use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{get_u32, get_u64, len_u64, low_u32};

/// File uid in the checksum seeds of single blocks and records under test.
pub(crate) const UID: u64 = 0x0123_4567_89ab_cdef;
/// File offset in the checksum seeds of single blocks and records under test.
pub(crate) const OFFSET: u64 = 4096;

/// Corrects the checksum of a block. `block` includes the trailer.
pub(super) fn repair_block(block: &mut [u8], uid: u64, offset: u64) {
    if block.len() >= TRAILER_BYTES {
        let (covered, stored) = block.split_at_mut(block.len() - size_of::<u64>());
        stored.copy_from_slice(&block::checksum(covered, uid, offset).to_le_bytes());
    }
}

/// Corrects the checksum in the footer of a table.
pub(super) fn repair_footer(table: &mut [u8]) {
    let Some(start) = table.len().checked_sub(FOOTER_BYTES) else { return };
    let footer = &mut table[start..];
    let checksum = low_u32(xxh3(&footer[..28]));
    footer[28..32].copy_from_slice(&checksum.to_le_bytes());
}

/// Corrects the checksum of the block at `handle`. Returns the decoded contents if the block is valid.
fn repair_block_at(
    table: &mut [u8],
    uid: u64,
    handle: BlockHandle,
    kind: BlockKind,
) -> Option<Bytes> {
    let start = usize::try_from(handle.offset).ok()?;
    let stored = table.get_mut(start..usize::try_from(handle.end_offset().ok()?).ok()?)?;
    repair_block(stored, uid, handle.offset);
    block::decode_block(stored.to_vec(), kind, uid, handle.offset).ok()
}

/// Corrects the checksums of the footer and of all blocks that are reachable from the footer.
pub(super) fn repair_table(table: &mut [u8]) {
    repair_footer(table);
    let Some(footer_start) = table.len().checked_sub(FOOTER_BYTES) else { return };
    let Ok(Footer { properties, uid, .. }) = Footer::decode(&table[footer_start..]) else { return };
    let Some(contents) = repair_block_at(table, uid, properties, BlockKind::Open) else { return };
    let Ok(properties) = TableProperties::decode(&contents) else { return };
    if let Some(handle) = properties.filter {
        repair_block_at(table, uid, handle, BlockKind::Filter);
    }
    if let Some(handle) = properties.range_tombstones {
        repair_block_at(table, uid, handle, BlockKind::RangeTombstones);
    }
    let Some(handle) = properties.top_index else { return };
    for index in repair_index(table, uid, handle, BlockKind::TopIndex) {
        for data in repair_index(table, uid, index, BlockKind::Index) {
            repair_block_at(table, uid, data, BlockKind::Data);
        }
    }
}

/// Corrects the checksum of the index block at `handle`. Returns the handles in the block.
pub(super) fn repair_index(
    table: &mut [u8],
    uid: u64,
    handle: BlockHandle,
    kind: BlockKind,
) -> impl Iterator<Item = BlockHandle> + use<> {
    let contents = repair_block_at(table, uid, handle, kind);
    let index = contents.and_then(|contents| IndexBlock::new(contents).ok());
    // The index may claim more blocks than fit into the table.
    let count = index.as_ref().map_or(0, |index| index.count().min(table.len() / TRAILER_BYTES));
    (0..count).map_while(move |ordinal| index.as_ref()?.handle(ordinal).ok().flatten())
}

/// Corrects the checksum at the end of a file header.
fn repair_header(header: &mut [u8]) {
    let (covered, stored) = header.split_at_mut(header.len() - size_of::<u64>());
    stored.copy_from_slice(&xxh3(covered).to_le_bytes());
}

/// Corrects the checksums of the header and the records of a WAL segment, a manifest or a workload trace.
///
/// In these files, the header ends with its checksum. The seed of the record checksums consists of two numbers that
/// have the same offsets in all these headers.
pub(super) fn repair_log(log: &mut [u8], header_bytes: usize) {
    if log.len() < header_bytes {
        return;
    }
    repair_header(&mut log[..header_bytes]);
    let seed = LogChecksumSeed::new(get_u64(log, 16).unwrap_or(0), get_u64(log, 24).unwrap_or(0));
    let mut offset = header_bytes;
    while let Some(end) = repair_log_record(log, offset, seed) {
        offset = end;
    }
}

/// Corrects the checksum of the log record at `start`. Returns the end offset of the record.
fn repair_log_record(log: &mut [u8], start: usize, seed: LogChecksumSeed) -> Option<usize> {
    let payload_start = start + RECORD_HEADER_BYTES;
    let end = payload_start.checked_add(usize::try_from(get_u32(log, start + 8)?).ok()?)?;
    let payload = log.get(payload_start..end)?;
    let mark = get_u64(log, start + 24)?;
    let mark = SyncMark { position: mark & (u64::MAX >> 1), older_synced: mark >> 63 == 1 };
    let numbers = (get_u64(log, start + 16)?, get_u32(log, start + 12)?);
    let mut record = Vec::new();
    let location = (seed, len_u64(start));
    RecordHeader::encode_record(&mut record, location, numbers, mark, payload).ok()?;
    log[start..end].copy_from_slice(&record);
    Some(end)
}

/// Corrects the length and the checksum of a record of a blob file.
pub(super) fn repair_blob_record(record: &mut [u8], uid: u64, offset: u64) {
    let len = low_u32(len_u64(record.len()));
    if let Some(stored_len) = record.get_mut(8..12) {
        stored_len.copy_from_slice(&len.to_le_bytes());
        let checksum = record_checksum(&record[8..], uid, offset);
        record[..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Corrects the checksums of the header, the records and the trailer of a blob file.
pub(super) fn repair_blob_file(file: &mut [u8]) {
    let Some(end) = file.len().checked_sub(BLOB_TRAILER_BYTES) else { return };
    if end < BLOB_HEADER_BYTES {
        return;
    }
    repair_header(&mut file[..BLOB_HEADER_BYTES]);
    let uid = get_u64(file, 16).unwrap_or(0);
    let mut start = BLOB_HEADER_BYTES;
    while start < end
        && let Ok(len) = record_bytes(&file[start..end])
        && let Ok(len) = usize::try_from(len)
        && len <= end - start
    {
        repair_blob_record(&mut file[start..start + len], uid, len_u64(start));
        start += len;
    }
    file[end + 16..end + 24].copy_from_slice(&uid.to_le_bytes());
    let checksum = trailer_checksum(&file[end..end + 24], uid, len_u64(end));
    file[end + 24..end + 32].copy_from_slice(&checksum.to_le_bytes());
}
