//! Followers of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::VfsCall;
use lsmx::tokio::{Db, Follower};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Error, Options};
use tokio::runtime::Builder;

use super::support::{current_thread, gated, poll_once, run, runtimes, until};

async fn pair(vfs: Arc<dyn Vfs>) -> (Db, Follower) {
    let options = || Options::default().vfs(Arc::clone(&vfs));
    let owner = Db::open("db", options()).await.unwrap();
    let follower = Follower::open("db", options()).await.unwrap();
    (owner, follower)
}

#[test]
fn task_follows_a_database() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (owner, follower) = pair(Arc::new(MemVfs::new())).await;
            let first = follower.view();
            owner.put("key", "1").await.unwrap();
            owner.sync().await.unwrap();
            assert!(follower.catch_up().await.unwrap());
            assert!(!follower.catch_up().await.unwrap());
            let second = follower.view();
            owner.put("key", "2").await.unwrap();
            owner.as_blocking().flush().unwrap();
            assert!(follower.clone().catch_up().await.unwrap());
            let shown =
                async |view: &Db| view.get("key").await.unwrap().map(|value| value.to_vec());
            assert_eq!(shown(&first).await, None);
            assert_eq!(shown(&second).await.as_deref(), Some(&b"1"[..]));
            assert_eq!(shown(&follower.view()).await.as_deref(), Some(&b"2"[..]));
            let entry = second.default_keyspace().iter().next().await.unwrap().unwrap();
            assert_eq!(&*entry.1, b"1");
            let refused = second.put("key", "3").await;
            assert!(matches!(refused, Err(Error::OpenedReadOnly)), "{refused:?}");
            assert_eq!(follower.as_blocking().metrics().catch_ups, 3);
            follower.close().await.unwrap();
            let closed = follower.catch_up().await;
            assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
            assert_eq!(shown(&follower.view()).await.as_deref(), Some(&b"2"[..]));
            drop((first, second));
        });
    }
}

/// A catch-up reads files, so it must not run on the task.
#[test]
fn dropped_catch_up_completes_on_the_pool() {
    let runtime = current_thread(1);
    let (disk, shut) = gated(VfsCall::Read, ".wal");
    run(&runtime, async {
        let (owner, follower) = pair(Arc::new(disk)).await;
        owner.put("key", "1").await.unwrap();
        owner.sync().await.unwrap();
        shut.store(true, std::sync::atomic::Ordering::Release);
        let mut dropped = Box::pin(follower.catch_up());
        assert!(matches!(poll_once(dropped.as_mut()), Poll::Pending));
        drop(dropped);
        assert_eq!(follower.view().as_blocking().get("key").unwrap(), None);
        shut.store(false, std::sync::atomic::Ordering::Release);
        until("the catch-up completes", || follower.as_blocking().metrics().catch_ups == 1);
        assert_eq!(follower.view().get("key").await.unwrap().as_deref(), Some(&b"1"[..]));
    });
}

#[test]
fn last_follower_handle_is_dropped_on_the_pool() {
    let vfs = Arc::new(MemVfs::new());
    for runtime in runtimes() {
        run(&runtime, async {
            let options = || Options::default().vfs(vfs.clone());
            let owner = Db::open("db", options()).await.unwrap();
            let options = options().follower_interval(Duration::from_millis(1));
            let follower = Follower::open("db", options).await.unwrap();
            let exists = || vfs.exists("db/FOLLOWERS".as_ref()).unwrap();
            assert!(exists());
            drop(follower);
            until("the files of the follower are removed", || !exists());
            owner.close(None).await.unwrap();
        });
    }
}

/// Each call of `view` returns a new handle. Dropping a handle that is not the last one of its view needs no thread.
#[test]
fn reads_of_short_lived_views_from_memory_start_no_pool_thread() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    let options = || Options::default().vfs(Arc::clone(&vfs));
    let owner = lsmx::Db::open("db", options()).unwrap();
    owner.put("key", "1").unwrap();
    owner.sync().unwrap();
    let follower = Follower::try_from(lsmx::Db::open_follower("db", options()).unwrap()).unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let runtime =
        Builder::new_current_thread().enable_time().on_thread_start(count).build().unwrap();
    run(&runtime, async {
        for _ in 0..10 {
            assert_eq!(follower.view().get("key").await.unwrap().as_deref(), Some(&b"1"[..]));
        }
    });
    // Waits for the threads of the pool.
    drop(runtime);
    assert_eq!(started.load(Ordering::Relaxed), 0);
    owner.close(None).unwrap();
}

#[test]
fn follower_of_ended_runtime_returns_runtime_ended() {
    let runtime = current_thread(1);
    let (owner, follower) = run(&runtime, pair(Arc::new(MemVfs::new())));
    let handle = runtime.handle().clone();
    drop(runtime);
    let _inside = handle.enter();
    let ended = poll_once(Box::pin(follower.catch_up()).as_mut());
    assert!(matches!(ended, Poll::Ready(Err(Error::RuntimeEnded))), "{ended:?}");
    drop(follower);
    drop(owner);
}

#[test]
fn stepped_background_has_no_asynchronous_follower() {
    let vfs = Arc::new(MemVfs::new());
    let owner = lsmx::Db::open("db", Options::default().vfs(vfs.clone())).unwrap();
    let stepped = Options::default().background(Background::Stepped { seed: 1, workers: 1 });
    let blocking = lsmx::Db::open_follower("db", stepped.vfs(vfs)).unwrap();
    let refused = Follower::try_from(blocking);
    assert!(matches!(refused, Err(Error::Contradiction { .. })), "{refused:?}");
    owner.close(None).unwrap();
}
