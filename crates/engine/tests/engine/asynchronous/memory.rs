//! A read that needs no file is ready at the first poll. Other reads call the file system on threads of the blocking
//! pool only. The metrics count each read once.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread::ThreadId;

use futures_core::Stream;
use lsmx::env::Background;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::metrics::BlockKind;
use lsmx::tokio::Db;
use lsmx::vfs::MemVfs;
use lsmx::{Error, FilterLastRun, KeyspaceOptions, Metrics, Options, ReadOptions, ValueSeparation};
use lsmx_testkit::{TestRng, seed};

use super::open_blocking;
use super::support::{current_thread, poll_once, run, runtimes};
use crate::harness::database::memory_only;

const KEYS: u64 = 3_000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn options(cache_bytes: u64) -> Options {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(16 << 10)
        .table_bytes(16 << 10)
        .block_bytes(256)
        .merge_operator(Append::default())
        .filter_last_run(FilterLastRun::Auto);
    Options::default()
        .background(Background::Inline)
        .seed(1)
        .warm_up(false)
        .open_files_max(8)
        .block_cache_bytes(cache_bytes)
        .keyspace_defaults(keyspace)
}

/// Returns the disk of a closed database with several runs, range deletes and merge operands. A newly opened database
/// opens each table when a read first needs it.
fn loaded() -> MemVfs {
    let disk = MemVfs::new();
    let db = lsmx::Db::open("db", options(1 << 20).vfs(Arc::new(disk.clone()))).unwrap();
    for number in 0..KEYS {
        db.put(key(number), [7; 40]).unwrap();
        if number % 500 == 0 {
            let range = &key(number)[..]..&[&key(number)[..], b"x"].concat();
            db.default_keyspace().delete_range(range).unwrap();
        }
    }
    for number in (0..KEYS).step_by(7) {
        db.default_keyspace().merge(key(number), b"+").unwrap();
    }
    db.close(None).unwrap();
    disk
}

fn open_loaded(cache_bytes: u64) -> lsmx::Db {
    lsmx::Db::open("db", options(cache_bytes).vfs(Arc::new(loaded()))).unwrap()
}

/// Returns a disk that counts the file system calls of `thread` and those of all other threads.
fn watched(disk: MemVfs, thread: ThreadId) -> (FaultVfs, Arc<AtomicU64>, Arc<AtomicU64>) {
    let watched = FaultVfs::new(Arc::new(disk), 1);
    watched.add_rule(FaultRule::new(Fault::Delay).for_calls(VfsCall::ALL).from_then_on());
    let (calls, others) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counted = [Arc::clone(&calls), Arc::clone(&others)];
    watched.set_delay_hook(Some(Arc::new(move |_, _| {
        let other = std::thread::current().id() != thread;
        counted[usize::from(other)].fetch_add(1, Ordering::Relaxed);
    })));
    (watched, calls, others)
}

#[test]
fn read_from_memory_is_ready_at_first_poll() {
    for runtime in runtimes() {
        run(&runtime, async {
            let db = Db::open("db", options(4 << 20).vfs(Arc::new(loaded()))).await.unwrap();
            let keyspace = db.default_keyspace();
            let present = key(8);
            for cold in [true, false] {
                let read = keyspace.as_blocking().get_with(present, &memory_only());
                assert_eq!(matches!(read, Err(Error::WouldBlock)), cold);
                let mut get = Box::pin(keyspace.get(present));
                // The pool thread may complete the read before the first poll ends.
                let first = poll_once(get.as_mut());
                assert!(cold || first.is_ready());
                let value = match first {
                    Poll::Ready(value) => value,
                    Poll::Pending => get.await,
                };
                assert_eq!(value.unwrap().as_deref(), Some(&[7; 40][..]));
            }
            assert!(poll_once(pin!(keyspace.contains_key(present))).is_ready());
            assert!(poll_once(pin!(keyspace.multi_get([present, present]))).is_ready());
            assert!(poll_once(pin!(db.get(present))).is_ready());
            let snapshot = db.snapshot().await.unwrap();
            assert!(poll_once(pin!(snapshot.get(&keyspace, present))).is_ready());
            assert!(poll_once(pin!(snapshot.multi_get(&keyspace, [present]))).is_ready());
            // Loads the blocks that the following iterators and ranges read.
            for _ in 0..2 {
                keyspace.iter().next().await.unwrap().unwrap();
                keyspace.iter().next_back().await.unwrap().unwrap();
            }
            assert!(poll_once(pin!(keyspace.iter().next())).is_ready());
            assert!(poll_once(pin!(snapshot.iter(&keyspace).next_back())).is_ready());
            keyspace.range(&present[..]..).next().await.unwrap().unwrap();
            let mut range = pin!(keyspace.range(&present[..]..));
            let task = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(range.as_mut().poll_next(task).is_ready());
            // The memtable contains the last write.
            db.put("new", "value").await.unwrap();
            assert!(poll_once(pin!(db.get("new"))).is_ready());
            db.close(None).await.unwrap();
        });
    }
}

#[test]
fn contains_key_of_separated_value_is_ready_while_get_reads_blob_file() {
    for runtime in runtimes() {
        run(&runtime, async {
            let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
            let keyspace = KeyspaceOptions::default().value_separation(separation);
            let options = options(1 << 20).keyspace_defaults(keyspace);
            let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).await.unwrap();
            let keyspace = db.default_keyspace();
            db.put("k", [7; 500]).await.unwrap();
            db.run_blocking(lsmx::Db::flush).await.unwrap();
            // Loads the blocks of the table.
            assert!(keyspace.contains_key("k").await.unwrap());
            let found = poll_once(pin!(keyspace.contains_key("k")));
            assert!(matches!(found, Poll::Ready(Ok(true))));
            let snapshot = db.snapshot().await.unwrap();
            let found = poll_once(pin!(snapshot.contains_key(&keyspace, "k")));
            assert!(matches!(found, Poll::Ready(Ok(true))));
            let blob_counts = || db.as_blocking().metrics().cache.get(&BlockKind::Blob).copied();
            assert!(blob_counts().is_none());
            assert_eq!(keyspace.get("k").await.unwrap().unwrap(), [7; 500]);
            assert_eq!(blob_counts().unwrap().misses, 1);
            db.close(None).await.unwrap();
        });
    }
}

#[test]
fn task_thread_never_calls_file_system() {
    let runtime = current_thread(4);
    let (disk, calls, others) = watched(loaded(), std::thread::current().id());
    run(&runtime, async {
        // The block cache is smaller than the data, and the limit of open files is smaller than the number of tables.
        let db = Db::open("db", options(20 << 10).vfs(Arc::new(disk.clone()))).await.unwrap();
        let keyspace = db.default_keyspace();
        let mut rng = TestRng::new(seed());
        for _ in 0..2_000 {
            let number = rng.below(KEYS * 2);
            match rng.below(12) {
                0 => db.put(key(number), [8; 40]).await.unwrap(),
                1 => db.default_keyspace().merge(key(number), "+").await.unwrap(),
                2 => drop(keyspace.iter().limit(1).next().await.transpose().unwrap()),
                3 => drop(keyspace.multi_get([key(number), key(number + 1)]).await.unwrap()),
                4 => {
                    let mut range = keyspace.range(&key(number)[..]..);
                    for _ in 0..rng.below(100) {
                        let Some(entry) = range.next().await else { break };
                        entry.unwrap();
                    }
                }
                5 => drop(keyspace.update_fetch(key(number), |_| b"u".to_vec()).await.unwrap()),
                _ => drop(keyspace.get(key(number)).await.unwrap()),
            }
        }
        db.run_blocking(lsmx::Db::flush).await.unwrap();
        keyspace.run_blocking(|keyspace| keyspace.compact_range::<&[u8]>(..)).await.unwrap();
        db.sync().await.unwrap();
        keyspace.run_blocking(|keyspace| keyspace.explain(key(1))).await.unwrap();
        db.metrics().await.unwrap();
        db.snapshot().await.unwrap();
        db.run_blocking(|db| db.checkpoint("copy")).await.unwrap();
        db.close(None).await.unwrap();
    });
    assert!(others.load(Ordering::Relaxed) > 1_000, "{others:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

/// Returns the counters that must be equal for tasks and threads. A second attempt of a lookup may change which blocks
/// the cache evicts. If `has_evictions` is true, only the sum of hits and misses is compared.
fn counters_of(mut metrics: Metrics, has_evictions: bool) -> Metrics {
    metrics.memory = Default::default();
    metrics.held = Default::default();
    if has_evictions {
        metrics.descriptors = Default::default();
        let tree = metrics.keyspaces.get_mut("default").unwrap();
        tree.filter_last_run.reads_saved = 0.0;
        for (kind, cached) in &mut metrics.cache {
            cached.resident_bytes = 0;
            if *kind != BlockKind::Open {
                cached.hits += std::mem::take(&mut cached.misses);
            }
        }
    }
    metrics
}

/// Number of lookups. After more lookups, the engine would change the filters of the last run at a time that depends
/// on the scheduler.
const LOOKUPS: u64 = 800;

#[test]
fn lookup_is_counted_once_in_tasks_and_threads() {
    lsmx_testkit::time_test();
    let seed = seed();
    let keys_of = |number| [key(number), key(number / 2), key(number)];
    // The cache sizes range from no cache to a cache that holds all blocks.
    for cache_bytes in [0, 4 << 10, 40 << 10, 4 << 20] {
        let mut all = Vec::new();
        for tasks in [false, true] {
            let db = open_loaded(cache_bytes);
            let mut rng = TestRng::new(seed);
            let numbers = (0..LOOKUPS).map(|_| (rng.below(KEYS * 2), rng.below(10)));
            if tasks {
                let db = Db::try_from(db.clone()).unwrap();
                run(&current_thread(1), async {
                    let keyspace = db.default_keyspace();
                    for (number, kind) in numbers {
                        match kind {
                            0 => drop(keyspace.multi_get(keys_of(number)).await.unwrap()),
                            _ => drop(keyspace.get(key(number)).await.unwrap()),
                        }
                    }
                });
            } else {
                let keyspace = db.default_keyspace();
                for (number, kind) in numbers {
                    match kind {
                        0 => drop(keyspace.multi_get(keys_of(number)).unwrap()),
                        _ => drop(keyspace.get(key(number)).unwrap()),
                    }
                }
            }
            all.push(counters_of(db.metrics(), (1..1 << 20).contains(&cache_bytes)));
            let metrics = all.last().unwrap();
            assert!(metrics.keyspaces["default"].filter_last_run.lookups > 300);
        }
        // A `multi_get` is also counted once if only some of its keys are in memory.
        assert_eq!(all[0], all[1], "with a cache of {cache_bytes} bytes, seed {seed}");
    }
}

#[test]
fn read_that_would_block_changes_no_counter() {
    let db = open_loaded(1 << 20);
    let snapshot = db.snapshot();
    let keyspace = db.default_keyspace();
    let before = db.metrics();
    for number in 0..100 {
        let blocked = keyspace.get_with(key(number), &memory_only());
        assert!(matches!(blocked, Err(Error::WouldBlock)), "{blocked:?}");
    }
    let blocked = snapshot.get_with(&keyspace, key(1), &memory_only());
    assert!(matches!(blocked, Err(Error::WouldBlock)));
    assert_eq!(db.metrics(), before);
    let read = keyspace.get(key(1)).unwrap();
    assert_eq!(read, keyspace.get_with(key(1), &memory_only()).unwrap());
}

/// A range that reads only from memory can continue after `WouldBlock`, and returns the same entries as a range that
/// may read files.
#[test]
fn range_from_memory_continues_after_would_block() {
    let seed = seed();
    let mut rng = TestRng::new(seed);
    let db = open_loaded(60 << 10);
    let keyspace = db.default_keyspace();
    let all: Vec<_> = keyspace.iter().map(Result::unwrap).collect();
    let mut blocked = 0;
    for _ in 0..200 {
        for _ in 0..rng.below(200) {
            keyspace.get(key(rng.below(KEYS))).unwrap();
        }
        let (from, to) = (rng.below(all.len() as u64), rng.below(all.len() as u64));
        let (from, to) = (usize::try_from(from.min(to)).unwrap(), from.max(to));
        let to = usize::try_from(to).unwrap();
        let limit = if rng.below(3) == 0 { rng.below(60) } else { u64::MAX };
        let mut range =
            keyspace.range(&*all[from].0..&*all[to].0).options(&memory_only()).limit(limit);
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let backward = rng.below(3) == 0;
            match if backward { range.next_back() } else { range.next() } {
                Some(Ok(entry)) if backward => back.push(entry),
                Some(Ok(entry)) => front.push(entry),
                Some(Err(Error::WouldBlock)) => {
                    blocked += 1;
                    if rng.below(4) == 0 {
                        range = range.options(&ReadOptions::default());
                    } else {
                        // Another range loads the missing blocks.
                        let next = front.last().map_or(&*all[from].0, |(key, _)| key);
                        keyspace.range(next..).take(5).for_each(drop);
                        keyspace.range(..&*all[to].0).rev().take(back.len() + 5).for_each(drop);
                    }
                }
                Some(Err(error)) => panic!("{error}"),
                None => break,
            }
        }
        let count = front.len() + back.len();
        assert_eq!(count, (to - from).min(usize::try_from(limit).unwrap_or(usize::MAX)));
        let (ahead, behind) = (from + front.len(), to - back.len());
        back.reverse();
        assert!(front == all[from..ahead] && back == all[behind..to], "seed {seed}");
    }
    assert!(blocked > 100, "{blocked}");
}

/// A range that reads only from memory returns `WouldBlock` before it skips thousands of tombstones.
#[test]
fn range_from_memory_over_many_tombstones_would_block() {
    let db = open_blocking(Options::default().background(Background::Inline).seed(1));
    for number in 0..5_000_u64 {
        db.put(number.to_be_bytes(), "x").unwrap();
        db.delete(number.to_be_bytes()).unwrap();
    }
    db.put("z", "end").unwrap();
    let mut range = db.default_keyspace().iter().options(&memory_only());
    assert!(matches!(range.next(), Some(Err(Error::WouldBlock))));
    range = range.options(&ReadOptions::default());
    assert_eq!(&*range.next().unwrap().unwrap().0, b"z");
    assert!(range.next().is_none());
}

/// A merge operator that fails if an operand is `!`.
#[derive(Debug)]
struct FailingOperator;

impl lsmx::MergeOperator for FailingOperator {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> lsmx::MergeResult {
        if operands.contains(&&b"!"[..]) {
            return Err(lsmx::MergeError::new("the operand !"));
        }
        Append::default().full_merge(key, base, operands)
    }
}

/// With the large cache, the task reads the range. With the small cache, the blocking pool reads it.
#[test]
fn range_continues_after_failed_merges() {
    for cache_bytes in [1 << 20, 1 << 10] {
        for runtime in runtimes() {
            let disk = MemVfs::new();
            let keyspace =
                KeyspaceOptions::default().block_bytes(256).merge_operator(FailingOperator);
            let options = || options(cache_bytes).keyspace_defaults(keyspace.clone());
            let db = lsmx::Db::open("db", options().vfs(Arc::new(disk.clone()))).unwrap();
            for number in 0..500u32 {
                db.put(number.to_be_bytes(), [7; 40]).unwrap();
                let operand = if number % 5 == 2 { b"!" } else { b"+" };
                db.default_keyspace().merge(number.to_be_bytes(), operand).unwrap();
            }
            db.flush().unwrap();
            db.close(None).unwrap();
            run(&runtime, async {
                let db = Db::open("db", options().vfs(Arc::new(disk.clone()))).await.unwrap();
                for backward in [false, true] {
                    let mut range = db.default_keyspace().iter();
                    let mut found = Vec::new();
                    while let Some(item) =
                        if backward { range.next_back().await } else { range.next().await }
                    {
                        let (key, is_merged) = match item {
                            Ok((key, _)) => (key.to_vec(), true),
                            Err(Error::MergeFailed { key, .. }) => (key, false),
                            Err(error) => panic!("{error}"),
                        };
                        found.push((u32::from_be_bytes(key.try_into().unwrap()), is_merged));
                        assert!(found.len() <= 500, "a key was returned twice");
                    }
                    if backward {
                        found.reverse();
                    }
                    let all: Vec<(u32, bool)> =
                        (0..500).map(|number| (number, number % 5 != 2)).collect();
                    assert_eq!(found, all, "cache of {cache_bytes}");
                }
                // A key whose merge failed counts towards the limit of the range.
                let mut range = db.default_keyspace().iter().limit(20);
                let (mut merged, mut failed) = (0, 0);
                while let Some(item) = range.next().await {
                    *if item.is_ok() { &mut merged } else { &mut failed } += 1;
                }
                assert_eq!((merged, failed), (16, 4));
                db.close(None).await.unwrap();
            });
        }
    }
}
