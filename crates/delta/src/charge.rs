//! Counts bytes of memory for as long as they are there.

use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};

/// Bytes of memory that views of one store take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<AtomicU64>);

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: u64,
    of: Memory,
}

impl Memory {
    pub(crate) fn charge(&self, bytes: usize) -> Charge {
        let bytes = len_u64(bytes);
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Charge { bytes, of: self.clone() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
