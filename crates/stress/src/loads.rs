//! Ingests and bulk loads, among commits of the same keys and of neighbouring keys.
//!
//! The loads are numbered from 1. Each load puts its number into each keyspace that it changes, so the number of loads can
//! be derived from the contents of the database. One in four loads is a batch, whose entries are in memtables when the next
//! load begins.

use std::collections::BTreeMap;
use std::path::Path;

use lsmx::ingest::{BulkLoadOptions, IngestOptions};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{Db, Durability, Keyspace, Result, WriteBatch};
use lsmx_testkit::world::Change as Write;
use lsmx_testkit::{TestRng, mix_seeds};

use crate::commits::Model;
use crate::compare::{KeyspaceView, compare};
use crate::{LOADED, NEVER_US, Outcome, SESSIONS, number};

/// Name of the keyspace that every load changes.
pub(crate) const NAME: &str = "loaded";
/// The key of the number of the last load. All keys of loads have this prefix.
const COUNTER: &[u8] = b"load";
/// Number of keys that the loads put and delete in each keyspace.
const KEYS: u64 = 60;
/// Constant that makes the draws of this module independent of other draws with the same seed.
const SEED_SALT: u64 = 0x6c6f_6164;

/// The keyspaces that a load may change, by their index in the list of keyspaces.
const TARGETS: [usize; 2] = [LOADED, SESSIONS];

#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadKind {
    /// Loads puts into the first keyspace of [`TARGETS`].
    Bulk,
    /// Ingests tables into all keyspaces of [`TARGETS`]. The flag is set if the files are copied.
    Ingest(bool),
    /// Commits a batch to all keyspaces of [`TARGETS`].
    Batch,
}

impl LoadKind {
    fn of(load: u64) -> LoadKind {
        match load % 4 {
            0 => LoadKind::Bulk,
            2 => LoadKind::Batch,
            remainder => LoadKind::Ingest(remainder == 3),
        }
    }
}

/// Draws the changes of a load for each keyspace of [`TARGETS`]. `None` is a delete.
fn draw_changes(seed: u64, load: u64) -> [BTreeMap<Vec<u8>, Option<Vec<u8>>>; TARGETS.len()] {
    let mut rng = TestRng::new(mix_seeds(seed ^ SEED_SALT, load));
    let is_bulk = LoadKind::of(load) == LoadKind::Bulk;
    let mut changes = [const { BTreeMap::new() }; TARGETS.len()];
    for (index, changes) in changes.iter_mut().enumerate() {
        if is_bulk && index > 0 {
            continue;
        }
        for _ in 0..rng.below(40) {
            let key = format!("load/{:02}", rng.below(KEYS)).into_bytes();
            let len = rng.below(200);
            let value = (is_bulk || !rng.is_one_in(4)).then(|| rng.bytes(len));
            changes.insert(key, value);
        }
        changes.insert(COUNTER.to_vec(), Some(load.to_le_bytes().to_vec()));
    }
    changes
}

/// Runs a load. `dir` is the directory of the database.
pub(crate) fn run(
    db: &Db,
    keyspaces: &[Keyspace],
    dir: &Path,
    (seed, load): (u64, u64),
) -> Result<()> {
    let changes = draw_changes(seed, load);
    match LoadKind::of(load) {
        LoadKind::Bulk => {
            let puts = changes[0].iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
            let options = BulkLoadOptions::default();
            let keyspace = &keyspaces[TARGETS[0]];
            match load.is_multiple_of(8) {
                true => keyspace.bulk_load(puts.rev(), options.sort_memory_bytes(64 << 10)),
                false => keyspace.bulk_load(puts, options),
            }
            .map(drop)
        }
        LoadKind::Ingest(copy_files) => {
            let mut tables = Vec::new();
            for (target, changes) in TARGETS.iter().zip(&changes) {
                let path = dir.with_file_name(format!("external-{target}"));
                write_table(&keyspaces[*target], &path, changes)?;
                tables.push((keyspaces[*target].clone(), vec![path]));
            }
            let ingested = db.ingest(&tables, IngestOptions::default().copy_files(copy_files));
            tables.iter().flat_map(|(_, paths)| paths).for_each(|path| remove(path));
            ingested.map(drop)
        }
        LoadKind::Batch => {
            let mut batch = WriteBatch::new();
            for (target, changes) in TARGETS.iter().zip(changes) {
                for (key, value) in changes {
                    let write = match value {
                        // A plain put would get the default time to live of the keyspace.
                        Some(value) => Write::PutUntil(key.into(), value.into(), NEVER_US),
                        None => Write::Delete(key.into()),
                    };
                    write.add_to(&mut batch, &keyspaces[*target]);
                }
            }
            db.write(batch, Durability::Buffered)
        }
    }
}

/// Writes an external table, and replaces the table that a killed process may have left.
fn write_table(
    keyspace: &Keyspace,
    path: &Path,
    changes: &BTreeMap<Vec<u8>, Option<Vec<u8>>>,
) -> Result<()> {
    remove(path);
    let mut table = keyspace.external_table_writer(path)?;
    for (key, value) in changes {
        match value {
            Some(value) => table.put(key, value)?,
            None => table.delete(key)?,
        }
    }
    table.finish().map(drop)
}

/// Removes an external table if it exists. If the call fails, the table cannot be created again, which is an error.
fn remove(path: &Path) {
    let _ = OsVfs.remove(path);
}

/// Derives the number of loads from the contents of the database.
///
/// # Errors
/// Returns an error if a read fails, or if a load is visible only in part.
pub(crate) fn count(view: &KeyspaceView<'_>) -> Outcome<u64> {
    let read = |target: usize| {
        let value = view.get(&view.keyspaces[target], COUNTER);
        number(value.map_err(|error| format!("a counter of loads: {error:?}"))?.as_deref())
    };
    let loads = read(TARGETS[0])?;
    let of_all = (1..=loads).rev().find(|load| LoadKind::of(*load) != LoadKind::Bulk).unwrap_or(0);
    for target in &TARGETS[1..] {
        let found = read(*target)?;
        if found != of_all {
            let name = view.keyspaces[*target].name();
            return Err(format!("load {found} is the last in {name}, not {of_all} of {loads}"));
        }
    }
    Ok(loads)
}

/// Compares the entries of all loads with the model.
pub(crate) fn check(view: &KeyspaceView<'_>, seed: u64, loads: u64) -> Outcome {
    let mut models = [const { Model::new() }; TARGETS.len()];
    for load in 1..=loads {
        for (model, changes) in models.iter_mut().zip(draw_changes(seed, load)) {
            for (key, value) in changes {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
        }
    }
    for (target, model) in TARGETS.iter().zip(&models) {
        let keyspace = &view.keyspaces[*target];
        let wrong = |what| format!("after {loads} loads, {}: {what}", keyspace.name());
        compare(view.prefix(keyspace, COUNTER), model.iter()).map_err(wrong)?;
        compare(view.prefix(keyspace, COUNTER).rev(), model.iter().rev()).map_err(wrong)?;
    }
    Ok(())
}
