//! Named policies: their primitives, parameters and defaults.

use crate::composed::{CompactionRule, PolicyPrimitives};
use crate::file_picker::FilePicker;
use crate::granularity::JobGranularity;
use crate::ids::Level;
use crate::layout::TreeLayout;
use crate::parameter::{MILLION, PolicyParameter, SHARE_OF_DURATION};
use crate::trigger::{LevelCapacity, Trigger};

/// A named policy.
///
/// In the comments of the variants, "the study" is Sarkar et al., "Constructing and Analyzing the LSM Compaction Design
/// Space", PVLDB 14 (2021).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Preset {
    /// Leveled. A full level is merged with the whole next level. "Full" in the study.
    Full,
    /// Leveled. A job takes the file with the least overlap in the next level. "LO+1" in the study.
    LeastOverlap,
    /// Like `LeastOverlap`, but with the overlap in the level below the next level. "LO+2" in the study.
    LeastOverlapGrandparent,
    /// Leveled. Jobs take files in key order, round robin. "RR" in the study.
    RoundRobin,
    /// Leveled. A job takes the file that lookups have not read for the longest time. "Cold" in the text of the study.
    ColdAccess,
    /// Leveled. A job takes the file whose newest entry is the oldest. Most likely "Cold" in the code of the study.
    ColdWrite,
    /// Leveled. A job takes the file with the oldest entry. "Old" in the study.
    Old,
    /// Like `LeastOverlap`, but files with many tombstones in any level have priority. "TSD" in the study.
    TombstoneDensity,
    /// Like `LeastOverlap`, but files with old tombstones have priority, so that the age of tombstones is bounded.
    /// "TSA" in the study.
    ///
    /// Source: Sarkar et al., "Lethe", SIGMOD 2020.
    TombstoneAge,
    /// Tiering: when a level has T runs, they are merged into one run of the next level.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    Tiering,
    /// RocksDB's universal compaction on a list of runs. "Tier" in the study.
    Universal,
    /// The first level is tiered. Deeper levels work like `LeastOverlap`. "1-Lvl" in the study.
    OneLeveling,
    /// The last level has one run. All other levels are tiered.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    LazyLeveling,
    /// At most K runs in each upper level and Z runs in the last level. Covers all layouts from leveling to tiering.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    Fluid,
    /// Leveled. A flush is merged at once with as many levels as are needed to hold its data.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), "full preemptive merge".
    FullPreemptive,
    /// Like `FullPreemptive`, but large levels are merged in groups of files that match the files of the last level.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022).
    Spooky,
    /// The default policy. L1 is tiered, and the capacities of deeper levels are computed from the size of the last
    /// level.
    Leveled,
    /// FIFO: the oldest files are dropped. This policy drops data by design.
    ///
    /// A file is dropped only if no open snapshot is newer than its oldest entry. Snapshots and transactions of all
    /// keyspaces count. While they overlap without a gap, the policy drops no file, and the tree exceeds its limits.
    ///
    /// Source: RocksDB, "FIFO compaction style".
    Fifo,
}

/// Default size ratio.
pub const SIZE_RATIO_DEFAULT: u64 = 10;
/// Default number of runs that makes a merge due, if L0 is tiered.
pub const TRIGGER_RUNS_DEFAULT: u64 = 4;
/// Default number of runs in L0 at which writes stop, if L0 is tiered.
pub const STOP_RUNS_DEFAULT: u64 = 20;
/// Default maximum number of runs in L1 of `leveled`.
pub const LEVELED_UPPER_RUNS_DEFAULT: u64 = 4;
/// Default last level of `leveled` and `spooky`, and bottom level of `universal`.
pub const LAST_LEVEL_DEFAULT: u64 = 6;
/// Default maximum overlap of an output with the grandparent level, as a multiple of the target size of an output.
pub const GRANDPARENTS_DEFAULT: u64 = 25;
/// Default minimum capacity of the base level of `leveled`, in memtables.
pub const BASE_MEMTABLES_DEFAULT: u64 = 4;

impl Preset {
    /// All presets that drop no data. The name `all` on the command line selects them.
    pub const ALL: [Preset; 17] = [
        Preset::Full,
        Preset::LeastOverlap,
        Preset::LeastOverlapGrandparent,
        Preset::RoundRobin,
        Preset::ColdAccess,
        Preset::ColdWrite,
        Preset::Old,
        Preset::TombstoneDensity,
        Preset::TombstoneAge,
        Preset::Tiering,
        Preset::Universal,
        Preset::OneLeveling,
        Preset::LazyLeveling,
        Preset::Fluid,
        Preset::FullPreemptive,
        Preset::Spooky,
        Preset::Leveled,
    ];

    /// Presets that drop data.
    pub const DROPPING: [Preset; 1] = [Preset::Fifo];

    /// Returns the canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Full => "full",
            Preset::LeastOverlap => "lo+1",
            Preset::LeastOverlapGrandparent => "lo+2",
            Preset::RoundRobin => "rr",
            Preset::ColdAccess => "cold-access",
            Preset::ColdWrite => "cold-write",
            Preset::Old => "old",
            Preset::TombstoneDensity => "tsd",
            Preset::TombstoneAge => "tsa",
            Preset::Tiering => "tiering",
            Preset::Universal => "universal",
            Preset::OneLeveling => "1-leveling",
            Preset::LazyLeveling => "lazy-leveling",
            Preset::Fluid => "fluid",
            Preset::FullPreemptive => "full-preemptive",
            Preset::Spooky => "spooky",
            Preset::Leveled => "leveled",
            Preset::Fifo => "fifo",
        }
    }

    /// Returns further accepted names. The study uses them.
    fn aliases(self) -> &'static [&'static str] {
        match self {
            Preset::Universal => &["tier"],
            Preset::OneLeveling => &["1-lvl"],
            Preset::ColdAccess => &["cold"],
            Preset::LazyLeveling => &["l-leveling", "lazy"],
            _ => &[],
        }
    }

    /// Returns whether `name` is the canonical name or an alias of the preset. Ignores letter case.
    pub(crate) fn has_name_or_alias(self, name: &str) -> bool {
        let mut names = self.aliases().iter().copied().chain([self.name()]);
        names.any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns the parameters of the preset.
    #[must_use]
    pub fn parameters(self) -> &'static [PolicyParameter] {
        use PolicyParameter::{
            Above, Base, Bound, Bytes, Density, Grandparents, L1, Last, LastRuns, Ratio, SizeRatio,
            Space, Stop, Tables, Trigger, Ttl, UpperRuns, Wait, Width, WidthMax,
        };
        match self {
            Preset::Full | Preset::FullPreemptive => &[SizeRatio, Trigger, Stop, Tables, L1],
            Preset::LeastOverlap
            | Preset::LeastOverlapGrandparent
            | Preset::RoundRobin
            | Preset::ColdAccess
            | Preset::ColdWrite
            | Preset::Old
            | Preset::OneLeveling => &[SizeRatio, Trigger, Stop, Tables, L1, Grandparents],
            Preset::TombstoneDensity => {
                &[Density, SizeRatio, Trigger, Stop, Tables, L1, Grandparents]
            }
            Preset::TombstoneAge => &[Bound, SizeRatio, Trigger, Stop, Tables, L1, Grandparents],
            Preset::Tiering | Preset::LazyLeveling => &[SizeRatio, Stop, Tables],
            Preset::Fluid => &[UpperRuns, LastRuns, SizeRatio, Stop, Tables],
            Preset::Universal => &[Trigger, Stop, Tables, Last, Space, Ratio, Width, WidthMax],
            Preset::Spooky => &[SizeRatio, Trigger, Stop, Tables, Base, Last, Above],
            Preset::Leveled => {
                &[SizeRatio, UpperRuns, Trigger, Wait, Stop, Tables, Base, Last, Grandparents]
            }
            Preset::Fifo => &[Bytes, Ttl],
        }
    }

    /// Returns the parameters that a spec may give without a name, in this order, as in `fluid(3,1)`.
    #[must_use]
    pub fn positional_parameters(self) -> &'static [PolicyParameter] {
        match self {
            Preset::Fluid => &[PolicyParameter::UpperRuns, PolicyParameter::LastRuns],
            Preset::TombstoneAge => &[PolicyParameter::Bound],
            Preset::TombstoneDensity => &[PolicyParameter::Density],
            Preset::Fifo => &[PolicyParameter::Bytes],
            _ => &[],
        }
    }

    /// Returns whether L0 is leveled. Each flushed table is then merged into L1 before the next flush.
    fn has_leveled_l0(self) -> bool {
        !matches!(
            self,
            Preset::Tiering
                | Preset::Universal
                | Preset::OneLeveling
                | Preset::LazyLeveling
                | Preset::Leveled
                | Preset::Fifo
        )
    }

    /// Returns the default of a parameter. `value` returns the current values of other parameters.
    pub(crate) fn default_value(
        self,
        parameter: PolicyParameter,
        value: &dyn Fn(PolicyParameter) -> u64,
    ) -> u64 {
        match parameter {
            PolicyParameter::SizeRatio => SIZE_RATIO_DEFAULT,
            PolicyParameter::UpperRuns if self == Preset::Leveled => LEVELED_UPPER_RUNS_DEFAULT,
            PolicyParameter::UpperRuns => {
                3.min(value(PolicyParameter::SizeRatio).saturating_sub(1))
            }
            PolicyParameter::LastRuns => 1,
            PolicyParameter::Bound => SHARE_OF_DURATION | (MILLION / 2),
            PolicyParameter::Density => MILLION / 4,
            PolicyParameter::Trigger if self.has_leveled_l0() => 1,
            PolicyParameter::Trigger => TRIGGER_RUNS_DEFAULT,
            // T runs of L0 are merged at once. Meanwhile, up to T more runs can be flushed.
            PolicyParameter::Stop if matches!(self, Preset::Tiering | Preset::LazyLeveling) => {
                STOP_RUNS_DEFAULT.max(2 * value(PolicyParameter::SizeRatio))
            }
            PolicyParameter::Stop if self == Preset::Fluid => {
                STOP_RUNS_DEFAULT.max(2 * value(PolicyParameter::UpperRuns))
            }
            // Merges of many levels take long. Runs that are flushed meanwhile become inputs of the next merge.
            PolicyParameter::Stop if matches!(self, Preset::FullPreemptive | Preset::Spooky) => {
                STOP_RUNS_DEFAULT
            }
            PolicyParameter::Stop if self.has_leveled_l0() => 2,
            PolicyParameter::Stop => STOP_RUNS_DEFAULT,
            // A merge starts at half of the stop limit. The other half can fill up during the merge.
            PolicyParameter::Wait
                if self == Preset::Leveled && value(PolicyParameter::UpperRuns) == 1 =>
            {
                (value(PolicyParameter::Stop) / 2).max(value(PolicyParameter::Trigger))
            }
            PolicyParameter::Wait => value(PolicyParameter::Trigger),
            PolicyParameter::Tables => 1,
            PolicyParameter::L1 => self.l1_memtables_default(value(PolicyParameter::SizeRatio)),
            PolicyParameter::Base if self == Preset::Spooky => 1,
            PolicyParameter::Base => BASE_MEMTABLES_DEFAULT,
            PolicyParameter::Last => LAST_LEVEL_DEFAULT,
            PolicyParameter::Above => 2,
            PolicyParameter::Grandparents => GRANDPARENTS_DEFAULT,
            PolicyParameter::Space => 200,
            PolicyParameter::Ratio => 1,
            PolicyParameter::Width => 2,
            PolicyParameter::WidthMax => 1_000_000_000,
            PolicyParameter::Bytes => 1 << 30,
            PolicyParameter::Ttl => 0,
        }
    }

    /// Returns the default capacity of L1, in memtables.
    ///
    /// With file granularity, L1 is as large as a full L0, which has 2 runs in leveled presets and 4 runs in
    /// `1-leveling`. Data from L0 is then rewritten about once. This follows the tuning advice of RocksDB.
    ///
    /// The value for `full` is half the square of the size ratio. With this value and T = 10, `full` moves twice as
    /// many bytes as `lo+1` in a third as many merges, as in the study (`tests/policies/study.rs`).
    fn l1_memtables_default(self, size_ratio: u64) -> u64 {
        match self {
            Preset::Full => (size_ratio.saturating_mul(size_ratio) / 2)
                .min(PolicyParameter::L1.allowed_range().1),
            Preset::FullPreemptive => size_ratio,
            Preset::OneLeveling => TRIGGER_RUNS_DEFAULT,
            _ => 2,
        }
    }

    /// Returns the primitives of the preset. `value` returns the value of each parameter.
    pub(crate) fn primitives(self, value: impl Fn(PolicyParameter) -> u64) -> PolicyPrimitives {
        let count = |p| usize::try_from(value(p)).unwrap_or(usize::MAX);
        let level = |p| Level(u8::try_from(value(p)).unwrap_or(63));
        let size_ratio = value(PolicyParameter::SizeRatio);
        let whole = |trigger| CompactionRule {
            trigger,
            granularity: JobGranularity::Runs,
            movement: FilePicker::All,
        };
        let from_top = |granularity, movement| {
            let l1_memtables = value(PolicyParameter::L1);
            let trigger = Trigger::LevelFull(LevelCapacity::FromTop { l1_memtables, size_ratio });
            CompactionRule { trigger, granularity, movement }
        };
        let from_bottom = |granularity, movement| {
            let (last, base_memtables) =
                (level(PolicyParameter::Last), value(PolicyParameter::Base));
            let capacity = LevelCapacity::FromBottom { last, base_memtables, size_ratio };
            CompactionRule { trigger: Trigger::LevelFull(capacity), granularity, movement }
        };
        let run_count = || {
            let (runs, wait) = (count(PolicyParameter::Trigger), count(PolicyParameter::Wait));
            whole(Trigger::RunCount { runs, wait })
        };
        let by_file = |movement| vec![from_top(JobGranularity::File, movement), run_count()];
        let tombstones_first = |trigger, movement| {
            let mut rules = by_file(FilePicker::LeastOverlap);
            rules
                .insert(0, CompactionRule { trigger, granularity: JobGranularity::File, movement });
            rules
        };
        let fluid = |upper: usize, last| {
            let upper = vec![upper.max(1)];
            let layout =
                TreeLayout::Fluid { upper, last, size_ratio: count(PolicyParameter::SizeRatio) };
            (vec![whole(Trigger::TooManyRuns)], layout)
        };
        let runs_per_level = count(PolicyParameter::SizeRatio).saturating_sub(1);
        let (rules, layout) = match self {
            Preset::Full => (
                vec![from_top(JobGranularity::Level, FilePicker::All), run_count()],
                TreeLayout::LEVELED,
            ),
            Preset::FullPreemptive => (
                vec![from_top(JobGranularity::Preemptive, FilePicker::All), run_count()],
                TreeLayout::LEVELED,
            ),
            Preset::LeastOverlap => (by_file(FilePicker::LeastOverlap), TreeLayout::LEVELED),
            Preset::LeastOverlapGrandparent => {
                (by_file(FilePicker::LeastOverlapGrandparent), TreeLayout::LEVELED)
            }
            Preset::RoundRobin => (by_file(FilePicker::RoundRobin), TreeLayout::LEVELED),
            Preset::ColdAccess => (by_file(FilePicker::ColdestAccess), TreeLayout::LEVELED),
            Preset::ColdWrite => (by_file(FilePicker::ColdestWrite), TreeLayout::LEVELED),
            Preset::Old => (by_file(FilePicker::Oldest), TreeLayout::LEVELED),
            Preset::TombstoneDensity => {
                let trigger = Trigger::TombstoneDensity { ppm: value(PolicyParameter::Density) };
                (tombstones_first(trigger, FilePicker::MostTombstones), TreeLayout::LEVELED)
            }
            Preset::TombstoneAge => {
                let bound_us = value(PolicyParameter::Bound);
                let trigger = Trigger::TombstoneTtl { bound_us, size_ratio };
                (tombstones_first(trigger, FilePicker::OldestTombstone), TreeLayout::LEVELED)
            }
            Preset::OneLeveling => (
                vec![run_count(), from_top(JobGranularity::File, FilePicker::LeastOverlap)],
                TreeLayout::LEVELED,
            ),
            Preset::Leveled => (
                vec![run_count(), from_bottom(JobGranularity::File, FilePicker::LeastOverlap)],
                match count(PolicyParameter::UpperRuns) {
                    0 | 1 => TreeLayout::LEVELED,
                    runs => TreeLayout::Leveling { tiered: vec![runs] },
                },
            ),
            Preset::Spooky => {
                let above = level(PolicyParameter::Above).0;
                let partition = from_bottom(JobGranularity::Partition { above }, FilePicker::All);
                (vec![run_count(), partition], TreeLayout::LEVELED)
            }
            Preset::Tiering => fluid(runs_per_level, runs_per_level),
            Preset::LazyLeveling => fluid(runs_per_level, 1),
            Preset::Fluid => {
                fluid(count(PolicyParameter::UpperRuns), count(PolicyParameter::LastRuns))
            }
            Preset::Universal => (
                vec![
                    whole(Trigger::SpaceAmplification { percent: value(PolicyParameter::Space) }),
                    whole(Trigger::SizeRatio {
                        percent: value(PolicyParameter::Ratio),
                        runs_min: count(PolicyParameter::Width),
                        runs_max: count(PolicyParameter::WidthMax),
                    }),
                    run_count(),
                ],
                TreeLayout::RunList { bottom: level(PolicyParameter::Last) },
            ),
            Preset::Fifo => {
                let mut rules =
                    vec![whole(Trigger::TotalBytes { bytes: value(PolicyParameter::Bytes) })];
                if value(PolicyParameter::Ttl) > 0 {
                    rules.push(whole(Trigger::FileStaleness {
                        ttl_us: value(PolicyParameter::Ttl),
                    }));
                }
                (rules, TreeLayout::Fifo)
            }
        };
        PolicyPrimitives {
            rules,
            layout,
            stop_runs: count(PolicyParameter::Stop),
            file_tables: value(PolicyParameter::Tables),
            grandparent_files: value(PolicyParameter::Grandparents),
        }
    }
}
