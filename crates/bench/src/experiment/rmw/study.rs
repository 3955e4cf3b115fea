//! The experiments of `lsmx rmw`. Each experiment varies one parameter. The operand store is based on the KDSep paper
//! (Li et al., ICDE 2024).

use crate::enum_names::impl_names;

/// An experiment that varies one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmwStudy {
    /// Varies the share of reads among the operations.
    ReadRatio,
    /// Varies the Zipf exponent of the access frequencies.
    Zipf,
    /// Varies the length of values, which have ten fields. The number of loaded bytes is constant.
    ValueSize,
    /// Varies the length of updates. Values have 8000 bytes. The number of loaded bytes is constant.
    DeltaSize,
    /// Varies the number of operations before a kill, as a share of `--ops`, and measures the time to open the
    /// database.
    Recovery,
    /// Varies the number of updates of a key since its last put.
    Operands,
    /// Varies the number of entries per scan.
    Scans,
    /// Reads after updates: counts block reads and operands by source, which is a level, the operand store or the value
    /// log, and the share of operands in the tables of each level. The motivation of the KDSep paper has these numbers.
    ReadSources,
    /// Varies the cache size of the operand store. The parameter values are the cache sizes in the KDSep paper, in MiB.
    /// They are scaled to the memory budget, which is 4 GiB in the paper.
    KdCache,
    /// Varies the size of a bucket of the operand store, in KiB.
    BucketSize,
    /// Varies the maximum number of buckets of the operand store. At the maximum, a full bucket cannot be split. A
    /// collection then rewrites the bucket, or moves its operands to the tree.
    BucketCount,
    /// Varies the size of a memtable, as a share of the memory budget. The KDSep paper calls the memtable the write
    /// buffer.
    Memtable,
    /// Varies the fill ratio at which a bucket of the operand store is split.
    SplitThreshold,
}

impl_names!(RmwStudy, "experiment");

/// Memory budget in the KDSep paper, in MiB. [`RmwStudy::KdCache`] divides the cache sizes by this size.
pub(super) const PUBLISHED_MEMORY_MIB: f64 = 4096.0;
/// Length of a value in [`RmwStudy::DeltaSize`], in bytes.
pub(super) const DELTA_SIZE_VALUE_BYTES: u64 = 8000;
/// Number of fields per value in [`RmwStudy::ValueSize`].
pub(super) const VALUE_SIZE_FIELDS: u64 = 10;

impl RmwStudy {
    /// All experiments, in the order of the help text.
    pub const ALL: [RmwStudy; 13] = [
        RmwStudy::ReadRatio,
        RmwStudy::Zipf,
        RmwStudy::ValueSize,
        RmwStudy::DeltaSize,
        RmwStudy::Recovery,
        RmwStudy::Operands,
        RmwStudy::Scans,
        RmwStudy::ReadSources,
        RmwStudy::KdCache,
        RmwStudy::BucketSize,
        RmwStudy::BucketCount,
        RmwStudy::Memtable,
        RmwStudy::SplitThreshold,
    ];

    /// Returns the command line name of the experiment, the name of its parameter in results, and the values of the
    /// parameter.
    fn name_parameter_and_values(self) -> (&'static str, &'static str, &'static [f64]) {
        match self {
            RmwStudy::ReadRatio => ("read-ratio", "read_ratio", &[0.1, 0.3, 0.5, 0.7, 0.9]),
            RmwStudy::Zipf => ("zipf", "zipf", &[0.8, 0.9, 0.99, 1.1, 1.2]),
            RmwStudy::ValueSize => {
                ("value-size", "value_len", &[100.0, 400.0, 1000.0, 2000.0, 4000.0, 8000.0])
            }
            RmwStudy::DeltaSize => {
                ("delta-size", "delta_len", &[25.0, 50.0, 100.0, 200.0, 400.0, 800.0])
            }
            RmwStudy::Recovery => ("recovery", "ops", &[0.25, 0.5, 1.0]),
            RmwStudy::Operands => (
                "operands",
                "operands",
                &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0],
            ),
            RmwStudy::Scans => ("scans", "scan_entries", &[10.0, 100.0, 1000.0, 10_000.0]),
            // The sources are known only after the run.
            RmwStudy::ReadSources => ("read-sources", "source", &[0.0]),
            RmwStudy::KdCache => {
                ("kd-cache", "kd_cache_mib", &[0.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0])
            }
            RmwStudy::BucketSize => ("bucket-size", "bucket_kib", &[64.0, 128.0, 256.0, 512.0]),
            RmwStudy::BucketCount => {
                ("bucket-count", "buckets_max", &[16.0, 64.0, 256.0, 1024.0, 32_768.0])
            }
            RmwStudy::Memtable => ("memtable", "memtable_share", &[0.01, 0.02, 0.05, 0.1, 0.15]),
            RmwStudy::SplitThreshold => {
                ("split-threshold", "split_threshold", &[0.1, 0.3, 0.5, 0.8, 0.9])
            }
        }
    }

    /// Returns the name of the experiment on the command line.
    pub fn name(self) -> &'static str {
        self.name_parameter_and_values().0
    }

    /// Returns the name of the varied parameter in results.
    pub fn parameter_name(self) -> &'static str {
        self.name_parameter_and_values().1
    }

    /// Returns the values of the varied parameter in ascending order.
    pub fn parameter_values(self) -> &'static [f64] {
        self.name_parameter_and_values().2
    }

    /// Returns whether a single run on one database measures all values of the parameter.
    pub fn has_one_run(self) -> bool {
        matches!(self, RmwStudy::Operands | RmwStudy::Scans | RmwStudy::ReadSources)
    }

    /// Returns whether the varied parameter is an option of the operand store, which only
    /// [`super::UpdateMode::Kd`] and [`super::UpdateMode::KdAdaptive`] use.
    pub fn needs_operand_store(self) -> bool {
        matches!(
            self,
            RmwStudy::KdCache
                | RmwStudy::BucketSize
                | RmwStudy::BucketCount
                | RmwStudy::SplitThreshold
        )
    }
}
