//! Allocation of file numbers.

use lsmx_base::sync::{AtomicU64, Ordering};

/// Counter from which all numbered files of a database get their numbers.
#[derive(Debug)]
pub(crate) struct FileNumbers(AtomicU64);

impl FileNumbers {
    /// Returns a counter whose first number is `next`.
    pub(crate) fn new(next: u64) -> FileNumbers {
        FileNumbers(AtomicU64::new(next))
    }

    /// Returns a new, unique number.
    pub(crate) fn allocate(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the next number. All existing files have smaller numbers.
    pub(crate) fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
