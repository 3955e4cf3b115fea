//! Smallest and largest keys, values, batches and options, and one beyond.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::scale;

const KEY_MAX: usize = 64 << 10;
const VALUE_MAX: usize = 1 << 30;

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default().memtable_bytes(64 << 10).table_bytes(64 << 10)
}

fn options() -> Options {
    Options::default().background(Background::Inline).seed(1).keyspace_defaults(tuning())
}

fn open(disk: &MemVfs) -> Db {
    Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap()
}

fn too_large(result: lsmx::Result<()>) -> (&'static str, u64, u64) {
    match result {
        Err(Error::TooLarge { what, bytes, limit }) => (what, bytes, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_from_empty_to_the_longest() {
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
    // Nothing of the batch is done, whatever comes before or after.
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
    lsmx::verify(
        "db",
        &Options::default().vfs(Arc::new(disk.crash(lsmx::internals::vfs::CrashImage::Keep, 0))),
    )
    .unwrap();
}

/// 64 MiB always; the largest value itself in the long mode, for the time and the memory it takes.
#[test]
fn values_up_to_the_longest() {
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
fn a_value_past_the_limit_is_refused() {
    let db = open(&MemVfs::new());
    let value = vec![0; VALUE_MAX + 1];
    let refused = too_large(db.put("k", &value));
    assert_eq!(refused, ("value", VALUE_MAX as u64 + 1, VALUE_MAX as u64));
    assert_eq!(db.get("k").unwrap(), None);
}

#[test]
fn a_batch_past_the_limit_is_refused_whole() {
    if scale() <= 1.0 {
        let reason = "it takes 2 GiB of memory and runs if LSMX_TEST_SCALE is above 1";
        lsmx_testkit::report_skipped("a batch past the limit", reason);
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
fn a_batch_of_100_000_operations_is_one() {
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
    let killed = disk.crash(lsmx::internals::vfs::CrashImage::Keep, 0);
    let db = open(&killed);
    assert_eq!(db.default_keyspace().iter().count(), 50_000);
    // An empty one is nothing at all.
    let seq = db.snapshot().seq();
    db.write(WriteBatch::new(), Durability::Sync).unwrap();
    db.write(WriteBatch::new(), Durability::Buffered).unwrap();
    assert_eq!(db.snapshot().seq(), seq);
}

#[test]
fn many_versions_of_one_key() {
    const VERSIONS: u32 = (1 << 16) + 1;
    let disk = MemVfs::new();
    let tuning = tuning().memtable_bytes(64 << 20);
    let options = || options().keyspace_defaults(tuning.clone());
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    let main = db.default_keyspace();
    let mut snapshots = Vec::new();
    for version in 0..VERSIONS {
        db.put("k", version.to_le_bytes()).unwrap();
        if version.is_power_of_two() || version % 8_192 == 8_191 {
            snapshots.push((version, db.snapshot()));
        }
    }
    let check = |when: &str| {
        for (version, snapshot) in &snapshots {
            assert_eq!(snapshot.get(&main, "k").unwrap().unwrap(), version.to_le_bytes(), "{when}");
            assert_eq!(snapshot.iter(&main).rev().count(), 1, "{when}");
        }
        assert_eq!(db.get("k").unwrap().unwrap(), (VERSIONS - 1).to_le_bytes(), "{when}");
        assert_eq!(main.iter().count(), 1, "{when}");
    };
    check("in memory");
    db.flush().unwrap();
    check("in tables");
    let entries: u64 =
        db.metrics().keyspaces["default"].levels.iter().map(|level| level.entries).sum();
    // What no snapshot can see any more is gone.
    assert!(entries <= snapshots.len() as u64 + 1, "{entries}");
}

/// Each snapshot keeps its version, so the table has more entries of one key than a u16 counts.
#[test]
fn many_kept_versions_of_one_key() {
    const VERSIONS: u32 = (1 << 16) + 1;
    let tuning = tuning().memtable_bytes(64 << 20).table_bytes(4 << 20).block_bytes(1 << 20);
    let options = options().keyspace_defaults(tuning);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let main = db.default_keyspace();
    let snapshots: Vec<_> = (0..VERSIONS)
        .map(|version| {
            db.put("k", version.to_le_bytes()).unwrap();
            db.snapshot()
        })
        .collect();
    db.flush().unwrap();
    assert_eq!(db.metrics().snapshots, u64::from(VERSIONS));
    for (version, snapshot) in (0..VERSIONS).zip(&snapshots).step_by(97) {
        assert_eq!(snapshot.get(&main, "k").unwrap().unwrap(), version.to_le_bytes());
    }
    let last = snapshots.last().unwrap();
    assert_eq!(last.get(&main, "k").unwrap().unwrap(), (VERSIONS - 1).to_le_bytes());
    assert_eq!(main.iter().count(), 1);
}

#[test]
fn names_of_keyspaces() {
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
fn keyspaces_of_another_database_are_refused() {
    let (disk, other_disk) = (MemVfs::new(), MemVfs::new());
    let db = open(&disk);
    // Another seed, so another database; its keyspace has the same id.
    let other = Db::open("db", options().seed(2).vfs(Arc::new(other_disk))).unwrap();
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

/// A handle from before a reopening belongs to a database that is closed, not to the new one.
#[test]
fn keyspaces_from_before_a_reopening_are_refused() {
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
