//! The compaction strategies of the study, and the corresponding policies of lsmx.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strategy {
    /// Name of the strategy in the study.
    pub(crate) name: &'static str,
    /// Name of the policy in lsmx.
    pub(crate) policy: &'static str,
    /// The policy in the column `spec`: the name and the parameters that differ from their defaults. `l1` is in
    /// memtables. A memtable for 53,700 entries takes 12.2 MB, so 7 memtables are the 80 MiB of the first level in the
    /// code of the study.
    pub(crate) spec: &'static str,
}

const fn strategy(name: &'static str, policy: &'static str, spec: &'static str) -> Strategy {
    Strategy { name, policy, spec }
}

pub(crate) const FULL: Strategy = strategy("Full", "full", "full(l1=7)");
pub(crate) const LO1: Strategy = strategy("LO+1", "lo+1", "lo+1(l1=7)");
pub(crate) const LO2: Strategy = strategy("LO+2", "lo+2", "lo+2(l1=7)");
pub(crate) const RR: Strategy = strategy("RR", "rr", "rr(l1=7)");
pub(crate) const COLD: Strategy = strategy("Cold", "cold-write", "cold-write(l1=7)");
pub(crate) const OLD: Strategy = strategy("Old", "old", "old(l1=7)");
pub(crate) const TIER: Strategy = strategy("Tier", "universal", "universal");
pub(crate) const ONE: Strategy = strategy("1-Lvl", "1-leveling", "1-leveling(l1=7)");
pub(crate) const TSD: Strategy = strategy("TSD", "tsd", "tsd(l1=7)");
pub(crate) const TSA50: Strategy = strategy("TSA50", "tsa", "tsa(l1=7)");
pub(crate) const TSA33: Strategy = strategy("TSA33", "tsa", "tsa(D=0.33,l1=7)");

/// Compacts the least recently read file. If no file is ever read, the strategy picks the same files as [`OLD`].
pub(crate) const COLD_ACCESS: Strategy =
    strategy("Cold by reads", "cold-access", "cold-access(l1=7)");
/// Full compaction with the first level that reproduces the ratio of Full to LO+1 in the study.
pub(crate) const FULL_LARGE_L1: Strategy =
    strategy("Full, L1 of 50 flushes", "full", "full(l1=28)");
/// [`FULL`] with preemptive compactions, which merge several levels at once.
pub(crate) const PREEMPTIVE: Strategy =
    strategy("Full, preemptive", "full-preemptive", "full-preemptive(l1=7)");
/// [`LO1`] with the smallest possible first level.
pub(crate) const LO1_SMALL_L1: Strategy = strategy("LO+1, L1 of 2 flushes", "lo+1", "lo+1(l1=1)");
/// [`TIER`] with an earlier write stop: as in [`FULL`], writes stop as soon as a compaction is due.
pub(crate) const TIGHT_TIER: Strategy =
    strategy("Tier, stop at 5", "universal", "universal(stop=5)");
pub(crate) const TIERING: Strategy = strategy("`tiering`", "tiering", "tiering");
pub(crate) const LEVELED: Strategy = strategy("`leveled`", "leveled", "leveled");

/// The strategies in the first plots of the study, in the order of the plots.
pub(crate) const EIGHT: [Strategy; 8] = [FULL, LO1, LO2, RR, COLD, OLD, TIER, ONE];
/// Leveled strategies whose compactions move single files instead of whole levels.
pub(crate) const PARTIAL: [Strategy; 5] = [LO1, LO2, RR, COLD, OLD];
/// The strategies of [`EIGHT`] except Tier.
pub(crate) const LEVELED_ONES: [Strategy; 7] = [FULL, LO1, LO2, RR, COLD, OLD, ONE];
