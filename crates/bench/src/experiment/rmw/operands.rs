//! What a read costs by the number of operands that its key has got since its last put.
//!
//! Groups of keys get 0, 1, 2, … updates in rounds; between two rounds other keys are updated, so that the
//! operands of a key come to lie in different tables. Then the tree settles, and each key is read once.

use std::path::Path;

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers;
use crate::process;
use crate::workload::random::Random;

use super::cell::{Plan, remove};
use super::play::{Played, Table};
use super::records::Records;
use super::result::Cell;

/// Keys of a group at most; also at most a tenth of all keys in all groups.
const KEYS_MAX: u64 = 200;
const PURPOSE_OPERANDS: u64 = 0x6f70_7273;

/// One group of keys.
struct Group {
    updates: u64,
    /// Its records are those whose place in the order of popularity is `place` modulo the number of groups.
    place: u64,
    played: Played,
}

/// Runs all groups in one database; a cell for each.
pub(super) fn run(
    plan: &Plan,
    counts: &[u64],
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<Vec<Cell>> {
    let path = directory.join("db");
    let memory_bytes_before = process::resident_bytes();
    let records = plan.records()?;
    let engine = plan.design.open(&path, plan.resources())?;
    let table = Table { engine: engine.as_ref(), records: &records, mode: plan.design.mode };
    plan.load(table, progress)?;
    let mut groups: Vec<Group> = (0..)
        .zip(counts)
        .map(|(place, &updates)| Group { updates, place, played: Played::default() })
        .collect();
    let keys = (plan.recipe.records / 10 / numbers::count(groups.len())).clamp(1, KEYS_MAX);
    let before = engine.io_bytes();
    let rounds = counts.iter().copied().max().unwrap_or(0);
    progress.begin(&plan.title("update"), rounds);
    for round in 0..rounds {
        self::round(plan, table, &mut groups, keys, (round, rounds))?;
        progress.advance(1);
    }
    engine.settle()?;
    progress.end();
    let (io, storage_bytes) = (engine.io_bytes(), process::disk_bytes(&path));
    let blob_bytes = engine.blob_bytes();
    progress.begin(&plan.title("read"), 0);
    // Reads of the others bring back what the cache of a database in use has.
    table.warm_up(&plan.recipe)?;
    read(plan, table, &mut groups, keys)?;
    progress.end();
    check(plan, table, &groups, keys, rounds)?;
    engine.close()?;
    remove(&path)?;
    let cells = groups.iter().map(|group| {
        let mut cell = plan.cell(&records, &group.played);
        let operands = ("operands".to_owned(), SweepValue::Whole(group.updates));
        cell.sweep = SweepPoint(vec![operands]);
        // There is no rate of a few operations among many others.
        (cell.elapsed_s, cell.ops_per_s) = (0.0, 0.0);
        cell.read_bytes = io.read.saturating_sub(before.read);
        cell.written_bytes = io.written.saturating_sub(before.written);
        cell.storage_bytes = storage_bytes;
        cell.blob_bytes = blob_bytes;
        cell.memory_bytes = process::resident_bytes();
        cell.memory_bytes_before = memory_bytes_before;
        cell.checked_records = keys;
        cell
    });
    Ok(cells.collect())
}

/// A record of a group: none is in two groups, and none is among those that are updated in between.
fn member(plan: &Plan, groups: u64, place: u64, key: u64) -> u64 {
    // The least popular ranks, which warming up hardly asks for.
    plan.recipe.popular().at_rank(plan.recipe.records - 1 - (key * groups + place))
}

/// Each key that has not got all its updates gets one; then others do.
fn round(
    plan: &Plan,
    table: Table<'_>,
    groups: &mut [Group],
    keys: u64,
    (round, rounds): (u64, u64),
) -> Result<()> {
    let (mut key, mut delta) = (Vec::new(), Vec::new());
    let count = numbers::count(groups.len());
    for group in groups.iter_mut().filter(|group| group.updates > round) {
        for member in (0..keys).map(|key| member(plan, count, group.place, key)) {
            let offset = table.records.delta(member, round + 1, round, &mut delta);
            table.records.key(member, &mut key);
            let watch = crate::clock::Stopwatch::start();
            table.update(&key, offset, &delta)?;
            group.played.updates.record_ns(watch.elapsed_ns());
            group.played.ops += 1;
        }
    }
    // As many others in all rounds as there are records.
    let mut random = Random::new(plan.recipe.seed ^ round, PURPOSE_OPERANDS);
    let others = plan.recipe.records - keys * count;
    for _ in 0..(plan.recipe.records / rounds.max(1)).max(1) {
        let record = plan.recipe.popular().at_rank(random.below(others));
        let offset = table.records.delta(record, round + 1, random.next_u64() >> 1, &mut delta);
        table.records.key(record, &mut key);
        table.update(&key, offset, &delta)?;
    }
    Ok(())
}

/// Reads each key once, the groups by turns.
fn read(plan: &Plan, table: Table<'_>, groups: &mut [Group], keys: u64) -> Result<()> {
    let count = numbers::count(groups.len());
    let mut key = Vec::new();
    for member_of in 0..keys {
        for group in groups.iter_mut() {
            let record = member(plan, count, group.place, member_of);
            let watch = crate::clock::Stopwatch::start();
            group.played.read_ios += table.read(record, &mut key)?;
            group.played.reads.record_ns(watch.elapsed_ns());
            group.played.ops += 1;
        }
    }
    Ok(())
}

/// Compares every key with what its updates amount to.
fn check(plan: &Plan, table: Table<'_>, groups: &[Group], keys: u64, rounds: u64) -> Result<()> {
    let (mut key, mut value, mut delta) = (Vec::new(), Vec::new(), Vec::new());
    let count = numbers::count(groups.len());
    for group in groups {
        for record in (0..keys).map(|key| member(plan, count, group.place, key)) {
            let records: &Records = table.records;
            records.value(record, 0, &mut value);
            for round in (0..rounds).take_while(|round| *round < group.updates) {
                let offset = records.delta(record, round + 1, round, &mut delta);
                crate::peers::write_field(&mut value, offset, &delta);
            }
            records.key(record, &mut key);
            let mut right = false;
            table.engine.get(&key, &mut |found| right = found == value.as_slice())?;
            if !right {
                return Err(crate::Error::WrongAnswer {
                    key: crate::workload::record::to_hex(&key),
                    found: "another value than the model's",
                    must: "the value that its operands amount to",
                });
            }
        }
    }
    Ok(())
}
