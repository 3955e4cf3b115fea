//! Guarantee 15: every wait reports its cause and ends at the latest at the deadline that the caller set.

use std::sync::Arc;
use std::time::Duration;

use lsmx::env::WaitCause;
use lsmx::internals::vfs::VfsCall;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, Event, Options, WriteControl, WriteOptions};
use lsmx_testkit::EventLog;

use crate::harness::device_hangs::SHORT;
use crate::harness::gate::{Gate, each};
use crate::harness::parallel::watched;
use crate::harness::small_database::{keyspace_options, open, open_with, policy, try_open};

const WRITES: [VfsCall; 2] = [VfsCall::Create, VfsCall::Append];

/// Guarantee 15: the metrics and the listener report the cause of a stalled write. At its deadline the write fails and
/// has no effect. A write without a deadline continues when flushes or compactions continue.
#[test]
fn guarantee_15_stalled_write_has_cause_and_deadline() {
    let keyspace = || keyspace_options("default");
    let of_runs = || {
        Options::default()
            .write_control(WriteControl::Stop)
            .keyspace_defaults(keyspace().policy(policy("tiering(T=2, stop=4)")))
    };
    let of_memory = Options::default()
        .keyspace_defaults(keyspace().memtable_bytes(16 << 10))
        .memtable_bytes_max(16 << 10);
    for (cause, thread, options) in [
        (WaitCause::MemtablesFull, "lsmx-flush", of_runs()),
        (WaitCause::TooManyRuns, "lsmx-compact", of_runs()),
        (WaitCause::MemoryFull, "lsmx-flush", of_memory),
    ] {
        watched(cause.as_str(), || stall(cause, thread, options));
    }
}

/// Stalls a write: blocks the threads that create tables, and fills memory or L0.
fn stall(cause: WaitCause, thread: &'static str, options: Options) {
    let (gate, events) = (Gate::default(), EventLog::default());
    let disk = gate.disk(each(&WRITES, ".sst"), thread);
    let options = options.listener(Arc::new(events.clone())).wal_bytes_max(1 << 30);
    let db = open_with(&disk, options).unwrap();
    gate.shut();
    let main = db.default_keyspace();
    assert_eq!(fill(&db, cause == WaitCause::TooManyRuns), cause.as_str());
    let hurried = WriteOptions { deadline: Some(SHORT), ..WriteOptions::default() };
    let late = main.with_write_options(hurried).put("late", "x");
    assert!(matches!(late, Err(Error::Deadline { cause: named }) if named == cause.as_str()));
    assert_eq!(db.get("late").unwrap(), None, "a refused write was done");
    let begun = || {
        events.count(
            |event| matches!(event, Event::StallBegin(stall) if stall.cause == cause.as_str()),
        )
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
    assert!(stalled.us_max > 0, "{stalled:?}");
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

/// Writes until a write would stall, and returns the cause of the stall. If `flushes` is true, waits for all flushes
/// after each write.
fn fill(db: &Db, flushes: bool) -> &'static str {
    let sealed = || db.metrics().keyspaces["default"].memtables_sealed;
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    for n in 0..100_000u64 {
        // The keys are in random order, so the tables overlap and no compaction is a trivial move.
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

/// Guarantee 15: if the leader of a commit group hangs in an append to the log, other commits return at their
/// deadlines, and reads do not wait.
#[test]
fn guarantee_15_commit_behind_hanging_leader_keeps_deadline() {
    let gate = Gate::default();
    let disk = gate.disk(each(&WRITES, ".wal"), "");
    let options = Options::default().keyspace_defaults(keyspace_options("default"));
    let db = open_with(&disk, options).unwrap();
    let main = db.default_keyspace();
    gate.shut();
    let commit = || {
        std::thread::scope(|scope| {
            let _opens = gate.open_on_drop();
            let hanging = scope.spawn(|| main.put("hanging", "x"));
            gate.wait_until_blocked(1);
            for durability in [Durability::Buffered, Durability::Sync] {
                let options =
                    WriteOptions { durability, deadline: Some(SHORT), ..WriteOptions::default() };
                let late = main.with_write_options(options).put("late", "x");
                let Err(Error::Deadline { cause }) = late else { panic!("{late:?}") };
                assert_eq!(cause, WaitCause::CommitAhead.as_str());
            }
            assert_eq!(db.get("hanging").unwrap(), None, "a read sees an unfinished commit");
            gate.open();
            hanging.join().unwrap().unwrap();
        });
    };
    watched("a commit behind another", commit);
    assert_eq!((db.get("late").unwrap(), db.get("hanging").unwrap().is_some()), (None, true));
}

/// Guarantee 15: `close` and `compact_range` return at their deadlines and report the cause. A second call succeeds.
#[test]
fn guarantee_15_close_and_compact_range_keep_deadlines() {
    watched("a close and a compaction", || {
        let gate = Gate::default();
        let disk = gate.disk(each(&WRITES, ".sst"), "lsmx-flush");
        let keyspace = keyspace_options("default").memtable_bytes(1 << 20);
        let options = || Options::default().keyspace_defaults(keyspace.clone());
        let db = open_with(&disk, options()).unwrap();
        let main = db.default_keyspace();
        (0..50u64).for_each(|n| main.put(n.to_be_bytes(), [1; 100]).unwrap());
        gate.shut();
        let late = main.with_write_options(SHORT).compact_range::<&[u8]>(..);
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        let late = db.close(Some(SHORT));
        let Err(Error::Deadline { cause }) = late else { panic!("{late:?}") };
        assert!(WaitCause::ALL.iter().any(|known| known.as_str() == cause), "{cause}");
        // The database stays locked while a thread may still write.
        assert!(matches!(main.put("k", "v"), Err(Error::Closed)));
        assert!(matches!(open_with(&disk, options()), Err(Error::Locked { .. })));
        gate.open();
        db.close(Some(Duration::from_secs(60))).unwrap();
        let db = open_with(&disk, options()).unwrap();
        assert_eq!(db.default_keyspace().iter().count(), 50);
    });
}

/// Guarantee 15: an open of a locked database fails immediately.
#[test]
fn guarantee_15_open_of_locked_database_fails_at_once() {
    let disk = MemVfs::new();
    let _owner = open(&disk);
    assert!(matches!(try_open(&disk), Err(Error::Locked { .. })));
}
