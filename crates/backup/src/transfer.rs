//! Transfer of file contents with checksums, a rate limit and progress reports.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use lsmx_base::sync::{Arc, Mutex};
use tokio::time::Instant;

/// Progress of a run, counted over all its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Number of complete files.
    pub files: u64,
    /// Number of files to transfer.
    pub files_total: u64,
    /// Number of transferred bytes.
    pub bytes: u64,
    /// Number of bytes to transfer.
    pub bytes_total: u64,
}

/// Callback that receives the progress after each transferred part. Calls do not overlap.
pub type ProgressCallback = Arc<dyn Fn(Progress) + Send + Sync>;

/// Options of the transfer of files.
///
/// ```
/// use lsmx_backup::TransferOptions;
///
/// let slow = TransferOptions { bytes_per_s: std::num::NonZeroU64::new(10 << 20), ..TransferOptions::default() };
/// ```
#[derive(Clone)]
pub struct TransferOptions {
    /// Number of files that are transferred at the same time; 0 means 1. An upload needs up to 24 MiB of memory per file.
    /// Default: 4.
    pub concurrency: usize,
    /// Maximum rate in bytes per second. Default: no limit.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Receives the progress. Default: none.
    pub progress: Option<ProgressCallback>,
}

impl Default for TransferOptions {
    fn default() -> TransferOptions {
        TransferOptions { concurrency: 4, bytes_per_s: None, progress: None }
    }
}

impl fmt::Debug for TransferOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferOptions")
            .field("concurrency", &self.concurrency)
            .field("bytes_per_s", &self.bytes_per_s)
            .finish_non_exhaustive()
    }
}

impl TransferOptions {
    /// Returns the number of files that are transferred at the same time, at least 1.
    pub(crate) fn files_at_once(&self) -> usize {
        self.concurrency.max(1)
    }
}

/// Paces and counts the bytes of one run.
pub(crate) struct TransferMeter {
    bytes_per_s: Option<NonZeroU64>,
    /// Earliest time at which the rate limit permits the next transfer.
    next_start: Mutex<Instant>,
    progress: Mutex<Progress>,
    callback: Option<ProgressCallback>,
}

impl TransferMeter {
    pub(crate) fn new(
        options: &TransferOptions,
        files_total: u64,
        bytes_total: u64,
    ) -> TransferMeter {
        TransferMeter {
            bytes_per_s: options.bytes_per_s,
            next_start: Mutex::new(Instant::now()),
            progress: Mutex::new(Progress { files_total, bytes_total, ..Progress::default() }),
            callback: options.progress.clone(),
        }
    }

    /// Counts the bytes of a part, and waits until the rate limit permits the next part.
    pub(crate) async fn add_bytes(&self, bytes: u64) {
        self.report(|progress| progress.bytes += bytes);
        let Some(rate) = self.bytes_per_s else { return };
        // A part has at most a few MiB, so the product does not overflow.
        let duration = Duration::from_micros(bytes * 1_000_000 / rate);
        let next_start = {
            let mut next_start = self.next_start.lock();
            *next_start = (*next_start).max(Instant::now()) + duration;
            *next_start
        };
        tokio::time::sleep_until(next_start).await;
    }

    /// Counts a complete file.
    pub(crate) fn add_file(&self) {
        self.report(|progress| progress.files += 1);
    }

    fn report(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        change(&mut progress);
        if let Some(callback) = &self.callback {
            callback(*progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rate_limit_paces_parts_and_progress_counts_them() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let options = TransferOptions {
            bytes_per_s: NonZeroU64::new(1000),
            progress: Some({
                let seen = Arc::clone(&seen);
                Arc::new(move |progress: Progress| seen.lock().push(progress.bytes))
            }),
            ..TransferOptions::default()
        };
        let meter = TransferMeter::new(&options, 1, 3000);
        let start = Instant::now();
        for _ in 0..3 {
            meter.add_bytes(1000).await;
        }
        meter.add_file();
        assert_eq!(start.elapsed().as_millis(), 3000);
        assert_eq!(*seen.lock(), [1000, 2000, 3000, 3000]);
    }
}
