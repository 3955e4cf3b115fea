//! Candidate designs of the search: compaction policies with parameters on a grid, and splits of the memory between
//! memtables and block cache.

use lsmx_compaction::file_picker::FilePicker;
use lsmx_compaction::granularity::JobGranularity;
use lsmx_compaction::layout::TreeLayout;
use lsmx_compaction::trigger::{LevelCapacity, Trigger};
use lsmx_compaction::{
    CompactionRule, Level, PolicyParameter, PolicyPrimitives, PolicySpec, Preset,
};

use crate::numbers::{round_to_u64, to_f64};

/// Size ratios of the policies on the search grid.
const SIZE_RATIOS: [u64; 3] = [4, 6, 10];
pub(super) const MEMTABLE_BYTES_MIN: u64 = 64 << 10;
/// Maximum size of a memtable in bytes. A larger memtable slows recovery down and hardly reduces the costs.
const MEMTABLE_BYTES_MAX: u64 = 256 << 20;
/// Minimum ratio of data size to memtable size. With a larger memtable there would be too few flushes to fill several
/// levels.
const DATA_PER_MEMTABLE_MIN: u64 = 8;
/// Ratios of memory budget to memtable size on the search grid.
const MEMORY_PER_MEMTABLE: [u64; 3] = [4, 16, 64];
/// Number of memtables included in the memory budget. One memtable receives writes while the other is flushed.
const MEMTABLES: u64 = 2;

/// A compaction policy and a split of the memory between memtables and block cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CandidateDesign {
    pub(super) kind: PolicyKind,
    pub(super) memtable_bytes: u64,
    pub(super) block_cache_bytes: u64,
}

/// A compaction policy, described by the parameters that the search varies.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PolicyKind {
    /// A preset with its parameters.
    Preset(PolicySpec),
    /// The policy that [`tiered_top_policy`] returns.
    TieredTop { runs: u64, size_ratio: u64 },
}

impl PolicyKind {
    /// Returns the policy, or `None` if the parameters are invalid.
    pub(super) fn spec(&self) -> Option<PolicySpec> {
        match self {
            PolicyKind::Preset(spec) => Some(spec.clone()),
            PolicyKind::TieredTop { runs, size_ratio } => tiered_top_policy(*runs, *size_ratio),
        }
    }

    pub(super) fn family(&self) -> &str {
        match self {
            PolicyKind::Preset(spec) => spec.name(),
            PolicyKind::TieredTop { .. } => "tiered-top",
        }
    }

    /// Returns the policies that differ from this policy in one parameter. The value of the parameter is divided or
    /// multiplied by `1 + 0.25 * step`. A `step` below 1 counts as 1.
    fn neighbours(&self, step: f64) -> Vec<PolicyKind> {
        let around = |value: u64| {
            let (value, by) = (to_f64(value), step.max(1.0));
            // Smaller changes than 25 % are not useful, because parameters are small integers.
            let steps = [(value / (1.0 + 0.25 * by)).floor(), (value * (1.0 + 0.25 * by)).ceil()];
            steps.map(round_to_u64)
        };
        match self {
            PolicyKind::Preset(spec) => {
                let known = spec.preset().map_or(&[][..], Preset::parameters);
                let changed = [
                    PolicyParameter::SizeRatio,
                    PolicyParameter::Trigger,
                    PolicyParameter::UpperRuns,
                    PolicyParameter::LastRuns,
                    PolicyParameter::Space,
                    PolicyParameter::L1,
                ];
                let changed = changed.into_iter().filter(|it| known.contains(it));
                let values = changed.filter_map(|it| Some((it, spec.parameter_value(it)?)));
                let changed = values.flat_map(|(it, value)| around(value).map(|to| (it, to)));
                // Invalid parameter values are skipped.
                changed
                    .filter_map(|(it, to)| spec.clone().with_parameter(it, to).ok())
                    .map(PolicyKind::Preset)
                    .collect()
            }
            PolicyKind::TieredTop { runs, size_ratio } => {
                let ratios = around(*size_ratio)
                    .map(|size_ratio| PolicyKind::TieredTop { runs: *runs, size_ratio });
                let counts = around(*runs)
                    .map(|runs| PolicyKind::TieredTop { runs, size_ratio: *size_ratio });
                ratios.into_iter().chain(counts).filter(|kind| kind.spec().is_some()).collect()
            }
        }
    }
}

impl CandidateDesign {
    /// Returns the designs that differ from this design in one policy parameter or in the memtable size. The changed
    /// value is divided or multiplied by `1 + 0.25 * step`.
    pub(super) fn neighbours(&self, step: f64, memory: &MemoryBudget) -> Vec<CandidateDesign> {
        let kinds = self.kind.neighbours(step).into_iter();
        let mut all: Vec<CandidateDesign> =
            kinds.map(|kind| CandidateDesign { kind, ..self.clone() }).collect();
        let factor = 1.0 + 0.25 * step;
        let bytes = to_f64(self.memtable_bytes);
        for bytes in [bytes / factor, bytes * factor] {
            if let Some(split) = memory.design_with_memtable(round_to_u64(bytes)) {
                all.push(CandidateDesign { kind: self.kind.clone(), ..split });
            }
        }
        all.retain(|it| it != self);
        all
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryBudget {
    pub(super) bytes: u64,
    pub(super) data_bytes: u64,
}

impl MemoryBudget {
    /// Returns one design per memory split on the search grid. All designs use the default policy.
    pub(super) fn default_designs(&self) -> Vec<CandidateDesign> {
        let mut splits: Vec<CandidateDesign> = Vec::new();
        for part in MEMORY_PER_MEMTABLE {
            if let Some(split) = self.design_with_memtable(self.bytes / part)
                && !splits.contains(&split)
            {
                splits.push(split);
            }
        }
        splits
    }

    /// Returns a design with the default policy and memtables of `memtable_bytes`, clamped to the allowed sizes. The
    /// block cache gets the memory that two memtables leave. Returns `None` if the memory budget is smaller than two
    /// memtables.
    fn design_with_memtable(&self, memtable_bytes: u64) -> Option<CandidateDesign> {
        let most = MEMTABLE_BYTES_MAX.min(self.data_bytes / DATA_PER_MEMTABLE_MIN);
        let memtable_bytes = memtable_bytes.clamp(MEMTABLE_BYTES_MIN, most.max(MEMTABLE_BYTES_MIN));
        let block_cache_bytes = self.bytes.checked_sub(MEMTABLES * memtable_bytes)?;
        let kind = PolicyKind::Preset(PolicySpec::default());
        Some(CandidateDesign { kind, memtable_bytes, block_cache_bytes })
    }
}

/// Returns the policies on the search grid. Presets that consider tombstones are included only if the workload has
/// deletes. Without tombstones these presets behave like the preset `lo+1`.
pub(super) fn grid_policies(with_deletes: bool) -> Vec<PolicyKind> {
    let about_tombstones =
        |preset| matches!(preset, Preset::TombstoneDensity | Preset::TombstoneAge);
    let presets = || Preset::ALL.into_iter().filter(|it| with_deletes || !about_tombstones(*it));
    // The grid contains every preset with its default parameters.
    let mut specs: Vec<PolicySpec> = presets().map(PolicySpec::new).collect();
    let mut add = |spec: Result<PolicySpec, lsmx_compaction::Error>| {
        // Invalid parameters are skipped, for example more runs than the size ratio allows.
        if let Ok(spec) = spec
            && !specs.contains(&spec)
        {
            specs.push(spec);
        }
    };
    for size_ratio in SIZE_RATIOS {
        for preset in presets() {
            add(PolicySpec::new(preset).with_size_ratio(size_ratio));
        }
        let fluid = PolicySpec::new(Preset::Fluid).with_size_ratio(size_ratio);
        for (upper, last) in [(2, 1), (4, 1), (6, 1), (3, 2), (3, 3), (9, 3)] {
            let spec =
                fluid.clone().and_then(|it| it.with_parameter(PolicyParameter::UpperRuns, upper));
            add(spec.and_then(|it| it.with_parameter(PolicyParameter::LastRuns, last)));
        }
        for trigger in [2, 8] {
            for preset in [Preset::Leveled, Preset::OneLeveling] {
                let spec = PolicySpec::new(preset).with_size_ratio(size_ratio);
                add(spec.and_then(|it| it.with_parameter(PolicyParameter::Trigger, trigger)));
            }
        }
    }
    let universal = PolicySpec::new(Preset::Universal);
    for space in [25, 50, 100] {
        add(universal.clone().with_parameter(PolicyParameter::Space, space));
    }
    for trigger in [2, 8, 12] {
        add(universal.clone().with_parameter(PolicyParameter::Trigger, trigger));
    }
    let mut kinds: Vec<PolicyKind> = specs.into_iter().map(PolicyKind::Preset).collect();
    for size_ratio in SIZE_RATIOS {
        kinds.extend([2, 4, 8].map(|runs| PolicyKind::TieredTop { runs, size_ratio }));
    }
    kinds
}

/// Returns a policy with two tiered levels, L0 and L1, above leveled levels. A compaction merges `runs` flushed runs of
/// L0 into one run of L1, or `runs` runs of L1 into L2.
///
/// In the tiered levels, each entry is written twice: by the flush and by the merge into L1. Neither reads data of L2.
/// A merge into L2 contains `runs`² memtables, so L2 is rewritten less often than with a merge after each flush.
pub fn tiered_top_policy(runs: u64, size_ratio: u64) -> Option<PolicySpec> {
    let count = usize::try_from(runs).ok()?;
    let capacity =
        LevelCapacity::FromBottom { last: Level(6), base_memtables: size_ratio, size_ratio };
    let primitives = PolicyPrimitives {
        rules: vec![
            CompactionRule {
                trigger: Trigger::RunCount { runs: count, wait: count },
                granularity: JobGranularity::Runs,
                movement: FilePicker::All,
            },
            CompactionRule {
                trigger: Trigger::LevelFull(capacity),
                granularity: JobGranularity::File,
                movement: FilePicker::LeastOverlap,
            },
        ],
        layout: TreeLayout::Leveling { tiered: vec![count] },
        stop_runs: count.saturating_add(16),
        file_tables: 1,
        grandparent_files: 25,
    };
    PolicySpec::from_primitives(format!("tiered-top-{runs}-{size_ratio}"), primitives).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_has_every_preset_and_no_duplicates() {
        let kinds = grid_policies(true);
        for preset in Preset::ALL {
            assert!(kinds.contains(&PolicyKind::Preset(PolicySpec::new(preset))), "{preset:?}");
        }
        for (at, kind) in kinds.iter().enumerate() {
            assert!(!kinds[..at].contains(kind), "{kind:?}");
            assert!(kind.spec().is_some(), "{kind:?}");
        }
        let without = grid_policies(false);
        assert!(!without.contains(&PolicyKind::Preset(PolicySpec::new(Preset::TombstoneDensity))));
        assert!(without.len() < kinds.len());
    }

    #[test]
    fn memory_splits_use_the_whole_budget() {
        let memory = MemoryBudget { bytes: 64 << 20, data_bytes: 1 << 30 };
        let splits = memory.default_designs();
        assert_eq!(splits.len(), 3);
        for split in splits {
            assert_eq!(2 * split.memtable_bytes + split.block_cache_bytes, 64 << 20);
        }
        // A small memory budget allows one split, or none.
        assert_eq!(
            MemoryBudget { bytes: 256 << 10, data_bytes: 1 << 30 }.default_designs().len(),
            1
        );
        assert!(
            MemoryBudget { bytes: 100 << 10, data_bytes: 1 << 30 }.default_designs().is_empty()
        );
    }

    #[test]
    fn neighbour_differs_in_one_parameter() {
        let memory = MemoryBudget { bytes: 64 << 20, data_bytes: 1 << 30 };
        for kind in [
            PolicyKind::Preset("leveled".parse().unwrap()),
            PolicyKind::Preset("fluid(3,1)".parse().unwrap()),
            PolicyKind::TieredTop { runs: 4, size_ratio: 10 },
        ] {
            let design = CandidateDesign { kind, ..memory.design_with_memtable(4 << 20).unwrap() };
            let neighbours = design.neighbours(2.0, &memory);
            assert!(neighbours.len() >= 4, "{neighbours:?}");
            for neighbour in neighbours {
                let policy = neighbour.kind != design.kind;
                let memory = neighbour.memtable_bytes != design.memtable_bytes;
                assert!(policy != memory, "{neighbour:?}");
            }
        }
    }
}
