//! Settings of a store: plain data, checked when the store is opened.

use lsmx::{Error, Result};

/// Default of [`DeltaOptions::bucket_bytes`].
pub const BUCKET_BYTES_DEFAULT: u64 = 256 << 10;
/// Default of [`DeltaOptions::split_threshold`].
pub const SPLIT_THRESHOLD_DEFAULT: f64 = 0.8;
/// Default of [`DeltaOptions::buckets_max`].
pub const BUCKETS_MAX_DEFAULT: u64 = 32_768;
/// Default of [`DeltaOptions::log_bytes_max`].
pub const LOG_BYTES_MAX_DEFAULT: u64 = 64 << 20;
/// Default of [`DeltaOptions::cache_bytes`] where the engine sets no bound on memory.
pub const CACHE_BYTES_DEFAULT: u64 = 32 << 20;

/// Bytes of records from which on a page ends, in buckets that are not tiny.
const PAGE_BYTES_MAX: usize = 4096;

/// How a store keeps operands.
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
    /// Bytes of a bucket, 512 to 1 GiB: past them it is collected. Larger: fewer buckets, so less memory,
    /// and more bytes per read. Most users leave it. Default: [`BUCKET_BYTES_DEFAULT`].
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> DeltaOptions {
        self.bucket_bytes = bytes;
        self
    }

    /// Share of a bucket, 0.05 to 0.95, up to which what a collection leaves of it stays in one bucket.
    /// Smaller: collections come less often, more space is lost. Default: [`SPLIT_THRESHOLD_DEFAULT`].
    #[must_use]
    pub fn split_threshold(mut self, share: f64) -> DeltaOptions {
        self.split_threshold = share;
        self
    }

    /// Most buckets, at least 4: beyond, operands of full buckets go to the tree. Fewer if the memory for
    /// what is known of them does not suffice. Default: [`BUCKETS_MAX_DEFAULT`].
    #[must_use]
    pub fn buckets_max(mut self, buckets: u64) -> DeltaOptions {
        self.buckets_max = buckets;
        self
    }

    /// Bytes of deliveries in a log, at least 1024, after which a new one is begun. Larger: fewer syncs of
    /// buckets, longer recovery. Default: [`LOG_BYTES_MAX_DEFAULT`].
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> DeltaOptions {
        self.log_bytes_max = bytes;
        self
    }

    /// Bytes of memory for folded operands of keys that are read; 0 for none. Default: half of the
    /// memory that the engine lets the store use, or [`CACHE_BYTES_DEFAULT`].
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> DeltaOptions {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Says what is outside its range.
    ///
    /// # Errors
    /// [`Error::InvalidOption`].
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |name, value: String, must| Err(Error::InvalidOption { name, value, must });
        if !(512..=1 << 30).contains(&self.bucket_bytes) {
            return wrong("bucket_bytes", self.bucket_bytes.to_string(), "512 to 1073741824");
        }
        if !(0.05..=0.95).contains(&self.split_threshold) {
            return wrong("split_threshold", self.split_threshold.to_string(), "0.05 to 0.95");
        }
        if self.buckets_max < 4 {
            return wrong("buckets_max", self.buckets_max.to_string(), "at least 4");
        }
        if self.log_bytes_max < 1024 {
            return wrong("log_bytes_max", self.log_bytes_max.to_string(), "at least 1024");
        }
        Ok(())
    }

    /// Bytes of records from which on a page ends.
    pub(crate) fn page_bytes(&self) -> usize {
        usize::try_from(self.bucket_bytes / 16).unwrap_or(PAGE_BYTES_MAX).clamp(64, PAGE_BYTES_MAX)
    }

    /// Bytes up to which what a collection leaves stays in one bucket.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of at most 2^30 bytes"
    )]
    pub(crate) fn threshold_bytes(&self) -> u64 {
        (self.bucket_bytes as f64 * self.split_threshold) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        DeltaOptions::default().check().unwrap();
        let wrong = [
            DeltaOptions::default().bucket_bytes(511),
            DeltaOptions::default().split_threshold(f64::NAN),
            DeltaOptions::default().buckets_max(3),
            DeltaOptions::default().log_bytes_max(10),
        ];
        for options in wrong {
            assert!(matches!(options.check(), Err(Error::InvalidOption { .. })));
        }
    }
}
