//! Memory limit for the memtables of a database.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{AtomicU64, Ordering, Signal};

/// Counts the memory of memtables, and reserves memory for admitted commits.
#[derive(Debug)]
pub(crate) struct MemtableBudget {
    used_bytes: AtomicU64,
    /// Memory in bytes that is reserved for admitted commits.
    reserved_bytes: AtomicU64,
    /// Limit in bytes at which writes wait.
    bytes_max: u64,
    /// Notified when a reservation is released while the limit is reached.
    progress: Signal,
}

impl MemtableBudget {
    /// Creates a budget. Writes wait when `bytes_max` bytes are used or reserved.
    pub(crate) fn new(bytes_max: u64, progress: Signal) -> MemtableBudget {
        let (used_bytes, reserved_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        MemtableBudget { used_bytes, reserved_bytes, bytes_max, progress }
    }

    /// Adds the bytes by which an insertion has increased a memtable.
    pub(crate) fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the bytes of a memtable that was flushed.
    pub(crate) fn subtract(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the used memory in bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Returns the reserved memory in bytes.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Acquire)
    }

    /// Returns whether used and reserved bytes have reached the limit. Flushed memtables that readers still hold do not
    /// count. Otherwise, a thread that holds an iterator and writes could wait for itself.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_with_reserved(self.reserved_bytes())
    }

    fn is_full_with_reserved(&self, reserved_bytes: u64) -> bool {
        self.used_bytes().saturating_add(reserved_bytes) >= self.bytes_max
    }

    /// Reserves bytes for a commit. Returns `None` if the limit is reached and `force` is false. The reservation itself
    /// may exceed the limit. Without `force`, the limit is therefore exceeded by at most one batch.
    pub(crate) fn reserve(&self, bytes: u64, force: bool) -> Option<MemtableReservation<'_>> {
        let add = |reserved: u64| {
            let full = self.is_full_with_reserved(reserved)
                && !failpoint::is_on(Failpoint::AdmissionIgnoresReserved);
            (force || !full).then(|| reserved.saturating_add(bytes))
        };
        let reserved = self.reserved_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        reserved.ok().map(|_| MemtableReservation { budget: self, bytes })
    }

    /// Releases reserved bytes after the commit was inserted or has failed.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let reserved = self.reserved_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // Writes wait only while the limit is reached. Otherwise, no thread has to be notified.
        if self.is_full_with_reserved(reserved) {
            self.progress.notify();
        }
    }
}

/// Memory that is reserved for a commit. Dropping the reservation releases the memory.
#[derive(Debug)]
pub(crate) struct MemtableReservation<'a> {
    budget: &'a MemtableBudget,
    bytes: u64,
}

impl MemtableReservation<'_> {
    /// Returns the number of reserved bytes. The caller must release them with [`MemtableBudget::release`].
    pub(crate) fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for MemtableReservation<'_> {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}
