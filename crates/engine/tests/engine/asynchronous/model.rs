//! The answers of a map, from tasks.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::tokio::{Db, Keyspace, Range, Snapshot};
use lsmx::vfs::MemVfs;
use lsmx::{Durability, KeyspaceOptions, Options, Update, WriteBatch};
use lsmx_testkit::{TestRng, seed};

use super::support::{run, runtimes};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 400;
const OPERATIONS: u64 = 1_500;

fn tuning() -> KeyspaceOptions {
    KeyspaceOptions::default()
        .memtable_bytes(8 << 10)
        .table_bytes(8 << 10)
        .block_bytes(256)
        .merge_operator(Append::default())
}

fn options(background: Background) -> Options {
    // Less than the data, so that many reads are cold.
    Options::default()
        .background(background)
        .block_cache_bytes(16 << 10)
        .keyspace_defaults(tuning())
}

struct World {
    disk: MemVfs,
    background: Background,
    rng: TestRng,
    db: Db,
    keyspace: Keyspace,
    map: Map,
    snapshot: Option<(Snapshot, Map)>,
}

fn append(old: Option<&[u8]>, with: &[u8]) -> Vec<u8> {
    [old.unwrap_or_default(), with].concat()
}

impl World {
    async fn open(disk: &MemVfs, background: Background) -> (Db, Keyspace) {
        let vfs = Arc::new(disk.clone());
        let db = Db::open("db", options(background).vfs(vfs)).await.unwrap();
        let keyspace = db.keyspace("other", tuning()).await.unwrap();
        (db, keyspace)
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key-{:03}", self.rng.below(KEYS)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let byte = self.rng.next_u64().to_le_bytes()[0];
        vec![byte; self.rng.below(60)]
    }

    async fn write(&mut self) {
        let (key, value) = (self.key(), self.value());
        let keyspace = &self.keyspace;
        match self.rng.below(9) {
            0..3 => {
                keyspace.put(&key, &value).await.unwrap();
                self.map.insert(key, value);
            }
            3 => {
                keyspace.with_write_options(Durability::Sync).put(&key, &value).await.unwrap();
                self.map.insert(key, value);
            }
            4 => {
                keyspace.delete(&key).await.unwrap();
                self.map.remove(&key);
            }
            5 => {
                keyspace.merge(&key, &value).await.unwrap();
                let merged = append(self.map.get(&key).map(Vec::as_slice), &value);
                self.map.insert(key, merged);
            }
            6 => {
                let end = append(Some(&key[..key.len() - 1]), b"9");
                keyspace.delete_range(key.clone()..end.clone()).await.unwrap();
                self.map.retain(|at, _| !(key.as_slice()..end.as_slice()).contains(&at.as_slice()));
            }
            7 => {
                let other = self.key();
                let mut batch = WriteBatch::new();
                batch.put(&self.keyspace, &key, &value);
                batch.delete(&self.keyspace, &other);
                self.db.write(batch, Durability::Buffered).await.unwrap();
                self.map.insert(key, value);
                self.map.remove(&other);
            }
            _ => {
                let before = keyspace
                    .fetch_update(&key, |old| match old {
                        Some(old) if old.len() > 100 => Update::Delete,
                        old => Update::Put(append(old, b"u")),
                    })
                    .await;
                let old = self.map.remove(&key);
                assert_eq!(before.unwrap().as_deref(), old.as_deref());
                if old.as_ref().is_none_or(|old| old.len() <= 100) {
                    self.map.insert(key, append(old.as_deref(), b"u"));
                }
            }
        }
    }

    async fn read(&mut self) {
        let keys: Vec<_> = (0..self.rng.below(80)).map(|_| self.key()).collect();
        let (from, to) = (self.key(), self.key());
        let bounds = (Bound::Included(from.min(to.clone())), Bound::Excluded(to));
        let kind = self.rng.below(6);
        let way = self.rng.below(3);
        let (keyspace, snapshot) = match &self.snapshot {
            Some((snapshot, map)) if self.rng.below(2) == 0 => {
                (&self.keyspace, Some((snapshot, map)))
            }
            _ => (&self.keyspace, None),
        };
        let map = snapshot.map_or(&self.map, |(_, map)| map);
        let snapshot = snapshot.map(|(snapshot, _)| snapshot);
        match kind {
            0 | 1 => {
                for key in keys {
                    let value = match snapshot {
                        Some(snapshot) => snapshot.get(keyspace, &key).await,
                        None => keyspace.get(&key).await,
                    };
                    assert_eq!(value.unwrap().as_deref(), map.get(&key).map(Vec::as_slice));
                }
            }
            2 => {
                let expected: Vec<_> = keys.iter().map(|key| map.get(key).cloned()).collect();
                let values = match snapshot {
                    Some(snapshot) => snapshot.multi_get(keyspace, keys).await,
                    None => keyspace.multi_get(keys).await,
                };
                let values: Vec<_> = values
                    .unwrap()
                    .iter()
                    .map(|value| value.as_ref().map(|it| it.to_vec()))
                    .collect();
                assert_eq!(values, expected);
            }
            3 => {
                let iter = || match snapshot {
                    Some(at) => at.iter(keyspace).limit(1),
                    None => keyspace.iter().limit(1),
                };
                let (first, last) = (iter().next().await, iter().next_back().await);
                let key = |entry: Option<lsmx::Result<(lsmx::Slice, lsmx::Slice)>>| {
                    entry.map(|entry| entry.unwrap().0.to_vec())
                };
                assert_eq!(key(first), map.keys().next().cloned());
                assert_eq!(key(last), map.keys().next_back().cloned());
            }
            4 => {
                let prefix = b"key-1";
                let range = match snapshot {
                    Some(snapshot) => snapshot.prefix(keyspace, prefix),
                    None => keyspace.prefix(prefix),
                };
                let bounds = (Bound::Included(prefix.to_vec()), Bound::Excluded(b"key-2".to_vec()));
                equals(range, way, map, bounds, &mut self.rng).await;
            }
            _ => {
                let range = match snapshot {
                    Some(snapshot) => snapshot.range(keyspace, bounds.clone()),
                    None => keyspace.range(bounds.clone()),
                };
                if matches!(&bounds, (Bound::Included(from), Bound::Excluded(to)) if from < to) {
                    equals(range, way, map, bounds, &mut self.rng).await;
                }
            }
        }
    }

    async fn other(&mut self) {
        match self.rng.below(6) {
            0 => self.snapshot = Some((self.db.snapshot().await.unwrap(), self.map.clone())),
            1 => self.snapshot = None,
            2 => self.db.run_blocking(lsmx::Db::flush).await.unwrap(),
            3 => self
                .keyspace
                .run_blocking(|keyspace| keyspace.compact_range::<&[u8]>(..))
                .await
                .unwrap(),
            4 => self.db.run_blocking(lsmx::Db::wait_idle).await.unwrap(),
            _ => {
                self.snapshot = None;
                self.db.close(None).await.unwrap();
                (self.db, self.keyspace) = World::open(&self.disk, self.background).await;
            }
        }
    }
}

/// A range read from the front, from the back, or from both.
async fn equals(
    range: Range,
    way: u64,
    map: &Map,
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    rng: &mut TestRng,
) {
    let expected = map.range(bounds).map(|(key, value)| (key.clone(), value.clone()));
    let mut expected: Vec<_> = expected.collect();
    let limit = (rng.below(3) == 0).then(|| rng.below(60));
    let range = match limit {
        Some(limit) => range.limit(limit),
        None => range,
    };
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let owned = |(key, value): (lsmx::Slice, lsmx::Slice)| (key.to_vec(), value.to_vec());
    if way == 0 {
        let mut range = range.rev();
        while let Some(entry) = poll_fn(|task| Pin::new(&mut range).poll_next(task)).await {
            back.push(owned(entry.unwrap()));
        }
    } else {
        let mut range = range;
        loop {
            if way == 1 || rng.below(5) > 0 {
                let Some(entry) = range.next().await else { break };
                front.push(owned(entry.unwrap()));
            } else {
                let Some(entry) = range.next_back().await else { break };
                back.push(owned(entry.unwrap()));
            }
        }
        assert!(range.next().await.is_none() && range.next_back().await.is_none());
    }
    if let Some(limit) = limit {
        let most = usize::try_from(limit).unwrap().min(expected.len());
        assert_eq!(front.len() + back.len(), most);
        expected.drain(front.len()..expected.len() - back.len());
    }
    back.reverse();
    front.extend(back);
    assert_eq!(front, expected);
}

#[test]
fn tasks_get_the_answers_of_a_map() {
    let seed = seed();
    for background in [Background::Inline, Background::default()] {
        for (at, runtime) in runtimes().iter().enumerate() {
            run(runtime, async {
                let disk = MemVfs::new();
                let (db, keyspace) = World::open(&disk, background).await;
                let rng = TestRng::new(seed.wrapping_add(at as u64));
                let (map, snapshot) = (Map::new(), None);
                let mut world = World { disk, background, rng, db, keyspace, map, snapshot };
                for _ in 0..OPERATIONS {
                    match world.rng.below(100) {
                        0..70 => world.write().await,
                        70..97 => world.read().await,
                        _ => world.other().await,
                    }
                }
                world.keyspace.clear().await.unwrap();
                assert!(world.keyspace.iter().next().await.is_none());
                world.db.run_blocking(|db| db.drop_keyspace("other")).await.unwrap();
                assert!(world.keyspace.get("x").await.is_err());
                world.snapshot = None;
                world.db.close(None).await.unwrap();
            });
        }
    }
}
