//! Counts recent point lookups that searched files and combined operands, for each key.
//! [`RmwMode::Adaptive`](crate::RmwMode::Adaptive) uses the counts.

use lsmx_base::coding::{high_u32, low_u32};
use lsmx_base::sync::{AtomicU32, OnceLock, Ordering};

use crate::tree::key_hashes::key_hash;

/// Number of counters. Must be a power of two.
const SLOTS: u32 = 16 << 10;
/// Number of low bits of a slot that contain the count. The high bits contain a part of the hash of the key.
const COUNT_BITS: u32 = 4;
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

/// Approximate counts of recent point lookups that searched files and combined operands. There is one count per key.
///
/// The hash of a key selects a slot. If the slot contains the count of another key, this count is overwritten. Counts
/// of keys that are no longer read are therefore replaced over time. Two keys are counted together if their hashes
/// agree in the bits that select the slot and in the bits that the slot stores.
#[derive(Debug, Default)]
pub(crate) struct CombinedGets {
    /// Allocated on first use. Counts are accessed with relaxed ordering, because a lost or wrong count only affects
    /// when the combined value of a key is stored.
    slots: OnceLock<Box<[AtomicU32]>>,
}

impl CombinedGets {
    /// Increments the count of a key. Returns the new count, which is at most 15.
    pub(crate) fn count(&self, key: &[u8]) -> u32 {
        let hash = key_hash(0, key);
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU32::new(0)).collect());
        let slot = &slots[(low_u32(hash) % SLOTS) as usize];
        let key_bits = high_u32(hash) & !COUNT_MAX;
        let before = slot.load(Ordering::Relaxed);
        let count = if before & !COUNT_MAX == key_bits { before & COUNT_MAX } else { 0 };
        let count = (count + 1).min(COUNT_MAX);
        slot.store(key_bits | count, Ordering::Relaxed);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_of_key_grows_until_another_key_takes_its_slot() {
        let gets = CombinedGets::default();
        let counts: Vec<u32> = (0..20).map(|_| gets.count(b"key")).collect();
        assert_eq!(counts[..4], [1, 2, 3, 4]);
        assert_eq!(counts[19], COUNT_MAX);
        for other in 0..20 * SLOTS {
            gets.count(&other.to_le_bytes());
        }
        assert_eq!(gets.count(b"key"), 1);
    }
}
