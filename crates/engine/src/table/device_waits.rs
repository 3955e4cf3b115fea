//! Records whether seeks wait for the device.

use lsmx_base::sync::{Arc, AtomicU32, Ordering};

/// Number of seeks that prefetch their blocks after a seek has waited for the device.
const ANNOUNCING_SEEKS: u32 = 64;

/// Records whether recent seeks have waited for the device. All clones share the state.
///
/// If a seek prefetches its blocks in all sorted runs, the device can read them in parallel. If all pages are in the
/// page cache, prefetching costs system calls without any benefit. Seeks therefore prefetch only if a recent seek had
/// to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceWaits {
    /// Number of further seeks that prefetch their blocks. Only a hint, so relaxed ordering is sufficient.
    announcing: Arc<AtomicU32>,
}

impl DeviceWaits {
    /// Returns whether a seek should prefetch its blocks.
    pub(crate) fn are_expected(&self) -> bool {
        self.announcing.load(Ordering::Relaxed) > 0
    }

    /// Records whether a finished seek has waited for the device.
    pub(crate) fn record_seek(&self, waited: bool) {
        let announcing = self.announcing.load(Ordering::Relaxed);
        let next = if waited { ANNOUNCING_SEEKS } else { announcing.saturating_sub(1) };
        // The value is stored only if it changes, because a store would invalidate the cache line in other cores.
        if next != announcing {
            self.announcing.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_waits_are_expected_for_a_number_of_seeks() {
        let waits = DeviceWaits::default();
        assert!(!waits.are_expected());
        waits.record_seek(true);
        for _ in 0..ANNOUNCING_SEEKS {
            assert!(waits.are_expected());
            waits.clone().record_seek(false);
        }
        assert!(!waits.are_expected());
    }
}
