//! What a child process does to a database until it is killed, and what must be there afterwards.
//!
//! Every writer has keys of its own, and its commits follow from a seed, so its state after any
//! number of commits can be made again. Each commit counts itself under one key in every keyspace.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use lsmx::env::Background;
use lsmx::wal::WalOptions;
use lsmx::{
    Compression, Db, Durability, FilterLastRun, Keyspace, KeyspaceOptions, Options, WriteBatch,
};

use super::arsenal::{Chance, Outcome, mix, options};

/// The keyspaces that every commit counts itself in.
pub(crate) const KEYSPACES: [&str; 2] = [lsmx::DEFAULT_KEYSPACE, "second"];
/// Keys of one writer in each keyspace.
const KEYS: u64 = 300;

/// What a child is told, as text in its environment.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) dir: String,
    /// What all commits follow from, the same for every child of one database.
    pub(crate) seed: u64,
    /// What this child's options follow from.
    pub(crate) round: u64,
    pub(crate) writers: u64,
}

impl Orders {
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {} {}", self.seed, self.round, self.writers, self.dir)
    }

    pub(crate) fn from_text(text: &str) -> Option<Orders> {
        let mut parts = text.splitn(4, ' ');
        let mut number = || parts.next()?.parse().ok();
        let (seed, round, writers) = (number()?, number()?, number()?);
        Some(Orders { dir: parts.next()?.to_owned(), seed, round, writers })
    }
}

/// Options drawn anew for each opening; a policy stays with its keyspace unless it is drawn.
pub(crate) fn draw_options(seed: u64) -> Options {
    let mut chance = Chance::new(seed);
    let filter = if chance.one_in(2) { FilterLastRun::On } else { FilterLastRun::Off };
    let compression = if chance.one_in(3) { Compression::Lz4 } else { Compression::None };
    let mut keyspaces = KeyspaceOptions::default()
        .memtable_bytes(8192 << chance.below(4))
        .table_bytes(8192 << chance.below(4))
        .block_bytes(256 << chance.below(5))
        .filter_last_run(filter)
        .compression(compression);
    if chance.one_in(2) {
        keyspaces = keyspaces.policy(options::draw_policy(&mut chance));
    }
    Options::default()
        .background(Background::Threads { workers: 1 + usize::from(chance.one_in(2)) })
        .block_cache_bytes(chance.below(4) * 65_536)
        .wal_bytes_max(32_768 << chance.below(4))
        .wal(WalOptions {
            segment_bytes: 8192 << chance.below(5),
            sync_every_bytes: 16_384 << chance.below(6),
            ..WalOptions::default()
        })
        .keyspace_defaults(keyspaces)
}

fn counter_key(writer: u64) -> Vec<u8> {
    format!("{writer}:count").into_bytes()
}

/// One operation of a commit, in one keyspace.
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

/// What the commit with this number (from 1 on) of a writer does, by keyspace, besides counting;
/// and whether it asks for a sync.
fn changes(seed: u64, writer: u64, number: u64) -> (Vec<(usize, Change)>, bool) {
    let mut chance = Chance::new(mix(mix(seed, writer), number));
    let count = if chance.one_in(50) { 60 } else { chance.below(5) };
    let changes = (0..count).map(|_| {
        let keyspace = usize::from(chance.one_in(2));
        let key = format!("{writer}/{:03}", chance.below(KEYS)).into_bytes();
        let change = match chance.below(8) {
            0 | 1 => Change::Delete(key),
            _ => {
                let longest = if chance.one_in(40) { 5000 } else { 120 };
                let len = chance.below(longest);
                Change::Put(key, chance.bytes(len))
            }
        };
        (keyspace, change)
    });
    let changes = changes.collect();
    (changes, chance.one_in(25))
}

/// How many commits of a writer a database shows.
///
/// # Errors
/// When a read fails or the keyspaces disagree: a commit is there in part.
pub(crate) fn count_of(keyspaces: &[Keyspace], writer: u64) -> Outcome<u64> {
    let key = counter_key(writer);
    let mut counts = Vec::new();
    for keyspace in keyspaces {
        let value = keyspace.get(&key).map_err(|error| format!("a counter: {error}"))?;
        let bytes = value.as_deref().map_or(Ok([0; 8]), TryInto::try_into);
        counts.push(u64::from_le_bytes(bytes.map_err(|_| "a counter has not 8 bytes")?));
    }
    match counts.iter().all(|count| *count == counts[0]) {
        true => Ok(counts[0]),
        false => Err(format!("writer {writer} has made {counts:?} commits, by keyspace")),
    }
}

/// Opens the database and its keyspaces.
///
/// # Errors
/// When that fails.
pub(crate) fn open(dir: &Path, options: Options) -> Outcome<(Db, Vec<Keyspace>)> {
    let db = Db::open(dir, options).map_err(|error| format!("opening: {error:?}"))?;
    let mut keyspaces = Vec::new();
    for name in KEYSPACES {
        let keyspace = match db.existing_keyspace(name) {
            Ok(keyspace) => keyspace,
            Err(_) => db
                .keyspace(name, KeyspaceOptions::default().memtable_bytes(16_384))
                .map_err(|error| format!("making a keyspace: {error}"))?,
        };
        keyspaces.push(keyspace);
    }
    Ok((db, keyspaces))
}

/// A child's life: opens, goes on where each writer stopped, and tells each commit that was
/// acknowledged, 16 bytes each, until it is killed.
pub(crate) fn write_for_ever(orders: &Orders) -> Outcome {
    tell(u64::MAX, 0);
    let (db, keyspaces) = open(Path::new(&orders.dir), draw_options(orders.round))?;
    std::thread::scope(|scope| {
        let (db, keyspaces) = (&db, &keyspaces);
        let mut writers = Vec::new();
        for writer in 0..orders.writers {
            writers.push(scope.spawn(move || write(orders, db, keyspaces, writer)));
        }
        let mut chance = Chance::new(!orders.round);
        // Beside them what else may be under way when a process dies.
        while writers.iter().all(|writer| !writer.is_finished()) {
            let done = match chance.below(4) {
                0 => db.flush(),
                1 => db.sync(),
                2 => db.wait_idle(),
                _ => db.snapshot().iter(&keyspaces[1]).try_for_each(|item| item.map(drop)),
            };
            done.map_err(|error| format!("beside the writers: {error:?}"))?;
        }
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked".to_owned())??;
        }
        Err("the writers came to an end".to_owned())
    })
}

fn write(orders: &Orders, db: &Db, keyspaces: &[Keyspace], writer: u64) -> Outcome {
    for number in count_of(keyspaces, writer)? + 1.. {
        let (changes, sync) = changes(orders.seed, writer, number);
        let mut batch = WriteBatch::new();
        for keyspace in keyspaces {
            batch.put(keyspace, counter_key(writer), number.to_le_bytes());
        }
        for (keyspace, change) in changes {
            match change {
                Change::Put(key, value) => batch.put(&keyspaces[keyspace], key, value),
                Change::Delete(key) => batch.delete(&keyspaces[keyspace], key),
            }
        }
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        db.write(batch, durability).map_err(|error| format!("a commit: {error:?}"))?;
        tell(writer, number);
    }
    Ok(())
}

/// Hands 16 bytes to whoever reads the other end: in one call, so they come whole or not at all.
fn tell(writer: u64, number: u64) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&writer.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    // Whoever listens is gone only if this process is about to go too.
    let _ = std::io::stderr().write_all(&bytes);
}

/// Reads what [`tell`] has written.
pub(crate) fn told(bytes: [u8; 16]) -> (u64, u64) {
    let number = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    (number(0), number(8))
}

/// Compares a whole database with what this many commits of each writer make.
///
/// # Errors
/// What differs.
pub(crate) fn check(keyspaces: &[Keyspace], seed: u64, counts: &[u64]) -> Outcome {
    let mut models = [const { BTreeMap::<Vec<u8>, Vec<u8>>::new() }; KEYSPACES.len()];
    for (writer, &count) in (0..).zip(counts) {
        for number in 1..=count {
            for (keyspace, change) in changes(seed, writer, number).0 {
                match change {
                    Change::Put(key, value) => models[keyspace].insert(key, value),
                    Change::Delete(key) => models[keyspace].remove(&key),
                };
            }
        }
        if count > 0 {
            for model in &mut models {
                model.insert(counter_key(writer), count.to_le_bytes().to_vec());
            }
        }
    }
    for (keyspace, model) in keyspaces.iter().zip(&models) {
        let mut expected = model.iter();
        for item in keyspace.iter() {
            let (key, value) = item.map_err(|error| format!("a scan: {error:?}"))?;
            match expected.next() {
                Some((model_key, model_value))
                    if *key == **model_key && *value == **model_value => {}
                other => {
                    let (found, wanted) = (key.escape_ascii(), other.map(|(key, _)| key));
                    return Err(format!("{}: {found}, not {wanted:?}", keyspace.name()));
                }
            }
        }
        if let Some((key, _)) = expected.next() {
            return Err(format!("{}: {} is missing", keyspace.name(), key.escape_ascii()));
        }
        for (key, value) in model {
            let found = keyspace.get(key).map_err(|error| format!("a get: {error:?}"))?;
            if found.as_deref() != Some(value) {
                return Err(format!("{}: get {} differs", keyspace.name(), key.escape_ascii()));
            }
        }
    }
    Ok(())
}
