//! Options of a store.

use lsmx::{Error, Result};

/// Default of [`DeltaOptions::bucket_bytes`]: 256 KiB.
pub const BUCKET_BYTES_DEFAULT: u64 = 256 << 10;
/// Default of [`DeltaOptions::split_threshold`].
pub const SPLIT_THRESHOLD_DEFAULT: f64 = 0.8;
/// Default of [`DeltaOptions::buckets_max`].
pub const BUCKETS_MAX_DEFAULT: u64 = 32_768;
/// Default of [`DeltaOptions::log_bytes_max`]: 64 MiB.
pub const LOG_BYTES_MAX_DEFAULT: u64 = 64 << 20;
/// Default of [`DeltaOptions::cache_bytes`] if the engine sets no memory limit: 32 MiB.
pub const CACHE_BYTES_DEFAULT: u64 = 32 << 20;

/// Maximum page size, in bytes of records.
const PAGE_BYTES_MAX: usize = 4096;

/// Options of an operand store. They may differ each time a database is opened.
///
/// The defaults are those of Li et al., key-delta separation (KDSep), ICDE 2024.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaOptions {
    pub(crate) bucket_bytes: u64,
    pub(crate) split_threshold: f64,
    pub(crate) buckets_max: u64,
    pub(crate) log_bytes_max: u64,
    pub(crate) cache_bytes: Option<u64>,
}

impl Default for DeltaOptions {
    fn default() -> DeltaOptions {
        DeltaOptions {
            bucket_bytes: BUCKET_BYTES_DEFAULT,
            split_threshold: SPLIT_THRESHOLD_DEFAULT,
            buckets_max: BUCKETS_MAX_DEFAULT,
            log_bytes_max: LOG_BYTES_MAX_DEFAULT,
            cache_bytes: None,
        }
    }
}

impl DeltaOptions {
    /// Size at which a bucket is full and a collection rewrites it, in bytes, from 512 to 1 GiB.
    ///
    /// With a larger size there are fewer buckets, which need less memory, but each collection and each scan reads more
    /// bytes. Most users keep the default. Default: [`BUCKET_BYTES_DEFAULT`].
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> DeltaOptions {
        self.bucket_bytes = bytes;
        self
    }

    /// Split threshold, as a fraction of `bucket_bytes` from 0.05 to 0.95.
    ///
    /// A collection splits a bucket whose retained records exceed the threshold. With a smaller fraction there are
    /// fewer collections but emptier buckets. Default: [`SPLIT_THRESHOLD_DEFAULT`].
    #[must_use]
    pub fn split_threshold(mut self, share: f64) -> DeltaOptions {
        self.split_threshold = share;
        self
    }

    /// Maximum number of buckets, at least 4. At the maximum, a full bucket is not split, but its operands move to the
    /// tree.
    ///
    /// A memory limit of the engine may lower the maximum: half of the block cache, of which half is for buckets with two
    /// pages each. With the default block cache of 64 MiB and pages of 4 KiB, it is 2,048. Default:
    /// [`BUCKETS_MAX_DEFAULT`].
    #[must_use]
    pub fn buckets_max(mut self, buckets: u64) -> DeltaOptions {
        self.buckets_max = buckets;
        self
    }

    /// Size at which the store starts a new log, in bytes, 1024 to 512 MiB. The snapshot at the start of a log does not
    /// count.
    ///
    /// With a larger size, bucket files are synced less often, but recovery takes longer. Default:
    /// [`LOG_BYTES_MAX_DEFAULT`].
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> DeltaOptions {
        self.log_bytes_max = bytes;
        self
    }

    /// Size of the cache of folded operands, in bytes. 0 disables the cache.
    ///
    /// A larger cache saves bucket reads for keys that are read often. Default: half of the memory that the engine
    /// allows for the store, or [`CACHE_BYTES_DEFAULT`] without such a limit.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> DeltaOptions {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Fails with [`Error::InvalidOption`] if an option is out of bounds.
    pub(crate) fn check_bounds(&self) -> Result<()> {
        let invalid = |name, value: String, must| Err(Error::InvalidOption { name, value, must });
        if !(512..=1 << 30).contains(&self.bucket_bytes) {
            return invalid("bucket_bytes", self.bucket_bytes.to_string(), "512 to 1073741824");
        }
        if !(0.05..=0.95).contains(&self.split_threshold) {
            return invalid("split_threshold", self.split_threshold.to_string(), "0.05 to 0.95");
        }
        if self.buckets_max < 4 {
            return invalid("buckets_max", self.buckets_max.to_string(), "at least 4");
        }
        // Recovery collects the records of a bucket in a log, which must have less than 4 GiB together with one delivery.
        if !(1024..=1 << 29).contains(&self.log_bytes_max) {
            return invalid("log_bytes_max", self.log_bytes_max.to_string(), "1024 to 536870912");
        }
        Ok(())
    }

    /// Returns the size at which a page ends, in bytes of records.
    pub(crate) fn page_bytes(&self) -> usize {
        usize::try_from(self.bucket_bytes / 16).unwrap_or(PAGE_BYTES_MAX).clamp(64, PAGE_BYTES_MAX)
    }

    /// Returns the size above which a collection splits a bucket, in bytes of records.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a fraction of at most 2^30 bytes"
    )]
    pub(crate) fn split_threshold_bytes(&self) -> u64 {
        (self.bucket_bytes as f64 * self.split_threshold) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_out_of_bounds_is_invalid_option() {
        DeltaOptions::default().check_bounds().unwrap();
        let invalid = [
            DeltaOptions::default().bucket_bytes(511),
            DeltaOptions::default().split_threshold(f64::NAN),
            DeltaOptions::default().buckets_max(3),
            DeltaOptions::default().log_bytes_max(10),
            DeltaOptions::default().log_bytes_max(1 << 30),
        ];
        for options in invalid {
            assert!(matches!(options.check_bounds(), Err(Error::InvalidOption { .. })));
        }
    }
}
