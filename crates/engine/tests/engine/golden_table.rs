//! Golden-file tests for tables. All golden files must be readable. If `written` is set in a case, the current code
//! must produce exactly the bytes of the golden file. For files of version 1, the version and the checksum in the footer
//! are not compared: a table without expiring entries differs from version 1 only there.
//!
//! If an intended change alters the bytes of a table, keep the old golden file, set `written` of its case to false, and
//! add a case with a new file name.

use std::path::Path;
use std::sync::Arc;

use lsmx::internals::cache::BlockCache;
use lsmx::internals::table::{
    Compression, FilterWidth, ReadPurpose, Table, TableCursor, TableIdentity, TableOptions,
    TableWriter, verify_table,
};
use lsmx::operand_store::Cursor;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{EntryKind, SeqNo};
use lsmx_base::key::InternalKey;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_compaction::FileId;

use crate::harness::golden::{assert_same_bytes, golden};

struct Case {
    /// Name of the golden file in `tests/golden`.
    name: &'static str,
    compression: Compression,
    filter: Option<FilterWidth>,
    /// Whether data blocks store a one-byte hash tag per key.
    tags: bool,
    /// Number and name of the keyspace in the table properties.
    keyspace: Option<(u32, &'static str)>,
    /// Returns the point entries. All cases have the same range tombstones.
    entries: fn() -> Vec<Entry>,
    /// Size and XXH3-64 of the golden file.
    bytes: u64,
    checksum: u64,
    /// Whether the current code must produce the bytes of the golden file.
    written: bool,
    /// Format version of the golden file.
    version: u32,
}

const UID: u64 = 0x0123_4567_89ab_cdef;

/// The default values of all fields. A case overrides some of the fields.
const PLAIN: Case = Case {
    name: "",
    compression: Compression::None,
    filter: Some(FilterWidth::Fuse8),
    tags: false,
    keyspace: None,
    entries: every_kind,
    bytes: 0,
    checksum: 0,
    written: true,
    version: 1,
};

const CASES: &[Case] = &[
    Case {
        name: "table-v1.sst",
        bytes: 3840,
        checksum: 0x7a36_7a31_a949_7ac2,
        written: false,
        ..PLAIN
    },
    Case {
        name: "table-v1-lz4.sst",
        compression: Compression::Lz4,
        bytes: 2121,
        checksum: 0xcaef_b01d_8273_ee60,
        written: false,
        ..PLAIN
    },
    Case {
        name: "table-v1-no-filter.sst",
        filter: None,
        bytes: 3711,
        checksum: 0x61ae_f3f9_16f0_a873,
        written: false,
        ..PLAIN
    },
    Case { name: "table-v1-succinct.sst", bytes: 3_786, checksum: 0x99f4_b063_e86b_a292, ..PLAIN },
    Case {
        name: "table-v1-succinct-lz4.sst",
        compression: Compression::Lz4,
        bytes: 2_100,
        checksum: 0xd2fe_27d1_3ae6_c056,
        ..PLAIN
    },
    Case {
        name: "table-v1-succinct-no-filter.sst",
        filter: None,
        bytes: 3_657,
        checksum: 0x3ecd_4107_3fec_9bcb,
        ..PLAIN
    },
    Case {
        name: "table-v1-hashes.sst",
        entries: hashes,
        bytes: 35_521,
        checksum: 0x099d_4c8a_6aed_1567,
        ..PLAIN
    },
    Case {
        name: "table-v1-ids.sst",
        entries: ids,
        bytes: 39_378,
        checksum: 0x7893_6f5c_ddac_4e2d,
        ..PLAIN
    },
    Case {
        name: "table-v1-tags.sst",
        tags: true,
        entries: long_values,
        bytes: 17_411,
        checksum: 0x57e0_4745_04e5_2a5f,
        ..PLAIN
    },
    Case {
        name: "table-v1-wide-filter.sst",
        filter: Some(FilterWidth::Fuse16),
        bytes: 3_883,
        checksum: 0xcbe5_dab1_a5ce_9bbd,
        ..PLAIN
    },
    Case {
        name: "table-v1-wide-filter-hashes.sst",
        filter: Some(FilterWidth::Fuse16),
        entries: hashes,
        bytes: 37_313,
        checksum: 0x4505_b035_7bee_5518,
        ..PLAIN
    },
    Case {
        name: "table-v1-keyspace.sst",
        compression: Compression::Lz4,
        tags: true,
        keyspace: Some((7, "orders")),
        bytes: 2_111,
        checksum: 0x7c85_1bb4_7eb9_145e,
        ..PLAIN
    },
    Case {
        name: "table-v2.sst",
        bytes: 3_786,
        checksum: 0xfc3d_c2bd_a666_4631,
        version: 2,
        ..PLAIN
    },
    Case {
        name: "table-v2-expiring.sst",
        tags: true,
        entries: expiring,
        bytes: 4_231,
        checksum: 0x3e09_3ce6_81a5_5a9f,
        version: 2,
        written: false,
        ..PLAIN
    },
    Case {
        name: "table-v2-expiring-bytes.sst",
        tags: true,
        entries: expiring,
        bytes: 4_258,
        checksum: 0xeb5a_878d_79e0_bfc2,
        version: 2,
        ..PLAIN
    },
];

type Entry = (Vec<u8>, u64, EntryKind, Vec<u8>);

/// Returns entries of all kinds, including an empty key, a key with versions in several blocks, keys of 0xff bytes, and
/// a value longer than a block.
fn every_kind() -> Vec<Entry> {
    let mut entries: Vec<Entry> = vec![(vec![], 3, EntryKind::Put, b"of the empty key".to_vec())];
    for number in 0..40u64 {
        let value = format!("value {number}, value {number}").into_bytes();
        entries.push((format!("key {number:03}").into_bytes(), 1 << number, EntryKind::Put, value));
    }
    for seq in (100..140).rev() {
        let kind = if seq % 3 == 0 { EntryKind::Merge } else { EntryKind::Put };
        entries.push((b"many versions".to_vec(), seq, kind, b"operand or value".to_vec()));
    }
    entries.push((b"pointer".to_vec(), SeqNo::MAX.0, EntryKind::ValuePointer, vec![9; 24]));
    entries.push((b"tombstone".to_vec(), 77, EntryKind::Delete, vec![]));
    entries.push((b"z long value".to_vec(), 78, EntryKind::Put, vec![b'x'; 700]));
    entries.push((vec![0xff, 0xff], 79, EntryKind::Put, vec![0, 0xff]));
    entries.push((vec![0xff, 0xff, 0], 80, EntryKind::Put, vec![]));
    entries
}

/// Returns entries of all kinds and entries that expire.
fn expiring() -> Vec<Entry> {
    let mut entries = every_kind();
    for number in 0..9u64 {
        let expiry_us = 1_000_000 * (number * 7 % 9 + 1);
        let value = [&expiry_us.to_le_bytes(), &b"a value that expires"[..]].concat();
        let kind = match number % 2 {
            0 => EntryKind::PutExpiring,
            _ => EntryKind::ValuePointerExpiring,
        };
        entries.push((format!("expiring {number}").into_bytes(), 600 + number, kind, value));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    entries
}

/// Returns 1,200 puts with 8-byte hashes as keys, and a delete.
fn hashes() -> Vec<Entry> {
    let key = |n: u64| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()).to_be_bytes();
    sorted((1..=1200).map(|n| (key(n).to_vec(), n, EntryKind::Put, vec![7; 4])).collect())
}

/// Returns entries with values long enough for blocks to store hash tags. Every 50th key has nine versions, which can
/// span two blocks.
fn long_values() -> Vec<Entry> {
    let hash = |n: u64| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes());
    let versions = |n: u64| if n.is_multiple_of(50) { 1..=9 } else { 1..=1 };
    let key = |n: u64| hash(n).to_be_bytes().to_vec();
    let of = |n| versions(n).rev().map(move |seq| (key(n), seq, EntryKind::Put, vec![7; 30]));
    let mut entries: Vec<Entry> = (1..=300).flat_map(of).collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    with_delete(entries)
}

fn ids() -> Vec<Entry> {
    let fields = ["address", "age", "email", "name"];
    let key = |n: usize| format!("user:{:05}:{}", n / 4 * 3, fields[n % 4]).into_bytes();
    sorted((1..=1200).map(|n| (key(n), n as u64, EntryKind::Put, vec![7; 4])).collect())
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort();
    with_delete(entries)
}

/// Appends a delete of a key that is larger than all other keys.
fn with_delete(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.push((vec![0xff; 9], 5, EntryKind::Delete, vec![]));
    entries
}

fn range_tombstones() -> Vec<RangeTombstone> {
    let span = |start: &'static [u8], end: Option<&'static [u8]>, seqs: &[u64]| RangeTombstone {
        start: start.into(),
        end: end.map(Into::into),
        seqs: seqs.iter().copied().map(SeqNo).collect(),
    };
    vec![span(b"key 010", Some(b"key 020"), &[500, 20]), span(b"key 015", None, &[300])]
}

fn write(case: &Case) -> Vec<u8> {
    let entries = (case.entries)();
    // Tables of more than 1,000 entries use smaller data blocks and larger index blocks.
    let large = entries.len() > 1000;
    let options = TableOptions {
        prefixes: None,
        block_bytes: if large { 64 } else { 256 },
        index_block_bytes: if large { 512 } else { 128 },
        restart_interval: 4,
        block_tags: case.tags,
        compression: case.compression,
        filter: case.filter,
    };
    let vfs = MemVfs::new();
    let path = Path::new("table");
    let mut writer = TableWriter::create(&vfs, path, UID, &options).unwrap();
    for (user_key, seq, kind, value) in &entries {
        writer.add(InternalKey { user_key, seq: SeqNo(*seq), kind: *kind }, value).unwrap();
    }
    for span in range_tombstones() {
        writer.add_range_tombstone(span);
    }
    writer.record_tombstone_time(1_000_001);
    writer.set_creation_time(2_000_002);
    if let Some((id, name)) = case.keyspace {
        writer.set_keyspace(id, name);
    }
    let summary = writer.finish().unwrap();
    let bytes = vfs.read_all(path).unwrap();
    assert_eq!(bytes.len() as u64, summary.bytes);
    bytes
}

fn golden_of(case: &Case) -> Vec<u8> {
    golden(case.name, || write(case))
}

/// Copies the version and the checksum in the footer.
fn copy_version_and_checksum(written: &mut [u8], golden: &[u8]) {
    assert_eq!(written.len(), golden.len());
    let fields = written.len() - 16..written.len() - 8;
    written[fields.clone()].copy_from_slice(&golden[fields]);
}

#[test]
fn golden_tables_of_the_current_version_are_written_unchanged() {
    for case in CASES.iter().filter(|case| case.written) {
        let (mut written, golden) = (write(case), golden_of(case));
        if case.version == 1 {
            copy_version_and_checksum(&mut written, &golden);
        }
        assert_same_bytes(case.name, &written, &golden);
    }
}

#[test]
fn golden_tables_of_every_version_are_read() {
    for case in CASES {
        let bytes = golden_of(case);
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes);
        let known = (case.bytes, case.checksum);
        assert_eq!((bytes.len() as u64, checksum), known, "{}: {checksum:#018x}", case.name);

        let vfs = MemVfs::new();
        let path = Path::new("table");
        vfs.create(path).unwrap().append(&bytes).unwrap();
        let identity = TableIdentity {
            id: FileId(1),
            bytes: case.bytes,
            uid: UID,
            checksum,
            seq_largest: SeqNo::MAX,
        };
        let table =
            Arc::new(Table::open(&vfs, path, &identity, &BlockCache::new(1 << 20)).unwrap());
        verify_table(&table).unwrap();

        let mut read = Vec::new();
        let mut cursor = TableCursor::new(&table, ReadPurpose::Scan);
        cursor.first().unwrap();
        while cursor.valid() {
            let key = cursor.key();
            read.push((key.user_key.to_vec(), key.seq.0, key.kind, cursor.value().to_vec()));
            cursor.next().unwrap();
        }
        assert_eq!(read, (case.entries)(), "{}", case.name);
        for (user_key, seq, kind, value) in &read {
            let found = table.get(user_key, SeqNo(*seq), true).unwrap().expect("a stored version");
            assert_eq!((found.seq.0, found.kind, &*found.value), (*seq, *kind, &**value));
        }
        assert_eq!(table.get(b"absent", SeqNo::MAX, true).unwrap(), None);
        for (key, snapshot, covering) in [
            ("key 009", 900, None),
            ("key 012", 499, Some(20)),
            ("key 016", 400, Some(300)),
            ("z", 300, Some(300)),
        ] {
            let found = table.covering_tombstone(key.as_bytes(), SeqNo(snapshot)).unwrap();
            assert_eq!(found, covering.map(SeqNo), "{key}");
        }
        let properties = table.properties();
        assert_eq!(properties.filter.is_some(), case.filter.is_some());
        assert_eq!(properties.encodings[0], u8::from(case.tags));
        assert_eq!(properties.oldest_tombstone_us, Some(1_000_001));
        assert_eq!(properties.created_us, 2_000_002);
        let keyspace = properties.keyspace.as_ref().map(|(id, name)| (*id, &**name));
        assert_eq!(keyspace, case.keyspace, "{}", case.name);
        assert_eq!((properties.tombstones, properties.range_tombstone_count), (1, 3));
        let times = properties
            .expiry
            .map(|expiry| (expiry.entries, expiry.earliest_us, expiry.median_us, expiry.latest_us));
        let is_expiring = case.name.starts_with("table-v2-expiring");
        assert_eq!(times, is_expiring.then_some((9, 1_000_000, 5_000_000, 9_000_000)));
        let bytes = properties.expiry.and_then(|expiry| expiry.bytes);
        let bytes = bytes.map(|bytes| (bytes.expiring, bytes.median_us));
        let has_bytes = case.name == "table-v2-expiring-bytes.sst";
        assert_eq!(bytes, has_bytes.then_some((9 * 38, 5_000_000)));
    }
}

/// Returns an external table: one put or delete per key, with the sequence number 0.
fn write_external() -> Vec<u8> {
    let options = TableOptions { block_bytes: 128, ..TableOptions::default() };
    let vfs = MemVfs::new();
    let path = Path::new("table");
    let mut writer = TableWriter::create(&vfs, path, UID, &options).unwrap();
    writer.set_external();
    for number in 0..60_u32 {
        let key = format!("key-{number:03}");
        let kind = if number % 7 == 3 { EntryKind::Delete } else { EntryKind::Put };
        let value = if kind == EntryKind::Put { format!("value {number}") } else { String::new() };
        let key = InternalKey { user_key: key.as_bytes(), seq: SeqNo::ZERO, kind };
        writer.add(key, value.as_bytes()).unwrap();
    }
    writer.finish().unwrap();
    vfs.read_all(path).unwrap()
}

#[test]
fn golden_external_tables_are_written_unchanged_and_read() {
    for name in ["table-v1-external.sst", "table-v2-external.sst"] {
        let (mut written, golden) = (write_external(), golden(name, write_external));
        if name == "table-v1-external.sst" {
            copy_version_and_checksum(&mut written, &golden);
        }
        assert_same_bytes(name, &written, &golden);
        check_external_table(&golden);
    }
}

fn check_external_table(bytes: &[u8]) {
    let vfs = MemVfs::new();
    let path = Path::new("table");
    vfs.create(path).unwrap().append(bytes).unwrap();
    let checksum = xxhash_rust::xxh3::xxh3_64(bytes);
    let seq_largest = SeqNo(9);
    let identity =
        TableIdentity { id: FileId(1), bytes: bytes.len() as u64, uid: UID, checksum, seq_largest };
    let table = Table::open(&vfs, path, &identity, &BlockCache::new(1 << 20)).unwrap();
    verify_table(&table).unwrap();
    assert!(table.properties().is_external);
    let found = table.get(b"key-004", SeqNo(9), true).unwrap().expect("a visible entry");
    assert_eq!((found.seq, found.kind, &*found.value), (SeqNo(9), EntryKind::Put, &b"value 4"[..]));
    assert_eq!(table.get(b"key-004", SeqNo(8), true).unwrap(), None);
}
