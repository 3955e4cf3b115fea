//! The workloads of `lsmx bench`.

use crate::enum_names::impl_names;
use crate::workload::operation_mix::{OPS_PER_INSERT, OperationMix};

/// Zipf exponent of the access frequencies in YCSB.
pub const YCSB_ZIPF_EXPONENT: f64 = 0.99;
/// Number of records per operation of `fillsync`, if the number of operations is not given.
pub const RECORDS_PER_SYNC: u64 = 100;
/// Numbers of threads with which `fillsync` runs, if the number of threads is not given.
pub const FILLSYNC_THREADS: [u64; 2] = [1, 8];

/// A workload. Most names are those of `db_bench` in LevelDB and RocksDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Puts every record once in key order into a new database.
    Fillseq,
    /// Puts every record once in random order into a new database.
    Fillrandom,
    /// Overwrites random present records with new values.
    Overwrite,
    /// Looks up random present records.
    Readrandom,
    /// Looks up random absent keys, each of which is close to a present key in key order.
    Readmissing,
    /// Seeks to random present records and reads a fixed number of entries.
    Seekrandom,
    /// Reads all entries, forward and then backward.
    Scan,
    /// Looks up random present records while an additional thread overwrites records. The thread writes at full speed
    /// unless its rate is set.
    Readwhilewriting,
    /// Deletes random present records, each at most once.
    Deleterandom,
    /// Puts records into a separate new database in random order. Each put is synced to stable storage.
    Fillsync,
    /// An operation mix of YCSB.
    Ycsb(OperationMix),
    /// The mix of gets, puts and scans of [`MixGraph`](crate::workload::mixgraph::MixGraph).
    Mixgraph,
}

impl_names!(Workload, "workload");

impl Workload {
    /// All workloads, in the order of the help text.
    pub const ALL: [Workload; 17] = [
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
        Workload::Mixgraph,
    ];

    /// Returns the name of the workload on the command line.
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
            Workload::Mixgraph => "mixgraph",
        }
    }

    /// Returns whether the workload starts with a new database.
    pub fn needs_new_database(self) -> bool {
        matches!(self, Workload::Fillseq | Workload::Fillrandom | Workload::Fillsync)
    }

    /// Returns whether the workload writes to the database.
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

    /// Returns whether the rate includes the time until compaction is idle. The rates of `fillseq`, `fillrandom`,
    /// `overwrite` and `deleterandom` include this time. Without it, the compactions of these workloads would affect
    /// only the rate of the next workload.
    pub fn includes_idle_wait(self) -> bool {
        matches!(
            self,
            Workload::Fillseq | Workload::Fillrandom | Workload::Overwrite | Workload::Deleterandom
        )
    }

    /// Returns the total number of operations of all threads for a database of `entries` records. `given` is the number
    /// that the command line sets. For `scan`, each entry counts as an operation.
    pub fn ops(self, entries: u64, given: Option<u64>) -> u64 {
        match self {
            Workload::Fillseq | Workload::Fillrandom => entries,
            Workload::Fillsync => given.unwrap_or((entries / RECORDS_PER_SYNC).max(1)).min(entries),
            Workload::Deleterandom => given.unwrap_or((entries / 2).max(1)),
            _ => given.unwrap_or(entries),
        }
    }

    /// Returns an upper bound of the number of records that the workload inserts.
    pub fn max_inserts(self, ops: u64, threads: u64) -> u64 {
        match self {
            // Each thread inserts one record per [`OPS_PER_INSERT`] of its operations. Rounding up may add one insert
            // per thread.
            Workload::Ycsb(mix) if mix.has_inserts() => ops.div_ceil(OPS_PER_INSERT) + threads,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_workload_puts_every_record() {
        assert_eq!(Workload::Fillrandom.ops(1000, Some(7)), 1000);
        assert_eq!(Workload::Fillsync.ops(1000, None), 10);
        assert_eq!(Workload::Fillsync.ops(5, Some(9)), 5);
        assert_eq!(Workload::Readrandom.ops(1000, Some(7)), 7);
    }
}
