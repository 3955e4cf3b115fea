//! The four costs of a design (writes, point lookups, range lookups, space) and their weighted sum.

use lsmx_simulator::Report;
use serde::{Deserialize, Serialize};

use crate::experiment::explore::result::ExplorationCell;
use crate::numbers::{ratio, to_f64};

use super::weights::CostWeights;

/// Length of a block in bytes. One I/O reads one block.
const BLOCK_BYTES: f64 = 4096.0;

/// Costs of a design. The lookup costs of a workload without lookups are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DesignCosts {
    /// Number of 4 KiB blocks that flushes and compactions read or write per user write.
    pub writes: f64,
    /// I/Os per point lookup.
    pub points: f64,
    /// I/Os per range lookup.
    pub ranges: f64,
    /// Space amplification: total length of all files divided by the total length of the newest versions of all
    /// entries.
    pub space: f64,
}

impl DesignCosts {
    /// Computes the costs from the report of a simulation with `writes` writes.
    pub fn from_report(report: &Report, writes: u64) -> DesignCosts {
        let (compaction, ranges) = (&report.compaction, &report.range_lookups);
        let moved = report.flushed_bytes + compaction.read_bytes + compaction.written_bytes;
        DesignCosts {
            writes: to_f64(moved) / BLOCK_BYTES / to_f64(writes.max(1)),
            points: weighted_mean(report.point_lookups.iter().map(|it| (it.ops, it.ios_per_get))),
            ranges: ratio(ranges.blocks_read.values().sum(), ranges.ops),
            space: report.space_amplification,
        }
    }

    /// Computes the costs from the measurements of a run with `writes` writes.
    pub fn from_cell(cell: &ExplorationCell, writes: u64) -> DesignCosts {
        let (compaction, ranges) = (&cell.compaction, &cell.range_lookups);
        let moved = cell.flushed_bytes + compaction.read_bytes + compaction.written_bytes;
        DesignCosts {
            writes: to_f64(moved) / BLOCK_BYTES / to_f64(writes.max(1)),
            points: weighted_mean(cell.point_lookups.iter().map(|it| (it.ops, it.ios_per_get))),
            ranges: ratio(ranges.blocks_read.values().sum(), ranges.ops),
            space: cell.space_amplification,
        }
    }

    /// Returns each cost multiplied by its weight, in the order of the fields.
    pub fn weighted_costs(&self, weights: &CostWeights) -> [f64; 4] {
        [
            self.writes * weights.writes,
            self.points * weights.points,
            self.ranges * weights.ranges,
            self.space * weights.space,
        ]
    }

    /// Returns the weighted sum of the costs. A lower sum is better.
    pub fn weighted_sum(&self, weights: &CostWeights) -> f64 {
        self.weighted_costs(weights).iter().sum()
    }

    /// Corrects these costs, which were simulated for a large tree, by the simulation error for a small tree.
    /// `measured` and `simulated` are the costs of the small tree. The write and space costs are multiplied by
    /// `measured` ÷ `simulated`. The difference `measured` − `simulated` is added to the lookup costs.
    pub fn correct_by(&self, measured: &DesignCosts, simulated: &DesignCosts) -> DesignCosts {
        let scaled = |large: f64, measured: f64, simulated: f64| {
            if simulated > 0.0 { large * measured / simulated } else { large }
        };
        let shifted =
            |large: f64, measured: f64, simulated: f64| (large + measured - simulated).max(0.0);
        DesignCosts {
            writes: scaled(self.writes, measured.writes, simulated.writes),
            points: shifted(self.points, measured.points, simulated.points),
            ranges: shifted(self.ranges, measured.ranges, simulated.ranges),
            space: scaled(self.space, measured.space, simulated.space),
        }
    }

    /// Returns whether every cost is at most the corresponding cost of `other`, and at least one cost is lower.
    pub fn dominates(&self, other: &DesignCosts) -> bool {
        let all = CostWeights { writes: 1.0, points: 1.0, ranges: 1.0, space: 1.0 };
        let (own, others) = (self.weighted_costs(&all), other.weighted_costs(&all));
        let pairs = || own.iter().zip(&others);
        pairs().all(|(own, other)| own <= other) && pairs().any(|(own, other)| own < other)
    }
}

/// Returns for each design whether it is on the Pareto front, that is, whether no other design dominates it.
pub(super) fn find_undominated(costs: &[DesignCosts]) -> Vec<bool> {
    costs.iter().map(|it| !costs.iter().any(|other| other.dominates(it))).collect()
}

/// Returns the mean number of I/Os per lookup over all kinds of lookups. Each item of `kinds` contains the number of
/// lookups of one kind and their mean number of I/Os.
fn weighted_mean(kinds: impl Iterator<Item = (u64, f64)>) -> f64 {
    let (ops, ios) =
        kinds.fold((0, 0.0), |(ops, ios), (n, per_get)| (ops + n, ios + to_f64(n) * per_get));
    ios / to_f64(ops.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(writes: f64, points: f64, ranges: f64, space: f64) -> DesignCosts {
        DesignCosts { writes, points, ranges, space }
    }

    #[test]
    fn cost_sum_is_weighted() {
        let weights = CostWeights { writes: 2.0, points: 0.5, ranges: 0.0, space: 1.0 };
        assert!((costs(1.0, 2.0, 9.0, 1.5).weighted_sum(&weights) - 4.5).abs() < 1e-12);
    }

    #[test]
    fn pareto_front_has_undominated_designs() {
        let all = [
            costs(1.0, 2.0, 1.0, 1.0),
            costs(2.0, 1.0, 1.0, 1.0),
            costs(2.0, 2.0, 1.0, 1.0),
            // Designs with equal costs do not dominate each other.
            costs(1.0, 2.0, 1.0, 1.0),
        ];
        assert_eq!(find_undominated(&all), [true, true, false, true]);
    }

    #[test]
    fn small_measured_tree_corrects_large_simulated_tree() {
        let large = costs(2.0, 1.5, 3.0, 1.2);
        let corrected = large.correct_by(&costs(1.1, 1.1, 2.0, 1.1), &costs(1.0, 1.0, 2.5, 1.1));
        assert!((corrected.writes - 2.2).abs() < 1e-9);
        assert!((corrected.points - 1.6).abs() < 1e-9);
        assert!((corrected.ranges - 2.5).abs() < 1e-9);
        assert!((corrected.space - 1.2).abs() < 1e-9);
        // If the measured tree has the full size, the corrected costs are the measured costs.
        let measured = costs(1.1, 0.2, 0.0, 1.3);
        let same = large.correct_by(&measured, &large);
        assert!((same.writes - 1.1).abs() < 1e-9 && (same.points - 0.2).abs() < 1e-9);
    }
}
