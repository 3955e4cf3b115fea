//! Tests of calls that are in progress when the database closes, the runtime shuts down or the log fails. Each call
//! must return.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::tokio::{Db, Follower};
use lsmx::vfs::MemVfs;
use lsmx::{Durability, Error, EventListener, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::{TestRng, seed};
use tokio::task::JoinSet;

use super::support::{
    Stalls, Taken, current_thread, gated, multi_thread, poll_once, reopen, run, runtimes, until,
    without_pool_threads,
};
use super::{open, open_blocking};

fn options() -> Options {
    Options::default().keyspace_defaults(KeyspaceOptions::default().memtable_bytes(4 << 10))
}

#[test]
fn close_ends_stalled_writes() {
    for runtime in runtimes() {
        let (disk, shut) = gated(VfsCall::Create, ".sst");
        run(&runtime, async {
            let stalls = Arc::new(Stalls::default());
            let options = options().listener(Arc::clone(&stalls) as Arc<dyn EventListener>);
            let db = Db::open("db", options.vfs(Arc::new(disk))).await.unwrap();
            shut.store(true, Ordering::Release);
            let mut writers = JoinSet::new();
            for writer in 0..100_u64 {
                let db = db.clone();
                writers.spawn(async move {
                    for write in 0..20_u64 {
                        db.put([writer, write].map(u64::to_be_bytes).concat(), [7; 900]).await?;
                    }
                    Ok(())
                });
            }
            while stalls.standing() < 100 {
                tokio::task::yield_now().await;
            }
            // The flush takes longer than the deadline.
            let closed = db.close(Some(std::time::Duration::from_millis(20))).await;
            assert!(matches!(closed, Err(Error::Deadline { .. })), "{closed:?}");
            while let Some(ended) = writers.join_next().await {
                let ended: lsmx::Result<()> = ended.unwrap();
                assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
            }
            shut.store(false, Ordering::Release);
            db.close(None).await.unwrap();
            assert!(matches!(db.get("key").await, Err(Error::Closed)));
            assert!(matches!(db.put("key", "1").await, Err(Error::Closed)));
            let next = db.default_keyspace().iter().next().await;
            assert!(matches!(next, Some(Err(Error::Closed))));
        });
    }
}

/// An acknowledged commit survives the shutdown of the runtime, and later commits succeed.
#[test]
fn runtime_shutdown_during_commits_loses_none() {
    let seed = seed();
    for round in 0..20 {
        let mut rng = TestRng::new(seed.wrapping_add(round));
        let threads = [1, 1, 4][rng.below(3) as usize];
        let runtime = match rng.below(2) {
            0 => current_thread(threads),
            _ => multi_thread(threads),
        };
        let disk = MemVfs::new();
        let blocking = lsmx::Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
        let db = Db::try_from(blocking.clone()).unwrap();
        let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
        let writes = Arc::new(AtomicU64::new(0));
        for writer in 0..20_u64 {
            let (db, acknowledged, writes) =
                (db.clone(), Arc::clone(&acknowledged), Arc::clone(&writes));
            runtime.spawn(async move {
                for write in 0.. {
                    let key = [writer, write].map(u64::to_be_bytes).concat();
                    if db.put(&key, "value").await.is_err() {
                        return;
                    }
                    acknowledged.lock().unwrap().insert(key);
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        drop(db);
        let enough = rng.below(300);
        runtime.block_on(async {
            while writes.load(Ordering::Relaxed) < enough {
                tokio::task::yield_now().await;
            }
        });
        match rng.below(2) {
            0 => runtime.shutdown_background(),
            _ => drop(runtime),
        }
        blocking.put("after", "1").unwrap();
        blocking.sync().unwrap();
        for key in &*acknowledged.lock().unwrap() {
            assert!(blocking.get(key).unwrap().is_some(), "seed {seed}");
        }
        blocking.close(None).unwrap();
    }
}

/// The runtime shuts down while a write is queued, before a thread of the blocking pool commits the write.
#[test]
fn queued_write_at_runtime_shutdown_is_committed() {
    let blocking = open_blocking(options());
    let db = Db::try_from(blocking.clone()).unwrap();
    let runtime = current_thread(1);
    let taken = Taken::take(&runtime);
    let mut put = Box::pin(db.put("key", "1"));
    {
        let _inside = runtime.enter();
        assert!(poll_once(put.as_mut()).is_pending());
    }
    runtime.shutdown_background();
    taken.free();
    // Either the pool thread commits the queued write before it exits, or this `put` commits it.
    blocking.put("other", "2").unwrap();
    assert_eq!(blocking.get("key").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(poll_once(put.as_mut()).is_ready());
    drop(put);
    // A call on a runtime that has shut down must not hang.
    let ended_runtime = current_thread(1);
    let handle = ended_runtime.handle().clone();
    drop(ended_runtime);
    let _inside = handle.enter();
    // A pool thread of the first runtime may still be committing a write.
    until("the write is committed", || poll_once(Box::pin(db.put("key", "2")).as_mut()).is_ready());
    let ended = poll_once(Box::pin(db.sync()).as_mut());
    assert!(matches!(ended, std::task::Poll::Ready(Err(Error::RuntimeEnded))), "{ended:?}");
    assert_eq!(blocking.get("key").unwrap().as_deref(), Some(&b"2"[..]));
    blocking.close(None).unwrap();
}

#[test]
fn errors_equal_those_of_blocking_handle() {
    for runtime in runtimes() {
        run(&runtime, async {
            let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
            let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).await.unwrap();
            let keyspace = db.keyspace("dropped", KeyspaceOptions::default()).await.unwrap();
            let merged = keyspace.merge("key", "1").await;
            assert!(matches!(merged, Err(Error::NoMergeOperator { .. })), "{merged:?}");
            db.run_blocking(|db| db.drop_keyspace("dropped")).await.unwrap();
            let refused = keyspace.put("key", "1").await;
            assert!(matches!(refused, Err(Error::KeyspaceDropped { .. })), "{refused:?}");
            let refused = keyspace.get("key").await;
            assert!(matches!(refused, Err(Error::KeyspaceDropped { .. })), "{refused:?}");
            let large = db.put(vec![0; 1 << 17], "1").await;
            assert!(matches!(large, Err(Error::TooLarge { .. })), "{large:?}");
            let other = open(options()).await;
            let mut batch = WriteBatch::new();
            batch.put(&other.default_keyspace(), "key", "1");
            let foreign = db.write(batch, Durability::Buffered).await;
            assert!(matches!(foreign, Err(Error::ForeignKeyspace { .. })), "{foreign:?}");
            other.close(None).await.unwrap();
            let unknown = db.open_keyspace("dropped", None).await;
            assert!(matches!(unknown, Err(Error::UnknownKeyspace { .. })), "{unknown:?}");
            // After a failed append to the log, all writes of the commit group and all later writes fail.
            let failing = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
            disk.add_rule(failing.path_contains(".wal"));
            let mut writers = JoinSet::new();
            for writer in 0..10_u64 {
                let db = db.clone();
                writers.spawn(async move { db.put(writer.to_be_bytes(), "1").await });
            }
            while let Some(ended) = writers.join_next().await {
                let ended = ended.unwrap();
                assert!(matches!(ended, Err(Error::ReadOnly { .. })), "{ended:?}");
            }
            assert!(db.as_blocking().health().read_only.is_some());
            disk.clear_rules();
            db.run_blocking(lsmx::Db::resume).await.unwrap();
            db.put("key", "1").await.unwrap();
            db.close(None).await.unwrap();
            let reader = Db::open("db", options().read_only(true).vfs(Arc::new(disk.clone())))
                .await
                .unwrap();
            assert_eq!(reader.get("key").await.unwrap().as_deref(), Some(&b"1"[..]));
            let refused = reader.put("key", "2").await;
            assert!(matches!(refused, Err(Error::OpenedReadOnly)), "{refused:?}");
            reader.close(None).await.unwrap();
            lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).unwrap();
        });
    }
}

#[test]
fn panic_on_pool_thread_reaches_awaiting_task() {
    let runtime = multi_thread(1);
    run(&runtime, async {
        let db = open(options()).await;
        let keyspace = db.default_keyspace();
        let panics = tokio::spawn(async move {
            keyspace.fetch_update("key", |_| -> Vec<u8> { panic!("deliberate") }).await
        });
        assert!(panics.await.unwrap_err().is_panic());
        // The call panicked, and this released its lock of the key.
        db.default_keyspace().fetch_update("key", |_| b"1".to_vec()).await.unwrap();
        db.close(None).await.unwrap();
    });
}

/// The operating system creates no thread for the blocking pool. Calls that need the pool fail, writes complete, and the
/// destructors of handles do not panic.
#[test]
fn handles_without_pool_threads_return_errors_and_close_on_the_task() {
    let disk = MemVfs::new();
    let uncached =
        || options().memtable_bytes_max(8 << 10).block_cache_bytes(0).vfs(Arc::new(disk.clone()));
    let blocking = lsmx::Db::open("db", uncached()).unwrap();
    blocking.put("key", "1").unwrap();
    blocking.flush().unwrap();
    let follower = lsmx::Db::open_follower("db", uncached()).unwrap();
    let (db, follower) = (Db::try_from(blocking).unwrap(), Follower::try_from(follower).unwrap());
    run(&without_pool_threads(), async {
        let read = db.get("key").await;
        assert!(matches!(read, Err(Error::NoThread)), "{read:?}");
        let next = db.default_keyspace().iter().next().await;
        assert!(matches!(next, Some(Err(Error::NoThread))), "{next:?}");
        let caught_up = follower.catch_up().await;
        assert!(matches!(caught_up, Err(Error::NoThread)), "{caught_up:?}");
        // The memtables exceed their limit, so some of these writes need a flush.
        for write in 0..30_u8 {
            db.put([write], [7; 900]).await.unwrap();
        }
        drop(follower);
        drop(db);
    });
    let db = lsmx::Db::open("db", uncached()).unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get([29]).unwrap().as_deref(), Some(&[7; 900][..]));
}

#[test]
fn last_handle_dropped_closes_database() {
    for runtime in runtimes() {
        let disk = MemVfs::new();
        run(&runtime, async {
            let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).await.unwrap();
            let snapshot = db.snapshot().await.unwrap();
            let keyspace = db.default_keyspace();
            drop(db);
            keyspace.put("key", "1").await.unwrap();
            drop(keyspace);
            let locked = Db::open("db", options().vfs(Arc::new(disk.clone()))).await;
            assert!(matches!(locked, Err(Error::Locked { .. })), "{locked:?}");
            drop(snapshot);
        });
        let db = reopen(&disk, options);
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
        db.close(None).unwrap();
    }
}

#[test]
fn stepped_background_has_no_asynchronous_handle() {
    let options = Options::default().background(Background::Stepped { seed: 1, workers: 1 });
    assert!(matches!(Db::try_from(open_blocking(options)), Err(Error::Contradiction { .. })));
}
