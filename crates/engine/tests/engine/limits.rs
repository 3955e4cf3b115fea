//! Tests of keys, values, batches and keyspace names of the minimum size, of the maximum size, and one byte above the
//! maximum.

use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::scale;

use crate::harness::database::{self, inline, metrics, verify};

const KEY_MAX: usize = 64 << 10;
const VALUE_MAX: usize = 1 << 30;

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(64 << 10).table_bytes(64 << 10)
}

fn options() -> Options {
    inline().keyspace_defaults(tuning())
}

fn open(disk: &MemVfs) -> Db {
    database::open(disk, options())
}

/// Returns the fields of [`Error::TooLarge`]: kind of data, size and limit in bytes. Panics on other results.
fn too_large(result: lsmx::Result<()>) -> (&'static str, u64, u64) {
    match result {
        Err(Error::TooLarge { what, bytes, limit }) => (what, bytes, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn key_up_to_the_maximum_size_is_stored_and_longer_is_refused() {
    let disk = MemVfs::new();
    let db = open(&disk);
    let longest = vec![0xff; KEY_MAX];
    let neighbour = [&longest[..KEY_MAX - 1], &[0xfe]].concat();
    for key in [&b""[..], &longest, &neighbour] {
        db.put(key, key).unwrap();
    }
    let past = vec![0xff; KEY_MAX + 1];
    let (bytes, limit) = (KEY_MAX as u64 + 1, KEY_MAX as u64);
    assert_eq!(too_large(db.put(&past, "v")), ("key", bytes, limit));
    assert_eq!(too_large(db.delete(&past)), ("key", bytes, limit));
    // If one key of a batch is too long, the whole batch is refused.
    let main = db.default_keyspace();
    let mut batch = WriteBatch::new();
    batch.put(&main, "before", "v");
    batch.put(&main, &past, "v");
    batch.put(&main, "after", "v");
    assert_eq!(too_large(db.write(batch.clone(), Durability::Sync)).0, "key");
    assert_eq!((db.get("before").unwrap(), db.get("after").unwrap()), (None, None));
    let mut batch = WriteBatch::new();
    batch.put(&main, "cleared", "v");
    db.write(batch, Durability::Sync).unwrap();
    assert_eq!(db.get(&past).unwrap(), None);
    drop((main, db));
    let db = open(&disk);
    let keys: Vec<_> = db.default_keyspace().iter().map(|item| item.unwrap().0).collect();
    assert_eq!(keys, [b"".to_vec(), b"cleared".to_vec(), neighbour, longest.clone()]);
    assert_eq!(db.get("").unwrap().unwrap(), "");
    assert_eq!(db.get(&longest).unwrap().unwrap(), longest);
    verify(&disk.crash(CrashImage::Keep, 0)).unwrap();
}

/// The value size is 64 MiB, or the maximum of 1 GiB if `LSMX_TEST_SCALE` is above 1.
#[test]
fn value_of_the_maximum_size_is_stored() {
    lsmx_testkit::time_test();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let bytes = if scale() > 1.0 { VALUE_MAX } else { 64 << 20 };
    let mut value = vec![7; bytes];
    value[bytes - 1] = 9;
    let db = Db::open(&path, options()).unwrap();
    db.put("large", &value).unwrap();
    assert!(db.get("large").unwrap().unwrap() == value);
    db.flush().unwrap();
    db.put("small", "v").unwrap();
    db.close(None).unwrap();
    drop(db);
    let db = Db::open(&path, options()).unwrap();
    assert!(db.get("large").unwrap().unwrap() == value);
    assert_eq!(db.get("small").unwrap().unwrap(), "v");
    drop(db);
    lsmx::verify(&path, &Options::default()).unwrap();
}

#[test]
fn value_longer_than_the_limit_is_refused() {
    let db = open(&MemVfs::new());
    let value = vec![0; VALUE_MAX + 1];
    let refused = too_large(db.put("k", &value));
    assert_eq!(refused, ("value", VALUE_MAX as u64 + 1, VALUE_MAX as u64));
    assert_eq!(db.get("k").unwrap(), None);
}

#[test]
fn batch_larger_than_the_limit_is_refused() {
    if scale() <= 1.0 {
        let reason = "it takes 2 GiB of memory and runs if LSMX_TEST_SCALE is above 1";
        lsmx_testkit::report_skipped("a batch above the size limit", reason);
        return;
    }
    let db = open(&MemVfs::new());
    let main = db.default_keyspace();
    let value = vec![0; VALUE_MAX];
    let mut batch = WriteBatch::new();
    batch.put(&main, "a", &value);
    batch.put(&main, "b", &value);
    let (what, _, limit) = too_large(db.write(batch, Durability::Buffered));
    assert_eq!((what, limit), ("batch", (1 << 31) - 1));
    assert_eq!(db.default_keyspace().iter().count(), 0);
}

#[test]
fn batch_of_100_000_operations_is_atomic() {
    let disk = MemVfs::new();
    let db = open(&disk);
    let (main, other) = (db.default_keyspace(), db.keyspace("other", tuning()).unwrap());
    let mut batch = WriteBatch::new();
    for number in 0..100_000u32 {
        let keyspace = if number % 2 == 0 { &main } else { &other };
        batch.put(keyspace, number.to_be_bytes(), number.to_le_bytes());
    }
    assert_eq!(batch.len(), 100_000);
    let before = db.snapshot();
    db.write(batch, Durability::Buffered).unwrap();
    assert_eq!((before.iter(&main).count(), before.iter(&other).count()), (0, 0));
    assert_eq!((main.iter().count(), other.iter().rev().count()), (50_000, 50_000));
    assert_eq!(db.snapshot().seq().0 - before.seq().0, 100_000);
    let killed = disk.crash(CrashImage::Keep, 0);
    let db = open(&killed);
    assert_eq!(db.default_keyspace().iter().count(), 50_000);
    // Writing an empty batch does not consume a sequence number.
    let seq = db.snapshot().seq();
    db.write(WriteBatch::new(), Durability::Sync).unwrap();
    db.write(WriteBatch::new(), Durability::Buffered).unwrap();
    assert_eq!(db.snapshot().seq(), seq);
}

/// Writes 65,537 versions of one key, one more than a `u16` can count. The first pass holds a few snapshots. The second
/// pass holds one snapshot per version.
#[test]
fn key_with_65_537_versions_is_read_correctly_by_each_snapshot() {
    const VERSIONS: u32 = (1 << 16) + 1;
    for all in [false, true] {
        let tuning = tuning().memtable_bytes(64 << 20);
        let tuning = if all { tuning.table_bytes(4 << 20).block_bytes(1 << 20) } else { tuning };
        let db = database::open(&MemVfs::new(), inline().keyspace_defaults(tuning));
        let main = db.default_keyspace();
        let mut snapshots = Vec::new();
        for version in 0..VERSIONS {
            db.put("k", version.to_le_bytes()).unwrap();
            if all || version.is_power_of_two() || version % 8_192 == 8_191 {
                snapshots.push((version, db.snapshot()));
            }
        }
        assert_eq!(db.metrics().snapshots, snapshots.len() as u64);
        for when in ["in memory", "in tables"] {
            let step = if all { 97 } else { 1 };
            for (version, snapshot) in snapshots.iter().step_by(step).chain(snapshots.last()) {
                let found = snapshot.get(&main, "k").unwrap().unwrap();
                assert_eq!(found, version.to_le_bytes(), "{when}");
                assert!(all || snapshot.iter(&main).rev().count() == 1, "{when}");
            }
            assert_eq!(db.get("k").unwrap().unwrap(), (VERSIONS - 1).to_le_bytes(), "{when}");
            assert_eq!(main.iter().count(), 1, "{when}");
            db.flush().unwrap();
        }
        // The flush drops versions that are visible to no snapshot.
        let entries = metrics(&db).total().entries;
        assert!(entries <= snapshots.len() as u64 + 1, "{entries}");
    }
}

#[test]
fn keyspace_names_up_to_255_bytes_are_stored() {
    let disk = MemVfs::new();
    let db = open(&disk);
    let longest = "n".repeat(255);
    for name in ["", &"n".repeat(256), &"ü".repeat(128)] {
        let refused = db.keyspace(name, tuning());
        assert!(matches!(refused, Err(Error::InvalidOption { name: "keyspace name", .. })));
    }
    let names = ["/", "default ", "..", &longest, "Ключ ☃\u{0}"];
    for name in names {
        db.keyspace(name, tuning()).unwrap().put("name", name).unwrap();
    }
    drop(db);
    let db = open(&disk);
    for name in names {
        let keyspace = db.open_keyspace(name, None).unwrap();
        assert_eq!(keyspace.name(), name);
        assert_eq!(keyspace.get("name").unwrap().unwrap(), name.as_bytes());
    }
    assert_eq!(db.keyspaces().len(), names.len() + 1);
    assert!(
        matches!(db.open_keyspace("no", None), Err(Error::UnknownKeyspace { name }) if name == "no")
    );
}

#[test]
fn keyspace_of_another_database_is_refused() {
    let db = open(&MemVfs::new());
    // The default keyspaces of the two databases have the same number, but the databases have different unique IDs.
    let other = database::open(&MemVfs::new(), options().seed(2));
    let foreign = other.default_keyspace();
    let is_foreign =
        |error: &Error| matches!(error, Error::ForeignKeyspace { name } if name == "default");
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "k", "v");
    batch.put(&foreign, "k", "v");
    assert!(is_foreign(&db.write(batch, Durability::Buffered).unwrap_err()));
    let mut guarded = WriteBatch::new();
    guarded.put(&db.default_keyspace(), "k", "v");
    guarded.guard(&foreign, "k", db.snapshot().seq());
    assert!(is_foreign(&db.write(guarded, Durability::Buffered).unwrap_err()));
    let snapshot = db.snapshot();
    assert!(is_foreign(&snapshot.get(&foreign, "k").unwrap_err()));
    let mut range = snapshot.iter(&foreign);
    assert!(is_foreign(&range.next().unwrap().unwrap_err()));
    assert!(is_foreign(&range.next_back().unwrap().unwrap_err()));
    assert_eq!((db.get("k").unwrap(), other.get("k").unwrap()), (None, None));
}

#[test]
fn keyspace_handle_from_before_a_reopen_is_refused() {
    let disk = MemVfs::new();
    let old = open(&disk);
    let stale = old.default_keyspace();
    old.close(None).unwrap();
    let db = open(&disk);
    let mut batch = WriteBatch::new();
    batch.put(&stale, "k", "v");
    let refused = db.write(batch, Durability::Buffered);
    assert!(matches!(refused, Err(Error::ForeignKeyspace { .. })), "{refused:?}");
    assert_eq!(db.get("k").unwrap(), None);
    assert!(matches!(stale.put("k", "v"), Err(Error::Closed)));
}
