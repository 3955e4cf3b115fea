//! Tests of range deletes: results, read cost, and files that are dropped without being rewritten.

use std::ops::Bound;
use std::path::Path;

use lsmx::env::Background;
use lsmx::metrics::BlockKind;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, PolicySpec, WriteBatch};

use crate::harness::database::{
    assert_clean, compact, entries, files, inline, metrics, open, policy, settle, wait_until,
};
use crate::harness::golden::{assert_same_bytes, golden};

fn options(text: &str) -> Options {
    let keyspace = KeyspaceOptions::default()
        .policy(policy(text))
        .memtable_bytes(64 << 10)
        .table_bytes(32 << 10)
        .block_bytes(1 << 10);
    inline().keyspace_defaults(keyspace)
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

fn fill(db: &Db, count: u32) {
    for number in 0..count {
        db.put(key(number), [7; 40]).unwrap();
    }
}

fn keys(db: &Db) -> Vec<String> {
    let entries = entries(db.default_keyspace().iter()).into_iter();
    entries.map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect()
}

/// Returns the number of tables, the number of bytes written by compactions, and the number of tables that compactions
/// dropped without reading them.
fn work(db: &Db) -> (u64, u64, u64) {
    let metrics = metrics(db);
    (metrics.total().files, metrics.compaction.written_bytes, metrics.compaction.drops)
}

#[test]
fn range_delete_bounds_may_be_included_excluded_or_unbounded() {
    let db = open(&MemVfs::new(), options("leveled"));
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
    // Each round takes seven sequence numbers, for `clear` and six puts. Deleting an empty range takes none.
    assert_eq!(db.snapshot().seq().0 - seq.0, 4 * 7);
}

#[test]
fn range_delete_bound_longer_than_the_key_limit_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    let keyspace = db.default_keyspace();
    let (longest, too_long) = (vec![b'k'; 64 << 10], vec![b'k'; (64 << 10) + 1]);
    db.put(&longest, "v").unwrap();
    use Bound::{Excluded, Included, Unbounded};
    for range in [(Included(&too_long), Unbounded), (Unbounded, Excluded(&too_long))] {
        let refused = keyspace.delete_range::<Vec<u8>>(range);
        assert!(matches!(refused, Err(Error::TooLarge { what: "key", .. })), "{refused:?}");
    }
    // The engine stores an excluded start or an included end as the key plus one byte. The stored key would then exceed
    // the key limit.
    keyspace.delete_range::<Vec<u8>>((Excluded(&longest), Unbounded)).unwrap();
    assert_eq!(db.get(&longest).unwrap().as_deref(), Some(&b"v"[..]));
    settle(&db);
    keyspace.delete_range::<Vec<u8>>((Included(&longest), Included(&longest))).unwrap();
    drop((keyspace, db));
    let db = open(&disk, options("full"));
    assert_eq!(db.get(&longest).unwrap(), None);
    settle(&db);
    db.close(None).unwrap();
    assert_clean(&disk);
}

#[test]
fn guard_of_a_range_deleted_key_is_refused() {
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
    assert!(matches!(guarded(read), Err(Error::Conflict { .. })));
    guarded(db.snapshot().seq()).unwrap();
}

#[test]
fn range_delete_in_a_batch_deletes_earlier_writes_of_the_batch() {
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

/// A snapshot keeps the deleted entries in the tables. The scan must skip their blocks.
#[test]
fn scan_over_a_deleted_range_reads_few_blocks() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    fill(&db, 100_000);
    settle(&db);
    let before = db.snapshot();
    db.default_keyspace().delete_range(key(10)..key(99_990)).unwrap();
    db.flush().unwrap();
    let tables = work(&db).0;
    assert!(tables > 50, "only {tables} tables");
    let blocks = || {
        let cache = db.metrics().cache;
        cache.get(&BlockKind::Data).map_or(0, |data| data.hits + data.misses)
    };
    let from = blocks();
    let forward = entries(db.default_keyspace().iter());
    let forward_blocks = blocks() - from;
    assert_eq!(forward.len(), 20);
    let mut backward: Vec<_> = db.default_keyspace().iter().rev().map(Result::unwrap).collect();
    let all_blocks = blocks() - from;
    backward.reverse();
    assert_eq!(forward, backward);
    assert!(forward_blocks <= 20 && all_blocks <= 40, "{forward_blocks} and {all_blocks} blocks");
    let space = db.default_keyspace();
    assert_eq!(before.range(&space, key(50_000)..).next().unwrap().unwrap().0, key(50_000));
    assert_eq!(before.iter(&space).count(), 100_000);
}

/// After `clear`, a snapshot keeps the files. When the snapshot is dropped, compaction drops the files unread.
#[test]
fn clear_frees_all_files_without_rewriting_them() {
    lsmx_testkit::time_test();
    for policy in PolicySpec::all_presets() {
        let policy = policy.to_string();
        let disk = MemVfs::new();
        let db = open(&disk, options(&policy));
        for number in 0..20_000u32 {
            db.put(key(number.wrapping_mul(7919) % 20_000), [7; 40]).unwrap();
        }
        settle(&db);
        let (before, written, _) = work(&db);
        let snapshot = db.snapshot();
        db.default_keyspace().clear().unwrap();
        assert_eq!(keys(&db).len(), 0);
        settle(&db);
        let (held, ..) = work(&db);
        assert!(held >= before.min(1), "{policy}: {held} of {before} files");
        assert_eq!(snapshot.iter(&db.default_keyspace()).count(), 20_000, "{policy}");
        // Compactions that run while the snapshot is held keep all entries.
        let (_, written_held, _) = work(&db);
        drop(snapshot);
        db.wait_idle().unwrap();
        let (left, written_after, drops) = work(&db);
        assert_eq!(
            (left, written_after),
            (0, written_held),
            "{policy}: {before} files, {written} bytes before"
        );
        assert!(drops > 0);
        assert_eq!(files(&disk, ".sst").len(), 0, "{policy}");
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

/// After the snapshot is dropped, background threads remove the files without a further write or call of `wait_idle`.
#[test]
fn clear_with_a_snapshot_removes_files_after_its_drop() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled").background(Background::Threads { workers: 1 }));
    fill(&db, 2_000);
    settle(&db);
    let snapshot = db.snapshot();
    db.default_keyspace().clear().unwrap();
    settle(&db);
    assert!(work(&db).0 > 0);
    drop(snapshot);
    wait_until("removal of the files", || work(&db).0 == 0);
}

/// Compaction rewrites only the files that contain a bound of the range delete, and drops the files between the bounds.
#[test]
fn range_delete_of_half_the_keys_frees_half_the_files() {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    fill(&db, 50_000);
    settle(&db);
    // The tree has only one run, so all later compactions are due to the range delete.
    compact(&db).unwrap();
    let (before, written, _) = work(&db);
    db.default_keyspace().delete_range(key(12_345)..key(37_345)).unwrap();
    settle(&db);
    let (left, written_after, drops) = work(&db);
    assert!(left <= before / 2 + 4, "{left} of {before} files are left");
    assert!(
        written_after - written <= 8 * (32 << 10),
        "{} bytes were rewritten",
        written_after - written
    );
    assert!(drops > 0);
    assert_eq!(keys(&db).len(), 25_000);
}

#[test]
fn table_with_many_range_deletes_is_split() {
    lsmx_testkit::time_test();
    let disk = MemVfs::new();
    let db = open(&disk, options("full"));
    for number in 0..=60 {
        db.put(key(1_000 * number), "stays").unwrap();
    }
    // The snapshot prevents compaction from dropping the range tombstones.
    let snapshot = db.snapshot();
    for number in 0..6_000 {
        db.default_keyspace().delete_range(key(10 * number + 1)..key(10 * number + 5)).unwrap();
    }
    settle(&db);
    let range_tombstones = metrics(&db).total().range_tombstones;
    // Compaction may drop a range tombstone if no older entry remains in its range.
    assert!((5_000..=6_000).contains(&range_tombstones), "{range_tombstones} range tombstones");
    let tables = files(&disk, ".sst");
    let bytes: Vec<usize> = tables.iter().map(|path| disk.read_all(path).unwrap().len()).collect();
    assert!(bytes.len() >= 5 && bytes.iter().all(|&bytes| bytes < 70 << 10), "{bytes:?}");
    assert_eq!(keys(&db).len(), 61);
    drop(snapshot);
    db.close(None).unwrap();
    assert_clean(&disk);
}

const GOLDEN: &[(&str, &[u8])] = &[
    ("CURRENT", include_bytes!("../golden/range-delete-v1/CURRENT")),
    ("MANIFEST-000002", include_bytes!("../golden/range-delete-v1/MANIFEST-000002")),
    ("000001.wal", include_bytes!("../golden/range-delete-v1/000001.wal")),
];

/// Returns the disk of a killed database whose WAL contains range deletes.
fn killed_with_range_deletes() -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk, options("leveled"));
    let keyspace = db.default_keyspace();
    for key in ["a", "b", "c", "d", "e"] {
        db.put(key, key).unwrap();
    }
    let mut batch = WriteBatch::new();
    batch.delete_range(&keyspace, "b"..="c");
    batch.put(&keyspace, "c", "again");
    db.write(batch, Durability::Buffered).unwrap();
    keyspace.delete_range("e"..).unwrap();
    db.sync().unwrap();
    disk.crash(CrashImage::Drop, 1)
}

#[test]
fn golden_log_with_range_deletes_is_written_unchanged_and_read_from_version_1() {
    let name = "000001.wal";
    let mut written = killed_with_range_deletes().read_all(&Path::new("db").join(name)).unwrap();
    // The file is preallocated, so zeros follow the last record.
    written.truncate(written.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    assert_same_bytes(name, &written, &golden("range-delete-v2.wal", || written.clone()));

    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    for (name, golden) in GOLDEN {
        disk.write_all(&Path::new("db").join(name), golden).unwrap();
    }
    let db = open(&disk, options("leveled"));
    assert_eq!(keys(&db), ["a", "c", "d"]);
    assert_eq!(db.get("c").unwrap().as_deref(), Some(&b"again"[..]));
}
