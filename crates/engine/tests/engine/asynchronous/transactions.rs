//! Tests of transactions of tasks.

use std::sync::Arc;

use lsmx::merge_operator::Append;
use lsmx::tokio::{Db, Keyspace, Transaction, TransactionRange};
use lsmx::vfs::MemVfs;
use lsmx::{Durability, Error, KeyspaceOptions, Options, Result};
use tokio::task::JoinSet;

use super::support::{Polls, run, runtimes};

/// Returns a database with the keys `a` to `h` in a table. Without a block cache, each read of the table needs the blocking
/// pool.
async fn open(block_cache_bytes: u64) -> (Db, Keyspace) {
    let keyspace = KeyspaceOptions::default().merge_operator(Append::with_separator(b","));
    let options = Options::default().keyspace_defaults(keyspace);
    let options = options.block_cache_bytes(block_cache_bytes).vfs(Arc::new(MemVfs::new()));
    let db = Db::open("db", options).await.unwrap();
    let keyspace = db.default_keyspace();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        keyspace.put(key, "old").await.unwrap();
    }
    db.run_blocking(lsmx::Db::flush).await.unwrap();
    (db, keyspace)
}

async fn entries(mut range: TransactionRange<'_>, backward: bool) -> String {
    let mut entries = Vec::new();
    while let Some(entry) = if backward { range.next_back().await } else { range.next().await } {
        let (key, value) = entry.unwrap();
        entries.push([&*key, b"=", &*value].concat());
    }
    String::from_utf8(entries.join(&b' ')).unwrap()
}

#[test]
fn transaction_of_task_shows_snapshot_and_own_writes() {
    for runtime in runtimes() {
        for cache_bytes in [0, 1 << 20] {
            run(&runtime, async {
                let (db, keyspace) = open(cache_bytes).await;
                let tx = db.transaction().await.unwrap();
                keyspace.put("c", "unseen").await.unwrap();
                tx.merge(&keyspace, "a", "own").unwrap();
                tx.delete_range(&keyspace, "d".."g").unwrap();
                tx.put(&keyspace, "e", "own").unwrap();
                let savepoint = tx.savepoint();
                tx.delete(&keyspace, "h").unwrap();
                assert_eq!(tx.get(&keyspace, "h").await.unwrap(), None);
                tx.rollback_to(savepoint).unwrap();
                let expected = "a=old,own b=old c=old e=own g=old h=old";
                assert_eq!(entries(tx.prefix(&keyspace, ""), false).await, expected);
                let reversed: Vec<_> = expected.split(' ').rev().collect();
                let range = tx.range::<&str>(&keyspace, ..);
                assert_eq!(entries(range, true).await, reversed.join(" "));
                let values = tx.multi_get(&keyspace, ["h", "e", "d", "a"]).await.unwrap();
                let values: Vec<_> = values.iter().map(Option::as_deref).collect();
                let expected = [Some(&b"old"[..]), Some(b"own"), None, Some(b"old,own")];
                assert_eq!(values, expected);
                assert!(tx.get_for_update(&keyspace, "c").await.unwrap().is_some());
                let committed = tx.commit(Durability::Buffered).await;
                assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
                assert_eq!(keyspace.get("e").await.unwrap().as_deref(), Some(&b"old"[..]));
            });
        }
    }
}

/// A range that is read in part conflicts in this part only, although more entries were read ahead.
#[test]
fn range_of_task_conflicts_in_the_returned_part_only() {
    for runtime in runtimes() {
        for cache_bytes in [0, 1 << 20] {
            for (written, conflicts) in [("b0", true), ("c", true), ("c0", false), ("h", false)] {
                run(&runtime, async {
                    let (db, keyspace) = open(cache_bytes).await;
                    let tx = db.transaction().await.unwrap();
                    let mut range = tx.range(&keyspace, "b"..);
                    for key in [b"b", b"c"] {
                        assert_eq!(range.next().await.unwrap().unwrap().0, key);
                    }
                    drop(range);
                    tx.put(&keyspace, "result", "x").unwrap();
                    keyspace.put(written, "new").await.unwrap();
                    let committed = tx.commit(Durability::Sync).await;
                    let is_conflict = matches!(committed, Err(Error::Conflict { .. }));
                    assert_eq!(is_conflict, conflicts, "{written}: {committed:?}");
                });
            }
        }
    }
}

#[test]
fn transact_of_concurrent_tasks_loses_no_update() {
    const TASKS: u64 = 4;
    const UPDATES: u64 = 20;
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open(1 << 20).await;
            let mut tasks = JoinSet::new();
            for _ in 0..TASKS {
                let (db, keyspace) = (db.clone(), keyspace.clone());
                tasks.spawn(async move {
                    for _ in 0..UPDATES {
                        let keyspace = keyspace.clone();
                        let add = async move |tx: &Transaction| -> Result<()> {
                            let old = tx.get(&keyspace, "count").await?;
                            let old =
                                old.map_or(0, |old| u64::from_be_bytes((*old).try_into().unwrap()));
                            tx.put(&keyspace, "count", (old + 1).to_be_bytes())
                        };
                        db.transact(Durability::Buffered, add).await.unwrap();
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
            let count = keyspace.get("count").await.unwrap().unwrap();
            assert_eq!(*count, (TASKS * UPDATES).to_be_bytes());
            let metrics = db.metrics().await.unwrap().transactions;
            assert_eq!(metrics.committed, TASKS * UPDATES);
            assert_eq!(metrics.begun, metrics.committed + metrics.retries);
        });
    }
}

/// A commit whose future is dropped is complete or absent.
#[test]
fn commit_with_dropped_future_is_complete_or_absent() {
    for runtime in runtimes() {
        run(&runtime, async {
            let (db, keyspace) = open(1 << 20).await;
            for polls in 0..20 {
                let tx = db.transaction().await.unwrap();
                assert_eq!(entries(tx.range(&keyspace, "x".."z"), false).await, "");
                let value = format!("{polls}");
                tx.put(&keyspace, "one", &value).unwrap();
                tx.put(&keyspace, "two", &value).unwrap();
                let future = Box::pin(tx.commit(Durability::Sync));
                let committed = Polls { future, left: polls }.await;
                assert!(!matches!(committed, Some(Err(_))), "{committed:?}");
                // A sync follows all queued commits.
                db.sync().await.unwrap();
                let values = keyspace.multi_get(["one", "two"]).await.unwrap();
                assert_eq!(values[0], values[1]);
                let is_written = values[0].as_deref() == Some(value.as_bytes());
                assert!(is_written || committed.is_none(), "{polls}");
            }
        });
    }
}
