//! The experiment `operands`: measures how reads depend on the number of merge operands written since the last put of
//! the key.
//!
//! All keys of a group receive the same number of updates. The updates run in rounds, and a key receives at most one
//! update per round. Between two rounds other keys are updated, so that the operands of a key are written to different
//! tables. When compaction is idle, each key is read once.

use std::path::Path;

use crate::clock::Stopwatch;
use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::{GroupState, OperationKind, Player, flush_and_wait_idle};
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers;
use crate::process;
use crate::workload::random::Random;

use super::cell::CellPlan;
use super::model::ValueModel;
use super::result::RmwCell;

/// Maximum number of keys per group. All groups together have at most a tenth of all keys.
const KEYS_MAX: u64 = 200;
const PURPOSE_OPERANDS: u64 = 0x6f70_7273;

/// Keys that receive the same number of updates, and the measurements of their operations.
struct KeyGroup<'a> {
    updates: u64,
    records: Vec<u64>,
    player: Player<'a>,
    /// Duration of all lookups in seconds.
    lookup_s: f64,
}

/// Runs all groups in one database. Returns one result per group.
pub(super) fn run_operand_groups(
    plan: &CellPlan,
    counts: &[u64],
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<Vec<RmwCell>> {
    let (path, records) = (directory.join("db"), plan.generated_records()?);
    let database = plan.load_database(&path, &records, progress)?;
    let (recipe, mode, popularity) = (&plan.recipe, plan.design.mode, plan.recipe.popularity());
    let group_count = numbers::to_u64(counts.len());
    let keys = (recipe.records / 10 / group_count).clamp(1, KEYS_MAX);
    // The groups consist of the least popular records, which the warm-up rarely reads.
    let record = |place: u64, key: u64| {
        popularity.record_at(recipe.records - 1 - (key * group_count + place))
    };
    let state = GroupState::start();
    let player = || Player::new(database.thread_group(), &state, 0);
    let mut groups: Vec<KeyGroup<'_>> = (0..)
        .zip(counts)
        .map(|(place, &updates)| {
            let records = (0..keys).map(|key| record(place, key)).collect();
            KeyGroup { updates, records, player: player(), lookup_s: 0.0 }
        })
        .collect();
    let before = database.read_counters();
    let rounds = counts.iter().copied().max().unwrap_or(0);
    let mut other_player = player();
    progress.begin_phase(&plan.step_title("update"), rounds);
    for round in 0..rounds {
        for group in groups.iter_mut().filter(|group| group.updates > round) {
            for &record in &group.records {
                recipe.update_field(&mut group.player, mode, (record, round + 1, round))?;
            }
        }
        // The number of updates of other keys, summed over all rounds, equals the number of records.
        let mut random = Random::new(recipe.seed ^ round, PURPOSE_OPERANDS);
        for _ in 0..(recipe.records / rounds.max(1)).max(1) {
            let others = recipe.records - keys * group_count;
            let record = popularity.record_at(random.next_below(others));
            let draw = random.next_u64() >> 1;
            recipe.update_field(&mut other_player, mode, (record, round + 1, draw))?;
        }
        progress.advance(1);
    }
    progress.end_phase();
    flush_and_wait_idle(database.engine.as_ref(), &plan.step_title("settle"), progress)?;
    let used = database.read_counters().since(&before);
    // The caches are filled again, because the updates have evicted blocks of popular records.
    plan.warm_up(&database, progress)?;
    progress.begin_phase(&plan.step_title("read"), 0);
    for key in 0..numbers::to_usize(keys) {
        for group in &mut groups {
            let watch = Stopwatch::start();
            group.player.get_present(group.records[key])?;
            group.lookup_s += watch.elapsed_s();
        }
    }
    progress.end_phase();
    let expected = groups.iter().flat_map(|group| {
        group.records.iter().map(|&record| {
            let mut value = Vec::new();
            records.write_value(record, 0, &mut value);
            for round in 0..group.updates {
                recipe.apply_delta(&records, (record, round + 1, round), &mut value);
            }
            (record, value)
        })
    });
    let model = ValueModel::from_values(expected);
    let memory_bytes = process::process_resident_bytes();
    let cells = groups
        .iter()
        .map(|group| RmwCell {
            ops: group.player.played.count(OperationKind::Get),
            ops_per_s: numbers::to_f64(keys) / group.lookup_s.max(1e-9),
            elapsed_s: group.lookup_s,
            sweep: SweepPoint(vec![("operands".to_owned(), SweepValue::Whole(group.updates))]),
            memory_bytes,
            checked_records: keys,
            // Device and processor counters are omitted, because they cover all groups together.
            device: None,
            process_cpu: None,
            ..plan.result_cell(&database, &group.player.played, &used)
        })
        .collect();
    drop((groups, other_player));
    database.check_and_remove(&model)?;
    Ok(cells)
}
