//! Guarantees 11 and 13: torn logs and old file formats. `tests/resources/corruption.rs` tests guarantee 10.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::wal::RecoveryReport;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Event, KeyspaceOptions, Options, RecoveryMode};
use lsmx_testkit::EventLog;
use lsmx_testkit::simple_store::all_stores;
use xxhash_rust::xxh3::xxh3_64;

use crate::harness::golden::golden;
use crate::harness::oracle::verify;
use crate::harness::small_database::{file_of, files, keyspace_options, open, open_with, options};

/// Number of synced commits. `BUFFERED` unsynced commits follow.
const SYNCED: u64 = 6;
const BUFFERED: u64 = 4;
/// Length of a sync mark in bytes. Each sync appends a sync mark to the log as a separate record.
const MARK_BYTES: u64 = 36;

/// Returns options with log segments so large that a test writes one segment only.
fn large_options() -> Options {
    Options::default().background(Background::Inline).seed(1)
}

/// Returns the number of keys. Asserts that the keys are the consecutive numbers from 1.
fn count_keys(db: &Db) -> u64 {
    let keys = db.default_keyspace().iter().map(|entry| entry.unwrap().0);
    let numbers: Vec<_> = keys.map(|key| u64::from_be_bytes(key[..].try_into().unwrap())).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "not a prefix: {numbers:?}");
    numbers.len() as u64
}

/// Returns the length of a file without the preallocated zeros at its end.
fn written_bytes(disk: &MemVfs, path: &Path) -> u64 {
    let bytes = disk.read_all(path).unwrap();
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

/// Opens a database. Returns the result and the recovery report.
fn open_mode(disk: &MemVfs, mode: RecoveryMode) -> (lsmx::Result<Db>, Option<Arc<RecoveryReport>>) {
    let events = EventLog::default();
    let options = large_options().recovery(mode).listener(Arc::new(events.clone()));
    let opened = open_with(disk, options);
    let reports = events.select(|event| match event {
        Event::Recovery(report) => Some(Arc::clone(report)),
        _ => None,
    });
    (opened, reports.into_iter().next())
}

/// Guarantee 11: an invalid record below a sync mark is damage. A strict open returns an error. A tolerant open
/// recovers the commits before the damage and reports it. Invalid records above the highest sync mark are the torn
/// tail, which recovery cuts and reports.
#[test]
fn guarantee_11_torn_tail_is_not_damage() {
    let disk = MemVfs::new();
    let db = open_mode(&disk, RecoveryMode::Strict).0.unwrap();
    let put = |n: u64, durability| {
        db.default_keyspace().with_write_options(durability).put(n.to_be_bytes(), [7; 30]).unwrap();
    };
    (1..=SYNCED).for_each(|n| put(n, Durability::Sync));
    let log = files(&disk, ".wal").remove(0);
    let marked = written_bytes(&disk, &log) - MARK_BYTES;
    (SYNCED + 1..=SYNCED + BUFFERED).for_each(|n| put(n, Durability::Buffered));
    let killed = disk.crash(CrashImage::Keep, 0);
    for offset in (0..written_bytes(&killed, &log)).step_by(5) {
        let damaged = killed.crash(CrashImage::Keep, 0);
        damaged.flip_bits(&log, offset, 4).unwrap();
        let before = damaged.snapshot_all();
        let (strict, report) = open_mode(&damaged.crash(CrashImage::Keep, 0), RecoveryMode::Strict);
        if offset < marked {
            let error = strict.expect_err("damage below a mark");
            assert_eq!(file_of(&error), log, "byte {offset}: {error:?}");
            let (tolerant, report) = open_mode(&damaged, RecoveryMode::Tolerant);
            match tolerant {
                Ok(db) => {
                    assert!(count_keys(&db) < SYNCED, "byte {offset}");
                    let damage = report.unwrap().damage.clone().expect("no damage is reported");
                    assert_eq!(file_of(&damage), log);
                }
                // Tolerant mode also rejects a header with an invalid uid or version.
                Err(_) => assert!(offset < 80 && damaged.snapshot_all() == before),
            }
        } else {
            let (n, report) = (count_keys(&strict.unwrap()), report.unwrap());
            let when = format!("byte {offset}, {n} keys: {report:?}");
            assert!((SYNCED..SYNCED + BUFFERED).contains(&n), "{when}");
            assert!(report.damage.is_none() && report.bytes_cut > 0, "{when}");
            // The records from the changed byte on are lost. The first of them may be a sync mark instead of a commit.
            let lost = SYNCED + BUFFERED - n;
            assert!((lost - 1..=lost).contains(&report.records_beyond), "{when}");
        }
    }
    // After a clean close, the whole log lies below a sync mark.
    db.close(None).unwrap();
    let log = files(&disk, ".wal").pop().unwrap();
    let bytes = disk.read_all(&log).unwrap().len() as u64;
    for offset in (0..bytes).step_by(5) {
        let damaged = disk.crash(CrashImage::Keep, 0);
        match offset % 2 {
            0 => damaged.flip_bits(&log, offset, 4).unwrap(),
            _ => damaged.truncate(&log, offset).unwrap(),
        }
        match open_mode(&damaged, RecoveryMode::Strict).0 {
            Ok(db) => assert_eq!(count_keys(&db), SYNCED + BUFFERED, "byte {offset}"),
            Err(error) => assert_eq!(file_of(&error), log, "byte {offset}: {error:?}"),
        }
    }
}

/// Guarantee 11: the engine syncs the log and appends a sync mark after each second and each 8 MiB. The number of bytes
/// above the highest sync mark is therefore limited.
#[test]
fn guarantee_11_log_is_marked_by_time_and_bytes() {
    let disk = MemVfs::new();
    let db = open_with(&disk, large_options()).unwrap();
    let count_after_power_loss = || count_keys(&open(&disk.crash(CrashImage::Drop, 0)));
    db.put(1u64.to_be_bytes(), "").unwrap();
    assert_eq!(count_after_power_loss(), 0);
    db.env().advance_us(1_000_000);
    db.put(2u64.to_be_bytes(), "").unwrap();
    assert_eq!(count_after_power_loss(), 2, "after a second");
    let syncs = db.metrics().wal.syncs;
    for n in 3..=10u64 {
        db.put(n.to_be_bytes(), vec![7; 1 << 20]).unwrap();
    }
    assert_eq!(db.metrics().wal.syncs, syncs + 1, "after 8 MiB");
}

fn extension(path: &Path) -> &str {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.rsplit_once('.').map_or(name.split('-').next().unwrap(), |(_, kind)| kind)
}

/// Returns the directories of all golden databases.
///
/// # Panics
/// If one of them is missing or not listed here.
fn golden_databases() -> Vec<PathBuf> {
    const NAMES: [&str; 8] = [
        "database-v2",
        "database-v2-expiring-bytes",
        "database-v2-keyspaces",
        "range-delete-v1",
        "store-v1",
        "value-log-v1",
        "value-log-v2",
        "value-log-v2-expiring-bytes",
    ];
    /// Logs that `golden_log.rs` reads. Their manifests name tables that do not exist.
    const LOGS: [&str; 3] = ["log-v1", "log-v2", "log-v2-marks"];
    let mut found = Vec::new();
    for parent in ["tests/golden", "../delta/tests/golden"] {
        let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join(parent);
        let paths = std::fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path());
        found.extend(paths.filter(|path| path.join("CURRENT").exists()));
    }
    found.retain(|path| !LOGS.iter().any(|log| path.ends_with(log)));
    found.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    assert!(found.iter().map(|path| path.file_name().unwrap()).eq(NAMES), "{found:?}");
    found
}

/// Returns a disk with a copy of a golden database.
fn golden_disk(dir: &Path) -> MemVfs {
    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        #[expect(clippy::disallowed_methods, reason = "golden files are no user data")]
        let bytes = std::fs::read(&path).unwrap();
        disk.write_all(&Path::new("db").join(path.file_name().unwrap()), &bytes).unwrap();
    }
    disk
}

/// Returns one line per entry: keyspace, key, size and hash of the value. Leaves out keys that start with [`NEW_KEY`].
fn contents(db: &Db) -> String {
    let mut lines = String::new();
    for name in db.keyspaces() {
        for entry in db.open_keyspace(&name, None).unwrap().iter() {
            let (key, value) = entry.unwrap();
            if !key.starts_with(NEW_KEY.as_bytes()) {
                let (key, bytes, hash) = (key.escape_ascii(), value.len(), xxh3_64(&value));
                lines += &format!("{name}: {key} {bytes} {hash:016x}\n");
            }
        }
    }
    lines
}

/// Start of the keys that the test puts into golden databases.
const NEW_KEY: &str = "zzz";

/// Sets the version in a file to an unknown version and corrects the checksum.
fn set_unknown_version(disk: &MemVfs, path: &Path) {
    let mut bytes = disk.read_all(path).unwrap();
    let len = bytes.len();
    let (version_at, sum, from) = match extension(path) {
        "MANIFEST" => (8, 32..40, 0),
        "wal" => (8, 72..80, 0),
        "sst" => (len - 16, len - 12..len - 8, len - 40),
        "CURRENT" => {
            let text = String::from_utf8(bytes).unwrap();
            let (body, _) = text.split_once(" sum ").unwrap();
            let body = body.replacen("lsmx 2 ", "lsmx 9 ", 1);
            let sum = xxh3_64(body.as_bytes());
            disk.write_all(path, format!("{body} sum {sum:016x}\n").as_bytes()).unwrap();
            return;
        }
        kind => panic!("{kind}"),
    };
    bytes[version_at..version_at + 4].copy_from_slice(&9u32.to_le_bytes());
    let right = xxh3_64(&bytes[from..sum.start]).to_le_bytes();
    let width = sum.len();
    bytes[sum].copy_from_slice(&right[..width]);
    disk.write_all(path, &bytes).unwrap();
}

/// Guarantee 13: every database that a released version wrote can be opened and written. The expected contents of each
/// golden database are in a file with its name.
#[test]
fn guarantee_13_released_formats_open() {
    let options = || {
        let options = options(Background::Inline).keyspace_defaults(keyspace_options("values"));
        all_stores().into_iter().fold(options, Options::operand_store)
    };
    for dir in golden_databases() {
        let name = dir.file_name().unwrap().to_str().unwrap();
        let disk = golden_disk(&dir);
        verify(&disk).unwrap();
        let before = disk.snapshot_all();
        let db = open_with(&disk, options().read_only(true)).unwrap();
        let found = contents(&db);
        let expected = golden(&format!("{name}.contents"), || found.clone().into_bytes());
        let expected = String::from_utf8(expected).unwrap();
        assert_eq!(found, expected, "{name}");
        db.close(None).unwrap();
        drop(db);
        assert!(disk.snapshot_all() == before, "{name}: a read-only open changed a file");
        for opening in 0..2 {
            let db = open_with(&disk, options()).unwrap();
            for keyspace in db.keyspaces() {
                let keyspace = db.keyspace(&keyspace, keyspace_options("values")).unwrap();
                assert_eq!(keyspace.prefix(NEW_KEY).count(), opening, "{name}");
                keyspace.put(format!("{NEW_KEY} {opening}"), "new").unwrap();
            }
            assert_eq!(contents(&db), expected, "{name}");
            db.flush().unwrap();
            for keyspace in db.keyspaces() {
                let keyspace = db.open_keyspace(&keyspace, None).unwrap();
                keyspace.compact_range::<&[u8]>(..).unwrap();
            }
            assert_eq!(contents(&db), expected, "{name} after compactions");
            db.close(None).unwrap();
            let current = disk.read_all(Path::new("db/CURRENT")).unwrap();
            assert!(current.starts_with(b"lsmx 2 "), "{name}");
        }
        verify(&disk).unwrap();
    }
}

/// Guarantee 13: an open rejects a file of an unknown version with an error that names the file and the version.
#[test]
fn guarantee_13_unknown_version_is_refused() {
    let disk = MemVfs::new();
    let small = KeyspaceOptions::default().memtable_bytes(2 << 10);
    let options = || large_options().keyspace_defaults(small.clone());
    let db = open_with(&disk, options()).unwrap();
    (0..100u64).for_each(|n| db.put(n.to_be_bytes(), [1; 40]).unwrap());
    db.close(None).unwrap();
    for path in disk.paths().iter().filter(|path| extension(path) != "LOCK") {
        let newer = disk.crash(CrashImage::Keep, 0);
        set_unknown_version(&newer, path);
        let before = newer.snapshot_all();
        let refused = open_with(&newer, options()).unwrap_err();
        let Error::UnsupportedVersion { path: named, found, .. } = &refused else {
            panic!("{}: {refused:?}", path.display());
        };
        assert_eq!((named, *found), (path, 9));
        let text = refused.to_string();
        assert!(text.contains(&*path.to_string_lossy()) && text.contains("version 9"), "{text}");
        assert!(newer.snapshot_all() == before);
    }
}
