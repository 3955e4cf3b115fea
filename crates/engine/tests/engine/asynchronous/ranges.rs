//! Read options of ranges of tasks.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::tokio::{Db, Range};
use lsmx::vfs::MemVfs;
use lsmx::{Error, KeyspaceOptions, Options, ReadOptions, ReadTier, Result, Slice};

use super::support::{poll_once, run, runtimes};
use crate::harness::database::memory_only;

const KEYS: u32 = 1_000;
const NO_TIME: ReadOptions = ReadOptions {
    tier: ReadTier::Storage,
    fill_cache: Some(true),
    read_ahead_bytes_max: None,
    deadline: Some(Duration::ZERO),
};

fn options() -> Options {
    let keyspace = KeyspaceOptions::default().block_bytes(256);
    Options::default()
        .background(Background::Inline)
        .warm_up(false)
        .block_cache_bytes(1 << 20)
        .keyspace_defaults(keyspace)
}

/// Returns a database with the keys 0 to 999 in tables. No block is in memory.
async fn open_cold() -> Db {
    let disk = MemVfs::new();
    let db = lsmx::Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
    for number in 0..KEYS {
        db.put(number.to_be_bytes(), [7; 40]).unwrap();
    }
    db.flush().unwrap();
    db.close(None).unwrap();
    Db::open("db", options().vfs(Arc::new(disk))).await.unwrap()
}

/// Returns the number of the key of an entry.
fn number(entry: Option<Result<(Slice, Slice)>>) -> u32 {
    let (key, _) = entry.unwrap().unwrap();
    u32::from_be_bytes(key[..].try_into().unwrap())
}

/// Loads all blocks into the block cache.
async fn load_all(db: &Db) {
    let fill = ReadOptions { fill_cache: Some(true), ..ReadOptions::default() };
    let mut range = db.default_keyspace().iter().options(&fill);
    for expected in 0..KEYS {
        assert_eq!(number(range.next().await), expected);
    }
    assert!(range.next().await.is_none());
}

#[test]
fn range_with_deadline_of_zero_reads_no_file() {
    for runtime in runtimes() {
        run(&runtime, async {
            let db = open_cold().await;
            let keyspace = db.default_keyspace();
            let mut range = keyspace.iter().options(&NO_TIME);
            for _ in 0..2 {
                let entry = range.next().await;
                assert!(matches!(entry, Some(Err(Error::Deadline { .. }))), "{entry:?}");
                let entry = range.next_back().await;
                assert!(matches!(entry, Some(Err(Error::Deadline { .. }))), "{entry:?}");
            }
            load_all(&db).await;
            let mut range = keyspace.iter().options(&NO_TIME);
            assert_eq!(number(range.next().await), 0);
            assert_eq!(number(range.next_back().await), KEYS - 1);
            db.close(None).await.unwrap();
        });
    }
}

fn assert_would_block(range: &mut Range) {
    for _ in 0..2 {
        let entry = poll_once(pin!(range.next()));
        assert!(matches!(entry, Poll::Ready(Some(Err(Error::WouldBlock)))), "{entry:?}");
    }
}

#[test]
fn range_from_memory_returns_would_block_on_the_task() {
    for runtime in runtimes() {
        run(&runtime, async {
            let db = open_cold().await;
            let mut range = db.default_keyspace().iter().options(&memory_only()).limit(3);
            assert_would_block(&mut range);
            load_all(&db).await;
            assert_eq!(number(range.next().await), 0);
            assert_eq!(number(range.next_back().await), KEYS - 1);
            assert_eq!(number(range.next().await), 1);
            assert!(range.next().await.is_none());
            db.close(None).await.unwrap();
        });
    }
}

/// The options change while entries of a batch are read ahead.
#[test]
fn range_options_apply_after_entries_read_ahead() {
    for runtime in runtimes() {
        run(&runtime, async {
            let db = open_cold().await;
            let mut range = db.default_keyspace().iter();
            assert_eq!(number(range.next().await), 0);
            range = range.options(&memory_only());
            let mut expected = 1;
            let refused = loop {
                match range.next().await {
                    Some(Err(error)) => break error,
                    entry => assert_eq!(number(entry), expected),
                }
                expected += 1;
            };
            assert!(matches!(refused, Error::WouldBlock), "{refused}");
            assert!(expected < KEYS / 2, "{expected}");
            assert_would_block(&mut range);
            range = range.options(&ReadOptions::default());
            for expected in expected..KEYS {
                assert_eq!(number(range.next().await), expected);
            }
            assert!(range.next().await.is_none());
            db.close(None).await.unwrap();
        });
    }
}

/// A batch that fails at one end has read entries ahead. The range returned these entries after the error.
#[test]
fn range_returns_no_entry_after_an_error() {
    for runtime in runtimes() {
        run(&runtime, async {
            let db = open_cold().await;
            let keyspace = db.default_keyspace();
            let fill = ReadOptions { fill_cache: Some(true), ..ReadOptions::default() };
            let mut last = keyspace.range((KEYS - 8).to_be_bytes()..).options(&fill);
            while last.next().await.transpose().unwrap().is_some() {}
            let mut range = keyspace.iter();
            assert_eq!(number(range.next().await), 0);
            // Only the blocks of the first and the last keys are in memory, so the batch at the back fails.
            range = range.options(&NO_TIME);
            assert_eq!(number(range.next_back().await), KEYS - 1);
            let refused = loop {
                match range.next().await {
                    Some(Ok(_)) => {}
                    end => break end,
                }
            };
            assert!(matches!(refused, Some(Err(Error::Deadline { .. }))), "{refused:?}");
            for _ in 0..2 {
                let entry = range.next_back().await;
                assert!(matches!(entry, Some(Err(Error::Deadline { .. }))), "{entry:?}");
            }
            db.close(None).await.unwrap();
        });
    }
}
