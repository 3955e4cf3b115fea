//! Guarantees 1, 2, 4 and 5: commits as readers see them, and after a power loss.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::support::{all_kinds, cut_power, lock, number, open, options, seeds, taken, tuning};
use lsmx::env::{Background, Env};
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Keyspace, Snapshot, WriteBatch};
use lsmx_testkit::TestRng;

/// Real threads of which one runs at a time, as the seed says.
fn stepped(seed: u64) -> Background {
    Background::Stepped { seed, workers: 2 }
}

fn open_stepped(disk: &MemVfs, seed: u64) -> Db {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    Db::open("db", options(stepped(seed)).vfs(vfs)).unwrap()
}

/// Runs these side by side until all have ended.
fn side_by_side(env: &Env, bodies: Vec<Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = bodies.into_iter().map(|body| env.spawn("user", body).unwrap()).collect();
    for thread in threads {
        env.join(thread).expect("a thread has found something");
    }
}

/// Batch number `n`: the number in a table, in a blob file and in a bucket, and a key that moves on.
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

/// The last batch that is to be seen, by everything that tells of one.
fn batches(kinds: &[Keyspace; 3], view: &Snapshot) -> [u64; 4] {
    let [tables, values, operands] = kinds;
    let counted = view.get(operands, "n").unwrap().map_or(0, |value| value.len() as u64);
    let moving: Vec<_> = view.prefix(tables, "at-").map(|entry| entry.unwrap().0).collect();
    assert!(moving.len() <= 1, "parts of several batches are there: {moving:?}");
    let moving = moving
        .first()
        .map_or(0, |key| std::str::from_utf8(&key[3..]).unwrap().parse::<u64>().unwrap());
    [
        number(view.get(tables, "n").unwrap()),
        number(view.get(values, "n").unwrap()),
        counted,
        moving,
    ]
}

/// 1. A batch is there whole or not at all, over keyspaces, blob files and buckets alike, for readers and
///    after any crash.
#[test]
fn guarantee_01_atomic() {
    const BATCHES: u64 = 60;
    let mut crashes = 0;
    for seed in seeds(1, 8) {
        let disk = MemVfs::new();
        let db = open_stepped(&disk, seed);
        let kinds = all_kinds(&db);
        let cuts = cut_power(&disk, seed, 40, &Arc::default());
        let (writer, of_writer) = (db.clone(), kinds.clone());
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = vec![Box::new(move || {
            let mut rng = TestRng::new(seed);
            for n in 1..=BATCHES {
                let durability = match rng.is_one_in(5) {
                    true => Durability::Sync,
                    false => Durability::Buffered,
                };
                writer.write(batch(&of_writer, n), durability).unwrap();
            }
        })];
        for _ in 0..2 {
            let (db, kinds) = (db.clone(), kinds.clone());
            bodies.push(Box::new(move || {
                for _ in 0..BATCHES {
                    let seen = batches(&kinds, &db.snapshot());
                    assert!(seen.iter().all(|n| *n == seen[0]), "seed {seed}: seen {seen:?}");
                }
            }));
        }
        side_by_side(db.env(), bodies);
        drop((db, kinds));
        for cut in taken::<()>(&disk, &cuts) {
            let db = open(&cut.disk);
            let there = batches(&all_kinds(&db), &db.snapshot());
            let (image, at) = (cut.image, cut.at);
            assert!(there.iter().all(|n| *n == there[0]), "seed {seed}, {image:?} {at}: {there:?}");
            crashes += 1;
        }
    }
    assert!(crashes > 150, "only {crashes} crashes");
}

/// How far the commits of a run have come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    attempted: u64,
    acknowledged: u64,
    synced: u64,
}

/// 2. Recovery yields the state after exactly the first *n* commits, over all segments and keyspaces: all
///    that were synced, and where only the process was killed all that were acknowledged. A sync is: a `Sync`
///    commit, `sync()`, `flush()`, `checkpoint()`, creating or dropping a keyspace.
#[test]
fn guarantee_02_prefix() {
    let mut crashes = 0;
    for seed in seeds(2, 2) {
        let mut rng = TestRng::new(seed);
        let disk = MemVfs::new();
        let db = open(&disk);
        // One is flushed more often than the other.
        let keyspaces = [db.default_keyspace(), db.keyspace("values", tuning("values")).unwrap()];
        let progress = Arc::new(Mutex::new(Progress::default()));
        let cuts = cut_power(&disk, seed, 5, &progress);
        for n in 1..=90u64 {
            lock(&progress).attempted = n;
            let keyspace = rng.choose(&keyspaces);
            let sync = rng.is_one_in(6);
            let durability = if sync { Durability::Sync } else { Durability::Buffered };
            let len = rng.below(150);
            keyspace.with_write_options(durability).put(n.to_be_bytes(), rng.bytes(len)).unwrap();
            lock(&progress).acknowledged = n;
            // What counts as a sync, beside a commit that asks for one.
            let synced = match n % 18 {
                3 => db.sync(),
                6 => db.flush(),
                9 => db.keyspace("passing", tuning("passing")).map(drop),
                12 => db.drop_keyspace("passing"),
                15 => db.checkpoint(format!("copy-{n}")),
                _ if sync => Ok(()),
                _ => continue,
            };
            synced.unwrap();
            lock(&progress).synced = n;
        }
        drop((db, keyspaces));
        for cut in taken(&disk, &cuts) {
            let db = open(&cut.disk);
            let found: BTreeSet<u64> = ["default", "values"]
                .iter()
                .flat_map(|name| db.open_keyspace(name, None).unwrap().iter())
                .map(|entry| u64::from_be_bytes(entry.unwrap().0[..].try_into().unwrap()))
                .collect();
            let n = found.len() as u64;
            let Progress { attempted, acknowledged, synced } = cut.promised;
            let least = if cut.image == CrashImage::Keep { acknowledged } else { synced };
            let told = format!("seed {seed}, {:?} {}: {:?}", cut.image, cut.at, cut.promised);
            assert!(found.iter().copied().eq(1..=n), "{told}: a later one without an earlier one");
            assert!((least..=attempted).contains(&n), "{told}: {n} are there");
            crashes += 1;
        }
    }
    assert!(crashes > 1_000, "only {crashes} crashes");
}

/// 4. A `Sync` commit is seen by no reader before it is on stable storage, nor any commit before its
///    predecessor.
#[test]
fn guarantee_04_durable_then_visible() {
    const WRITERS: usize = 3;
    const COMMITS: u64 = 12;
    let key = |writer: usize, sync: bool| format!("{writer} {sync}");
    let mut seen_at_all = 0;
    for seed in seeds(4, 25) {
        let disk = MemVfs::new();
        let db = open_stepped(&disk, seed);
        let keyspace = db.default_keyspace();
        let begun = db.snapshot().seq().0;
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for writer in 0..WRITERS {
            let keyspace = keyspace.clone();
            bodies.push(Box::new(move || {
                for n in 1..=COMMITS {
                    for (sync, durability) in
                        [(false, Durability::Buffered), (true, Durability::Sync)]
                    {
                        let value = n.to_be_bytes();
                        keyspace
                            .with_write_options(durability)
                            .put(key(writer, sync), value)
                            .unwrap();
                    }
                }
            }));
        }
        let looks = Arc::new(Mutex::new(Vec::new()));
        let (looker, of_looker, looking) = (db.clone(), disk.clone(), Arc::clone(&looks));
        bodies.push(Box::new(move || {
            for _ in 0..COMMITS {
                let view = looker.snapshot();
                let main = looker.default_keyspace();
                let count = |writer, sync| number(view.get(&main, key(writer, sync)).unwrap());
                let synced: [u64; WRITERS] = std::array::from_fn(|writer| count(writer, true));
                // Power is lost at the moment at which they are seen.
                lock(&looking).push((synced, of_looker.crash(CrashImage::Drop, seed)));
                // Each commit has one number: whoever sees a number sees all before it.
                let others: u64 = (0..WRITERS).map(|writer| count(writer, false)).sum();
                let all = synced.iter().sum::<u64>() + others;
                assert_eq!(view.seq().0 - begun, all, "seed {seed}: a gap among {synced:?}");
            }
        }));
        side_by_side(db.env(), bodies);
        for (seen, lost) in std::mem::take(&mut *lock(&looks)) {
            let db = open(&lost);
            for (writer, seen) in seen.into_iter().enumerate() {
                let there = number(db.get(key(writer, true)).unwrap());
                assert!(there >= seen, "seed {seed}: {seen} was seen, {there} is there");
                seen_at_all += seen;
            }
        }
    }
    assert!(seen_at_all > 500, "readers saw too little: {seen_at_all}");
}

/// 5. A read that starts after a commit was acknowledged, in any thread, sees it. Single-key operations,
///    `fetch_update` and batches are linearizable.
#[test]
fn guarantee_05_read_your_writes() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 15;
    for seed in seeds(5, 25) {
        let disk = MemVfs::new();
        let db = open_stepped(&disk, seed);
        let kinds = all_kinds(&db);
        // What each register shows was acknowledged, or seen by somebody: it never goes back from there.
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
        side_by_side(db.env(), bodies.collect());
        let mut taken = lock(&taken).clone();
        taken.sort_unstable();
        // Nobody's update was lost, none came twice.
        assert!(taken.iter().copied().eq(0..taken.len() as u64), "seed {seed}: {taken:?}");
        assert_eq!(number(kinds[0].get("counter").unwrap()), taken.len() as u64);
        let text = kinds[0].get("text").unwrap().unwrap();
        assert_eq!(text.len() as u64, THREADS * ROUNDS, "seed {seed}: updates among merges");
    }
}

/// One round of one thread: counts on, moves the batches on, and looks at both in one of many ways.
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
    assert!(before >= at_least, "an update began at {before}, {at_least} was known");
    lock(taken).push(before);
    counter.fetch_max(before + 1, Ordering::SeqCst);

    // Merges take no turns with updates, and are not lost either.
    if rng.is_one_in(2) {
        tables.merge("text", "+").unwrap();
    } else {
        let longer = |old: Option<&[u8]>| [old.unwrap_or_default(), b"+"].concat();
        tables.fetch_update("text", longer).unwrap();
    }

    // A batch over two keyspaces: both numbers are those of the same batch, whoever looks.
    let mut batch = WriteBatch::new();
    let view = db.snapshot();
    let next = number(view.get(tables, "batch").unwrap()) + 1;
    batch.guard(tables, "batch", view.seq());
    batch.put(tables, "batch", next.to_be_bytes());
    batch.put(values, "batch", next.to_be_bytes().repeat(2));
    match db.write(batch, Durability::Buffered) {
        Ok(()) => drop(batch_number.fetch_max(next, Ordering::SeqCst)),
        Err(lsmx::Error::GuardRefused { .. } | lsmx::Error::GuardUnknown { .. }) => {}
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
            let mut seen = [0; 2];
            for entry in tables.iter() {
                let (key, value) = entry.unwrap();
                if let Some(at) = keys.iter().position(|known| key[..] == *known.as_bytes()) {
                    seen[at] = number(Some(value));
                }
            }
            seen
        }
        _ => {
            let view = db.snapshot();
            let [one, other] = [tables, values].map(|of| number(view.get(of, "batch").unwrap()));
            assert_eq!(one, other, "a batch is torn");
            [number(view.get(tables, "counter").unwrap()), one]
        }
    };
    for at in 0..2 {
        assert!(seen[at] >= at_least[at], "{seen:?} is seen, {at_least:?} was known");
        known[at].fetch_max(seen[at], Ordering::SeqCst);
    }
}
