//! Numbers of writes.

use crate::math::to_f64;
use crate::workload::Phase;

/// Numbers of writes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WriteCounts {
    pub(crate) inserts: f64,
    pub(crate) updates: f64,
    pub(crate) deletes: f64,
    pub(crate) merges: f64,
    pub(crate) range_deletes: f64,
}

impl WriteCounts {
    pub(crate) fn from_phase(phase: &Phase) -> WriteCounts {
        WriteCounts {
            inserts: to_f64(phase.inserts),
            updates: to_f64(phase.updates),
            deletes: to_f64(phase.deletes),
            merges: to_f64(phase.merges),
            range_deletes: to_f64(phase.range_deletes),
        }
    }

    pub(crate) fn total(&self) -> f64 {
        self.inserts + self.updates + self.deletes + self.merges + self.range_deletes
    }

    pub(crate) fn scaled(&self, share: f64) -> WriteCounts {
        self.zip_with(self, |count, _| count * share)
    }

    pub(crate) fn add(&mut self, other: &WriteCounts) {
        *self = self.zip_with(other, |count, other| count + other);
    }

    fn zip_with(&self, other: &WriteCounts, f: impl Fn(f64, f64) -> f64) -> WriteCounts {
        WriteCounts {
            inserts: f(self.inserts, other.inserts),
            updates: f(self.updates, other.updates),
            deletes: f(self.deletes, other.deletes),
            merges: f(self.merges, other.merges),
            range_deletes: f(self.range_deletes, other.range_deletes),
        }
    }
}
