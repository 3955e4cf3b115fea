//! The experiment `scans`: measures scans of different lengths after updates have moved values out of key order.
//!
//! All scans run on one database. After the operations, compaction runs until it is idle, and one full scan fills the
//! caches. Each measured scan then starts at a random record.

use std::path::Path;

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::{ThreadGroup, flush_and_wait_idle};
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers;

use super::cell::CellPlan;
use super::model::ValueModel;
use super::result::RmwCell;

/// Approximate number of entries that all scans of one length read in total.
const ENTRIES: u64 = 200_000;
/// Minimum and maximum number of scans of one length.
const SCANS_MIN: u64 = 20;
const SCANS_MAX: u64 = 5_000;
const PURPOSE_SCANS: u64 = 0x7363_616e;

/// Runs the scans of all lengths in one database. Returns one result per length.
pub(super) fn run_scans(
    plan: &CellPlan,
    lengths: &[u64],
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<Vec<RmwCell>> {
    let (path, records) = (directory.join("db"), plan.generated_records()?);
    let database = plan.load_database(&path, &records, progress)?;
    plan.run_operations(&database, progress)?;
    flush_and_wait_idle(database.engine.as_ref(), &plan.step_title("settle"), progress)?;
    progress.begin_phase(&plan.step_title("read through"), 0);
    database.engine.scan(false, u64::MAX, &mut |_, value| {
        std::hint::black_box(value);
    })?;
    progress.end_phase();
    let model = ValueModel::after_stream(&plan.recipe, &records);
    let mut cells = Vec::new();
    for &entries in lengths {
        let count = (ENTRIES / entries.max(1)).clamp(SCANS_MIN, SCANS_MAX);
        let seed = plan.recipe.seed ^ entries;
        let group = ThreadGroup { seed, purpose: PURPOSE_SCANS, ..database.thread_group() };
        let before = database.read_counters();
        let title = plan.step_title(&format!("scans of {entries}"));
        let played = group.run_work((&title, count), progress, &|player| {
            player.for_each_own_number(count, |player, _| {
                let record = player.random.next_below(plan.recipe.records);
                player.seek(record, entries)
            })
        })?;
        let used = database.read_counters().since(&before);
        cells.push(RmwCell {
            sweep: SweepPoint(vec![("scan_entries".to_owned(), SweepValue::Whole(entries))]),
            checked_records: numbers::to_u64(model.len()),
            ..plan.result_cell(&database, &played, &used)
        });
    }
    database.check_and_remove(&model)?;
    Ok(cells)
}
