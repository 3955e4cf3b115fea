//! Guarantee 16: a missing or broken operand store affects its own keyspace only.

use std::path::Path;
use std::sync::Arc;

use lsmx::RecoveryMode;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, Durability, Error, LossKind, Options, RepairOptions, repair};

use crate::harness::missing_store::{Broken, STORE, merging, open_counts, options};
use crate::harness::oracle::{DIR, verify};
use crate::harness::small_database::{files, open_with};

fn open(disk: &MemVfs) -> Db {
    open_with(disk, options()).unwrap()
}

/// Returns the disk of a killed process, with merge operands in the log.
fn killed() -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk);
    let counts = open_counts(&db);
    counts.merge("a", "1").unwrap();
    counts.put("b", "2").unwrap();
    db.flush().unwrap();
    let (counts, main) = (counts.with_write_options(Durability::Sync), db.default_keyspace());
    for number in 0..40 {
        counts.merge("a", format!("{number}")).unwrap();
        main.with_write_options(Durability::Sync).put("k", "v").unwrap();
    }
    disk.crash(CrashImage::Drop, 1)
}

fn expected() -> Vec<u8> {
    (0..40).fold(b"1".to_vec(), |value, number| [value, number.to_string().into_bytes()].concat())
}

/// Checks all values in the database that [`killed`] returns.
fn check_all(db: &Db) {
    let counts = open_counts(db);
    assert_eq!(&*counts.get("a").unwrap().unwrap(), &*expected());
    assert_eq!(&*counts.get("b").unwrap().unwrap(), b"2");
    assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
}

/// Regression: `Db::open` failed if one operand store was missing.
#[test]
fn operand_store_missing_or_broken_other_keyspaces_work() {
    for is_broken in [false, true] {
        let disk = killed();
        let is_refusal = |error: &Error| match error {
            Error::NoOperandStore { keyspace, store, cause } => {
                assert_eq!(error.to_string().ends_with("is broken"), is_broken, "{error}");
                keyspace == "counts" && store == STORE.name() && cause.is_some() == is_broken
            }
            _ => false,
        };
        for _ in 0..3 {
            let given = if is_broken { options().operand_store(Broken) } else { options() };
            let db = open_with(&disk, given).unwrap();
            assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
            let counts = db.open_keyspace("counts", None).unwrap();
            assert!(is_refusal(&counts.get("b").unwrap_err()));
            assert!(is_refusal(&counts.put("b", "3").unwrap_err()));
            assert!(is_refusal(&counts.iter().next().unwrap().unwrap_err()));
            assert!(is_refusal(&db.keyspace("counts", merging()).unwrap_err()));
            // Flushes remove all log segments without commits to the keyspace `counts`.
            for number in 0..400u32 {
                db.put(number.to_be_bytes(), [0; 100]).unwrap();
            }
            db.flush().unwrap();
            let metrics = db.metrics();
            assert!(metrics.wal.live_bytes < 16 << 10, "{:?}", metrics.wal);
            assert!(metrics.wal.kept_segments > 0 && metrics.wal.kept_bytes > 0);
            assert_eq!(metrics.disk.log_bytes, metrics.wal.live_bytes + metrics.wal.kept_bytes);
            db.close(None).unwrap();
        }
        verify(&disk).unwrap();
        let db = open(&disk);
        check_all(&db);
        assert_eq!(db.metrics().wal.kept_segments, 0);
        db.close(None).unwrap();
        check_all(&open(&disk));
    }
}

/// Regression: a failed replay of the kept log left the new files of the operand store behind until the next open.
#[test]
fn operand_store_available_again_failed_replay_leaves_no_files() {
    let disk = MemVfs::new();
    let large = merging().memtable_bytes(1 << 20).operand_store(STORE);
    let counts = open(&disk).keyspace("counts", large).unwrap();
    counts.put("b", "2").unwrap();
    counts.merge("a", "1").unwrap();
    let synced = counts.with_write_options(Durability::Sync);
    for number in 0..40 {
        synced.merge("a", format!("{number}")).unwrap();
    }
    let disk = disk.crash(CrashImage::Drop, 1);
    let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
    let db = open_with(&faults, options()).unwrap();
    db.put("k", "v").unwrap();
    let before = files(&disk, ".operands");
    let writes = [VfsCall::Create, VfsCall::Append, VfsCall::Sync];
    let mut failures = 0;
    loop {
        faults.clear_rules();
        let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&writes).nth(failures);
        // After a failed write of the log or the manifest, the database would be read-only.
        let is_of_replay = |path: &Path| {
            let suffix = path.extension().and_then(|suffix| suffix.to_str());
            matches!(suffix, Some("operands" | "sst"))
        };
        faults.add_rule(rule.path_where(is_of_replay));
        let Err(error) = db.keyspace("counts", merging().operand_store(STORE)) else { break };
        failures += 1;
        db.wait_idle().unwrap();
        assert_eq!(files(&disk, ".operands"), before, "failure {failures}: {error}");
    }
    faults.clear_rules();
    // The replay needs several flushes. A fault in the second flush leaves the files of the first.
    assert!(failures > 5, "{failures} calls have failed");
    check_all(&db);
    db.close(None).unwrap();
    assert!(verify(&disk).unwrap().orphans.is_empty());
}

#[test]
fn operand_store_missing_dropped_keyspace_releases_its_log() {
    let disk = killed();
    let db = open(&disk);
    let before = files(&disk, ".wal").len();
    db.drop_keyspace("counts").unwrap();
    db.wait_idle().unwrap();
    assert!(files(&disk, ".wal").len() < before, "{before} segments before");
    assert_eq!(db.metrics().wal.kept_segments, 0);
    db.close(None).unwrap();
    assert!(verify(&disk).unwrap().orphans.is_empty());
}

/// Read-only opens, checkpoints, `verify` and `repair` process the log segments that wait for a missing operand store.
#[test]
fn operand_store_missing_kept_log_is_read_copied_and_repaired() {
    let disk = killed();
    open(&disk).close(None).unwrap();
    let read_only = open_with(&disk, options().read_only(true)).unwrap();
    assert!(read_only.metrics().wal.kept_segments > 0);
    check_all(&read_only);
    drop(read_only);

    let image = disk.crash(CrashImage::Keep, 1);
    let with_store = Options::default().vfs(Arc::new(image.clone())).operand_store(STORE);
    let report = repair(DIR, &with_store, &RepairOptions::default()).unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    check_all(&open(&image));

    // If a log segment that waits for an operand store is damaged or missing, a strict open names it. A tolerant open
    // recovers the commits before the damage.
    let kept = files(&disk, ".wal").remove(0);
    for missing in [false, true] {
        let image = disk.crash(CrashImage::Keep, 1);
        match missing {
            true => image.remove(&kept).unwrap(),
            false => image.flip_bits(&kept, 200, 1).unwrap(),
        }
        let error = verify(&image).unwrap_err();
        assert_eq!(error.path(), Some(&*kept), "{error}");
        let db = open(&image);
        let error = db.keyspace("counts", merging().operand_store(STORE)).unwrap_err();
        assert_eq!(error.path(), Some(&*kept), "{error}");
        assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
        drop(db);
        let db = open_with(&image, options().recovery(RecoveryMode::Tolerant)).unwrap();
        let value = open_counts(&db).get("a").unwrap().unwrap();
        assert!(expected().starts_with(&value), "{value:?}");
    }
}

/// Regression: a repair of the log removed the kept log of a store without files, although the new manifest listed it.
#[test]
fn operand_store_missing_repaired_log_keeps_kept_log() {
    let disk = MemVfs::new();
    let db = open(&disk);
    open_counts(&db).with_write_options(Durability::Sync).merge("a", "1").unwrap();
    let disk = disk.crash(CrashImage::Drop, 1);
    drop(db);
    let db = open(&disk);
    for _ in 0..3 {
        db.default_keyspace().with_write_options(Durability::Sync).put("k", [0; 100]).unwrap();
    }
    let disk = disk.crash(CrashImage::Drop, 1);
    drop(db);
    let newest = files(&disk, ".wal").pop().unwrap();
    disk.flip_bits(&newest, 100, 1).unwrap();

    let image = Arc::new(disk.crash(CrashImage::Keep, 1));
    let without_store = Options::default().vfs(image.clone());
    let error = repair(DIR, &without_store, &RepairOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NoOperandStore { .. }), "{error}");
    let report =
        repair(DIR, &without_store.clone().operand_store(Broken), &RepairOptions::default())
            .unwrap();
    assert!(report.lost.iter().any(|lost| lost.what == LossKind::Commits), "{report:?}");
    lsmx::verify(DIR, &without_store.operand_store(STORE)).unwrap();
    let db = open(&image);
    assert_eq!(&*open_counts(&db).get("a").unwrap().unwrap(), b"1");
}

/// Only the manifest records which log segments a keyspace needs. Without a manifest, a repair recovers all keyspaces
/// except the one with the missing operand store.
#[test]
fn operand_store_missing_repair_without_manifest_keeps_log_of_others() {
    let disk = killed();
    let db = open(&disk);
    db.default_keyspace().with_write_options(Durability::Sync).put("late", "v").unwrap();
    let image = disk.crash(CrashImage::Drop, 1);
    drop(db);
    for path in image.paths() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            image.remove(&path).unwrap();
        }
    }
    let without_store = Options::default().vfs(Arc::new(image.clone()));
    let report = repair(DIR, &without_store, &RepairOptions::default()).unwrap();
    assert!(report.lost.iter().any(|lost| lost.what == LossKind::Commits), "{report:?}");
    let db = open(&image);
    for key in ["k", "late"] {
        assert_eq!(&*db.get(key).unwrap().unwrap(), b"v");
    }
}

/// Before its first flush, an operand store has no files. A checkpoint of the database then succeeds although the store
/// is missing.
#[test]
fn operand_store_missing_checkpoint_before_first_flush_has_operands() {
    let disk = MemVfs::new();
    let db = open(&disk);
    open_counts(&db).with_write_options(Durability::Sync).merge("a", "1").unwrap();
    let disk = disk.crash(CrashImage::Drop, 1);
    let db = open(&disk);
    db.checkpoint("copy").unwrap();
    for dir in [DIR, "copy"] {
        let image = Arc::new(disk.crash(CrashImage::Keep, 1));
        let with_store = Options::default().vfs(Arc::clone(&image) as Arc<dyn Vfs>);
        lsmx::verify(dir, &with_store.operand_store(STORE)).unwrap();
        let db = Db::open(dir, options().vfs(image)).unwrap();
        assert_eq!(&*open_counts(&db).get("a").unwrap().unwrap(), b"1");
    }
}
