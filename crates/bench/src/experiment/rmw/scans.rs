//! What a scan costs by its length, once the operations have put records into another order than that of
//! their keys.
//!
//! One database: loaded, operated on, settled, and read through once, so that the page cache, or a block cache that is
//! large enough, has what it will have. Then come the scans, each from a record that is drawn evenly.

use std::path::Path;

use crate::clock::Stopwatch;
use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers;
use crate::process;
use crate::workload::random::Random;

use super::cell::{Plan, Reading, remove};
use super::model::Model;
use super::play::{Played, Table, play};
use super::result::Cell;

/// Entries that scans of one length see in all, about.
const ENTRIES: u64 = 200_000;
/// Scans of one length.
const SCANS_MIN: u64 = 20;
const SCANS_MAX: u64 = 5_000;
const PURPOSE_SCANS: u64 = 0x7363_616e;

/// Runs the scans of all lengths in one database; a cell for each length.
pub(super) fn run(
    plan: &Plan,
    lengths: &[u64],
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<Vec<Cell>> {
    let path = directory.join("db");
    let memory_bytes_before = process::resident_bytes();
    let records = plan.records()?;
    let engine = plan.design.open(&path, plan.resources())?;
    let table = Table { engine: engine.as_ref(), records: &records, mode: plan.design.mode };
    plan.load(table, progress)?;
    progress.begin(&plan.title("operate"), plan.recipe.ops);
    play(table, &plan.recipe, plan.threads, progress)?;
    progress.end();
    progress.begin(&plan.title("settle"), 0);
    engine.settle()?;
    progress.end();
    progress.begin(&plan.title("read through"), 0);
    engine.scan(false, u64::MAX, &mut |_, value| {
        std::hint::black_box(value);
    })?;
    progress.end();
    let storage_bytes = process::disk_bytes(&path);
    let mut cells = Vec::new();
    for &entries in lengths {
        let count = (ENTRIES / entries.max(1)).clamp(SCANS_MIN, SCANS_MAX);
        progress.begin(&plan.title(&format!("scans of {entries}")), count);
        let before = Reading::take(engine.as_ref(), &path);
        let played = scans(plan, table, entries, count, progress)?;
        let after = Reading::take(engine.as_ref(), &path);
        progress.end();
        let mut cell = plan.cell(&records, &played);
        after.tell_since(&before, &mut cell);
        cell.sweep = SweepPoint(vec![("scan_entries".to_owned(), SweepValue::Whole(entries))]);
        (cell.storage_bytes, cell.blob_bytes) = (storage_bytes, engine.blob_bytes());
        cell.memory_bytes_before = memory_bytes_before;
        cells.push(cell);
    }
    let model = Model::after(&plan.recipe, &records);
    model.check(engine.as_ref(), &records)?;
    engine.close()?;
    remove(&path)?;
    for cell in &mut cells {
        cell.checked_records = numbers::count(model.len());
    }
    Ok(cells)
}

/// So many scans of this length.
fn scans(
    plan: &Plan,
    table: Table<'_>,
    entries: u64,
    count: u64,
    progress: &mut dyn Progress,
) -> Result<Played> {
    let mut random = Random::new(plan.recipe.seed ^ entries, PURPOSE_SCANS);
    let (mut played, mut key) = (Played::default(), Vec::new());
    let cpu_before = process::cpu_of_this_thread();
    let watch = Stopwatch::start();
    for _ in 0..count {
        table.records.key(random.below(plan.recipe.records), &mut key);
        let begun = watch.elapsed_ns();
        played.scanned_entries += table.scan(&key, entries)?;
        played.scans.record_ns(watch.elapsed_ns() - begun);
        played.ops += 1;
        progress.advance(1);
    }
    played.elapsed_ns = watch.elapsed_ns();
    let cpu = process::cpu_of_this_thread();
    played.cpu = cpu.zip(cpu_before).map(|(after, before)| after.since(before));
    played.memory_bytes = process::resident_bytes();
    Ok(played)
}
