//! The experiment `put-over-time`: measures puts per time slice while compactions run.

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::{SliceSettings, ThreadGroup, TimeSlice};
use crate::experiment::throughput::database::{check_records, has_entries};
use crate::numbers::{self, to_f64, to_usize};
use crate::peers::EngineKind;

use super::StudyContext;
use super::result::{PutSlice, TuningCell};

/// Length of a time slice during the measurement, in nanoseconds.
const SLICE_NS: u64 = 50_000_000;
/// Maximum number of time slices in the result. Adjacent slices are combined if there are more.
const SLICES_MAX: usize = 400;
const PURPOSE: u64 = 0x7075_7473;

pub(super) fn measure_puts_over_time(
    bench: &StudyContext<'_>,
    progress: &mut dyn Progress,
) -> Result<Vec<TuningCell>> {
    bench.config.engine_kinds().map(|kind| measure_engine(bench, kind, progress)).collect()
}

fn measure_engine(
    bench: &StudyContext<'_>,
    kind: EngineKind,
    progress: &mut dyn Progress,
) -> Result<TuningCell> {
    let path = bench.config.database_path(kind, bench.temporary);
    // Records of an existing database are overwritten. A new database is filled.
    let overwrites = has_entries(&path);
    let engine = kind.open(&path, &bench.config.settings)?;
    if overwrites {
        check_records(engine.as_ref(), &path, &bench.config.bench_plan(&[])?)?;
    }
    let workload = if overwrites { "overwrite" } else { "fillrandom" };
    let ops = if overwrites { bench.ops() } else { bench.config.entries };
    let group = ThreadGroup {
        threads: bench.threads(),
        slices: Some(SliceSettings { ns: SLICE_NS, latencies: false }),
        seed: bench.config.seed,
        purpose: PURPOSE,
        ..ThreadGroup::single_thread(engine.as_ref(), bench.records)
    };
    let read_compacted = || engine.written_bytes().map(|written| written.compaction_bytes);
    let mut before = read_compacted();
    let mut compacted: Vec<u64> = Vec::new();
    let (played, _) = group.run_work_with_writer(
        (&format!("{kind}: {workload}"), ops),
        progress,
        &|player| {
            player.for_each_own_number(ops, |player, op| {
                let draw = player.random.next_u64();
                let record = if overwrites { draw % bench.config.entries } else { op };
                player.put(record, draw)
            })
        },
        None,
        &mut |elapsed_ns| {
            let place = to_usize(elapsed_ns / SLICE_NS);
            compacted.resize(compacted.len().max(place + 1), 0);
            if let Some(bytes) = read_compacted() {
                compacted[place] += bytes.saturating_sub(before.unwrap_or(bytes));
                before = Some(bytes);
            }
        },
    )?;
    let counts_compaction = before.is_some();
    engine.close()?;
    let mut slices = played.slices.clone();
    let count = slices.len().max(compacted.len());
    slices.resize(count, TimeSlice::default());
    compacted.resize(count, 0);
    let mut slices = combine_slices(&slices, &compacted, played.elapsed_ns);
    if !counts_compaction {
        slices.iter_mut().for_each(|slice| slice.compaction_bytes = None);
    }
    Ok(TuningCell {
        engine: kind.name().to_owned(),
        slices,
        ..TuningCell::new(workload, kind.name(), bench.threads(), &played, 0.0)
    })
}

/// Combines adjacent time slices into at most [`SLICES_MAX`] slices, and adds the bytes that compaction wrote in each
/// slice. The last slice ends with the last put.
fn combine_slices(slices: &[TimeSlice], compacted: &[u64], elapsed_ns: u64) -> Vec<PutSlice> {
    let joined = slices.len().div_ceil(SLICES_MAX).max(1);
    let slice_ns = SLICE_NS * numbers::to_u64(joined);
    let parts = slices.chunks(joined).zip(compacted.chunks(joined));
    (0..)
        .step_by(to_usize(slice_ns))
        .zip(parts)
        .map(|(begin_ns, (parts, compacted)): (u64, _)| {
            let mut all = TimeSlice::default();
            parts.iter().for_each(|part| all.add(part));
            let end_ns = (begin_ns + slice_ns).min(elapsed_ns.max(begin_ns + 1));
            PutSlice {
                end_s: to_f64(end_ns) / 1e9,
                ops: all.ops,
                ops_per_s: to_f64(all.ops) * 1e9 / to_f64(end_ns - begin_ns),
                mean_us: if all.ops > 0 {
                    to_f64(all.total_ns) / to_f64(all.ops) / 1e3
                } else {
                    0.0
                },
                max_us: to_f64(all.max_ns) / 1e3,
                compaction_bytes: Some(compacted.iter().sum()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combined_slices_are_few_and_hold_every_put() {
        let one = TimeSlice { ops: 2, total_ns: 4000, max_ns: 3000, latencies: None };
        for count in [1, 399, 400, 401, 1999] {
            let elapsed = SLICE_NS * count - SLICE_NS / 2;
            let slices = combine_slices(
                &vec![one.clone(); to_usize(count)],
                &vec![5; to_usize(count)],
                elapsed,
            );
            assert!(slices.len() <= SLICES_MAX);
            assert_eq!(slices.iter().map(|slice| slice.ops).sum::<u64>(), 2 * count);
            let compacted: u64 = slices.iter().filter_map(|slice| slice.compaction_bytes).sum();
            assert_eq!(compacted, 5 * count);
            assert!((slices[slices.len() - 1].end_s - to_f64(elapsed) / 1e9).abs() < 1e-9);
            assert!(slices.is_sorted_by(|a, b| a.end_s < b.end_s));
            assert!(slices.iter().all(|slice| (slice.mean_us - 2.0).abs() < 1e-9));
        }
    }
}
