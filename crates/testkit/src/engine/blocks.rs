//! Fuzz targets for table blocks.

use bytes::Bytes;
use lsmx::internals::format::BlockKind;
use lsmx::internals::format::block::{self, BlockHandle, Compression, TRAILER_BYTES};
use lsmx::internals::format::data_block::cursor::DataBlockCursor;
use lsmx::internals::format::data_block::{DataBlock, DataBlockBuilder, ENTRIES_AT};
use lsmx::internals::format::index::{
    ENCODING_PREFIX, IndexBlock, PrefixIndexBuilder, RESTART_INTERVAL, Separator, SeparatorSide,
};
use lsmx::internals::format::properties::TableProperties;
use lsmx::internals::format::range_tombstones::{self, FragmentedTombstones};
use lsmx_base::filter::{Filter, key_hash};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use super::checksums::{OFFSET, UID};
use crate::fuzzing::{Entry, PROBE_KEYS};

/// Decodes the entries of a data block in order, without a cursor.
fn decode_entries(block: &DataBlock) -> Result<Vec<Entry>, Malformed> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut key = Vec::new();
    let mut offset = ENTRIES_AT;
    while offset < block.entries_end() {
        let entry = block.entry(offset)?;
        if entry.shared > key.len() {
            return Err(Malformed::Order { what: "shared bytes are" });
        }
        key.truncate(entry.shared);
        key.extend_from_slice(entry.suffix);
        let value = block.bytes()[entry.value_at..entry.next].to_vec();
        entries.push((key.clone(), entry.seq, entry.kind, value));
        offset = entry.next;
    }
    Ok(entries)
}

/// Reads the entries of a data block with a cursor, forward or backward. Returns the entries in ascending order.
fn scan_data_block(block: &DataBlock, is_forward: bool) -> Result<Vec<Entry>, Malformed> {
    let mut cursor = DataBlockCursor::new(block.clone());
    let mut entries = Vec::new();
    if is_forward {
        cursor.first()?
    } else {
        cursor.last()?
    }
    while cursor.valid() {
        let key = cursor.key();
        entries.push((key.user_key.to_vec(), key.seq, key.kind, cursor.value().to_vec()));
        assert!(entries.len() <= block.bytes().len(), "the scan does not end");
        if is_forward { cursor.next()? } else { cursor.prev()? }
    }
    if !is_forward {
        entries.reverse();
    }
    Ok(entries)
}

fn internal_key(entry: &Entry) -> InternalKey<'_> {
    InternalKey { user_key: &entry.0, seq: entry.1, kind: entry.2 }
}

pub(super) fn check_data_block(input: &[u8]) {
    let Ok(block) = DataBlock::new(BlockBytes::copy_from(input)) else { return };
    let forward = scan_data_block(&block, true);
    let backward = scan_data_block(&block, false);
    for key in PROBE_KEYS {
        let _ = block.get(key, SeqNo(20));
        let mut cursor = DataBlockCursor::new(block.clone());
        let _ = cursor.seek(key, SeqNo::MAX);
        let _ = cursor.seek_before(key, SeqNo(3));
    }
    let decoded = decode_entries(&block);
    assert_eq!(forward.is_ok(), decoded.is_ok(), "the cursor and the decoder disagree");
    let Ok(entries) = decoded else {
        assert!(block.check_invariants().is_err(), "the check accepts a malformed block");
        return;
    };
    assert_eq!(forward.as_ref(), Ok(&entries));
    let is_sorted = entries.is_sorted_by(|a, b| internal_key(a) < internal_key(b));
    if block.check_invariants().is_err() || !is_sorted {
        return;
    }
    // The block passed all checks, so a builder could have written it, except for the distances between restart points.
    assert_eq!(backward.as_ref(), Ok(&entries));
    for (index, entry) in entries.iter().enumerate() {
        let is_newest = index == 0 || entries[index - 1].0 != entry.0;
        // Two entries may have the same key and sequence number. A lookup returns the first of them.
        let hit = block
            .get(&entry.0, entry.1)
            .expect("the block was checked")
            .expect("the block has the entry");
        assert!(hit.seq == entry.1, "{hit:?} for {entry:?}");
        let mut cursor = DataBlockCursor::new(block.clone());
        cursor.seek(&entry.0, SeqNo::MAX).expect("the block was checked");
        assert!(cursor.valid() && (!is_newest || cursor.key() == internal_key(entry)));
        cursor.seek_before(&entry.0, SeqNo::MAX).expect("the block was checked");
        assert!(!cursor.valid() || cursor.key().user_key < entry.0.as_slice());
        assert!(cursor.valid() || entries[0].0 == entry.0, "no entry before {entry:?}");
    }
    check_data_block_rebuild(input, &block, &entries);
}

/// Checks that the builder encodes the entries to the same bytes. Skips blocks with irregular distances between restart
/// points.
fn check_data_block_rebuild(input: &[u8], block: &DataBlock, entries: &[Entry]) {
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let restarts = u32::try_from(block.restart_count()).unwrap_or(u32::MAX);
    let stored = block.restart_interval().and_then(|interval| u32::try_from(interval).ok());
    for interval in [1, 4, 16, count.div_ceil(restarts.max(1)), stored.unwrap_or(0)] {
        if interval == 0 || count.div_ceil(interval) != restarts {
            continue;
        }
        let mut builder = DataBlockBuilder::new(interval, block.has_tags());
        for entry in entries {
            builder.add(internal_key(entry), &entry.3);
        }
        let mut rebuilt = Vec::new();
        builder.finish(&mut rebuilt);
        let has_same_restarts = rebuilt.len() == input.len()
            && rebuilt[block.entries_end()..] == input[block.entries_end()..];
        assert!(!has_same_restarts || rebuilt == input, "data block is not canonical");
    }
}

/// Checks the contents of an index block or a top index.
pub(super) fn check_index_block(input: &[u8]) {
    let Ok(index) = IndexBlock::new(Bytes::copy_from_slice(input)) else { return };
    // Each data block takes at least one bit of the index block, which limits the number of data blocks.
    assert!(index.count() <= 8 * input.len() && index.bytes() == input.len());
    for key in PROBE_KEYS {
        let _ = index.seek(key, SeqNo(20));
    }
    let handles: Vec<_> = [0, 1, index.count() / 2, index.count() - 1, index.count()]
        .into_iter()
        .map(|ordinal| (ordinal, index.handle(ordinal)))
        .collect();
    let Ok(entries) = index.entries() else { return };
    assert_eq!(entries.len(), index.count());
    for (ordinal, handle) in handles {
        assert_eq!(handle, Ok(entries.get(ordinal).map(|(_, handle)| *handle)));
    }
    let separators: Vec<&Separator> = entries.iter().flat_map(|(after, _)| after).collect();
    let is_sorted = separators.is_sorted_by(|a, b| {
        // `a` is less than `b` if some version of the key of `b` is before `b` but not before `a`.
        let seq = match b.versions {
            SeparatorSide::Before => SeqNo::ZERO,
            SeparatorSide::Split(seq) => seq,
            SeparatorSide::After => SeqNo(u64::MAX),
        };
        a.user_key <= b.user_key && a.is_before(&b.user_key, seq)
    });
    if !is_sorted {
        return;
    }
    for separator in &separators {
        let split = match separator.versions {
            SeparatorSide::Split(seq) => seq,
            SeparatorSide::Before | SeparatorSide::After => SeqNo::MAX,
        };
        let longer = [&separator.user_key[..], &[0]].concat();
        let shorter = separator.user_key.split_last().map_or(&[][..], |(_, rest)| rest);
        for key in [&separator.user_key, &longer[..], shorter] {
            for seq in [SeqNo::ZERO, split, SeqNo::MAX] {
                let expected = entries
                    .iter()
                    .position(|(after, _)| !after.as_ref().is_some_and(|a| a.is_before(key, seq)))
                    .map(|ordinal| (ordinal, entries[ordinal].1));
                assert_eq!(index.seek(key, seq), Ok(expected), "{key:?} at {seq}");
            }
        }
    }
    check_index_block_rebuild(input, &entries);
}

/// Checks that the top-index builder encodes the entries to the same bytes.
fn check_index_block_rebuild(input: &[u8], entries: &[(Option<Separator>, BlockHandle)]) {
    let are_disjoint =
        entries.is_sorted_by(|a, b| a.1.end_offset().is_ok_and(|end| end <= b.1.offset));
    if input[0] != ENCODING_PREFIX || input[1] != RESTART_INTERVAL || !are_disjoint {
        return;
    }
    let mut builder = PrefixIndexBuilder::new();
    for (separator, handle) in entries {
        builder.add(separator.clone().unwrap_or_default(), *handle);
    }
    assert_eq!(builder.finish(), input, "index block is not canonical");
}

pub(super) fn check_filter(input: &[u8]) {
    let Ok(filter) = Filter::new(Bytes::copy_from_slice(input)) else { return };
    assert_eq!(filter.bytes(), input.len());
    for hash in PROBE_KEYS.map(key_hash).into_iter().chain([0, 1 << 63, u64::MAX]) {
        let _ = filter.may_contain(hash);
    }
}

pub(super) fn check_range_tombstones(input: &[u8]) {
    let Ok(spans) = FragmentedTombstones::decode(&Bytes::copy_from_slice(input)) else { return };
    assert!(spans.bytes() <= 64 * input.len() + 1024, "{} bytes in memory", spans.bytes());
    assert_eq!(range_tombstones::encode(spans.as_slice()), input, "block is not canonical");
    for span in spans.as_slice() {
        assert_eq!(spans.newest_covering_seq(&span.start, SeqNo::MAX), span.seqs.first().copied());
        if let Some(end) = &span.end {
            assert_ne!(&span.start, end);
        }
    }
    for key in PROBE_KEYS {
        for snapshot in [SeqNo::ZERO, SeqNo(30), SeqNo::MAX] {
            assert!(spans.newest_covering_seq(key, snapshot).is_none_or(|seq| seq <= snapshot));
        }
    }
}

pub(super) fn check_properties(input: &[u8]) {
    let Ok(properties) = TableProperties::decode(&Bytes::copy_from_slice(input)) else { return };
    // The encoded bytes may differ from the input. Missing properties decode as 0, and unknown properties are skipped.
    let encoded = Bytes::from(properties.encode());
    assert_eq!(TableProperties::decode(&encoded), Ok(properties));
}

/// Checks a block including its trailer.
pub(super) fn check_sealed_block(input: &[u8]) {
    let kind = input.len().checked_sub(TRAILER_BYTES).and_then(|at| BlockKind::from_u8(input[at]));
    for kind in [kind.unwrap_or(BlockKind::Data), BlockKind::Bucket] {
        let Ok(contents) = block::decode_block(input.to_vec(), kind, UID, OFFSET) else { continue };
        assert!(contents.len() <= 255 * input.len());
        for sealed in seal_block(&contents, kind) {
            assert_eq!(block::decode_block(sealed, kind, UID, OFFSET), Ok(contents.clone()));
        }
    }
}

/// Adds a block trailer to the contents. Returns the block without compression and with compression.
pub(super) fn seal_block(contents: &[u8], kind: BlockKind) -> [Vec<u8>; 2] {
    [Compression::None, Compression::Lz4].map(|compression| {
        let mut sealed = contents.to_vec();
        block::encode_block(&mut sealed, kind, compression, 0, UID, OFFSET, &mut Vec::new());
        sealed
    })
}
