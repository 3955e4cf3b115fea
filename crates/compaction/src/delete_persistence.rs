//! Delete persistence: divides the time within which a deleted value must be removed among the steps of its removal.
//!
//! A deleted value may pass through three steps, one after the other. Each step has a part of the bound D:
//!
//! | step | part of D |
//! | --- | --- |
//! | The entry expires, and its file is rewritten. | 1/4 |
//! | The tombstone moves to the last run that may contain the key. | 3/8 |
//! | The blob file that contains the value is collected. | 1/8 |
//! | The jobs themselves: waiting, merging, deletion of files. | 1/4 |
//!
//! The age of a tombstone counts from the delete. If the value expired, it counts from the rewrite that wrote the
//! tombstone. The WAL is emptied independently of these steps.
//!
//! Operand stores remove the operands of deleted keys in parallel to these steps:
//!
//! 1. A flush delivers the delete marker of the key within D/4.
//! 2. The next check, within D/8 + D/64, records the sequence number of the delete marker. The term D/64 is the minimum
//!    time between two records of the engine.
//! 3. The delete marker is old after a further D/8. The next check, within D/8, requests the collection of the deleted
//!    operands.
//!
//! The collection therefore starts within 41/64 of D.
//!
//! Source: Sarkar et al., "Lethe", SIGMOD 2020, for the second step.

use crate::shape::TreeShape;
use crate::ttl::TombstoneAges;

/// Bound within which deleted and expired values must be removed, divided among the steps of the removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletePersistence {
    bound_us: u64,
}

impl DeletePersistence {
    /// Divides a bound, in microseconds.
    #[must_use]
    pub fn new(bound_us: u64) -> DeletePersistence {
        DeletePersistence { bound_us }
    }

    /// Returns the bound in microseconds.
    #[must_use]
    pub fn bound_us(&self) -> u64 {
        self.bound_us
    }

    /// Returns the maximum time from the expiry of an entry to the rewrite of its file, in microseconds.
    #[must_use]
    pub fn expiry_us(&self) -> u64 {
        self.bound_us / 4
    }

    /// Returns the maximum age of a tombstone in the tree, in microseconds.
    #[must_use]
    pub fn tombstone_us(&self) -> u64 {
        self.bound_us / 8 * 3
    }

    /// Returns the maximum age of garbage in a blob file, in microseconds.
    #[must_use]
    pub fn blob_garbage_us(&self) -> u64 {
        self.bound_us / 8
    }

    /// Returns the age of a delete marker in an operand store at which the deleted operands must be removed, in
    /// microseconds. The age counts from the check that recorded the delete marker.
    #[must_use]
    pub fn void_operand_us(&self) -> u64 {
        self.bound_us / 8
    }

    /// Returns the age of a commit in the WAL at which its memtable is sealed at the latest, in microseconds.
    #[must_use]
    pub fn log_us(&self) -> u64 {
        self.bound_us / 4
    }

    /// Returns the time between two checks for overdue data, in microseconds.
    #[must_use]
    pub fn check_us(&self) -> u64 {
        self.bound_us / 8
    }

    /// Returns the maximum ages of tombstones in each level of a tree.
    pub(crate) fn tombstone_ages(&self, shape: &TreeShape, size_ratio: u64) -> TombstoneAges {
        TombstoneAges::new(shape, self.tombstone_us(), size_ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_steps_leave_a_quarter_for_jobs() {
        for bound_us in [1_000_000, 1_000_007, u64::MAX] {
            let parts = DeletePersistence::new(bound_us);
            let steps = parts.expiry_us() + parts.tombstone_us() + parts.blob_garbage_us();
            assert!(steps <= bound_us / 4 * 3 + 3, "{bound_us}");
            assert!(parts.log_us() <= bound_us / 4);
            let store = parts.log_us() + 2 * parts.check_us() + parts.void_operand_us();
            assert!(store <= bound_us / 8 * 5 + 3, "{bound_us}");
        }
    }
}
