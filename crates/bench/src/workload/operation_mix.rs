//! Operation mixes: YCSB, UP2X, and a mix of reads and updates with a configurable fraction of reads.

use crate::enum_names::impl_names;
use crate::numbers;

use super::keys::Permutation;
use super::random::{Random, Zipf};

/// The UP2X mix is specified per this number of operations: [`UP2X_UPDATES`] updates and [`UP2X_GETS`] gets. The
/// remaining operations are puts.
const UP2X_OPS: u64 = 100_000;
const UP2X_UPDATES: u64 = 92_530;
const UP2X_GETS: u64 = 7_460;
/// Number of operations per insert in YCSB D and E.
pub(crate) const OPS_PER_INSERT: u64 = 20;
/// Fraction of reads in each phase of [`OperationMix::Changing`].
const PHASE_READ_RATIOS: [f64; 5] = [0.9, 0.1, 0.7, 0.3, 0.5];
/// Number of operations in each phase of [`OperationMix::Changing`].
const OPS_PER_PHASE: u64 = 100_000;
/// Maximum length of a scan of YCSB E, in entries. The minimum is 1.
const SCAN_ENTRIES_MAX: u64 = 100;

/// A mix of operations, such as a YCSB workload.
///
/// Source of YCSB: Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationMix {
    /// Reads, and updates of one field. The caller sets the fraction of reads.
    Default,
    /// Reads, and updates of one field. The fraction of reads changes every 100,000 operations. It cycles through 90,
    /// 10, 70, 30 and 50 %.
    Changing,
    /// Puts of whole values only.
    PutOnly,
    /// Facebook's UP2X store: 92.53 % updates, 7.46 % reads, the rest puts.
    ///
    /// Source: Cao et al., "Characterizing, Modeling, and Benchmarking RocksDB Key-Value Workloads at Facebook", FAST
    /// 2020.
    Up2x,
    /// YCSB A: 50 % reads, 50 % puts.
    A,
    /// YCSB B: 95 % reads, 5 % puts.
    B,
    /// YCSB C: reads only.
    C,
    /// YCSB D: 95 % reads of recent records, 5 % inserts.
    D,
    /// YCSB E: 95 % scans of 1 to 100 entries, 5 % inserts.
    E,
    /// YCSB F: 50 % reads, 50 % read-modify-writes.
    F,
    /// YCSB A with updates of one field instead of puts.
    Am,
    /// YCSB B with updates of one field instead of puts.
    Bm,
    /// YCSB F with updates of one field instead of read-modify-writes.
    Fm,
}

impl_names!(OperationMix, "mix");

/// An operation that a mix draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixedOperation {
    Read,
    /// Updates one field of a value. The experiment compares update methods, such as merge operands.
    Update,
    /// Reads a value and puts a changed value.
    Rewrite,
    /// Puts a new value for a present record.
    Put,
    /// Puts a record with a new key.
    Insert,
    /// Scans the given number of entries in key order, starting at a record.
    Scan(u64),
}

impl OperationMix {
    /// All mixes, in the order in which help texts list them.
    pub const ALL: [OperationMix; 13] = [
        OperationMix::Default,
        OperationMix::Changing,
        OperationMix::PutOnly,
        OperationMix::Up2x,
        OperationMix::A,
        OperationMix::B,
        OperationMix::C,
        OperationMix::D,
        OperationMix::E,
        OperationMix::F,
        OperationMix::Am,
        OperationMix::Bm,
        OperationMix::Fm,
    ];

    pub fn name(self) -> &'static str {
        match self {
            OperationMix::Default => "default",
            OperationMix::Changing => "changing",
            OperationMix::PutOnly => "put-only",
            OperationMix::Up2x => "up2x",
            OperationMix::A => "ycsb-a",
            OperationMix::B => "ycsb-b",
            OperationMix::C => "ycsb-c",
            OperationMix::D => "ycsb-d",
            OperationMix::E => "ycsb-e",
            OperationMix::F => "ycsb-f",
            OperationMix::Am => "am",
            OperationMix::Bm => "bm",
            OperationMix::Fm => "fm",
        }
    }

    /// Returns the fraction of operations that are reads or scans. For the default mix, this is `given`. For
    /// [`OperationMix::Changing`], this is the mean of all phases.
    pub fn read_ratio(self, given: f64) -> f64 {
        match self {
            OperationMix::Default => given,
            OperationMix::PutOnly => 0.0,
            OperationMix::Up2x => 0.0746,
            OperationMix::Changing
            | OperationMix::A
            | OperationMix::F
            | OperationMix::Am
            | OperationMix::Fm => 0.5,
            OperationMix::B | OperationMix::D | OperationMix::E | OperationMix::Bm => 0.95,
            OperationMix::C => 1.0,
        }
    }

    pub fn has_inserts(self) -> bool {
        matches!(self, OperationMix::D | OperationMix::E)
    }

    pub fn has_writes(self) -> bool {
        self != OperationMix::C
    }

    /// Draws an operation. `number` is the index of the operation, counted from 0.
    pub fn draw(self, number: u64, read_ratio: f64, random: &mut Random) -> MixedOperation {
        let other = match self {
            OperationMix::D | OperationMix::E if (number + 1).is_multiple_of(OPS_PER_INSERT) => {
                return MixedOperation::Insert;
            }
            OperationMix::C | OperationMix::D => return MixedOperation::Read,
            OperationMix::E => {
                return MixedOperation::Scan(1 + random.next_below(SCAN_ENTRIES_MAX));
            }
            OperationMix::Up2x => {
                return match random.next_below(UP2X_OPS) {
                    n if n < UP2X_UPDATES => MixedOperation::Update,
                    n if n < UP2X_UPDATES + UP2X_GETS => MixedOperation::Read,
                    _ => MixedOperation::Put,
                };
            }
            OperationMix::PutOnly | OperationMix::A | OperationMix::B => MixedOperation::Put,
            OperationMix::F => MixedOperation::Rewrite,
            OperationMix::Default
            | OperationMix::Changing
            | OperationMix::Am
            | OperationMix::Bm
            | OperationMix::Fm => MixedOperation::Update,
        };
        let read_ratio = match self {
            OperationMix::Changing => {
                let phase = number / OPS_PER_PHASE % numbers::to_u64(PHASE_READ_RATIOS.len());
                PHASE_READ_RATIOS[numbers::to_usize(phase)]
            }
            _ => self.read_ratio(read_ratio),
        };
        if random.next_unit() < read_ratio { MixedOperation::Read } else { other }
    }

    /// Draws the record that a read, scan or update accesses. `count` is the number of loaded and inserted records.
    /// `popularity` covers only loaded records.
    pub fn draw_record(self, popularity: &Popularity, count: u64, random: &mut Random) -> u64 {
        match self {
            OperationMix::D => popularity.draw_recent(count, random),
            _ => popularity.draw(random),
        }
    }
}

/// Zipf popularity of records, independent of key order and record age.
#[derive(Clone, Debug)]
pub struct Popularity {
    zipf: Zipf,
    scattered: Permutation,
    records: u64,
}

impl Popularity {
    /// Creates a Zipf distribution over `records` records. The exponent must be above 0.
    pub fn new(exponent: f64, records: u64, seed: u64) -> Popularity {
        Popularity {
            zipf: Zipf::new(exponent),
            scattered: Permutation::new(records, seed),
            records,
        }
    }

    /// Returns the record with this popularity rank. Rank 0 is the most popular record.
    pub fn record_at(&self, rank: u64) -> u64 {
        self.scattered.permute(rank)
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        self.record_at(self.zipf.draw(random, self.records))
    }

    /// Draws one of `count` records. The newest record is the most popular.
    fn draw_recent(&self, count: u64, random: &mut Random) -> u64 {
        count - 1 - self.zipf.draw(random, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_operations_have_the_shares_of_the_mix() {
        const OPS: u32 = 500_000;
        for mix in OperationMix::ALL {
            let mut random = Random::new(1, 2);
            let drawn: Vec<MixedOperation> =
                (0..u64::from(OPS)).map(|number| mix.draw(number, 0.3, &mut random)).collect();
            let share = |is: fn(&MixedOperation) -> bool| {
                let count = drawn.iter().filter(|operation| is(operation)).count();
                f64::from(u32::try_from(count).unwrap()) / f64::from(OPS)
            };
            let reads = share(|at| matches!(at, MixedOperation::Read | MixedOperation::Scan(_)));
            assert!((reads - mix.read_ratio(0.3)).abs() < 0.006, "{mix}: {reads}");
            assert_eq!(reads < 1.0, mix.has_writes());
            let inserts = share(|at| *at == MixedOperation::Insert);
            assert_eq!(inserts > 0.0, mix.has_inserts());
            let updates = share(|at| *at == MixedOperation::Update);
            let has_updates =
                matches!(mix.name(), "default" | "changing" | "up2x" | "am" | "bm" | "fm");
            assert_eq!(updates > 0.0, has_updates, "{mix}");
        }
    }
}
