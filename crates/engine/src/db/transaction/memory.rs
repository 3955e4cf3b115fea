//! Memory of a transaction, which counts in the memory budget of the database.

use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Error, Result};

/// Bytes of a transaction that need no reservation. Small transactions therefore change no shared counter.
const UNRESERVED_BYTES: u64 = 16 << 10;
/// Minimum number of bytes of one reservation.
const RESERVATION_BYTES: u64 = 64 << 10;

/// Counts the bytes of one transaction and reserves them in the block cache. Dropping it releases them.
#[derive(Debug)]
pub(super) struct TransactionMemory {
    cache: Arc<BlockCache>,
    /// Maximum number of reserved bytes of all transactions.
    bytes_max: u64,
    used_bytes: u64,
    reserved_bytes: u64,
}

impl TransactionMemory {
    /// `bytes_max` is the maximum number of reserved bytes of all transactions.
    pub(super) fn new(cache: Arc<BlockCache>, bytes_max: u64) -> TransactionMemory {
        TransactionMemory { cache, bytes_max, used_bytes: 0, reserved_bytes: 0 }
    }

    /// Adds bytes that are about to be used.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if all transactions together would use more than their part of the memory budget. Nothing is
    /// added then.
    pub(super) fn add(&mut self, bytes: u64) -> Result<()> {
        let used_bytes = self.used_bytes.saturating_add(bytes);
        let missing = used_bytes.saturating_sub(self.reserved_bytes + UNRESERVED_BYTES);
        if missing > 0 {
            let reservation = missing.max(RESERVATION_BYTES);
            let reserved = self.cache.reserve_transaction_bytes(reservation, self.bytes_max);
            reserved.map_err(|bytes| {
                let (what, limit) = ("memory of all transactions", self.bytes_max);
                Error::TooLarge { what, bytes, limit }
            })?;
            self.reserved_bytes += reservation;
        }
        self.used_bytes = used_bytes;
        Ok(())
    }

    /// Adds bytes that are in use already. The next call of [`TransactionMemory::add`] reserves them.
    pub(super) fn add_used(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    /// Subtracts bytes that are no longer used. The reservation in the block cache does not change until the transaction
    /// ends.
    pub(super) fn subtract(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }
}

impl Drop for TransactionMemory {
    fn drop(&mut self) {
        if self.reserved_bytes > 0 {
            self.cache.release_transaction_bytes(self.reserved_bytes);
        }
    }
}
