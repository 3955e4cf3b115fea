//! Positions: the keys of the simulator.
//!
//! The position of a key is its rank in the key order of the workload, scaled to 64 bits. Keys are therefore evenly
//! distributed over all positions, for any key distribution. Policies see a position as a key of eight big-endian
//! bytes.

use lsmx_compaction::{Key, KeyRange};

use crate::math::{round_to_u64, to_f64};

/// Number of positions: 2⁶⁴.
pub(crate) const POSITION_COUNT: f64 = 18_446_744_073_709_551_616.0;

/// Length of a position as a key, in bytes.
const POSITION_BYTES: usize = size_of::<u64>();

/// Returns the range of keys from position `first` to position `last`, both inclusive.
///
/// The two keys share one allocation.
pub(crate) fn key_range(first: u64, last: u64) -> KeyRange {
    let mut both = [0; 2 * POSITION_BYTES];
    both[..POSITION_BYTES].copy_from_slice(&first.to_be_bytes());
    both[POSITION_BYTES..].copy_from_slice(&last.to_be_bytes());
    let both = Key::from_owner(both);
    KeyRange { smallest: both.slice(..POSITION_BYTES), largest: both.slice(POSITION_BYTES..) }
}

/// Returns the position of a key.
///
/// A policy may return keys of other lengths. Short keys are padded with zeros, long keys are truncated.
pub(crate) fn position_of_key(key: &[u8]) -> u64 {
    let mut position = [0; POSITION_BYTES];
    let len = key.len().min(position.len());
    position[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(position)
}

pub(crate) fn positions_of_range(range: &KeyRange) -> (u64, u64) {
    (position_of_key(&range.smallest), position_of_key(&range.largest))
}

/// Returns the position that divides the key domain at `share`, from 0 to 1.
pub(crate) fn position_at_share(share: f64) -> u64 {
    if share >= 1.0 { u64::MAX } else { round_to_u64(share * POSITION_COUNT) }
}

/// Returns the number of positions from `first` to `last`, both inclusive.
pub(crate) fn range_width(first: u64, last: u64) -> f64 {
    to_f64(last.saturating_sub(first)) + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_range_orders_as_positions() {
        let positions = [0, 1, 255, 256, 1 << 40, u64::MAX];
        let keys = positions.map(|position| key_range(position, u64::MAX).smallest);
        assert!(keys.is_sorted());
        assert_eq!(keys.map(|key| position_of_key(&key)), positions);
        assert_eq!(position_of_key(&key_range(7, 9).largest), 9);
        assert_eq!(position_of_key(b"\x80"), 1 << 63);
        assert_eq!(position_of_key(&[&7_u64.to_be_bytes()[..], &[0]].concat()), 7);
    }
}
