//! Tests of cursors and of the read options of scans.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsmx::internals::vfs::{
    CountingVfs, CrashImage, Errno, Fault, FaultRule, FaultVfs, FileHint, FileLayer, OpenMode,
    VfsCall, VfsLayer,
};
use lsmx::merge_operator::{Append, Counter};
use lsmx::metrics::BlockKind;
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{
    Db, Error, KeyspaceCursor, KeyspaceOptions, PrefixExtractor, ReadOptions, ValueSeparation,
    WriteBatch,
};
use lsmx_testkit::case_seeds;
use lsmx_testkit::simple_store::SimpleStore;

use crate::harness::cursors::cursor_moves_equal_the_model;
use crate::harness::database::{self, compact, inline, memory_only, policy};
use crate::harness::liveness::user_code::{FaultyStores, Trigger};

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Writes the keys 0 to `count - 1` with values of 100 bytes to one table.
fn fill(db: &Db, count: u32) {
    let (mut batch, keyspace) = (WriteBatch::new(), db.default_keyspace());
    (0..count).for_each(|number| batch.put(&keyspace, key(number), [7; 100]));
    db.write(batch, lsmx::Durability::Buffered).unwrap();
    db.flush().unwrap();
}

fn one_large_table() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(64 << 20).policy(policy("tiering"))
}

fn cursor(db: &Db) -> KeyspaceCursor {
    db.default_keyspace().cursor(&ReadOptions::default()).unwrap()
}

#[test]
fn random_cursor_moves_equal_the_model() {
    for seed in case_seeds(&[], 200) {
        cursor_moves_equal_the_model(seed).unwrap();
    }
}

#[test]
fn cursor_reads_the_state_of_its_creation_until_it_is_dropped() {
    let disk = MemVfs::new();
    let db = database::open(&disk, inline().keyspace_defaults(database::small()));
    fill(&db, 500);
    let (mut before, snapshot) = (cursor(&db), db.snapshot());
    let tables = database::files(&disk, ".sst");
    db.default_keyspace().clear().unwrap();
    db.put(key(9_999), "new").unwrap();
    compact(&db).unwrap();
    before.seek_to_last().unwrap();
    assert_eq!(before.key(), Some(&key(499)[..]));
    assert_eq!(before.value().unwrap(), Some(&[7; 100][..]));
    assert!(tables.iter().all(|table| database::files(&disk, ".sst").contains(table)));
    drop(before);
    let mut old = snapshot.cursor(&db.default_keyspace(), &ReadOptions::default()).unwrap();
    old.seek(key(7)).unwrap();
    assert_eq!(old.key(), Some(&key(7)[..]));
    let mut current = cursor(&db);
    current.seek_to_first().unwrap();
    assert_eq!(
        (current.key(), current.value().unwrap()),
        (Some(&key(9_999)[..]), Some(&b"new"[..]))
    );
}

#[test]
fn cursor_can_be_moved_to_another_thread() {
    let db = database::open(&MemVfs::new(), inline());
    db.put("b", "1").unwrap();
    let mut cursor = cursor(&db);
    cursor.seek("a").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(cursor.value().unwrap(), Some(&b"1"[..])));
    });
}

#[test]
fn cursor_without_position_ignores_steps() {
    let db = database::open(&MemVfs::new(), inline());
    db.put("b", "1").unwrap();
    let mut cursor = cursor(&db);
    cursor.next().unwrap();
    cursor.prev().unwrap();
    assert_eq!((cursor.key(), cursor.value().unwrap()), (None, None));
    cursor.seek("c").unwrap();
    cursor.prev().unwrap();
    assert_eq!(cursor.key(), None);
    cursor.seek_for_prev("c").unwrap();
    assert_eq!(cursor.key(), Some(&b"b"[..]));
    let mut empty = cursor.with_bounds("c"..="a");
    empty.seek_to_first().unwrap();
    assert_eq!(empty.key(), None);
    empty.seek_to_last().unwrap();
    assert_eq!(empty.key(), None);
}

#[test]
fn cursor_failed_move_then_seek_works() {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let options = inline().block_cache_bytes(0).keyspace_defaults(database::small());
    let db = database::open(&disk, options);
    fill(&db, 300);
    let mut cursor = cursor(&db);
    for nth in 0..40 {
        cursor.seek(key(100)).unwrap();
        let fault = Fault::Error(Errno::Io);
        disk.add_rule(FaultRule::new(fault).for_calls(&[VfsCall::Read]).nth(nth).once());
        let mut moved = Ok(());
        while moved.is_ok() && cursor.key().is_some() {
            moved = if nth % 2 == 0 { cursor.next() } else { cursor.prev() };
        }
        disk.clear_rules();
        assert!(nth > 1 || matches!(moved, Err(Error::Io { .. })), "read {nth}: {moved:?}");
        assert_eq!(cursor.key(), None);
        if moved.is_err() {
            // A loop that ignores the error must not take the missing entry for the end of the keyspace.
            assert!(matches!(cursor.next(), Err(Error::Io { .. })));
            assert!(matches!(cursor.prev(), Err(Error::Io { .. })));
            assert!(matches!(cursor.value(), Err(Error::Io { .. })));
        }
        cursor.seek_for_prev(key(200)).unwrap();
        assert_eq!(cursor.key(), Some(&key(200)[..]));
    }
}

/// After a panic of the operand store, all later seeks of the cursor once failed.
#[test]
fn cursor_panic_of_operand_store_then_seek_works() {
    let trigger = Trigger::default();
    let store = FaultyStores { inner: SimpleStore::default(), trigger: trigger.clone() };
    let keyspace = KeyspaceOptions::default().merge_operator(Append::default());
    let options = inline().keyspace_defaults(keyspace.operand_store(store));
    let db = database::open(&MemVfs::new(), options);
    db.put("a", "1").unwrap();
    db.default_keyspace().merge("b", "2").unwrap();
    db.flush().unwrap();
    let mut cursor = cursor(&db);
    trigger.arm("ViewCursor", 0, false);
    assert!(matches!(cursor.seek("b"), Err(Error::UserPanic { .. })));
    assert!(matches!(cursor.value(), Err(Error::UserPanic { .. })));
    cursor.seek("b").unwrap();
    assert_eq!((cursor.key(), cursor.value().unwrap()), (Some(&b"b"[..]), Some(&b"2"[..])));
}

#[test]
fn cursor_with_prefix_is_limited_to_keys_with_the_prefix() {
    let db = database::open(&MemVfs::new(), inline());
    for key in ["a", "b", "ba", "b\u{7f}", "c"] {
        db.put(key, "").unwrap();
    }
    let mut cursor = cursor(&db).with_prefix("b");
    cursor.seek_to_first().unwrap();
    let mut keys = Vec::new();
    while let Some(key) = cursor.key() {
        keys.push(key.to_vec());
        cursor.next().unwrap();
    }
    assert_eq!(keys, [&b"b"[..], b"ba", b"b\x7f"]);
    cursor.seek_to_last().unwrap();
    assert_eq!(cursor.key(), Some(&b"b\x7f"[..]));
    cursor.seek("bb").unwrap();
    assert_eq!(cursor.key(), Some(&b"b\x7f"[..]));
    cursor.seek("c").unwrap();
    assert_eq!(cursor.key(), None);
    let mut all = cursor.with_prefix("");
    all.seek_to_last().unwrap();
    assert_eq!(all.key(), Some(&b"c"[..]));
}

#[test]
fn cursor_of_unusable_keyspace_is_error() {
    let disk = MemVfs::new();
    let (db, other) = (database::open(&disk, inline()), database::open(&MemVfs::new(), inline()));
    let options = ReadOptions::default();
    let foreign = db.snapshot().cursor(&other.default_keyspace(), &options);
    assert!(matches!(foreign, Err(Error::ForeignKeyspace { .. })), "{foreign:?}");
    let dropped = db.keyspace("dropped", KeyspaceOptions::default()).unwrap();
    dropped.put("k", "v").unwrap();
    let mut open = dropped.cursor(&options).unwrap();
    db.drop_keyspace("dropped").unwrap();
    open.seek_to_first().unwrap();
    assert_eq!(open.key(), Some(&b"k"[..]));
    assert!(matches!(dropped.cursor(&options), Err(Error::KeyspaceDropped { .. })));
    let keyspace = db.default_keyspace();
    db.close(None).unwrap();
    assert!(matches!(keyspace.cursor(&options), Err(Error::Closed)));
}

#[test]
fn cursor_from_memory_only_would_block_and_can_seek_again() {
    let db = database::open(&MemVfs::new(), inline().keyspace_defaults(one_large_table()));
    fill(&db, 1_000);
    db.put(key(5), "new").unwrap();
    let mut memory = db.default_keyspace().cursor(&memory_only()).unwrap();
    assert!(matches!(memory.seek(key(5)), Err(Error::WouldBlock)));
    assert_eq!(memory.key(), None);
    assert!(matches!(memory.next(), Err(Error::WouldBlock)));
    cursor(&db).seek(key(5)).unwrap();
    memory.seek(key(5)).unwrap();
    assert_eq!(memory.value().unwrap(), Some(&b"new"[..]));
}

#[test]
fn cursor_value_that_cannot_be_merged_is_error_of_one_entry() {
    let keyspace = KeyspaceOptions::default().merge_operator(Counter);
    let db = database::open(&MemVfs::new(), inline().keyspace_defaults(keyspace));
    db.put("a", 1u64.to_le_bytes()).unwrap();
    db.default_keyspace().merge("b", "not a number").unwrap();
    db.put("c", 3u64.to_le_bytes()).unwrap();
    let mut cursor = cursor(&db);
    for backward in [false, true] {
        if backward { cursor.seek_for_prev("b") } else { cursor.seek("b") }.unwrap();
        assert_eq!(cursor.key(), Some(&b"b"[..]));
        assert!(matches!(cursor.value(), Err(Error::MergeFailed { .. })));
        if backward { cursor.prev() } else { cursor.next() }.unwrap();
        assert_eq!(cursor.key(), Some(if backward { &b"a"[..] } else { &b"c"[..] }));
        assert!(cursor.value().unwrap().is_some());
    }
}

#[test]
fn cursor_reads_separated_value_at_its_first_use_only() {
    let counting = CountingVfs::new(Arc::new(MemVfs::new()));
    let separation = ValueSeparation { threshold_bytes: 50, ..ValueSeparation::default() };
    let keyspace = one_large_table().value_separation(separation);
    let options = inline().block_cache_bytes(1 << 20).keyspace_defaults(keyspace);
    let db = database::open(&counting, options);
    fill(&db, 100);
    let reads = || counting.counts().calls.count_of(VfsCall::Read);
    let mut cursor = cursor(&db);
    for backward in [false, true] {
        for _ in 0..2 {
            if backward { cursor.seek_for_prev(key(50)) } else { cursor.seek(key(50)) }.unwrap();
        }
        let before = reads();
        cursor.next().unwrap();
        cursor.prev().unwrap();
        assert_eq!(reads(), before, "a move reads no value");
        for _ in 0..3 {
            assert_eq!(cursor.value().unwrap(), Some(&[7; 100][..]));
        }
        assert!(reads() <= before + 1);
    }
}

/// Returns the number of data blocks that reads did not find in the cache.
fn data_misses(db: &Db) -> u64 {
    db.metrics().cache.get(&BlockKind::Data).map_or(0, |data| data.misses)
}

/// Returns the data blocks that ranges of one user read in eight runs with interleaved users, and the skipped runs.
fn reads_of_user_ranges(prefixes: Option<PrefixExtractor>) -> (u64, u64) {
    let keyspace =
        KeyspaceOptions::default().policy(policy("tiering(T=100)")).prefix_filter(prefixes);
    let options = inline().block_cache_bytes(0).keyspace_defaults(keyspace);
    let db = database::open(&MemVfs::new(), options);
    let keyspace = db.default_keyspace();
    for run in 0..8 {
        for user in (run..400).step_by(8) {
            keyspace.put(format!("user{user:03}/address"), "value").unwrap();
            keyspace.put(format!("user{user:03}/name"), "value").unwrap();
        }
        db.flush().unwrap();
    }
    let before = data_misses(&db);
    let mut cursor = keyspace.cursor(&ReadOptions::default()).unwrap();
    for user in 0..400 {
        let prefix = format!("user{user:03}/");
        assert_eq!(keyspace.prefix(&prefix).count(), 2);
        cursor = cursor.with_prefix(&prefix);
        cursor.seek_to_last().unwrap();
        assert_eq!(cursor.key(), Some(format!("{prefix}name").as_bytes()));
    }
    // These ranges contain keys of several prefixes.
    assert_eq!(keyspace.prefix("user").count(), 800);
    assert_eq!(keyspace.range("user010/name"..="user011/address").count(), 2);
    (data_misses(&db) - before, db.metrics().keyspaces["default"].operations.scan_runs_skipped)
}

#[test]
fn range_of_one_prefix_skips_runs_without_the_prefix() {
    let (reads, skipped) = reads_of_user_ranges(None);
    assert!(reads > 6_000 && skipped == 0, "{reads} {skipped}");
    for prefixes in [PrefixExtractor::Length(8), PrefixExtractor::Delimiter(b'/')] {
        let (reads_with_filter, skipped) = reads_of_user_ranges(Some(prefixes));
        // The last run is always searched. A filter rarely passes an absent prefix.
        assert!(skipped > 800 * 6 - 100, "{skipped}");
        assert!(reads_with_filter < reads / 3, "{reads_with_filter} of {reads}");
    }
}

#[test]
fn fill_cache_decides_which_blocks_of_a_scan_are_cached() {
    // The number of blocks that a second scan reads again.
    let read_again = |fill_cache: Option<bool>| {
        let db = database::open(&MemVfs::new(), inline().keyspace_defaults(one_large_table()));
        fill(&db, 1_000);
        let options = ReadOptions { fill_cache, ..ReadOptions::default() };
        let mut cursor = db.default_keyspace().cursor(&options).unwrap();
        let mut scan = || {
            let before = data_misses(&db);
            cursor.seek_to_first().unwrap();
            while cursor.key().is_some() {
                cursor.next().unwrap();
            }
            data_misses(&db) - before
        };
        let (first, second) = (scan(), scan());
        let range = db.default_keyspace().iter().options(&options);
        let before = data_misses(&db);
        assert_eq!(range.count(), 1_000);
        assert_eq!(data_misses(&db) - before, second, "an iterator equals a cursor");
        (first, second)
    };
    let (blocks, second) = read_again(Some(false));
    assert!(blocks > 10, "{blocks} blocks");
    assert_eq!(second, blocks);
    assert_eq!(read_again(None), (blocks, blocks - 2));
    assert_eq!(read_again(Some(true)), (blocks, 0));
}

#[test]
fn read_ahead_bytes_max_limits_the_bytes_of_one_read() {
    let largest_read = |read_ahead_bytes_max: Option<u64>| {
        let counting = CountingVfs::new(Arc::new(MemVfs::new()));
        let db = database::open(&counting, inline().keyspace_defaults(one_large_table()));
        fill(&db, 20_000);
        let options = ReadOptions { read_ahead_bytes_max, ..ReadOptions::default() };
        let mut cursor = db.default_keyspace().cursor(&options).unwrap();
        cursor.seek_to_first().unwrap();
        let mut largest = 0;
        while cursor.key().is_some() {
            let before = counting.counts().bytes.count_of(VfsCall::Read);
            cursor.next().unwrap();
            largest = largest.max(counting.counts().bytes.count_of(VfsCall::Read) - before);
        }
        largest
    };
    assert!(largest_read(Some(0)) <= 4 << 10);
    let limited = largest_read(Some(32 << 10));
    assert!((16 << 10..=32 << 10).contains(&limited), "{limited}");
    assert_eq!(largest_read(None), 256 << 10);
    assert_eq!(largest_read(Some(1 << 30)), 256 << 10);
}

/// File system that records the largest hint of a later read.
#[derive(Clone, Debug, Default)]
struct HintVfs {
    inner: MemVfs,
    largest_bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct HintFile {
    inner: Arc<dyn File>,
    largest_bytes: Arc<AtomicU64>,
}

impl FileLayer for HintFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn intercept_hint(&self, hint: FileHint) -> bool {
        if let FileHint::WillNeed { bytes, .. } = hint {
            self.largest_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
        hint.apply_to_file(&*self.inner)
    }
}

impl VfsLayer for HintVfs {
    fn inner(&self) -> &dyn Vfs {
        &self.inner
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let (inner, largest_bytes) =
            (mode.open(&self.inner, path)?, Arc::clone(&self.largest_bytes));
        Ok(Arc::new(HintFile { inner, largest_bytes }))
    }
}

/// The first seek of a range prefetched all blocks up to the limit of the range.
#[test]
fn read_ahead_bytes_max_limits_the_prefetch_of_a_seek() {
    let largest_hint = |read_ahead_bytes_max: Option<u64>, backward: bool| {
        let disk = HintVfs::default();
        let db = database::open(&disk, inline().keyspace_defaults(one_large_table()));
        fill(&db, 20_000);
        let options = ReadOptions { read_ahead_bytes_max, ..ReadOptions::default() };
        // Without threads, every seek counts as a wait for the device. The seek after it prefetches.
        for number in [5_000, 15_000] {
            let keyspace = db.default_keyspace();
            let range = if backward {
                keyspace.range(..key(number))
            } else {
                keyspace.range(key(number)..)
            };
            let mut range = range.limit(4_000).options(&options);
            let entry = if backward { range.next_back() } else { range.next() };
            assert!(entry.unwrap().is_ok());
        }
        disk.largest_bytes.load(Ordering::Relaxed)
    };
    for backward in [false, true] {
        let hint = |bytes_max| largest_hint(bytes_max, backward);
        assert_eq!(hint(None), 128 << 10);
        assert_eq!(hint(Some(32 << 10)), 32 << 10);
        assert_eq!(hint(Some(0)), 4 << 10);
    }
}

/// An iterator that had read from files once began again at its bounds.
#[test]
fn range_continues_after_a_change_of_its_options() {
    let separation = ValueSeparation { threshold_bytes: 50, ..ValueSeparation::default() };
    for separation in [None, Some(separation)] {
        let keyspace = one_large_table().value_separation(separation);
        let db = database::open(&MemVfs::new(), inline().keyspace_defaults(keyspace));
        fill(&db, 100);
        let mut options = [true, false].map(|fill_cache| ReadOptions {
            fill_cache: Some(fill_cache),
            ..ReadOptions::default()
        });
        let mut range = db.default_keyspace().iter();
        for step in 0..25u32 {
            let [first, second] =
                [range.next(), range.next()].map(|entry| entry.unwrap().unwrap().0);
            assert_eq!((&*first, &*second), (&key(2 * step)[..], &key(2 * step + 1)[..]));
            if step % 2 == 0 {
                let last = range.next_back().unwrap().unwrap().0;
                assert_eq!(&*last, &key(99 - step / 2));
            }
            options.rotate_left(1);
            range = range.options(&options[0]);
        }
        assert_eq!(range.count(), 100 - 50 - 13);
    }
}

fn with_deadline(deadline: Duration) -> ReadOptions {
    ReadOptions { deadline: Some(deadline), ..ReadOptions::default() }
}

fn is_deadline<T>(result: &lsmx::Result<T>) -> bool {
    matches!(result, Err(Error::Deadline { .. }))
}

#[test]
fn deadline_of_zero_allows_no_file_read() {
    let separation = ValueSeparation { threshold_bytes: 50, ..ValueSeparation::default() };
    for separation in [None, Some(separation)] {
        let keyspace = one_large_table().value_separation(separation);
        let db = database::open(&MemVfs::new(), inline().keyspace_defaults(keyspace));
        fill(&db, 1_000);
        db.put(key(2_000), "in memory").unwrap();
        let (keyspace, options) = (db.default_keyspace(), with_deadline(Duration::ZERO));
        let mut cursor = keyspace.cursor(&options).unwrap();
        let range = || keyspace.range(key(5)..).options(&options);
        assert!(is_deadline(&keyspace.get_with(key(5), &options)));
        assert!(is_deadline(&db.snapshot().get_with(&keyspace, key(5), &options)));
        assert!(is_deadline(&cursor.seek(key(5))) && is_deadline(&cursor.next()));
        let mut failing = range();
        for _ in 0..2 {
            assert!(
                is_deadline(&failing.next().unwrap()) && is_deadline(&failing.next_back().unwrap())
            );
        }
        assert!(keyspace.get_with(key(2_000), &options).unwrap().is_some());

        // After a read without a deadline, the entry and its value are in memory.
        assert_eq!(keyspace.get(key(5)).unwrap().as_deref(), Some(&[7; 100][..]));
        assert!(keyspace.get_with(key(5), &options).unwrap().is_some());
        cursor.seek(key(5)).unwrap();
        assert_eq!(cursor.value().unwrap(), Some(&[7; 100][..]));
        let (_, value) = range().next().unwrap().unwrap();
        assert_eq!(&*value, &[7; 100]);
    }
}

/// Bug: iterators read range tombstones from files after their deadline.
#[test]
fn deadline_of_zero_allows_no_read_of_range_tombstones() {
    let disk = MemVfs::new();
    let options = || inline().keyspace_defaults(one_large_table());
    let db = database::open(&disk, options());
    fill(&db, 30);
    for number in 0..3 {
        db.default_keyspace().delete_range(key(number * 10)..key(number * 10 + 5)).unwrap();
        db.flush().unwrap();
    }
    // The scanned range contains only this entry of the memtable, and no table overlaps it.
    db.put(key(100), "in memory").unwrap();
    // A read-only database has no jobs, which would read the range tombstones.
    let image = Arc::new(CountingVfs::new(Arc::new(disk.crash(CrashImage::Keep, 0))));
    let db = Db::open("db", options().read_only(true).vfs(image)).unwrap();
    let (keyspace, options) = (db.default_keyspace(), with_deadline(Duration::ZERO));
    let mut cursor = keyspace.cursor(&options).unwrap();
    let range = || keyspace.range(key(50)..).options(&options).next().unwrap();
    let before = CountingVfs::reads_of_this_thread();
    assert!(is_deadline(&range()) && is_deadline(&cursor.seek(key(50))));
    assert_eq!(CountingVfs::reads_of_this_thread(), before);
    // After a read without a deadline, the range tombstones are in memory.
    assert_eq!(keyspace.range(key(50)..).count(), 1);
    assert!(CountingVfs::reads_of_this_thread() > before);
    assert_eq!(&*range().unwrap().1, b"in memory");
    cursor.seek(key(50)).unwrap();
    assert_eq!(cursor.key(), Some(&key(100)[..]));
}

#[test]
fn deadline_begins_again_with_each_move() {
    let db = database::open(&MemVfs::new(), inline().keyspace_defaults(one_large_table()));
    fill(&db, 1_000);
    let options = with_deadline(Duration::from_millis(1));
    let mut cursor = db.default_keyspace().cursor(&options).unwrap();
    let mut range = db.default_keyspace().iter().options(&options);
    for number in (0..1_000).step_by(100) {
        db.env().advance_us(2_000);
        cursor.seek(key(number)).unwrap();
        assert_eq!(cursor.value().unwrap(), Some(&[7; 100][..]));
        db.env().advance_us(2_000);
        assert!(range.nth(99).unwrap().is_ok());
    }
}

#[test]
fn deadline_ends_moves_over_many_deleted_entries() {
    let db = database::open(&MemVfs::new(), inline().keyspace_defaults(one_large_table()));
    for number in 0..5_000 {
        db.delete(key(number)).unwrap();
    }
    let keyspace = db.default_keyspace();
    let mut limited = keyspace.cursor(&with_deadline(Duration::ZERO)).unwrap();
    assert!(is_deadline(&limited.seek_to_first()) && is_deadline(&limited.seek_to_last()));
    let mut unlimited = keyspace.cursor(&with_deadline(Duration::MAX)).unwrap();
    unlimited.seek_to_first().unwrap();
    assert_eq!(unlimited.key(), None);
    unlimited.seek_to_last().unwrap();
    assert_eq!(unlimited.key(), None);
}

/// A move past a bound once visited all deleted entries and all later writes beyond the bound.
#[test]
fn move_past_a_bound_skips_no_entries_beyond_it() {
    let db = database::open(&MemVfs::new(), inline().keyspace_defaults(one_large_table()));
    let keyspace = db.default_keyspace();
    let beyond = |prefix: &str, number: u32| [prefix.as_bytes(), &key(number)[..]].concat();
    db.put("b", "1").unwrap();
    for number in 0..5_000 {
        for prefix in ["a", "c"] {
            keyspace.delete(beyond(prefix, number)).unwrap();
        }
    }
    // More than 1024 skipped versions are an error.
    let options = with_deadline(Duration::ZERO);
    let mut cursor = keyspace.cursor(&options).unwrap().with_prefix("b");
    let range = || keyspace.prefix("b").options(&options);
    // The second round has versions that are too new.
    for round in 0..2 {
        for backward in [false, true] {
            if backward { cursor.seek_to_last() } else { cursor.seek_to_first() }.unwrap();
            assert_eq!(cursor.key(), Some(&b"b"[..]), "round {round}");
            if backward { cursor.prev() } else { cursor.next() }.unwrap();
            assert_eq!(cursor.key(), None);
        }
        assert_eq!(range().map(Result::unwrap).count(), 1);
        assert_eq!(range().rev().map(Result::unwrap).count(), 1);
        for number in 0..5_000 {
            for prefix in ["a", "c"] {
                keyspace.put(beyond(prefix, number), "").unwrap();
            }
        }
    }
}

/// The end of a range once failed because of operands of the key behind it.
#[test]
fn entries_beyond_a_bound_do_not_fail_a_move() {
    let disk = MemVfs::new();
    let operator = KeyspaceOptions::default().merge_operator(Append::default());
    let db = database::open(&disk, inline().keyspace_defaults(operator));
    db.put("b", "1").unwrap();
    for key in ["a", "c"] {
        db.default_keyspace().merge(key, "2").unwrap();
    }
    // A close would flush, and a flush may combine the operands.
    let killed = disk.crash(CrashImage::Keep, 0);
    let db = database::open(&killed, inline());
    let keyspace = db.default_keyspace();
    assert!(matches!(keyspace.get("c"), Err(Error::NoMergeOperator { .. })));
    assert_eq!(keyspace.prefix("b").map(Result::unwrap).count(), 1);
    assert_eq!(keyspace.prefix("b").rev().map(Result::unwrap).count(), 1);
    let mut cursor = cursor(&db).with_bounds("b"..="b");
    for backward in [false, true] {
        cursor.seek("b").unwrap();
        if backward { cursor.prev() } else { cursor.next() }.unwrap();
        assert_eq!(cursor.key(), None);
    }
}
