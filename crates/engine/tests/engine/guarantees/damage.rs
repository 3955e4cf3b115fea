//! Guarantees 10, 11 and 13: damaged files, torn logs, and files of older versions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Event, KeyspaceOptions, RecoveryMode, verify};
use lsmx_testkit::simple_store::all_stores;
use lsmx_testkit::{EventLog, TestRng};
use xxhash_rust::xxh3::xxh3_64;

use super::support::{KINDS, all_kinds, file_of, files, kind, open, options, seeds, try_open};
use crate::harness::parallel::watched;
use crate::harness::{lost_log, range_tombstones};

type Contents = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

/// A closed database with every kind of file, and what it holds.
fn database(seed: u64) -> (MemVfs, Contents) {
    let disk = MemVfs::new();
    // Another seed: another database.
    let options = options(Background::Inline).seed(seed);
    let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
    let mut rng = TestRng::new(seed);
    let mut contents = Contents::default();
    for (keyspace, contents) in all_kinds(&db).iter().zip(&mut contents) {
        for n in 0..50u64 {
            let key = (n * 7 % 50).to_be_bytes();
            let len = 10 + rng.below(90);
            let value = rng.bytes(len);
            keyspace.put(key, &value).unwrap();
            contents.insert(key.to_vec(), value);
            let key = (n % 11).to_be_bytes();
            keyspace.merge(key, "+").unwrap();
            contents.entry(key.to_vec()).or_default().push(b'+');
        }
    }
    db.close(None).unwrap();
    (disk, contents)
}

/// Whether everything that can be asked is answered rightly, or else which files each error names.
fn ask(disk: &MemVfs, contents: &Contents) -> Result<(), Vec<Vec<PathBuf>>> {
    let before = disk.snapshot_all();
    let db = match try_open(disk) {
        Ok(db) => db,
        Err(error) => {
            assert!(disk.snapshot_all() == before, "{error}: and bytes have changed");
            return Err(vec![named(&error)]);
        }
    };
    let mut wrong = Vec::new();
    for (name, contents) in KINDS.iter().zip(contents) {
        let keyspace = match kind(&db, name) {
            Ok(keyspace) => keyspace,
            Err(error) => {
                wrong.push(named(&error));
                continue;
            }
        };
        for (key, value) in contents {
            match keyspace.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..]), "[{name}] {key:?}"),
                Err(error) => wrong.push(named(&error)),
            }
        }
        let mut scan = keyspace.iter();
        let mut expected = contents.iter();
        loop {
            match (scan.next(), expected.next()) {
                (None, None) => break,
                (Some(Ok((key, value))), Some(pair)) => {
                    assert_eq!((&key[..], &value[..]), (&pair.0[..], &pair.1[..]), "[{name}]");
                }
                (Some(Err(error)), _) => {
                    wrong.push(named(&error));
                    // One that has failed keeps failing.
                    for _ in 0..3 {
                        assert!(matches!(scan.next(), Some(Err(_))), "[{name}] a scan goes on");
                        assert!(matches!(scan.next_back(), Some(Err(_))), "[{name}] backward");
                    }
                    break;
                }
                (found, expected) => panic!("[{name}] a scan has {found:?}, not {expected:?}"),
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The file that an error names, at an offset that a file can have; of a missing one also the file that
/// names it.
fn named(error: &Error) -> Vec<PathBuf> {
    if let Error::NoOperandStore { cause: Some(cause), .. } = error {
        return named(cause);
    }
    if let Error::Corrupt { offset, .. } = error {
        assert!(*offset < 1 << 30, "{error}");
    }
    // What was found and what was expected.
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| cause.to_string());
    assert!(!matches!(error, Error::Corrupt { .. }) || !cause.is_empty(), "{error}");
    let by = match error {
        Error::Missing { named_by, .. } => Some(named_by.clone()),
        _ => None,
    };
    by.into_iter().chain([file_of(error)]).collect()
}

fn extension(path: &Path) -> &str {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.rsplit_once('.').map_or(name.split('-').next().unwrap(), |(_, kind)| kind)
}

/// A scan read the range tombstones of all tables of its keyspace, so one damaged block failed every scan.
#[test]
fn range_tombstones_of_one_table_damaged_reads_elsewhere_succeed() {
    range_tombstones::damaged_range_tombstones_fail_overlapping_reads_only(0).unwrap();
}

/// A tolerant open and a repair did not report that a keyspace may have later commits than another one.
#[test]
fn keyspaces_after_damage_of_the_log_are_complete_as_reported() {
    for seed in seeds(13, 4) {
        lost_log::each_keyspace_is_complete_as_reported(seed).unwrap();
    }
}

/// Batches over two keyspaces were torn by a repair where flushes of one reached past the damage.
#[test]
fn repair_with_a_common_prefix_restores_it_or_is_refused() {
    for seed in seeds(16, 2) {
        lost_log::common_prefix_is_restored_or_refused(seed).unwrap();
    }
}

/// A dry run said that nothing is lost where the repair reported lost commits.
#[test]
fn dry_run_of_a_repair_reports_the_losses_of_the_repair() {
    for seed in seeds(14, 4) {
        lost_log::dry_run_reports_the_losses_of_the_repair(seed).unwrap();
    }
}

/// Errors about a missing segment accused the segment before it.
#[test]
fn missing_log_segment_is_named_by_errors() {
    for seed in seeds(15, 2) {
        lost_log::missing_segment_is_named(seed).unwrap();
    }
}

/// 10. Any byte of any file changed, any file cut, swapped, missing or foreign: an answer is right, or an
///     error names file, offset and what was expected. Never a wrong answer, a silent loss, a panic or a
///     hang. One iterator that has failed keeps failing.
#[test]
fn guarantee_10_damage_is_detected_or_harmless() {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for seed in seeds(10, 2) {
        let mut rng = TestRng::new(seed);
        let (disk, contents) = database(seed);
        let (foreign, _) = database(seed ^ 1);
        assert_eq!(ask(&disk.crash(CrashImage::Keep, 0), &contents), Ok(()));
        let mut sample = |disk: MemVfs, culprits: &[&PathBuf], how: &str| {
            let kind = extension(culprits[0]);
            let label = format!("seed {seed}: {} {how}", culprits[0].display());
            let answer = watched(&label, || ask(&disk, &contents));
            if let Err(wrong) = answer {
                let rightly = |files: &Vec<PathBuf>| files.iter().any(|at| culprits.contains(&at));
                let lost_current = kind == "CURRENT" && wrong == [[Path::new("db")]];
                let rightly = wrong.iter().all(rightly);
                assert!(rightly || lost_current, "{label}: the error names {wrong:?}");
                *found.entry(format!("{kind} {how}")).or_default() += 1;
            }
        };
        for (path, bytes) in disk.snapshot_all() {
            if bytes.is_empty() {
                continue;
            }
            let len = bytes.len() as u64;
            let copy = || disk.crash(CrashImage::Keep, 0);
            for _ in 0..8 {
                let damaged = copy();
                damaged.flip_bits(&path, rng.below(len), *rng.choose(&[1, 16, 128, 255])).unwrap();
                sample(damaged, &[&path], "changed");
            }
            for _ in 0..3 {
                let damaged = copy();
                damaged.truncate(&path, rng.below(len)).unwrap();
                sample(damaged, &[&path], "cut");
            }
            let damaged = copy();
            damaged.remove(&path).unwrap();
            sample(damaged, &[&path], "missing");
            let alike = |other: &PathBuf| extension(other) == extension(&path);
            for other in disk.paths().iter().filter(|other| **other != path && alike(other)).take(3)
            {
                let damaged = copy();
                damaged.write_all(&path, &disk.read_all(other).unwrap()).unwrap();
                damaged.write_all(other, &bytes).unwrap();
                sample(damaged, &[&path, other], "swapped");
            }
            for other in foreign.paths().iter().filter(|other| alike(other)).take(2) {
                let damaged = copy();
                damaged.write_all(&path, &foreign.read_all(other).unwrap()).unwrap();
                // A foreign CURRENT names what is not there.
                let manifest = disk.paths().into_iter().find(|path| extension(path) == "MANIFEST");
                sample(damaged, &[&path, &manifest.unwrap()], "foreign");
            }
        }
    }
    for kind in ["sst", "blob", "wal", "bucket", "operands", "MANIFEST", "CURRENT"] {
        for how in ["changed", "missing", "foreign"] {
            let key = format!("{kind} {how}");
            assert!(found.contains_key(&key), "no {key} file was noticed: {found:?}");
        }
    }
}

/// Synced and unsynced commits for guarantee 11.
const SYNCED: u64 = 6;
const BUFFERED: u64 = 4;
/// Bytes of the record behind a sync, which carries the mark alone.
const MARK_BYTES: u64 = 36;

fn tall_options() -> lsmx::Options {
    lsmx::Options::default().background(Background::Inline).seed(1)
}

/// The numbers from 1 on, of which there are so many.
fn count(db: &Db) -> u64 {
    let keys = db.default_keyspace().iter().map(|entry| entry.unwrap().0);
    let numbers: Vec<_> = keys.map(|key| u64::from_be_bytes(key[..].try_into().unwrap())).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "no prefix: {numbers:?}");
    numbers.len() as u64
}

/// Length of a file without the zeros by which it has grown ahead.
fn written_bytes(disk: &MemVfs, path: &Path) -> u64 {
    let bytes = disk.read_all(path).unwrap();
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

/// 11. A bad record below a sync mark is damage: an error in strict mode, and in tolerant mode a prefix with a
///     report. Everything above the highest mark is tail: cut, with a report. The log is synced and marked
///     every 8 MiB or second, and a clean close marks all.
#[test]
fn guarantee_11_torn_is_not_damaged() {
    let disk = MemVfs::new();
    let open_as = |disk: &MemVfs, mode: RecoveryMode| {
        let events = EventLog::default();
        let options = tall_options().recovery(mode).listener(Arc::new(events.clone()));
        let opened = Db::open("db", options.vfs(Arc::new(disk.clone())));
        let reports = events.select(|event| match event {
            Event::Recovery(report) => Some(Arc::clone(report)),
            _ => None,
        });
        (opened, reports.into_iter().next())
    };
    let (db, _) = open_as(&disk, RecoveryMode::Strict);
    let db = db.unwrap();
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
        let (strict, report) = open_as(&damaged.crash(CrashImage::Keep, 0), RecoveryMode::Strict);
        if offset < marked {
            let error = strict.expect_err("damage below a mark");
            assert_eq!(file_of(&error), log, "byte {offset}: {error:?}");
            let (tolerant, report) = open_as(&damaged, RecoveryMode::Tolerant);
            match tolerant {
                Ok(db) => {
                    assert!(count(&db) < SYNCED, "byte {offset}");
                    let damage = report.unwrap().damage.clone().expect("the report tells");
                    assert_eq!(file_of(&damage), log);
                }
                // Whose log this is, and of which version, is asked in every mode.
                Err(_) => assert!(offset < 80 && damaged.snapshot_all() == before),
            }
        } else {
            let (n, report) = (count(&strict.unwrap()), report.unwrap());
            assert!((SYNCED..SYNCED + BUFFERED).contains(&n), "byte {offset}: {n} are there");
            assert!(report.damage.is_none() && report.bytes_cut > 0, "byte {offset}: {report:?}");
            // The record that is bad, unless it is a mark, and those behind it.
            let lost = SYNCED + BUFFERED - n;
            assert!(
                (lost - 1..=lost).contains(&report.records_beyond),
                "byte {offset}: {report:?}"
            );
        }
    }
    // A clean close leaves nothing undecided: also what nobody synced is below a mark.
    db.close(None).unwrap();
    let log = files(&disk, ".wal").pop().unwrap();
    let bytes = disk.read_all(&log).unwrap().len() as u64;
    for offset in (0..bytes).step_by(5) {
        let damaged = disk.crash(CrashImage::Keep, 0);
        match offset % 2 {
            0 => damaged.flip_bits(&log, offset, 4).unwrap(),
            _ => damaged.truncate(&log, offset).unwrap(),
        }
        match open_as(&damaged, RecoveryMode::Strict).0 {
            Ok(db) => assert_eq!(count(&db), SYNCED + BUFFERED, "byte {offset}"),
            Err(error) => assert_eq!(file_of(&error), log, "byte {offset}: {error:?}"),
        }
    }
    marked_by_time_and_by_bytes();
}

/// So little is ever undecidable.
fn marked_by_time_and_by_bytes() {
    let disk = MemVfs::new();
    let db = Db::open("db", tall_options().vfs(Arc::new(disk.clone()))).unwrap();
    let after_power_loss = || count(&open(&disk.crash(CrashImage::Drop, 0)));
    db.put(1u64.to_be_bytes(), "").unwrap();
    assert_eq!(after_power_loss(), 0);
    db.env().advance_us(1_000_000);
    db.put(2u64.to_be_bytes(), "").unwrap();
    assert_eq!(after_power_loss(), 2, "a second has passed");
    let syncs = db.metrics().wal.syncs;
    for n in 3..=10u64 {
        db.put(n.to_be_bytes(), vec![7; 1 << 20]).unwrap();
    }
    assert_eq!(db.metrics().wal.syncs, syncs + 1, "8 MiB were written");
}

/// Files of a version that was released, put on a disk.
fn golden(dir: &str) -> MemVfs {
    let disk = MemVfs::new();
    disk.create_dir(Path::new("db")).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        #[expect(clippy::disallowed_methods, reason = "golden files belong to the repository")]
        let bytes = std::fs::read(&path).unwrap();
        disk.write_all(&Path::new("db").join(path.file_name().unwrap()), &bytes).unwrap();
    }
    disk
}

/// Puts a version into a file that nobody knows yet, with the right checksum over it.
fn of_a_later_version(disk: &MemVfs, path: &Path) {
    let mut bytes = disk.read_all(path).unwrap();
    let len = bytes.len();
    let (version_at, sum, from) = match extension(path) {
        "MANIFEST" => (8, 32..40, 0),
        "wal" => (8, 72..80, 0),
        "sst" => (len - 16, len - 12..len - 8, len - 40),
        "CURRENT" => {
            let text = String::from_utf8(bytes).unwrap();
            let (body, _) = text.split_once(" sum ").unwrap();
            let body = body.replacen("lsmx 1 ", "lsmx 9 ", 1);
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

/// 13. Every database ever written by a released version opens; an unknown newer version is refused by name.
#[test]
fn guarantee_13_formats_stay() {
    let databases = [
        // Directory, entries, and one of them.
        ("tests/golden/range-delete-v1", "default", 3, "c", &b"again"[..]),
        ("tests/golden/value-log-v1", "values", 5, "inline", &b"in the table"[..]),
        (
            "../delta/tests/golden/store-v1",
            "operands",
            54,
            "key17",
            &b" 4.27 6.8 7.29 9.10 10.31"[..],
        ),
    ];
    for (dir, kind, entries, key, value) in databases {
        let disk = golden(dir);
        let stores = all_stores();
        verify(
            "db",
            &stores.iter().cloned().fold(
                lsmx::Options::default().vfs(Arc::new(disk.clone())),
                lsmx::Options::operand_store,
            ),
        )
        .unwrap();
        for opening in 0..2u64 {
            let tuning = super::support::tuning(kind);
            let options = options(Background::Inline).keyspace_defaults(tuning);
            let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
            let own = u64::try_from(db.default_keyspace().iter().map(Result::unwrap).count());
            assert_eq!(own.unwrap(), entries + opening, "{dir}");
            let found = db.get(key).unwrap().unwrap();
            assert_eq!(&found[..], value, "{dir}");
            // It is gone on with.
            db.put(format!("zzz {opening}"), "new").unwrap();
            db.flush().unwrap();
            db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
            db.close(None).unwrap();
        }
        verify(
            "db",
            &stores
                .iter()
                .cloned()
                .fold(lsmx::Options::default().vfs(Arc::new(disk)), lsmx::Options::operand_store),
        )
        .unwrap();
    }

    let disk = MemVfs::new();
    let small = KeyspaceOptions::default().memtable_bytes(2 << 10);
    let options = || tall_options().keyspace_defaults(small.clone());
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    (0..100u64).for_each(|n| db.put(n.to_be_bytes(), [1; 40]).unwrap());
    db.close(None).unwrap();
    for path in disk.paths().iter().filter(|path| extension(path) != "LOCK") {
        let newer = disk.crash(CrashImage::Keep, 0);
        of_a_later_version(&newer, path);
        let before = newer.snapshot_all();
        let refused = Db::open("db", options().vfs(Arc::new(newer.clone()))).unwrap_err();
        let Error::UnsupportedVersion { path: named, found, .. } = &refused else {
            panic!("{}: {refused:?}", path.display());
        };
        assert_eq!((named, *found), (path, 9));
        let text = refused.to_string();
        assert!(text.contains(&*path.to_string_lossy()) && text.contains("version 9"), "{text}");
        assert!(newer.snapshot_all() == before);
    }
}
