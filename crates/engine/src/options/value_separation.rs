//! Options of value separation.

use crate::error::Result;
use crate::format::VALUE_BYTES_MAX;
use crate::options::invalid_option;

/// Minimum of [`ValueSeparation::blob_file_bytes`]: 1 KiB.
const BLOB_FILE_BYTES_MIN: u64 = 1 << 10;

/// Options for storing large values in blob files outside of the tree.
///
/// Compactions then move pointers instead of values. This reduces write amplification for values of a kilobyte or more.
/// A lookup needs one more read, and space of deleted values is freed later.
///
/// ```
/// use lsmx::{KeyspaceOptions, ValueSeparation};
///
/// let separation = ValueSeparation { threshold_bytes: 4 << 10, ..ValueSeparation::default() };
/// let options = KeyspaceOptions::default().value_separation(separation);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueSeparation {
    /// Minimum size of a separated value, in bytes, from 1 to 2^30. Flushes and compactions separate values.
    ///
    /// A smaller threshold reduces write amplification, but lookups read more. Default: 1 KiB.
    pub threshold_bytes: u64,
    /// Target size of a blob file, in bytes, at least 1 KiB. A new blob file belongs to one table, so it may be smaller.
    ///
    /// Smaller files free space in smaller steps, but there are more of them. Default: 256 MiB.
    pub blob_file_bytes: u64,
    /// Fraction of unreferenced bytes above which a blob file is rewritten, above 0 and at most 1.
    /// Default: 0.5.
    pub garbage_ratio: f64,
    /// Maximum ratio of the keyspace's blob file bytes to referenced bytes, above 1.
    ///
    /// Above this ratio, the files with the most garbage are rewritten before any other compaction, except while writes
    /// are stopped. During a rewrite, the copies use additional space. Default: 1.3.
    pub space_amplification_max: f64,
    /// Average number of value bytes that a scan should get from one read of a blob file.
    ///
    /// If the values of adjacent keys are scattered over too many files, a compaction into the last run copies them to
    /// one file. This copies each value a few times in total. If all values of a key range have at least this size, none
    /// of them is copied. Otherwise, the size of a value does not matter: in each part of the key range, the compaction
    /// copies all values of the files with the fewest bytes in this part. 0 disables copies, which minimizes writes.
    /// Default: 16 KiB.
    pub scan_read_bytes: u64,
}

impl Default for ValueSeparation {
    fn default() -> ValueSeparation {
        ValueSeparation {
            threshold_bytes: 1 << 10,
            blob_file_bytes: 256 << 20,
            garbage_ratio: 0.5,
            space_amplification_max: 1.3,
            scan_read_bytes: 16 << 10,
        }
    }
}

impl ValueSeparation {
    /// Checks all values.
    pub(crate) fn check(&self) -> Result<()> {
        let (name, value, must) = if !(1..=VALUE_BYTES_MAX).contains(&self.threshold_bytes) {
            ("value_separation.threshold_bytes", self.threshold_bytes.to_string(), "1 to 2^30")
        } else if self.blob_file_bytes < BLOB_FILE_BYTES_MIN {
            ("value_separation.blob_file_bytes", self.blob_file_bytes.to_string(), "at least 1024")
        } else if !(self.garbage_ratio > 0.0 && self.garbage_ratio <= 1.0) {
            let value = self.garbage_ratio.to_string();
            ("value_separation.garbage_ratio", value, "above 0, at most 1")
        } else if !(self.space_amplification_max > 1.0 && self.space_amplification_max.is_finite())
        {
            let value = self.space_amplification_max.to_string();
            ("value_separation.space_amplification_max", value, "more than 1")
        } else {
            return Ok(());
        };
        Err(invalid_option(name, value, must))
    }
}
