//! Golden-file tests of the WAL and the manifest. The files of version 1 must be readable. The current code must write
//! exactly the bytes of version 2.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lsmx::SeqNo;
use lsmx::internals::format::version_edit::{Change, VersionEdit};
use lsmx::internals::manifest::{Manifest, ManifestState};
use lsmx::internals::wal::{
    RecoveryMode, ReplayStart, SegmentRegistry, Wal, WalOptions, WalRecord, replay,
};
use lsmx::operand_store::StoreToken;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx_compaction::{ExpiringBytes, ExpirySummary, FileId, KeyRange, Level, RunId, TableMeta};

use crate::harness::golden::{assert_same_bytes, golden};

const DB_UID: u64 = 0x0123_4567_89ab_cdef;

const FILES: [&str; 4] = ["000003.wal", "000004.wal", "MANIFEST-000002", "CURRENT"];
/// Directories of the golden files of version 1, of version 2, and of version 2 with a sync mark after each observable edit
/// of the manifest. The current code writes the files of the last one.
const VERSIONS: [&str; 3] = ["log-v1", "log-v2", "log-v2-marks"];

/// Allocates consecutive file numbers for WAL segments. The manifest does not list these segments.
struct Numbers(AtomicU64);

impl SegmentRegistry for Numbers {
    fn allocate_file_number(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
    fn register_segment(&self, _id: u64) -> lsmx::Result<()> {
        Ok(())
    }
}

fn dir() -> &'static Path {
    Path::new("db")
}

fn record(first_seq: u64, count: u32, payload: &[u8]) -> WalRecord<'_> {
    WalRecord { first_seq: SeqNo(first_seq), count, payload }
}

fn write_wal(vfs: &Arc<dyn Vfs>) -> (u64, u64) {
    let numbers = Arc::new(Numbers(AtomicU64::new(3)));
    let options = WalOptions { segment_bytes: 200, ..WalOptions::default() };
    let wal = Wal::create(vfs.clone(), dir(), DB_UID, numbers, options, SeqNo(1)).unwrap();
    wal.sync_first_segment().unwrap();
    let group = [record(1, 2, b"two writes"), record(3, 1, b"one more")];
    wal.append(group.into_iter()).unwrap();
    wal.sync().unwrap();
    let group = [record(10, 1, b"after a gap, in the next segment")];
    wal.append(group.into_iter()).unwrap();
    wal.close().unwrap()
}

fn write_manifest(vfs: &Arc<dyn Vfs>, mark: (u64, u64)) -> ManifestState {
    let state = ManifestState { db_uid: DB_UID, wal_oldest: 3, ..ManifestState::default() };
    let manifest = Manifest::create(vfs.clone(), dir(), 2, &state).unwrap();
    let range = KeyRange { smallest: Bytes::from_static(b"a"), largest: Bytes::from_static(b"z") };
    let file = TableMeta {
        id: FileId(5),
        range,
        bytes: 4096,
        entries: 300,
        tombstones: 2,
        value_bytes: 2000,
        oldest_tombstone_us: Some(1_000_000),
        tombstone_seq_smallest: None,
        expiry: None,
        seq_smallest: 1,
        seq_largest: 3,
        last_read_us: 2_000_000,
        created_us: 2_000_000,
        creation: 1,
        uid: 0x1111_2222_3333_4444,
        checksum: 0x5555_6666_7777_8888,
    };
    let name = "default".to_owned();
    let options = "block_bytes = 4096".to_owned();
    let created = vec![
        Change::CreateKeyspace { id: 0, name, options },
        Change::CreateKeyspace { id: 1, name: "gone".to_owned(), options: String::new() },
    ];
    manifest.append(&created.into()).unwrap();
    let (keyspace, level) = (0, Level(1));
    let flushed = vec![
        Change::AddFile { keyspace, level, run: RunId(1), file: Arc::new(file) },
        Change::RunOrder { keyspace, level, runs: vec![RunId(1)] },
        Change::Cursor { keyspace, level, key: Some(Bytes::from_static(b"m")) },
        Change::RunIdNext { keyspace, next: 2 },
        Change::FlushedThrough { keyspace, seq: SeqNo(3) },
        Change::SetOptions { keyspace, options: "block_bytes = 8192".to_owned() },
        Change::DropKeyspace { id: 1 },
        Change::WalSegment { id: 4 },
        Change::FileNumberNext(6),
        Change::ClockUs(3_000_000),
    ];
    manifest.append(&flushed.into()).unwrap();
    let (segment, bytes) = mark;
    let closed =
        vec![Change::WalMark { segment, bytes }, Change::CleanClose { last_seq: SeqNo(10) }];
    manifest.append(&closed.into()).unwrap();
    manifest.state()
}

fn written() -> (MemVfs, ManifestState) {
    let disk = MemVfs::new();
    disk.create_dir(dir()).unwrap();
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let mark = write_wal(&vfs);
    let state = write_manifest(&vfs, mark);
    (disk, state)
}

#[test]
fn golden_log_and_manifest_are_written_unchanged() {
    let (disk, _) = written();
    let files = disk.snapshot_all();
    assert_eq!(files.len(), FILES.len());
    for name in FILES {
        let written = &files[&dir().join(name)];
        assert_same_bytes(
            name,
            written,
            &golden(&format!("log-v2-marks/{name}"), || written.clone()),
        );
    }
}

/// Encoded version edits with the description of a table whose entries expire, without and with the bytes of these
/// entries.
#[test]
fn golden_edits_with_expiry_times_are_written_unchanged() {
    let bytes = ExpiringBytes { expiring: 700, total: 1 << 33, median_us: 1 << 51 };
    check_edit_with_expiry_times("table-expiry-v2.edit", None);
    check_edit_with_expiry_times("table-expiring-bytes-v2.edit", Some(bytes));
}

fn check_edit_with_expiry_times(name: &str, bytes: Option<ExpiringBytes>) {
    let range = KeyRange { smallest: Bytes::from_static(b"a"), largest: Bytes::from_static(b"z") };
    let (earliest_us, median_us, latest_us) = (1_000_000, 1 << 50, u64::MAX);
    let expiry = Some(ExpirySummary { entries: 7, earliest_us, median_us, latest_us, bytes });
    let file = TableMeta { entries: 9, expiry, ..TableMeta::new(FileId(5), range) };
    let tombstones = TableMeta { tombstones: 1, tombstone_seq_smallest: Some(3), ..file.clone() };
    let add = |id, file| {
        let file = Arc::new(TableMeta { id: FileId(id), ..file });
        Change::AddFile { keyspace: 0, level: Level(1), run: RunId(1), file }
    };
    let edit = VersionEdit::from(vec![add(5, file), add(6, tombstones)]);
    let bytes = golden(name, || edit.encode());
    assert_eq!(edit.encode(), bytes);
    assert_eq!(VersionEdit::decode(&bytes).unwrap(), edit);
}

/// An encoded version edit that exchanges the names of two keyspaces.
#[test]
fn golden_edit_with_renames_is_written_unchanged() {
    let rename = |keyspace, name: &str| Change::RenameKeyspace { keyspace, name: name.to_owned() };
    let edit = VersionEdit::from(vec![rename(3, "größe"), rename(300, "a")]);
    let bytes = golden("rename-keyspace-v2.edit", || edit.encode());
    assert_eq!(edit.encode(), bytes);
    assert_eq!(VersionEdit::decode(&bytes).unwrap(), edit);
}

/// An encoded version edit that reserves a keyspace id.
#[test]
fn golden_edit_with_reserved_id_is_written_unchanged() {
    let edit = VersionEdit::from(vec![Change::ReserveKeyspaceId(300)]);
    let bytes = golden("reserve-keyspace-id-v2.edit", || edit.encode());
    assert_eq!(edit.encode(), bytes);
    assert_eq!(VersionEdit::decode(&bytes).unwrap(), edit);
}

/// An encoded version edit with operand store tokens.
const GOLDEN_TOKENS: &[u8] = include_bytes!("../golden/operand-token-v1.edit");

#[test]
fn golden_edit_with_store_tokens_is_written_unchanged() {
    let tokens = VersionEdit::from(vec![
        Change::OperandToken { keyspace: 3, token: Some(StoreToken([7, 4_096, u64::MAX, 300])) },
        Change::OperandToken { keyspace: 300, token: None },
    ]);
    assert_eq!(tokens.encode(), GOLDEN_TOKENS);
    assert_eq!(VersionEdit::decode(GOLDEN_TOKENS).unwrap(), tokens);
}

#[test]
fn golden_logs_and_manifests_of_every_version_are_read() {
    VERSIONS.iter().for_each(|version| check_log_and_manifest(version));
}

fn check_log_and_manifest(version: &str) {
    let disk = MemVfs::new();
    disk.create_dir(dir()).unwrap();
    for name in FILES {
        let missing = || -> Vec<u8> { panic!("{name} of {version} is missing") };
        disk.write_all(&dir().join(name), &golden(&format!("{version}/{name}"), missing)).unwrap();
    }
    let loaded = Manifest::load(&disk, dir()).unwrap();
    assert_eq!((loaded.number, loaded.bytes_cut), (2, 0));
    let state = loaded.state;
    assert_eq!(state, written().1);
    assert_eq!((state.db_uid, state.keyspace_id_next, state.clean_close), (DB_UID, 2, true));
    assert_eq!((state.wal_oldest, &*state.wal_named), (3, [4].as_slice()));

    let expect = ReplayStart {
        oldest_segment: state.wal_oldest,
        named: state.wal_named,
        mark: state.wal_mark,
        named_by: PathBuf::from("db/MANIFEST-000002"),
    };
    let mut commits = Vec::new();
    let report = replay(&disk, dir(), DB_UID, &expect, RecoveryMode::Strict, &mut |record| {
        commits.push((record.first_seq.0, record.count, record.payload.to_vec()));
        Ok(())
    });
    let report = report.unwrap();
    assert_eq!(
        commits,
        [
            (1, 2, b"two writes".to_vec()),
            (3, 1, b"one more".to_vec()),
            (10, 1, b"after a gap, in the next segment".to_vec()),
        ]
    );
    assert_eq!((report.segments, report.last_seq, report.cut_at), (2, SeqNo(10), None));
}
