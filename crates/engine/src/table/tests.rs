//! Tests that compare tables with a sorted list of entries.

use std::path::Path;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;
use proptest::prelude::*;

use crate::cache::{BlockCache, BlockKindMap};
use crate::cursor::Cursor;
use crate::error::Error;
use crate::format::prefix_extractor::PrefixExtractor;
use crate::format::{BlockKind, copies_with_flipped_bit};
use crate::table::*;
use crate::vfs::call::VfsCall;
use crate::vfs::counting::CountingVfs;
use crate::vfs::{MemVfs, Vfs};

type Entry = (Vec<u8>, u64, EntryKind, Vec<u8>);

const PATH: &str = "000001.sst";
const UID: u64 = 0x1234_5678_9abc_def0;

fn key(entry: &Entry) -> InternalKey<'_> {
    InternalKey { user_key: &entry.0, seq: SeqNo(entry.1), kind: entry.2 }
}

fn write(
    vfs: &dyn Vfs,
    options: &TableOptions,
    entries: &[Entry],
    spans: &[RangeTombstone],
) -> TableSummary {
    let mut writer = TableWriter::create(vfs, Path::new(PATH), UID, options).unwrap();
    for entry in entries {
        writer.add(key(entry), &entry.3).unwrap();
    }
    for span in spans {
        writer.add_range_tombstone(span.clone());
    }
    writer.set_creation_time(77);
    writer.finish().unwrap()
}

fn identity(summary: &TableSummary) -> TableIdentity {
    TableIdentity {
        id: FileId(1),
        bytes: summary.bytes,
        uid: summary.uid,
        checksum: summary.checksum,
        seq_largest: summary.properties.seq_largest,
    }
}

fn open(vfs: &dyn Vfs, summary: &TableSummary, cache: &Arc<BlockCache>) -> Arc<Table> {
    Arc::new(Table::open(vfs, Path::new(PATH), &identity(summary), cache).unwrap())
}

fn put(user_key: impl Into<Vec<u8>>, seq: u64, value: &str) -> Entry {
    (user_key.into(), seq, EntryKind::Put, value.into())
}

fn model_get(entries: &[Entry], user_key: &[u8], snapshot: u64) -> Option<Entry> {
    entries.iter().find(|entry| entry.0 == user_key && entry.1 <= snapshot).cloned()
}

fn table_get(table: &Table, user_key: &[u8], snapshot: u64, filter: bool) -> Option<Entry> {
    let found = table.get(user_key, SeqNo(snapshot), filter).unwrap()?;
    Some((user_key.to_vec(), found.seq.0, found.kind, found.value.to_vec()))
}

fn at(cursor: &TableCursor) -> Option<Entry> {
    cursor.valid().then(|| {
        assert_eq!(cursor.value_slice(), cursor.value());
        let key = cursor.key();
        (key.user_key.to_vec(), key.seq.0, key.kind, cursor.value().to_vec())
    })
}

#[test]
fn get_table_with_one_key_finds_it() {
    for options in [
        TableOptions::default(),
        TableOptions { filter: None, compression: Compression::Lz4, ..TableOptions::default() },
    ] {
        let vfs = MemVfs::new();
        let entries = [put("k", 5, "v")];
        let summary = write(&vfs, &options, &entries, &[]);
        assert_eq!(
            (
                summary.properties.entries,
                &*summary.properties.smallest,
                &*summary.properties.largest
            ),
            (1, &b"k"[..], &b"k"[..])
        );
        assert_eq!(summary.properties.filter.is_some(), options.filter.is_some());
        let table = open(&vfs, &summary, &BlockCache::new(1 << 20));
        assert_eq!(table_get(&table, b"k", 5, true), Some(entries[0].clone()));
        assert_eq!(table_get(&table, b"k", 4, true), None);
        assert_eq!(table_get(&table, b"", 5, true), None);
        assert_eq!(table_get(&table, b"l", 5, false), None);
        verify_table(&table).unwrap();
    }
}

#[test]
fn get_longest_key_and_long_value_round_trip() {
    let vfs = MemVfs::new();
    let entries = vec![
        (vec![7; 65_536], 9, EntryKind::Put, vec![1; 3 << 20]),
        (vec![7; 65_536], 8, EntryKind::Delete, vec![]),
        (vec![8; 65_536], 7, EntryKind::Put, vec![2; 300 << 10]),
    ];
    let summary = write(&vfs, &TableOptions::default(), &entries, &[]);
    let table = open(&vfs, &summary, &BlockCache::new(16 << 20));
    for entry in &entries {
        assert_eq!(table_get(&table, &entry.0, entry.1, true).as_ref(), Some(entry));
    }
    verify_table(&table).unwrap();
}

#[test]
fn writer_key_above_limit_is_refused() {
    let vfs = MemVfs::new();
    let options = TableOptions::default();
    let mut writer = TableWriter::create(&vfs, Path::new(PATH), UID, &options).unwrap();
    let long = (vec![0; 65_537], 1, EntryKind::Put, vec![]);
    let error = writer.add(key(&long), &[]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "key", limit: 65_536, .. }), "{error}");
    assert!(writer.finish().is_err(), "finish after an error must fail");
}

#[test]
fn writer_unordered_entries_and_empty_table_are_refused() {
    let vfs = MemVfs::new();
    let options = TableOptions::default();
    for (first, second) in [
        (put("b", 1, ""), put("a", 2, "")),
        (put("a", 1, ""), put("a", 2, "")),
        (put("a", 1, ""), put("a", 1, "")),
    ] {
        let mut writer = TableWriter::create(&vfs, Path::new(PATH), UID, &options).unwrap();
        writer.add(key(&first), b"").unwrap();
        let error = writer.add(key(&second), b"").unwrap_err();
        assert!(matches!(error, Error::OutOfOrder { .. }), "{error}");
        vfs.remove(Path::new(PATH)).unwrap();
    }
    let writer = TableWriter::create(&vfs, Path::new(PATH), UID, &options).unwrap();
    assert!(matches!(writer.finish(), Err(Error::EmptyTable { .. })));
}

#[test]
fn table_with_range_tombstones_alone_has_no_entries() {
    let vfs = MemVfs::new();
    let span = |start: &'static [u8], end: Option<&'static [u8]>, seq| RangeTombstone {
        start: start.into(),
        end: end.map(Into::into),
        seqs: vec![SeqNo(seq)],
    };
    let spans = [span(b"b", Some(b"m"), 5), span(b"f", None, 9)];
    let summary = write(&vfs, &TableOptions::default(), &[], &spans);
    assert_eq!(
        (&*summary.properties.smallest, &*summary.properties.largest),
        (&b"b"[..], &b"m"[..])
    );
    assert_eq!(
        (summary.properties.seq_smallest, summary.properties.seq_largest),
        (SeqNo(5), SeqNo(9))
    );
    let table = open(&vfs, &summary, &BlockCache::new(1 << 20));
    assert_eq!(table.covering_tombstone(b"c", SeqNo(8)).unwrap(), Some(SeqNo(5)));
    assert_eq!(table.covering_tombstone(b"f", SeqNo(8)).unwrap(), Some(SeqNo(5)));
    assert_eq!(table.covering_tombstone(b"f", SeqNo(9)).unwrap(), Some(SeqNo(9)));
    assert_eq!(table.covering_tombstone(b"z", SeqNo(9)).unwrap(), Some(SeqNo(9)));
    assert_eq!(table.covering_tombstone(b"a", SeqNo(9)).unwrap(), None);
    assert_eq!(table.range_tombstones(ReadPurpose::Lookup).unwrap().as_slice().len(), 3);
    assert_eq!(table.get(b"c", SeqNo::MAX, true).unwrap(), None);
    let mut cursor = TableCursor::new(&table, ReadPurpose::Scan);
    for go in [Cursor::first, Cursor::last] {
        go(&mut cursor).unwrap();
        assert!(!cursor.valid());
    }
    cursor.seek(b"c", SeqNo::MAX).unwrap();
    assert!(!cursor.valid());
    cursor.seek_before(b"c", SeqNo::MAX).unwrap();
    assert!(!cursor.valid());
    verify_table(&table).unwrap();
}

#[test]
fn open_missing_file_is_not_found() {
    let vfs = MemVfs::new();
    let summary = write(&vfs, &TableOptions::default(), &[put("k", 1, "v")], &[]);
    vfs.remove(Path::new(PATH)).unwrap();
    let cache = BlockCache::new(0);
    match Table::open(&vfs, Path::new(PATH), &identity(&summary), &cache) {
        Err(Error::Io { source, .. }) => assert_eq!(source.kind(), std::io::ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
}

#[test]
fn open_wrong_identity_is_refused() {
    let vfs = MemVfs::new();
    let summary = write(&vfs, &TableOptions::default(), &[put("k", 1, "v")], &[]);
    let cache = BlockCache::new(0);
    let right = identity(&summary);
    let refused = |wrong: TableIdentity| match Table::open(&vfs, Path::new(PATH), &wrong, &cache) {
        Err(Error::Corrupt { source: Malformed::Identity { what, .. }, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(TableIdentity { bytes: right.bytes + 1, ..right }), "table size");
    assert_eq!(refused(TableIdentity { uid: right.uid ^ 1, ..right }), "table uid");
    let changed = TableIdentity { checksum: right.checksum ^ 1, ..right };
    let table = Table::open(&vfs, Path::new(PATH), &changed, &cache).unwrap();
    assert!(matches!(
        verify_table(&table),
        Err(Error::Corrupt { source: Malformed::Checksum { .. }, .. })
    ));
}

#[test]
fn read_damaged_table_fails_or_is_right() {
    let vfs = MemVfs::new();
    let entries: Vec<Entry> =
        (0..60u64).map(|i| put(format!("key{:02}", i / 3), 100 - i, "value")).collect();
    let options = TableOptions {
        block_bytes: 128,
        index_block_bytes: 64,
        compression: Compression::Lz4,
        ..TableOptions::default()
    };
    let span = RangeTombstone {
        start: b"key05".as_slice().into(),
        end: None,
        seqs: vec![SeqNo(500), SeqNo(3)],
    };
    let summary = write(&vfs, &options, &entries, &[span]);
    let file = vfs.open(Path::new(PATH)).unwrap();
    let mut bytes = vec![0; usize::try_from(summary.bytes).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    let check = |bytes: &[u8]| {
        let vfs = MemVfs::new();
        vfs.create(Path::new(PATH)).unwrap().append(bytes).unwrap();
        let cache = BlockCache::new(1 << 16);
        let Ok(table) = Table::open(&vfs, Path::new(PATH), &identity(&summary), &cache) else {
            return;
        };
        let table = Arc::new(table);
        assert!(verify_table(&table).is_err());
        for entry in entries.iter().step_by(7) {
            if let Ok(found) = table.get(&entry.0, SeqNo(entry.1), true) {
                let found = found.expect("a present key is found or its read fails");
                assert_eq!((found.seq.0, &*found.value), (entry.1, &*entry.3));
            }
        }
        if let Ok(covering) = table.covering_tombstone(b"key07", SeqNo(499)) {
            assert_eq!(covering, Some(SeqNo(3)));
        }
        let mut cursor = TableCursor::new(&table, ReadPurpose::Scan);
        let mut read = Vec::new();
        let mut moved = cursor.first();
        while moved.is_ok() && cursor.valid() {
            read.extend(at(&cursor));
            moved = cursor.next();
        }
        if moved.is_ok() {
            assert_eq!(read, entries);
        }
    };
    copies_with_flipped_bit(&bytes).for_each(|(_, damaged)| check(&damaged));
    for len in (0..bytes.len()).step_by(13) {
        check(&bytes[..len]);
    }
}

/// Generates keys that are difficult for separators and prefixes: empty keys, runs of 0x00 and 0xff, and long common
/// prefixes.
fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(254), Just(255)], 0..6),
        (0u8..30, 0usize..3).prop_map(|(last, zeros)| {
            let mut key =
                b"a shared prefix that is longer than a tiny block of 64 bytes is: ".to_vec();
            key.push(last);
            key.extend(std::iter::repeat_n(0, zeros));
            key
        }),
        (0u16..400).prop_map(|number| number.to_be_bytes().to_vec()),
    ]
}

fn any_entries() -> impl Strategy<Value = Vec<Entry>> {
    let versions = prop_oneof![4 => 1usize..3, 1 => 20usize..60];
    proptest::collection::btree_map(any_key(), (versions, 0u64..5, 0usize..40), 1..80).prop_map(
        |keys| {
            let mut entries = Vec::new();
            for (user_key, (versions, first, value_bytes)) in keys {
                for version in (0..versions as u64).rev() {
                    let kind = EntryKind::from_u8(u8::try_from(version % 4).unwrap()).unwrap();
                    let value = vec![
                        u8::try_from(version).unwrap();
                        if kind == EntryKind::Delete { 0 } else { value_bytes }
                    ];
                    entries.push((user_key.clone(), first + 2 * version, kind, value));
                }
            }
            entries
        },
    )
}

fn any_options() -> impl Strategy<Value = TableOptions> {
    (
        prop_oneof![Just(64u32), 64u32..600, Just(4096u32)],
        prop_oneof![Just(1u32), 1u32..5, Just(16u32)],
        prop_oneof![Just(64u32), 64u32..300, Just(4096u32)],
        prop_oneof![Just(Compression::None), Just(Compression::Lz4)],
        prop_oneof![Just(None), Just(Some(FilterWidth::Fuse8)), Just(Some(FilterWidth::Fuse16))],
        any::<bool>(),
    )
        .prop_map(|drawn| {
            let (block_bytes, restart_interval, index_block_bytes, compression, filter, block_tags) =
                drawn;
            TableOptions {
                prefixes: block_tags.then_some(PrefixExtractor::Length(2)),
                block_bytes,
                restart_interval,
                block_tags,
                index_block_bytes,
                compression,
                filter,
            }
        })
}

#[derive(Clone, Debug)]
enum Move {
    First,
    Last,
    Next,
    Prev,
    Seek(Vec<u8>, u64),
    SeekBefore(Vec<u8>, u64),
}

fn any_move() -> impl Strategy<Value = Move> {
    let seq = || prop_oneof![0u64..130, Just(SeqNo::MAX.0)];
    prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        12 => Just(Move::Next),
        12 => Just(Move::Prev),
        3 => (any_key(), seq()).prop_map(|(key, seq)| Move::Seek(key, seq)),
        3 => (any_key(), seq()).prop_map(|(key, seq)| Move::SeekBefore(key, seq)),
    ]
}

/// Generates hints. Hints must not change the result of any move.
fn any_hints() -> impl Strategy<Value = ScanHints> {
    let bound = || proptest::option::of(any_key().prop_map(Bytes::from));
    (proptest::option::of(0u64..100), bound(), bound()).prop_map(|(entries, lower, upper)| {
        ScanHints { entries, lower, upper, ..ScanHints::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn table_random_operations_match_sorted_list(
        entries in any_entries(),
        options in any_options(),
        absent in proptest::collection::vec(any_key(), 10),
        moves in proptest::collection::vec(any_move(), 0..120),
        budget in prop_oneof![Just(0u64), 0u64..20_000, Just(1u64 << 20)],
        fill in prop_oneof![Just(ReadPurpose::Lookup), Just(ReadPurpose::Scan), Just(ReadPurpose::Job)],
        hints in any_hints(),
    ) {
        let vfs = MemVfs::new();
        let summary = write(&vfs, &options, &entries, &[]);
        let cache = BlockCache::new(budget);
        let table = open(&vfs, &summary, &cache);
        verify_table(&table).unwrap();
        prop_assert_eq!(summary.properties.entries, entries.len() as u64);
        prop_assert_eq!(&*summary.properties.smallest, &*entries[0].0);
        prop_assert_eq!(&*summary.properties.largest, &*entries[entries.len() - 1].0);

        let keys = entries.iter().map(|entry| entry.0.clone()).chain(absent);
        for user_key in keys {
            for snapshot in [0, 1, 2, 7, 40, 41, 80, SeqNo::MAX.0] {
                let expected = model_get(&entries, &user_key, snapshot);
                for filter in [true, false] {
                    prop_assert_eq!(&table_get(&table, &user_key, snapshot, filter), &expected);
                }
            }
        }

        let mut cursor = TableCursor::new(&table, fill).with_hints(&hints);
        let mut model: Option<usize> = None;
        for step in moves {
            let before = |user_key: &[u8], seq: u64| {
                let target = InternalKey { user_key, seq: SeqNo(seq), kind: EntryKind::ValuePointer };
                entries.partition_point(|entry| {
                    let entry = key(entry);
                    (entry.user_key, std::cmp::Reverse(entry.seq))
                        < (target.user_key, std::cmp::Reverse(target.seq))
                })
            };
            match step {
                Move::First => {
                    cursor.first().unwrap();
                    model = Some(0);
                }
                Move::Last => {
                    cursor.last().unwrap();
                    model = Some(entries.len() - 1);
                }
                Move::Next => {
                    let Some(index) = model else { continue };
                    cursor.next().unwrap();
                    model = Some(index + 1).filter(|&index| index < entries.len());
                }
                Move::Prev => {
                    let Some(index) = model else { continue };
                    cursor.prev().unwrap();
                    model = index.checked_sub(1);
                }
                Move::Seek(user_key, seq) => {
                    cursor.announce_seek(&user_key, SeqNo(seq), &hints, seq % 2 == 0).unwrap();
                    cursor.seek(&user_key, SeqNo(seq)).unwrap();
                    model = Some(before(&user_key, seq)).filter(|&index| index < entries.len());
                }
                Move::SeekBefore(user_key, seq) => {
                    cursor.seek_before(&user_key, SeqNo(seq)).unwrap();
                    model = before(&user_key, seq).checked_sub(1);
                }
            }
            prop_assert_eq!(at(&cursor), model.map(|index| entries[index].clone()));
        }
        let resident: u64 = blocks_of(&cache).iter().map(|(_, bytes)| bytes).sum();
        prop_assert!(resident <= budget, "{resident} bytes with a budget of {budget}");
    }
}

/// Returns the memory of all blocks. The memory of open tables is not included.
fn blocks_of(cache: &BlockCache) -> BlockKindMap<u64> {
    let resident = cache.resident_bytes();
    BlockKindMap::from_fn(|kind| if kind == BlockKind::Open { 0 } else { resident[kind] })
}

#[test]
fn table_reads_are_counted_by_kind() {
    let vfs = MemVfs::new();
    let entries: Vec<Entry> =
        (0..20_000u64).map(|i| put(format!("{i:08}"), 1, "a value of some length")).collect();
    let summary = write(&vfs, &TableOptions::default(), &entries, &[]);
    let cache = BlockCache::new(8 << 20);
    let table = open(&vfs, &summary, &cache);
    assert_eq!(cache.hit_counts()[BlockKind::Open].misses, 1);
    for round in 0..2 {
        assert!(table.get(b"00012345", SeqNo(1), true).unwrap().is_some());
        for kind in [BlockKind::Filter, BlockKind::TopIndex, BlockKind::Index, BlockKind::Data] {
            let counts = cache.hit_counts()[kind];
            assert_eq!((counts.misses, counts.hits), (1, round), "{kind:?}");
        }
    }
    assert!(table.get(b"absent", SeqNo(1), true).unwrap().is_none());
    assert_eq!(cache.hit_counts()[BlockKind::Filter].hits, 2);
    let mut cursor = TableCursor::new(&table, ReadPurpose::Job);
    cursor.first().unwrap();
    let before = cache.hit_counts();
    while cursor.valid() {
        cursor.next().unwrap();
    }
    assert_eq!(cache.hit_counts(), before, "reads of jobs were counted");
}

#[test]
fn cursor_read_ahead_returns_all_entries() {
    let vfs = MemVfs::new();
    let entries: Vec<Entry> =
        (0..30_000u64).map(|i| put(format!("{i:08}"), i, "a value of some length")).collect();
    let summary = write(&vfs, &TableOptions::default(), &entries, &[]);
    let cache = BlockCache::new(1 << 20);
    let table = open(&vfs, &summary, &cache);
    for fill in [ReadPurpose::Job, ReadPurpose::Scan, ReadPurpose::Lookup] {
        let mut cursor = TableCursor::new(&table, fill);
        cursor.first().unwrap();
        for entry in &entries {
            assert_eq!(at(&cursor).as_ref(), Some(entry));
            cursor.next().unwrap();
        }
        assert!(!cursor.valid());
        cursor.last().unwrap();
        for entry in entries.iter().rev() {
            assert_eq!(at(&cursor).as_ref(), Some(entry));
            cursor.prev().unwrap();
        }
        assert!(!cursor.valid());
        let resident = blocks_of(&cache);
        match fill {
            ReadPurpose::Job => assert_eq!(resident, BlockKindMap::default()),
            // A seek adds its block and the next block to the cache. Here, these are the first two and the last two
            // blocks.
            ReadPurpose::Scan => {
                let data = resident[BlockKind::Data];
                assert!(data > 0 && data < 5 * 4096, "{data}");
                assert!(resident[BlockKind::Index] > 0);
            }
            ReadPurpose::Lookup => assert!(resident[BlockKind::Data] > 0),
            ReadPurpose::WarmUp | ReadPurpose::MemoryOnly => unreachable!("not tested here"),
        }
    }
}

/// Returns the offset and the size of each data block.
fn data_block_handles(table: &Arc<Table>) -> Vec<(u64, u64)> {
    let mut context = ReadContext::new(ReadPurpose::Job);
    let top = table.top_index(&mut context).unwrap().unwrap();
    let mut handles = Vec::new();
    for ordinal in 0..top.count() {
        let handle = top.handle(ordinal).unwrap().unwrap();
        let index = table.index_block(ordinal, &top, handle, &mut context).unwrap();
        for block in 0..index.count() {
            let handle = index.handle(block).unwrap().unwrap();
            handles.push((handle.offset, handle.bytes));
        }
    }
    handles
}

#[test]
fn data_blocks_end_at_pages_if_the_padding_is_small() {
    // Size of a value in bytes, target size in bytes, and whether blocks are padded.
    let cases = [
        (20, 4096, true),
        (100, 4096, true),
        (180, 8192, true),
        (320, 4096, true),
        (1_000, 4096, true),
        (1_100, 4096, false),
        (2_500, 4096, false),
        (100, 4000, false),
        (5_000, 4096, false),
    ];
    for (value_bytes, block_bytes, padded) in cases {
        let vfs = MemVfs::new();
        let value = "v".repeat(value_bytes);
        let entries: Vec<Entry> =
            (0..2_000u64).map(|i| put(format!("{i:08}"), i, &value)).collect();
        let options = TableOptions {
            block_bytes,
            compression: Compression::None,
            filter: None,
            ..TableOptions::default()
        };
        let summary = write(&vfs, &options, &entries, &[]);
        let table = open(&vfs, &summary, &BlockCache::new(1 << 20));
        let handles = data_block_handles(&table);
        let inner = &handles[..handles.len() - 1];
        let at_pages = inner.iter().filter(|(offset, bytes)| (offset + bytes) % 4096 == 0).count();
        let case = format!("values of {value_bytes} bytes, blocks of {block_bytes} bytes");
        if padded {
            assert_eq!(at_pages, inner.len(), "{case}");
        } else {
            assert!(at_pages < inner.len() / 2, "{case}: {at_pages} of {}", inner.len());
        }
        let (data, filled) = (summary.properties.data_bytes, len_u64(2_000 * (value_bytes + 4)));
        assert!(data < filled + filled / 4, "{case}: {data} bytes");
        assert_eq!(verify_table(&table).unwrap(), ());
    }
}

#[test]
fn last_data_block_is_padded_if_many_blocks_precede_it() {
    let index_bits_per_block = |count: u64| {
        let vfs = MemVfs::new();
        let value = "v".repeat(100);
        let entries: Vec<Entry> = (0..count).map(|i| put(format!("{i:08}"), i, &value)).collect();
        let options = TableOptions { filter: None, ..TableOptions::default() };
        let summary = write(&vfs, &options, &entries, &[]);
        let table = open(&vfs, &summary, &BlockCache::new(1 << 20));
        verify_table(&table).unwrap();
        let handles = data_block_handles(&table);
        let last = handles.last().unwrap().1;
        let properties = &summary.properties;
        (last, 8 * properties.index_bytes / properties.data_blocks)
    };
    // A data block holds less than 40 entries, so the last blocks of these tables have few entries or are full.
    for count in 45_000..45_003 {
        let (last, bits) = index_bits_per_block(count);
        assert_eq!(last, 4096, "{count} entries");
        assert!(bits < 18, "{count} entries: {bits} bits");
    }
    let (last, bits) = index_bits_per_block(4_001);
    assert!(last < 4096 && bits > 18, "{last} bytes, {bits} bits");
}

#[test]
fn scan_with_hints_reads_only_the_blocks_that_it_needs() {
    let counting = CountingVfs::new(Arc::new(MemVfs::new()));
    let value = "v".repeat(100);
    let entries: Vec<Entry> = (0..20_000u64).map(|i| put(format!("{i:08}"), i, &value)).collect();
    let summary = write(&counting, &TableOptions::default(), &entries, &[]);
    let table = open(&counting, &summary, &BlockCache::new(1 << 20));
    let data_bytes = || counting.counts().bytes.count_of(VfsCall::Read);
    let last = |i: u64| Some(Bytes::from(format!("{i:08}")));
    let cases = [
        ("no hints", ScanHints::default(), 60 << 10),
        ("300 entries", ScanHints { entries: Some(300), ..ScanHints::default() }, 45 << 10),
        ("upper bound", ScanHints { upper: last(10_300), ..ScanHints::default() }, 45 << 10),
    ];
    for (case, hints, bytes_max) in cases {
        table.top_index(&mut ReadContext::new(ReadPurpose::Lookup)).unwrap();
        let mut cursor = TableCursor::new(&table, ReadPurpose::Scan).with_hints(&hints);
        cursor.seek(b"00010000", SeqNo::MAX).unwrap();
        let before = data_bytes();
        for entry in &entries[10_000..10_300] {
            assert_eq!(at(&cursor).as_ref(), Some(entry), "{case}");
            cursor.next().unwrap();
        }
        let read = data_bytes() - before;
        assert!(read <= bytes_max, "{case}: {read} bytes");
    }
}

#[test]
fn scan_longer_than_its_hint_keeps_reading_ahead() {
    let counting = CountingVfs::new(Arc::new(MemVfs::new()));
    let value = "v".repeat(100);
    let entries: Vec<Entry> = (0..20_000u64).map(|i| put(format!("{i:08}"), i, &value)).collect();
    let summary = write(&counting, &TableOptions::default(), &entries, &[]);
    let table = open(&counting, &summary, &BlockCache::new(1 << 20));
    let reads = |hinted_entries| {
        table.top_index(&mut ReadContext::new(ReadPurpose::Lookup)).unwrap();
        let hints = ScanHints { entries: hinted_entries, ..ScanHints::default() };
        let mut cursor = TableCursor::new(&table, ReadPurpose::Scan).with_hints(&hints);
        cursor.seek(b"00002000", SeqNo::MAX).unwrap();
        let before = counting.counts();
        for entry in &entries[2_000..8_000] {
            assert_eq!(at(&cursor).as_ref(), Some(entry));
            cursor.next().unwrap();
        }
        let after = counting.counts();
        let reads = after.calls.count_of(VfsCall::Read) - before.calls.count_of(VfsCall::Read);
        (reads, after.bytes.count_of(VfsCall::Read) - before.bytes.count_of(VfsCall::Read))
    };
    let (exact, without_hint, too_low) = (reads(Some(6_000)), reads(None), reads(Some(2_000)));
    assert!(too_low.0 <= exact.0 + 4, "{too_low:?} {exact:?} {without_hint:?}");
    assert!(too_low.1 <= exact.1 * 2, "{too_low:?} {exact:?} {without_hint:?}");
}

/// Writes an external table whose keys are the even numbers below `2 * count`. Opens the table with the sequence number
/// `seq`.
fn external_table(count: u8, seq: u64) -> Arc<Table> {
    let vfs = MemVfs::new();
    let options =
        TableOptions { block_bytes: 64, index_block_bytes: 64, ..TableOptions::default() };
    let mut writer = TableWriter::create(&vfs, Path::new(PATH), UID, &options).unwrap();
    writer.set_external();
    for number in 0..count {
        let user_key = &[2 * number][..];
        let kind = if number % 5 == 4 { EntryKind::Delete } else { EntryKind::Put };
        let value = if kind == EntryKind::Put { &[number; 20][..] } else { &[] };
        writer.add(InternalKey { user_key, seq: SeqNo::ZERO, kind }, value).unwrap();
    }
    let summary = writer.finish().unwrap();
    let identity = TableIdentity { seq_largest: SeqNo(seq), ..identity(&summary) };
    let cache = BlockCache::new(1 << 20);
    Arc::new(Table::open(&vfs, Path::new(PATH), &identity, &cache).unwrap())
}

#[test]
fn external_table_entries_have_number_of_ingest() {
    const SEQ: u64 = 50;
    let table = external_table(40, SEQ);
    verify_table(&table).unwrap();
    assert!(table.properties().data_blocks > 5);
    let keys: Vec<u8> = (0..40).map(|number| 2 * number).collect();
    let position = |cursor: &TableCursor| {
        cursor.valid().then(|| {
            let key = Cursor::key(cursor);
            assert_eq!(key.seq, SeqNo(SEQ));
            key.user_key[0]
        })
    };
    for target in 0..=81 {
        for seq in [0, SEQ - 1, SEQ, SEQ + 1, SeqNo::MAX.0] {
            let is_visible = SEQ <= seq;
            // If the entry of the target key is visible, it is at or after the target. Otherwise, it is before the
            // target.
            let is_after = |key: &&u8| **key > target || (**key == target && is_visible);
            let mut cursor = TableCursor::new(&table, ReadPurpose::Lookup);
            cursor.seek(&[target], SeqNo(seq)).unwrap();
            assert_eq!(position(&cursor), keys.iter().find(is_after).copied(), "{target} {seq}");
            cursor.seek_before(&[target], SeqNo(seq)).unwrap();
            let before = keys.iter().rev().find(|key| !is_after(key)).copied();
            assert_eq!(position(&cursor), before, "before {target} {seq}");
            let found = table_get(&table, &[target], seq, true);
            let expected = is_visible && keys.contains(&target);
            assert_eq!(found.map(|entry| entry.1), expected.then_some(SEQ), "{target} {seq}");
        }
    }
}

#[test]
fn external_table_with_two_entries_of_a_key_is_refused() {
    let vfs = MemVfs::new();
    let options = TableOptions::default();
    let mut writer = TableWriter::create(&vfs, Path::new(PATH), UID, &options).unwrap();
    writer.set_external();
    for kind in [EntryKind::Put, EntryKind::Delete] {
        writer.add(InternalKey { user_key: b"k", seq: SeqNo::ZERO, kind }, b"").unwrap();
    }
    let summary = writer.finish().unwrap();
    let table = open(&vfs, &summary, &BlockCache::new(1 << 20));
    let error = verify_table(&table).unwrap_err();
    let what = "keys of an external table are";
    assert!(
        matches!(error, Error::Corrupt { source: Malformed::Order { what: found }, .. } if found == what)
    );
}
