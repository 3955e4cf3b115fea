//! A missing or broken operand store closes its keyspace, and only that.

use std::sync::Arc;

use lsmx::RecoveryMode;
use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, Error, LossKind, Options, RepairOptions, repair, verify};

use super::support::seeds;
use crate::harness::missing_store::{
    Broken, DIR, STORE, merging, open, operands_wait_for_their_store, options,
};

/// A database that was killed with operands in its log.
fn killed() -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk, options()).unwrap();
    let counts = db.keyspace("counts", merging().operand_store(STORE)).unwrap();
    counts.merge("a", "1").unwrap();
    counts.put("b", "2").unwrap();
    db.flush().unwrap();
    for number in 0..40 {
        counts.with_write_options(Durability::Sync).merge("a", format!("{number}")).unwrap();
        db.default_keyspace().with_write_options(Durability::Sync).put("k", "v").unwrap();
    }
    disk.crash(CrashImage::Drop, 1)
}

fn expected() -> Vec<u8> {
    (0..40).fold(b"1".to_vec(), |value, number| [value, number.to_string().into_bytes()].concat())
}

fn shows_all(db: &Db) {
    let counts = db.keyspace("counts", merging().operand_store(STORE)).unwrap();
    assert_eq!(&*counts.get("a").unwrap().unwrap(), &*expected());
    assert_eq!(&*counts.get("b").unwrap().unwrap(), b"2");
    assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
}

#[test]
fn operand_store_missing_or_broken_operands_wait_for_it() {
    for seed in seeds(10, 150) {
        operands_wait_for_their_store(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

/// The whole open failed.
#[test]
fn operand_store_missing_other_keyspaces_work() {
    type Given = fn() -> Options;
    let ways: [(Given, bool); 2] = [(options, false), (|| options().operand_store(Broken), true)];
    for (given, has_cause) in ways {
        let disk = killed();
        let refused = |error: &Error| match error {
            Error::NoOperandStore { keyspace, store, cause } => {
                assert_eq!(error.to_string().ends_with("is broken"), has_cause, "{error}");
                keyspace == "counts" && store == STORE.name() && cause.is_some() == has_cause
            }
            _ => false,
        };
        for _ in 0..3 {
            let db = open(&disk, given()).unwrap();
            assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
            let counts = db.open_keyspace("counts", None).unwrap();
            assert!(refused(&counts.get("b").unwrap_err()));
            assert!(refused(&counts.put("b", "3").unwrap_err()));
            assert!(refused(&counts.iter().next().unwrap().unwrap_err()));
            assert!(refused(&db.keyspace("counts", merging()).unwrap_err()));
            // The log of the other keyspaces is retired, and that of this one stays.
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
        verify(DIR, &Options::default().vfs(Arc::new(disk.clone()))).unwrap();
        let db = open(&disk, options()).unwrap();
        shows_all(&db);
        assert_eq!(db.metrics().wal.kept_segments, 0);
        db.close(None).unwrap();
        shows_all(&open(&disk, options()).unwrap());
    }
}

#[test]
fn operand_store_missing_dropped_keyspace_releases_its_log() {
    let disk = killed();
    let segments = |disk: &MemVfs| {
        let paths = disk.paths().into_iter();
        paths.filter(|path| path.extension().is_some_and(|end| end == "wal")).count()
    };
    let db = open(&disk, options()).unwrap();
    let before = segments(&disk);
    db.drop_keyspace("counts").unwrap();
    db.wait_idle().unwrap();
    assert!(segments(&disk) < before, "{before}");
    assert_eq!(db.metrics().wal.kept_segments, 0);
    db.close(None).unwrap();
    assert!(
        verify(DIR, &Options::default().vfs(Arc::new(disk.clone()))).unwrap().orphans.is_empty()
    );
}

/// Kept segments are part of what is read only, copied, checked and repaired.
#[test]
fn operand_store_missing_kept_log_is_read_copied_and_repaired() {
    let disk = killed();
    open(&disk, options()).unwrap().close(None).unwrap();
    let vfs = || Arc::new(disk.clone());
    let read_only = Db::open(DIR, options().read_only(true).vfs(vfs())).unwrap();
    assert!(read_only.metrics().wal.kept_segments > 0);
    shows_all(&read_only);
    drop(read_only);

    let image = disk.crash(CrashImage::Keep, 1);
    let with_store = Options::default().vfs(Arc::new(image.clone())).operand_store(STORE);
    let report = repair(DIR, &with_store, &RepairOptions::default()).unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    shows_all(&open(&image, options()).unwrap());

    // A kept segment that is damaged or missing is an error that names it, or the end of the prefix.
    let log = disk.paths().into_iter().filter(|path| path.to_string_lossy().ends_with(".wal"));
    let kept = log.min().unwrap();
    for missing in [false, true] {
        let image = disk.crash(CrashImage::Keep, 1);
        match missing {
            true => lsmx::vfs::Vfs::remove(&image, &kept).unwrap(),
            false => image.flip_bits(&kept, 200, 1).unwrap(),
        }
        let error = verify(DIR, &Options::default().vfs(Arc::new(image.clone()))).unwrap_err();
        assert_eq!(error.path(), Some(&*kept), "{error}");
        let db = open(&image, options()).unwrap();
        let error = db.keyspace("counts", merging().operand_store(STORE)).unwrap_err();
        assert_eq!(error.path(), Some(&*kept), "{error}");
        assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
        drop(db);
        let tolerant = options().recovery(RecoveryMode::Tolerant);
        let db = open(&image, tolerant).unwrap();
        let counts = db.keyspace("counts", merging().operand_store(STORE)).unwrap();
        let value = counts.get("a").unwrap().unwrap();
        assert!(expected().starts_with(&value), "{value:?}");
    }
}

/// Without a manifest nothing says which keyspace the kept log belongs to; the log of the others is found.
#[test]
fn operand_store_missing_repair_without_manifest_keeps_the_log_of_others() {
    let disk = killed();
    let db = open(&disk, options()).unwrap();
    db.default_keyspace().with_write_options(Durability::Sync).put("late", "v").unwrap();
    let image = disk.crash(CrashImage::Drop, 1);
    drop(db);
    for path in image.paths() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            lsmx::vfs::Vfs::remove(&image, &path).unwrap();
        }
    }
    let report =
        repair(DIR, &Options::default().vfs(Arc::new(image.clone())), &RepairOptions::default())
            .unwrap();
    assert!(report.lost.iter().any(|lost| lost.what == LossKind::Commits), "{report:?}");
    let db = open(&image, options()).unwrap();
    assert_eq!(&*db.get("k").unwrap().unwrap(), b"v");
    assert_eq!(&*db.get("late").unwrap().unwrap(), b"v");
}

#[test]
fn operand_store_missing_from_the_first_checkpoint_on() {
    // Without a flush the store has no files, so that a copy needs nothing of it.
    let disk = MemVfs::new();
    let db = open(&disk, options()).unwrap();
    let counts = db.keyspace("counts", merging().operand_store(STORE)).unwrap();
    counts.with_write_options(Durability::Sync).merge("a", "1").unwrap();
    let disk = disk.crash(CrashImage::Drop, 1);
    let db = open(&disk, options()).unwrap();
    db.checkpoint("copy").unwrap();
    for dir in [DIR, "copy"] {
        let stores: [Arc<dyn OperandStoreFactory>; 1] = [Arc::new(STORE)];
        let image = disk.crash(CrashImage::Keep, 1);
        lsmx::verify(
            dir,
            &stores
                .iter()
                .cloned()
                .fold(Options::default().vfs(Arc::new(image.clone())), Options::operand_store),
        )
        .unwrap();
        let db = Db::open(dir, options().vfs(Arc::new(image))).unwrap();
        let counts = db.keyspace("counts", merging().operand_store(STORE)).unwrap();
        assert_eq!(&*counts.get("a").unwrap().unwrap(), b"1");
    }
}
