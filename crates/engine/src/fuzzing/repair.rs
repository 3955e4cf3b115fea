//! Puts checksums right around contents that are wrong, so that decoders see the contents.

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{get_u32, get_u64, len_u64, low_u32};

use crate::format::BlockKind;
use crate::format::blob::{
    BLOB_HEADER_BYTES, BLOB_TRAILER_BYTES, record_bytes, record_checksum, trailer_checksum,
};
use crate::format::block::{self, BlockHandle, TRAILER_BYTES};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::IndexBlock;
use crate::format::log_record::{LogChecksumSeed, RECORD_HEADER_BYTES, RecordHeader, SyncMark};
use crate::format::properties::TableProperties;

/// Uid of the file that single blocks are taken to come from.
pub(crate) const UID: u64 = 0x0123_4567_89ab_cdef;
/// Where in that file they lie.
pub(crate) const OFFSET: u64 = 4096;

/// A block, from its first byte to the end of its trailer.
pub(crate) fn block(bytes: &mut [u8], uid: u64, offset: u64) {
    if let Some(covered) = bytes.len().checked_sub(size_of::<u64>())
        && bytes.len() >= TRAILER_BYTES
    {
        let sum = block::checksum(&bytes[..covered], uid, offset);
        bytes[covered..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The last bytes of a table.
pub(crate) fn footer(table: &mut [u8]) {
    let Some(at) = table.len().checked_sub(FOOTER_BYTES) else { return };
    let footer = &mut table[at..];
    let sum = low_u32(xxh3(&footer[..28]));
    footer[28..32].copy_from_slice(&sum.to_le_bytes());
}

/// The block at `handle`, and returns its contents if it is one.
fn block_at(
    table: &mut [u8],
    uid: u64,
    handle: BlockHandle,
    kind: BlockKind,
) -> Option<bytes::Bytes> {
    let start = usize::try_from(handle.offset).ok()?;
    let stored = table.get_mut(start..usize::try_from(handle.end_offset().ok()?).ok()?)?;
    block(stored, uid, handle.offset);
    block::decode_block(stored.to_vec(), kind, uid, handle.offset).ok()
}

/// All blocks of a table that a reader gets to, by the reader's ways.
pub(crate) fn table(table: &mut [u8]) {
    footer(table);
    let Some(at) = table.len().checked_sub(FOOTER_BYTES) else { return };
    let Ok(Footer { properties, uid, .. }) = Footer::decode(&table[at..]) else { return };
    let Some(contents) = block_at(table, uid, properties, BlockKind::Open) else { return };
    let Ok(properties) = TableProperties::decode(&contents) else { return };
    if let Some(handle) = properties.filter {
        block_at(table, uid, handle, BlockKind::Filter);
    }
    if let Some(handle) = properties.range_tombstones {
        block_at(table, uid, handle, BlockKind::RangeTombstones);
    }
    let Some(handle) = properties.top_index else { return };
    for index in handles(table, uid, handle, BlockKind::TopIndex) {
        for data in handles(table, uid, index, BlockKind::Index) {
            block_at(table, uid, data, BlockKind::Data);
        }
    }
}

/// Where an index block points to.
pub(crate) fn handles(
    table: &mut [u8],
    uid: u64,
    handle: BlockHandle,
    kind: BlockKind,
) -> impl Iterator<Item = BlockHandle> + use<> {
    let index = block_at(table, uid, handle, kind).and_then(|block| IndexBlock::new(block).ok());
    // No more blocks than fit, whatever the count says.
    let count = index.as_ref().map_or(0, |index| index.count().min(table.len() / TRAILER_BYTES));
    (0..count).map_while(move |ordinal| index.as_ref()?.handle(ordinal).ok().flatten())
}

/// Header and records of a log: a WAL segment or a manifest, whose headers end in a checksum and
/// have the uid of the database and the number of the file at the same places.
pub(crate) fn log(bytes: &mut [u8], header_bytes: usize) {
    if bytes.len() < header_bytes {
        return;
    }
    let sum_at = header_bytes - size_of::<u64>();
    let sum = xxh3(&bytes[..sum_at]);
    bytes[sum_at..header_bytes].copy_from_slice(&sum.to_le_bytes());
    let seed =
        LogChecksumSeed::new(get_u64(bytes, 16).unwrap_or(0), get_u64(bytes, 24).unwrap_or(0));
    let mut at = header_bytes;
    while let Some(end) = record(bytes, at, seed) {
        at = end;
    }
}

/// The record at `at`; returns where it ends.
fn record(bytes: &mut [u8], at: usize, seed: LogChecksumSeed) -> Option<usize> {
    let payload_at = at + RECORD_HEADER_BYTES;
    let end = payload_at.checked_add(usize::try_from(get_u32(bytes, at + 8)?).ok()?)?;
    let payload = bytes.get(payload_at..end)?;
    let mark = get_u64(bytes, at + 24)?;
    let mark = SyncMark { position: mark & (u64::MAX >> 1), older_synced: mark >> 63 == 1 };
    let numbers = (get_u64(bytes, at + 16)?, get_u32(bytes, at + 12)?);
    let mut record = Vec::new();
    RecordHeader::encode_record(&mut record, (seed, len_u64(at)), numbers, mark, payload).ok()?;
    bytes[at..end].copy_from_slice(&record);
    Some(end)
}

/// A record of a blob file, from its first byte to its last.
pub(crate) fn blob_record(bytes: &mut [u8], uid: u64, offset: u64) {
    let length = low_u32(len_u64(bytes.len()));
    if let Some(said) = bytes.get_mut(8..12) {
        said.copy_from_slice(&length.to_le_bytes());
        let sum = record_checksum(&bytes[8..], uid, offset);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A blob file: header, records as far as their lengths lead, trailer.
pub(crate) fn blob(bytes: &mut [u8]) {
    let Some(end) = bytes.len().checked_sub(BLOB_TRAILER_BYTES) else { return };
    if end < BLOB_HEADER_BYTES {
        return;
    }
    let sum_at = BLOB_HEADER_BYTES - size_of::<u64>();
    let sum = xxh3(&bytes[..sum_at]);
    bytes[sum_at..BLOB_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    let uid = get_u64(bytes, 16).unwrap_or(0);
    let mut at = BLOB_HEADER_BYTES;
    while at < end
        && let Ok(length) = record_bytes(&bytes[at..end])
        && let Ok(length) = usize::try_from(length)
        && length <= end - at
    {
        blob_record(&mut bytes[at..at + length], uid, len_u64(at));
        at += length;
    }
    bytes[end + 16..end + 24].copy_from_slice(&uid.to_le_bytes());
    let sum = trailer_checksum(&bytes[end..end + 24], uid, len_u64(end));
    bytes[end + 24..end + 32].copy_from_slice(&sum.to_le_bytes());
}
