//! Guarantee 12: one owner. A killed owner does not block the next one, and a refused open changes no file.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Options, verify};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::all_stores;

use super::support::{all_kinds, file_of, kind, open, options, seeds, try_open};
use crate::harness::closing::closed_database_changes_no_file;
use crate::harness::failed_open::failed_open_leaves_no_files;

/// Names the directory that [`another_process`] is to open.
const DIR: &str = "LSMX_TEST_OWNERS_DIR";
/// How another process ends that was refused, and that was killed as an owner.
const REFUSED: i32 = 7;

/// Not a test of its own: the other process of [`guarantee_12_one_owner`].
#[test]
fn another_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    match Db::open(&dir, Options::default()) {
        Ok(db) => {
            db.default_keyspace()
                .with_write_options(Durability::Sync)
                .put("killed", "owner")
                .unwrap();
            std::process::abort();
        }
        Err(Error::Locked { path }) => {
            assert_eq!(path, Path::new(&dir).join("LOCK"));
            let beside = Db::open(&dir, Options::default().read_only(true));
            assert!(matches!(beside, Err(Error::Locked { .. })), "{beside:?}");
            std::process::exit(REFUSED);
        }
        Err(error) => panic!("{error:?}"),
    }
}

fn in_another_process(dir: &Path) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let one = ["guarantees::owners::another_process", "--exact", "--nocapture", "--test-threads=1"];
    command.args(one).env(DIR, dir);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command.status().unwrap()
}

#[test]
fn handle_dropped_after_close_changes_no_file() {
    closed_database_changes_no_file(0).unwrap();
}

/// A closed database of all kinds of files.
fn database(seed: u64) -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk);
    let mut rng = TestRng::new(seed);
    for keyspace in all_kinds(&db) {
        for n in 0..40u64 {
            let len = 10 + rng.below(90);
            keyspace.put(n.to_be_bytes(), rng.bytes(len)).unwrap();
            keyspace.merge((n / 2).to_be_bytes(), "+").unwrap();
        }
    }
    db.close(None).unwrap();
    disk
}

/// 12. A second opener, in this process or another, gets an error; a killed owner leaves nothing that blocks.
///     Opening read-only, or failing to open, changes no byte. Only "not found" means a new database; any
///     other error while looking for one is an error.
#[test]
fn guarantee_12_one_owner() {
    // On a real file system, against another process.
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let db = Db::open(&dir, Options::default()).unwrap();
    assert!(matches!(Db::open(&dir, Options::default()), Err(Error::Locked { .. })));
    assert_eq!(in_another_process(&dir).code(), Some(REFUSED));
    drop(db);
    let killed = in_another_process(&dir);
    assert!(!killed.success() && killed.code() != Some(REFUSED), "{killed:?}");
    let db = Db::open(&dir, Options::default()).unwrap();
    assert_eq!(db.get("killed").unwrap().unwrap(), "owner");

    for seed in seeds(12, 2) {
        second_openers_and_readers(seed);
        failing_openings(seed);
        failed_open_leaves_no_files(seed).unwrap();
    }
}

fn second_openers_and_readers(seed: u64) {
    let disk = database(seed);
    let db = open(&disk);
    let before = disk.snapshot_all();
    assert!(matches!(try_open(&disk), Err(Error::Locked { .. })));
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let verified = verify(
        "db",
        &all_stores()
            .iter()
            .cloned()
            .fold(Options::default().vfs(Arc::clone(&vfs)), Options::operand_store),
    );
    assert!(matches!(verified, Err(Error::Locked { .. })), "{verified:?}");
    assert!(disk.snapshot_all() == before, "a second opener has changed something");
    db.put("after", "a refusal").unwrap();
    db.sync().unwrap();
    // Killed: what is left has a log to replay, and no lock.
    let killed = disk.crash(CrashImage::Keep, seed);
    let before = killed.snapshot_all();
    let vfs: Arc<dyn Vfs> = Arc::new(killed.clone());
    let readers = [0; 2].map(|_| {
        let options = options(Background::Inline);
        Db::open("db", options.read_only(true).vfs(Arc::clone(&vfs))).unwrap()
    });
    for reader in &readers {
        assert_eq!(reader.get("after").unwrap().unwrap(), "a refusal");
        for keyspace in reader.keyspaces() {
            let keyspace = kind(reader, &keyspace).unwrap();
            assert!(keyspace.iter().all(|entry| entry.is_ok()));
        }
        assert!(matches!(reader.put("k", "v"), Err(Error::OpenedReadOnly)));
        assert!(matches!(reader.flush(), Err(Error::OpenedReadOnly)));
    }
    assert!(matches!(try_open(&killed), Err(Error::Locked { .. })), "readers keep writers out");
    drop(readers);
    assert!(killed.snapshot_all() == before, "opening read-only has changed something");
    let db = open(&killed);
    assert_eq!(db.get("after").unwrap().unwrap(), "a refusal");
}

fn failing_openings(seed: u64) {
    let mut rng = TestRng::new(seed);
    // Any doubt whether there is one is no "there is none".
    let disk = database(seed);
    let before = disk.snapshot_all();
    let asks = [VfsCall::Exists, VfsCall::Open, VfsCall::Read, VfsCall::List, VfsCall::Len];
    for errno in Errno::ALL {
        for call in asks {
            for k in 0.. {
                let copy = disk.crash(CrashImage::Keep, 0);
                let faulty = FaultVfs::new(Arc::new(copy.clone()), seed);
                faulty.add_rule(
                    FaultRule::new(Fault::Error(errno)).for_calls(&[call]).nth(k).from_then_on(),
                );
                let refused =
                    match Db::open("db", options(Background::Inline).vfs(Arc::new(faulty.clone())))
                    {
                        // The open makes fewer such calls.
                        Ok(_) if k > 0 => break,
                        refused => refused.expect_err("the first call fails"),
                    };
                assert!(
                    matches!(refused, Error::Io { .. }),
                    "{call:?} {k}, {errno:?}: {refused:?}"
                );
                assert!(file_of(&refused).starts_with("db"), "{refused:?}");
                assert!(
                    copy.snapshot_all() == before,
                    "{call:?} {k}, {errno:?}: bytes have changed"
                );
            }
        }
    }
    // Nor is a database whose files are damaged.
    for path in disk.paths() {
        let damaged = disk.crash(CrashImage::Keep, 0);
        let bytes = damaged.read_all(&path).unwrap().len() as u64;
        match rng.below(3) {
            0 => damaged.remove(&path).unwrap(),
            1 => damaged.truncate(&path, bytes / 2).unwrap(),
            _ if bytes > 0 => damaged.flip_bits(&path, rng.below(bytes), 1).unwrap(),
            _ => continue,
        }
        let before = damaged.snapshot_all();
        if let Err(error) = try_open(&damaged) {
            let after = damaged.snapshot_all();
            assert!(after == before, "{}: {error:?}, and a byte has changed", path.display());
        }
    }
}
