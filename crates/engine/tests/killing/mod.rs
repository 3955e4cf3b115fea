//! What a child process does to a database until it is killed, and what must be there afterwards.
//!
//! Every writer has keys of its own, and its commits follow from a seed, so its state after any
//! number of commits can be made again. Each commit counts itself in every keyspace by a put, and in
//! one of them by a merge as well: a merge that is lost or done twice makes the two disagree.

mod changes;
mod passing;

use std::io::Write;
use std::path::Path;

use lsmx::env::Background;
use lsmx::merge::{Append, Counter};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::wal::WalOptions;
use lsmx::{
    BlockCacheKind, Compression, Db, Durability, FilterLastRun, Keyspace, KeyspaceOptions, Options,
    WriteBatch,
};

use super::arsenal::{Chance, Outcome, options};
use changes::{Change, Model, changes};

/// The keyspaces that every commit counts itself in: one that adds, one that appends.
pub(crate) const KEYSPACES: [&str; 2] = [lsmx::DEFAULT_KEYSPACE, "second"];

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

/// Tuning drawn anew for each opening; a policy stays with its keyspace unless it is drawn.
fn draw_keyspace(chance: &mut Chance) -> KeyspaceOptions {
    let filter = match chance.below(3) {
        0 => FilterLastRun::Off,
        1 => FilterLastRun::On,
        _ => FilterLastRun::Auto,
    };
    let compression = if chance.one_in(3) { Compression::Lz4 } else { Compression::None };
    let drawn = KeyspaceOptions::default()
        .memtable_bytes(8192 << chance.below(4))
        .table_bytes(8192 << chance.below(4))
        .block_bytes(256 << chance.below(5))
        .filter_last_run(filter)
        .filter_bits(options::draw_filter_bits(chance))
        .compression(compression);
    match chance.one_in(2) {
        true => drawn.policy(options::draw_policy(chance)),
        false => drawn,
    }
}

fn draw_options(chance: &mut Chance) -> Options {
    Options::default()
        .background(Background::Threads { workers: 1 + usize::from(chance.one_in(2)) })
        .block_cache_bytes(chance.below(4) * 65_536)
        .block_cache_kind(*chance.of(&BlockCacheKind::ALL))
        .warm_up(chance.one_in(3))
        .direct_reads(chance.one_in(3) && direct_reads_work())
        .wal_bytes_max(32_768 << chance.below(4))
        .wal(WalOptions {
            segment_bytes: 8192 << chance.below(5),
            sync_every_bytes: 16_384 << chance.below(6),
            ..WalOptions::default()
        })
}

/// Whether temporary files can be read past the system's cache: not every file system can do that.
fn direct_reads_work() -> bool {
    let file = tempfile::NamedTempFile::new();
    file.is_ok_and(|file| OsVfs.open_direct(file.path()).is_ok())
}

fn counter_key(writer: u64) -> Vec<u8> {
    format!("{writer}:count").into_bytes()
}

/// What a writer adds 1 to with each commit, in the first keyspace.
fn merged_key(writer: u64) -> Vec<u8> {
    format!("{writer}:merged").into_bytes()
}

fn number(bytes: Option<&[u8]>) -> Outcome<u64> {
    let bytes = bytes.map_or(Ok([0; 8]), TryInto::try_into);
    Ok(u64::from_le_bytes(bytes.map_err(|_| "a counter has not 8 bytes")?))
}

/// How many commits of a writer a database shows; of the one after the last writer, how many steps of
/// [`passing`].
///
/// # Errors
/// When a read fails or the counters disagree: a commit is there in part, or more than once.
pub(crate) fn count_of(db: &Db, keyspaces: &[Keyspace], writer: u64, writers: u64) -> Outcome<u64> {
    if writer == writers {
        return passing::steps(db, &keyspaces[0]);
    }
    let read = |keyspace: &Keyspace, key: Vec<u8>| {
        let value = keyspace.get(key).map_err(|error| format!("a counter: {error:?}"))?;
        number(value.as_deref())
    };
    let mut counts = vec![read(&keyspaces[0], merged_key(writer))?];
    for keyspace in keyspaces {
        counts.push(read(keyspace, counter_key(writer))?);
    }
    match counts.iter().all(|count| *count == counts[0]) {
        true => Ok(counts[0]),
        false => {
            Err(format!("writer {writer} has made {counts:?} commits: by merges, by keyspace"))
        }
    }
}

/// Opens the database and its keyspaces with options that follow from a seed. Their merge operators
/// come before the log is replayed, or after.
///
/// # Errors
/// When that fails.
pub(crate) fn open(dir: &Path, seed: u64) -> Outcome<(Db, Vec<Keyspace>)> {
    let chance = &mut Chance::new(seed);
    let (mut options, drawn) = (draw_options(chance), draw_keyspace(chance));
    let with_operator =
        [drawn.clone().merge_operator(Counter), drawn.clone().merge_operator(Append::new())];
    options = options.keyspace_defaults(drawn);
    let early = chance.one_in(2);
    if early {
        for (name, options_of) in KEYSPACES.iter().zip(&with_operator) {
            options = options.keyspace(name, options_of.clone());
        }
    }
    let db = Db::open(dir, options).map_err(|error| format!("opening: {error:?}"))?;
    let mut keyspaces = Vec::new();
    for (name, options_of) in KEYSPACES.iter().zip(with_operator) {
        let keyspace = match db.existing_keyspace(name) {
            Ok(keyspace) if early => keyspace,
            _ => db
                .keyspace(name, options_of)
                .map_err(|error| format!("making a keyspace: {error:?}"))?,
        };
        keyspaces.push(keyspace);
    }
    Ok((db, keyspaces))
}

/// A child's life: opens, goes on where each writer stopped, and tells each commit that was
/// acknowledged, 16 bytes each, until it is killed.
pub(crate) fn write_for_ever(orders: &Orders) -> Outcome {
    tell(u64::MAX, 0);
    let (db, keyspaces) = open(Path::new(&orders.dir), orders.round)?;
    std::thread::scope(|scope| {
        let (db, keyspaces) = (&db, &keyspaces);
        let mut writers = Vec::new();
        for writer in 0..orders.writers {
            writers.push(scope.spawn(move || write(orders, db, keyspaces, writer)));
        }
        let mut chance = Chance::new(!orders.round);
        let mut steps = passing::steps(db, &keyspaces[0])?;
        // Beside them what else may be under way when a process dies.
        while writers.iter().all(|writer| !writer.is_finished()) {
            let done = match chance.below(12) {
                0 => db.flush(),
                1 => db.sync(),
                2 => db.wait_idle(),
                4.. => passing::step(db, &keyspaces[0], steps + 1).map(|()| {
                    steps += 1;
                    tell(orders.writers, steps);
                }),
                3 => db.snapshot().iter(&keyspaces[1]).try_for_each(|item| item.map(drop)),
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
    for number in count_of(db, keyspaces, writer, orders.writers)? + 1.. {
        let (changes, sync) = changes(orders.seed, writer, number);
        let mut batch = WriteBatch::new();
        for keyspace in keyspaces {
            batch.put(keyspace, counter_key(writer), number.to_le_bytes());
        }
        batch.merge(&keyspaces[0], merged_key(writer), 1u64.to_le_bytes());
        for (keyspace, change) in changes {
            let keyspace = &keyspaces[keyspace];
            match change {
                Change::Put(key, value) => batch.put(keyspace, key, value),
                Change::Delete(key) => batch.delete(keyspace, key),
                Change::Merge(key, operand) => batch.merge(keyspace, key, operand),
                Change::DeleteRange(range) => batch.delete_range(keyspace, range),
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

/// Compares a whole database with what this many commits of each writer make, and steps after them.
///
/// # Errors
/// What differs.
pub(crate) fn check(keyspaces: &[Keyspace], seed: u64, counts: &[u64]) -> Outcome {
    let mut models = [const { Model::new() }; KEYSPACES.len()];
    let (steps, counts) = counts.split_last().ok_or("there are no counts")?;
    for (writer, &count) in (0..).zip(counts) {
        for number in 1..=count {
            for (keyspace, change) in changes(seed, writer, number).0 {
                change.apply(keyspace, &mut models[keyspace]);
            }
        }
        if count > 0 {
            for model in &mut models {
                model.insert(counter_key(writer), count.to_le_bytes().to_vec());
            }
            models[0].insert(merged_key(writer), count.to_le_bytes().to_vec());
        }
    }
    models[0].extend(passing::noted(*steps));
    for (keyspace, model) in keyspaces.iter().zip(&models) {
        let mut expected = model.iter();
        for item in keyspace.iter() {
            let (key, value) = item.map_err(|error| format!("a scan: {error:?}"))?;
            match expected.next() {
                Some((model_key, model_value))
                    if *key == **model_key && *value == **model_value => {}
                other => {
                    let wanted = other.map_or("the end".to_owned(), |(key, value)| {
                        format!("{} of {} bytes", key.escape_ascii(), value.len())
                    });
                    let (found, bytes) = (key.escape_ascii(), value.len());
                    let name = keyspace.name();
                    return Err(format!("{name}: {found} of {bytes} bytes, not {wanted}"));
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
