//! Tests of commits whose futures are dropped, and of commits by many concurrent tasks.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lsmx::merge_operator::Append;
use lsmx::tokio::Db;
use lsmx::vfs::MemVfs;
use lsmx::{Durability, Error, KeyspaceOptions, MergeOperator, MergeResult, Options, WriteBatch};
use lsmx_testkit::{TestRng, seed};
use tokio::task::JoinSet;

use super::support::{Polls, Taken, current_thread, poll_once, reopen, run, runtimes};
use super::{open, open_blocking};
use crate::harness::small_database::durability;

fn options() -> Options {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(8 << 10)
        .table_bytes(8 << 10)
        .merge_operator(Append::default());
    Options::default().keyspace_defaults(keyspace)
}

/// Each writer overwrites its own keys and drops some of the futures. A key must then have the last acknowledged value
/// or a later one.
#[test]
fn write_with_dropped_future_is_complete_or_absent() {
    const WRITERS: u64 = 16;
    const WRITES: u64 = 60;
    let seed = seed();
    for (at, runtime) in runtimes().iter().enumerate() {
        let disk = MemVfs::new();
        let (mut acknowledged, mut dropped) = (BTreeMap::new(), 0);
        run(runtime, async {
            let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).await.unwrap();
            let mut writers = JoinSet::new();
            for writer in 0..WRITERS {
                let db = db.clone();
                let mut rng = TestRng::new(seed.wrapping_add(at as u64 * WRITERS + writer));
                writers.spawn(async move {
                    let (mut acknowledged, mut dropped) = (0, 0);
                    for write in 1..=WRITES {
                        let durability = durability(rng.below(4) == 0);
                        let mut batch = WriteBatch::new();
                        let keyspace = db.default_keyspace();
                        batch.put(&keyspace, writer.to_be_bytes(), write.to_be_bytes());
                        batch.put(&keyspace, (1000 + writer).to_be_bytes(), write.to_be_bytes());
                        let future = Box::pin(db.write(batch, durability));
                        let left = [0, 1, 2, u64::MAX, u64::MAX][rng.below(5) as usize];
                        match (Polls { future, left }).await {
                            Some(written) => {
                                written.unwrap();
                                acknowledged = write;
                            }
                            None => dropped += 1,
                        }
                    }
                    (writer, acknowledged, dropped)
                });
            }
            while let Some(ended) = writers.join_next().await {
                let (writer, write, dropped_count) = ended.unwrap();
                acknowledged.insert(writer, write);
                dropped += dropped_count;
            }
            if at % 2 == 0 {
                db.close(None).await.unwrap();
            }
        });
        assert!(dropped > WRITERS * WRITES / 4, "{dropped}");
        // If `at` is odd, the test does not call `close`. The drop of the last handle then closes the database after
        // the runtime has ended.
        let db = reopen(&disk, options);
        for (writer, acknowledged) in acknowledged {
            let get = |key: u64| db.get(key.to_be_bytes()).unwrap().map(|value| value.to_vec());
            let (one, other) = (get(writer), get(1000 + writer));
            assert_eq!(one, other, "a batch is incomplete, seed {seed}");
            let last = one.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()));
            assert!(
                last >= acknowledged,
                "writer {writer}: {acknowledged} acknowledged, {last} found, seed {seed}"
            );
        }
        db.close(None).unwrap();
    }
}

#[test]
fn tasks_and_threads_write_concurrently() {
    const TASKS: u64 = 64;
    const WRITES: u64 = 40;
    for runtime in runtimes() {
        let blocking = open_blocking(options());
        let threads: Vec<_> = (0..2_u64)
            .map(|thread| {
                let db = blocking.clone();
                #[expect(clippy::disallowed_methods, reason = "not threads of the runtime")]
                std::thread::spawn(move || {
                    for write in 0..WRITES * 4 {
                        let keyspace = db.default_keyspace().with_write_options(Durability::Sync);
                        keyspace.put((2_000 + thread).to_be_bytes(), write.to_be_bytes()).unwrap();
                    }
                })
            })
            .collect();
        run(&runtime, async {
            let db = Db::try_from(blocking.clone()).unwrap();
            let counter = db.keyspace("counter", KeyspaceOptions::default()).await.unwrap();
            let mut tasks = JoinSet::new();
            for task in 0..TASKS {
                let (db, counter) = (db.clone(), counter.clone());
                tasks.spawn(async move {
                    for write in 0..WRITES {
                        let keyspace = db.default_keyspace();
                        let writer = keyspace.with_write_options(durability(write % 8 == 0));
                        writer.put(task.to_be_bytes(), write.to_be_bytes()).await.unwrap();
                        keyspace.merge("log", "x").await.unwrap();
                        // `run_blocking` and `sync` wait for commits on threads of the blocking pool.
                        match (task + write) % 50 {
                            0 => db.run_blocking(lsmx::Db::flush).await.unwrap(),
                            1 => db.sync().await.unwrap(),
                            2 => db
                                .as_blocking()
                                .snapshot()
                                .get(db.as_blocking().default_keyspace().as_ref(), "log")
                                .map(drop)
                                .unwrap(),
                            _ => {}
                        }
                        if write % 10 == 0 {
                            let add = |old: Option<&[u8]>| {
                                let old = old
                                    .map_or(0, |old| u64::from_be_bytes(old.try_into().unwrap()));
                                (old + 1).to_be_bytes().to_vec()
                            };
                            counter.fetch_update("count", add).await.unwrap();
                        }
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
            for task in 0..TASKS {
                let value = db.get(task.to_be_bytes()).await.unwrap().unwrap();
                assert_eq!(&*value, (WRITES - 1).to_be_bytes());
            }
            let count = counter.get("count").await.unwrap().unwrap();
            assert_eq!(&*count, (TASKS * WRITES / 10).to_be_bytes());
            let log = db.get("log").await.unwrap().unwrap();
            assert_eq!(log.len() as u64, TASKS * WRITES);
        });
        for thread in threads {
            thread.join().unwrap();
        }
        blocking.close(None).unwrap();
    }
}

/// While the only thread of the blocking pool is busy, a commit or a close on another thread also commits the queued
/// writes of tasks.
#[test]
fn commit_of_a_thread_includes_queued_writes_of_tasks() {
    let runtime = current_thread(1);
    let blocking = open_blocking(options());
    let db = Db::try_from(blocking.clone()).unwrap();
    let taken = Taken::take(&runtime);
    run(&runtime, async {
        let mut put = pin!(db.put("task", "1"));
        assert!(poll_once(put.as_mut()).is_pending());
        assert!(poll_once(put.as_mut()).is_pending());
        blocking.put("thread", "2").unwrap();
        assert!(poll_once(put.as_mut()).is_ready());
        assert_eq!(db.get("task").await.unwrap().as_deref(), Some(&b"1"[..]));
        let mut put = Box::pin(db.put("task", "3"));
        assert!(poll_once(put.as_mut()).is_pending());
        drop(put);
        blocking.close(None).unwrap();
    });
    taken.free();
}

/// User threads commit the queued writes, so the pool thread finds an empty queue and exits. Later writes must start a
/// pool thread again.
#[test]
fn pool_thread_that_comes_too_late_is_started_again() {
    let runtime = current_thread(1);
    let blocking = open_blocking(options());
    let db = Db::try_from(blocking.clone()).unwrap();
    for round in 0..20_u64 {
        let taken = Taken::take(&runtime);
        run(&runtime, async {
            for write in 0..5_u64 {
                let mut put = pin!(db.put("task", write.to_be_bytes()));
                assert!(poll_once(put.as_mut()).is_pending());
                if write % 2 == round % 2 {
                    blocking.put("thread", write.to_be_bytes()).unwrap();
                    assert!(poll_once(put.as_mut()).is_ready());
                }
            }
        });
        taken.free();
        run(&runtime, db.put("last", round.to_be_bytes())).unwrap();
        let tasks = blocking.get("task").unwrap().unwrap();
        assert_eq!(&*tasks, 4_u64.to_be_bytes());
    }
}

/// A merge operator without a partial merge. The counter holds the largest number of operands that one full merge
/// received.
#[derive(Debug)]
struct Widest(Arc<AtomicUsize>);

impl MergeOperator for Widest {
    fn name(&self) -> &'static str {
        "widest"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        self.0.fetch_max(operands.len(), Ordering::Relaxed);
        Append::default().full_merge(key, base, operands)
    }
}

#[test]
fn operand_chains_of_dropped_futures_are_folded() {
    const MERGES: usize = 2_000;
    for runtime in runtimes() {
        run(&runtime, async {
            let widest = Arc::new(AtomicUsize::new(0));
            let keyspace = KeyspaceOptions::default().merge_operator(Widest(Arc::clone(&widest)));
            let options = Options::default().keyspace_defaults(keyspace);
            let db = open(options).await;
            let keyspace = db.default_keyspace();
            for merge in 0..MERGES {
                let mut queued = Box::pin(keyspace.merge("key", "x"));
                let queued = poll_once(queued.as_mut());
                assert!(queued.is_pending() || matches!(queued, std::task::Poll::Ready(Ok(()))));
                if merge % 64 == 0 {
                    // Commits are ordered, so all earlier merges are also committed.
                    db.put("other", "y").await.unwrap();
                }
            }
            db.put("other", "z").await.unwrap();
            // Background work has merged older operands, but the newest ones may still be a long chain.
            db.run_blocking(lsmx::Db::wait_idle).await.unwrap();
            widest.store(0, Ordering::Relaxed);
            for _ in 0..1_000 {
                let value = db.get("key").await.unwrap().unwrap();
                assert_eq!(value.len(), MERGES);
                if widest.swap(0, Ordering::Relaxed) <= 64 {
                    break;
                }
                tokio::task::spawn_blocking(|| {}).await.unwrap();
            }
            db.get("key").await.unwrap();
            assert!(widest.load(Ordering::Relaxed) <= 64, "{widest:?}");
            db.close(None).await.unwrap();
        });
    }
}

#[test]
fn guard_refuses_after_queued_write_of_same_key() {
    let runtime = current_thread(1);
    let db = Db::try_from(open_blocking(options())).unwrap();
    let taken = Taken::take(&runtime);
    run(&runtime, async {
        let keyspace = db.default_keyspace();
        let read = db.snapshot().await.unwrap().as_blocking().seq();
        let guarded = |value: &str| {
            let mut batch = WriteBatch::new();
            batch.guard(&keyspace, "key", read);
            batch.put(&keyspace, "key", value);
            db.write(batch, Durability::Buffered)
        };
        let (first, second) = (guarded("1"), guarded("2"));
        let (mut first, mut second) = (Box::pin(first), Box::pin(second));
        assert!(poll_once(first.as_mut()).is_pending() && poll_once(second.as_mut()).is_pending());
        taken.free();
        first.await.unwrap();
        assert!(matches!(second.await, Err(Error::Conflict { .. })));
        db.close(None).await.unwrap();
    });
}

/// Many tasks update one key and drop some of their futures. Each awaited update must take effect exactly once.
#[test]
fn fetch_update_of_many_tasks_is_done_once() {
    let seed = seed();
    for runtime in runtimes() {
        run(&runtime, async {
            let db = open(options()).await;
            let tried = Arc::new(AtomicU64::new(0));
            let mut tasks = JoinSet::new();
            for task in 0..16 {
                let (db, tried) = (db.clone(), Arc::clone(&tried));
                let mut rng = TestRng::new(seed.wrapping_add(task));
                tasks.spawn(async move {
                    let mut acknowledged = 0_u64;
                    for _ in 0..20 {
                        let keyspace = db.default_keyspace();
                        let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"x"].concat();
                        let future = Box::pin(keyspace.fetch_update("key", append));
                        let left = if rng.below(4) == 0 { rng.below(4) } else { u64::MAX };
                        tried.fetch_add(1, Ordering::Relaxed);
                        acknowledged += u64::from((Polls { future, left }).await.is_some());
                    }
                    acknowledged
                });
            }
            let mut acknowledged = 0;
            while let Some(ended) = tasks.join_next().await {
                acknowledged += ended.unwrap();
            }
            // Commits are ordered, so queued updates whose futures were dropped are committed before this write.
            db.put("other", "").await.unwrap();
            let count = db.get("key").await.unwrap().unwrap().len() as u64;
            let tried = tried.load(Ordering::Relaxed);
            assert!(
                (acknowledged..=tried).contains(&count),
                "{count} updates, {acknowledged} acknowledged, {tried} tried, seed {seed}"
            );
            db.close(None).await.unwrap();
        });
    }
}
