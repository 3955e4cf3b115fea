//! Tests of invalid options, and of errors that opening a database returns.

use std::path::Path;

use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::metrics::BlockKind;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Compression, Db, Error, KeyspaceOptions, Options, ReadOptions, ValueSeparation};
use lsmx_testkit::simple_store::SimpleStore;
use xxhash_rust::xxh3::xxh3_64;

use crate::harness::database::{self, inline, policy, small, try_open, verify};

fn options() -> Options {
    let tuning = small().memtable_bytes(2 << 10).table_bytes(2 << 10);
    inline().keyspace_defaults(tuning.value_separation(separation()))
}

fn separation() -> ValueSeparation {
    ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() }
}

fn open(disk: &MemVfs) -> lsmx::Result<Db> {
    try_open(disk, options())
}

/// Opens a database and returns the error. Asserts that the open failed and changed no file.
fn refused(disk: &MemVfs, options: Options) -> Error {
    let before = disk.snapshot_all();
    let error = try_open(disk, options).expect_err("refused");
    assert!(disk.snapshot_all() == before, "{error}: files have changed");
    error
}

/// Returns the disk of a closed database that has tables, a blob file, a WAL and a manifest.
fn database(seed: u64) -> MemVfs {
    let disk = MemVfs::new();
    let db = database::open(&disk, options().seed(seed));
    for number in 0..200u64 {
        db.put((number * 7_919 % 200).to_be_bytes(), [1; 40]).unwrap();
    }
    db.put("separated", [1; 200]).unwrap();
    db.close(None).unwrap();
    disk
}

fn file(disk: &MemVfs, part: &str) -> std::path::PathBuf {
    let found = disk.paths().into_iter().find(|path| path.to_string_lossy().contains(part));
    found.unwrap()
}

#[test]
fn contradicting_options_are_named_by_the_error() {
    type Case = (fn() -> Options, [&'static str; 2]);
    let cases: [Case; 2] = [
        (
            || options().memtable_bytes_max(1_000),
            ["memtable_bytes_max = 1000", "memtable_bytes = 2048 of keyspace \"default\""],
        ),
        (
            || {
                let tuning = KeyspaceOptions::default().table_bytes(100).block_bytes(200);
                options().keyspace_defaults(tuning)
            },
            ["table_bytes = 100", "block_bytes = 200"],
        ),
    ];
    for (options, names) in cases {
        let error = refused(&MemVfs::new(), options());
        let Error::Contradiction { first, second, .. } = &error else { panic!("{error:?}") };
        assert_eq!([first.as_str(), second.as_str()], names);
        let text = error.to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
}

/// Regression test. A keyspace could be opened with `memtable_bytes` larger than `memtable_bytes_max` of the database.
#[test]
fn contradiction_of_keyspace_and_database_options_is_an_error() {
    let db = database::open(&MemVfs::new(), options().memtable_bytes_max(1 << 19));
    let error = db.keyspace("big", KeyspaceOptions::default().memtable_bytes(1 << 20)).unwrap_err();
    let Error::Contradiction { first, second, .. } = &error else { panic!("{error:?}") };
    assert_eq!(first, "memtable_bytes_max = 524288");
    assert_eq!(second, "memtable_bytes = 1048576 of keyspace \"big\"");
    assert_eq!(db.keyspaces(), ["default"]);
}

#[test]
fn option_out_of_bounds_is_named_by_the_error() {
    let tuned = |tuning: KeyspaceOptions| options().keyspace_defaults(tuning);
    let tuning = KeyspaceOptions::default;
    let amplification = |space_amplification_max| {
        let separation = ValueSeparation { space_amplification_max, ..separation() };
        tuned(tuning().value_separation(separation))
    };
    let separated = |separation| tuned(tuning().value_separation(separation));
    let cases = [
        (
            separated(ValueSeparation { threshold_bytes: 0, ..separation() }),
            "value_separation.threshold_bytes",
        ),
        (
            separated(ValueSeparation { blob_file_bytes: 10, ..separation() }),
            "value_separation.blob_file_bytes",
        ),
        (
            separated(ValueSeparation { garbage_ratio: 0.0, ..separation() }),
            "value_separation.garbage_ratio",
        ),
        (
            separated(ValueSeparation { garbage_ratio: 1.5, ..separation() }),
            "value_separation.garbage_ratio",
        ),
        (amplification(1.0), "value_separation.space_amplification_max"),
        (amplification(f64::NAN), "value_separation.space_amplification_max"),
        (options().wal_bytes_max(0), "wal_bytes_max"),
        (options().background(Background::Threads { workers: 0 }), "background"),
        (options().background(Background::Stepped { seed: 1, workers: 0 }), "background"),
        (tuned(tuning().memtable_bytes(1_023)), "memtable_bytes"),
        (tuned(tuning().block_bytes(63)), "block_bytes"),
        (tuned(tuning().restart_interval(0)), "restart_interval"),
        (tuned(tuning().compression(Vec::new())), "compression"),
        (tuned(tuning().restart_interval(4_097)), "restart_interval"),
    ];
    for (options, expected) in cases {
        match refused(&MemVfs::new(), options) {
            Error::InvalidOption { name, .. } => assert_eq!(name, expected),
            error => panic!("{error:?}"),
        }
    }
    // Invalid options of an additional keyspace are refused as well. The call neither creates nor changes a keyspace.
    let db = open(&MemVfs::new()).unwrap();
    for name in ["default", "new"] {
        let bad = tuning().compression(Compression::Lz4).block_bytes(1);
        let error = db.keyspace(name, bad).expect_err("refused");
        assert!(matches!(error, Error::InvalidOption { name: "block_bytes", .. }), "{error:?}");
    }
    assert_eq!(db.keyspaces(), ["default"]);
}

fn not_a_database(error: &Error) {
    let Error::NotADatabase { path, .. } = error else { panic!("{error:?}") };
    assert_eq!(path, Path::new("db"));
    assert!(error.to_string().contains("not a database"), "{error}");
}

#[test]
fn directory_without_a_database_is_refused_unchanged() {
    let existing = || options().create_if_missing(false);
    not_a_database(&refused(&MemVfs::new(), existing()));
    let empty = MemVfs::new();
    empty.create_dir(Path::new("db")).unwrap();
    not_a_database(&refused(&empty, existing()));
    open(&empty).expect("a database is created in an empty directory");

    let foreign = MemVfs::new();
    foreign.create_dir(Path::new("db")).unwrap();
    foreign.write_all(Path::new("db/thesis.tex"), b"years of work").unwrap();
    not_a_database(&refused(&foreign, existing()));
    not_a_database(&refused(&foreign, options()));

    let beheaded = database(1);
    beheaded.remove(Path::new("db/CURRENT")).unwrap();
    not_a_database(&refused(&beheaded, existing()));
    not_a_database(&refused(&beheaded, options()));

    let a_file = MemVfs::new();
    a_file.write_all(Path::new("db"), b"a file").unwrap();
    not_a_database(&refused(&a_file, existing()));
    not_a_database(&refused(&a_file, options()));
}

#[test]
fn missing_or_foreign_file_is_named_by_the_error() {
    for part in [".sst", ".blob", "MANIFEST", ".wal"] {
        let disk = database(1);
        let path = file(&disk, part);
        disk.remove(&path).unwrap();
        match refused(&disk, options()) {
            Error::Missing { path: missing, named_by } => {
                assert_eq!(missing, path);
                assert!(named_by.starts_with("db") && named_by != missing);
            }
            error => panic!("{part}: {error:?}"),
        }
        let (disk, other) = (database(1), database(2));
        let bytes = other.read_all(&file(&other, part)).unwrap();
        disk.write_all(&path, &bytes).unwrap();
        match refused(&disk, options()) {
            Error::Corrupt { path: foreign, .. } => assert_eq!(foreign, path),
            error => panic!("{part}: {error:?}"),
        }
    }
}

/// Sets the format version of a file to 2. Then corrects the checksum at offset `sum_at`, which covers the bytes
/// `from..sum_at`.
fn set_newer_version(disk: &MemVfs, path: &Path, version_at: usize, sum_at: usize, from: usize) {
    let mut bytes = disk.read_all(path).unwrap();
    bytes[version_at..version_at + 4].copy_from_slice(&3u32.to_le_bytes());
    let sum = xxh3_64(&bytes[from..sum_at]).to_le_bytes();
    let width = if from == 0 { 8 } else { 4 };
    bytes[sum_at..sum_at + width].copy_from_slice(&sum[..width]);
    disk.write_all(path, &bytes).unwrap();
}

#[test]
fn newer_format_version_is_refused() {
    for part in ["MANIFEST", ".wal", ".sst", "CURRENT"] {
        let disk = database(1);
        let path = file(&disk, part);
        let len = disk.read_all(&path).unwrap().len();
        match part {
            "MANIFEST" => set_newer_version(&disk, &path, 8, 32, 0),
            ".wal" => set_newer_version(&disk, &path, 8, 72, 0),
            ".sst" => set_newer_version(&disk, &path, len - 16, len - 12, len - 40),
            _ => {
                let text = String::from_utf8(disk.read_all(&path).unwrap()).unwrap();
                let (body, _) = text.split_once(" sum ").unwrap();
                let body = body.replacen("lsmx 2 ", "lsmx 3 ", 1);
                let sum = xxh3_64(body.as_bytes());
                disk.write_all(&path, format!("{body} sum {sum:016x}\n").as_bytes()).unwrap();
            }
        }
        match refused(&disk, options()) {
            Error::UnsupportedVersion { path: named, found, supported } => {
                assert_eq!((named, found, supported), (path, 3, 2));
            }
            error => panic!("{part}: {error:?}"),
        }
        let verified = verify(&disk);
        assert!(matches!(verified, Err(Error::UnsupportedVersion { .. })), "{verified:?}");
    }
}

#[test]
fn second_open_fails_with_locked() {
    let disk = MemVfs::new();
    let db = open(&disk).unwrap();
    db.put("k", "v").unwrap();
    for error in [
        refused(&disk, options()),
        refused(&disk, options().create_if_missing(false)),
        verify(&disk).expect_err("refused"),
    ] {
        let Error::Locked { path } = &error else { panic!("{error:?}") };
        assert_eq!(path, Path::new("db/LOCK"));
    }
    db.put("k", "w").unwrap();
    drop(db);
    assert_eq!(open(&disk).unwrap().get("k").unwrap().unwrap(), "w");
}

#[test]
fn lookup_without_fill_cache_does_not_cache_its_block() {
    let db = open(&database(1)).unwrap();
    let misses = || db.metrics().cache.get(&BlockKind::Data).map_or(0, |data| data.misses);
    let key = 3u64.to_be_bytes();
    let uncached = ReadOptions { fill_cache: Some(false), ..ReadOptions::default() };
    for expected in 1..=3 {
        assert!(db.default_keyspace().get_with(key, &uncached).unwrap().is_some());
        assert_eq!(misses(), expected, "an uncached lookup reads the block from storage");
    }
    for _ in 0..2 {
        assert!(db.default_keyspace().get_with(key, &ReadOptions::default()).unwrap().is_some());
        assert_eq!(misses(), 4, "the first lookup with default options caches the block");
    }
    assert!(db.default_keyspace().get_with(key, &uncached).unwrap().is_some());
    assert_eq!(misses(), 4, "an uncached lookup uses a block that is already in the cache");
}

/// Regression: the second read of the block, for the older versions of the key, cached it.
#[test]
fn lookup_of_operands_without_fill_cache_does_not_cache_their_block() {
    let db = database::open(&MemVfs::new(), options());
    let keyspace = db.keyspace("k", small().merge_operator(Append::default())).unwrap();
    keyspace.merge("k", "a").unwrap();
    // The snapshot prevents the flush from combining the operands.
    let _snapshot = db.snapshot();
    keyspace.merge("k", "b").unwrap();
    db.flush().unwrap();
    let misses = || db.metrics().cache.get(&BlockKind::Data).map_or(0, |data| data.misses);
    let uncached = ReadOptions { fill_cache: Some(false), ..ReadOptions::default() };
    let read = || {
        let before = misses();
        assert_eq!(keyspace.get_with("k", &uncached).unwrap().as_deref(), Some(&b"ab"[..]));
        misses() - before
    };
    assert_eq!(read(), read());
    assert!(read() > 0);
}

#[test]
fn set_options_changes_the_given_options_only() {
    let disk = MemVfs::new();
    let db = database::open(&disk, options());
    let keyspace = db.keyspace("k", small().merge_operator(Counter)).unwrap();
    let before = keyspace.options();
    keyspace.set_options(|options| options.memtable_bytes(9 << 10)).unwrap();
    let after = keyspace.options();
    assert_eq!((after.memtable_bytes, after.block_bytes), (9 << 10, before.block_bytes));
    assert_eq!(after.merge_operator, before.merge_operator);
    keyspace.merge("k", 1u64.to_le_bytes()).unwrap();
    assert!(keyspace.get("k").unwrap().is_some());

    // Later tables have the new options, and the policy is stored.
    keyspace.set_options(|options| options.compression(Compression::Lz4)).unwrap();
    for number in 0..2_000u32 {
        keyspace.put(number.to_be_bytes(), [1; 100]).unwrap();
    }
    keyspace.set_options(|options| options.policy(policy("tiering(T=3)"))).unwrap();
    db.flush().unwrap();
    let total = db.metrics().keyspaces["k"].total();
    assert!(total.bytes < total.entries * 80, "{total:?}");
    db.close(None).unwrap();
    let db = open(&disk).unwrap();
    let stored = db.open_keyspace("k", None).unwrap().options().policy;
    assert_eq!(stored.to_string(), "tiering(T=3)");
}

#[test]
fn set_options_refused_change_has_no_effect() {
    let db = open(&MemVfs::new()).unwrap();
    let keyspace = db.keyspace("k", small().merge_operator(Counter)).unwrap();
    let before = format!("{:?}", keyspace.options());
    let set = |change: fn(KeyspaceOptions) -> KeyspaceOptions| keyspace.set_options(change);
    let refused = set(|options| options.memtable_bytes(0));
    assert!(matches!(refused, Err(Error::InvalidOption { name: "memtable_bytes", .. })));
    let refused = set(|options| options.operand_store(SimpleStore::default()));
    assert!(matches!(refused, Err(Error::InvalidOption { name: "operand_store", .. })));
    let refused = set(|options| options.merge_operator(Append::default()));
    assert!(matches!(refused, Err(Error::Contradiction { .. })), "{refused:?}");
    assert_eq!(format!("{:?}", keyspace.options()), before);
    db.drop_keyspace("k").unwrap();
    assert!(matches!(set(|options| options), Err(Error::KeyspaceDropped { .. })));
}

#[test]
fn set_options_concurrent_changes_are_all_kept() {
    const CHANGES: u32 = 200;
    let options = options().background(Background::Threads { workers: 1 });
    let db = database::open(&MemVfs::new(), options);
    let keyspace = db.default_keyspace();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for bytes in (4_096..).take(CHANGES as usize) {
                keyspace.set_options(|options| options.memtable_bytes(bytes)).unwrap();
                assert_eq!(keyspace.options().memtable_bytes, bytes);
            }
        });
        scope.spawn(|| {
            for entries in 1..=CHANGES {
                keyspace.set_options(|options| options.restart_interval(entries)).unwrap();
                assert_eq!(keyspace.options().restart_interval, entries);
            }
        });
    });
}
