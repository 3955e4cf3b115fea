//! Observes whether seeks wait for the device.

use lsmx_base::sync::{Arc, AtomicU32, Ordering};

/// Number of seeks that announce their reads after a seek that waited for the device.
const ANNOUNCING_SEEKS: u32 = 64;

/// Whether recent seeks waited for the device. Clones share the state.
///
/// Announcing the reads of all sorted runs lets the device serve them at the same time. If all pages are in the page
/// cache, the system calls would be wasted, so that seeks announce their reads only if recent ones had to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceWaits {
    /// Number of seeks that still announce their reads. A hint, so all accesses are relaxed.
    announcing: Arc<AtomicU32>,
}

impl DeviceWaits {
    /// Returns whether a seek should announce its reads.
    pub(crate) fn are_expected(&self) -> bool {
        self.announcing.load(Ordering::Relaxed) > 0
    }

    /// Records a finished seek.
    pub(crate) fn record_seek(&self, waited: bool) {
        let announcing = self.announcing.load(Ordering::Relaxed);
        let next = if waited { ANNOUNCING_SEEKS } else { announcing.saturating_sub(1) };
        // The check avoids a write to a shared cache line in each seek.
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
