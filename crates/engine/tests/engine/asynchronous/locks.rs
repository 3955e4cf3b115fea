//! Tests of transactions of tasks that lock keys.

use std::sync::Arc;
use std::time::Duration;

use lsmx::tokio::{Db, Keyspace, LockingTransaction};
use lsmx::vfs::MemVfs;
use lsmx::{Durability, Error, KeyspaceOptions, Options, Result};
use tokio::task::JoinSet;

use super::support::{Polls, current_thread, poll_once, run, runtimes};

/// Timeout of waits that end for another reason.
const LONG: Duration = Duration::from_secs(200);

async fn open() -> (Db, Keyspace) {
    let options = Options::default().block_cache_bytes(0).vfs(Arc::new(MemVfs::new()));
    let db = Db::open("db", options).await.unwrap();
    let keyspace = db.default_keyspace();
    for key in ["a", "b", "c"] {
        keyspace.put(key, "old").await.unwrap();
    }
    // Without a block cache, each read of the table needs the blocking pool.
    db.run_blocking(lsmx::Db::flush).await.unwrap();
    (db, keyspace)
}

async fn begin(db: &Db) -> LockingTransaction {
    db.locking_transaction(LONG).await.unwrap()
}

fn assert_timeout<T: std::fmt::Debug>(result: Result<T>, locked: &str) {
    let is_timeout =
        matches!(&result, Err(Error::LockTimeout { key, .. }) if key == locked.as_bytes());
    assert!(is_timeout, "{result:?}");
}

/// More tasks wait for locks than the blocking pool has threads.
#[test]
fn increments_of_locking_tasks_never_conflict() {
    const TASKS: u64 = 8;
    const UPDATES: u64 = 20;
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            keyspace.put("n", 0u64.to_be_bytes()).await.unwrap();
            db.run_blocking(lsmx::Db::flush).await.unwrap();
            let mut tasks = JoinSet::new();
            for _ in 0..TASKS {
                let (db, keyspace) = (db.clone(), keyspace.clone());
                tasks.spawn(async move {
                    for _ in 0..UPDATES {
                        let tx = begin(&db).await;
                        let count = tx.get_for_update(&keyspace, "n").await.unwrap().unwrap();
                        let count = u64::from_be_bytes((*count).try_into().unwrap());
                        tx.put(&keyspace, "n", (count + 1).to_be_bytes()).await.unwrap();
                        tx.commit(Durability::Buffered).await.unwrap();
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
            let count = keyspace.get("n").await.unwrap().unwrap();
            assert_eq!(*count, (TASKS * UPDATES).to_be_bytes());
        });
    }
}

#[test]
fn locked_key_times_out_for_all_calls_until_its_owner_ends() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            let owner = begin(&db).await;
            assert_eq!(
                owner.get_for_update(&keyspace, "a").await.unwrap().as_deref(),
                Some(&b"old"[..])
            );
            let tx = db.locking_transaction(Duration::from_millis(5)).await.unwrap();
            assert_timeout(tx.get_for_update(&keyspace, "a").await, "a");
            assert_timeout(tx.put(&keyspace, "a", "x").await, "a");
            assert_timeout(tx.put_with_ttl(&keyspace, "a", "x", LONG).await, "a");
            assert_timeout(tx.put_until(&keyspace, "a", "x", std::time::UNIX_EPOCH).await, "a");
            assert_timeout(tx.delete(&keyspace, "a").await, "a");
            // Other reads do not lock the key.
            assert!(tx.get(&keyspace, "a").await.unwrap().is_some());
            owner.put(&keyspace, "a", "new").await.unwrap();
            assert_eq!(owner.get(&keyspace, "a").await.unwrap().as_deref(), Some(&b"new"[..]));
            owner.commit(Durability::Buffered).await.unwrap();
            assert_eq!(
                tx.get_for_update(&keyspace, "a").await.unwrap().as_deref(),
                Some(&b"new"[..])
            );
            let values = tx.multi_get(&keyspace, ["a", "b", "x"]).await.unwrap();
            let values: Vec<_> = values.iter().map(Option::as_deref).collect();
            assert_eq!(values, [Some(&b"new"[..]), Some(b"old"), None]);
            let savepoint = tx.savepoint();
            tx.put(&keyspace, "b", "discarded").await.unwrap();
            tx.rollback_to(savepoint).unwrap();
            tx.delete_range(&keyspace, "c".."d").unwrap();
            // The read of the key before it was locked is a conflict.
            let committed = tx.commit(Durability::Buffered).await;
            assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
            assert!(keyspace.get("c").await.unwrap().is_some());
        });
    }
}

#[test]
fn write_without_lock_is_a_conflict_of_a_locking_task() {
    for has_writes in [false, true] {
        for runtime in runtimes() {
            run(&runtime, async {
                let (db, keyspace) = open().await;
                let tx = begin(&db).await;
                assert!(tx.get_for_update(&keyspace, "a").await.unwrap().is_some());
                keyspace.put("a", "other").await.unwrap();
                if has_writes {
                    tx.put(&keyspace, "b", "own").await.unwrap();
                }
                let committed = tx.commit(Durability::Buffered).await;
                assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
            });
        }
    }
}

/// Bug: the commit of a locking task checked a key of which the task had only read its own value.
#[test]
fn own_value_of_a_locked_key_is_not_checked() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            let tx = begin(&db).await;
            tx.put(&keyspace, "a", "own").await.unwrap();
            let own = Some(&b"own"[..]);
            assert_eq!(tx.get(&keyspace, "a").await.unwrap().as_deref(), own);
            keyspace.put("a", "other").await.unwrap();
            tx.commit(Durability::Buffered).await.unwrap();
            assert_eq!(keyspace.get("a").await.unwrap().as_deref(), own);
        });
    }
}

#[test]
fn deadlock_of_tasks_is_found_without_a_timeout() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            let (one, two) = (begin(&db).await, begin(&db).await);
            one.put(&keyspace, "a", "1").await.unwrap();
            two.put(&keyspace, "b", "2").await.unwrap();
            let mut waiting = Box::pin(one.put(&keyspace, "b", "1"));
            assert!(poll_once(waiting.as_mut()).is_pending());
            let error = two.delete(&keyspace, "a").await.unwrap_err();
            assert!(matches!(error, Error::Deadlock { .. }), "{error}");
            drop(two);
            waiting.await.unwrap();
            one.commit(Durability::Buffered).await.unwrap();
            assert_eq!(keyspace.get("b").await.unwrap().as_deref(), Some(&b"1"[..]));
        });
    }
}

/// A wait whose future is dropped locks nothing. If the lock table still listed it, the last wait would close a cycle.
#[test]
fn dropped_wait_for_a_key_locks_nothing_and_is_no_longer_listed() {
    run(&current_thread(1), async {
        let (db, keyspace) = open().await;
        let (one, two) = (begin(&db).await, begin(&db).await);
        one.put(&keyspace, "a", "1").await.unwrap();
        two.put(&keyspace, "b", "2").await.unwrap();
        for _ in 0..3 {
            let mut waiting = Box::pin(two.put(&keyspace, "a", "2"));
            assert!(poll_once(waiting.as_mut()).is_pending());
            drop(waiting);
        }
        // The keys of both transactions are still locked.
        let other = db.locking_transaction(Duration::ZERO).await.unwrap();
        assert_timeout(other.delete(&keyspace, "a").await, "a");
        assert_timeout(other.delete(&keyspace, "b").await, "b");
        let mut waiting = Box::pin(one.get_for_update(&keyspace, "b"));
        assert!(poll_once(waiting.as_mut()).is_pending());
        two.commit(Durability::Buffered).await.unwrap();
        assert_eq!(waiting.await.unwrap().as_deref(), Some(&b"2"[..]));
        one.commit(Durability::Buffered).await.unwrap();
        let values = keyspace.multi_get(["a", "b"]).await.unwrap();
        let values: Vec<_> = values.iter().map(Option::as_deref).collect();
        assert_eq!(values, [Some(&b"1"[..]), Some(b"2")]);
        // All locks are free.
        assert!(other.get_for_update(&keyspace, "a").await.unwrap().is_some());
        assert!(other.get_for_update(&keyspace, "b").await.unwrap().is_some());
    });
}

/// Bug: the newest value of a locked key was read from a closed database.
#[test]
fn locking_task_on_closed_database_reads_nothing() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            keyspace.put("a", "in memory").await.unwrap();
            let tx = begin(&db).await;
            tx.get_for_update(&keyspace, "a").await.unwrap();
            db.close(None).await.unwrap();
            for read in [tx.get(&keyspace, "a").await, tx.get_for_update(&keyspace, "b").await] {
                assert!(matches!(read, Err(Error::Closed)), "{read:?}");
            }
        });
    }
}

/// Bug: a read of a locked key did not check the database of the keyspace. Keyspaces of two databases may have the same id.
#[test]
fn locked_key_of_another_database_is_not_read() {
    for runtime in runtimes() {
        run(&runtime, async {
            let ((db, keyspace), (_other, foreign)) = (open().await, open().await);
            let tx = begin(&db).await;
            let savepoint = tx.savepoint();
            tx.put(&keyspace, "a", "own").await.unwrap();
            for is_rolled_back in [false, true] {
                if is_rolled_back {
                    tx.rollback_to(savepoint).unwrap();
                }
                let read = tx.get(&foreign, "a").await;
                assert!(matches!(read, Err(Error::ForeignKeyspace { .. })), "{read:?}");
                let read = tx.multi_get(&foreign, ["a", "b"]).await;
                assert!(matches!(read, Err(Error::ForeignKeyspace { .. })), "{read:?}");
            }
        });
    }
}

/// Bug: a locked key of a dropped keyspace could not be read.
#[test]
fn locked_key_of_a_dropped_keyspace_stays_readable() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, _) = open().await;
            let other = db.keyspace("other", KeyspaceOptions::default()).await.unwrap();
            other.put("a", "old").await.unwrap();
            let tx = begin(&db).await;
            other.put("a", "new").await.unwrap();
            db.run_blocking(lsmx::Db::flush).await.unwrap();
            tx.get_for_update(&other, "a").await.unwrap();
            db.run_blocking(|db| db.drop_keyspace("other")).await.unwrap();
            assert_eq!(tx.get(&other, "a").await.unwrap().as_deref(), Some(&b"new"[..]));
            let committed = tx.commit(Durability::Buffered).await;
            assert!(matches!(committed, Err(Error::KeyspaceDropped { .. })), "{committed:?}");
        });
    }
}

/// Bug: a task that waited for a key ended only with the owner of the key or with its timeout.
#[test]
fn close_ends_waits_of_tasks_for_keys() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            let (one, two) = (begin(&db).await, begin(&db).await);
            one.put(&keyspace, "a", "1").await.unwrap();
            let mut waiting = Box::pin(two.put(&keyspace, "a", "2"));
            assert!(poll_once(waiting.as_mut()).is_pending());
            db.close(None).await.unwrap();
            let ended = waiting.await;
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        });
    }
}

/// Bug: a write locked its key before it failed because the database is read-only. Another task then waited for it.
#[test]
fn writes_of_locking_tasks_lock_no_keys_if_the_database_is_read_only() {
    for runtime in runtimes() {
        run(&runtime, async {
            let disk = Arc::new(MemVfs::new());
            let db = Db::open("db", Options::default().vfs(disk.clone())).await.unwrap();
            db.close(None).await.unwrap();
            let options = Options::default().vfs(disk).read_only(true);
            let db = Db::open("db", options).await.unwrap();
            let (keyspace, transactions) =
                (db.default_keyspace(), [begin(&db).await, begin(&db).await]);
            for tx in &transactions {
                let writes = [
                    tx.put(&keyspace, "a", "x").await,
                    tx.put_with_ttl(&keyspace, "a", "x", LONG).await,
                    tx.put_until(&keyspace, "a", "x", std::time::UNIX_EPOCH).await,
                    tx.merge(&keyspace, "a", "x").await,
                    tx.delete(&keyspace, "a").await,
                ];
                for written in writes {
                    assert!(matches!(written, Err(Error::OpenedReadOnly)), "{written:?}");
                }
            }
            assert_eq!(db.metrics().await.unwrap().transactions.locks_held, 0);
        });
    }
}

/// Futures are dropped after each possible number of polls. Then the transaction ends, and its locks are free.
#[test]
fn futures_dropped_at_any_poll_leave_no_lock_after_the_transaction() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open().await;
            for polls in 0..12 {
                let tx = begin(&db).await;
                let read = Box::pin(tx.get_for_update(&keyspace, "a"));
                let is_read = Polls { future: read, left: polls }.await.is_some();
                let write = Box::pin(tx.put(&keyspace, "b", "new"));
                let is_written = Polls { future: write, left: polls }.await.is_some();
                assert!(polls < 11 || (is_read && is_written));
                if polls % 2 == 0 {
                    let commit = Box::pin(tx.commit(Durability::Sync));
                    let committed = Polls { future: commit, left: polls }.await;
                    assert!(!matches!(committed, Some(Err(_))), "{committed:?}");
                } else {
                    drop(tx);
                }
                db.sync().await.unwrap();
                let other = db.locking_transaction(Duration::ZERO).await.unwrap();
                other.delete(&keyspace, "a").await.unwrap();
                other.delete(&keyspace, "b").await.unwrap();
            }
        });
    }
}
