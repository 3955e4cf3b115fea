//! The named policies: values of the four primitives, and the parameters that each one takes.

use crate::Level;
use crate::composed::Primitives;
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::movement::Movement;
use crate::trigger::{Capacity, Trigger};

/// A named policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Preset {
    /// Leveled; a full level merges as a whole with the whole next one.
    ///
    /// Source: Sarkar et al., PVLDB 14 (2021), "Full".
    Full,
    /// Leveled; of a full level the file with the least overlap merges into the next one.
    ///
    /// Source: Sarkar et al., PVLDB 14 (2021), "LO+1".
    LeastOverlap,
    /// The textbook's tiering: the T-th run of a level merges all T into one run of the next.
    ///
    /// Source: Dayan and Idreos, "Dostoevsky", SIGMOD 2018.
    Tiering,
    /// RocksDB's universal compaction over one list of runs; the study's "Tier".
    Universal,
    /// The first level tiered, all deeper ones as in LO+1; the study's "1-Lvl".
    OneLeveling,
    /// The default: 1-leveling with capacities sized from the last level's bytes.
    Leveled,
}

/// A parameter of a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parameter {
    /// Size ratio of neighbouring levels, `T`. For tiering: runs that merge.
    SizeRatio,
    /// Runs that make a merge due, `trigger`: in L0, for universal in the tree.
    Trigger,
    /// Runs of L0 up to which a merge waits to be worth what it rewrites, `wait`.
    Wait,
    /// Runs of L0 that stop writes, `stop`.
    Stop,
    /// Target size of an output, in target sizes of a table, `tables`.
    Tables,
    /// Capacity of L1 in memtables, `l1`.
    L1,
    /// Least capacity of the base level in memtables, `base`.
    Base,
    /// Number of the last level, `last`.
    Last,
    /// Grandparent bytes that an output may overlap, in target sizes of an output, `grandparents`.
    Grandparents,
    /// Space amplification in per cent above which all runs merge, `space`.
    Space,
    /// Per cent that the next run of a chain may be larger, `ratio`.
    Ratio,
    /// Fewest runs of a chain, `width`.
    Width,
    /// Most runs of a chain, `width_max`.
    WidthMax,
}

impl Parameter {
    pub(crate) const ALL: [Parameter; 13] = [
        Parameter::SizeRatio,
        Parameter::Trigger,
        Parameter::Wait,
        Parameter::Stop,
        Parameter::Tables,
        Parameter::L1,
        Parameter::Base,
        Parameter::Last,
        Parameter::Grandparents,
        Parameter::Space,
        Parameter::Ratio,
        Parameter::Width,
        Parameter::WidthMax,
    ];

    /// The name as written in a spec.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Parameter::SizeRatio => "T",
            Parameter::Trigger => "trigger",
            Parameter::Wait => "wait",
            Parameter::Stop => "stop",
            Parameter::Tables => "tables",
            Parameter::L1 => "l1",
            Parameter::Base => "base",
            Parameter::Last => "last",
            Parameter::Grandparents => "grandparents",
            Parameter::Space => "space",
            Parameter::Ratio => "ratio",
            Parameter::Width => "width",
            Parameter::WidthMax => "width_max",
        }
    }

    /// Smallest and largest value.
    pub(crate) fn domain(self) -> (u64, u64) {
        match self {
            Parameter::SizeRatio => (2, 1_000_000),
            Parameter::Trigger
            | Parameter::Wait
            | Parameter::Tables
            | Parameter::L1
            | Parameter::Base => (1, 1_000_000),
            Parameter::Stop => (2, 1_000_000),
            Parameter::Last => (1, 63),
            Parameter::Grandparents | Parameter::Space => (1, 1_000_000_000),
            Parameter::Ratio => (0, 1_000_000),
            Parameter::Width | Parameter::WidthMax => (2, 1_000_000_000),
        }
    }
}

/// Default size ratio.
pub const SIZE_RATIO_DEFAULT: u64 = 10;
/// Runs of L0 that make a merge due, where L0 is tiered.
pub const TRIGGER_RUNS_DEFAULT: u64 = 4;
/// Runs of L0 that stop writes, where L0 is tiered.
pub const STOP_RUNS_DEFAULT: u64 = 20;
/// Number of the last level of `leveled`, and of the bottom of `universal`.
pub const LAST_LEVEL_DEFAULT: u64 = 6;
/// Grandparent limit in target sizes of an output.
pub const GRANDPARENTS_DEFAULT: u64 = 25;
/// Least capacity of the base level of `leveled` in memtables.
pub const BASE_MEMTABLES_DEFAULT: u64 = 4;

impl Preset {
    /// All presets that drop nothing; what `all` stands for.
    pub const ALL: [Preset; 6] = [
        Preset::Full,
        Preset::LeastOverlap,
        Preset::Tiering,
        Preset::Universal,
        Preset::OneLeveling,
        Preset::Leveled,
    ];

    /// Canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Full => "full",
            Preset::LeastOverlap => "lo+1",
            Preset::Tiering => "tiering",
            Preset::Universal => "universal",
            Preset::OneLeveling => "1-leveling",
            Preset::Leveled => "leveled",
        }
    }

    /// Other names that are accepted: the study's.
    #[must_use]
    pub fn aliases(self) -> &'static [&'static str] {
        match self {
            Preset::Universal => &["tier"],
            Preset::OneLeveling => &["1-lvl"],
            _ => &[],
        }
    }

    /// The parameters that the preset takes.
    #[must_use]
    pub fn parameters(self) -> &'static [Parameter] {
        use Parameter::{
            Base, Grandparents, L1, Last, Ratio, SizeRatio, Space, Stop, Tables, Trigger, Wait,
            Width, WidthMax,
        };
        match self {
            Preset::Full => &[SizeRatio, Trigger, Stop, Tables, L1],
            Preset::LeastOverlap | Preset::OneLeveling => {
                &[SizeRatio, Trigger, Stop, Tables, L1, Grandparents]
            }
            Preset::Tiering => &[SizeRatio, Stop, Tables],
            Preset::Universal => &[Trigger, Stop, Tables, Last, Space, Ratio, Width, WidthMax],
            Preset::Leveled => &[SizeRatio, Trigger, Wait, Stop, Tables, Base, Last, Grandparents],
        }
    }

    /// The default of a parameter, given the others.
    pub(crate) fn default_of(self, parameter: Parameter, value: &dyn Fn(Parameter) -> u64) -> u64 {
        let l0_lands_only = matches!(self, Preset::Full | Preset::LeastOverlap);
        match parameter {
            Parameter::SizeRatio => SIZE_RATIO_DEFAULT,
            Parameter::Trigger if l0_lands_only => 1,
            Parameter::Trigger => TRIGGER_RUNS_DEFAULT,
            Parameter::Stop if l0_lands_only => 2,
            // While T runs of L0 merge, T more can arrive.
            Parameter::Stop if self == Preset::Tiering => {
                STOP_RUNS_DEFAULT.max(2 * value(Parameter::SizeRatio))
            }
            Parameter::Stop => STOP_RUNS_DEFAULT,
            // As many runs again can arrive while those that waited are merged.
            Parameter::Wait if self == Preset::Leveled => {
                (value(Parameter::Stop) / 2).max(value(Parameter::Trigger))
            }
            Parameter::Wait => value(Parameter::Trigger),
            Parameter::Tables => 1,
            Parameter::L1 => self.l1_memtables_default(value(Parameter::SizeRatio)),
            Parameter::Base => BASE_MEMTABLES_DEFAULT,
            Parameter::Last => LAST_LEVEL_DEFAULT,
            Parameter::Grandparents => GRANDPARENTS_DEFAULT,
            Parameter::Space => 200,
            Parameter::Ratio => 1,
            Parameter::Width => 2,
            Parameter::WidthMax => 1_000_000_000,
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
            Preset::OneLeveling => TRIGGER_RUNS_DEFAULT,
            _ => 2,
        }
    }

    /// The primitives of the preset; `value` gives each parameter.
    pub(crate) fn primitives(self, value: impl Fn(Parameter) -> u64) -> Primitives {
        let count = |p| usize::try_from(value(p)).unwrap_or(usize::MAX);
        let last = || Level(u8::try_from(value(Parameter::Last)).unwrap_or(63));
        let size_ratio = value(Parameter::SizeRatio);
        let from_top = || {
            let l1_memtables = value(Parameter::L1);
            Trigger::LevelFull(Capacity::FromTop { l1_memtables, size_ratio })
        };
        let run_count =
            || Trigger::RunCount { runs: count(Parameter::Trigger), wait: count(Parameter::Wait) };
        let (triggers, layout, granularity, movement) = match self {
            Preset::Full => {
                (vec![from_top(), run_count()], Layout::Leveling, Granularity::Level, Movement::All)
            }
            Preset::LeastOverlap => (
                vec![from_top(), run_count()],
                Layout::Leveling,
                Granularity::File,
                Movement::LeastOverlap,
            ),
            Preset::OneLeveling => (
                vec![run_count(), from_top()],
                Layout::Leveling,
                Granularity::File,
                Movement::LeastOverlap,
            ),
            Preset::Leveled => {
                let base_memtables = value(Parameter::Base);
                let capacity = Capacity::FromBottom { last: last(), base_memtables, size_ratio };
                (
                    vec![run_count(), Trigger::LevelFull(capacity)],
                    Layout::Leveling,
                    Granularity::File,
                    Movement::LeastOverlap,
                )
            }
            Preset::Tiering => (
                vec![Trigger::RunCount {
                    runs: count(Parameter::SizeRatio),
                    wait: count(Parameter::SizeRatio),
                }],
                Layout::Tiering,
                Granularity::Runs,
                Movement::All,
            ),
            Preset::Universal => (
                vec![
                    Trigger::SpaceAmplification { percent: value(Parameter::Space) },
                    Trigger::SizeRatio {
                        percent: value(Parameter::Ratio),
                        runs_min: count(Parameter::Width),
                        runs_max: count(Parameter::WidthMax),
                    },
                    run_count(),
                ],
                Layout::RunList { bottom: last() },
                Granularity::Runs,
                Movement::All,
            ),
        };
        Primitives {
            triggers,
            layout,
            granularity,
            movement,
            stop_runs: count(Parameter::Stop),
            file_tables: value(Parameter::Tables),
            grandparent_files: value(Parameter::Grandparents),
        }
    }
}
