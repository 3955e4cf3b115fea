//! Operand stores: deliveries, collections, moves to the tree, and all kinds of reads.

use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::metrics::BlockKind;
use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Error, KeyspaceOptions, LossKind, Options, Range, ReadOptions, ReadTier, RepairOptions,
    repair, verify,
};
use lsmx_testkit::simple_store::SimpleStore;

const DIR: &str = "db";

/// Never collects of its own accord.
const QUIET: SimpleStore = SimpleStore { collect_after: u64::MAX, to_tree_one_in: 1, lazy: true };

fn merging() -> KeyspaceOptions {
    KeyspaceOptions::default().merge_operator(Append::default())
}

fn options(keyspace: KeyspaceOptions) -> Options {
    Options::default().background(Background::Inline).seed(1).keyspace_defaults(keyspace)
}

fn with(plain: SimpleStore) -> Options {
    options(merging().operand_store(plain))
}

fn open(disk: &MemVfs, options: Options) -> Db {
    try_open(disk, options).unwrap()
}

fn try_open(disk: &MemVfs, options: Options) -> lsmx::Result<Db> {
    Db::open(DIR, options.vfs(Arc::new(disk.clone())))
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
    let values = db.default_keyspace().multi_get(keys).unwrap();
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
    db.default_keyspace().merge("a", "2").unwrap();
    db.default_keyspace().merge("b", "2").unwrap();
    db.flush().unwrap();
    // What holds nothing but operands makes no table.
    assert_eq!(tables(&db), 1);
    shows(&db, "a=12 b=2 c=1");
    db.default_keyspace().merge("a", "3").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "4").unwrap();
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
    db.default_keyspace().merge("b", "5").unwrap();
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
    db.default_keyspace().merge("b", "2").unwrap();
    db.flush().unwrap();
    // Operands, a delete and older operands in one memtable, a snapshot between all of them.
    db.default_keyspace().merge("bb", "3").unwrap();
    let before = db.snapshot();
    db.delete("bb").unwrap();
    db.delete("b").unwrap();
    let after = db.snapshot();
    db.default_keyspace().delete_range("c".."d").unwrap();
    db.flush().unwrap();
    let keyspace = db.default_keyspace();
    assert_eq!(text(before.iter(&keyspace)), "a=1 b=2 bb=3 c=1");
    assert_eq!(text(after.iter(&keyspace)), "a=1 c=1");
    drop((before, after));
    keyspace.compact_range::<&[u8]>(..).unwrap();
    shows(&db, "a=1");
    assert_eq!(db.metrics().keyspaces["default"].total().tombstones, 0);
    assert_eq!(get(&db, "b").or(get(&db, "bb")), None);
    db.default_keyspace().merge("bb", "4").unwrap();
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
        db.default_keyspace().merge(key, "2").unwrap();
    }
    db.flush().unwrap();
    let held = db.snapshot();
    db.default_keyspace().delete_range("b".."g").unwrap();
    shows(&db, "a=1 k=2 m=1");
    db.default_keyspace().merge("f", "3").unwrap();
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
    let plain = SimpleStore { collect_after: 1, to_tree_one_in: 1, lazy: true };
    let disk = MemVfs::new();
    let db = open(&disk, with(plain));
    db.put("a", "1").unwrap();
    db.put("c", "1").unwrap();
    db.default_keyspace().merge("b", "x").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "2").unwrap();
    db.default_keyspace().merge("b", "2").unwrap();
    let held = db.snapshot();
    db.default_keyspace().merge("a", "3").unwrap();
    db.flush().unwrap();
    let store = db.metrics().keyspaces["default"].operand_store.unwrap();
    assert!(store.to_tree >= 2, "{store:?}");
    shows(&db, "a=123 b=x2 c=1");
    assert_eq!(text(held.iter(&db.default_keyspace())), "a=12 b=x2 c=1");
    db.delete("a").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "4").unwrap();
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
    let is_lacking = |error: Error| matches!(&error, Error::NoOperandStore { keyspace, store, cause: None } if keyspace == "beside" && store == "plain");

    let db = open(&disk, options(merging()));
    assert_eq!(get(&db, "a").unwrap(), "1");
    assert!(is_lacking(db.keyspace("beside", merging()).unwrap_err()));
    let beside = db.open_keyspace("beside", None).unwrap();
    assert!(is_lacking(beside.get("a").unwrap_err()));
    assert!(is_lacking(
        beside
            .get_with("a", &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() })
            .unwrap_err()
    ));
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
    // What the log holds for the store is kept until the store is there.
    beside.merge("a", "4").unwrap();
    let crashed = disk.crash(CrashImage::Keep, 1);
    drop((db, beside));
    let before = crashed.snapshot_all();
    let read_only =
        Db::open(DIR, options(merging()).read_only(true).vfs(Arc::new(crashed.clone())));
    let beside = read_only.unwrap().open_keyspace("beside", None).unwrap();
    assert!(is_lacking(beside.get("a").unwrap_err()));
    drop(beside);
    assert_eq!(crashed.snapshot_all(), before);
    let db = open(&crashed, options(merging()));
    assert!(is_lacking(db.open_keyspace("beside", None).unwrap().get("a").unwrap_err()));
    let beside = db.keyspace("beside", merging().operand_store(QUIET)).unwrap();
    assert_eq!(&*beside.get("a").unwrap().unwrap(), b"1234");
}

/// Like [`SimpleStore`], by another name.
#[derive(Debug)]
struct Other;

impl OperandStoreFactory for Other {
    fn name(&self) -> &'static str {
        "other"
    }
    fn open(
        &self,
        place: lsmx::operand_store::StoreContext,
        token: Option<lsmx::operand_store::StoreToken>,
    ) -> lsmx::Result<Arc<dyn lsmx::operand_store::OperandStore>> {
        QUIET.open(place, token)
    }
    fn verify(
        &self,
        place: lsmx::operand_store::StoreContext,
        token: lsmx::operand_store::StoreToken,
    ) -> lsmx::Result<lsmx::operand_store::OperandMetrics> {
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
    db.default_keyspace().merge("a", "2").unwrap();
    db.default_keyspace().merge("b", "2").unwrap();
    db.flush().unwrap();
    drop(db.keyspace("default", merging().operand_store(QUIET)).unwrap());
    db.default_keyspace().merge("a", "3").unwrap();
    db.flush().unwrap();
    assert_eq!(operand_files(&disk), 1);
    shows(&db, "a=123 b=2");
    db.close(None).unwrap();
    drop(db);

    let db = open(&disk, with(QUIET));
    shows(&db, "a=123 b=2");
    db.default_keyspace().merge("b", "4").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("b", "5").unwrap();
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
    keyspace.set_policy("tiering".parse::<lsmx::PolicySpec>().unwrap()).unwrap();
    drop(keyspace);
    db.close(None).unwrap();
    drop(db);

    let db = open(&disk, options(merging()));
    shows(&db, "a=123 b=245");
    // And on again, from the opening on.
    db.close(None).unwrap();
    drop(db);
    let db = open(&disk, with(QUIET));
    db.default_keyspace().merge("b", "6").unwrap();
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
            db.default_keyspace().merge(format!("k{}", number % 7), format!("{number},")).unwrap();
            db.put(format!("p{number}"), "v").unwrap();
        }
        let expected = text(db.default_keyspace().iter());
        std::mem::forget(db);
        let crashed = disk.crash(CrashImage::Keep, seed);
        let read_only =
            Db::open(DIR, with(QUIET).read_only(true).vfs(Arc::new(crashed.clone()))).unwrap();
        shows(&read_only, &expected);
        drop(read_only);
        // Several memtables on the way chain several deliveries.
        shows(&open(&crashed, small()), &expected);
        shows(&open(&crashed, with(QUIET)), &expected);
        let stores: [Arc<dyn OperandStoreFactory>; 1] = [Arc::new(QUIET)];
        let report = verify(
            DIR,
            &stores
                .iter()
                .cloned()
                .fold(Options::default().vfs(Arc::new(crashed.clone())), Options::operand_store),
        )
        .unwrap();
        assert_eq!((report.operand_stores, report.orphans.len()), (1, 0), "{report:?}");
        let report = verify(DIR, &Options::default().vfs(Arc::new(crashed))).unwrap();
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
    db.default_keyspace().merge("a", "2").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "3").unwrap();
    db.checkpoint("copy").unwrap();
    db.default_keyspace().merge("a", "4").unwrap();
    db.flush().unwrap();
    shows(&db, "a=1234");
    let copy = Db::open("copy", with(QUIET).vfs(Arc::new(disk.clone()))).unwrap();
    shows(&copy, "a=123");
    copy.default_keyspace().merge("a", "x").unwrap();
    copy.flush().unwrap();
    shows(&copy, "a=123x");
}

#[test]
fn damage_in_a_store_is_told_with_its_file() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "2").unwrap();
    db.flush().unwrap();
    db.close(None).unwrap();
    drop(db);
    let paths = disk.paths();
    let file = paths.iter().find(|path| path.to_string_lossy().ends_with(".operands")).unwrap();
    disk.flip_bits(file, 3, 1).unwrap();
    // The database opens, and calls on the keyspace say why they fail.
    let cause = || match open(&disk, with(QUIET)).get("a").unwrap_err() {
        Error::NoOperandStore { cause: Some(cause), .. } => cause,
        other => panic!("{other:?}"),
    };
    assert!(matches!(&*cause(), Error::Corrupt { path, .. } if path == file), "{:?}", cause());
    let stores: [Arc<dyn OperandStoreFactory>; 1] = [Arc::new(QUIET)];
    let refused = verify(
        DIR,
        &stores
            .iter()
            .cloned()
            .fold(Options::default().vfs(Arc::new(disk.clone())), Options::operand_store),
    )
    .unwrap_err();
    assert!(matches!(&refused, Error::Corrupt { path, .. } if path == file), "{refused:?}");
    disk.remove(file).unwrap();
    assert!(matches!(&*cause(), Error::Missing { path, .. } if path == file), "{:?}", cause());
}

#[test]
fn reads_bound_to_memory_say_what_they_lack_and_count_nothing_for_it() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "2").unwrap();
    db.flush().unwrap();
    db.close(None).unwrap();
    drop(db);
    let db = open(&disk, with(QUIET));
    let keyspace = db.default_keyspace();
    let bucket = |db: &Db| db.metrics().cache.get(&BlockKind::Bucket).copied().unwrap_or_default();
    // Whatever tables lack is read by a key that the store does not have.
    assert!(keyspace.get("nothing").unwrap().is_none());
    let before = db.read_metrics();
    assert!(matches!(
        keyspace.get_with("a", &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() }),
        Err(Error::WouldBlock)
    ));
    assert_eq!(db.read_metrics(), before);
    assert_eq!((bucket(&db).hits, bucket(&db).misses), (0, 0));
    let mut walk =
        keyspace.iter().options(&ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() });
    assert!(matches!(walk.next(), Some(Err(Error::WouldBlock))));
    // Many at once go to the store after all others.
    let values = db.default_keyspace().multi_get(["a", "nothing", "a"]).unwrap();
    assert_eq!(values.iter().flatten().count(), 2);
    assert_eq!(bucket(&db).misses, 1);
    assert_eq!(
        keyspace
            .get_with("a", &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() })
            .unwrap()
            .unwrap(),
        b"12"[..]
    );
    walk = walk.options(&ReadOptions::default());
    assert_eq!(walk.next().unwrap().unwrap().1, b"12"[..]);
    assert_eq!(bucket(&db).misses, 1);
    assert!(bucket(&db).hits >= 2);
}

#[test]
fn a_lookup_is_explained_and_memory_is_counted() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET).memory_budget(8 << 20));
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "2").unwrap();
    db.default_keyspace().merge("a", "3").unwrap();
    let held = db.snapshot();
    db.default_keyspace().merge("a", "4").unwrap();
    db.flush().unwrap();
    let told = db.default_keyspace().explain("a").unwrap();
    let operands = told.operands.clone().unwrap();
    assert_eq!(operands.found.iter().map(|found| found.value_bytes).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(told.value_bytes, Some(4));
    assert!(told.to_string().contains("\noperand store: merge at "), "{told}");
    drop(held);
    // What a put makes void is none of it.
    db.put("a", "5").unwrap();
    db.flush().unwrap();
    let told = db.default_keyspace().explain("a").unwrap();
    assert_eq!(told.operands.unwrap().found, []);
    let memory = db.metrics().memory;
    assert_eq!(memory.operand_stores, 1, "the one key that the store holds");
    let metrics = db.metrics().to_string();
    assert!(metrics.contains("operand store: 0 buckets"), "{metrics}");
}

/// Threads merge while others hold snapshots, under schedules that can be played again.
#[test]
fn snapshots_stay_as_they_are_while_operands_come_and_leave() {
    lsmx_testkit::time_test();
    for seed in 0..30 {
        let disk = MemVfs::new();
        let plain =
            SimpleStore { collect_after: 1, to_tree_one_in: 1 + seed % 2, lazy: seed % 3 == 0 };
        let keyspace = merging().operand_store(plain).memtable_bytes(1024);
        let options = options(keyspace).background(Background::Stepped { seed, workers: 2 });
        let db = open(&disk, options);
        let body = |thread: usize| {
            let db = db.clone();
            move || {
                let keyspace = db.default_keyspace();
                for round in 0..40 {
                    let key = format!("k{}", (round * 7 + thread) % 5);
                    match thread {
                        0 | 1 => keyspace.merge(&key, "x").unwrap(),
                        2 if round % 10 == 9 => keyspace.delete(&key).unwrap(),
                        2 => drop(
                            keyspace.fetch_update(&key, |old| old.map(<[u8]>::to_vec)).unwrap(),
                        ),
                        _ => {
                            let snapshot = db.snapshot();
                            let first = text(snapshot.iter(&keyspace));
                            db.flush().unwrap();
                            assert_eq!(text(snapshot.iter(&keyspace)), first, "seed {seed}");
                            for word in first.split_whitespace() {
                                let (key, value) = word.split_once('=').unwrap();
                                let found = snapshot.get(&keyspace, key).unwrap().unwrap();
                                assert_eq!(&*found, value.as_bytes(), "seed {seed}");
                            }
                        }
                    }
                }
            }
        };
        let threads: Vec<_> =
            (0..4).map(|thread| db.env().spawn("user", body(thread)).unwrap()).collect();
        for thread in threads {
            db.env().join(thread).unwrap();
        }
        let expected = text(db.default_keyspace().iter());
        db.wait_idle().unwrap();
        shows(&db, &expected);
        if seed % 2 == 0 {
            db.default_keyspace().operands_to_tree().unwrap();
            shows(&db, &expected);
        }
        db.close(None).unwrap();
        drop(db);
        shows(&open(&disk, with(QUIET)), &expected);
    }
}

/// Whoever counts sees an operand that is lost or doubled: real threads, no schedule.
#[test]
fn no_operand_is_lost_or_doubled_by_threads() {
    let disk = MemVfs::new();
    let plain = SimpleStore { collect_after: 1, to_tree_one_in: 2, lazy: true };
    let keyspace = KeyspaceOptions::default()
        .merge_operator(lsmx::merge_operator::Counter)
        .operand_store(plain)
        .memtable_bytes(4096);
    let options = || {
        let threads = Background::Threads { workers: 2 };
        Options::default().background(threads).keyspace_defaults(keyspace.clone())
    };
    let db = open(&disk, options());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for number in 0..2_000u64 {
                    db.default_keyspace()
                        .merge((number % 11).to_be_bytes(), 1u64.to_le_bytes())
                        .unwrap();
                    if number % 100 == 0 {
                        let _ = db.snapshot().iter(&db.default_keyspace()).count();
                    }
                }
            });
        }
    });
    let sum = |db: &Db| {
        let values = db.default_keyspace().iter().map(|entry| entry.unwrap().1);
        values.map(|value| u64::from_le_bytes((*value).try_into().unwrap())).sum::<u64>()
    };
    assert_eq!(sum(&db), 6_000);
    db.wait_idle().unwrap();
    assert_eq!(sum(&db), 6_000);
    let store = db.metrics().keyspaces["default"].operand_store.unwrap();
    assert!(store.to_tree > 0, "{store:?}");
    db.close(None).unwrap();
    drop(db);
    assert_eq!(sum(&open(&disk, options())), 6_000);
}

/// A collection that fails is told, tried again after a pause, and leaves everything as it was.
#[test]
fn a_failed_collection_is_tried_again() {
    let disk = MemVfs::new();
    let vfs = lsmx::internals::vfs::FaultVfs::new(Arc::new(disk.clone()), 1);
    let plain = SimpleStore { collect_after: 2, to_tree_one_in: 1, lazy: false };
    let db = Db::open(DIR, with(plain).vfs(Arc::new(vfs.clone()))).unwrap();
    db.put("a", "1").unwrap();
    db.put("c", "1").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "2").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("b", "2").unwrap();
    // The flush makes the first of these, the collection's table is the second.
    let fault = lsmx::internals::vfs::Fault::Error(lsmx::internals::vfs::Errno::Io);
    let rule = lsmx::internals::vfs::FaultRule::new(fault)
        .for_calls(&[lsmx::internals::vfs::VfsCall::Create]);
    vfs.add_rule(rule.path_contains(".sst").nth(0));
    let flushed = db.flush();
    assert!(flushed.is_ok(), "{flushed:?}");
    assert!(!vfs.fired_counts().is_empty());
    assert!(matches!(db.wait_idle(), Err(Error::Io { .. })), "the failure is told");
    shows(&db, "a=12 b=2 c=1");
    let store = |db: &Db| db.metrics().keyspaces["default"].operand_store.unwrap();
    db.env().advance_us(200_000);
    let told = db.default_keyspace().merge("a", "not done");
    assert!(matches!(told, Err(Error::Background { work: "collection", .. })), "{told:?}");
    db.default_keyspace().merge("a", "3").unwrap();
    db.flush().unwrap();
    db.default_keyspace().merge("a", "4").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    shows(&db, "a=1234 b=2 c=1");
    assert!(store(&db).to_tree > 0);
    assert_eq!(db.metrics().keyspaces["default"].compaction.failures, 1);
}

/// Every file whose name ends so.
fn files(disk: &MemVfs, end: &str) -> Vec<std::path::PathBuf> {
    let ends = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(end);
    disk.paths().into_iter().filter(ends).collect()
}

#[test]
fn a_repair_keeps_a_store_that_can_be_opened_and_begins_another_anew() {
    let disk = MemVfs::new();
    let db = open(&disk, with(QUIET));
    for key in ["a", "b", "c"] {
        db.put(key, "1").unwrap();
    }
    db.flush().unwrap();
    for key in ["a", "c"] {
        db.default_keyspace().merge(key, "2").unwrap();
    }
    db.flush().unwrap();
    db.close(None).unwrap();
    drop(db);
    let database = |disk: &MemVfs| Options::default().vfs(Arc::new(disk.clone()));
    let unknown = repair(DIR, &database(&disk), &RepairOptions::default());
    assert!(matches!(unknown, Err(Error::NoOperandStore { .. })), "{unknown:?}");
    let repair = |disk: &MemVfs| {
        repair(DIR, &database(disk).operand_store(QUIET), &RepairOptions::default()).unwrap()
    };

    // The filter of a table: no entry is lost.
    let damaged = disk.crash(CrashImage::Keep, 0);
    let [table] = &files(&damaged, ".sst")[..] else { panic!("one table") };
    let last = damaged.read_all(table).unwrap().len() as u64 - 1;
    damaged.flip_bits(table, last, 1).unwrap();
    let report = repair(&damaged);
    assert_eq!((report.tables_rewritten, report.entries_salvaged), (1, 3), "{report:?}");
    assert_eq!(report.lost, [], "the footer alone is damaged");
    shows(&open(&damaged, with(QUIET)), "a=12 b=1 c=12");

    // The store itself.
    let damaged = disk.crash(CrashImage::Keep, 0);
    for file in files(&damaged, ".operands") {
        damaged.truncate(&file, 3).unwrap();
    }
    let refused = open(&damaged, with(QUIET)).get("a").unwrap_err();
    assert!(matches!(refused, Error::NoOperandStore { cause: Some(_), .. }), "{refused:?}");
    let report = repair(&damaged);
    let lost: Vec<_> =
        report.lost.iter().map(|lost| (lost.what, lost.keyspace.as_deref())).collect();
    assert_eq!(lost, [(LossKind::Operands, Some("default"))]);
    let db = open(&damaged, with(QUIET));
    shows(&db, "a=1 b=1 c=1");
    db.default_keyspace().merge("b", "3").unwrap();
    db.flush().unwrap();
    shows(&db, "a=1 b=13 c=1");
}

/// Without a manifest tables are merged by the numbers of their entries, in whatever runs they were; operands
/// that a table has folded onto a value do not count once more, whether what they were folded onto is there
/// still or not.
#[test]
fn a_repair_without_a_manifest_folds_operands_once() {
    let is_table = |path: &Path| path.extension().is_some_and(|extension| extension == "sst");
    let disk = MemVfs::new();
    // Runs stay as they are until all are merged.
    let runs = options(merging().policy("tiering(T=10)".parse::<lsmx::PolicySpec>().unwrap()));
    let db = open(&disk, runs);
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    for (key, operand) in [("a", "2"), ("b", "x"), ("a", "3")] {
        db.default_keyspace().merge(key, operand).unwrap();
        db.flush().unwrap();
    }
    // What jobs replace is kept, as if its removal had not reached the disk.
    let before = disk.snapshot_all();
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    db.default_keyspace().merge("b", "y").unwrap();
    db.close(None).unwrap();
    drop(db);
    for path in files(&disk, "").iter().filter(|path| path.to_string_lossy().contains("MANIFEST")) {
        disk.remove(path).unwrap();
    }
    let replaced: Vec<_> =
        before.iter().filter(|(path, _)| is_table(path) && !disk.exists(path).unwrap()).collect();
    assert_eq!(replaced.len(), 4);
    // All of them, and each by itself.
    let each = replaced.iter().map(std::slice::from_ref);
    for back in std::iter::once(&replaced[..]).chain(each) {
        let disk = disk.crash(CrashImage::Keep, 0);
        for (path, bytes) in back {
            disk.create(path).unwrap().append(bytes).unwrap();
        }
        let report =
            repair(DIR, &Options::default().vfs(Arc::new(disk.clone())), &RepairOptions::default())
                .unwrap();
        assert!(report.in_doubt && report.tables_sound >= 2, "{report:?}");
        shows(&open(&disk, options(merging())), "a=123 b=xy");
    }
}
