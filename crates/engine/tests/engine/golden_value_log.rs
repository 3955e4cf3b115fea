//! Golden-file tests of the value log: a blob file, a table with pointers to its values, and the
//! manifest that lists both files.

use std::path::Path;
use std::sync::Arc;

use lsmx::internals::format::blob::{BlobHeader, BlobTrailer, ValuePointer, put_record};
use lsmx::internals::format::version_edit::{BlobFileRecord, BlobReference, Change, VersionEdit};
use lsmx::internals::manifest::{Manifest, ManifestState};
use lsmx::internals::table::{TableOptions, TableWriter};
use lsmx::internals::wal::{SegmentRegistry, Wal, WalOptions};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Compression, EntryKind, KeyspaceOptions, SeqNo, ValueSeparation};
use lsmx_base::key::InternalKey;
use lsmx_compaction::{FileId, KeyRange, Level, RunId, TableMeta};
use xxhash_rust::xxh3::xxh3_64;

use crate::harness::database::{Entries, assert_clean, assert_entries, inline, open};
use crate::harness::golden::{assert_same_bytes, golden};

const UID: u64 = 0xfeed_f00d_0123_4567;
const TABLE_UID: u64 = 0x0123_4567_89ab_cdef;
const FILES: [&str; 5] = ["000009.blob", "000007.sst", "000003.wal", "MANIFEST-000002", "CURRENT"];
const DB_UID: u64 = 77;
const LAST: SeqNo = SeqNo((1 << 56) - (1 << 40));

/// Assigns file number 3 to the only WAL segment of the database.
struct SegmentThree;

impl SegmentRegistry for SegmentThree {
    fn allocate_file_number(&self) -> u64 {
        3
    }
    fn register_segment(&self, _id: u64) -> lsmx::Result<()> {
        Ok(())
    }
}

/// Key, sequence number, value, and the compression in the value log. The compression is `None` if the table stores the
/// value.
type Written = (&'static [u8], u64, Vec<u8>, Option<Compression>);

/// Key of the entry that expires in version 2, and its expiry time in microseconds.
const EXPIRING: (&[u8], u64) = (b"packed", 1 << 50);

/// Key, sequence number, kind, and value or value pointer of a table entry.
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

/// Returns the bytes of the blob file and the table entries that refer to it.
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
        let (expiring_key, expiry_us) = EXPIRING;
        let (kind, stored) = match key == expiring_key {
            false => (EntryKind::ValuePointer, pointer),
            true => {
                (EntryKind::ValuePointerExpiring, [&expiry_us.to_le_bytes(), &pointer[..]].concat())
            }
        };
        table.push((key, seq, kind, stored));
        (records, value_bytes) = (records + 1, value_bytes + value_len);
    }
    let trailer = BlobTrailer { records, value_bytes, uid: UID };
    bytes.extend(trailer.encode(bytes.len() as u64));
    (bytes, table)
}

/// Writes the database and returns the bytes of each file, in the order of `FILES`.
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
        expiry: summary.properties.expiry,
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
    let wal =
        Wal::create(disk.clone(), dir, DB_UID, Arc::new(SegmentThree), options, next).unwrap();
    wal.sync_first_segment().unwrap();
    wal.close().unwrap();
    drop(wal);
    drop(Manifest::create(disk, dir, 2, &state).unwrap());
    FILES.iter().map(|name| vfs.read_all(&dir.join(name)).unwrap()).collect()
}

/// Returns, for each file, its name, the bytes that the current code writes, and the golden bytes.
fn all_files() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let file = |(name, written): (&'static str, Vec<u8>)| {
        let golden = golden(&format!("value-log-v2-expiring-bytes/{name}"), || written.clone());
        (name, written, golden)
    };
    FILES.into_iter().zip(written()).map(file).collect()
}

#[test]
fn golden_value_log_is_written_unchanged() {
    for (name, written, golden) in all_files() {
        assert_same_bytes(name, &written, &golden);
    }
}

#[test]
fn golden_value_logs_of_every_version_are_read() {
    ["value-log-v1", "value-log-v2", "value-log-v2-expiring-bytes"]
        .into_iter()
        .for_each(check_value_log);
}

fn check_value_log(version: &str) {
    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    for name in FILES {
        let missing = || -> Vec<u8> { panic!("{name} of {version} is missing") };
        let bytes = golden(&format!("{version}/{name}"), missing);
        disk.write_all(&Path::new("db").join(name), &bytes).unwrap();
    }
    let report = assert_clean(&disk);
    assert_eq!((report.blob_files, report.blob_values, report.entries), (1, 4, 5));
    let mut model: Entries =
        entries().into_iter().map(|(key, _, value, _)| (key.to_vec(), value)).collect();
    for separation in [None, Some(ValueSeparation::default())] {
        let keyspace = KeyspaceOptions::default().value_separation(separation);
        let db = open(&disk, inline().keyspace_defaults(keyspace));
        assert_entries(&db.default_keyspace(), &model);
        if version != "value-log-v1" && separation.is_some() {
            db.env().advance_us(EXPIRING.1);
            model.remove(EXPIRING.0);
            assert_entries(&db.default_keyspace(), &model);
        }
    }
}
