//! Generates the operations of a workload, phase by phase.
//!
//! A phase contains exactly the specified number of operations of each kind. The probability of a kind is proportional
//! to the remaining operations of this kind, so the kinds are evenly mixed.

use crate::numbers;

use super::keys::KeySpace;
use super::phases::{Phase, RANGE_DELETE_RECORDS};
use super::random::Random;
use super::record_picker::{LiveRecords, RecordPicker};

const PURPOSE_ORDER: u64 = 0x6f72_6465;
const PURPOSE_CHOICE: u64 = 0x6368_6f69;

/// An operation. Records are numbered from 0 in the order of their insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Puts a new record.
    Insert { record: u64 },
    /// Puts a new value for a present record. The first value has version 0.
    Update { record: u64, version: u64 },
    /// Deletes a present record.
    Delete { record: u64 },
    /// Merges an operand into a present record. Each update and each merge has a different version.
    Merge { record: u64, version: u64 },
    /// Deletes the keys from the key of `record` (inclusive) to the key of `until` (exclusive). The record `until` may
    /// be absent. If `until` is `None`, all keys from `record` on are deleted.
    DeleteRange { record: u64, until: Option<u64> },
    /// Looks up a present record. `lookups` is the index of a lookup group in the phase.
    GetPresent { record: u64, lookups: usize },
    /// Looks up an absent key that follows the key of `record`. `salt` selects one of the possible absent keys.
    GetAbsent { record: u64, salt: u64, lookups: usize },
    /// Scans `entries` entries in key order, starting at `record`.
    Range { record: u64, entries: u64 },
}

/// Generator of the operations of a workload. All phases operate on the same set of present records.
#[derive(Clone, Debug)]
pub struct WorkloadStream {
    keys: Option<KeySpace>,
    live: LiveRecords,
    seed: u64,
    order: Random,
    choice: Random,
    /// Number of generated updates and merges.
    versions: u64,
}

impl WorkloadStream {
    /// Creates a generator without present records. `keys` is `None` for records of a file.
    pub fn new(keys: Option<KeySpace>, seed: u64) -> WorkloadStream {
        WorkloadStream {
            keys,
            live: LiveRecords::default(),
            seed,
            order: Random::new(seed, PURPOSE_ORDER),
            choice: Random::new(seed, PURPOSE_CHOICE),
            versions: 0,
        }
    }

    /// Returns an iterator over the operations of the next phase.
    pub fn phase_operations<'a>(&'a mut self, phase: &Phase) -> PhaseStream<'a> {
        let mut left = vec![
            (DrawnOperation::Insert, phase.inserts),
            (DrawnOperation::Update, phase.updates),
            (DrawnOperation::Delete, phase.deletes),
            (DrawnOperation::Merge, phase.merges),
            (DrawnOperation::DeleteRange, phase.range_deletes),
            (DrawnOperation::Range, phase.ranges),
        ];
        for (index, lookups) in phase.lookups.iter().enumerate() {
            let absent = numbers::round_to_u64(numbers::to_f64(lookups.ops) * lookups.alpha);
            let absent = absent.min(lookups.ops);
            left.push((DrawnOperation::GetPresent(index), lookups.ops - absent));
            left.push((DrawnOperation::GetAbsent(index), absent));
        }
        PhaseStream {
            choice: RecordPicker::new(phase, self.keys.as_ref(), self.seed),
            ops: phase.operation_count(),
            ops_left: phase.operation_count(),
            left,
            selectivity: phase.selectivity,
            stream: self,
        }
    }

    fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Deletes [`RANGE_DELETE_RECORDS`] records that are adjacent in key order. If the records come from a file, the
    /// key order is unknown and only `record` is deleted.
    fn delete_range(&mut self, record: u64) -> Operation {
        let Some(keys) = &self.keys else {
            self.live.delete(record);
            return Operation::Delete { record };
        };
        let from = keys.rank(record);
        let past = from.saturating_add(RANGE_DELETE_RECORDS).min(keys.len());
        for record in (from..past).map(|rank| keys.record_at(rank)) {
            if self.live.contains(record) {
                self.live.delete(record);
            }
        }
        let until = (past < keys.len()).then(|| keys.record_at(past));
        Operation::DeleteRange { record, until }
    }
}

/// Kind of an operation. In `GetPresent` and `GetAbsent`, the number is the index of the lookup group in the phase.
#[derive(Clone, Copy, Debug)]
enum DrawnOperation {
    Insert,
    Update,
    Delete,
    Merge,
    DeleteRange,
    Range,
    GetPresent(usize),
    GetAbsent(usize),
}

#[derive(Debug)]
pub struct PhaseStream<'a> {
    stream: &'a mut WorkloadStream,
    choice: RecordPicker,
    selectivity: f64,
    ops: u64,
    ops_left: u64,
    /// Number of remaining operations of each kind. The first element is for inserts.
    left: Vec<(DrawnOperation, u64)>,
}

impl Iterator for PhaseStream<'_> {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        if self.ops_left == 0 {
            return None;
        }
        let progress = 1.0 - numbers::ratio(self.ops_left, self.ops);
        let mut ticket = self.stream.order.next_below(self.ops_left);
        let mut drawn = 0;
        while ticket >= self.left[drawn].1 {
            ticket -= self.left[drawn].1;
            drawn += 1;
        }
        let stream = &mut *self.stream;
        let mut picked = self.choice.pick_record(
            &stream.live,
            stream.keys.as_ref(),
            progress,
            &mut stream.choice,
        );
        if picked.is_none() && self.left[0].1 > 0 {
            // Without a present record, only an insert is possible.
            drawn = 0;
            picked = Some(0);
        }
        let (kind, left) = &mut self.left[drawn];
        *left -= 1;
        self.ops_left -= 1;
        let record = picked?;
        Some(match *kind {
            DrawnOperation::Insert => Operation::Insert { record: stream.live.insert() },
            DrawnOperation::Update => Operation::Update { record, version: stream.next_version() },
            DrawnOperation::Merge => Operation::Merge { record, version: stream.next_version() },
            DrawnOperation::Delete => {
                stream.live.delete(record);
                Operation::Delete { record }
            }
            DrawnOperation::DeleteRange => stream.delete_range(record),
            DrawnOperation::GetPresent(lookups) => Operation::GetPresent { record, lookups },
            DrawnOperation::GetAbsent(lookups) => {
                Operation::GetAbsent { record, salt: stream.choice.next_u64(), lookups }
            }
            DrawnOperation::Range => {
                let entries = numbers::to_f64(stream.live.count()) * self.selectivity;
                Operation::Range { record, entries: numbers::round_to_u64(entries).max(1) }
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, usize::try_from(self.ops_left).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;
    use crate::workload::phases::LookupGroup;
    use std::collections::BTreeSet;

    fn mixed(distribution: KeyDistribution) -> Phase {
        let mut phase = Phase::new("mixed", distribution);
        phase.inserts = 1000;
        phase.updates = 500;
        phase.deletes = 800;
        phase.merges = 300;
        phase.range_deletes = 10;
        phase.ranges = 20;
        phase.selectivity = 0.1;
        phase.lookups =
            vec![LookupGroup { alpha: 0.3, ops: 100 }, LookupGroup { alpha: 1.0, ops: 50 }];
        phase
    }

    fn operations(distribution: KeyDistribution, seed: u64) -> Vec<Operation> {
        let keys = KeySpace::new(distribution, 1000, 8, seed).unwrap();
        WorkloadStream::new(Some(keys), seed).phase_operations(&mixed(distribution)).collect()
    }

    #[test]
    fn phase_has_exact_counts_and_uses_present_records() {
        for distribution in KeyDistribution::ALL {
            let mut live = BTreeSet::new();
            let keys = KeySpace::new(distribution, 1000, 8, 5).unwrap();
            let (mut updates, mut deletes, mut merges, mut ranges) = (0, 0, 0, 0);
            let (mut range_deletes, mut range_deleted) = (0, 0);
            let mut gets = [[0; 2]; 2];
            for operation in operations(distribution, 5) {
                match operation {
                    Operation::Insert { .. } | Operation::GetAbsent { .. } => {}
                    Operation::Update { record, .. }
                    | Operation::Merge { record, .. }
                    | Operation::Delete { record }
                    | Operation::DeleteRange { record, .. }
                    | Operation::GetPresent { record, .. }
                    | Operation::Range { record, .. } => assert!(live.contains(&record)),
                }
                match operation {
                    Operation::Insert { record } => assert!(live.insert(record)),
                    Operation::Update { .. } => updates += 1,
                    Operation::Merge { .. } => merges += 1,
                    Operation::Delete { record } => {
                        deletes += 1;
                        live.remove(&record);
                    }
                    Operation::DeleteRange { record, until } => {
                        let (from, until) =
                            (keys.rank(record), until.map(|until| keys.rank(until)));
                        let places = from..until.unwrap_or(1000);
                        assert!(until.is_none() || places.clone().count() == 10);
                        let before = live.len();
                        live.retain(|record| !places.contains(&keys.rank(*record)));
                        range_deletes += 1;
                        range_deleted += before - live.len();
                    }
                    Operation::GetPresent { lookups, .. } => gets[lookups][0] += 1,
                    Operation::GetAbsent { lookups, .. } => gets[lookups][1] += 1,
                    Operation::Range { entries, .. } => {
                        ranges += 1;
                        assert!(entries >= 1);
                    }
                }
            }
            assert_eq!((updates, deletes, merges, ranges), (500, 800, 300, 20), "{distribution}");
            assert!(range_deletes == 10 && (10..=100).contains(&range_deleted));
            assert_eq!(gets, [[70, 30], [0, 50]]);
            assert_eq!(live.len(), 200 - range_deleted);
        }
    }

    #[test]
    fn stream_depends_on_the_seed_alone() {
        for distribution in KeyDistribution::ALL {
            assert_eq!(operations(distribution, 5), operations(distribution, 5));
            assert_ne!(operations(distribution, 5), operations(distribution, 6));
        }
    }

    #[test]
    fn kinds_are_mixed_evenly() {
        let operations = operations(KeyDistribution::Uniform, 1);
        let first_half = operations[..operations.len() / 2].iter();
        let updates = first_half.filter(|it| matches!(it, Operation::Update { .. })).count();
        assert!((200..300).contains(&updates), "{updates}");
    }

    #[test]
    fn next_phase_continues_with_present_records() {
        let mut stream = WorkloadStream::new(None, 1);
        let mut load = Phase::new("load", KeyDistribution::Uniform);
        load.inserts = 10;
        assert_eq!(stream.phase_operations(&load).count(), 10);
        let first = stream.phase_operations(&load).next();
        assert_eq!(first, Some(Operation::Insert { record: 10 }));
    }
}
