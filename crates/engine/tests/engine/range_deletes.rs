//! Range deletes: results and cost.

#![allow(
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and one waits for real threads"
)]

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::metrics::BlockKind;
use lsmx::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Durability, Error, KeyspaceOptions, Metrics, Options, PolicySpec, WriteBatch, verify,
};
use lsmx_base::file_name::FileName;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

fn options(policy: &str) -> Options {
    let keyspace = KeyspaceOptions::default()
        .policy(policy.parse::<PolicySpec>().unwrap())
        .memtable_bytes(64 << 10)
        .table_bytes(32 << 10)
        .block_bytes(1 << 10);
    Options::default().background(Background::Inline).seed(1).keyspace_defaults(keyspace)
}

fn open(disk: &MemVfs, options: Options) -> Db {
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

fn keys(db: &Db) -> Vec<String> {
    let entries = db.default_keyspace().iter().map(|entry| entry.unwrap().0);
    entries.map(|key| String::from_utf8(key.to_vec()).unwrap()).collect()
}

/// Files and written bytes of the default keyspace.
fn work(db: &Db) -> (u64, u64, u64) {
    let Metrics { keyspaces, .. } = db.metrics();
    let tree = &keyspaces["default"];
    let files = tree.levels.iter().map(|level| level.files).sum();
    (files, tree.compaction.written_bytes, tree.compaction.drops)
}

fn settle(db: &Db) {
    db.flush().unwrap();
    db.wait_idle().unwrap();
}

#[test]
fn bounds_are_those_of_ranges() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    let space = db.default_keyspace();
    let left = |range: (Bound<&str>, Bound<&str>)| {
        space.clear().unwrap();
        for key in ["", "a", "a\0", "b", "b\0", "c"] {
            space.put(key, "v").unwrap();
        }
        space.delete_range::<&str>(range).unwrap();
        keys(&db).join(",").replace('\0', "0")
    };
    use Bound::{Excluded, Included, Unbounded};
    assert_eq!(left((Included("a"), Excluded("b"))), ",b,b0,c");
    assert_eq!(left((Included("a"), Included("b"))), ",b0,c");
    assert_eq!(left((Excluded("a"), Excluded("b"))), ",a,b,b0,c");
    assert_eq!(left((Excluded("a"), Included("a\0"))), ",a,b,b0,c");
    assert_eq!(left((Unbounded, Excluded("b"))), "b,b0,c");
    assert_eq!(left((Excluded("b"), Unbounded)), ",a,a0,b");
    assert_eq!(left((Unbounded, Included(""))), "a,a0,b,b0,c");
    assert_eq!(left((Unbounded, Unbounded)), "");
    let seq = db.snapshot().seq();
    for nothing in [
        (Included("b"), Excluded("a")),
        (Included("a"), Excluded("a")),
        (Excluded("a"), Included("a")),
        (Unbounded, Excluded("")),
    ] {
        assert_eq!(left(nothing), ",a,a0,b,b0,c");
    }
    // Clearing and six puts each, and no number for an empty range.
    assert_eq!(db.snapshot().seq().0 - seq.0, 4 * 7);
}

#[test]
fn a_bound_past_the_limit_of_keys_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    let (longest, long) = (vec![b'k'; 64 << 10], vec![b'k'; (64 << 10) + 1]);
    db.put(&longest, "v").unwrap();
    for range in
        [(Bound::Included(&long), Bound::Unbounded), (Bound::Unbounded, Bound::Excluded(&long))]
    {
        let refused = db.default_keyspace().delete_range::<Vec<u8>>(range);
        assert!(matches!(refused, Err(Error::TooLarge { what: "key", .. })), "{refused:?}");
    }
    // The longest keys as bounds: the keys next to them are one byte longer, here and on disk.
    db.default_keyspace()
        .delete_range::<Vec<u8>>((Bound::Excluded(&longest), Bound::Unbounded))
        .unwrap();
    assert_eq!(db.get(&longest).unwrap().as_deref(), Some(&b"v"[..]));
    settle(&db);
    db.default_keyspace()
        .delete_range::<Vec<u8>>((Bound::Included(&longest), Bound::Included(&longest)))
        .unwrap();
    drop(db);
    let db = open(&disk, options("full"));
    assert_eq!(db.get(&longest).unwrap(), None);
    settle(&db);
    db.close(None).unwrap();
    verify("db", &Options::default().vfs(Arc::new(disk))).unwrap();
}

#[test]
fn a_guard_is_refused_after_a_range_delete_of_its_key() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    let space = db.default_keyspace();
    let guarded = |read| {
        let mut batch = WriteBatch::new();
        batch.guard(&space, "k", read);
        batch.put(&space, "other", "v");
        db.write(batch, Durability::Buffered)
    };
    let read = db.snapshot().seq();
    space.delete_range("a".."k").unwrap();
    guarded(read).unwrap();
    space.delete_range("k"..).unwrap();
    assert!(matches!(guarded(read), Err(Error::GuardRefused { .. })));
    guarded(db.snapshot().seq()).unwrap();
}

#[test]
fn a_batch_deletes_what_it_wrote_before_and_leaves_what_comes_after() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    let space = db.default_keyspace();
    let mut batch = WriteBatch::new();
    batch.put(&space, "a", "1");
    batch.put(&space, "b", "1");
    batch.delete_range(&space, "a".."z");
    batch.put(&space, "b", "2");
    assert_eq!(batch.len(), 4);
    db.write(batch, Durability::Sync).unwrap();
    for _ in 0..2 {
        assert_eq!(keys(&db), ["b"]);
        assert_eq!(
            (db.get("a").unwrap(), db.get("b").unwrap().as_deref()),
            (None, Some(&b"2"[..]))
        );
        settle(&db);
    }
    let again = open(&disk.crash(CrashImage::Drop, 1), options("leveled"));
    assert_eq!(keys(&again), ["b"]);
}

/// A hundred thousand deleted keys in the way of a scan are leapt over, from both sides, though no
/// job has touched them.
#[test]
fn a_scan_over_a_deleted_stretch_reads_next_to_nothing() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    for number in 0..100_000 {
        db.put(key(number), [7; 40]).unwrap();
    }
    settle(&db);
    // Whoever looks through it sees all of the files, so none of them goes.
    let before = db.snapshot();
    db.default_keyspace().delete_range(key(10)..key(99_990)).unwrap();
    db.flush().unwrap();
    let tables = work(&db).0;
    assert!(tables > 50, "{tables} tables are no stretch");
    let blocks = || {
        let misses = db.metrics().cache;
        let of = |kind| misses.get(&kind).map_or(0, |cache| cache.hits + cache.misses);
        of(BlockKind::Data)
    };
    let from = blocks();
    let forward: Vec<_> = db.default_keyspace().iter().map(|entry| entry.unwrap().0).collect();
    let forward_blocks = blocks() - from;
    assert_eq!(forward.len(), 20);
    let mut backward: Vec<_> =
        db.default_keyspace().iter().rev().map(|entry| entry.unwrap().0).collect();
    let all_blocks = blocks() - from;
    backward.reverse();
    assert_eq!(forward, backward);
    assert!(forward_blocks <= 20 && all_blocks <= 40, "{forward_blocks} and {all_blocks} blocks");
    let space = db.default_keyspace();
    assert_eq!(before.range(&space, key(50_000)..).next().unwrap().unwrap().0, key(50_000));
    assert_eq!(before.iter(&space).count(), 100_000);
}

/// Nothing is read, nothing is written again, and what a snapshot holds stays until it is let go.
#[test]
fn clearing_frees_all_files_without_rewriting_them() {
    lsmx_testkit::time_test();
    for policy in PolicySpec::all_presets() {
        let policy = policy.to_string();
        let disk = MemVfs::new();
        let db = open(&disk, options(&policy));
        for number in 0..20_000u32 {
            db.put(key(number.wrapping_mul(7919) % 20_000), [7; 40]).unwrap();
        }
        settle(&db);
        let (files, written, _) = work(&db);
        let snapshot = db.snapshot();
        db.default_keyspace().clear().unwrap();
        assert_eq!(keys(&db).len(), 0);
        settle(&db);
        let (held, ..) = work(&db);
        assert!(held >= files.min(1), "{policy}: {held} of {files} files");
        assert_eq!(snapshot.iter(&db.default_keyspace()).count(), 20_000, "{policy}");
        // Jobs that the policy has picked meanwhile had to keep everything.
        let (_, written_held, _) = work(&db);
        drop(snapshot);
        db.wait_idle().unwrap();
        let (left, written_after, drops) = work(&db);
        assert_eq!(
            (left, written_after),
            (0, written_held),
            "{policy}: {files} files, {written} B"
        );
        assert!(drops > 0);
        let tables =
            disk.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst"));
        assert_eq!(tables.count(), 0, "{policy}");
        db.close(None).unwrap();
        verify("db", &Options::default().vfs(Arc::new(disk))).unwrap();
    }
}

/// With no write, no flush and no call that waits: the background looks by itself.
#[test]
fn files_that_only_a_snapshot_held_go_when_it_is_let_go() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled").background(Background::Threads { workers: 1 }));
    for number in 0..2_000 {
        db.put(key(number), [7; 40]).unwrap();
    }
    settle(&db);
    let snapshot = db.snapshot();
    db.default_keyspace().clear().unwrap();
    settle(&db);
    assert!(work(&db).0 > 0);
    drop(snapshot);
    let patience = std::time::Instant::now();
    while work(&db).0 > 0 {
        assert!(patience.elapsed() < Duration::from_secs(60), "{}", db.metrics());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A range delete over half the keys: its files go, those at its ends are merged or stay.
#[test]
fn deleting_half_of_everything_frees_half_without_rewriting_it() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    for number in 0..50_000 {
        db.put(key(number), [7; 40]).unwrap();
    }
    settle(&db);
    // From one run on: whether first runs are due for a merge, which is no work of the delete's, must
    // not depend on how many entries a memtable takes.
    db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
    let (files, written, _) = work(&db);
    db.default_keyspace().delete_range(key(12_345)..key(37_345)).unwrap();
    settle(&db);
    let (left, written_after, drops) = work(&db);
    assert!(left <= files / 2 + 4, "{left} of {files} files are left");
    assert!(
        written_after - written <= 8 * (32 << 10),
        "{} B were rewritten",
        written_after - written
    );
    assert!(drops > 0);
    assert_eq!(keys(&db).len(), 25_000);
}

/// Range deletes fill tables as entries do.
#[test]
fn tables_are_cut_where_they_are_full_of_range_deletes() {
    lsmx_testkit::time_test();
    let disk = MemVfs::new();
    let db = open(&disk, options("full"));
    for number in 0..=60 {
        db.put(key(1_000 * number), "stays").unwrap();
    }
    // It sees what they delete, so they stay.
    let snapshot = db.snapshot();
    for number in 0..6_000 {
        db.default_keyspace().delete_range(key(10 * number + 1)..key(10 * number + 5)).unwrap();
    }
    settle(&db);
    let metrics = db.metrics();
    let levels = &metrics.keyspaces["default"].levels;
    let spans: u64 = levels.iter().map(|level| level.range_tombstones).sum();
    // Where a table has ended, those that cannot reach anything any more are gone.
    assert!((5_000..=6_000).contains(&spans), "{spans} range tombstones");
    let tables =
        disk.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst"));
    let bytes: Vec<usize> = tables.map(|path| disk.read_all(&path).unwrap().len()).collect();
    assert!(bytes.len() >= 5 && bytes.iter().all(|&bytes| bytes < 70 << 10), "{bytes:?}");
    assert_eq!(keys(&db).len(), 61);
    drop(snapshot);
    db.close(None).unwrap();
    verify("db", &Options::default().vfs(Arc::new(disk))).unwrap();
}

const GOLDEN_SEGMENT: u64 = 1;
const GOLDEN: &[(&str, &[u8])] = &[
    ("CURRENT", include_bytes!("../golden/range-delete-v1/CURRENT")),
    ("MANIFEST-000002", include_bytes!("../golden/range-delete-v1/MANIFEST-000002")),
    ("000001.wal", include_bytes!("../golden/range-delete-v1/000001.wal")),
];

/// A database that was killed with range deletes in its log.
fn killed_with_range_deletes() -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    for key in ["a", "b", "c", "d", "e"] {
        db.put(key, key).unwrap();
    }
    let mut batch = WriteBatch::new();
    batch.delete_range(&db.default_keyspace(), "b"..="c");
    batch.put(&db.default_keyspace(), "c", "again");
    db.write(batch, Durability::Buffered).unwrap();
    db.default_keyspace().delete_range("e"..).unwrap();
    db.sync().unwrap();
    disk.crash(CrashImage::Drop, 1)
}

/// The files are never regenerated; a new format version adds new ones.
#[test]
fn range_deletes_in_the_log_are_written_and_read_as_ever() {
    let disk = killed_with_range_deletes();
    let segment = FileName::Segment(GOLDEN_SEGMENT).in_dir(Path::new("db"));
    let written = disk.read_all(&segment).unwrap();
    let (_, golden) = GOLDEN[2];
    // The file grows ahead of its end by zeros.
    let end = written.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let differs = written.iter().zip(golden).position(|(ours, theirs)| ours != theirs);
    assert_eq!((differs, end), (None, golden.len()));

    let disk = MemVfs::new();
    lsmx::vfs::Vfs::create_dir(&disk, Path::new("db")).unwrap();
    for (name, golden) in GOLDEN {
        disk.write_all(&Path::new("db").join(name), golden).unwrap();
    }
    let db = open(&disk, options("leveled"));
    assert_eq!(keys(&db), ["a", "c", "d"]);
    assert_eq!(db.get("c").unwrap().as_deref(), Some(&b"again"[..]));
}

/// Nested range deletes as retention writes them, beside as many that do not overlap: the latencies of the calls, the
/// bytes of the memtable and the time of its flush. Five runs; prints their medians.
#[test]
#[ignore = "measures times: run it alone, with --release and --nocapture"]
fn nested_range_deletes_are_measured() {
    const DELETES: usize = 100_000;
    const RUNS: usize = 5;
    fn median(mut figures: Vec<u64>) -> u64 {
        figures.sort_unstable();
        figures[figures.len() / 2]
    }
    let clock = lsmx::env::Env::default();
    for with_store in [false, true] {
        for nested in [false, true] {
            let mut figures: [Vec<u64>; 5] = Default::default();
            for _ in 0..RUNS {
                let dir = tempfile::tempdir().unwrap();
                let mut tuning = KeyspaceOptions::default().merge_operator(Append::default());
                if with_store {
                    tuning = tuning.operand_store(DeltaStoreFactory::new(DeltaOptions::default()));
                }
                let db = Db::open(dir.path(), Options::default()).unwrap();
                let keyspace = db.keyspace("queue", tuning).unwrap();
                let mut times_ns = Vec::with_capacity(DELETES);
                for number in 0..u32::try_from(DELETES).unwrap() {
                    let (start, end) = (key(number), key(number + 1));
                    let start_ns = clock.monotonic_ns();
                    match nested {
                        true => keyspace.delete_range(..end).unwrap(),
                        false => keyspace.delete_range(start..end).unwrap(),
                    }
                    times_ns.push(clock.monotonic_ns() - start_ns);
                }
                let memtable_bytes = db.metrics().keyspaces["queue"].memtable_bytes;
                let start_ns = clock.monotonic_ns();
                db.flush().unwrap();
                let flush_ns = clock.monotonic_ns() - start_ns;
                times_ns.sort_unstable();
                let of_10_000 = |part: usize| times_ns[DELETES * part / 10_000];
                let run = [
                    of_10_000(5_000) / 1_000,
                    of_10_000(9_999) / 1_000,
                    times_ns[DELETES - 1] / 1_000,
                    memtable_bytes,
                    flush_ns / 1_000,
                ];
                figures.iter_mut().zip(run).for_each(|(all, figure)| all.push(figure));
            }
            let [p50_us, p9999_us, max_us, memtable_bytes, flush_us] = figures.map(median);
            println!(
                "{} range deletes, operand store {with_store}: p50 {p50_us} us, p99.99 {p9999_us} us, \
                 longest {max_us} us, memtable {memtable_bytes} bytes, flush {flush_us} us",
                if nested { "nested" } else { "disjoint" },
            );
        }
    }
}
