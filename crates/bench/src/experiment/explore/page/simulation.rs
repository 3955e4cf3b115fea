//! The page of `lsmx simulate`: that of `lsmx explore`, with what a tree without data can say.

use std::collections::BTreeMap;

use lsmx::metrics::BlockKind;
use lsmx_simulator::Report;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use crate::experiment::explore::result::{
    Cell, Compaction, DeletePersistence, LevelSummary, PointLookups, RangeLookups, Stalls,
};
use crate::experiment::simulate::{self, Simulation};
use crate::latency::LatencyUs;

/// Returns the page of a simulation, with a part per workload.
pub(crate) fn simulation(result: &Simulation) -> String {
    let cells: Vec<Cell> = result.cells.iter().map(cell).collect();
    super::cells("lsmx simulate", &cells, &result.provenance)
}

/// Returns the levels of a simulated tree.
pub(crate) fn levels(report: &Report) -> Vec<LevelSummary> {
    let level = |it: &lsmx_simulator::LevelReport| LevelSummary {
        level: it.level,
        runs: it.runs,
        files: it.files,
        bytes: it.bytes,
        entries: it.entries,
        tombstones: it.tombstones,
    };
    report.levels.iter().map(level).collect()
}

/// Returns the cell of an exploration with the numbers of a simulation.
fn cell(cell: &simulate::Cell) -> Cell {
    let report = &cell.report;
    Cell {
        policy: cell.policy.clone(),
        spec: cell.spec.clone(),
        sweep: cell.sweep.clone(),
        workload: cell.workload.clone(),
        seed: cell.seed,
        ingested_bytes: report.ingested_bytes,
        flushed_bytes: report.flushed_bytes,
        flushes: report.flushes,
        compaction: Compaction {
            jobs: report.compaction.jobs,
            trivial_moves: report.compaction.trivial_moves,
            read_bytes: report.compaction.read_bytes,
            written_bytes: report.compaction.written_bytes,
            latency_us: LatencyUs::default(),
            thread_us_total: 0,
            cpu_us_total: 0,
            cpu_fraction: 0.0,
        },
        data_moved_ratio: report.data_moved_ratio,
        write_amplification: report.write_amplification,
        compaction_write_amplification: report.compaction_write_amplification,
        // There is no log.
        device_write_amplification: 0.0,
        space_amplification: report.space_amplification,
        disk_bytes: 0,
        disk_amplification: 0.0,
        space_amplification_invalid: report.space_amplification_invalid,
        space_amplification_peak: 0.0,
        space_peak_bytes: 0,
        space_transient_bytes: 0,
        delete_persistence: DeletePersistence::default(),
        put_latency_us: LatencyUs::default(),
        stalls: Stalls::default(),
        point_lookups: point_lookups(report),
        range_lookups: RangeLookups {
            ops: report.range_lookups.ops,
            entries: report.range_lookups.entries,
            blocks_read: by_kind(&report.range_lookups.blocks_read),
            ..RangeLookups::default()
        },
        levels: levels(report),
        history: Vec::new(),
        elapsed_s: cell.elapsed_s,
        digest: None,
        simulated: Some(report.clone()),
        model: cell.model,
        repeats: None,
        is_simulated: true,
    }
}

fn point_lookups(report: &Report) -> Vec<PointLookups> {
    let lookups = report.point_lookups.iter().map(|it| PointLookups {
        alpha: it.alpha,
        ops: it.ops,
        latency_us: LatencyUs::default(),
        ios_per_get: it.ios_per_get,
        read_amplification: None,
        blocks_read: by_kind(&it.blocks_read),
        filter_false_positive_rate: it.filter_false_positive_rate,
    });
    lookups.collect()
}

/// Blocks by kind. The simulator knows kinds by the names that they have in results.
fn by_kind(blocks: &BTreeMap<String, u64>) -> BTreeMap<BlockKind, u64> {
    let known = blocks.iter().filter_map(|(name, &count)| {
        let name: StrDeserializer<'_, Error> = name.as_str().into_deserializer();
        Some((BlockKind::deserialize(name).ok()?, count))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_blocks_are_known_by_the_names_that_results_have() {
        let names = [("data", 3), ("index", 2), ("top_index", 1), ("filter", 5)];
        let blocks = names.map(|(name, count)| (name.to_owned(), count)).into();
        let kinds = [BlockKind::Data, BlockKind::Index, BlockKind::TopIndex, BlockKind::Filter];
        assert_eq!(by_kind(&blocks), kinds.into_iter().zip([3, 2, 1, 5]).collect());
    }
}
