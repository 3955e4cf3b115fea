//! Scales the number of writes of a workload.

use crate::numbers::{round_to_u64, to_f64};
use crate::workload::phases::{LookupGroup, Phase};

/// Maximum selectivity of range lookups after a workload is scaled down. The selectivity is the fraction of all entries
/// that a range lookup reads. An original selectivity above this maximum is kept.
const SELECTIVITY_MAX: f64 = 0.1;

/// Returns the phases with the number of writes multiplied by `factor`. Limits the number of lookups of each kind to
/// `lookups_max`. A range lookup reads as many entries as in the original workload, unless [`SELECTIVITY_MAX`] limits
/// the selectivity.
pub(super) fn scale_phases(phases: &[Phase], factor: f64, lookups_max: u64) -> Vec<Phase> {
    let writes = |n: u64| if n == 0 { 0 } else { round_to_u64(to_f64(n) * factor).max(1) };
    let phases = phases.iter().map(|phase| Phase {
        inserts: writes(phase.inserts),
        updates: writes(phase.updates),
        deletes: writes(phase.deletes),
        merges: writes(phase.merges),
        range_deletes: writes(phase.range_deletes),
        lookups: phase
            .lookups
            .iter()
            .map(|it| LookupGroup { ops: it.ops.min(lookups_max), ..*it })
            .collect(),
        ranges: phase.ranges.min(lookups_max),
        selectivity: match phase.selectivity {
            share if factor < 1.0 => (share / factor).min(SELECTIVITY_MAX.max(share)),
            share => share / factor,
        },
        ..phase.clone()
    });
    phases.collect()
}

pub(super) fn count_writes(phases: &[Phase]) -> u64 {
    phases.iter().map(Phase::writes).sum()
}

pub(super) fn count_puts(phases: &[Phase]) -> u64 {
    phases.iter().map(|phase| phase.inserts + phase.updates).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;

    #[test]
    fn scaled_phases_have_fewer_writes_and_equal_ranges() {
        let mut phase = Phase::new("all", KeyDistribution::Zipf);
        phase.inserts = 900_000;
        phase.updates = 100_000;
        phase.deletes = 3;
        phase.lookups = vec![LookupGroup { alpha: 0.5, ops: 5000 }];
        phase.ranges = 50;
        phase.selectivity = 1e-4;
        let small = &scale_phases(&[phase.clone()], 0.1, 1000)[0];
        assert_eq!((small.inserts, small.updates, small.deletes), (90_000, 10_000, 1));
        assert_eq!((small.lookups[0].ops, small.ranges), (1000, 50));
        assert!((small.selectivity - 1e-3).abs() < 1e-12);
        let tiny = &scale_phases(&[phase.clone()], 1e-4, 1000)[0];
        assert!((tiny.selectivity - SELECTIVITY_MAX).abs() < 1e-12);
        assert_eq!(scale_phases(&[phase.clone()], 1.0, 1_000_000), [phase]);
    }
}
