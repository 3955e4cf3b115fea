//! The named policies: values of the four primitives, and the parameters that each one takes.

use crate::Level;
use crate::composed::{Primitives, Rule};
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::movement::Movement;
use crate::parameter::{MILLION, Parameter, SHARE_OF_RUN};
use crate::trigger::{Capacity, Trigger};

/// A named policy.
///
/// Sources: "the study" is Sarkar et al., "Constructing and Analyzing the LSM Compaction Design Space",
/// PVLDB 14 (2021).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Preset {
    /// Leveled; a full level merges as a whole with the whole next one. The study's "Full".
    Full,
    /// Leveled; of a full level the file with the least overlap with the next one moves. The study's
    /// "LO+1".
    LeastOverlap,
    /// As LO+1, but overlap is with the level after the next. The study's "LO+2".
    LeastOverlapGrandparent,
    /// Leveled; files move in turn, through the key space round and round. The study's "RR".
    RoundRobin,
    /// Leveled; the file that was not read for longest moves. The study's "Cold" as its text has it.
    ColdAccess,
    /// Leveled; the file that was not written to for longest moves. "Cold" as the study's code most
    /// likely has it.
    ColdWrite,
    /// Leveled; the file whose key range was left alone for longest moves. The study's "Old".
    Old,
    /// As LO+1, but files of many tombstones go first, wherever they are. The study's "TSD".
    TombstoneDensity,
    /// As LO+1, but files whose tombstones are too old go first: no tombstone outlives a bound. The
    /// study's "TSA"; Sarkar et al., "Lethe", SIGMOD 2020.
    TombstoneAge,
    /// The textbook's tiering: the T-th run of a level merges all T into one run of the next.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    Tiering,
    /// RocksDB's universal compaction over one list of runs; the study's "Tier".
    Universal,
    /// The first level tiered, all deeper ones as in LO+1; the study's "1-Lvl".
    OneLeveling,
    /// The last level is one run, all others are tiered.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    LazyLeveling,
    /// K runs in upper levels, Z in the last: everything from leveling to tiering.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    Fluid,
    /// Leveled; a flush merges with as many levels at once as are needed to hold it.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022), "full preemptive merge".
    FullPreemptive,
    /// As that above, while the large levels merge group by group, in step with the files of the last.
    ///
    /// Source: Dayan et al., "Spooky", PVLDB 15 (2022).
    Spooky,
    /// The default: 1-leveling with capacities sized from the last level's bytes.
    Leveled,
    /// A queue: the oldest files leave unread. Loses data, by design.
    ///
    /// Source: RocksDB, "FIFO compaction style".
    Fifo,
}

/// Default size ratio.
pub const SIZE_RATIO_DEFAULT: u64 = 10;
/// Runs of L0 that make a merge due, where L0 is tiered.
pub const TRIGGER_RUNS_DEFAULT: u64 = 4;
/// Runs of L0 that stop writes, where L0 is tiered.
pub const STOP_RUNS_DEFAULT: u64 = 20;
/// Number of the last level of `leveled` and `spooky`, and of the bottom of `universal`.
pub const LAST_LEVEL_DEFAULT: u64 = 6;
/// Grandparent limit in target sizes of an output.
pub const GRANDPARENTS_DEFAULT: u64 = 25;
/// Least capacity of the base level of `leveled` in memtables.
pub const BASE_MEMTABLES_DEFAULT: u64 = 4;

impl Preset {
    /// All presets that drop nothing; what `all` stands for.
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

    /// Those that drop data, which `all` leaves out.
    pub const DROPPING: [Preset; 1] = [Preset::Fifo];

    /// Canonical name.
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

    /// Other names that are accepted: the study's.
    #[must_use]
    pub fn aliases(self) -> &'static [&'static str] {
        match self {
            Preset::Universal => &["tier"],
            Preset::OneLeveling => &["1-lvl"],
            Preset::ColdAccess => &["cold"],
            Preset::LazyLeveling => &["l-leveling", "lazy"],
            _ => &[],
        }
    }

    /// The parameters that the preset takes.
    #[must_use]
    pub fn parameters(self) -> &'static [Parameter] {
        use Parameter::{
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
            Preset::Leveled => &[SizeRatio, Trigger, Wait, Stop, Tables, Base, Last, Grandparents],
            Preset::Fifo => &[Bytes, Ttl],
        }
    }

    /// Those that may be written without their name, in this order, as in `fluid(3,1)`.
    #[must_use]
    pub fn positional(self) -> &'static [Parameter] {
        match self {
            Preset::Fluid => &[Parameter::UpperRuns, Parameter::LastRuns],
            Preset::TombstoneAge => &[Parameter::Bound],
            Preset::TombstoneDensity => &[Parameter::Density],
            Preset::Fifo => &[Parameter::Bytes],
            _ => &[],
        }
    }

    /// Whether L0 hands on every run at once: leveled throughout, as the study has it.
    fn l0_lands_only(self) -> bool {
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

    /// The default of a parameter, given the others.
    pub(crate) fn default_of(self, parameter: Parameter, value: &dyn Fn(Parameter) -> u64) -> u64 {
        match parameter {
            Parameter::SizeRatio => SIZE_RATIO_DEFAULT,
            Parameter::UpperRuns => 3.min(value(Parameter::SizeRatio).saturating_sub(1)),
            Parameter::LastRuns => 1,
            Parameter::Bound => SHARE_OF_RUN | (MILLION / 2),
            Parameter::Density => MILLION / 4,
            Parameter::Trigger if self.l0_lands_only() => 1,
            Parameter::Trigger => TRIGGER_RUNS_DEFAULT,
            // While T runs of L0 merge, T more can arrive.
            Parameter::Stop if matches!(self, Preset::Tiering | Preset::LazyLeveling) => {
                STOP_RUNS_DEFAULT.max(2 * value(Parameter::SizeRatio))
            }
            Parameter::Stop if self == Preset::Fluid => {
                STOP_RUNS_DEFAULT.max(2 * value(Parameter::UpperRuns))
            }
            // Merges of many levels at once take long; what arrives meanwhile goes with the next one.
            Parameter::Stop if matches!(self, Preset::FullPreemptive | Preset::Spooky) => {
                STOP_RUNS_DEFAULT
            }
            Parameter::Stop if self.l0_lands_only() => 2,
            Parameter::Stop => STOP_RUNS_DEFAULT,
            // As many runs again can arrive while those that waited are merged.
            Parameter::Wait if self == Preset::Leveled => {
                (value(Parameter::Stop) / 2).max(value(Parameter::Trigger))
            }
            Parameter::Wait => value(Parameter::Trigger),
            Parameter::Tables => 1,
            Parameter::L1 => self.l1_memtables_default(value(Parameter::SizeRatio)),
            Parameter::Base if self == Preset::Spooky => 1,
            Parameter::Base => BASE_MEMTABLES_DEFAULT,
            Parameter::Last => LAST_LEVEL_DEFAULT,
            Parameter::Above => 2,
            Parameter::Grandparents => GRANDPARENTS_DEFAULT,
            Parameter::Space => 200,
            Parameter::Ratio => 1,
            Parameter::Width => 2,
            Parameter::WidthMax => 1_000_000_000,
            Parameter::Bytes => 1 << 30,
            Parameter::Ttl => 0,
        }
    }

    /// Capacity of L1 in memtables.
    ///
    /// File by file, L1 is as large as L0 gets (2 runs where that stops writes, 4 where that makes
    /// a merge due), which is RocksDB's advice: what L0 hands over is then rewritten about once.
    ///
    /// `full` is calibrated. By the rules alone it moves *less* than `lo+1`, because its levels are
    /// half empty on average; the study measured twice as much, with a third of the merges. At
    /// T = 10 half the square of the size ratio gives that proportion (`tests/study.rs`).
    fn l1_memtables_default(self, size_ratio: u64) -> u64 {
        match self {
            Preset::Full => {
                (size_ratio.saturating_mul(size_ratio) / 2).min(Parameter::L1.domain().1)
            }
            Preset::FullPreemptive => size_ratio,
            Preset::OneLeveling => TRIGGER_RUNS_DEFAULT,
            _ => 2,
        }
    }

    /// The primitives of the preset; `value` gives each parameter.
    pub(crate) fn primitives(self, value: impl Fn(Parameter) -> u64) -> Primitives {
        let count = |p| usize::try_from(value(p)).unwrap_or(usize::MAX);
        let level = |p| Level(u8::try_from(value(p)).unwrap_or(63));
        let size_ratio = value(Parameter::SizeRatio);
        let whole =
            |trigger| Rule { trigger, granularity: Granularity::Runs, movement: Movement::All };
        let from_top = |granularity, movement| {
            let l1_memtables = value(Parameter::L1);
            let trigger = Trigger::LevelFull(Capacity::FromTop { l1_memtables, size_ratio });
            Rule { trigger, granularity, movement }
        };
        let from_bottom = |granularity, movement| {
            let (last, base_memtables) = (level(Parameter::Last), value(Parameter::Base));
            let capacity = Capacity::FromBottom { last, base_memtables, size_ratio };
            Rule { trigger: Trigger::LevelFull(capacity), granularity, movement }
        };
        let run_count = || {
            let (runs, wait) = (count(Parameter::Trigger), count(Parameter::Wait));
            whole(Trigger::RunCount { runs, wait })
        };
        let by_file = |movement| vec![from_top(Granularity::File, movement), run_count()];
        let tombstones_first = |trigger, movement| {
            let mut rules = by_file(Movement::LeastOverlap);
            rules.insert(0, Rule { trigger, granularity: Granularity::File, movement });
            rules
        };
        let fluid = |upper: usize, last| {
            let upper = vec![upper.max(1)];
            let layout = Layout::Fluid { upper, last, size_ratio: count(Parameter::SizeRatio) };
            (vec![whole(Trigger::TooManyRuns)], layout)
        };
        let runs_per_level = count(Parameter::SizeRatio).saturating_sub(1);
        let (rules, layout) = match self {
            Preset::Full => {
                (vec![from_top(Granularity::Level, Movement::All), run_count()], Layout::LEVELED)
            }
            Preset::FullPreemptive => (
                vec![from_top(Granularity::Preemptive, Movement::All), run_count()],
                Layout::LEVELED,
            ),
            Preset::LeastOverlap => (by_file(Movement::LeastOverlap), Layout::LEVELED),
            Preset::LeastOverlapGrandparent => {
                (by_file(Movement::LeastOverlapGrandparent), Layout::LEVELED)
            }
            Preset::RoundRobin => (by_file(Movement::RoundRobin), Layout::LEVELED),
            Preset::ColdAccess => (by_file(Movement::ColdestAccess), Layout::LEVELED),
            Preset::ColdWrite => (by_file(Movement::ColdestWrite), Layout::LEVELED),
            Preset::Old => (by_file(Movement::Oldest), Layout::LEVELED),
            Preset::TombstoneDensity => {
                let trigger = Trigger::TombstoneDensity { ppm: value(Parameter::Density) };
                (tombstones_first(trigger, Movement::MostTombstones), Layout::LEVELED)
            }
            Preset::TombstoneAge => {
                let bound_us = value(Parameter::Bound);
                let trigger = Trigger::TombstoneTtl { bound_us, size_ratio };
                (tombstones_first(trigger, Movement::OldestTombstone), Layout::LEVELED)
            }
            Preset::OneLeveling => (
                vec![run_count(), from_top(Granularity::File, Movement::LeastOverlap)],
                Layout::LEVELED,
            ),
            Preset::Leveled => (
                vec![run_count(), from_bottom(Granularity::File, Movement::LeastOverlap)],
                Layout::LEVELED,
            ),
            Preset::Spooky => {
                let above = level(Parameter::Above).0;
                let partition = from_bottom(Granularity::Partition { above }, Movement::All);
                (vec![run_count(), partition], Layout::LEVELED)
            }
            Preset::Tiering => fluid(runs_per_level, runs_per_level),
            Preset::LazyLeveling => fluid(runs_per_level, 1),
            Preset::Fluid => fluid(count(Parameter::UpperRuns), count(Parameter::LastRuns)),
            Preset::Universal => (
                vec![
                    whole(Trigger::SpaceAmplification { percent: value(Parameter::Space) }),
                    whole(Trigger::SizeRatio {
                        percent: value(Parameter::Ratio),
                        runs_min: count(Parameter::Width),
                        runs_max: count(Parameter::WidthMax),
                    }),
                    run_count(),
                ],
                Layout::RunList { bottom: level(Parameter::Last) },
            ),
            Preset::Fifo => {
                let mut rules = vec![whole(Trigger::TotalBytes { bytes: value(Parameter::Bytes) })];
                if value(Parameter::Ttl) > 0 {
                    rules.push(whole(Trigger::FileStaleness { ttl_us: value(Parameter::Ttl) }));
                }
                (rules, Layout::Queue)
            }
        };
        Primitives {
            rules,
            layout,
            stop_runs: count(Parameter::Stop),
            file_tables: value(Parameter::Tables),
            grandparent_files: value(Parameter::Grandparents),
        }
    }
}
