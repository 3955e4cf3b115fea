//! Numbers of files.

use lsmx_base::sync::{AtomicU64, Ordering};

/// The number line of all numbered files.
#[derive(Debug)]
pub(crate) struct FileNumbers(AtomicU64);

impl FileNumbers {
    /// Gives out `next` first.
    pub(crate) fn new(next: u64) -> FileNumbers {
        FileNumbers(AtomicU64::new(next))
    }

    /// A number that was never given before.
    pub(crate) fn allocate(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// No file has this number or a larger one.
    pub(crate) fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
