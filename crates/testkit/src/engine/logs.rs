//! Fuzz targets for WAL segments, manifests, `CURRENT` files and file names.

use std::path::{Path, PathBuf};

use lsmx::internals::format::FORMAT_VERSION;
use lsmx::internals::format::batch::{
    BatchOperationIter, OperationEffect, put_operation, put_range_delete,
};
use lsmx::internals::format::log_record::RECORD_HEADER_BYTES;
use lsmx::internals::format::manifest_header::{CurrentFile, ManifestHeader};
use lsmx::internals::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use lsmx::internals::format::version_edit::VersionEdit;
use lsmx::internals::manifest::{KeyspaceState, LoadedManifest, Manifest, ManifestState};
use lsmx::internals::wal::{RecoveryReport, ReplayStart, ReplayedRecord, replay};
use lsmx::vfs::MemVfs;
use lsmx::{Error, RecoveryMode, Result};
use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{get_u32, get_u64, len_u64};
use lsmx_base::file_name::FileName;

/// Directory of the files under test.
pub(super) const DIR: &str = "/";

/// Returns a file system with one file.
pub(super) fn vfs_with_file(name: FileName, contents: &[u8]) -> MemVfs {
    let vfs = MemVfs::new();
    add_file(&vfs, name, contents);
    vfs
}

pub(super) fn add_file(vfs: &MemVfs, name: FileName, contents: &[u8]) {
    vfs.write_all(&name.in_dir(Path::new(DIR)), contents).expect("I/O in memory succeeds");
}

/// Returns the database uid and the file number that the header of a WAL segment or a manifest stores.
pub(super) fn header_numbers(log: &[u8]) -> (u64, u64) {
    (get_u64(log, 16).unwrap_or(1), get_u64(log, 24).unwrap_or(1))
}

pub(super) fn check_file_name(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Some(name) = FileName::parse(text) {
        assert_eq!(name.to_string(), text, "file name is not canonical");
    }
}

/// Checks that a decoded file header encodes to the first bytes of the input. Skips headers of older format versions.
pub(super) fn check_header(encoded: &[u8], input: &[u8]) {
    let version = get_u32(input, 8);
    assert!(version.is_some_and(|version| version <= FORMAT_VERSION), "version {version:?}");
    if version == Some(FORMAT_VERSION) {
        assert_eq!(encoded, &input[..encoded.len()], "header is not canonical");
    }
}

/// Checks a `CURRENT` file, first unchanged and then with a corrected checksum.
pub(super) fn check_current_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        assert!(CurrentFile::decode(input).is_err());
        return;
    };
    let line = text.split(" sum").next().unwrap_or_default();
    let repaired = format!("{line} sum {:016x}\n", xxh3(line.as_bytes()));
    for text in [text, &repaired] {
        let Ok(current) = CurrentFile::decode(text.as_bytes()) else { continue };
        if text.starts_with(&format!("lsmx {FORMAT_VERSION} ")) {
            assert_eq!(current.encode(), text, "CURRENT is not canonical");
        }
    }
}

/// Checks the payload of a WAL record.
pub(super) fn check_batch(input: &[u8]) {
    let mut encoded = Vec::new();
    for operation in BatchOperationIter::new(input) {
        let Ok(operation) = operation else { return };
        let key = &input[operation.key];
        match operation.action {
            OperationEffect::Entry { kind, value } => {
                put_operation(&mut encoded, kind, operation.keyspace, key, &input[value]);
            }
            OperationEffect::DeleteRange { end } => {
                let end = end.map(|end| &input[end]);
                put_range_delete(&mut encoded, operation.keyspace, key, end);
            }
        }
    }
    assert_eq!(encoded, input, "batch is not canonical");
}

/// First sequence number, operation count, file offset and payload of each replayed WAL record.
type ReplayedBatches = Vec<(u64, u32, u64, Vec<u8>)>;

/// Replays a WAL that consists of one segment.
fn replay_segment(input: &[u8], mode: RecoveryMode) -> Result<(ReplayedBatches, RecoveryReport)> {
    let (uid, id) = header_numbers(input);
    let vfs = vfs_with_file(FileName::Segment(id), input);
    let named_by = PathBuf::from("MANIFEST");
    let from = ReplayStart { oldest_segment: id, named: vec![], mark: None, named_by };
    let mut batches = ReplayedBatches::new();
    let mut visit = |record: ReplayedRecord<'_>| {
        let payload = record.payload.to_vec();
        batches.push((record.first_seq.0, record.count, record.offset, payload));
        Ok(())
    };
    let report = replay(&vfs, Path::new(DIR), uid, &from, mode, &mut visit)?;
    Ok((batches, report))
}

/// Checks a WAL segment in both recovery modes.
pub(super) fn check_wal_segment(input: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(input) {
        check_header(&header.encode(), input);
    }
    let strict = replay_segment(input, RecoveryMode::Strict);
    let tolerant = replay_segment(input, RecoveryMode::Tolerant);
    let Ok((batches, report)) = tolerant else {
        assert!(
            strict.is_err(),
            "strict recovery accepts a segment that tolerant recovery rejects"
        );
        return;
    };
    assert_eq!(report.records, len_u64(batches.len()));
    assert!(report.bytes_cut <= len_u64(input.len()));
    for (_, count, offset, payload) in &batches {
        let start =
            usize::try_from(*offset).expect("the offset is within the input") + RECORD_HEADER_BYTES;
        assert!(*count > 0 && input[start..start + payload.len()] == **payload);
    }
    for pair in batches.windows(2) {
        assert!(pair[0].0 + u64::from(pair[0].1) <= pair[1].0, "sequence numbers do not ascend");
    }
    match strict {
        Ok((strict_batches, report)) => {
            assert_eq!(strict_batches, batches);
            assert!(report.damage.is_none());
        }
        Err(_) => {
            assert!(report.damage.is_some(), "strict recovery rejects a segment without damage")
        }
    }
    // Replaying the segment without its torn end must return the same records.
    if let (None, Some((_, cut_at))) = (&report.damage, &report.cut_at)
        && *cut_at >= len_u64(SEGMENT_HEADER_BYTES)
    {
        let kept = &input[..usize::try_from(*cut_at).expect("the offset is within the input")];
        let (replayed, report) =
            replay_segment(kept, RecoveryMode::Strict).expect("the torn end was removed");
        assert_eq!((replayed, report.cut_at), (batches, None));
    }
}

/// Decodes the payload of a manifest record. Applies the version edit to an empty state, and to a state with one
/// keyspace.
pub(super) fn check_version_edit(input: &[u8]) {
    let Ok(edit) = VersionEdit::decode(input) else { return };
    let encoded = edit.encode();
    assert_eq!(VersionEdit::decode(&encoded).as_ref(), Ok(&edit));
    // The decoder drops only optional changes of unknown kinds, so the encoded edit is never longer than the input.
    assert!(encoded.len() <= input.len());
    if encoded.len() == input.len() {
        assert_eq!(encoded, input, "edit is not canonical");
    }
    let mut one_keyspace = ManifestState { keyspace_id_next: 1, ..ManifestState::default() };
    one_keyspace.keyspaces.insert(0, KeyspaceState::default());
    for mut state in [ManifestState::default(), one_keyspace] {
        let before = state.clone();
        match state.apply_edit(&edit) {
            Ok(()) => check_snapshot(&state),
            Err(_) => assert_eq!(state, before, "a rejected edit changed the state"),
        }
    }
}

/// Checks that a snapshot of a manifest state restores the same state, and that the files in it have valid key ranges.
fn check_snapshot(state: &ManifestState) {
    let snapshot = VersionEdit::decode(&state.to_edit().encode()).expect("an encoded edit decodes");
    let mut restored = ManifestState { db_uid: state.db_uid, ..ManifestState::default() };
    restored.apply_edit(&snapshot).expect("a snapshot applies to an empty state");
    assert_eq!(restored, *state);
    for file in state.keyspaces.values().flat_map(|keyspace| keyspace.tree.files()) {
        assert!(file.range.smallest <= file.range.largest);
    }
}

/// Loads a manifest. The `CURRENT` file states that the first `synced_bytes` bytes of the manifest are durable.
fn load_manifest(input: &[u8], synced_bytes: u64) -> Result<LoadedManifest> {
    let (db_uid, manifest) = header_numbers(input);
    let vfs = vfs_with_file(FileName::Manifest(manifest), input);
    let current = CurrentFile { manifest, db_uid, bytes: synced_bytes };
    add_file(&vfs, FileName::Current, current.encode().as_bytes());
    Manifest::load(&vfs, Path::new(DIR))
}

/// Checks a manifest with two `CURRENT` files. One states that all bytes of the manifest are durable, the other that no
/// bytes are durable.
pub(super) fn check_manifest(input: &[u8]) {
    if let Ok(header) = ManifestHeader::decode(input) {
        check_header(&header.encode(), input);
    }
    let fully_synced = load_manifest(input, len_u64(input.len()));
    let loaded = match load_manifest(input, 0) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!matches!(error, Error::NotADatabase { .. }), "{error}");
            assert!(fully_synced.is_err(), "a longer durable prefix hides the error {error}");
            return;
        }
    };
    assert!(loaded.bytes_cut <= len_u64(input.len()));
    check_snapshot(&loaded.state);
    match fully_synced {
        Ok(manifest) => assert_eq!((manifest.state, manifest.bytes_cut), (loaded.state, 0)),
        Err(_) => {
            let kept_bytes = len_u64(input.len()) - loaded.bytes_cut;
            let kept =
                &input[..usize::try_from(kept_bytes).expect("the offset is within the input")];
            let reloaded = load_manifest(kept, kept_bytes).expect("the torn end was removed");
            assert_eq!((reloaded.state, reloaded.bytes_cut), (loaded.state, 0));
        }
    }
}
