//! Writes that have to wait occupy no thread.

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

use super::support::{Stalls, Taken, current_thread, gated, poll_once, run, runtimes};

fn options(stalls: &Arc<Stalls>, memtable_bytes_max: u64) -> Options {
    let keyspace = KeyspaceOptions::default().memtable_bytes(4 << 10);
    Options::default()
        .background(Background::Threads { workers: 1 })
        .memtable_bytes_max(memtable_bytes_max)
        .listener(Arc::clone(stalls) as Arc<dyn EventListener>)
        .keyspace_defaults(keyspace)
}

const WRITERS: u64 = 300;

/// Flushes stand still, hundreds of writers wait for them. Other tasks and the pool, even one of a
/// single thread, get on as if nothing were.
#[test]
fn hundreds_of_stalled_writers_occupy_no_thread() {
    lsmx_testkit::time_test();
    // By the memtables of one tree, and by all of them together.
    for memtable_bytes_max in [1 << 20, 16 << 10] {
        for runtime in runtimes() {
            let (disk, shut) = gated(VfsCall::Create, ".sst");
            let stalls = Arc::new(Stalls::default());
            run(&runtime, async {
                let options = options(&stalls, memtable_bytes_max);
                let db = Db::open("db", options.vfs(Arc::new(disk))).await.unwrap();
                // Under load the first write of writer 0 may stall.
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
                    // The pool has a thread for others.
                    assert_eq!(tokio::task::spawn_blocking(|| 42).await.unwrap(), 42);
                }
                // Reads go on.
                assert!(db.get([0; 16]).await.unwrap().is_some());
                // Who must not wait is told why, who gives up, too.
                let keyspace = db.default_keyspace();
                let hurried = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
                let refused = keyspace.with_write_options(hurried).put("hurried", "1").await;
                let causes =
                    [WaitCause::MemtablesFull, WaitCause::MemoryFull].map(WaitCause::as_str);
                assert!(
                    matches!(refused, Err(Error::WouldWait { cause }) if causes.contains(&cause)),
                    "{refused:?}"
                );
                let patience = Some(Duration::from_millis(5));
                let patient = WriteOptions { deadline: patience, ..WriteOptions::default() };
                let late = keyspace.with_write_options(patient).put("patient", "1").await;
                assert!(
                    matches!(late, Err(Error::Deadline { cause }) if causes.contains(&cause)),
                    "{late:?}"
                );
                // A future that is dropped while it stands: its write is not done, its stall is over.
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
                let of = &metrics.keyspaces["default"];
                assert_eq!(of.stalls.count, begun as u64);
                db.close(None).await.unwrap();
            });
        }
    }
}

/// The commit of a task that no thread comes for has a deadline as any other.
#[test]
fn a_deadline_takes_a_commit_back() {
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

/// Ends a flood, however its test ends: else the runtime would wait for it.
struct EndsFlood(Arc<AtomicBool>);

impl Drop for EndsFlood {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Requests come faster than syncs end, whether or not those before are done. Whoever leads for them
/// lets others have their turn, also where the pool has one thread.
#[test]
fn a_flood_of_commits_leaves_the_pool_to_others() {
    lsmx_testkit::time_test();
    for runtime in runtimes() {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
        let slow = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Sync]).path_contains(".wal");
        disk.add_rule(slow.from_then_on());
        run(&runtime, async {
            let db = Db::open("db", Options::default().vfs(Arc::new(disk.clone()))).await.unwrap();
            // What each sync waits for: that more have come meanwhile, so a queue is never empty.
            let (asked, flooding) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
            let _ends = EndsFlood(Arc::clone(&flooding));
            let (seen, floods) = (Arc::clone(&asked), Arc::clone(&flooding));
            disk.set_delay_hook(Some(Arc::new(move |_, _| {
                let before = seen.load(Ordering::Acquire);
                while floods.load(Ordering::Acquire) && seen.load(Ordering::Acquire) < before + 3 {
                    std::thread::yield_now();
                }
            })));
            let flood = {
                let (db, asked, flooding) = (db.clone(), Arc::clone(&asked), Arc::clone(&flooding));
                tokio::spawn(async move {
                    let mut puts = JoinSet::new();
                    while flooding.load(Ordering::Acquire) {
                        let (db, number) = (db.clone(), asked.load(Ordering::Acquire));
                        puts.spawn(async move {
                            let keyspace = db.default_keyspace();
                            keyspace
                                .with_write_options(Durability::Sync)
                                .put(number.to_be_bytes(), "v")
                                .await
                        });
                        // First it queues, then it counts as having come.
                        tokio::task::yield_now().await;
                        asked.fetch_add(1, Ordering::AcqRel);
                        while puts.try_join_next().is_some() {}
                    }
                    while puts.join_next().await.is_some() {}
                })
            };
            while asked.load(Ordering::Acquire) < 100 {
                tokio::task::yield_now().await;
            }
            // Both need a thread of the pool, and neither would come to an end behind the flood.
            for _ in 0..3 {
                assert_eq!(tokio::task::spawn_blocking(|| 42).await.unwrap(), 42);
                db.metrics().await.unwrap();
            }
            flooding.store(false, Ordering::Release);
            flood.await.unwrap();
            db.close(None).await.unwrap();
        });
    }
}

/// The one thread of the pool has something else to do, and memory is full of memtables that nobody
/// flushes yet: who would wait for that thread gives up at its deadline.
#[test]
fn a_deadline_is_kept_where_a_write_waits_for_the_governor() {
    let runtime = current_thread(1);
    let keyspace = KeyspaceOptions::default().memtable_bytes(64 << 10);
    let options =
        Options::default().memtable_bytes_max(128 << 10).keyspace_defaults(keyspace.clone());
    let blocking = lsmx::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let db = Db::try_from(blocking.clone()).unwrap();
    run(&runtime, async {
        let mut keyspaces = Vec::new();
        for number in 0..12 {
            keyspaces.push(db.keyspace(&format!("k{number}"), keyspace.clone()).await.unwrap());
        }
        let taken = Taken::take(&runtime);
        let mut writers = JoinSet::new();
        for keyspace in &keyspaces {
            let keyspace = keyspace.clone();
            writers.spawn(async move { keyspace.put("k", vec![1; 60_000]).await });
        }
        // Each has queued, and waits for the pool.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| blocking.default_keyspace().put("t", "1").unwrap());
        });
        let impatient =
            WriteOptions { deadline: Some(Duration::from_millis(20)), ..WriteOptions::default() };
        let refused = keyspaces[3].with_write_options(impatient).put("late", "v").await;
        assert!(matches!(refused, Err(Error::Deadline { .. })), "{refused:?}");
        taken.free();
        while let Some(put) = writers.join_next().await {
            put.unwrap().unwrap();
        }
        db.close(None).await.unwrap();
    });
}
