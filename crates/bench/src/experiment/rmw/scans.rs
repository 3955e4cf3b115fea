//! The experiment `scans`: measures scans of different lengths after updates have moved values out of key order.
//!
//! All scans run on one database. After the operations, compaction runs until it is idle, and one full scan fills the
//! caches. Each measured scan then starts at a random record.

use std::path::Path;

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::{ThreadGroup, settle};
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers;

use super::cell::Plan;
use super::model::ValueModel;
use super::result::Cell;

/// Approximate number of entries that all scans of one length read in total.
const ENTRIES: u64 = 200_000;
/// Minimum and maximum number of scans of one length.
const SCANS_MIN: u64 = 20;
const SCANS_MAX: u64 = 5_000;
const PURPOSE_SCANS: u64 = 0x7363_616e;

/// Runs the scans of all lengths in one database. Returns one result per length.
pub(super) fn run(
    plan: &Plan,
    lengths: &[u64],
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<Vec<Cell>> {
    let (path, records) = (directory.join("db"), plan.records()?);
    let database = plan.load(&path, &records, progress)?;
    plan.operate(&database, progress)?;
    settle(database.engine.as_ref(), &plan.title("settle"), progress)?;
    progress.begin(&plan.title("read through"), 0);
    database.engine.scan(false, u64::MAX, &mut |_, value| {
        std::hint::black_box(value);
    })?;
    progress.end();
    let model = ValueModel::after(&plan.recipe, &records);
    let mut cells = Vec::new();
    for &entries in lengths {
        let count = (ENTRIES / entries.max(1)).clamp(SCANS_MIN, SCANS_MAX);
        let seed = plan.recipe.seed ^ entries;
        let group = ThreadGroup { seed, purpose: PURPOSE_SCANS, ..database.group() };
        let before = database.counters();
        let title = plan.title(&format!("scans of {entries}"));
        let played = group.play((&title, count), progress, &|player| {
            player.repeat(count, |player, _| {
                let record = player.random.below(plan.recipe.records);
                player.seek(record, entries)
            })
        })?;
        let used = database.counters().since(&before);
        cells.push(Cell {
            sweep: SweepPoint(vec![("scan_entries".to_owned(), SweepValue::Whole(entries))]),
            checked_records: numbers::count(model.len()),
            ..plan.cell(&database, &played, &used)
        });
    }
    database.check_and_remove(&model)?;
    Ok(cells)
}
