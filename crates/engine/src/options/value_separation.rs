//! Whether and how large values are kept apart from the tree.

use crate::error::{Error, Result};
use crate::format::VALUE_BYTES_MAX;

/// Default of [`ValueSeparation::threshold_bytes`]: 1 KiB.
pub const THRESHOLD_BYTES_DEFAULT: u64 = 1 << 10;
/// Default of [`ValueSeparation::blob_file_bytes`]: 256 MiB.
pub const BLOB_FILE_BYTES_DEFAULT: u64 = 256 << 20;
/// Default of [`ValueSeparation::garbage_ratio`].
pub const GARBAGE_RATIO_DEFAULT: f64 = 0.5;
/// Default of [`ValueSeparation::space_amplification_max`].
pub const SPACE_AMPLIFICATION_MAX_DEFAULT: f64 = 1.3;
/// Default of [`ValueSeparation::scan_read_bytes`]: 16 KiB.
pub const SCAN_READ_BYTES_DEFAULT: u64 = 16 << 10;
/// Smallest blob file that is accepted: 1 KiB.
const BLOB_FILE_BYTES_MIN: u64 = 1 << 10;

/// How large values are kept in blob files beside the tree, so that compactions move pointers and leave
/// the values where they are. It pays for values of a kilobyte and more; a lookup takes one more read,
/// and space is freed later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueSeparation {
    /// Values of so many bytes or more go to blob files when a flush or a compaction writes them.
    /// Smaller: less is rewritten, lookups read more. Default: [`THRESHOLD_BYTES_DEFAULT`].
    pub threshold_bytes: u64,
    /// Target bytes of a blob file. Smaller: space is freed in smaller steps, by more files. A blob
    /// file never serves more than one table when it is written, so it may be smaller.
    /// Default: [`BLOB_FILE_BYTES_DEFAULT`].
    pub blob_file_bytes: u64,
    /// A blob file is rewritten once more than this share of its bytes is referenced by no table any
    /// more; above 0, at most 1. Default: [`GARBAGE_RATIO_DEFAULT`].
    pub garbage_ratio: f64,
    /// Once the blob files of the keyspace have more bytes than this times what tables reference of
    /// them, the worst are rewritten before any other compaction, whatever their share. While that
    /// goes on, what it copies comes on top. More than 1. Default:
    /// [`SPACE_AMPLIFICATION_MAX_DEFAULT`].
    pub space_amplification_max: f64,
    /// Bytes of values that a scan is to get by one read of a blob file, on average. Where values of
    /// neighbouring keys are scattered over more files than that, the compaction that writes the last
    /// run copies them to one file, each value a few times in all; values as long as this stay where
    /// they are. 0: all do, which writes least. Default: [`SCAN_READ_BYTES_DEFAULT`].
    pub scan_read_bytes: u64,
}

impl Default for ValueSeparation {
    fn default() -> ValueSeparation {
        ValueSeparation {
            threshold_bytes: THRESHOLD_BYTES_DEFAULT,
            blob_file_bytes: BLOB_FILE_BYTES_DEFAULT,
            garbage_ratio: GARBAGE_RATIO_DEFAULT,
            space_amplification_max: SPACE_AMPLIFICATION_MAX_DEFAULT,
            scan_read_bytes: SCAN_READ_BYTES_DEFAULT,
        }
    }
}

impl ValueSeparation {
    /// Sets [`ValueSeparation::threshold_bytes`].
    #[must_use]
    pub fn threshold_bytes(mut self, bytes: u64) -> Self {
        self.threshold_bytes = bytes;
        self
    }

    /// Sets [`ValueSeparation::blob_file_bytes`].
    #[must_use]
    pub fn blob_file_bytes(mut self, bytes: u64) -> Self {
        self.blob_file_bytes = bytes;
        self
    }

    /// Sets [`ValueSeparation::garbage_ratio`].
    #[must_use]
    pub fn garbage_ratio(mut self, ratio: f64) -> Self {
        self.garbage_ratio = ratio;
        self
    }

    /// Sets [`ValueSeparation::space_amplification_max`].
    #[must_use]
    pub fn space_amplification_max(mut self, factor: f64) -> Self {
        self.space_amplification_max = factor;
        self
    }

    /// Sets [`ValueSeparation::scan_read_bytes`].
    #[must_use]
    pub fn scan_read_bytes(mut self, bytes: u64) -> Self {
        self.scan_read_bytes = bytes;
        self
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::InvalidOption`].
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |name, value: String, must| Err(Error::InvalidOption { name, value, must });
        if !(1..=VALUE_BYTES_MAX).contains(&self.threshold_bytes) {
            let value = self.threshold_bytes.to_string();
            return refuse("value_separation.threshold_bytes", value, "1 to 2^30");
        }
        if self.blob_file_bytes < BLOB_FILE_BYTES_MIN {
            let value = self.blob_file_bytes.to_string();
            return refuse("value_separation.blob_file_bytes", value, "at least 1024");
        }
        if !(self.garbage_ratio > 0.0 && self.garbage_ratio <= 1.0) {
            let value = self.garbage_ratio.to_string();
            return refuse("value_separation.garbage_ratio", value, "above 0, at most 1");
        }
        if !(self.space_amplification_max > 1.0 && self.space_amplification_max.is_finite()) {
            let value = self.space_amplification_max.to_string();
            return refuse("value_separation.space_amplification_max", value, "more than 1");
        }
        Ok(())
    }
}
