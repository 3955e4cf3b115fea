//! Guarantees 1, 2, 4 and 5: the visibility of commits to readers, and the commits that a power loss leaves.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::env::{Background, Env};
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, Keyspace, Snapshot, WriteBatch};
use lsmx_testkit::TestRng;

use crate::harness::small_database::{
    durability, keyspace_options, lock, number, open, open_kinds, open_with, options,
    record_power_losses, seeds, take_power_losses,
};

fn open_stepped(disk: &MemVfs, seed: u64) -> Db {
    open_with(disk, options(Background::Stepped { seed, workers: 2 })).unwrap()
}

fn run_all(env: &Env, bodies: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = bodies.into_iter().map(|body| env.spawn("user", body).unwrap()).collect();
    for thread in threads {
        env.join(thread).expect("a thread panicked");
    }
}

/// Returns batch number `n`. The batch stores `n` in a table, in a blob file and in a bucket. It also writes the key
/// `at-n` and deletes the key that the previous batch wrote.
fn batch(kinds: &[Keyspace; 3], n: u64) -> WriteBatch {
    let [tables, values, operands] = kinds;
    let mut batch = WriteBatch::new();
    batch.put(tables, "n", n.to_be_bytes());
    batch.put(values, "n", n.to_be_bytes().repeat(4));
    batch.merge(operands, "n", "+");
    batch.delete(tables, format!("at-{:03}", n - 1));
    batch.put(tables, format!("at-{n:03}"), "");
    batch
}

/// Reads the number of the last batch from a table, a blob file, a bucket and a key. Batches are atomic, so all four
/// numbers must be equal.
fn last_batch(kinds: &[Keyspace; 3], view: &Snapshot) -> [u64; 4] {
    let [tables, values, operands] = kinds;
    let operand_count = view.get(operands, "n").unwrap().map_or(0, |value| value.len() as u64);
    let keys: Vec<_> = view.prefix(tables, "at-").map(|entry| entry.unwrap().0).collect();
    assert!(keys.len() <= 1, "keys of several batches: {keys:?}");
    let in_key =
        keys.first().map_or(0, |key| std::str::from_utf8(&key[3..]).unwrap().parse().unwrap());
    let [in_table, in_blob] = [tables, values].map(|it| number(view.get(it, "n").unwrap()));
    [in_table, in_blob, operand_count, in_key]
}

/// Guarantee 1: a batch is complete or absent, for readers and after any crash, even if it writes to several keyspaces,
/// blob files and buckets.
#[test]
fn guarantee_01_batches_are_atomic() {
    const BATCHES: u64 = 60;
    let mut crashes = 0;
    for seed in seeds(1, 8) {
        let disk = MemVfs::new();
        let db = open_stepped(&disk, seed);
        let kinds = open_kinds(&db);
        let losses = record_power_losses(&disk, seed, 40, &Arc::default());
        let (writer, written) = (db.clone(), kinds.clone());
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = vec![Box::new(move || {
            let mut rng = TestRng::new(seed);
            for n in 1..=BATCHES {
                writer.write(batch(&written, n), durability(rng.is_one_in(5))).unwrap();
            }
        })];
        for _ in 0..2 {
            let (db, kinds) = (db.clone(), kinds.clone());
            bodies.push(Box::new(move || {
                for _ in 0..BATCHES {
                    let seen = last_batch(&kinds, &db.snapshot());
                    assert!(seen.iter().all(|n| *n == seen[0]), "seed {seed}: {seen:?}");
                }
            }));
        }
        run_all(db.env(), bodies);
        drop((db, kinds));
        for loss in take_power_losses::<()>(&disk, &losses) {
            let db = open(&loss.disk);
            let found = last_batch(&open_kinds(&db), &db.snapshot());
            let (image, at) = (loss.image, loss.at);
            assert!(found.iter().all(|n| *n == found[0]), "seed {seed}, {image:?} {at}: {found:?}");
            crashes += 1;
        }
    }
    assert!(crashes > 150, "only {crashes} crashes");
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    attempted: u64,
    acknowledged: u64,
    synced: u64,
}

/// Guarantee 2: recovery restores the state after exactly the first *n* commits of all keyspaces. These *n* include all
/// synced commits, and after a kill of the process all acknowledged commits. A `Sync` commit, `sync()`, `flush()`,
/// `checkpoint()`, and the creation or drop of a keyspace sync all earlier commits.
#[test]
fn guarantee_02_recovery_yields_a_prefix() {
    let mut crashes = 0;
    for seed in seeds(2, 2) {
        let mut rng = TestRng::new(seed);
        let disk = MemVfs::new();
        let db = open(&disk);
        // The keyspace `values` is flushed more often than the default keyspace.
        let values = db.keyspace("values", keyspace_options("values")).unwrap();
        let keyspaces = [db.default_keyspace(), values];
        let progress = Arc::new(Mutex::new(Progress::default()));
        let losses = record_power_losses(&disk, seed, 5, &progress);
        for n in 1..=90u64 {
            lock(&progress).attempted = n;
            let keyspace = rng.choose(&keyspaces);
            let sync = rng.is_one_in(6);
            let len = rng.below(150);
            let keyspace = keyspace.with_write_options(durability(sync));
            keyspace.put(n.to_be_bytes(), rng.bytes(len)).unwrap();
            lock(&progress).acknowledged = n;
            let synced = match n % 18 {
                3 => db.sync(),
                6 => db.flush(),
                9 => db.keyspace("passing", keyspace_options("passing")).map(drop),
                12 => db.drop_keyspace("passing"),
                15 => db.checkpoint(format!("copy-{n}")),
                _ if sync => Ok(()),
                _ => continue,
            };
            synced.unwrap();
            lock(&progress).synced = n;
        }
        drop((db, keyspaces));
        for loss in take_power_losses(&disk, &losses) {
            let db = open(&loss.disk);
            let found: BTreeSet<u64> = ["default", "values"]
                .iter()
                .flat_map(|name| db.open_keyspace(name, None).unwrap().iter())
                .map(|entry| u64::from_be_bytes(entry.unwrap().0[..].try_into().unwrap()))
                .collect();
            let n = found.len() as u64;
            let Progress { attempted, acknowledged, synced } = loss.promised;
            let least = if loss.image == CrashImage::Keep { acknowledged } else { synced };
            let when = format!("seed {seed}, {:?} {}: {:?}", loss.image, loss.at, loss.promised);
            assert!(found.iter().copied().eq(1..=n), "{when}: not a prefix: {found:?}");
            assert!((least..=attempted).contains(&n), "{when}: {n} commits");
            crashes += 1;
        }
    }
    assert!(crashes > 1_000, "only {crashes} crashes");
}

/// Guarantee 4: a `Sync` commit becomes visible to readers only after it is on stable storage. Each commit becomes
/// visible only after all earlier commits.
#[test]
fn guarantee_04_commits_are_durable_before_visible() {
    const WRITERS: usize = 3;
    const COMMITS: u64 = 12;
    let key = |writer: usize, sync: bool| format!("{writer} {sync}");
    let mut total_seen = 0;
    for seed in seeds(4, 25) {
        let disk = MemVfs::new();
        let db = open_stepped(&disk, seed);
        let keyspace = db.default_keyspace();
        let first = db.snapshot().seq().0;
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for writer in 0..WRITERS {
            let keyspace = keyspace.clone();
            bodies.push(Box::new(move || {
                for n in 1..=COMMITS {
                    for sync in [false, true] {
                        let keyspace = keyspace.with_write_options(durability(sync));
                        keyspace.put(key(writer, sync), n.to_be_bytes()).unwrap();
                    }
                }
            }));
        }
        let images = Arc::new(Mutex::new(Vec::new()));
        let (reader, disk_of_reader, images_of_reader) = (db.clone(), disk, Arc::clone(&images));
        bodies.push(Box::new(move || {
            for _ in 0..COMMITS {
                let view = reader.snapshot();
                let main = reader.default_keyspace();
                let count = |writer, sync| number(view.get(&main, key(writer, sync)).unwrap());
                let synced: [u64; WRITERS] = std::array::from_fn(|writer| count(writer, true));
                // Simulates a power loss immediately after the read.
                let image = disk_of_reader.crash(CrashImage::Drop, seed);
                lock(&images_of_reader).push((synced, image));
                // Each commit uses one sequence number, so the snapshot's number counts the visible commits.
                let buffered: u64 = (0..WRITERS).map(|writer| count(writer, false)).sum();
                let all = synced.iter().sum::<u64>() + buffered;
                assert_eq!(view.seq().0 - first, all, "seed {seed}: a missing commit: {synced:?}");
            }
        }));
        run_all(db.env(), bodies);
        for (seen, image) in std::mem::take(&mut *lock(&images)) {
            let db = open(&image);
            for (writer, seen) in seen.into_iter().enumerate() {
                let found = number(db.get(key(writer, true)).unwrap());
                assert!(found >= seen, "seed {seed}: commit {seen} was seen, {found} is stored");
                total_seen += seen;
            }
        }
    }
    assert!(total_seen > 500, "readers saw only {total_seen} commits");
}

/// Guarantee 5: a read that starts after a commit was acknowledged sees the commit, on every thread. Single-key
/// operations, `fetch_update` and batches are linearizable.
#[test]
fn guarantee_05_reads_see_acknowledged_writes() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 15;
    for seed in seeds(5, 25) {
        let db = open_stepped(&MemVfs::new(), seed);
        let kinds = open_kinds(&db);
        // For each counter, the largest value that any thread has written or read. Later reads must not return a
        // smaller value.
        let known = Arc::new([const { AtomicU64::new(0) }; 2]);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let bodies = (0..THREADS).map(|thread| -> Box<dyn FnOnce() + Send> {
            let (db, kinds, known) = (db.clone(), kinds.clone(), Arc::clone(&known));
            let taken = Arc::clone(&taken);
            Box::new(move || {
                let mut rng = TestRng::new(seed ^ (thread << 50));
                for _ in 0..ROUNDS {
                    read_and_write(&db, &kinds, &known, &taken, &mut rng);
                }
            })
        });
        run_all(db.env(), bodies.collect());
        let mut taken = lock(&taken).clone();
        taken.sort_unstable();
        // The old values that `fetch_update` returned are 0, 1, 2, …, so no update was lost or repeated.
        assert!(taken.iter().copied().eq(0..taken.len() as u64), "seed {seed}: {taken:?}");
        assert_eq!(number(kinds[0].get("counter").unwrap()), taken.len() as u64);
        let text = kinds[0].get("text").unwrap().unwrap();
        assert_eq!(text.len() as u64, THREADS * ROUNDS, "seed {seed}: updates and merges");
    }
}

/// Increments the counter, writes the next batch, and reads the results with a random read method.
fn read_and_write(
    db: &Db,
    kinds: &[Keyspace; 3],
    known: &[AtomicU64; 2],
    taken: &Mutex<Vec<u64>>,
    rng: &mut TestRng,
) {
    let [tables, values, _] = kinds;
    let [counter, batch_number] = known;
    let at_least = counter.load(Ordering::SeqCst);
    let before = tables
        .fetch_update("counter", |old: Option<&[u8]>| {
            let old = old.map_or(0, |old| u64::from_be_bytes(old.try_into().unwrap()));
            (old + 1).to_be_bytes().to_vec()
        })
        .unwrap();
    let before = number(before);
    assert!(before >= at_least, "an update read {before} after {at_least}");
    lock(taken).push(before);
    counter.fetch_max(before + 1, Ordering::SeqCst);

    if rng.is_one_in(2) {
        tables.merge("text", "+").unwrap();
    } else {
        let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"+"].concat();
        tables.fetch_update("text", append).unwrap();
    }

    // The batch writes the same number to two keyspaces.
    let mut batch = WriteBatch::new();
    let view = db.snapshot();
    let next = number(view.get(tables, "batch").unwrap()) + 1;
    batch.guard(tables, "batch", view.seq());
    batch.put(tables, "batch", next.to_be_bytes());
    batch.put(values, "batch", next.to_be_bytes().repeat(2));
    match db.write(batch, Durability::Buffered) {
        Ok(()) => drop(batch_number.fetch_max(next, Ordering::SeqCst)),
        Err(lsmx::Error::Conflict { .. } | lsmx::Error::ConflictUnknown { .. }) => {}
        Err(error) => panic!("{error}"),
    }

    let at_least = known.each_ref().map(|known| known.load(Ordering::SeqCst));
    let keys = ["counter", "batch"];
    let seen = match rng.below(4) {
        0 => keys.map(|key| number(tables.get(key).unwrap())),
        1 => {
            let found = tables.multi_get(keys).unwrap();
            [number(found[0].clone()), number(found[1].clone())]
        }
        2 => {
            let entries: Vec<_> = tables.iter().map(|entry| entry.unwrap()).collect();
            keys.map(|key| {
                let entry = entries.iter().find(|(found, _)| found[..] == *key.as_bytes());
                number(entry.map(|(_, value)| value.clone()))
            })
        }
        _ => {
            let view = db.snapshot();
            let [one, other] = [tables, values].map(|it| number(view.get(it, "batch").unwrap()));
            assert_eq!(one, other, "batch numbers in two keyspaces");
            [number(view.get(tables, "counter").unwrap()), one]
        }
    };
    for at in 0..2 {
        assert!(seen[at] >= at_least[at], "a read returned {seen:?} after {at_least:?}");
        known[at].fetch_max(seen[at], Ordering::SeqCst);
    }
}
