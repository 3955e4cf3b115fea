//! Guarantees 14 and 15: clock jumps are harmless, and every wait ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::{Background, WaitCause};
use lsmx::internals::manifest::Manifest;
use lsmx::internals::vfs::{CrashImage, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Durability, Error, Event, KeyspaceOptions, Options, PolicySpec, WriteControl, WriteOptions,
};
use lsmx_testkit::{EventLog, TestRng};

use super::support::{open, options, seeds};
use crate::harness::gate::{Gate, each};
use crate::harness::options as drawn;
use crate::harness::parallel::watched;

const YEAR_US: u64 = 365 * 24 * 3_600 * 1_000_000;

fn clock_in_manifest(disk: &MemVfs) -> u64 {
    Manifest::load(disk, Path::new("db")).unwrap().state.clock_us
}

/// 14. A clock that jumps either way never loses data that has no TTL, never brings expired data back (time is
///     the largest ever seen, kept in the manifest), never stalls writers.
#[test]
fn guarantee_14_time_cannot_hurt() {
    for seed in seeds(14, 2) {
        for policy in drawn::policies() {
            a_clock_that_jumps(seed, |options| options.policy(policy.clone()));
        }
    }
    expired_data_stays_away();
    a_clock_behind_the_manifest();
}

/// Every opening begins with a clock at one second; in between it leaps ahead.
fn a_clock_that_jumps(seed: u64, tuned: impl Fn(KeyspaceOptions) -> KeyspaceOptions) {
    let mut rng = TestRng::new(seed);
    let mut disk = MemVfs::new();
    let (mut seen_us, mut written) = (0, 0u64);
    for _ in 0..4 {
        let tuning = tuned(super::support::tuning("default"));
        let options = options(Background::Inline).keyspace_defaults(tuning);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let now_us = db.env().database_time_us();
        assert!(now_us >= seen_us, "seed {seed}: it is {now_us}, it was {seen_us}");
        let policy = db.default_keyspace().options().policy;
        for n in 0..written {
            let there = db.get(n.to_be_bytes()).unwrap().is_some();
            assert_eq!(there, n % 5 != 4, "{policy}, seed {seed}: key {n} after a jump");
        }
        for _ in 0..60 {
            db.put(written.to_be_bytes(), [7; 40]).unwrap();
            if written % 5 == 4 {
                db.delete(written.to_be_bytes()).unwrap();
            }
            written += 1;
            if rng.is_one_in(20) {
                db.env().advance_us(rng.below(100 * YEAR_US));
            }
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let metrics = db.metrics();
        assert_eq!(metrics.keyspaces["default"].stalls.count, 0, "{policy}: writers stalled");
        // As late as the last edit.
        seen_us = clock_in_manifest(&disk.crash(CrashImage::Drop, 0));
        assert!(seen_us > now_us, "{policy}: the manifest says {seen_us} at {now_us}");
        if rng.is_one_in(2) {
            disk = disk.crash(CrashImage::Drop, seed);
        } else {
            seen_us = db.env().database_time_us();
            db.close(None).unwrap();
            assert!(clock_in_manifest(&disk) >= seen_us);
        }
    }
}

/// What left a queue because it was too old does not come back with an earlier clock, nor does what is young
/// leave.
fn expired_data_stays_away() {
    let disk = MemVfs::new();
    let queue = super::support::tuning("default")
        .policy("fifo(1M,ttl=1h)".parse::<lsmx::PolicySpec>().unwrap());
    let options = || options(Background::Inline).keyspace_defaults(queue.clone());
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    db.put("old", "x").unwrap();
    db.flush().unwrap();
    db.env().advance_us(YEAR_US);
    db.put("young", "x").unwrap();
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let there = |db: &Db| ["old", "young"].map(|key| db.get(key).unwrap().is_some());
    assert_eq!(there(&db), [false, true]);
    db.close(None).unwrap();
    for _ in 0..3 {
        let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
        assert!(db.env().database_time_us() > YEAR_US);
        db.wait_idle().unwrap();
        assert_eq!(there(&db), [false, true]);
    }
}

/// A machine whose clock was set back by centuries goes on from the time that was seen, and lets nobody wait.
fn a_clock_behind_the_manifest() {
    let disk = MemVfs::new();
    let db = open(&disk);
    db.env().advance_us(400 * YEAR_US);
    db.put("k", "v").unwrap();
    db.close(None).unwrap();
    let real = options(Background::Threads { workers: 1 });
    let db = Db::open("db", real.vfs(Arc::new(disk))).unwrap();
    assert!(db.env().database_time_us() > 400 * YEAR_US);
    let patient = WriteOptions { deadline: Some(Duration::from_secs(60)), ..Default::default() };
    for n in 0..500u64 {
        db.default_keyspace().with_write_options(patient).put(n.to_be_bytes(), [7; 40]).unwrap();
    }
    db.close(Some(Duration::from_secs(60))).unwrap();
}

/// The calls that write files.
const WRITES: [VfsCall; 2] = [VfsCall::Create, VfsCall::Append];

fn within(patience: Duration) -> WriteOptions {
    WriteOptions { deadline: Some(patience), ..WriteOptions::default() }
}

const SHORT: Duration = Duration::from_millis(20);

/// 15. Every wait (stall, close, flush, lock) has a cause in the metrics and a deadline where the caller gave
///     one.
#[test]
fn guarantee_15_no_wait_without_end() {
    watched("a stall for memtables", || stalls("lsmx-flush", WaitCause::MemtablesFull));
    watched("a stall for runs", || stalls("lsmx-compact", WaitCause::TooManyRuns));
    watched("a stall for memory", stall_for_memory);
    watched("a commit behind another", commit_behind_another);
    watched("a close and a compaction", close_and_compaction);
    // Whoever finds the lock taken is told at once; there is no wait for it.
    let disk = MemVfs::new();
    let _owner = open(&disk);
    assert!(matches!(super::support::try_open(&disk), Err(Error::Locked { .. })));
}

/// Fills a database behind a shut gate until writes would wait. Flushes are waited for, unless they are what is
/// held up.
fn fill(db: &Db, flushes: bool) -> &'static str {
    let sealed = || db.metrics().keyspaces["default"].memtables_sealed;
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    for n in 0..100_000u64 {
        // Scattered, so that no job is a trivial move.
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        match db.default_keyspace().with_write_options(at_once).put(key, [5; 200]) {
            Ok(()) => {
                while flushes && sealed() > 0 {
                    std::thread::yield_now();
                }
            }
            Err(Error::WouldWait { cause }) => return cause,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no write ever waited");
}

fn stalls(thread: &'static str, cause: WaitCause) {
    let (gate, events) = (Gate::default(), EventLog::default());
    let policy: PolicySpec = "tiering(T=2, stop=4)".parse().unwrap();
    let tuning = super::support::tuning("default").policy(policy);
    let options = Options::default()
        .listener(Arc::new(events.clone()))
        .keyspace_defaults(tuning)
        .write_control(WriteControl::Stop)
        .wal_bytes_max(1 << 30);
    let db =
        Db::open("db", options.vfs(Arc::new(gate.disk(each(&WRITES, ".sst"), thread)))).unwrap();
    gate.shut();
    stalls_and_goes_on(&db, &gate, &events, cause);
}

fn stall_for_memory() {
    let (gate, events) = (Gate::default(), EventLog::default());
    let tuning = super::support::tuning("default").memtable_bytes(16 << 10);
    let options = Options::default()
        .listener(Arc::new(events.clone()))
        .keyspace_defaults(tuning)
        .memtable_bytes_max(16 << 10)
        .wal_bytes_max(1 << 30);
    let db = Db::open("db", options.vfs(Arc::new(gate.disk(each(&WRITES, ".sst"), "lsmx-flush"))))
        .unwrap();
    gate.shut();
    stalls_and_goes_on(&db, &gate, &events, WaitCause::MemoryFull);
}

/// A write that has to wait names its cause before it waits, in the metrics and to the listener; keeps its
/// deadline, with nothing done; and waits no longer than it must.
fn stalls_and_goes_on(db: &Db, gate: &Gate, events: &EventLog, cause: WaitCause) {
    let main = db.default_keyspace();
    assert_eq!(fill(db, cause == WaitCause::TooManyRuns), cause.as_str());
    let late = main.with_write_options(within(SHORT)).put("late", "x");
    assert!(matches!(late, Err(Error::Deadline { cause: named }) if named == cause.as_str()));
    assert_eq!(db.get("late").unwrap(), None, "given up and done");
    let begun = || {
        let is_told =
            |event: &Event| matches!(event, Event::StallBegin(at) if at.cause == cause.as_str());
        events.count(is_told)
    };
    assert_eq!(begun(), 1);
    let counted = || {
        let stalls = db.metrics().keyspaces["default"].stalls.clone();
        match cause {
            WaitCause::MemtablesFull => stalls.memtables_full,
            WaitCause::MemoryFull => stalls.memory_full,
            _ => stalls.too_many_runs,
        }
    };
    let stalled = counted();
    assert_eq!(stalled.count, 1);
    assert!(stalled.us_max >= 15_000, "{stalled:?}");
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| main.put("patient", "x"));
        while begun() < 2 {
            std::thread::yield_now();
        }
        gate.open();
        patient.join().unwrap().unwrap();
    });
    assert!(db.get("patient").unwrap().is_some());
    assert_eq!(counted().count, 2);
    db.wait_idle().unwrap();
    db.close(None).unwrap();
}

/// A commit whose leader hangs in the log.
fn commit_behind_another() {
    let gate = Gate::default();
    let disk = gate.disk(each(&WRITES, ".wal"), "");
    let options = Options::default().keyspace_defaults(super::support::tuning("default"));
    let db = Db::open("db", options.vfs(Arc::new(disk))).unwrap();
    let main = db.default_keyspace();
    gate.shut();
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| main.put("hanging", "x"));
        gate.wait_until_blocked(1);
        for durability in [Durability::Buffered, Durability::Sync] {
            let options = WriteOptions { durability, ..within(SHORT) };
            let late = main.with_write_options(options).put("late", "x");
            let Err(Error::Deadline { cause }) = late else { panic!("{late:?}") };
            assert_eq!(cause, WaitCause::CommitAhead.as_str());
        }
        assert_eq!(db.get("hanging").unwrap(), None, "reads do not wait for it, nor see it");
        gate.open();
        hanging.join().unwrap().unwrap();
    });
    assert_eq!((db.get("late").unwrap(), db.get("hanging").unwrap().is_some()), (None, true));
}

/// Closing and compacting by hand keep their deadlines, say what they waited for, and can be done again.
fn close_and_compaction() {
    let gate = Gate::default();
    let disk = gate.disk(each(&WRITES, ".sst"), "lsmx-flush");
    let options = || {
        let tuning = super::support::tuning("default").memtable_bytes(1 << 20);
        Options::default().keyspace_defaults(tuning)
    };
    let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    let main = db.default_keyspace();
    (0..50u64).for_each(|n| main.put(n.to_be_bytes(), [1; 100]).unwrap());
    gate.shut();
    let late = main.with_write_options(SHORT).compact_range::<&[u8]>(..);
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    let late = db.close(Some(SHORT));
    let Err(Error::Deadline { cause }) = late else { panic!("{late:?}") };
    assert!(WaitCause::ALL.iter().any(|known| known.as_str() == cause), "{cause}");
    // Whoever waits is told that it is closed, and nobody is let in while a thread may still write.
    assert!(matches!(main.put("k", "v"), Err(Error::Closed)));
    let second = Db::open("db", options().vfs(Arc::new(disk.clone())));
    assert!(matches!(second, Err(Error::Locked { .. })));
    gate.open();
    db.close(Some(Duration::from_secs(60))).unwrap();
    let db = Db::open("db", options().vfs(Arc::new(disk))).unwrap();
    assert_eq!(db.default_keyspace().iter().count(), 50);
}
