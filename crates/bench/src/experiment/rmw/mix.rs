//! What is done how often.

use std::fmt;
use std::str::FromStr;

use crate::workload::random::Random;

/// Of a hundred thousand operations of the UP2X-like mix, merges.
const UP2X_MERGES: u64 = 92_530;
/// And lookups; what is left are puts.
const UP2X_GETS: u64 = 7_460;
const UP2X_WHOLE: u64 = 100_000;
/// In D and E every operation of this number inserts: 5 %.
pub(super) const OPS_PER_INSERT: u64 = 20;
/// Longest scan of E.
const SCAN_ENTRIES_MAX: u64 = 100;

/// A mix of operations by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Reads, and updates of one field, in a share that is asked for.
    Default,
    /// Like the key-value store of Facebook's UP2X: 92.53 % updates, 7.46 % reads, the rest puts.
    ///
    /// Source: Cao et al., "Characterizing, Modeling, and Benchmarking RocksDB Key-Value Workloads at
    /// Facebook", FAST 2020.
    Up2x,
    /// YCSB A: half reads, half puts.
    A,
    /// YCSB B: 95 % reads, 5 % puts.
    B,
    /// YCSB C: reads.
    C,
    /// YCSB D: 95 % reads of what is new, 5 % inserts.
    D,
    /// YCSB E: 95 % scans, 5 % inserts.
    E,
    /// YCSB F: half reads, half reads that are followed by a put.
    F,
    /// A, its puts as updates of one field.
    Am,
    /// B, its puts as updates of one field.
    Bm,
    /// F, its second half as updates of one field.
    Fm,
}

/// One operation, but for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Looks a record up.
    Read,
    /// Updates a field of it as the mode says.
    Update,
    /// Reads, changes and puts it, whatever the mode.
    Rewrite,
    /// Gives it a new value.
    Put,
    /// Puts the next new record.
    Insert,
    /// Reads entries from it on.
    Scan(u64),
}

impl Mix {
    /// All of them, in the order in which they are listed to users.
    pub const ALL: [Mix; 11] = [
        Mix::Default,
        Mix::Up2x,
        Mix::A,
        Mix::B,
        Mix::C,
        Mix::D,
        Mix::E,
        Mix::F,
        Mix::Am,
        Mix::Bm,
        Mix::Fm,
    ];

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mix::Default => "default",
            Mix::Up2x => "up2x",
            Mix::A => "ycsb-a",
            Mix::B => "ycsb-b",
            Mix::C => "ycsb-c",
            Mix::D => "ycsb-d",
            Mix::E => "ycsb-e",
            Mix::F => "ycsb-f",
            Mix::Am => "am",
            Mix::Bm => "bm",
            Mix::Fm => "fm",
        }
    }

    /// The share of reads, scans among them, where the mix decides it; `asked` where that does.
    #[must_use]
    pub fn read_ratio(self, asked: f64) -> f64 {
        match self {
            Mix::Default => asked,
            Mix::Up2x => 0.0746,
            Mix::A | Mix::F | Mix::Am | Mix::Fm => 0.5,
            Mix::B | Mix::D | Mix::E | Mix::Bm => 0.95,
            Mix::C => 1.0,
        }
    }

    /// Whether every twentieth operation inserts.
    #[must_use]
    pub fn inserts(self) -> bool {
        matches!(self, Mix::D | Mix::E)
    }

    /// Whether what was inserted last is asked for most.
    pub(super) fn asks_for_the_latest(self) -> bool {
        self == Mix::D
    }

    /// The operation of this number, counted from 0.
    pub(super) fn act(self, number: u64, read_ratio: f64, random: &mut Random) -> Act {
        let reads = |random: &mut Random, share: f64, other: Act| {
            if random.unit() < share { Act::Read } else { other }
        };
        match self {
            Mix::D | Mix::E if (number + 1).is_multiple_of(OPS_PER_INSERT) => Act::Insert,
            Mix::C | Mix::D => Act::Read,
            Mix::E => Act::Scan(1 + random.below(SCAN_ENTRIES_MAX)),
            Mix::Up2x => match random.below(UP2X_WHOLE) {
                n if n < UP2X_MERGES => Act::Update,
                n if n < UP2X_MERGES + UP2X_GETS => Act::Read,
                _ => Act::Put,
            },
            Mix::A | Mix::B => reads(random, self.read_ratio(read_ratio), Act::Put),
            Mix::F => reads(random, self.read_ratio(read_ratio), Act::Rewrite),
            Mix::Default | Mix::Am | Mix::Bm | Mix::Fm => {
                reads(random, self.read_ratio(read_ratio), Act::Update)
            }
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mix {
    type Err = String;
    fn from_str(text: &str) -> Result<Mix, String> {
        let known =
            || format!("unknown mix {text:?}; known: {}", Mix::ALL.map(Mix::name).join(", "));
        Mix::ALL.into_iter().find(|mix| mix.name() == text).ok_or_else(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for mix in Mix::ALL {
            assert_eq!(mix.name().parse(), Ok(mix));
        }
        let error = "ycsb-g".parse::<Mix>().unwrap_err();
        assert!(error.contains("ycsb-g") && error.contains("up2x, ycsb-a"), "{error}");
    }

    #[test]
    fn shares_are_those_of_the_mix() {
        const OPS: u32 = 100_000;
        for mix in Mix::ALL {
            let mut random = Random::new(1, 2);
            let acts: Vec<Act> =
                (0..u64::from(OPS)).map(|number| mix.act(number, 0.3, &mut random)).collect();
            let share = |is: fn(&Act) -> bool| {
                let count = acts.iter().filter(|act| is(act)).count();
                f64::from(u32::try_from(count).unwrap()) / f64::from(OPS)
            };
            let reads = share(|act| matches!(act, Act::Read | Act::Scan(_)));
            assert!((reads - mix.read_ratio(0.3)).abs() < 0.006, "{mix}: {reads}");
            let inserts = share(|act| *act == Act::Insert);
            assert!((inserts > 0.0) == mix.inserts());
            let merges = share(|act| *act == Act::Update);
            let by_mode = matches!(mix, Mix::Default | Mix::Up2x | Mix::Am | Mix::Bm | Mix::Fm);
            assert_eq!(merges > 0.0, by_mode, "{mix}");
        }
    }
}
