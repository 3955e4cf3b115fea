//! Format version 1 of the value log, byte by byte: a blob file, a table with pointers into it, and their manifest.
//!
//! Golden files are never rewritten. `UPDATE=1` creates missing ones.
#![expect(clippy::disallowed_methods, reason = "golden files belong to the repository")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::format::blob::{BlobHeader, BlobTrailer, ValuePointer, put_record};
use lsmx::internals::format::version_edit::{BlobFileRecord, BlobReference, Change, VersionEdit};
use lsmx::internals::manifest::{Manifest, ManifestState};
use lsmx::internals::table::{TableOptions, TableWriter};
use lsmx::internals::wal::{SegmentRegistry, Wal, WalOptions};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Compression, Db, EntryKind, KeyspaceOptions, Options, SeqNo, ValueSeparation, verify};
use lsmx_base::key::InternalKey;
use lsmx_compaction::{FileId, KeyRange, Level, RunId, TableMeta};
use xxhash_rust::xxh3::xxh3_64;

const UID: u64 = 0xfeed_f00d_0123_4567;
const TABLE_UID: u64 = 0x0123_4567_89ab_cdef;
const FILES: [&str; 5] = ["000009.blob", "000007.sst", "000003.wal", "MANIFEST-000002", "CURRENT"];
const DB_UID: u64 = 77;
const LAST: SeqNo = SeqNo((1 << 56) - (1 << 40));

/// Gives number 3 to the segment.
struct Three;

impl SegmentRegistry for Three {
    fn allocate_file_number(&self) -> u64 {
        3
    }
    fn register_segment(&self, _id: u64) -> lsmx::Result<()> {
        Ok(())
    }
}

/// Key, number, value, and how a value of the log is packed.
type Written = (&'static [u8], u64, Vec<u8>, Option<Compression>);

/// Key, number, kind and value in the table.
type Stored = (&'static [u8], u64, EntryKind, Vec<u8>);

fn entries() -> Vec<Written> {
    vec![
        (b"", 4, b"of the empty key, which is in the value log".to_vec(), Some(Compression::None)),
        (b"empty", 5, vec![], Some(Compression::None)),
        (b"inline", 6, b"in the table".to_vec(), None),
        (b"packed", 300, vec![b'x'; 700], Some(Compression::Lz4)),
        (b"\xff\x00", LAST.0, vec![7; 300], Some(Compression::None)),
    ]
}

/// The blob file, and the entries of the table.
fn blob() -> (Vec<u8>, Vec<Stored>) {
    let mut bytes = BlobHeader { keyspace: 0, uid: UID, number: 9 }.encode();
    let (mut table, mut records, mut value_bytes) = (Vec::new(), 0, 0);
    for (key, seq, value, apart) in entries() {
        let Some(compression) = apart else {
            table.push((key, seq, EntryKind::Put, value));
            continue;
        };
        let offset = bytes.len() as u64;
        let scratch = &mut Vec::new();
        put_record(&mut bytes, (UID, offset), (key, SeqNo(seq)), (&value, compression), scratch);
        let length = bytes.len() as u64 - offset;
        let value_len = value.len() as u64;
        let mut pointer = Vec::new();
        ValuePointer { file: 9, offset, bytes: length, value_bytes: value_len }.put(&mut pointer);
        table.push((key, seq, EntryKind::ValuePointer, pointer));
        (records, value_bytes) = (records + 1, value_bytes + value_len);
    }
    let trailer = BlobTrailer { records, value_bytes, uid: UID };
    bytes.extend(trailer.encode(bytes.len() as u64));
    (bytes, table)
}

fn written() -> Vec<Vec<u8>> {
    let vfs = MemVfs::new();
    let dir = Path::new("db");
    vfs.create_dir(dir).unwrap();
    let (bytes, table) = blob();
    vfs.write_all(&dir.join(FILES[0]), &bytes).unwrap();
    let options = TableOptions { block_tags: false, ..TableOptions::default() };
    let path = dir.join(FILES[1]);
    let mut writer = TableWriter::create(&vfs, &path, TABLE_UID, &options).unwrap();
    for (user_key, seq, kind, value) in &table {
        writer.add(InternalKey { user_key, seq: SeqNo(*seq), kind: *kind }, value).unwrap();
    }
    let summary = writer.finish().unwrap();
    let file = TableMeta {
        id: FileId(7),
        range: KeyRange {
            smallest: summary.properties.smallest.clone(),
            largest: summary.properties.largest.clone(),
        },
        bytes: summary.bytes,
        entries: summary.properties.entries,
        tombstones: 0,
        value_bytes: summary.properties.value_bytes,
        oldest_tombstone_us: None,
        tombstone_seq_smallest: None,
        seq_smallest: summary.properties.seq_smallest.0,
        seq_largest: summary.properties.seq_largest.0,
        last_read_us: 0,
        created_us: 0,
        creation: 1,
        uid: TABLE_UID,
        checksum: summary.checksum,
    };
    let record = BlobFileRecord {
        id: FileId(9),
        bytes: bytes.len() as u64,
        records: 4,
        value_bytes: entries().iter().filter(|e| e.3.is_some()).map(|e| e.2.len() as u64).sum(),
        uid: UID,
        checksum: xxh3_64(&bytes),
    };
    let reference = BlobReference { blob: FileId(9), bytes: record.bytes - 80, records: 4 };
    let edit = VersionEdit::from(vec![
        Change::CreateKeyspace {
            id: 0,
            name: "default".into(),
            options: r#"{"policy":"leveled","value_separation":true}"#.into(),
        },
        Change::AddBlob { keyspace: 0, blob: record },
        Change::AddFile { keyspace: 0, level: Level(1), run: RunId(1), file: Arc::new(file) },
        Change::References { keyspace: 0, table: FileId(7), blobs: Arc::new([reference]) },
        Change::FlushedThrough { keyspace: 0, seq: LAST },
        Change::WalOldest { segment: 3 },
        Change::WalSegment { id: 3 },
        Change::LastSeq(LAST),
        Change::CleanClose { last_seq: LAST },
    ]);
    let mut state = ManifestState { db_uid: DB_UID, ..ManifestState::default() };
    state.apply_edit(&edit).unwrap();
    let disk: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let (next, options) = (SeqNo(LAST.0 + 1), WalOptions::default());
    let wal = Wal::create(disk.clone(), dir, DB_UID, Arc::new(Three), options, next).unwrap();
    wal.sync_first_segment().unwrap();
    wal.close().unwrap();
    drop(wal);
    drop(Manifest::create(disk, dir, 2, &state).unwrap());
    FILES.iter().map(|name| vfs.read_all(&dir.join(name)).unwrap()).collect()
}

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/value-log-v1")
}

fn golden() -> Vec<Vec<u8>> {
    let missing = || FILES.iter().any(|name| !golden_dir().join(name).exists());
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") && missing() {
        fs::create_dir_all(golden_dir()).unwrap();
        for (name, bytes) in FILES.iter().zip(written()) {
            let path = golden_dir().join(name);
            if !path.exists() {
                fs::write(path, bytes).unwrap();
            }
        }
    }
    FILES.iter().map(|name| fs::read(golden_dir().join(name)).unwrap()).collect()
}

#[test]
fn files_are_written_as_ever() {
    for ((name, golden), written) in FILES.iter().zip(golden()).zip(written()) {
        let differs = golden.iter().zip(&written).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{name}: first byte that differs");
        assert_eq!(golden.len(), written.len(), "{name}: length");
    }
}

#[test]
fn a_database_of_these_files_is_read() {
    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    for (name, bytes) in FILES.iter().zip(golden()) {
        disk.write_all(&Path::new("db").join(name), &bytes).unwrap();
    }
    let report = verify("db", &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
    assert_eq!((report.blob_files, report.blob_values, report.entries), (1, 4, 5));
    let keyspace = KeyspaceOptions::default().value_separation(ValueSeparation::default());
    for apart in [false, true] {
        let keyspace = if apart { keyspace.clone() } else { KeyspaceOptions::default() };
        let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        for (key, _, value, _) in entries() {
            assert_eq!(db.get(key).unwrap().as_deref(), Some(value.as_slice()));
        }
        let all: Vec<_> = db.default_keyspace().iter().map(|entry| entry.unwrap().1).collect();
        assert!(all.iter().eq(entries().iter().map(|(_, _, value, _)| value)));
        assert!(db.default_keyspace().iter().rev().map(|e| e.unwrap().1).eq(all.into_iter().rev()));
    }
}
