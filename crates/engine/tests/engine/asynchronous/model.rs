//! Tasks execute random operations, and a model checks the results.

use std::future::poll_fn;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::tokio::{Db, Keyspace, Range, Snapshot};
use lsmx::vfs::MemVfs;
use lsmx::{
    Durability, Error, KeyspaceOptions, Options, ReadOptions, ReadTier, Slice, Update, WriteBatch,
};
use lsmx_testkit::world::{Bytes, Change, Pairs};
use lsmx_testkit::{TestRng, seed};

use super::support::{run, runtimes};

const KEYS: u64 = 400;
const OPERATIONS: u64 = 1_500;
/// Longer than the test.
const HOUR: Duration = Duration::from_secs(3_600);

/// A database, the model of its keyspace, and a snapshot with its model.
struct ModelledTask {
    disk: MemVfs,
    background: Background,
    rng: TestRng,
    db: Db,
    keyspace: Keyspace,
    pairs: Pairs,
    snapshot: Option<(Snapshot, Pairs)>,
}

fn options() -> KeyspaceOptions {
    KeyspaceOptions::default()
        .memtable_bytes(8 << 10)
        .table_bytes(8 << 10)
        .block_bytes(256)
        .merge_operator(Append::default())
}

async fn open(disk: &MemVfs, background: Background) -> (Db, Keyspace) {
    // The cache is smaller than the data, so many reads need files.
    let db_options = Options::default().background(background).block_cache_bytes(16 << 10);
    let db_options = db_options.keyspace_defaults(options()).vfs(Arc::new(disk.clone()));
    let db = Db::open("db", db_options).await.unwrap();
    let keyspace = db.keyspace("other", options()).await.unwrap();
    (db, keyspace)
}

fn draw_key(rng: &mut TestRng) -> Bytes {
    format!("key-{:03}", rng.below(KEYS)).into_bytes().into()
}

fn draw_value(rng: &mut TestRng) -> Bytes {
    vec![rng.next_u64().to_le_bytes()[0]; rng.below(60)].into()
}

impl ModelledTask {
    async fn new(background: Background, seed: u64) -> ModelledTask {
        let disk = MemVfs::new();
        let (db, keyspace) = open(&disk, background).await;
        let (rng, pairs, snapshot) = (TestRng::new(seed), Pairs::new(), None);
        ModelledTask { disk, background, rng, db, keyspace, pairs, snapshot }
    }

    fn apply(&mut self, change: &Change) {
        change.apply(&mut self.pairs, &Append::default());
    }

    async fn write(&mut self) {
        let (key, value) = (draw_key(&mut self.rng), draw_value(&mut self.rng));
        let keyspace = &self.keyspace;
        let change = match self.rng.below(12) {
            9 | 10 => return self.transact(key, value).await,
            11 => {
                if self.rng.is_one_in(2) {
                    keyspace.put_with_ttl(&key, &value, HOUR).await.unwrap();
                } else {
                    let now = Duration::from_micros(self.db.as_blocking().env().now_us());
                    let expires = SystemTime::UNIX_EPOCH + now + HOUR;
                    keyspace.put_until(&key, &value, expires).await.unwrap();
                }
                Change::Put(key, value)
            }
            kind @ 0..4 => {
                let durability = if kind == 3 { Durability::Sync } else { Durability::Buffered };
                keyspace.with_write_options(durability).put(&key, &value).await.unwrap();
                Change::Put(key, value)
            }
            4 => {
                keyspace.delete(&key).await.unwrap();
                Change::Delete(key)
            }
            5 => {
                keyspace.merge(&key, &value).await.unwrap();
                Change::Merge(key, value)
            }
            6 => {
                let end: Bytes = [&key[..key.len() - 1], b"9"].concat().into();
                keyspace.delete_range(key.clone()..end.clone()).await.unwrap();
                Change::DeleteRange((Bound::Included(key), Bound::Excluded(end)))
            }
            7 => {
                let changes = [Change::Put(key, value), Change::Delete(draw_key(&mut self.rng))];
                let mut batch = WriteBatch::new();
                changes.iter().for_each(|change| change.add_to(&mut batch, keyspace.as_ref()));
                self.db.write(batch, Durability::Buffered).await.unwrap();
                return changes.iter().for_each(|change| self.apply(change));
            }
            _ => {
                let before = keyspace
                    .fetch_update(&key, |old| match old {
                        Some(old) if old.len() > 100 => Update::Delete,
                        old => Update::Put([old.unwrap_or_default(), b"u"].concat()),
                    })
                    .await;
                let old = self.pairs.get(&key);
                assert_eq!(before.unwrap().as_deref(), old.map(|old| &**old));
                match old {
                    Some(old) if old.len() > 100 => Change::Delete(key),
                    _ => Change::Merge(key, b"u"[..].into()),
                }
            }
        };
        self.apply(&change);
    }

    /// Reads and writes in a transaction, and commits it or drops it.
    async fn transact(&mut self, key: Bytes, value: Bytes) {
        let (other, gone) = (draw_key(&mut self.rng), draw_key(&mut self.rng));
        let changes = [
            Change::Put(key.clone(), value.clone()),
            Change::Merge(other.clone(), b"t"[..].into()),
            Change::Delete(gone.clone()),
        ];
        let mut pairs = self.pairs.clone();
        changes.iter().for_each(|change| change.apply(&mut pairs, &Append::default()));
        let (keyspace, is_committed) = (&self.keyspace, self.rng.below(4) > 0);
        let keys = [key.clone(), other.clone(), gone.clone()];
        let expected = keys.each_ref().map(|key| pairs.get(key).cloned());
        // Both kinds of transactions have the same methods, of which one kind returns futures of writes.
        macro_rules! execute {
            ($tx:ident, $done:tt) => {
                let old = $tx.get_for_update(keyspace, &key).await.unwrap();
                assert_eq!(old.as_deref(), self.pairs.get(&key).map(|it| &**it));
                execute!($done, $tx.put(keyspace, &key, &value));
                let savepoint = $tx.savepoint();
                execute!($done, $tx.put_with_ttl(keyspace, &other, "undone", HOUR));
                $tx.rollback_to(savepoint).unwrap();
                execute!($done, $tx.merge(keyspace, &other, b"t"));
                execute!($done, $tx.delete(keyspace, &gone));
                let values = $tx.multi_get(keyspace, keys.clone()).await.unwrap();
                let values = values.into_iter().map(|it| it.map(|it| Bytes::from(&*it)));
                assert!(values.eq(expected));
                let mut range = $tx.prefix(keyspace, b"key-1");
                let mut found = Vec::new();
                while let Some(pair) = range.next().await {
                    found.push(owned(pair.unwrap()));
                }
                drop(range);
                let expected = pairs.iter().filter(|(key, _)| key.starts_with(b"key-1"));
                assert!(found.iter().map(|(key, value)| (key, value)).eq(expected));
                if is_committed {
                    $tx.commit(Durability::Buffered).await.unwrap();
                }
            };
            (await, $write:expr) => {
                $write.await.unwrap()
            };
            (now, $write:expr) => {
                $write.unwrap()
            };
        }
        if self.rng.is_one_in(2) {
            let tx = self.db.transaction().await.unwrap();
            execute!(tx, now);
        } else {
            let tx = self.db.locking_transaction(HOUR).await.unwrap();
            execute!(tx, await);
        }
        if is_committed {
            self.pairs = pairs;
        }
    }

    async fn read(&mut self) {
        let keys: Vec<_> = (0..self.rng.below(80)).map(|_| draw_key(&mut self.rng)).collect();
        let (one, other) = (draw_key(&mut self.rng), draw_key(&mut self.rng));
        let (from, to) = if one < other { (one, other) } else { (other, one) };
        let (kind, keyspace) = (self.rng.below(7), &self.keyspace);
        let held = self.snapshot.as_ref().filter(|_| self.rng.is_one_in(2));
        let (snapshot, pairs) = match held {
            Some((snapshot, pairs)) => (Some(snapshot), pairs),
            None => (None, &self.pairs),
        };
        match kind {
            0 | 1 => {
                for key in keys {
                    let value = match snapshot {
                        Some(snapshot) => snapshot.get(keyspace, &key).await,
                        None => keyspace.get(&key).await,
                    };
                    assert_eq!(value.unwrap().as_deref(), pairs.get(&key).map(|it| &**it));
                    let found = match snapshot {
                        Some(snapshot) => snapshot.contains_key(keyspace, &key).await,
                        None => keyspace.contains_key(&key).await,
                    };
                    assert_eq!(found.unwrap(), pairs.contains_key(&key));
                }
            }
            2 => {
                // A read from memory alone may be refused. It never returns a wrong result.
                for key in keys {
                    let options = ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() };
                    let value = match snapshot {
                        Some(snapshot) => snapshot.get_with(keyspace, &key, &options).await,
                        None => keyspace.get_with(&key, &options).await,
                    };
                    match value {
                        Err(Error::WouldBlock) => {}
                        value => {
                            let expected = pairs.get(&key).map(|it| &**it);
                            assert_eq!(value.unwrap().as_deref(), expected);
                        }
                    }
                }
            }
            3 => {
                let expected: Vec<_> = keys.iter().map(|key| pairs.get(key).cloned()).collect();
                let values = match snapshot {
                    Some(snapshot) => snapshot.multi_get(keyspace, keys).await,
                    None => keyspace.multi_get(keys).await,
                };
                let values = values.unwrap().into_iter().map(|it| it.map(|it| Bytes::from(&*it)));
                assert_eq!(values.collect::<Vec<_>>(), expected);
            }
            4 => {
                let iter = || match snapshot {
                    Some(snapshot) => snapshot.iter(keyspace).limit(1),
                    None => keyspace.iter().limit(1),
                };
                let (first, last) = (iter().next().await, iter().next_back().await);
                let key = |pair: Option<lsmx::Result<_>>| pair.map(|pair| owned(pair.unwrap()).0);
                assert_eq!(key(first), pairs.keys().next().cloned());
                assert_eq!(key(last), pairs.keys().next_back().cloned());
            }
            5 => {
                let range = match snapshot {
                    Some(snapshot) => snapshot.prefix(keyspace, b"key-1"),
                    None => keyspace.prefix(b"key-1"),
                };
                let (from, to) = (b"key-1"[..].into(), b"key-2"[..].into());
                compare_range(range, pairs, from, to, &mut self.rng).await;
            }
            _ => {
                let bounds = from.clone()..to.clone();
                let range = match snapshot {
                    Some(snapshot) => snapshot.range(keyspace, bounds),
                    None => keyspace.range(bounds),
                };
                compare_range(range, pairs, from, to, &mut self.rng).await;
            }
        }
    }

    async fn maintain(&mut self) {
        match self.rng.below(8) {
            6 => {
                let copy = self.db.clone_keyspace("other", "copy", options()).await.unwrap();
                compare_all(&copy, &self.pairs).await;
                self.db.run_blocking(|db| db.drop_keyspace("copy")).await.unwrap();
            }
            7 => {
                self.db.rename_keyspace("other", "renamed").await.unwrap();
                compare_all(&self.keyspace, &self.pairs).await;
                self.db.rename_keyspace("renamed", "other").await.unwrap();
            }
            0 => self.snapshot = Some((self.db.snapshot().await.unwrap(), self.pairs.clone())),
            1 => self.snapshot = None,
            2 => self.db.run_blocking(lsmx::Db::flush).await.unwrap(),
            3 => {
                let compacted = self.keyspace.run_blocking(|it| it.compact_range::<&[u8]>(..));
                compacted.await.unwrap();
            }
            4 => self.db.run_blocking(lsmx::Db::wait_idle).await.unwrap(),
            _ => {
                self.snapshot = None;
                self.db.close(None).await.unwrap();
                (self.db, self.keyspace) = open(&self.disk, self.background).await;
            }
        }
    }
}

async fn compare_all(keyspace: &Keyspace, pairs: &Pairs) {
    let (mut range, mut found) = (keyspace.iter(), Pairs::new());
    while let Some(pair) = range.next().await {
        found.extend([owned(pair.unwrap())]);
    }
    assert_eq!(&found, pairs);
}

fn owned((key, value): (Slice, Slice)) -> (Bytes, Bytes) {
    (Bytes::from(&*key), Bytes::from(&*value))
}

/// Reads a range forward, backward as a stream, or from both ends, sometimes with a limit. Compares the pairs with the
/// model.
async fn compare_range(range: Range, pairs: &Pairs, from: Bytes, to: Bytes, rng: &mut TestRng) {
    let expected = pairs.range(from..to).map(|(key, value)| (key.clone(), value.clone()));
    let mut expected: Vec<_> = expected.collect();
    let limit = rng.is_one_in(3).then(|| rng.below(60_u64));
    let mut range = match limit {
        Some(limit) => range.limit(limit),
        None => range,
    };
    let (mut front, mut back) = (Vec::new(), Vec::new());
    match rng.below(3) {
        0 => {
            let mut range = range.rev();
            while let Some(pair) = poll_fn(|task| Pin::new(&mut range).poll_next(task)).await {
                back.push(owned(pair.unwrap()));
            }
        }
        direction => {
            loop {
                let is_forward = direction == 1 || rng.below(5) > 0;
                let pair = if is_forward { range.next().await } else { range.next_back().await };
                let Some(pair) = pair else { break };
                if is_forward { &mut front } else { &mut back }.push(owned(pair.unwrap()));
            }
            assert!(range.next().await.is_none() && range.next_back().await.is_none());
        }
    }
    if let Some(limit) = limit {
        let count = usize::try_from(limit).unwrap().min(expected.len());
        assert_eq!(front.len() + back.len(), count);
        expected.drain(front.len()..expected.len() - back.len());
    }
    back.reverse();
    front.extend(back);
    assert_eq!(front, expected);
}

#[test]
fn tasks_random_operations_match_model() {
    let seed = seed();
    for background in [Background::Inline, Background::default()] {
        for (seed, runtime) in (seed..).zip(runtimes()) {
            run(&runtime, async {
                let mut task = ModelledTask::new(background, seed).await;
                for _ in 0..OPERATIONS {
                    match task.rng.below(100) {
                        0..70 => task.write().await,
                        70..97 => task.read().await,
                        _ => task.maintain().await,
                    }
                }
                task.keyspace.clear().await.unwrap();
                assert!(task.keyspace.iter().next().await.is_none());
                task.db.run_blocking(|db| db.drop_keyspace("other")).await.unwrap();
                assert!(task.keyspace.get("x").await.is_err());
                task.snapshot = None;
                task.db.close(None).await.unwrap();
            });
        }
    }
}
