//! Compact hash table from keys to sequence numbers.
//!
//! A slot contains the upper 32 bits of the hash of a key, and a sequence number relative to `base`. The lower 32 bits
//! of the hash determine the slot at which the linear probe starts. The keys are not stored. Two keys therefore share a
//! slot if their upper bits are equal and their probes meet. At a load of two thirds, about one in 10^9 lookups of
//! absent keys returns a wrong sequence number.

use lsmx_base::checksum::xxh3_seeded;
use lsmx_base::coding::{high_u32, len_u64, low_u32};
use lsmx_base::key::SeqNo;

/// Memory of the table per key in bytes.
pub(crate) const BYTES_PER_KEY: u64 = len_u64(size_of::<u64>()) * 3 / 2;

/// Largest relative sequence number. It represents all sequence numbers that do not fit in 32 bits.
const RELATIVE_MAX: u32 = u32::MAX;

/// Returns the hash of a key in a keyspace.
pub(crate) fn key_hash(keyspace: u32, key: &[u8]) -> u64 {
    xxh3_seeded(key, u64::from(keyspace))
}

/// Hash table that contains the newest sequence number of each key.
#[derive(Debug)]
pub(crate) struct KeyHashes {
    /// 0 if the slot is empty.
    slots: Box<[u64]>,
    base: SeqNo,
}

impl KeyHashes {
    /// Creates an empty table for at most `keys` keys. Sequence numbers must be at least `base`.
    pub(crate) fn with_capacity(keys: usize, base: SeqNo) -> KeyHashes {
        KeyHashes { slots: vec![0; keys + keys / 2 + 1].into_boxed_slice(), base }
    }

    /// Inserts a write. The table keeps the largest sequence number of each key.
    pub(crate) fn insert(&mut self, hash: u64, seq: SeqNo) {
        let relative = seq.0.saturating_sub(self.base.0).saturating_add(1);
        let relative = u32::try_from(relative).unwrap_or(RELATIVE_MAX);
        let slot = self.find_slot(hash);
        if relative > low_u32(self.slots[slot]) {
            self.slots[slot] = u64::from(high_u32(hash)) << 32 | u64::from(relative);
        }
    }

    /// Returns the largest sequence number of the key with this hash. Returns `SeqNo::MAX` if this number does not fit
    /// in 32 bits. Returns `None` if the table does not contain the key.
    pub(crate) fn newest_seq(&self, hash: u64) -> Option<SeqNo> {
        match low_u32(self.slots[self.find_slot(hash)]) {
            0 => None,
            RELATIVE_MAX => Some(SeqNo::MAX),
            relative => Some(SeqNo(self.base.0 + u64::from(relative) - 1)),
        }
    }

    /// Returns the slot that contains the key with this hash. If there is none, returns the empty slot for the key.
    fn find_slot(&self, hash: u64) -> usize {
        let count = self.slots.len();
        // There are fewer keys than slots, so the probe ends at an empty slot at the latest.
        let mut slot = high_u32(u64::from(low_u32(hash)) * len_u64(count)) as usize;
        while self.slots[slot] != 0 && high_u32(self.slots[slot]) != high_u32(hash) {
            slot = if slot + 1 == count { 0 } else { slot + 1 };
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn key_hashes_any_inserts_newest_is_the_largest_number(
            writes in prop::collection::vec((0u8..40, 0u64..100), 0..80),
            base in 0u64..5,
        ) {
            let mut hashes = KeyHashes::with_capacity(40, SeqNo(base));
            for &(key, seq) in &writes {
                hashes.insert(key_hash(7, &[key]), SeqNo(base + seq));
            }
            for key in 0..40 {
                let numbers = writes.iter().filter(|(written, _)| *written == key);
                let expected = numbers.map(|(_, seq)| SeqNo(base + seq)).max();
                prop_assert_eq!(hashes.newest_seq(key_hash(7, &[key])), expected);
                prop_assert_eq!(hashes.newest_seq(key_hash(8, &[key])), None);
            }
        }
    }

    #[test]
    fn key_hashes_number_too_large_counts_as_newest() {
        let mut hashes = KeyHashes::with_capacity(1, SeqNo(1));
        hashes.insert(3, SeqNo(1 + (1 << 40)));
        assert_eq!(hashes.newest_seq(3), Some(SeqNo::MAX));
    }
}
