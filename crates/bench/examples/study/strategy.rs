//! The compaction strategies of the study, and the corresponding policies of lsmx.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strategy {
    /// Name of the strategy in the study.
    pub(crate) name: &'static str,
    /// Name of the policy in lsmx.
    pub(crate) policy: &'static str,
    /// Policy name and parameters, as passed to `--policy` in `scripts/study`. The parameters assume a size ratio of
    /// 10.
    pub(crate) spec: &'static str,
}

const fn strategy(name: &'static str, policy: &'static str, spec: &'static str) -> Strategy {
    Strategy { name, policy, spec }
}

pub(crate) const FULL: Strategy = strategy("Full", "full", "full(l1=28)");
pub(crate) const LO1: Strategy = strategy("LO+1", "lo+1", "lo+1(l1=1)");
pub(crate) const LO2: Strategy = strategy("LO+2", "lo+2", "lo+2(l1=1)");
pub(crate) const RR: Strategy = strategy("RR", "rr", "rr(l1=1)");
pub(crate) const COLD: Strategy = strategy("Cold", "cold-write", "cold-write(l1=1)");
pub(crate) const OLD: Strategy = strategy("Old", "old", "old(l1=1)");
pub(crate) const TIER: Strategy = strategy("Tier", "universal", "universal");
pub(crate) const ONE: Strategy = strategy("1-Lvl", "1-leveling", "1-leveling(l1=2)");
pub(crate) const TSD: Strategy = strategy("TSD", "tsd", "tsd(l1=1)");
pub(crate) const TSA50: Strategy = strategy("TSA50", "tsa", "tsa(l1=1)");
pub(crate) const TSA33: Strategy = strategy("TSA33", "tsa", "tsa(D=0.33,l1=1)");

/// Compacts the least recently read file. If no file is ever read, the strategy picks the same files as [`OLD`].
pub(crate) const COLD_ACCESS: Strategy =
    strategy("Cold by reads", "cold-access", "cold-access(l1=1)");
/// Full compaction. As in textbooks, L1 holds T flushes, where T is the size ratio.
pub(crate) const TEXTBOOK_FULL: Strategy = strategy("Full, textbook L1", "full", "full(l1=6)");
/// [`TEXTBOOK_FULL`] with preemptive compactions, which merge several levels at once.
pub(crate) const PREEMPTIVE: Strategy =
    strategy("Full, preemptive", "full-preemptive", "full-preemptive(l1=6)");
/// [`TIER`] with an earlier write stop: as in [`FULL`], writes stop as soon as a compaction is due.
pub(crate) const TIGHT_TIER: Strategy =
    strategy("Tier, stop at 5", "universal", "universal(stop=5)");
/// The lsmx preset `full` with default parameters.
pub(crate) const FULL_PRESET: Strategy = strategy("`full`", "full", "full");
pub(crate) const PREEMPTIVE_PRESET: Strategy =
    strategy("`full-preemptive`", "full-preemptive", "full-preemptive");
pub(crate) const LO1_PRESET: Strategy = strategy("`lo+1`", "lo+1", "lo+1");
pub(crate) const TIERING: Strategy = strategy("`tiering`", "tiering", "tiering");
pub(crate) const LEVELED: Strategy = strategy("`leveled`", "leveled", "leveled");

/// The strategies in the first plots of the study, in the order of the plots.
pub(crate) const EIGHT: [Strategy; 8] = [FULL, LO1, LO2, RR, COLD, OLD, TIER, ONE];
/// Leveled strategies whose compactions move single files instead of whole levels.
pub(crate) const PARTIAL: [Strategy; 5] = [LO1, LO2, RR, COLD, OLD];
/// The strategies of [`EIGHT`] except Tier.
pub(crate) const LEVELED_ONES: [Strategy; 7] = [FULL, LO1, LO2, RR, COLD, OLD, ONE];
