//! Random transactions and ingests on a few keys of two keyspaces, with power losses, and a check of their history for
//! serializability.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::ingest::IngestOptions;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Keyspace, KeyspaceOptions, Options, Savepoint, Slice, Transaction,
};
use lsmx_testkit::serial::{Lists, Step, check_serializable};
use lsmx_testkit::{TestRng, mix_seeds};

use super::Outcome;
use super::small_database::{
    PowerLoss, PowerLosses, lock, open_with, record_power_losses, take_power_losses,
};

/// Number of keys of each keyspace.
const KEYS: u8 = 8;
/// Key of the list of all transactions with writes, in the order of their commits.
const LOG: &str = "log";
/// Number of the first ingest. Numbers of transactions are less.
const FIRST_INGEST: u32 = 1_000;
/// Time to live of values that expire.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Directory of the external tables.
const EXTERNAL: &str = "external";
/// Limit of a scan of a whole range.
const NO_LIMIT: usize = 100;

/// Results of the transactions of a run.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Committed transactions with writes, and ingests, by number.
    pub(crate) writers: BTreeMap<u32, Vec<Step>>,
    /// Numbers of the ingests in their order, and the possible numbers of transactions before each.
    pub(crate) ingests: Vec<(u32, RangeInclusive<usize>)>,
    /// Committed transactions without writes.
    pub(crate) readers: Vec<Vec<Step>>,
    /// Number of commits that failed because of a conflict, and because the history was too short.
    pub(crate) conflicts: u64,
    pub(crate) unknown: u64,
    /// Number of disk images of power losses that were checked.
    pub(crate) power_losses: usize,
}

#[derive(Clone)]
struct World {
    disk: MemVfs,
    db: Db,
    data: [Keyspace; 2],
    log: Keyspace,
    /// A key for each ingest, with its number. Each ingest adds its key.
    ingested: Keyspace,
    recorded: Arc<Mutex<Recorded>>,
    /// Numbers of the ingests, and of the transactions with a sync, that have returned.
    synced: Arc<Mutex<Vec<u32>>>,
    losses: PowerLosses<Vec<u32>>,
}

fn failed(error: Error) -> String {
    format!("{error:?}")
}

fn name(key: u8) -> String {
    format!("key-{key:02}")
}

/// Returns the numbers in a value. They are separated by commas.
fn numbers(value: &[u8]) -> Vec<u32> {
    let text = std::str::from_utf8(value).unwrap();
    text.split(',').map(|number| number.parse().unwrap()).collect()
}

impl World {
    /// Opens a database and records power losses.
    fn create(background: Background, seed: u64) -> World {
        let disk = MemVfs::new();
        let mut world = World::open(&disk, background);
        world.losses = record_power_losses(&disk, seed, 300, &world.synced);
        world
    }

    fn open(disk: &MemVfs, background: Background) -> World {
        World::open_with_faults(disk, disk, background)
    }

    /// Opens the database through `faults`, a file system that wraps `disk`.
    fn open_with_faults(
        disk: &MemVfs,
        faults: &(impl Vfs + Clone),
        background: Background,
    ) -> World {
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(1 << 10)
            .table_bytes(1 << 10)
            .block_bytes(128)
            .merge_operator(Append::with_separator(b","));
        let options = Options::default().background(background).seed(1);
        let options = options.keyspace_defaults(keyspace.clone());
        let db = open_with(faults, options).unwrap();
        let open = |name| db.keyspace(name, keyspace.clone()).unwrap();
        let (data, log, ingested) = ([open("a"), open("b")], open(LOG), open("ingested"));
        let (disk, recorded, synced) = (disk.clone(), Arc::default(), Arc::default());
        World { disk, db, data, log, ingested, recorded, synced, losses: PowerLosses::default() }
    }

    fn keyspace(&self, key: u8) -> &Keyspace {
        &self.data[usize::from(key / KEYS)]
    }

    /// Returns the numbers of all transactions with writes, in the order of their commits.
    fn order(&self) -> lsmx::Result<Vec<u32>> {
        Ok(list(self.log.get(LOG)?).unwrap_or_default())
    }

    fn contents(&self) -> lsmx::Result<Contents> {
        let ingested = self.ingested.iter().map(|entry| Ok(numbers(&entry?.1)[0]));
        let (order, ingested) = (self.order()?, ingested.collect::<lsmx::Result<_>>()?);
        let mut lists = Lists::new();
        for key in 0..2 * KEYS {
            let list = list(self.keyspace(key).get(name(key))?);
            lists.extend(list.map(|list| (key, list)));
        }
        Ok(Contents { order, ingested, lists })
    }

    /// Ingests random puts and deletes, atomically over both keyspaces.
    fn ingest(&self, rng: &mut TestRng) -> lsmx::Result<()> {
        let number = FIRST_INGEST + lock(&self.recorded).ingests.len() as u32;
        if !self.disk.exists(Path::new(EXTERNAL)).unwrap() {
            self.disk.create_dir(Path::new(EXTERNAL)).unwrap();
        }
        let keys: BTreeSet<u8> = (0..1 + rng.below(3)).map(|_| rng.below(2 * KEYS)).collect();
        let (mut steps, mut requests) = (Vec::new(), Vec::new());
        for (index, keyspace) in self.data.iter().enumerate() {
            let keys = keys.iter().filter(|key| usize::from(**key / KEYS) == index);
            if keys.clone().next().is_none() {
                continue;
            }
            let path = format!("{EXTERNAL}/{number}-{index}");
            let mut table = keyspace.external_table_writer(&path)?;
            for &key in keys {
                let id = number * 100 + steps.len() as u32;
                if rng.is_one_in(4) {
                    table.delete(name(key))?;
                    steps.push(Step::Delete { key });
                } else {
                    table.put(name(key), id.to_string())?;
                    steps.push(Step::Replace { key, id });
                }
            }
            table.finish()?;
            requests.push((keyspace.clone(), vec![path]));
        }
        let path = format!("{EXTERNAL}/{number}");
        let mut table = self.ingested.external_table_writer(&path)?;
        table.put(number.to_string(), number.to_string())?;
        table.finish()?;
        requests.push((self.ingested.clone(), vec![path]));
        let first = self.order()?.len();
        self.db.ingest(&requests, IngestOptions::default())?;
        let position = first..=self.order()?.len();
        let mut recorded = lock(&self.recorded);
        recorded.writers.insert(number, steps);
        recorded.ingests.push((number, position));
        lock(&self.synced).push(number);
        Ok(())
    }

    /// Checks all recorded transactions and ingests, and all power losses.
    fn check(&self) -> Outcome<Recorded> {
        let losses = take_power_losses(&self.disk, &self.losses);
        let mut recorded = std::mem::take(&mut *lock(&self.recorded));
        recorded.power_losses = losses.len();
        let contents = self.contents().map_err(failed)?;
        let recovered = losses.iter().map(|loss| {
            let world = World::open(&loss.disk, Background::Inline);
            world.contents().map_err(failed)
        });
        let recovered = recovered.collect::<Outcome<Vec<_>>>()?;
        let mut outcome = Err("no order of the ingests is possible".to_owned());
        for order in orders(&contents.order, &recorded.ingests) {
            outcome = contents.check(&order, &recorded).and_then(|()| {
                let mut losses = losses.iter().zip(&recovered);
                losses.try_for_each(|(loss, recovered)| {
                    recovered.check_after_power_loss(loss, &order, &recorded)
                })
            });
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(|()| recorded)
    }
}

/// Returns all possible orders of commits, as numbers of transactions and ingests. `transactions` are in the order of their
/// commits.
fn orders(transactions: &[u32], ingests: &[(u32, RangeInclusive<usize>)]) -> Vec<Vec<u32>> {
    // Each element has the numbers of transactions before the ingests so far.
    let mut positions: Vec<Vec<usize>> = vec![Vec::new()];
    for (_, possible) in ingests {
        let extend = |earlier: Vec<usize>| {
            let first = earlier.last().copied().unwrap_or(0).max(*possible.start());
            (first..=*possible.end()).map(move |next| [&earlier[..], &[next]].concat())
        };
        positions = positions.into_iter().flat_map(extend).collect();
    }
    let order = |positions: Vec<usize>| {
        let mut order = transactions.to_vec();
        for ((number, _), position) in ingests.iter().zip(positions).rev() {
            order.insert(position, *number);
        }
        order
    };
    positions.into_iter().map(order).collect()
}

/// Contents of a database.
#[derive(Debug, PartialEq)]
struct Contents {
    /// Numbers of the transactions with writes, in the order of their commits.
    order: Vec<u32>,
    ingested: BTreeSet<u32>,
    lists: Lists,
}

impl Contents {
    fn compare(&self, expected: &Lists) -> Outcome {
        for key in 0..2 * KEYS {
            let (list, expected) = (self.lists.get(&key), expected.get(&key));
            if list != expected {
                return Err(format!("key {key} is {list:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    /// Checks the contents after all recorded transactions and ingests. `order` is the order of their commits.
    fn check(&self, order: &[u32], recorded: &Recorded) -> Outcome {
        let mut missing = recorded.writers.clone();
        let writers = order.iter().map(|number| {
            let failed = || format!("the log contains the failed transaction {number}");
            missing.remove(number).ok_or_else(failed)
        });
        let writers = writers.collect::<Outcome<Vec<_>>>()?;
        if !missing.is_empty() {
            return Err(format!("the log does not contain the transactions {missing:?}"));
        }
        self.compare(&check_serializable(&writers, &recorded.readers)?)
    }

    /// Checks that the contents of a disk image are those of the first transactions and ingests, and of all that were
    /// synced.
    fn check_after_power_loss(
        &self,
        loss: &PowerLoss<Vec<u32>>,
        order: &[u32],
        recorded: &Recorded,
    ) -> Outcome {
        let PowerLoss { image, at, .. } = loss;
        let place = |what| format!("power loss before {at}, {image:?}: {what}");
        let Contents { order: transactions, ingested, .. } = self;
        let first = &order[..order.len().min(transactions.len() + ingested.len())];
        let is_ingest = |number: &u32| *number >= FIRST_INGEST;
        let (first_ingests, first_transactions): (Vec<u32>, Vec<u32>) =
            first.iter().copied().partition(is_ingest);
        if first_transactions != *transactions || !first_ingests.iter().eq(ingested) {
            let what = format!("{transactions:?} and {ingested:?} are not the first of {order:?}");
            return Err(place(what));
        }
        if let Some(lost) = loss.promised.iter().find(|number| !first.contains(number)) {
            return Err(place(format!("the synced commit {lost} is lost")));
        }
        let writers = first.iter().map(|number| recorded.writers[number].clone());
        let expected = check_serializable(&writers.collect::<Vec<_>>(), &[]);
        expected.and_then(|lists| self.compare(&lists)).map_err(place)
    }
}

/// One running transaction.
struct Session {
    number: u32,
    transaction: Transaction,
    steps: Vec<Step>,
    savepoint: Option<Savepoint>,
    has_writes: bool,
    /// Number of further steps.
    left: u64,
}

impl Session {
    fn begin(world: &World, number: u32, rng: &mut TestRng) -> Session {
        let timeout = Duration::from_micros(rng.below(3_u64) * 1000);
        let transaction = match rng.is_one_in(3) {
            true => world.db.locking_transaction(timeout),
            false => world.db.transaction(),
        };
        let left = 1 + rng.below(8_u64);
        let (steps, savepoint, has_writes) = (Vec::new(), None, false);
        Session { number, transaction, steps, savepoint, has_writes, left }
    }

    /// Executes and records one random step. Returns false if the transaction cannot lock a key and must end.
    fn step(&mut self, world: &World, rng: &mut TestRng) -> lsmx::Result<bool> {
        match self.try_step(world, rng) {
            Err(error) if is_lock_failure(&error) => Ok(false),
            result => result.map(|()| true),
        }
    }

    fn try_step(&mut self, world: &World, rng: &mut TestRng) -> lsmx::Result<()> {
        let key = rng.below(2 * KEYS);
        let (keyspace, tx) = (world.keyspace(key), &self.transaction);
        // Each write of a run has another number.
        let id = self.number * 100 + self.steps.len() as u32;
        let step = match rng.below(20) {
            0..3 => Step::Read { key, seen: read(tx, keyspace, key, rng)? },
            3..5 => {
                let other = key / KEYS * KEYS + rng.below(KEYS);
                let values = tx.multi_get(keyspace, [name(key), name(other)])?;
                let [first, second] = values.try_into().unwrap();
                self.steps.push(Step::Read { key, seen: list(first) });
                Step::Read { key: other, seen: list(second) }
            }
            5..10 => scan(tx, keyspace, key, rng)?,
            10..13 => {
                tx.merge(keyspace, name(key), id.to_string())?;
                Step::Append { key, id }
            }
            13..16 => {
                // Some values expire, but not during the test.
                match id.is_multiple_of(3) {
                    true => tx.put_with_ttl(keyspace, name(key), id.to_string(), YEAR)?,
                    false => tx.put(keyspace, name(key), id.to_string())?,
                }
                Step::Replace { key, id }
            }
            16 => {
                tx.delete(keyspace, name(key))?;
                Step::Delete { key }
            }
            17 => {
                let keys = key..(key / KEYS + 1) * KEYS;
                let keys = keys.start..keys.end.min(key + 1 + rng.below(KEYS));
                tx.delete_range(keyspace, name(keys.start)..name(keys.end))?;
                Step::DeleteRange { keys }
            }
            18 => {
                self.savepoint = Some(tx.savepoint());
                Step::Savepoint
            }
            _ => match self.savepoint {
                Some(savepoint) => {
                    tx.rollback_to(savepoint)?;
                    Step::RollBack
                }
                None => Step::Read { key, seen: list(tx.get(keyspace, name(key))?) },
            },
        };
        self.has_writes |= !matches!(step, Step::Read { .. } | Step::Scan { .. });
        self.steps.push(step);
        Ok(())
    }

    /// Commits or discards the transaction.
    fn end(self, world: &World, rng: &mut TestRng) -> lsmx::Result<()> {
        if rng.is_one_in(10) {
            return Ok(());
        }
        if self.has_writes {
            // The operand is not read by any transaction, so it causes no conflict.
            let logged = self.transaction.merge(&world.log, LOG, self.number.to_string());
            if logged.as_ref().is_err_and(is_lock_failure) {
                return Ok(());
            }
            logged?;
        }
        let durability = if rng.is_one_in(4) { Durability::Sync } else { Durability::Buffered };
        let committed = self.transaction.commit(durability);
        let mut recorded = lock(&world.recorded);
        match committed {
            Ok(()) if self.has_writes => {
                recorded.writers.insert(self.number, self.steps);
                if durability == Durability::Sync {
                    lock(&world.synced).push(self.number);
                }
            }
            Ok(()) => recorded.readers.push(self.steps),
            Err(Error::Conflict { .. }) => recorded.conflicts += 1,
            Err(Error::ConflictUnknown { .. }) => recorded.unknown += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn is_lock_failure(error: &Error) -> bool {
    matches!(error, Error::LockTimeout { .. } | Error::Deadlock { .. })
}

fn list(value: Option<Slice>) -> Option<Vec<u32>> {
    value.map(|value| numbers(&value))
}

fn read(
    tx: &Transaction,
    keyspace: &Keyspace,
    key: u8,
    rng: &mut TestRng,
) -> lsmx::Result<Option<Vec<u32>>> {
    let value = match rng.is_one_in(3) {
        true => tx.get_for_update(keyspace, name(key)),
        false => tx.get(keyspace, name(key)),
    };
    value.map(list)
}

/// Reads a random part of the keyspace of `key`.
fn scan(tx: &Transaction, keyspace: &Keyspace, key: u8, rng: &mut TestRng) -> lsmx::Result<Step> {
    let first = key / KEYS * KEYS;
    let keys: Range<u8> = match rng.is_one_in(3) {
        true => first..first + KEYS,
        false => key..first + KEYS - rng.below(first + KEYS - key),
    };
    let mut range = match rng.below(3) {
        0 if keys.len() == usize::from(KEYS) => tx.prefix(keyspace, "key-"),
        1 => tx.range(keyspace, name(keys.start)..=name(keys.end - 1)),
        _ => tx.range(keyspace, name(keys.start)..name(keys.end)),
    };
    let backward = rng.is_one_in(2);
    let limit = if rng.is_one_in(2) { NO_LIMIT } else { rng.between(0, 3) };
    let mut seen = Vec::new();
    while seen.len() < limit {
        let Some(entry) = (if backward { range.next_back() } else { range.next() }) else { break };
        let (name, value) = entry?;
        let key = std::str::from_utf8(&name[4..]).unwrap().parse().unwrap();
        seen.push((key, numbers(&value)));
    }
    Ok(Step::Scan { keys, backward, limit, seen })
}

/// Runs up to four transactions at a time on one thread. Flushes, compactions and ingests happen between their steps.
pub(crate) fn interleaved_transactions(seed: u64) -> Outcome<Recorded> {
    let world = World::create(Background::Inline, seed);
    let mut rng = TestRng::new(seed);
    interleave(&world, &mut rng, true, &mut |error| Err(failed(error)))?;
    world.check()
}

/// Runs interleaved transactions while calls of the file system fail. Each failure ends its transaction, and the
/// database is resumed. Compares the contents with those after another open. Returns the number of failures, too.
pub(crate) fn failing_transactions(seed: u64) -> Outcome<(Recorded, u64)> {
    const CALLS: [VfsCall; 4] = [VfsCall::Append, VfsCall::Sync, VfsCall::Create, VfsCall::SyncDir];
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
    let world = World::open_with_faults(&disk, &faults, Background::Inline);
    let mut rng = TestRng::new(seed);
    let add_rules = || {
        let error = Fault::Error(Errno::Io);
        faults.add_rule(FaultRule::new(error).for_calls(&CALLS).chance(0.02));
        faults.add_rule(FaultRule::new(Fault::ShortWrite(Errno::NoSpace)).chance(0.01));
    };
    add_rules();
    let mut failures = 0;
    interleave(&world, &mut rng, false, &mut |_| {
        failures += 1;
        faults.clear_rules();
        world.db.resume().map_err(failed)?;
        add_rules();
        Ok(())
    })?;
    faults.clear_rules();
    world.db.resume().map_err(failed)?;
    let before = world.contents().map_err(failed)?;
    let recorded = world.check()?;
    world.db.close(None).map_err(failed)?;
    drop(world);
    let after = World::open(&disk, Background::Inline).contents().map_err(failed)?;
    if after != before {
        return Err(format!("{after:?} after another open, {before:?} before"));
    }
    Ok((recorded, failures))
}

/// Runs random steps of up to four transactions at a time. Calls `recover` after each error. Another error than that of
/// a lock or a conflict ends its transaction.
fn interleave(
    world: &World,
    rng: &mut TestRng,
    ingests: bool,
    recover: &mut dyn FnMut(Error) -> Outcome,
) -> Outcome {
    let mut sessions: Vec<Session> = Vec::new();
    let mut number = 0;
    while number < 60 || !sessions.is_empty() {
        if number < 60 && (sessions.len() < 2 || sessions.len() < 4 && rng.is_one_in(2)) {
            number += 1;
            sessions.push(Session::begin(world, number, rng));
        }
        let index = rng.below(sessions.len());
        let mut session = sessions.swap_remove(index);
        if session.left > 0 {
            session.left -= 1;
            match session.step(world, rng) {
                Ok(true) => sessions.push(session),
                Ok(false) => {}
                Err(error) => recover(error)?,
            }
        } else {
            session.end(world, rng).or_else(&mut *recover)?;
        }
        let maintained = match rng.below(240) {
            0..12 => world.db.flush(),
            12..18 => world.data[0].compact_range::<&[u8]>(..),
            18 if ingests => world.ingest(rng),
            _ => Ok(()),
        };
        maintained.or_else(&mut *recover)?;
    }
    Ok(())
}

/// Runs transactions and ingests on three threads under a random schedule.
pub(crate) fn concurrent_transactions(seed: u64) -> Outcome<Recorded> {
    const THREADS: u32 = 3;
    let world = World::create(Background::Stepped { seed, workers: 1 }, seed);
    let env = world.db.env().clone();
    let failure: Arc<Mutex<Outcome>> = Arc::new(Mutex::new(Ok(())));
    let threads = (0..THREADS).map(|thread| {
        let (world, failure) = (world.clone(), Arc::clone(&failure));
        let mut rng = TestRng::new(mix_seeds(seed, thread.into()));
        let mut run = move |number| {
            let mut session = Session::begin(&world, number, &mut rng);
            let mut is_alive = true;
            for _ in 0..session.left {
                is_alive = is_alive && session.step(&world, &mut rng)?;
            }
            if is_alive {
                session.end(&world, &mut rng)?;
            }
            match rng.below(30) {
                0..3 => world.db.flush(),
                // The ingests of one thread have a known order.
                3 | 4 if thread == 0 => world.ingest(&mut rng),
                _ => Ok(()),
            }
        };
        let body = move || {
            let run = (1..=15).try_for_each(|at| run(at * THREADS + thread));
            if let Err(error) = run {
                *lock(&failure) = Err(failed(error));
            }
        };
        env.spawn("transactions", body).unwrap()
    });
    for thread in threads.collect::<Vec<_>>() {
        if let Err(panic) = env.join(thread) {
            std::panic::resume_unwind(panic);
        }
    }
    std::mem::replace(&mut *lock(&failure), Ok(()))?;
    world.check()
}

/// Runs interleaved and concurrent transactions.
pub(crate) fn random_transactions(seed: u64) -> Outcome {
    interleaved_transactions(seed)?;
    concurrent_transactions(seed).map(drop)
}

/// Increments pairs of keys with locking transactions on three threads, in random order. No commit may conflict, no wait may
/// reach its timeout, and no increment may be lost.
pub(crate) fn locked_increments(seed: u64) -> Outcome {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 8;
    const TIMEOUT: Duration = Duration::from_secs(3600);
    let disk = MemVfs::new();
    let options =
        Options::default().background(Background::Stepped { seed, workers: 1 }).seed(seed);
    let db = open_with(&disk, options).unwrap();
    let increment = |db: &Db, keys: [u8; 2]| {
        let (keyspace, tx) = (db.default_keyspace(), db.locking_transaction(TIMEOUT));
        for key in keys {
            let count = tx.get_for_update(&keyspace, [key])?.map_or(0, |count| count[0]);
            tx.put(&keyspace, [key], [count + 1])?;
        }
        tx.commit(Durability::Buffered)
    };
    let failure: Arc<Mutex<Outcome>> = Arc::new(Mutex::new(Ok(())));
    let env = db.env().clone();
    let threads = (0..THREADS).map(|thread| {
        let (db, failure) = (db.clone(), Arc::clone(&failure));
        let mut rng = TestRng::new(mix_seeds(seed, thread));
        let mut round = move || {
            let first = rng.below(4_u8);
            let keys = [first, (first + 1 + rng.below(3_u8)) % 4];
            loop {
                match increment(&db, keys) {
                    Err(Error::Deadlock { .. }) => {}
                    other => return other,
                }
            }
        };
        let body = move || {
            if let Err(error) = (0..ROUNDS).try_for_each(|_| round()) {
                *lock(&failure) = Err(failed(error));
            }
        };
        env.spawn("increments", body).unwrap()
    });
    for thread in threads.collect::<Vec<_>>() {
        if let Err(panic) = env.join(thread) {
            std::panic::resume_unwind(panic);
        }
    }
    std::mem::replace(&mut *lock(&failure), Ok(()))?;
    let counts = db.default_keyspace().iter().map(|entry| Ok(u64::from(entry?.1[0])));
    let sum: u64 = counts.sum::<lsmx::Result<u64>>().map_err(failed)?;
    if sum != 2 * THREADS * ROUNDS {
        return Err(format!("the counters have the sum {sum}, not {}", 2 * THREADS * ROUNDS));
    }
    Ok(())
}
