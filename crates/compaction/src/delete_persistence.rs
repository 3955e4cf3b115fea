//! Deletion within a bound: parts of the bound for the steps of a deletion.
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
//! The tombstone of a deleted value has the write time of the delete. The tombstone of an expired value has the time of
//! the rewrite. The log is emptied independently of these steps.
//!
//! Operand stores run in parallel to the tree. A flush delivers the delete marker of a deleted key within D/4. The next
//! check within D/8 (and 1/64 of D, see the engine) records its sequence number. After a further D/8, the next check
//! within D/8 requests the collection. The collection therefore starts within 41/64 of D.
//!
//! Source: Sarkar et al., "Lethe", SIGMOD 2020, for the second step.

use crate::shape::TreeShape;
use crate::ttl::TombstoneAges;

/// Parts of a bound within which deleted and expired values must be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletePersistence {
    bound_us: u64,
}

impl DeletePersistence {
    /// Returns the parts of a bound in microseconds.
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

    /// Returns the age of a delete marker in an operand store from which on the operands that it voids must be removed,
    /// in microseconds. The age counts from the check that has recorded the marker.
    #[must_use]
    pub fn void_operand_us(&self) -> u64 {
        self.bound_us / 8
    }

    /// Returns the maximum age of a commit in the log when its memtable is sealed, in microseconds.
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
