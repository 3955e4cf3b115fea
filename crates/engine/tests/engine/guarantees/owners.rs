//! Guarantee 12: a database has one owner. A killed owner holds no lock, and a rejected open changes no file.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, Options};
use lsmx_testkit::TestRng;

use crate::harness::oracle;
use crate::harness::small_database::{
    file_of, open, open_kind, open_kinds, open_with, options, seeds, try_open,
};

/// Environment variable with the directory that the test [`another_process`] opens.
const DIR: &str = "LSMX_TEST_OWNERS_DIR";
/// Exit code of a process that could not open the database because it was locked.
const REFUSED: i32 = 7;

/// This test runs in the child process of [`guarantee_12_second_process_is_refused`].
#[test]
fn another_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    match Db::open(&dir, Options::default()) {
        Ok(db) => {
            let keyspace = db.default_keyspace().with_write_options(Durability::Sync);
            keyspace.put("killed", "owner").unwrap();
            std::process::abort();
        }
        Err(Error::Locked { path }) => {
            assert_eq!(path, Path::new(&dir).join("LOCK"));
            let read_only = Db::open(&dir, Options::default().read_only(true));
            assert!(matches!(read_only, Err(Error::Locked { .. })), "{read_only:?}");
            std::process::exit(REFUSED);
        }
        Err(error) => panic!("{error:?}"),
    }
}

fn run_another_process(dir: &Path) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "guarantees::owners::another_process";
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(DIR, dir);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

/// Guarantee 12: a second open of a database fails, in the same process and in another process. If the owner is killed,
/// the next open succeeds.
#[test]
fn guarantee_12_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let db = Db::open(&dir, Options::default()).unwrap();
    assert!(matches!(Db::open(&dir, Options::default()), Err(Error::Locked { .. })));
    assert_eq!(run_another_process(&dir).code(), Some(REFUSED));
    drop(db);
    let killed = run_another_process(&dir);
    assert!(!killed.success() && killed.code() != Some(REFUSED), "{killed:?}");
    let db = Db::open(&dir, Options::default()).unwrap();
    assert_eq!(db.get("killed").unwrap().unwrap(), "owner");
}

fn closed_database(seed: u64) -> MemVfs {
    let disk = MemVfs::new();
    let db = open(&disk);
    let mut rng = TestRng::new(seed);
    for keyspace in open_kinds(&db) {
        for n in 0..40u64 {
            let len = 10 + rng.below(90);
            keyspace.put(n.to_be_bytes(), rng.bytes(len)).unwrap();
            keyspace.merge((n / 2).to_be_bytes(), "+").unwrap();
        }
    }
    db.close(None).unwrap();
    disk
}

/// Guarantee 12: a rejected open and a read-only open change no byte of the files.
#[test]
fn guarantee_12_refused_and_read_only_opens_change_nothing() {
    for seed in seeds(12, 2) {
        let disk = closed_database(seed);
        let db = open(&disk);
        let before = disk.snapshot_all();
        assert!(matches!(try_open(&disk), Err(Error::Locked { .. })));
        let verified = oracle::verify(&disk);
        assert!(matches!(verified, Err(Error::Locked { .. })), "{verified:?}");
        assert!(disk.snapshot_all() == before, "a second opener changed a file");
        db.put("after", "a refusal").unwrap();
        db.sync().unwrap();
        // The disk of a killed process has a log to replay and is not locked.
        let killed = disk.crash(CrashImage::Keep, seed);
        let before = killed.snapshot_all();
        let readers = [0; 2]
            .map(|_| open_with(&killed, options(Background::Inline).read_only(true)).unwrap());
        for reader in &readers {
            assert_eq!(reader.get("after").unwrap().unwrap(), "a refusal");
            for keyspace in reader.keyspaces() {
                let keyspace = open_kind(reader, &keyspace).unwrap();
                assert!(keyspace.iter().all(|entry| entry.is_ok()));
            }
            assert!(matches!(reader.put("k", "v"), Err(Error::OpenedReadOnly)));
            assert!(matches!(reader.flush(), Err(Error::OpenedReadOnly)));
        }
        assert!(matches!(try_open(&killed), Err(Error::Locked { .. })), "readers hold no lock");
        drop(readers);
        assert!(killed.snapshot_all() == before, "a read-only open changed a file");
        assert_eq!(open(&killed).get("after").unwrap().unwrap(), "a refusal");
    }
}

/// Guarantee 12: if a file system call that reads or lists files fails, the open fails and changes no byte. Only a "not
/// found" error means that the directory contains no database.
#[test]
fn guarantee_12_failed_open_changes_nothing() {
    let calls = [VfsCall::Exists, VfsCall::Open, VfsCall::Read, VfsCall::List, VfsCall::Len];
    for seed in seeds(12, 2) {
        let disk = closed_database(seed);
        let before = disk.snapshot_all();
        for (errno, call) in Errno::ALL.into_iter().flat_map(|errno| calls.map(|it| (errno, it))) {
            for k in 0.. {
                let copy = disk.crash(CrashImage::Keep, 0);
                let faults = FaultVfs::new(Arc::new(copy.clone()), seed);
                let rule = FaultRule::new(Fault::Error(errno)).for_calls(&[call]).nth(k);
                faults.add_rule(rule.from_then_on());
                let refused = match open_with(&faults, options(Background::Inline)) {
                    // The open made at most `k` such calls, so no call failed.
                    Ok(_) if k > 0 => break,
                    refused => refused.expect_err("the first call fails"),
                };
                let when = format!("{call:?} {k}, {errno:?}: {refused:?}");
                assert!(matches!(refused, Error::Io { .. }), "{when}");
                assert!(file_of(&refused).starts_with("db"), "{when}");
                assert!(copy.snapshot_all() == before, "{when}: a file changed");
            }
        }
    }
}
