//! Predicts the costs of a preset under a workload with the closed-form cost model.

use lsmx_compaction::{PolicyParameter, PolicySpec, Preset};
use lsmx_simulator::cost_model::{
    Costs, FilterAllocation, MergeGranularity, RunsPerLevel, TreeDesign, filter_bits, levels,
};

use crate::numbers::to_f64;
use crate::workload::phases::Phase;

/// Approximate overhead per entry in a data block, in bytes.
const ENTRY_BYTES: f64 = 7.0;
/// False positive rate of a filter with 8-bit fingerprints.
const FALSE_POSITIVES: f64 = 1.0 / 256.0;

/// Parameters of the LSM tree whose costs the model predicts.
#[derive(Clone, Copy, Debug)]
pub struct ModelledTree {
    pub entry_bytes: u64,
    pub table_bytes: u64,
    pub block_bytes: u32,
    /// Whether lookups use the filter of the last sorted run.
    pub filter_last_run: bool,
}

/// Returns the costs that the closed-form cost model predicts. Returns `None` for policies that the model does not
/// cover: policies without a size ratio, FIFO, and composed policies.
pub fn closed_form_costs(spec: &PolicySpec, phases: &[Phase], tree: ModelledTree) -> Option<Costs> {
    let ModelledTree { entry_bytes, table_bytes, block_bytes, filter_last_run } = tree;
    let parameter = |parameter| spec.parameter_value(parameter).map(to_f64);
    let preset = spec.preset()?;
    let t = parameter(PolicyParameter::SizeRatio)?;
    let (runs, granularity) = match preset {
        Preset::Full | Preset::FullPreemptive => (RunsPerLevel::Leveling, MergeGranularity::Full),
        Preset::Spooky => match spec.parameter_value(PolicyParameter::Above) {
            Some(1) => (RunsPerLevel::Leveling, MergeGranularity::TwoLevelSpooky),
            _ => (RunsPerLevel::Leveling, MergeGranularity::Full),
        },
        Preset::LeastOverlap
        | Preset::LeastOverlapGrandparent
        | Preset::RoundRobin
        | Preset::ColdAccess
        | Preset::ColdWrite
        | Preset::Old
        | Preset::TombstoneDensity
        | Preset::TombstoneAge => (RunsPerLevel::Leveling, MergeGranularity::Partial),
        Preset::OneLeveling | Preset::Leveled => (
            RunsPerLevel::FirstTiered(parameter(PolicyParameter::Trigger)?),
            MergeGranularity::Partial,
        ),
        Preset::Tiering => (RunsPerLevel::Tiering, MergeGranularity::Full),
        Preset::LazyLeveling => (RunsPerLevel::LazyLeveling, MergeGranularity::Full),
        Preset::Fluid => {
            let upper = parameter(PolicyParameter::UpperRuns)?;
            (
                RunsPerLevel::Fluid { upper, last: parameter(PolicyParameter::LastRuns)? },
                MergeGranularity::Full,
            )
        }
        _ => return None,
    };
    let sum = |count: fn(&Phase) -> u64| to_f64(phases.iter().map(count).sum());
    let live = (sum(|phase| phase.inserts) - sum(|phase| phase.deletes)).max(1.0);
    let buffer = to_f64(table_bytes) / to_f64(entry_bytes.max(1));
    // The model assumes that the first level is T times as large as the memtable, where T is the size ratio.
    let l1 = parameter(PolicyParameter::L1)
        .filter(|_| preset.parameters().contains(&PolicyParameter::L1));
    let first = l1.map_or(buffer, |memtables| buffer * memtables / t);
    let selectivity = phases.iter().find(|phase| phase.ranges > 0);
    let design = TreeDesign {
        size_ratio: t,
        levels: levels(live, first, t),
        runs,
        granularity,
        dynamic_capacity: matches!(preset, Preset::Leveled | Preset::Spooky),
        entries_per_block: (f64::from(block_bytes) / (to_f64(entry_bytes) + ENTRY_BYTES)).max(1.0),
    };
    let range_entries = selectivity.map_or(0.0, |phase| (phase.selectivity * live).max(1.0));
    let filters = match filter_last_run {
        true => FilterAllocation::Uniform,
        false => FilterAllocation::UniformExceptLastRun,
    };
    Some(design.costs(filters, filter_bits(FALSE_POSITIVES), range_entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;

    fn costs(spec: &str, filter_last_run: bool) -> Option<Costs> {
        let mut load = Phase::new("load", KeyDistribution::Uniform);
        load.inserts = 1_000_000;
        let tree = ModelledTree {
            entry_bytes: 128,
            table_bytes: 128 * 1000,
            block_bytes: 4096,
            filter_last_run,
        };
        closed_form_costs(&spec.parse().unwrap(), &[load], tree)
    }

    fn of(spec: &str) -> Option<Costs> {
        costs(spec, true)
    }

    #[test]
    fn lookup_of_absent_key_reads_last_run_without_its_filter() {
        for spec in ["full(l1=10)", "tiering", "leveled"] {
            let [with, without] = [true, false].map(|filter| costs(spec, filter).unwrap());
            let more = without.absent_lookup_ios - with.absent_lookup_ios;
            assert!((more - (1.0 - FALSE_POSITIVES)).abs() < 1e-9, "{spec}: {more}");
            assert_eq!(with.present_lookup_ios, without.present_lookup_ios);
        }
    }

    #[test]
    fn presets_have_the_costs_of_their_designs() {
        let amplification = |spec| of(spec).map(|costs| costs.compaction_write_amplification);
        // The data fills 1000 memtables. If the first level holds 10 of them, the tree has three levels.
        let close = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?}");
        };
        close(amplification("full(l1=10)"), 13.5);
        close(amplification("tiering"), 2.7);
        close(amplification("lazy-leveling"), 2.0 * 0.9 + 4.5);
        close(amplification("lo+1(l1=10)"), 16.5);
        // By default the first level holds two memtables, so the tree has one more level.
        close(amplification("lo+1"), 22.0);
        assert_eq!(amplification("universal"), None);
        assert_eq!(amplification("fifo"), None);
        assert!(of("tiering").unwrap().absent_lookup_ios > of("full").unwrap().absent_lookup_ios);
    }
}
