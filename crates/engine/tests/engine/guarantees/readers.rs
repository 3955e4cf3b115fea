//! Guarantee 6: snapshots and iterators do not change.

use std::collections::BTreeMap;

use lsmx::vfs::MemVfs;
use lsmx::{Db, Keyspace, Range, Slice, Snapshot};
use lsmx_testkit::{TestRng, seed};

use super::support::{all_kinds, open, seeds, tuning};
use crate::harness::{closing, options, queues};

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A snapshot and half-read iterators of all keyspaces, and what they are to show.
struct Still {
    snapshot: Snapshot,
    contents: Vec<Contents>,
    /// At some entry, with what is still to come.
    half_read: Vec<(Range, Vec<(Slice, Slice)>)>,
}

fn contents(snapshot: &Snapshot, keyspace: &Keyspace) -> Contents {
    let entries = snapshot.iter(keyspace).map(|entry| entry.unwrap());
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

impl Still {
    fn take(db: &Db, keyspaces: &[Keyspace], model: &[Contents]) -> Still {
        let snapshot = db.snapshot();
        let half_read = keyspaces.iter().map(|keyspace| {
            let all: Vec<_> = keyspace.iter().map(|entry| entry.unwrap()).collect();
            let mut range = keyspace.iter();
            let read = range.by_ref().take(all.len() / 2).count();
            (range, all[read..].to_vec())
        });
        let half_read = half_read.collect();
        Still { snapshot, contents: model.to_vec(), half_read }
    }

    /// The snapshot shows what it has always shown, read in every way.
    fn check(&self, keyspaces: &[Keyspace], after: &str) {
        for (keyspace, expected) in keyspaces.iter().zip(&self.contents) {
            let name = keyspace.name();
            assert!(contents(&self.snapshot, keyspace) == *expected, "[{name}] after {after}");
            let backward =
                self.snapshot.iter(keyspace).rev().map(|entry| entry.unwrap().0.to_vec());
            let expected_keys = expected.keys().rev().cloned();
            assert!(backward.eq(expected_keys), "[{name}] backward after {after}");
            for key in 0..KEYS {
                let found = self.snapshot.get(keyspace, key_of(key)).unwrap();
                let expected = expected.get(&key_of(key)).map(Vec::as_slice);
                assert_eq!(found.as_deref(), expected, "[{name}] key {key} after {after}");
            }
        }
    }

    /// The iterators go on where they stood.
    fn finish(self, keyspaces: &[Keyspace]) {
        for ((range, left), keyspace) in self.half_read.into_iter().zip(keyspaces) {
            let left_now: Vec<_> = range.map(|entry| entry.unwrap()).collect();
            assert!(left_now == left, "an iterator of [{}] has changed", keyspace.name());
        }
    }
}

const KEYS: u64 = 60;

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:02}").into_bytes()
}

/// A write of any kind, and the same to the model.
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

/// 6. A snapshot sees exactly the commits up to its number, for its whole life; flush, compaction, policy
///    switch, value-log and bucket collection, range deletes, merges and the drop of a keyspace change
///    nothing in it. An iterator likewise.
#[test]
fn guarantee_06_snapshots_are_still() {
    let (mut rewrites, mut collections, mut merges) = (0, 0, 0);
    for seed in seeds(6, 2) {
        let mut rng = TestRng::new(seed);
        let db = open(&MemVfs::new());
        let keyspaces = all_kinds(&db);
        let mut model = vec![Contents::new(); keyspaces.len()];
        let mut stills: Vec<Still> = Vec::new();
        for policy in options::policies() {
            let after = format!("{policy}, seed {seed}");
            for keyspace in &keyspaces {
                keyspace.set_policy(policy.clone()).unwrap();
            }
            for _ in 0..60 {
                write(&keyspaces, &mut model, &mut rng);
            }
            stills.push(Still::take(&db, &keyspaces, &model));
            for _ in 0..120 {
                write(&keyspaces, &mut model, &mut rng);
            }
            db.flush().unwrap();
            db.env().advance_us(rng.below(100_000_000));
            for keyspace in &keyspaces {
                keyspace.compact_range::<&[u8]>(..).unwrap();
            }
            db.wait_idle().unwrap();
            for still in &stills {
                still.check(&keyspaces, &after);
            }
            if stills.len() > 3 {
                let at = rng.below(3);
                stills.remove(at).finish(&keyspaces);
            }
        }
        for metrics in db.metrics().keyspaces.values() {
            rewrites += metrics.value_log.rewrites;
            merges += metrics.compaction.jobs;
            let store = metrics.operand_store.unwrap_or_default();
            collections += store.rewrites + store.splits + store.to_tree;
        }
        // Even a keyspace that is dropped stays for them; one of the same name is another.
        db.drop_keyspace("values").unwrap();
        db.keyspace("values", tuning("values")).unwrap().put("key-00", "another").unwrap();
        db.flush().unwrap();
        for still in stills {
            still.check(&keyspaces, "a drop");
            still.finish(&keyspaces);
        }
    }
    let done = (rewrites, collections, merges);
    assert!(rewrites > 0 && collections > 0 && merges > 50, "too little was done: {done:?}");
}

/// 6. A snapshot that is taken after a drop of its files was picked keeps them.
#[test]
fn snapshot_after_the_pick_of_a_drop_keeps_its_files() {
    queues::late_snapshot_keeps_files(0).unwrap();
}

/// 5, 12. A read that runs while the database is closed, opened again and its files are removed returns the values
///        or `Closed`.
#[test]
fn read_over_close_and_removal_returns_values_or_closed() {
    closing::reads_over_a_close_return_values_or_closed(seed()).unwrap();
}
