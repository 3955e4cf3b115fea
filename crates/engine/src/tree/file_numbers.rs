//! File numbers: allocation of unique numbers for the files of a database.

use lsmx_base::sync::{AtomicU64, Ordering};

/// Counter that assigns the numbers of all numbered files of a database.
#[derive(Debug)]
pub(crate) struct FileNumbers(AtomicU64);

impl FileNumbers {
    /// Creates a counter whose first allocated number is `next`.
    pub(crate) fn new(next: u64) -> FileNumbers {
        FileNumbers(AtomicU64::new(next))
    }

    /// Allocates a number that no other file has.
    pub(crate) fn allocate(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number that is allocated next. The numbers of all existing files are smaller.
    pub(crate) fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
