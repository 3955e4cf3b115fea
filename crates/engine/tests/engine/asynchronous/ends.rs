//! The database closes, the runtime goes, the log fails: what is under way is told, and nothing hangs.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::tokio::Db;
use lsmx::vfs::MemVfs;
use lsmx::{Durability, Error, EventListener, KeyspaceOptions, Options, WriteBatch};
use lsmx_testkit::{TestRng, seed};
use tokio::task::JoinSet;

use super::support::{
    Stalls, Taken, current_thread, gated, multi_thread, poll_once, reopen, run, runtimes, until,
};

fn options() -> Options {
    Options::default().keyspace_defaults(KeyspaceOptions::default().memtable_bytes(4 << 10))
}

#[test]
fn close_tells_those_that_wait() {
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
            // Its deadline is over before the flush is.
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

/// A runtime that is shut down takes nothing along that has queued, and leaves no queue that nobody
/// leads.
#[test]
fn a_runtime_may_go_while_commits_are_on_their_way() {
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
        let sure = Arc::new(Mutex::new(BTreeSet::new()));
        let writes = Arc::new(AtomicU64::new(0));
        for writer in 0..20_u64 {
            let (db, sure, writes) = (db.clone(), Arc::clone(&sure), Arc::clone(&writes));
            runtime.spawn(async move {
                for write in 0.. {
                    let key = [writer, write].map(u64::to_be_bytes).concat();
                    if db.put(&key, "value").await.is_err() {
                        return;
                    }
                    sure.lock().unwrap().insert(key);
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
        // Without the runtime it goes on.
        blocking.put("after", "1").unwrap();
        blocking.sync().unwrap();
        for key in &*sure.lock().unwrap() {
            assert!(blocking.get(key).unwrap().is_some(), "seed {seed}");
        }
        blocking.close(None).unwrap();
    }
}

/// The pool was sent for the lead and is shut down before it comes.
#[test]
fn a_promised_lead_is_not_lost_with_the_runtime() {
    let disk = MemVfs::new();
    let blocking = lsmx::Db::open("db", options().vfs(Arc::new(disk))).unwrap();
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
    // The thread of the pool leads as it goes, or this one does; either way it is done.
    blocking.put("other", "2").unwrap();
    assert_eq!(blocking.get("key").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(poll_once(put.as_mut()).is_ready());
    drop(put);
    // A runtime that takes no work any more is no reason to hang.
    let gone = current_thread(1);
    let handle = gone.handle().clone();
    drop(gone);
    let _inside = handle.enter();
    // The thread of the other pool may still be about to go.
    until("who was sent is gone", || poll_once(Box::pin(db.put("key", "2")).as_mut()).is_ready());
    let ended = poll_once(Box::pin(db.sync()).as_mut());
    assert!(matches!(ended, std::task::Poll::Ready(Err(Error::RuntimeEnded))), "{ended:?}");
    assert_eq!(blocking.get("key").unwrap().as_deref(), Some(&b"2"[..]));
    blocking.close(None).unwrap();
}

#[test]
fn errors_are_those_of_the_blocking_handle() {
    for runtime in runtimes() {
        run(&runtime, async {
            let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
            let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).await.unwrap();
            let keyspace = db.keyspace("dropped", KeyspaceOptions::default()).await.unwrap();
            let merged = keyspace.merge("key", "1").await;
            assert!(matches!(merged, Err(Error::NoMergeOperator { .. })), "{merged:?}");
            db.run_blocking(|db| db.drop_keyspace("dropped")).await.unwrap();
            let gone = keyspace.put("key", "1").await;
            assert!(matches!(gone, Err(Error::KeyspaceDropped { .. })), "{gone:?}");
            let gone = keyspace.get("key").await;
            assert!(matches!(gone, Err(Error::KeyspaceDropped { .. })), "{gone:?}");
            let large = db.put(vec![0; 1 << 17], "1").await;
            assert!(matches!(large, Err(Error::TooLarge { .. })), "{large:?}");
            let other = Db::open("db", options().vfs(Arc::new(MemVfs::new()))).await.unwrap();
            let mut batch = WriteBatch::new();
            batch.put(&other.default_keyspace(), "key", "1");
            let foreign = db.write(batch, Durability::Buffered).await;
            assert!(matches!(foreign, Err(Error::ForeignKeyspace { .. })), "{foreign:?}");
            other.close(None).await.unwrap();
            let unknown = db.open_keyspace("dropped", None).await;
            assert!(matches!(unknown, Err(Error::UnknownKeyspace { .. })), "{unknown:?}");
            // The log fails: all that are in the group are told, and all that come after.
            disk.add_rule(
                FaultRule::new(Fault::Error(Errno::Io))
                    .for_calls(&[VfsCall::Append])
                    .path_contains(".wal"),
            );
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
            let sound = lsmx::verify("db", &Options::default().vfs(Arc::new(disk)));
            assert!(sound.is_ok(), "{sound:?}");
        });
    }
}

#[test]
fn a_panic_on_the_pool_goes_on_in_who_awaits_it() {
    let runtime = multi_thread(1);
    run(&runtime, async {
        let db = Db::open("db", options().vfs(Arc::new(MemVfs::new()))).await.unwrap();
        let keyspace = db.default_keyspace();
        let panics = tokio::spawn(async move {
            keyspace.fetch_update("key", |_| -> Vec<u8> { panic!("not today") }).await
        });
        assert!(panics.await.unwrap_err().is_panic());
        // Its turn is over.
        db.default_keyspace().fetch_update("key", |_| b"1".to_vec()).await.unwrap();
        db.close(None).await.unwrap();
    });
}

#[test]
fn the_last_handle_closes_the_database() {
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
fn a_replayed_schedule_has_no_asynchronous_handle() {
    let options = Options::default().background(Background::Stepped { seed: 1, workers: 1 });
    let db = lsmx::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    assert!(matches!(Db::try_from(db), Err(Error::Contradiction { .. })));
}
