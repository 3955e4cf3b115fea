//! Targets for whole logs: a WAL segment, a manifest.

use std::path::{Path, PathBuf};

use lsmx_base::coding::{get_u64, len_u64};
use lsmx_base::file_name::FileName;

use crate::error::{Error, Result};
use crate::format::log_record::RECORD_HEADER_BYTES;
use crate::format::manifest_header::{CurrentFile, MANIFEST_HEADER_BYTES, ManifestHeader};
use crate::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::fuzzing::blocks::snapshot_comes_back;
use crate::fuzzing::repair;
use crate::manifest::{LoadedManifest, Manifest};
use crate::vfs::MemVfs;
use crate::wal::{RecoveryMode, RecoveryReport, ReplayStart, replay};

/// Where the files of the targets lie.
pub(crate) const DIR: &str = "/";

/// A file system with this one file.
pub(crate) fn disk(name: FileName, bytes: &[u8]) -> MemVfs {
    let vfs = MemVfs::new();
    add(&vfs, name, bytes);
    vfs
}

pub(crate) fn add(vfs: &MemVfs, name: FileName, bytes: &[u8]) {
    vfs.write_all(&name.in_dir(Path::new(DIR)), bytes).expect("the root is there");
}

/// First number, count, offset and payload of every commit that a replay hands out.
type Commits = Vec<(u64, u32, u64, Vec<u8>)>;

/// Replays a chain of this one segment.
fn replay_one(bytes: &[u8], mode: RecoveryMode) -> Result<(Commits, RecoveryReport)> {
    let (uid, id) = (get_u64(bytes, 16).unwrap_or(1), get_u64(bytes, 24).unwrap_or(1));
    let vfs = disk(FileName::Segment(id), bytes);
    let named_by = PathBuf::from("MANIFEST");
    let from = ReplayStart { oldest_segment: id, named: vec![], mark: None, named_by };
    let mut commits = Commits::new();
    let mut visit = |record: crate::wal::ReplayedRecord<'_>| {
        let payload = record.payload.to_vec();
        commits.push((record.first_seq.0, record.count, record.offset, payload));
        Ok(())
    };
    let report = replay(&vfs, Path::new(DIR), uid, &from, mode, &mut visit)?;
    Ok((commits, report))
}

/// A WAL segment, strict and tolerant.
pub fn wal(bytes: &[u8]) {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        assert_eq!(header.encode(), bytes[..SEGMENT_HEADER_BYTES], "other bytes, same header");
    }
    let strict = replay_one(bytes, RecoveryMode::Strict);
    let tolerant = replay_one(bytes, RecoveryMode::Tolerant);
    let Ok((commits, report)) = tolerant else {
        assert!(strict.is_err(), "strict takes what tolerant does not");
        return;
    };
    assert_eq!(report.records, len_u64(commits.len()));
    assert!(report.bytes_cut <= len_u64(bytes.len()));
    for (_, count, offset, payload) in &commits {
        let at = usize::try_from(*offset).expect("it is in memory") + RECORD_HEADER_BYTES;
        assert!(*count > 0 && bytes[at..at + payload.len()] == **payload);
    }
    for pair in commits.windows(2) {
        assert!(pair[0].0 + u64::from(pair[0].1) <= pair[1].0, "numbers do not rise");
    }
    match strict {
        Ok((same, report)) => {
            assert_eq!(same, commits);
            assert!(report.damage.is_none());
        }
        Err(_) => assert!(report.damage.is_some(), "strict refuses what is no damage"),
    }
    // What was cut is gone for good: without it, the same commits, and nothing to cut.
    if let (None, Some((_, cut_at))) = (&report.damage, &report.cut_at)
        && *cut_at >= len_u64(SEGMENT_HEADER_BYTES)
    {
        let kept = &bytes[..usize::try_from(*cut_at).expect("it is in memory")];
        let (again, report) = replay_one(kept, RecoveryMode::Strict).expect("a prefix is good");
        assert_eq!((again, report.cut_at), (commits, None));
    }
}

/// As [`wal`], with the right checksums.
pub fn wal_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, SEGMENT_HEADER_BYTES);
    wal(&bytes);
}

/// Loads the manifest, `synced` bytes of which are known to have been on stable storage.
fn load(bytes: &[u8], synced: u64) -> Result<LoadedManifest> {
    let (db_uid, manifest) = (get_u64(bytes, 16).unwrap_or(1), get_u64(bytes, 24).unwrap_or(1));
    let vfs = disk(FileName::Manifest(manifest), bytes);
    let current = CurrentFile { manifest, db_uid, bytes: synced };
    add(&vfs, FileName::Current, current.encode().as_bytes());
    Manifest::load(&vfs, Path::new(DIR))
}

/// A manifest with a `CURRENT` that points to it.
pub fn manifest(bytes: &[u8]) {
    if let Ok(header) = ManifestHeader::decode(bytes) {
        assert_eq!(header.encode(), bytes[..MANIFEST_HEADER_BYTES], "other bytes, same header");
    }
    let whole = load(bytes, len_u64(bytes.len()));
    let loaded = match load(bytes, 0) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!matches!(error, Error::NotADatabase { .. }), "{error}");
            assert!(whole.is_err(), "more is known, and less is wrong");
            return;
        }
    };
    assert!(loaded.bytes_cut <= len_u64(bytes.len()));
    snapshot_comes_back(&loaded.state);
    match whole {
        Ok(whole) => assert_eq!((whole.state, whole.bytes_cut), (loaded.state, 0)),
        Err(_) => {
            let kept = len_u64(bytes.len()) - loaded.bytes_cut;
            let kept = &bytes[..usize::try_from(kept).expect("it is in memory")];
            let again = load(kept, len_u64(kept.len())).expect("a prefix is good");
            assert_eq!((again.state, again.bytes_cut), (loaded.state, 0));
        }
    }
}

/// As [`manifest`], with the right checksums.
pub fn manifest_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::log(&mut bytes, MANIFEST_HEADER_BYTES);
    manifest(&bytes);
}
