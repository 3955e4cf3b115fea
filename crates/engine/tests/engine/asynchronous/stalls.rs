//! Stalled writes of tasks block no thread.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lsmx::env::{Background, WaitCause};
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::tokio::Db;
use lsmx::vfs::MemVfs;
use lsmx::{Durability, Error, EventListener, KeyspaceOptions, Options, WriteOptions};
use tokio::task::JoinSet;

use super::open_blocking;
use super::support::{Stalls, Taken, current_thread, gated, poll_once, run, runtimes};
use crate::harness::gate::{Gate, each, patience};

fn options(stalls: &Arc<Stalls>, memtable_bytes_max: u64) -> Options {
    let keyspace = KeyspaceOptions::default().memtable_bytes(4 << 10);
    Options::default()
        .background(Background::Threads { workers: 1 })
        .memtable_bytes_max(memtable_bytes_max)
        .listener(Arc::clone(stalls) as Arc<dyn EventListener>)
        .keyspace_defaults(keyspace)
}

const WRITERS: u64 = 300;

/// Flushes are blocked, and the writes of hundreds of tasks stall. Other tasks and the blocking pool must continue,
/// even with a single pool thread.
#[test]
fn stalled_writes_of_hundreds_of_tasks_occupy_no_thread() {
    lsmx_testkit::time_test();
    // `memtable_bytes_max` is either larger or smaller than the memtable limit of the keyspace. The smaller limit
    // stalls the writes.
    for memtable_bytes_max in [1 << 20, 16 << 10] {
        for runtime in runtimes() {
            let (disk, shut) = gated(VfsCall::Create, ".sst");
            let stalls = Arc::new(Stalls::default());
            run(&runtime, async {
                let options = options(&stalls, memtable_bytes_max);
                let db = Db::open("db", options.vfs(Arc::new(disk))).await.unwrap();
                // The test reads the first key of writer 0 below. The write of this key may stall, so the test writes
                // it in advance.
                db.put([0; 16], [7; 200]).await.unwrap();
                shut.store(true, Ordering::Release);
                let mut writers = JoinSet::new();
                for writer in 0..WRITERS {
                    let db = db.clone();
                    writers.spawn(async move {
                        for write in 0..100_u64 {
                            let key = [writer, write].map(u64::to_be_bytes).concat();
                            db.put(key, [7; 200]).await.unwrap();
                        }
                    });
                }
                while stalls.standing() < WRITERS as usize {
                    tokio::task::yield_now().await;
                    assert_eq!(tokio::task::spawn_blocking(|| 42).await.unwrap(), 42);
                }
                assert!(db.get([0; 16]).await.unwrap().is_some());
                // Writes with `no_slowdown` or with a deadline return an error that states the cause of the stall.
                let keyspace = db.default_keyspace();
                let hurried = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
                let refused = keyspace.with_write_options(hurried).put("hurried", "1").await;
                let causes =
                    [WaitCause::MemtablesFull, WaitCause::MemoryFull].map(WaitCause::as_str);
                let Err(Error::WouldWait { cause }) = refused else { panic!("{refused:?}") };
                assert!(causes.contains(&cause), "{cause}");
                let patience = Some(Duration::from_millis(5));
                let patient = WriteOptions { deadline: patience, ..WriteOptions::default() };
                let late = keyspace.with_write_options(patient).put("patient", "1").await;
                let Err(Error::Deadline { cause }) = late else { panic!("{late:?}") };
                assert!(causes.contains(&cause), "{cause}");
                // Dropping the future of a stalled write ends the stall, and the value is not written.
                let ended = stalls.ended.load(Ordering::Relaxed);
                let mut given_up = Box::pin(keyspace.put("given up", "1"));
                assert!(poll_once(given_up.as_mut()).is_pending());
                drop(given_up);
                assert!(stalls.ended.load(Ordering::Relaxed) > ended);
                shut.store(false, Ordering::Release);
                while let Some(ended) = writers.join_next().await {
                    ended.unwrap();
                }
                for key in ["hurried", "patient", "given up"] {
                    assert_eq!(db.get(key).await.unwrap(), None);
                }
                let begun = stalls.begun.load(Ordering::Relaxed);
                assert_eq!(begun, stalls.ended.load(Ordering::Relaxed));
                let metrics = db.metrics().await.unwrap();
                assert_eq!(metrics.keyspaces["default"].stalls.count, begun as u64);
                db.close(None).await.unwrap();
            });
        }
    }
}

/// A write is queued and no thread is free to commit it. The write must fail at its deadline and have no effect.
#[test]
fn queued_write_after_deadline_is_not_done() {
    let runtime = current_thread(1);
    let stalls = Arc::new(Stalls::default());
    let (disk, _) = gated(VfsCall::Create, ".sst");
    let db = lsmx::Db::open("db", options(&stalls, 1 << 20).vfs(Arc::new(disk))).unwrap();
    let db = Db::try_from(db).unwrap();
    let taken = Taken::take(&runtime);
    run(&runtime, async {
        let keyspace = db.default_keyspace();
        let deadline = Some(Duration::from_millis(2));
        let options = WriteOptions { deadline, ..WriteOptions::from(Durability::Sync) };
        let late = keyspace.with_write_options(options).put("late", "1").await;
        let cause = WaitCause::CommitAhead.as_str();
        assert!(matches!(late, Err(Error::Deadline { cause: by }) if by == cause), "{late:?}");
        let mut put = pin!(keyspace.put("key", "1"));
        assert!(poll_once(put.as_mut()).is_pending());
        taken.free();
        put.await.unwrap();
        assert_eq!(keyspace.get("late").await.unwrap(), None);
        db.close(None).await.unwrap();
    });
}

/// The check of the ranges of a transaction waits for the only pool thread, which runs a put. The put must not wait for
/// memtable memory that the commit of the transaction holds.
#[test]
fn range_check_that_waits_for_a_pool_thread_holds_no_memtable_memory() {
    let runtime = current_thread(1);
    let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 20);
    let options = Options::default().memtable_bytes_max(1 << 20).keyspace_defaults(keyspace);
    let blocking = open_blocking(options);
    let db = Db::try_from(blocking.clone()).unwrap();
    run(&runtime, async {
        let (tx, keyspace) = (db.transaction().await.unwrap(), db.default_keyspace());
        assert!(tx.range(&keyspace, "x".."z").next().await.is_none());
        tx.put(&keyspace, "large", vec![1; 1 << 20]).unwrap();
        let (open, gate) = std::sync::mpsc::channel();
        let put = tokio::task::spawn_blocking(move || {
            gate.recv().unwrap();
            // Without a deadline, a deadlock would also block the end of the runtime.
            let options = WriteOptions { deadline: Some(patience()), ..WriteOptions::default() };
            blocking.default_keyspace().with_write_options(options).put("small", "1")
        });
        let mut commit = pin!(tx.commit(Durability::Buffered));
        assert!(poll_once(commit.as_mut()).is_pending());
        open.send(()).unwrap();
        put.await.unwrap().unwrap();
        commit.await.unwrap();
        let values = keyspace.multi_get(["small", "large"]).await.unwrap();
        assert!(values.iter().all(Option::is_some));
        db.close(None).await.unwrap();
    });
}

/// The only pool thread is busy. The commit of a transaction whose ranges must be checked fails at its deadline and has no
/// effect, and `close` fails at its deadline.
#[test]
fn calls_that_wait_for_a_pool_thread_keep_their_deadline() {
    let runtime = current_thread(1);
    let db = Db::try_from(open_blocking(Options::default())).unwrap();
    let taken = Taken::take(&runtime);
    run(&runtime, async {
        let (tx, keyspace) = (db.transaction().await.unwrap(), db.default_keyspace());
        assert!(tx.range(&keyspace, "x".."z").next().await.is_none());
        tx.put(&keyspace, "late", "1").unwrap();
        let deadline = Some(Duration::from_millis(2));
        let late = tx.commit(WriteOptions { deadline, ..WriteOptions::default() }).await;
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        assert_eq!(keyspace.get("late").await.unwrap(), None);
        let closed = db.close(deadline).await;
        assert!(matches!(closed, Err(Error::Deadline { .. })), "{closed:?}");
        taken.free();
        db.close(None).await.unwrap();
        assert!(matches!(keyspace.get("late").await, Err(Error::Closed)));
    });
}

/// Stops the writer threads when this guard is dropped, also after a panic. Otherwise the runtime would wait forever
/// for the writers.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Commits arrive faster than the log can sync. The leader of the commit group must return its thread to the blocking
/// pool from time to time, so that other work can run even on a pool of one thread.
#[test]
fn endless_commits_leave_pool_to_others() {
    lsmx_testkit::time_test();
    for runtime in runtimes() {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
        let slow = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Sync]).path_contains(".wal");
        disk.add_rule(slow.from_then_on());
        run(&runtime, async {
            let db = Db::open("db", Options::default().vfs(Arc::new(disk.clone()))).await.unwrap();
            // Each sync waits until three more commits are queued, so the queue is never empty.
            let (queued, writing) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
            let _stops = StopOnDrop(Arc::clone(&writing));
            let (seen, goes_on) = (Arc::clone(&queued), Arc::clone(&writing));
            disk.set_delay_hook(Some(Arc::new(move |_, _| {
                let before = seen.load(Ordering::Acquire);
                while goes_on.load(Ordering::Acquire) && seen.load(Ordering::Acquire) < before + 3 {
                    std::thread::yield_now();
                }
            })));
            let writes = {
                let (db, queued, writing) = (db.clone(), Arc::clone(&queued), Arc::clone(&writing));
                tokio::spawn(async move {
                    let mut puts = JoinSet::new();
                    while writing.load(Ordering::Acquire) {
                        let (db, number) = (db.clone(), queued.load(Ordering::Acquire));
                        puts.spawn(async move {
                            let keyspace = db.default_keyspace();
                            let keyspace = keyspace.with_write_options(Durability::Sync);
                            keyspace.put(number.to_be_bytes(), "v").await
                        });
                        // The yield lets the task queue its commit before the commit is counted.
                        tokio::task::yield_now().await;
                        queued.fetch_add(1, Ordering::AcqRel);
                        while puts.try_join_next().is_some() {}
                    }
                    while puts.join_next().await.is_some() {}
                })
            };
            while queued.load(Ordering::Acquire) < 100 {
                tokio::task::yield_now().await;
            }
            // `spawn_blocking` and `metrics` need a pool thread.
            for _ in 0..3 {
                assert_eq!(tokio::task::spawn_blocking(|| 42).await.unwrap(), 42);
                db.metrics().await.unwrap();
            }
            writing.store(false, Ordering::Release);
            writes.await.unwrap();
            db.close(None).await.unwrap();
        });
    }
}

/// The only pool thread is busy, and memtables that cannot be flushed use all permitted memory. A write must fail at its
/// deadline.
#[test]
fn write_that_waits_for_memory_keeps_deadline() {
    let runtime = current_thread(1);
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Create], ".sst"), "");
    let keyspace = KeyspaceOptions::default().memtable_bytes(64 << 10);
    let options =
        Options::default().memtable_bytes_max(128 << 10).keyspace_defaults(keyspace.clone());
    let blocking = lsmx::Db::open("db", options.vfs(Arc::new(disk))).unwrap();
    let db = Db::try_from(blocking.clone()).unwrap();
    let impatient =
        WriteOptions { deadline: Some(Duration::from_millis(20)), ..WriteOptions::default() };
    run(&runtime, async {
        let late = db.keyspace("late", keyspace.clone()).await.unwrap();
        let _opens = gate.open_on_drop();
        gate.shut();
        let is_full = (0..12).any(|number| {
            let keyspace = blocking.keyspace(&format!("k{number}"), keyspace.clone()).unwrap();
            let put = keyspace.with_write_options(impatient).put("k", vec![1; 60_000]);
            put.inspect_err(|error| assert!(matches!(error, Error::Deadline { .. }))).is_err()
        });
        assert!(is_full);
        let taken = Taken::take(&runtime);
        let refused = late.with_write_options(impatient).put("late", "v").await;
        assert!(matches!(refused, Err(Error::Deadline { .. })), "{refused:?}");
        taken.free();
        gate.open();
        late.put("late", "v").await.unwrap();
        db.close(None).await.unwrap();
    });
}
