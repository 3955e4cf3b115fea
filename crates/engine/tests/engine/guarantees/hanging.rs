//! Guarantee 15: calls that must return although a device call hangs.

use std::path::Path;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::Vfs;
use lsmx::{Db, Durability, Error, WriteBatch};
use lsmx_testkit::TestRng;

use crate::harness::database::memory_only;
use crate::harness::device_hangs::SHORT;
use crate::harness::gate::{Gate, each, nth, patience, returns_while_blocked};
use crate::harness::parallel::watched;
use crate::harness::small_database::{
    durability, keyspace_options, open_with, options, seeds, try_open_kinds,
};

fn open(disk: &FaultVfs) -> lsmx::Result<Db> {
    open_with(disk, options(Background::Threads { workers: 1 }))
}

fn open_when_unlocked(disk: &FaultVfs) -> Db {
    loop {
        match open(disk) {
            Err(Error::Locked { .. }) => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// Makes calls that need every kind of device call of an open database.
fn use_everything(db: &Db) -> lsmx::Result<()> {
    let keyspaces = try_open_kinds(db)?;
    for n in 0..40u64 {
        let mut batch = WriteBatch::new();
        for keyspace in &keyspaces {
            batch.put(keyspace, (n % 20).to_be_bytes(), [7; 100]);
            batch.merge(keyspace, (n % 7 + 100).to_be_bytes(), [8; 50]);
        }
        db.write(batch, durability(n % 10 == 9))?;
    }
    db.flush()?;
    db.keyspace("more", keyspace_options("more"))?.put("k", "v")?;
    db.checkpoint("copy")?;
    db.drop_keyspace("more")?;
    keyspaces[0].compact_range::<&[u8]>(..)?;
    db.wait_idle()?;
    db.sync()?;
    keyspaces[1].get(3u64.to_be_bytes()).map(drop)
}

/// Runs a workload repeatedly. Each run blocks one device call and runs `check` meanwhile. From run to run, the index
/// of the blocked call grows by a random step from 1 to `step_max`. After each run, `finish` gets the result of the
/// workload. Returns the number of blocked calls when the index exceeds the number of calls.
fn block_device_calls(
    step_max: u64,
    mut rng: TestRng,
    check: impl Fn(&Db),
    finish: impl Fn(&Db, &FaultVfs, lsmx::Result<()>),
) -> u64 {
    let (mut hangs, mut k) = (0, 0);
    loop {
        k += 1 + rng.below(step_max);
        let gate = Gate::default();
        let disk = gate.disk(nth(u64::MAX), "");
        let db = open(&disk).unwrap();
        // Calls of the open do not count.
        disk.add_rule(nth(k));
        gate.shut();
        let result = std::thread::scope(|scope| {
            let _opens = gate.open_on_drop();
            let worker = scope.spawn(|| use_everything(&db));
            while gate.blocked().is_none() && !worker.is_finished() {
                std::thread::yield_now();
            }
            if let Some(call) = gate.blocked() {
                hangs += 1;
                watched(&format!("a call during {call} (call {k})"), || check(&db));
            }
            gate.open();
            worker.join().unwrap()
        });
        if gate.blocked().is_none() {
            result.unwrap();
            db.close(None).unwrap();
            return hangs;
        }
        finish(&db, &disk, result);
    }
}

/// Guarantee 15: `metrics`, `health` and similar calls return while a device call of an open database hangs.
#[test]
fn guarantee_15_observation_returns_while_device_hangs() {
    let rng = TestRng::new(seeds(15, 1).next().unwrap());
    let hangs = block_device_calls(9, rng, observe, |db, _, result| {
        result.unwrap();
        db.close(None).unwrap();
    });
    assert!(hangs > 20, "only {hangs} calls were blocked");
}

fn observe(db: &Db) {
    assert!(db.metrics().wal.segments > 0);
    let _ = db.read_metrics();
    assert!(db.health().read_only.is_none());
    assert!(!db.keyspaces().is_empty());
    // This read fails if it needs a file.
    let _ = db.default_keyspace().get_with(3u64.to_be_bytes(), &memory_only());
    let _ = db.open_keyspace("default", None).unwrap().options();
}

/// Makes every call that accepts a deadline. Returns the name and the result of each call.
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

/// Guarantee 15: each call with a deadline returns while a device call hangs. After `close` has reached its deadline,
/// the database rejects every call, and releases its lock when the device call returns.
#[test]
fn guarantee_15_deadline_is_kept_while_device_hangs() {
    let check = |db: &Db| {
        call_all(db);
        if let Err(Error::Deadline { .. }) = db.close(Some(SHORT)) {
            assert!(matches!(db.put("key", "value"), Err(Error::Closed)));
            assert!(matches!(db.get("key"), Err(Error::Closed)));
        }
    };
    let rng = TestRng::new(seeds(15, 2).nth(1).unwrap());
    // The check may have closed the database. The workload then fails, so the result is ignored.
    let hangs = block_device_calls(30, rng, check, |_, disk, _| {
        watched("the end of a close", || drop(open_when_unlocked(disk)));
    });
    assert!(hangs > 5, "only {hangs} calls were blocked");
}

/// Guarantee 15: a close returns at its deadline while a keyspace is being created. The lock is released later.
#[test]
fn guarantee_15_close_during_hanging_creation_frees_lock_later() {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], "MANIFEST"), "");
    let db = open(&disk).unwrap();
    db.put("key", "value").unwrap();
    let hanging = || drop(db.keyspace("new", keyspace_options("new")));
    let locked = returns_while_blocked(&gate, hanging, || {
        let closed = db.close(Some(SHORT));
        assert!(matches!(closed, Err(Error::Deadline { .. })), "{closed:?}");
        open(&disk).map(drop)
    });
    assert!(matches!(locked, Ok(Err(Error::Locked { .. }))), "{locked:?}");
    // The old handle is still open, but the test makes no more calls with it.
    watched("the end of a close", || {
        assert_eq!(open_when_unlocked(&disk).get("key").unwrap().as_deref(), Some(&b"value"[..]));
    });
}

/// Guarantee 15: calls return at their deadlines while the sync of another commit hangs.
#[test]
fn guarantee_15_deadline_is_kept_while_commit_hangs() {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], ".wal"), "");
    let db = open(&disk).unwrap();
    let synced = db.default_keyspace().with_write_options(Durability::Sync);
    let hanging = || drop(synced.put("key", "value"));
    let calls = || {
        let patient = db.with_deadline(patience());
        (call_all(&db), [patient.wait_idle(), patient.resume()])
    };
    let (results, unaffected) = returns_while_blocked(&gate, hanging, calls).unwrap();
    for (name, result) in results {
        // `wait_idle` and `resume` have nothing to wait for. On a busy machine they may take longer than the deadline.
        let is_late = matches!(result, Err(Error::Deadline { .. }));
        assert!(is_late || ["wait_idle", "resume"].contains(&name), "{name}: {result:?}");
    }
    assert!(unaffected.iter().all(Result::is_ok), "{unaffected:?}");
    assert!(!disk.exists(Path::new("late/CURRENT")).unwrap());
    db.close(None).unwrap();
}

/// Guarantee 15: a call returns at its deadline while its own device call hangs. The next call succeeds.
#[test]
fn guarantee_15_deadline_is_kept_while_own_device_call_hangs() {
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
    let failing = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
    disk.add_rule(failing.path_contains(".wal"));
    assert!(matches!(db.put("lost", "value"), Err(Error::ReadOnly { .. })));
    // `resume` writes tables, so it blocks when it creates the first table.
    disk.add_rule(each(&[VfsCall::Create], ".sst"));
    gate.shut();
    watched("resume", || {
        let late = db.with_deadline(SHORT).resume();
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        assert!(db.health().read_only.is_some());
        gate.open();
        // The second `resume` waits until the first `resume` has ended.
        db.resume().unwrap();
        db.put("key", "later").unwrap();
        db.close(None).unwrap();
    });
}
