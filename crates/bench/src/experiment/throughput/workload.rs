//! The workloads of `lsmx bench`.

use crate::named::impl_names;
use crate::workload::operation_mix::{OPS_PER_INSERT, OperationMix};

/// Exponent of the popularity of records in YCSB.
pub const YCSB_ZIPF_EXPONENT: f64 = 0.99;
/// Number of records for each operation of `fillsync` by default.
pub const RECORDS_PER_SYNC: u64 = 100;
/// Numbers of threads of `fillsync` by default.
pub const FILLSYNC_THREADS: [u64; 2] = [1, 8];

/// A workload, with the name that it has in `db_bench` of LevelDB and RocksDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Puts every record once, in key order, into a new database.
    Fillseq,
    /// Puts every record once, in random order, into a new database.
    Fillrandom,
    /// Puts new values for random present records.
    Overwrite,
    /// Looks up random present records.
    Readrandom,
    /// Looks up random absent keys, each next to a present one.
    Readmissing,
    /// Seeks a random present record and reads entries from it on.
    Seekrandom,
    /// Reads all entries, forward and then backward.
    Scan,
    /// Looks up random present records while one more thread overwrites as fast as it can.
    Readwhilewriting,
    /// Deletes random present records, none twice.
    Deleterandom,
    /// Puts random records into a separate new database, each on stable storage before the next.
    Fillsync,
    /// A mix of YCSB.
    Ycsb(OperationMix),
}

impl_names!(Workload, "workload");

impl Workload {
    /// All workloads, in the order in which they are listed to users.
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
        Workload::Ycsb(OperationMix::A),
        Workload::Ycsb(OperationMix::B),
        Workload::Ycsb(OperationMix::C),
        Workload::Ycsb(OperationMix::D),
        Workload::Ycsb(OperationMix::E),
        Workload::Ycsb(OperationMix::F),
    ];

    /// Returns the name that users type.
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
            Workload::Ycsb(mix) => mix.name(),
        }
    }

    /// Returns whether the workload starts with a new database.
    pub fn fills(self) -> bool {
        matches!(self, Workload::Fillseq | Workload::Fillrandom | Workload::Fillsync)
    }

    /// Returns whether the workload writes.
    pub fn has_writes(self) -> bool {
        match self {
            Workload::Readrandom
            | Workload::Readmissing
            | Workload::Seekrandom
            | Workload::Scan => false,
            Workload::Ycsb(mix) => mix.has_writes(),
            _ => true,
        }
    }

    /// Returns whether the rate includes the time until the tree has settled. It does for loads, because they would
    /// leave their compactions to the next workload.
    pub fn counts_settling(self) -> bool {
        matches!(
            self,
            Workload::Fillseq | Workload::Fillrandom | Workload::Overwrite | Workload::Deleterandom
        )
    }

    /// Returns the number of operations of all threads for a database of `entries` records. A scan counts entries.
    pub fn ops(self, entries: u64, given: Option<u64>) -> u64 {
        match self {
            Workload::Fillseq | Workload::Fillrandom => entries,
            Workload::Fillsync => given.unwrap_or((entries / RECORDS_PER_SYNC).max(1)).min(entries),
            Workload::Deleterandom => given.unwrap_or((entries / 2).max(1)),
            _ => given.unwrap_or(entries),
        }
    }

    /// Returns an upper bound for the number of records that the workload inserts.
    pub fn inserts_max(self, ops: u64, threads: u64) -> u64 {
        match self {
            // Each thread counts its own operations.
            Workload::Ycsb(mix) if mix.has_inserts() => ops.div_ceil(OPS_PER_INSERT) + threads,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_has_an_operation_for_every_record() {
        assert_eq!(Workload::Fillrandom.ops(1000, Some(7)), 1000);
        assert_eq!(Workload::Fillsync.ops(1000, None), 10);
        assert_eq!(Workload::Fillsync.ops(5, Some(9)), 5);
        assert_eq!(Workload::Readrandom.ops(1000, Some(7)), 7);
    }
}
