//! The workloads by name, and what each of them does by default.

use std::fmt;
use std::str::FromStr;

use crate::numbers;

/// Present keys that a YCSB workload asks for, as in the original.
pub const YCSB_ZIPF_EXPONENT: f64 = 0.99;
/// Longest scan of YCSB E; its lengths are uniform from 1.
pub const YCSB_SCAN_ENTRIES_MAX: u64 = 100;
/// In YCSB D and E every operation of this number is an insert: 5 %.
pub const YCSB_OPS_PER_INSERT: u64 = 20;
/// Records for each operation of `fillsync` by default.
pub const RECORDS_PER_SYNC: u64 = 100;
/// Thread counts that `fillsync` runs with if none is given.
pub const FILLSYNC_THREADS: [usize; 2] = [1, 8];

/// What is done with a database, under the names of LevelDB's and RocksDB's `db_bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Puts every key once, in key order, into a new database.
    Fillseq,
    /// Puts every key once, in random order, into a new database.
    Fillrandom,
    /// Puts new values for random present keys.
    Overwrite,
    /// Looks random present keys up.
    Readrandom,
    /// Looks random absent keys up, each next to a present one.
    Readmissing,
    /// Seeks a random present key and reads the entries from there on.
    Seekrandom,
    /// Reads all entries, forward and then backward.
    Scan,
    /// Looks random present keys up while one more thread overwrites as fast as it can.
    Readwhilewriting,
    /// Deletes random present keys, none twice.
    Deleterandom,
    /// Puts random keys into a new database beside the others', each on stable storage before the
    /// next.
    Fillsync,
    /// One of the six mixes of YCSB.
    Ycsb(Ycsb),
}

/// The core workloads of YCSB.
///
/// Source: Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ycsb {
    /// Half lookups, half updates, zipf.
    A,
    /// 95 % lookups, 5 % updates, zipf.
    B,
    /// Lookups, zipf.
    C,
    /// 95 % lookups, zipf over the age of the records, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 entries from a key chosen by zipf, 5 % inserts.
    E,
    /// Half lookups, half read-modify-writes, zipf.
    F,
}

impl Workload {
    /// All of them, in the order in which they are listed to users.
    pub const ALL: [Workload; 16] = [
        Workload::Fillseq,
        Workload::Fillrandom,
        Workload::Overwrite,
        Workload::Readrandom,
        Workload::Readmissing,
        Workload::Seekrandom,
        Workload::Scan,
        Workload::Readwhilewriting,
        Workload::Deleterandom,
        Workload::Fillsync,
        Workload::Ycsb(Ycsb::A),
        Workload::Ycsb(Ycsb::B),
        Workload::Ycsb(Ycsb::C),
        Workload::Ycsb(Ycsb::D),
        Workload::Ycsb(Ycsb::E),
        Workload::Ycsb(Ycsb::F),
    ];

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::Fillseq => "fillseq",
            Workload::Fillrandom => "fillrandom",
            Workload::Overwrite => "overwrite",
            Workload::Readrandom => "readrandom",
            Workload::Readmissing => "readmissing",
            Workload::Seekrandom => "seekrandom",
            Workload::Scan => "scan",
            Workload::Readwhilewriting => "readwhilewriting",
            Workload::Deleterandom => "deleterandom",
            Workload::Fillsync => "fillsync",
            Workload::Ycsb(Ycsb::A) => "ycsb-a",
            Workload::Ycsb(Ycsb::B) => "ycsb-b",
            Workload::Ycsb(Ycsb::C) => "ycsb-c",
            Workload::Ycsb(Ycsb::D) => "ycsb-d",
            Workload::Ycsb(Ycsb::E) => "ycsb-e",
            Workload::Ycsb(Ycsb::F) => "ycsb-f",
        }
    }

    /// Whether it begins with a new database.
    #[must_use]
    pub fn fills(self) -> bool {
        matches!(self, Workload::Fillseq | Workload::Fillrandom | Workload::Fillsync)
    }

    /// Whether it changes the database.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(
            self,
            Workload::Readrandom
                | Workload::Readmissing
                | Workload::Seekrandom
                | Workload::Scan
                | Workload::Ycsb(Ycsb::C)
        )
    }

    /// Whether its rate counts until the tree has settled: loads, whose debt would otherwise be
    /// left to the next workload.
    #[must_use]
    pub fn counts_settling(self) -> bool {
        matches!(
            self,
            Workload::Fillseq | Workload::Fillrandom | Workload::Overwrite | Workload::Deleterandom
        )
    }

    /// Operations of all threads together. A scan counts entries.
    #[must_use]
    pub fn ops(self, entries: u64, asked: Option<u64>) -> u64 {
        match self {
            Workload::Fillseq | Workload::Fillrandom => entries,
            Workload::Fillsync => asked.unwrap_or((entries / RECORDS_PER_SYNC).max(1)).min(entries),
            Workload::Deleterandom => asked.unwrap_or((entries / 2).max(1)),
            _ => asked.unwrap_or(entries),
        }
    }

    /// Records that it adds to those of the fill, with so many operations on so many threads.
    #[must_use]
    pub fn inserts(self, ops: u64, threads: usize) -> u64 {
        match self {
            // Each thread counts for itself.
            Workload::Ycsb(Ycsb::D | Ycsb::E) => {
                ops.div_ceil(YCSB_OPS_PER_INSERT) + numbers::count(threads)
            }
            _ => 0,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A workload of this name is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown workload {name:?}; known: {known}")]
pub struct UnknownWorkload {
    name: String,
    known: String,
}

impl FromStr for Workload {
    type Err = UnknownWorkload;
    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        Workload::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            UnknownWorkload {
                name: name.to_owned(),
                known: Workload::ALL.map(Workload::name).join(", "),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_are_answered_with_the_known_ones() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
        let error = "fillbatch".parse::<Workload>().unwrap_err().to_string();
        for part in ["fillbatch", "fillsync", "ycsb-f"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_fill_puts_every_key_whatever_was_asked_for() {
        assert_eq!(Workload::Fillrandom.ops(1000, Some(7)), 1000);
        assert_eq!(Workload::Fillsync.ops(1000, None), 10);
        assert_eq!(Workload::Fillsync.ops(5, Some(9)), 5);
        assert_eq!(Workload::Readrandom.ops(1000, Some(7)), 7);
    }
}
