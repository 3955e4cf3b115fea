//! Guarantee 6: writes and background jobs do not change what a snapshot or an iterator returns.

use std::collections::BTreeMap;

use lsmx::vfs::MemVfs;
use lsmx::{Db, Keyspace, Range, Slice, Snapshot};
use lsmx_testkit::TestRng;

use crate::harness::options::policies;
use crate::harness::small_database::{keyspace_options, open, open_kinds, seeds};

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 60;

/// A snapshot with its expected entries. For each keyspace, also an iterator that has returned half of the entries.
struct View {
    snapshot: Snapshot,
    contents: Vec<Contents>,
    /// Iterators, each with the entries that it has not returned yet.
    half_read: Vec<(Range, Vec<(Slice, Slice)>)>,
}

impl View {
    fn take(db: &Db, keyspaces: &[Keyspace], model: &[Contents]) -> View {
        let snapshot = db.snapshot();
        let half_read = keyspaces.iter().map(|keyspace| {
            let all: Vec<_> = keyspace.iter().map(|entry| entry.unwrap()).collect();
            let mut range = keyspace.iter();
            let read = range.by_ref().take(all.len() / 2).count();
            (range, all[read..].to_vec())
        });
        let half_read = half_read.collect();
        View { snapshot, contents: model.to_vec(), half_read }
    }

    /// Compares scans and gets of the snapshot with the expected entries.
    fn check(&self, keyspaces: &[Keyspace], after: &str) {
        for (keyspace, expected) in keyspaces.iter().zip(&self.contents) {
            let name = keyspace.name();
            let entries = self.snapshot.iter(keyspace).map(|entry| entry.unwrap());
            let entries: Contents = entries.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            assert!(entries == *expected, "[{name}] scan after {after}");
            let backward = self.snapshot.iter(keyspace).rev();
            let backward = backward.map(|entry| entry.unwrap().0.to_vec());
            assert!(backward.eq(expected.keys().rev().cloned()), "[{name}] backward after {after}");
            for key in 0..KEYS {
                let found = self.snapshot.get(keyspace, key_of(key)).unwrap();
                let expected = expected.get(&key_of(key)).map(Vec::as_slice);
                assert_eq!(found.as_deref(), expected, "[{name}] key {key} after {after}");
            }
        }
    }

    /// Reads the rest of each iterator and compares it with the expected entries.
    fn finish(self, keyspaces: &[Keyspace]) {
        for ((range, left), keyspace) in self.half_read.into_iter().zip(keyspaces) {
            let found: Vec<_> = range.map(|entry| entry.unwrap()).collect();
            assert!(found == left, "an iterator of [{}] changed", keyspace.name());
        }
    }
}

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:02}").into_bytes()
}

/// Applies a random put, merge, delete or range delete to a keyspace and to the model.
fn write(keyspaces: &[Keyspace], model: &mut [Contents], rng: &mut TestRng) {
    let at = rng.below(keyspaces.len());
    let (keyspace, model) = (&keyspaces[at], &mut model[at]);
    let key = key_of(rng.below(KEYS));
    match rng.below(10) {
        0..5 => {
            let len = 20 + rng.below(60);
            let value = rng.bytes(len);
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        5..8 => {
            keyspace.merge(&key, "+").unwrap();
            model.entry(key).or_default().push(b'+');
        }
        8 => {
            keyspace.delete(&key).unwrap();
            model.remove(&key);
        }
        _ => {
            let end = key_of(rng.below(KEYS));
            keyspace.delete_range::<&[u8]>(&key[..]..&end[..]).unwrap();
            model.retain(|at, _| !(*at >= key && *at < end));
        }
    }
}

/// Guarantee 6: a snapshot shows exactly the commits up to its sequence number until it is dropped. Flushes,
/// compactions, changes of the policy, collections of blob files and buckets, range deletes, merges and the drop of a
/// keyspace do not change the entries of a snapshot. The same holds for an iterator.
#[test]
fn guarantee_06_snapshots_and_iterators_are_stable() {
    let (mut rewrites, mut collections, mut merges) = (0, 0, 0);
    for seed in seeds(6, 2) {
        let mut rng = TestRng::new(seed);
        let db = open(&MemVfs::new());
        let keyspaces = open_kinds(&db);
        let mut model = vec![Contents::new(); keyspaces.len()];
        let mut views: Vec<View> = Vec::new();
        for policy in policies() {
            let after = format!("{policy}, seed {seed}");
            for keyspace in &keyspaces {
                keyspace.set_policy(policy.clone()).unwrap();
            }
            (0..60).for_each(|_| write(&keyspaces, &mut model, &mut rng));
            views.push(View::take(&db, &keyspaces, &model));
            (0..120).for_each(|_| write(&keyspaces, &mut model, &mut rng));
            db.flush().unwrap();
            db.env().advance_us(rng.below(100_000_000));
            for keyspace in &keyspaces {
                keyspace.compact_range::<&[u8]>(..).unwrap();
            }
            db.wait_idle().unwrap();
            views.iter().for_each(|view| view.check(&keyspaces, &after));
            if views.len() > 3 {
                let at = rng.below(3);
                views.remove(at).finish(&keyspaces);
            }
        }
        for metrics in db.metrics().keyspaces.values() {
            rewrites += metrics.value_log.rewrites;
            merges += metrics.compaction.jobs;
            let store = metrics.operand_store.unwrap_or_default();
            collections += store.rewrites + store.splits + store.to_tree;
        }
        // Snapshots and iterators keep the data of a dropped keyspace. A new keyspace of the same name does not affect
        // them.
        db.drop_keyspace("values").unwrap();
        let new = db.keyspace("values", keyspace_options("values")).unwrap();
        new.put("key-00", "another").unwrap();
        db.flush().unwrap();
        for view in views {
            view.check(&keyspaces, "a drop");
            view.finish(&keyspaces);
        }
    }
    let jobs = (rewrites, collections, merges);
    assert!(rewrites > 0 && collections > 0 && merges > 50, "too few jobs: {jobs:?}");
}
