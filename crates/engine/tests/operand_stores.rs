//! Operand stores beside trees: the way in, the way back, and everything that reads.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arsenal;

use std::sync::Arc;

use arsenal::beside::Plain;
use lsmx::env::Background;
use lsmx::format::BlockKind;
use lsmx::merge::Append;
use lsmx::operands::OperandStoreFactory;
use lsmx::vfs::{Image, MemVfs, Vfs};
use lsmx::{Db, Error, KeyspaceOptions, Options, Range, verify_with, verify_with_stores};

const DIR: &str = "db";

/// Never collects of its own accord.
const QUIET: Plain = Plain { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };

fn merging() -> KeyspaceOptions {
    KeyspaceOptions::default().merge_operator(Append::new())
}

fn options(keyspace: KeyspaceOptions) -> Options {
    Options::default().background(Background::Inline).seed(1).keyspace_defaults(keyspace)
}

fn with(plain: Plain) -> Options {
    options(merging().operand_store(plain))
}

fn open(disk: &MemVfs, options: Options) -> Db {
    try_open(disk, options).unwrap()
}

fn try_open(disk: &MemVfs, options: Options) -> lsmx::Result<Db> {
    Db::open_with(Arc::new(disk.clone()), DIR, options)
}

fn get(db: &Db, key: &str) -> Option<String> {
    db.get(key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn text(range: Range) -> String {
    let entries = range.map(|entry| {
        let (key, value) = entry.unwrap();
        format!("{}={} ", key.escape_ascii(), value.escape_ascii())
    });
    entries.collect::<String>().trim_end().to_owned()
}

fn operand_files(disk: &MemVfs) -> usize {
    let paths = disk.paths();
    paths.iter().filter(|path| path.to_string_lossy().ends_with(".operands")).count()
}

fn tables(db: &Db) -> u64 {
    db.metrics().keyspaces["default"].total().files
}

/// All that reads agrees: lookups one by one and together, ranges both ways.
fn shows(db: &Db, expected: &str) {
    assert_eq!(text(db.default_keyspace().iter()), expected);
    let mut words: Vec<_> = expected.split_whitespace().collect();
    for word in &words {
        let (key, value) = word.split_once('=').unwrap();
        assert_eq!(get(db, key).as_deref(), Some(value));
    }
    let keys = words.iter().map(|word| word.split_once('=').unwrap().0);
    let values = db.multi_get(keys).unwrap();
    for (word, value) in words.iter().zip(values) {
        assert_eq!(word.split_once('=').unwrap().1.as_bytes(), &*value.unwrap());
    }
    let backward = db.default_keyspace().iter().rev().map(|entry| {
        let (key, value) = entry.unwrap();
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    });
    words.reverse();
    assert_eq!(backward.collect::<Vec<_>>(), words);
}

#[test]
fn operands_go_to_the_store_and_fold_onto_the_tree() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.put("c", "1").unwrap();
    db.flush().unwrap();
    assert_eq!(tables(&db), 1);
    db.merge("a", "2").unwrap();
    db.merge("b", "2").unwrap();
    db.flush().unwrap();
    // What holds nothing but operands makes no table.
    assert_eq!(tables(&db), 1);
    shows(&db, "a=12 b=2 c=1");
    db.merge("a", "3").unwrap();
    db.flush().unwrap();
    db.merge("a", "4").unwrap();
    shows(&db, "a=1234 b=2 c=1");
    let metrics = db.metrics();
    let store = metrics.keyspaces["default"].operand_store.unwrap();
    assert_eq!((store.operands, store.anchors), (3, 0));
    assert!(metrics.cache[&BlockKind::Bucket].misses > 0, "{:?}", metrics.cache);

    // Puts and deletes void what is there.
    db.put("a", "x").unwrap();
    db.delete("b").unwrap();
    db.flush().unwrap();
    shows(&db, "a=x c=1");
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    shows(&db, "a=x c=1");
    assert_eq!(db.metrics().keyspaces["default"].operand_store.unwrap().anchors, 2);
    db.merge("b", "5").unwrap();
    db.flush().unwrap();
    shows(&db, "a=x b=5 c=1");
    db.close(None).unwrap();
    drop(db);
    shows(&open(&disk, with(QUIET)), "a=x b=5 c=1");
}

#[test]
fn a_tombstone_that_left_the_tree_lets_nothing_come_back() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.put("c", "1").unwrap();
    db.flush().unwrap();
    db.merge("b", "2").unwrap();
    db.flush().unwrap();
    // Operands, a delete and older operands in one memtable, a snapshot between all of them.
    db.merge("bb", "3").unwrap();
    let before = db.snapshot();
    db.delete("bb").unwrap();
    db.delete("b").unwrap();
    let after = db.snapshot();
    db.delete_range("c".."d").unwrap();
    db.flush().unwrap();
    let keyspace = db.default_keyspace();
    assert_eq!(text(before.iter(&keyspace)), "a=1 b=2 bb=3 c=1");
    assert_eq!(text(after.iter(&keyspace)), "a=1 c=1");
    drop((before, after));
    keyspace.compact_range::<&[u8]>(..).unwrap();
    shows(&db, "a=1");
    assert_eq!(db.metrics().keyspaces["default"].total().tombstones, 0);
    assert_eq!(get(&db, "b").or(get(&db, "bb")), None);
    db.merge("bb", "4").unwrap();
    db.flush().unwrap();
    shows(&db, "a=1 bb=4");
}

#[test]
fn range_deletes_void_operands_of_the_store() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.put("m", "1").unwrap();
    db.flush().unwrap();
    for key in ["b", "f", "k"] {
        db.merge(key, "2").unwrap();
    }
    db.flush().unwrap();
    let held = db.snapshot();
    db.delete_range("b".."g").unwrap();
    shows(&db, "a=1 k=2 m=1");
    db.merge("f", "3").unwrap();
    shows(&db, "a=1 f=3 k=2 m=1");
    db.flush().unwrap();
    shows(&db, "a=1 f=3 k=2 m=1");
    assert_eq!(text(held.iter(&db.default_keyspace())), "a=1 b=2 f=2 k=2 m=1");
    drop(held);
    db.default_keyspace().clear().unwrap();
    db.flush().unwrap();
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    shows(&db, "");
    db.close(None).unwrap();
    drop(db);
    shows(&open(&disk, with(QUIET)), "");
}

#[test]
fn collections_fold_into_the_tree_and_heed_snapshots() {
    let plain = Plain { collect_after: 2, to_tree_one_in: 1, lazy: true };
    let disk = MemVfs::new();
    let db = open(&disk, with(plain));
    db.put("a", "1").unwrap();
    db.put("c", "1").unwrap();
    db.merge("b", "x").unwrap();
    db.flush().unwrap();
    db.merge("a", "2").unwrap();
    db.merge("b", "2").unwrap();
    let held = db.snapshot();
    db.merge("a", "3").unwrap();
    db.flush().unwrap();
    let store = db.metrics().keyspaces["default"].operand_store.unwrap();
    assert!(store.to_tree >= 2, "{store:?}");
    shows(&db, "a=123 b=x2 c=1");
    assert_eq!(text(held.iter(&db.default_keyspace())), "a=12 b=x2 c=1");
    db.delete("a").unwrap();
    db.flush().unwrap();
    db.merge("a", "4").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    shows(&db, "a=4 b=x2 c=1");
    assert_eq!(text(held.iter(&db.default_keyspace())), "a=12 b=x2 c=1");
    drop(held);
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    shows(&db, "a=4 b=x2 c=1");
}

#[test]
fn without_its_store_a_keyspace_is_closed_and_the_others_are_not() {
    let disk = MemVfs::new();
    let db = open(&disk, options(merging()));
    let beside = db.keyspace("beside", merging().operand_store(QUIET)).unwrap();
    beside.put("a", "1").unwrap();
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    beside.merge("a", "2").unwrap();
    db.close(None).unwrap();
    drop((db, beside));
    let files = operand_files(&disk);
    let is_lacking = |error: Error| matches!(&error, Error::NoOperandStore { keyspace, store } if keyspace == "beside" && store == "plain");

    let db = open(&disk, options(merging()));
    assert_eq!(get(&db, "a").unwrap(), "1");
    assert!(is_lacking(db.keyspace("beside", merging()).unwrap_err()));
    let beside = db.existing_keyspace("beside").unwrap();
    assert!(is_lacking(beside.get("a").unwrap_err()));
    assert!(is_lacking(beside.get_in_memory("a").unwrap_err()));
    assert!(is_lacking(beside.put("a", "2").unwrap_err()));
    assert!(is_lacking(beside.iter().next().unwrap().unwrap_err()));
    assert!(is_lacking(beside.iter().next_back().unwrap().unwrap_err()));
    assert!(is_lacking(beside.multi_get(["a", "b"]).unwrap_err()));
    assert!(is_lacking(beside.operands_to_tree().unwrap_err()));
    assert!(is_lacking(db.checkpoint("copy").unwrap_err()));
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), files, "nobody knows which are needed");
    // It can be given later.
    drop(beside);
    let beside = db.keyspace("beside", merging().operand_store(QUIET)).unwrap();
    assert_eq!(&*beside.get("a").unwrap().unwrap(), b"12");
    beside.merge("a", "3").unwrap();
    assert_eq!(&*beside.get("a").unwrap().unwrap(), b"123");
    // What the log holds for the store has nowhere to go without it.
    drop((db, beside));
    let db = open(&disk, options(merging()).keyspace("beside", merging().operand_store(QUIET)));
    let beside = db.existing_keyspace("beside").unwrap();
    beside.merge("a", "4").unwrap();
    std::mem::forget((db, beside));
    let crashed = disk.crash(Image::Keep, 1);
    let before = crashed.snapshot_all();
    assert!(is_lacking(try_open(&crashed, options(merging())).unwrap_err()));
    assert_eq!(crashed.snapshot_all(), before);
    let read_only = Db::open_read_only_with(Arc::new(crashed.clone()), DIR, options(merging()));
    let beside = read_only.unwrap().existing_keyspace("beside").unwrap();
    assert!(is_lacking(beside.get("a").unwrap_err()));
    drop(beside);
    assert_eq!(crashed.snapshot_all(), before);
}

/// Like [`Plain`], by another name.
#[derive(Debug)]
struct Other;

impl OperandStoreFactory for Other {
    fn name(&self) -> &'static str {
        "other"
    }
    fn open(
        &self,
        place: lsmx::operands::Place,
        token: Option<lsmx::operands::Token>,
    ) -> lsmx::Result<Arc<dyn lsmx::operands::OperandStore>> {
        QUIET.open(place, token)
    }
    fn verify(
        &self,
        place: lsmx::operands::Place,
        token: lsmx::operands::Token,
    ) -> lsmx::Result<lsmx::operands::OperandMetrics> {
        QUIET.verify(place, token)
    }
}

#[test]
fn another_store_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    let other = merging().operand_store(Other);
    let refused = db.keyspace("default", other.clone()).unwrap_err();
    assert!(matches!(refused, Error::Contradiction { .. }), "{refused:?}");
    // Given once, it serves until the database is closed.
    drop(db.keyspace("default", merging()).unwrap());
    db.close(None).unwrap();
    drop(db);
    let refused = try_open(&disk, options(other)).unwrap_err();
    assert!(matches!(refused, Error::Contradiction { .. }), "{refused:?}");
}

#[test]
fn a_keyspace_takes_a_store_on_and_lets_it_go() {
    let disk = MemVfs::new();
    let db = open(&disk, options(merging()));
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.merge("a", "2").unwrap();
    db.merge("b", "2").unwrap();
    db.flush().unwrap();
    drop(db.keyspace("default", merging().operand_store(QUIET)).unwrap());
    db.merge("a", "3").unwrap();
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), 1);
    shows(&db, "a=123 b=2");
    db.close(None).unwrap();
    drop(db);

    let db = open(&disk, with(QUIET));
    shows(&db, "a=123 b=2");
    db.merge("b", "4").unwrap();
    db.flush().unwrap();
    db.merge("b", "5").unwrap();
    let keyspace = db.default_keyspace();
    let snapshot = db.snapshot();
    assert!(matches!(keyspace.operands_to_tree(), Err(Error::SnapshotsHeld { .. })));
    drop(snapshot);
    let mut walk = keyspace.iter();
    keyspace.operands_to_tree().unwrap();
    assert_eq!(operand_files(&disk), 1, "the iterator needs it");
    shows(&db, "a=123 b=245");
    assert_eq!(walk.next().unwrap().unwrap().1, b"123"[..]);
    assert_eq!(walk.next().unwrap().unwrap().1, b"245"[..]);
    drop(walk);
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), 0);
    keyspace.operands_to_tree().unwrap();
    keyspace.set_policy("tiering".parse().unwrap()).unwrap();
    drop(keyspace);
    db.close(None).unwrap();
    drop(db);

    let db = open(&disk, options(merging()));
    shows(&db, "a=123 b=245");
    // And on again, from the opening on.
    db.close(None).unwrap();
    drop(db);
    let db = open(&disk, with(QUIET));
    db.merge("b", "6").unwrap();
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), 1);
    shows(&db, "a=123 b=2456");
}

#[test]
fn what_the_log_holds_is_delivered_by_the_next_opening() {
    for seed in 0..8 {
        let disk = MemVfs::new();
        let small = || options(merging().operand_store(QUIET).memtable_bytes(1024));
        let db = open(&disk, with(QUIET));
        for number in 0..40 {
            db.merge(format!("k{}", number % 7), format!("{number},")).unwrap();
            db.put(format!("p{number}"), "v").unwrap();
        }
        let expected = text(db.default_keyspace().iter());
        std::mem::forget(db);
        let crashed = disk.crash(Image::Keep, seed);
        let read_only =
            Db::open_read_only_with(Arc::new(crashed.clone()), DIR, with(QUIET)).unwrap();
        shows(&read_only, &expected);
        drop(read_only);
        // Several memtables on the way chain several deliveries.
        shows(&open(&crashed, small()), &expected);
        shows(&open(&crashed, with(QUIET)), &expected);
        let stores: [Arc<dyn OperandStoreFactory>; 1] = [Arc::new(QUIET)];
        let report = verify_with_stores(Arc::new(crashed.clone()), DIR, &stores).unwrap();
        assert_eq!((report.operand_stores, report.orphans.len()), (1, 0), "{report:?}");
        let report = verify_with(Arc::new(crashed), DIR).unwrap();
        assert_eq!((report.operand_stores, report.operands_unchecked), (0, vec!["default".into()]));
    }
}

#[test]
fn a_dropped_keyspace_is_seen_by_snapshots_and_its_files_go_after_them() {
    let disk = MemVfs::new();
    let db = open(&disk, options(merging()));
    let beside = db.keyspace("beside", merging().operand_store(QUIET)).unwrap();
    beside.put("a", "1").unwrap();
    db.flush().unwrap();
    beside.merge("a", "2").unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let mut walk = beside.iter();
    db.drop_keyspace("beside").unwrap();
    assert_eq!(&*snapshot.get(&beside, "a").unwrap().unwrap(), b"12");
    drop(snapshot);
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), 1, "the iterator needs it");
    assert_eq!(walk.next().unwrap().unwrap().1, b"12"[..]);
    drop(walk);
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), 0);
}

#[test]
fn checkpoints_hold_what_the_store_held() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.merge("a", "2").unwrap();
    db.flush().unwrap();
    db.merge("a", "3").unwrap();
    db.checkpoint("copy").unwrap();
    db.merge("a", "4").unwrap();
    db.flush().unwrap();
    shows(&db, "a=1234");
    let copy = Db::open_with(Arc::new(disk.clone()), "copy", with(QUIET)).unwrap();
    shows(&copy, "a=123");
    copy.merge("a", "x").unwrap();
    copy.flush().unwrap();
    shows(&copy, "a=123x");
}

#[test]
fn damage_in_a_store_is_told_with_its_file() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.merge("a", "2").unwrap();
    db.flush().unwrap();
    db.close(None).unwrap();
    drop(db);
    let paths = disk.paths();
    let file = paths.iter().find(|path| path.to_string_lossy().ends_with(".operands")).unwrap();
    disk.flip(file, 3, 1).unwrap();
    let refused = try_open(&disk, with(QUIET)).unwrap_err();
    assert!(matches!(&refused, Error::Corrupt { path, .. } if path == file), "{refused:?}");
    let stores: [Arc<dyn OperandStoreFactory>; 1] = [Arc::new(QUIET)];
    let refused = verify_with_stores(Arc::new(disk.clone()), DIR, &stores).unwrap_err();
    assert!(matches!(&refused, Error::Corrupt { path, .. } if path == file), "{refused:?}");
    disk.remove(file).unwrap();
    let refused = try_open(&disk, with(QUIET)).unwrap_err();
    assert!(matches!(&refused, Error::Missing { path, .. } if path == file), "{refused:?}");
}
