//! Metrics, text table and CSV rows of `lsmx simulate`.

use super::{Simulation, SimulationCell};
use crate::error::Result;
use crate::experiment::explore::columns::{TREE, add_level_sums, describe_workload, notes};
use crate::experiment::explore::page;
use crate::metric::{MetricRegistry, ResultRow, build_union_table};
use crate::numbers::ratio;
use crate::report::Report;
use crate::report::provenance::Provenance;

/// Metrics of `lsmx simulate`.
pub const REGISTRY: MetricRegistry = MetricRegistry {
    command: "simulate",
    metrics: &[TREE],
    identity: &["policy", "spec", "sweep.*"],
    shown: &[
        "flushes",
        "compaction.jobs",
        "compaction.trivial_moves",
        "data_moved_ratio",
        "model.moved_ratio",
        "write_amplification",
        "space_amplification",
        "point_lookups[*].ios_per_get",
        "range_lookups.ios_per_range",
        "runs",
        "files",
        "levels[*].share",
        "elapsed_s",
    ],
};

pub(crate) fn build_row(cell: &SimulationCell, swept: bool) -> Result<ResultRow> {
    let ranges = &cell.report.range_lookups;
    let blocks = ranges.blocks_read.values().sum();
    let ios = (ranges.ops > 0).then(|| ratio(blocks, ranges.ops));
    let row = ResultRow::new(cell)?.with_value("range_lookups.ios_per_range", ios);
    Ok(add_level_sums(row, cell.model.as_ref(), swept))
}

impl Report for Simulation {
    fn registry(&self) -> &'static MetricRegistry {
        &REGISTRY
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        let workload =
            self.cells.first().map(|first| describe_workload(&first.workload, first.seed));
        format!("simulated: {}", workload.unwrap_or_default())
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        let swept = self.cells.iter().any(|cell| !cell.sweep.is_empty());
        self.cells.iter().map(|cell| build_row(cell, swept)).collect()
    }

    fn notes(&self) -> Vec<&'static str> {
        notes(self.cells.iter().map(|cell| cell.spec.as_str()))
    }

    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        let rows = self.cells.iter().map(|cell| Ok(ResultRow::new(cell)?.into_csv().into()));
        Ok(build_union_table(&rows.collect::<Result<Vec<_>>>()?))
    }

    fn html(&self) -> Result<String> {
        page::simulation_page(self)
    }
}
