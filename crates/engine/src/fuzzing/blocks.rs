//! Targets for the contents of blocks and records.

use bytes::Bytes;
use lsmx_base::filter::Filter;
use lsmx_base::filter::key_hash;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use crate::format::BlockKind;
use crate::format::batch::{BatchOperationIter, OperationEffect, put_operation, put_range_delete};
use crate::format::block::{self, BlockHandle, TRAILER_BYTES};
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::data_block::{DataBlock, DataBlockBuilder, ENTRIES_AT};
use crate::format::index::{
    ENCODING_PREFIX, IndexBlock, PrefixIndexBuilder, RESTART_INTERVAL, Separator, SeparatorSide,
};
use crate::format::properties::TableProperties;
use crate::format::range_tombstones::{self, FragmentedTombstones};
use crate::format::version_edit::VersionEdit;
use crate::fuzzing::repair;
use crate::manifest::ManifestState;

/// Keys that every block is asked for, besides its own.
const PROBES: [&[u8]; 5] = [b"", b"\0", b"key-000017", b"m", &[0xff; 9]];

type Entry = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

/// The entries of a data block, read slowly from the first to the last, and their offsets.
fn read_data_block(block: &DataBlock) -> Result<(Vec<Entry>, Vec<usize>), Malformed> {
    let (mut entries, mut offsets): (Vec<Entry>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut key = Vec::new();
    let mut at = ENTRIES_AT;
    while at < block.entries_end() {
        let raw = block.entry(at)?;
        if raw.shared > key.len() {
            return Err(Malformed::Order { what: "shared bytes are" });
        }
        key.truncate(raw.shared);
        key.extend_from_slice(raw.suffix);
        let value = block.bytes()[raw.value_at..raw.next].to_vec();
        entries.push((key.clone(), raw.seq, raw.kind, value));
        offsets.push(at);
        at = raw.next;
    }
    Ok((entries, offsets))
}

/// All that a cursor shows, in the order of `entries` whichever way it goes.
fn walk_data_block(block: &DataBlock, forward: bool) -> Result<Vec<Entry>, Malformed> {
    let mut cursor = DataBlockCursor::new(block.clone());
    let mut seen = Vec::new();
    if forward {
        cursor.first()?
    } else {
        cursor.last()?
    }
    while cursor.valid() {
        let key = cursor.key();
        seen.push((key.user_key.to_vec(), key.seq, key.kind, cursor.value().to_vec()));
        assert!(seen.len() <= block.bytes().len(), "the walk does not end");
        if forward { cursor.next()? } else { cursor.prev()? }
    }
    if !forward {
        seen.reverse();
    }
    Ok(seen)
}

fn internal(entry: &Entry) -> InternalKey<'_> {
    InternalKey { user_key: &entry.0, seq: entry.1, kind: entry.2 }
}

/// Contents of a data block.
pub fn data_block(bytes: &[u8]) {
    let Ok(block) = DataBlock::new(BlockBytes::copy_from(bytes)) else { return };
    let forward = walk_data_block(&block, true);
    let backward = walk_data_block(&block, false);
    for key in PROBES {
        let _ = block.get(key, SeqNo(20));
        let mut cursor = DataBlockCursor::new(block.clone());
        let _ = cursor.seek(key, SeqNo::MAX);
        let _ = cursor.seek_before(key, SeqNo(3));
    }
    let read = read_data_block(&block);
    assert_eq!(forward.is_ok(), read.is_ok(), "a walk fails where a reading does");
    let Ok((entries, _)) = read else {
        assert!(block.check_invariants().is_err(), "malformed, and the check does not see it");
        return;
    };
    assert_eq!(forward.as_ref(), Ok(&entries));
    let in_order = entries.windows(2).all(|pair| internal(&pair[0]) < internal(&pair[1]));
    if block.check_invariants().is_err() || !in_order {
        return;
    }
    // The block is what a writer writes, up to the distances between restarts.
    assert_eq!(backward.as_ref(), Ok(&entries));
    for (index, entry) in entries.iter().enumerate() {
        let first = index == 0 || entries[index - 1].0 != entry.0;
        let hit = block.get(&entry.0, entry.1).expect("the block was checked");
        let hit = hit.expect("every entry is found");
        // Of entries alike but for their kind, the first is found.
        assert!(hit.seq == entry.1, "{hit:?} for {entry:?}");
        let mut cursor = DataBlockCursor::new(block.clone());
        cursor.seek(&entry.0, SeqNo::MAX).expect("the block was checked");
        assert!(cursor.valid() && (!first || cursor.key() == internal(entry)));
        cursor.seek_before(&entry.0, SeqNo::MAX).expect("the block was checked");
        assert!(!cursor.valid() || cursor.key().user_key < entry.0.as_slice());
        assert!(cursor.valid() || entries[0].0 == entry.0, "the entry before is lost");
    }
    rebuild_data_block(bytes, &block, &entries);
}

/// If restarts come at even distances, the builder makes the same bytes of the same entries.
fn rebuild_data_block(bytes: &[u8], block: &DataBlock, entries: &[Entry]) {
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let restarts = u32::try_from(block.restart_count()).unwrap_or(u32::MAX);
    let told = block.restart_interval().and_then(|told| u32::try_from(told).ok());
    for interval in [1, 4, 16, count.div_ceil(restarts.max(1)), told.unwrap_or(0)] {
        if interval == 0 || count.div_ceil(interval) != restarts {
            continue;
        }
        let mut builder = DataBlockBuilder::new(interval, block.has_tags());
        for entry in entries {
            builder.add(internal(entry), &entry.3);
        }
        let mut rebuilt = Vec::new();
        builder.finish(&mut rebuilt);
        let same_places = rebuilt.len() == bytes.len()
            && rebuilt[block.entries_end()..] == bytes[block.entries_end()..];
        assert!(!same_places || rebuilt == bytes, "other bytes for the same entries");
    }
}

/// Contents of an index block or a top index.
pub fn index_block(bytes: &[u8]) {
    let Ok(index) = IndexBlock::new(Bytes::copy_from_slice(bytes)) else { return };
    // A data block takes one bit at least.
    assert!(index.count() <= 8 * bytes.len() && index.bytes() == bytes.len());
    for key in PROBES {
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
    let ascending = separators.windows(2).all(|pair| {
        let [a, b] = *pair else { return true };
        // Some version of `b`'s key is before it, and not before `a`.
        let seq = match b.versions {
            SeparatorSide::Before => SeqNo::ZERO,
            SeparatorSide::Split(seq) => seq,
            SeparatorSide::After => SeqNo(u64::MAX),
        };
        a.user_key <= b.user_key && a.is_before(&b.user_key, seq)
    });
    if !ascending {
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
                    .map(|at| (at, entries[at].1));
                assert_eq!(index.seek(key, seq), Ok(expected), "{key:?} at {seq}");
            }
        }
    }
    rebuild_index_block(bytes, &entries);
}

/// The builder of top indexes makes the same bytes of the same entries.
fn rebuild_index_block(bytes: &[u8], entries: &[(Option<Separator>, BlockHandle)]) {
    let gaps = entries
        .windows(2)
        .all(|pair| pair[0].1.end_offset().is_ok_and(|end| end <= pair[1].1.offset));
    if bytes[0] != ENCODING_PREFIX || bytes[1] != RESTART_INTERVAL || !gaps {
        return;
    }
    let mut builder = PrefixIndexBuilder::new();
    for (separator, handle) in entries {
        builder.add(separator.clone().unwrap_or_default(), *handle);
    }
    assert_eq!(builder.finish(), bytes, "other bytes for the same entries");
}

/// Contents of a filter block.
pub fn filter(bytes: &[u8]) {
    let Ok(filter) = Filter::new(Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(filter.bytes(), bytes.len());
    for hash in PROBES.map(key_hash).into_iter().chain([0, 1 << 63, u64::MAX]) {
        let _ = filter.may_contain(hash);
    }
}

/// Contents of a range tombstone block.
pub fn range_tombstones(bytes: &[u8]) {
    let Ok(spans) = FragmentedTombstones::decode(&Bytes::copy_from_slice(bytes)) else { return };
    assert!(spans.bytes() <= 64 * bytes.len() + 1024, "{} bytes in memory", spans.bytes());
    assert_eq!(range_tombstones::encode(spans.as_slice()), bytes, "other bytes for the same spans");
    for span in spans.as_slice() {
        assert_eq!(spans.newest_covering_seq(&span.start, SeqNo::MAX), span.seqs.first().copied());
        if let Some(end) = &span.end {
            assert_ne!(&span.start, end);
        }
    }
    for key in PROBES {
        for snapshot in [SeqNo::ZERO, SeqNo(30), SeqNo::MAX] {
            assert!(spans.newest_covering_seq(key, snapshot).is_none_or(|seq| seq <= snapshot));
        }
    }
}

/// Contents of a properties block.
pub fn properties(bytes: &[u8]) {
    let Ok(properties) = TableProperties::decode(&Bytes::copy_from_slice(bytes)) else { return };
    // Fields that are not there read as zero and are written as such; unknown ones are skipped.
    let encoded = Bytes::from(properties.encode());
    assert_eq!(TableProperties::decode(&encoded), Ok(properties));
}

/// A block with its trailer, which says its kind itself.
pub fn block(bytes: &[u8]) {
    let kind = bytes.len().checked_sub(TRAILER_BYTES).and_then(|at| BlockKind::from_u8(bytes[at]));
    for kind in [kind.unwrap_or(BlockKind::Data), BlockKind::Bucket] {
        let Ok(contents) = block::decode_block(bytes.to_vec(), kind, repair::UID, repair::OFFSET)
        else {
            continue;
        };
        assert!(contents.len() <= 255 * bytes.len());
        // As it is, or packed: either way the contents come back.
        for compression in [block::Compression::None, block::Compression::Lz4] {
            let (mut sealed, mut scratch) = (contents.to_vec(), Vec::new());
            let (uid, offset) = (repair::UID, repair::OFFSET);
            block::encode_block(&mut sealed, kind, compression, uid, offset, &mut scratch);
            assert_eq!(block::decode_block(sealed, kind, uid, offset), Ok(contents.clone()));
        }
    }
}

/// As [`block`], with the right checksum.
pub fn block_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::block(&mut bytes, repair::UID, repair::OFFSET);
    block(&bytes);
}

/// Payload of a record of the WAL.
pub fn batch(bytes: &[u8]) {
    let mut encoded = Vec::new();
    for operation in BatchOperationIter::new(bytes) {
        let Ok(operation) = operation else { return };
        let key = &bytes[operation.key];
        match operation.action {
            OperationEffect::Entry { kind, value } => {
                put_operation(&mut encoded, kind, operation.keyspace, key, &bytes[value]);
            }
            OperationEffect::DeleteRange { end } => {
                let end = end.map(|end| &bytes[end]);
                put_range_delete(&mut encoded, operation.keyspace, key, end);
            }
        }
    }
    assert_eq!(encoded, bytes, "other bytes for the same operations");
}

/// Payload of a record of the manifest, applied to a state that fits some of it.
pub fn edit(bytes: &[u8]) {
    let Ok(edit) = VersionEdit::decode(bytes) else { return };
    let encoded = edit.encode();
    assert_eq!(VersionEdit::decode(&encoded).as_ref(), Ok(&edit));
    assert!(encoded.len() <= bytes.len(), "only changes that may be skipped are left out");
    if encoded.len() == bytes.len() {
        assert_eq!(encoded, bytes, "other bytes for the same edit");
    }
    let mut state = ManifestState::default();
    apply(&mut state, &edit);
    let mut state = ManifestState { keyspace_id_next: 1, ..ManifestState::default() };
    state.keyspaces.insert(0, crate::manifest::KeyspaceState::default());
    apply(&mut state, &edit);
}

/// Applies an edit, whole or not at all; the snapshot of what comes out makes it out of nothing.
fn apply(state: &mut ManifestState, edit: &VersionEdit) {
    let before = state.clone();
    match state.apply(edit) {
        Ok(()) => snapshot_comes_back(state),
        Err(_) => assert_eq!(*state, before),
    }
}

/// The snapshot of a state makes the same state.
pub(crate) fn snapshot_comes_back(state: &ManifestState) {
    let snapshot = VersionEdit::decode(&state.snapshot().encode());
    let mut again = ManifestState { db_uid: state.db_uid, ..ManifestState::default() };
    again.apply(&snapshot.expect("an edit comes back")).expect("a snapshot fits an empty state");
    assert_eq!(again, *state);
    for file in state.keyspaces.values().flat_map(|keyspace| keyspace.files()) {
        assert!(file.2.range.smallest <= file.2.range.largest);
    }
}
