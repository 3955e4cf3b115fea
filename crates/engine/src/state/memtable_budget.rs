//! Memory of all memtables of a database, and its limit.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{AtomicU64, Ordering, Signal};

/// Counts the bytes of memtables and reserves bytes for admitted commits.
#[derive(Debug)]
pub(crate) struct MemtableBudget {
    used_bytes: AtomicU64,
    /// Bytes that admitted commits are about to add.
    reserved_bytes: AtomicU64,
    /// Bytes at which writes wait.
    bytes_max: u64,
    /// Notified when memtables stop being full because a reservation is released.
    progress: Signal,
}

impl MemtableBudget {
    /// Creates a budget at whose limit writes wait.
    pub(crate) fn new(bytes_max: u64, progress: Signal) -> MemtableBudget {
        let (used_bytes, reserved_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        MemtableBudget { used_bytes, reserved_bytes, bytes_max, progress }
    }

    /// Adds bytes that an insert put into a memtable.
    pub(crate) fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts the bytes of a released memtable.
    pub(crate) fn subtract(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of all memtables.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that admitted commits are about to add.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Acquire)
    }

    /// Whether used and reserved bytes have reached the limit. Flushed memtables that readers hold do not count: if the
    /// reader's thread writes too, it would wait for itself.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_with_reserved(self.reserved_bytes())
    }

    fn is_full_with_reserved(&self, reserved_bytes: u64) -> bool {
        self.used_bytes().saturating_add(reserved_bytes) >= self.bytes_max
    }

    /// Reserves bytes for a commit. Without `force` it fails while memtables are full, so the limit is exceeded by one
    /// batch at most.
    pub(crate) fn reserve(&self, bytes: u64, force: bool) -> Option<MemtableReservation<'_>> {
        let add = |reserved: u64| {
            let full = self.is_full_with_reserved(reserved)
                && !failpoint::is_on(Failpoint::AdmissionIgnoresReserved);
            (force || !full).then(|| reserved.saturating_add(bytes))
        };
        let reserved = self.reserved_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        reserved.ok().map(|_| MemtableReservation { budget: self, bytes })
    }

    /// Releases reserved bytes, after the commit was inserted or has failed.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let reserved = self.reserved_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // Writes wait only while memtables are full, so a release below the limit need not notify them.
        if self.is_full_with_reserved(reserved) {
            self.progress.notify();
        }
    }
}

/// Bytes reserved for a commit on its way to the queue. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct MemtableReservation<'a> {
    budget: &'a MemtableBudget,
    bytes: u64,
}

impl MemtableReservation<'_> {
    /// Returns the bytes, which the caller releases with [`MemtableBudget::release`].
    pub(crate) fn into_bytes(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for MemtableReservation<'_> {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}
