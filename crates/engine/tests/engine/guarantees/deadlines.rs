//! Guarantee 15: a call with a deadline returns in time, whichever device call hangs.

use std::path::Path;
use std::sync::Arc;

use super::hanging::use_everything;
use super::support::{options, seeds};
use crate::harness::gate::{
    Gate, SHORT, close_keeps_deadline, each, follower_keeps_deadline, nth, returns_while_blocked,
};
use crate::harness::parallel::watched;
use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::{Db, Durability, Error};
use lsmx_testkit::TestRng;

const THREADS: Background = Background::Threads { workers: 1 };

fn open(disk: &FaultVfs) -> lsmx::Result<Db> {
    Db::open("db", options(THREADS).vfs(Arc::new(disk.clone())))
}

fn open_when_unlocked(disk: &FaultVfs) -> Db {
    loop {
        match open(disk) {
            Ok(db) => return db,
            Err(Error::Locked { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes each call that has a form with a deadline; returns the results by name.
fn call_all(db: &Db) -> Vec<(&'static str, lsmx::Result<()>)> {
    let db = db.with_deadline(SHORT);
    let keyspace = db.default_keyspace().with_write_options(SHORT);
    vec![
        ("sync", db.sync()),
        ("flush", db.flush()),
        ("wait_idle", db.wait_idle()),
        ("checkpoint", db.checkpoint("late")),
        ("compact_range", keyspace.compact_range::<&[u8]>(..)),
        ("resume", db.resume()),
    ]
}

/// 15. Whichever device call hangs, each call with a deadline returns. After a close whose deadline has passed
///     every call is refused, and the lock becomes free when the device call returns.
#[test]
fn deadline_any_device_call_hangs_is_kept() {
    let (mut hangs, mut k) = (0, 0);
    let mut rng = TestRng::new(seeds(15, 2).nth(1).unwrap());
    loop {
        k += 1 + rng.below(30);
        let gate = Gate::default();
        let disk = gate.disk(nth(u64::MAX), "");
        let db = open(&disk).unwrap();
        disk.add_rule(nth(k));
        gate.shut();
        std::thread::scope(|scope| {
            // It fails when the database is closed.
            let worker = scope.spawn(|| use_everything(&db));
            while gate.blocked().is_none() && !worker.is_finished() {
                std::thread::yield_now();
            }
            let Some(call) = gate.blocked() else { return };
            hangs += 1;
            watched(&format!("a call with a deadline during {call} (call {k})"), || {
                call_all(&db);
                if let Err(Error::Deadline { .. }) = db.close(Some(SHORT)) {
                    assert!(matches!(db.put("key", "value"), Err(Error::Closed)));
                    assert!(matches!(db.get("key"), Err(Error::Closed)));
                }
            });
            gate.open();
        });
        if gate.blocked().is_none() {
            // The close at the end of the scope may make the chosen call.
            gate.open();
            break;
        }
        watched("the end of a close", || drop(open_when_unlocked(&disk)));
    }
    assert!(hangs > 5, "{hangs} calls only");
}

/// 15. A close keeps its deadline while a keyspace is being created, and frees the lock by itself afterwards.
#[test]
fn close_keyspace_creation_hangs_keeps_deadline() {
    watched("a close", || close_keeps_deadline().unwrap());
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], "MANIFEST"), "");
    let db = open(&disk).unwrap();
    db.put("key", "value").unwrap();
    let hanging = || drop(db.keyspace("new", super::support::tuning("new")));
    let locked = returns_while_blocked(&gate, hanging, || {
        let closed = db.close(Some(SHORT));
        assert!(matches!(closed, Err(Error::Deadline { .. })), "{closed:?}");
        open(&disk).map(drop)
    });
    assert!(matches!(locked, Ok(Err(Error::Locked { .. }))), "{locked:?}");
    // The old handle is still there, and nothing else is done with it.
    watched("the end of a close", || {
        assert_eq!(open_when_unlocked(&disk).get("key").unwrap().as_deref(), Some(&b"value"[..]));
    });
}

/// 15. Calls keep their deadlines while the sync of another commit hangs.
#[test]
fn deadline_commit_hangs_is_kept() {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], ".wal"), "");
    let db = open(&disk).unwrap();
    let hanging =
        || drop(db.default_keyspace().with_write_options(Durability::Sync).put("key", "value"));
    let results = returns_while_blocked(&gate, hanging, || call_all(&db)).unwrap();
    for (name, result) in results {
        // There is nothing to wait for, and nothing to resume.
        let free = ["wait_idle", "resume"].contains(&name);
        let late = matches!(result, Err(Error::Deadline { .. }));
        assert_eq!(late, !free, "{name}: {result:?}");
    }
    assert!(!disk_has(&disk, "late/CURRENT"));
    db.close(None).unwrap();
}

fn disk_has(disk: &FaultVfs, path: &str) -> bool {
    use lsmx::vfs::Vfs;
    disk.exists(Path::new(path)).unwrap()
}

/// 15. A call keeps its deadline while the device call that it needs itself hangs, and the next one succeeds.
#[test]
fn deadline_own_device_call_hangs_is_kept() {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], ".wal"), "");
    let db = open(&disk).unwrap();
    db.put("key", "value").unwrap();
    gate.shut();
    watched("a sync", || {
        let late = db.with_deadline(SHORT).sync();
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    });
    gate.open();
    db.sync().unwrap();
    // A resumption writes tables.
    disk.add_rule(
        FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]).path_contains(".wal"),
    );
    assert!(matches!(db.put("lost", "value"), Err(Error::ReadOnly { .. })));
    disk.add_rule(each(&[VfsCall::Create], ".sst"));
    gate.shut();
    watched("a resumption", || {
        let late = db.with_deadline(SHORT).resume();
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        assert!(db.health().read_only.is_some());
        gate.open();
        // It waits for the first.
        db.resume().unwrap();
        db.put("key", "later").unwrap();
        db.close(None).unwrap();
    });
}

/// 15. A write in the group of another thread returns at its deadline. It is done, or not, when that group is.
#[test]
fn follower_append_hangs_keeps_deadline() {
    watched("a follower", || follower_keeps_deadline().unwrap());
}
