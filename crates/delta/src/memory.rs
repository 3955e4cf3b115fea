//! Counts the memory that the views of a store use.

use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};

/// Bytes of memory that all views of one store use.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsage(Arc<AtomicU64>);

/// Part of a [`MemoryUsage`]: a number of bytes that is subtracted when this value is dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    bytes: u64,
    usage: MemoryUsage,
}

impl MemoryUsage {
    pub fn charge(&self, bytes: usize) -> MemoryCharge {
        let bytes = len_u64(bytes);
        self.0.fetch_add(bytes, Ordering::Relaxed);
        MemoryCharge { bytes, usage: self.clone() }
    }

    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.usage.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
