//! The stream of operations of a workload, phase after phase.
//!
//! Inside a phase the counts are exact and the order is drawn without replacement: each step takes
//! a kind in proportion to what is left of it, so kinds are mixed evenly to the end.

use crate::numbers;

use super::choice::{Choice, Live};
use super::keys::KeySpace;
use super::phases::{Phase, RANGE_DELETE_RECORDS};
use super::random::Random;

const PURPOSE_ORDER: u64 = 0x6f72_6465;
const PURPOSE_CHOICE: u64 = 0x6368_6f69;

/// One operation. Records are numbered in the order of their insertion, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Put a record that was never there.
    Insert {
        /// The record.
        record: u64,
    },
    /// Put a new value for a record that is there.
    Update {
        /// The record.
        record: u64,
        /// Tells this value from all others; never 0, which stands for the inserted one.
        version: u64,
    },
    /// Delete a record that is there.
    Delete {
        /// The record.
        record: u64,
    },
    /// Merge an operand into a record that is there.
    Merge {
        /// The record.
        record: u64,
        /// Tells this operand from all others, and from the values of updates.
        version: u64,
    },
    /// Delete all records from one that is there on, in key order, before another.
    DeleteRange {
        /// The record to begin with.
        record: u64,
        /// The first that is left, there or not; `None` for the end of all keys.
        until: Option<u64>,
    },
    /// Look a record up that is there.
    GetPresent {
        /// The record.
        record: u64,
        /// Which of the phase's lookups it belongs to.
        lookups: usize,
    },
    /// Look up a key that was never there.
    GetAbsent {
        /// The record whose key lies next to it.
        record: u64,
        /// Tells the absent keys next to one record apart.
        salt: u64,
        /// Which of the phase's lookups it belongs to.
        lookups: usize,
    },
    /// Read entries in key order.
    Range {
        /// The record to begin with.
        record: u64,
        /// How many entries.
        entries: u64,
    },
}

/// What a workload has done so far, and the randomness that says how it goes on.
#[derive(Clone, Debug)]
pub struct Stream {
    keys: Option<KeySpace>,
    live: Live,
    seed: u64,
    order: Random,
    choice: Random,
    updates: u64,
}

impl Stream {
    /// The beginning of a workload. `keys` as for [`Choice::new`].
    #[must_use]
    pub fn new(keys: Option<KeySpace>, seed: u64) -> Stream {
        Stream {
            keys,
            live: Live::default(),
            seed,
            order: Random::new(seed, PURPOSE_ORDER),
            choice: Random::new(seed, PURPOSE_CHOICE),
            updates: 0,
        }
    }

    /// The operations of the next phase. What is not taken from the iterator was not done.
    pub fn phase<'a>(&'a mut self, phase: &Phase) -> PhaseStream<'a> {
        let mut left = vec![
            (Drawn::Insert, phase.inserts),
            (Drawn::Update, phase.updates),
            (Drawn::Delete, phase.deletes),
            (Drawn::Merge, phase.merges),
            (Drawn::DeleteRange, phase.range_deletes),
            (Drawn::Range, phase.ranges),
        ];
        for (index, lookups) in phase.lookups.iter().enumerate() {
            let absent = numbers::round(numbers::float(lookups.ops) * lookups.alpha);
            let absent = absent.min(lookups.ops);
            left.push((Drawn::GetPresent(index), lookups.ops - absent));
            left.push((Drawn::GetAbsent(index), absent));
        }
        PhaseStream {
            choice: Choice::new(phase.distribution, self.keys.as_ref(), self.seed, phase.hot),
            ops: phase.operation_count(),
            ops_left: phase.operation_count(),
            left,
            selectivity: phase.selectivity,
            stream: self,
        }
    }
}

impl Stream {
    /// Deletes [`RANGE_DELETE_RECORDS`] places from a record on. Records of a file have no order that is
    /// known beforehand: there it is the one record.
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

#[derive(Clone, Copy, Debug)]
enum Drawn {
    Insert,
    Update,
    Delete,
    Merge,
    DeleteRange,
    Range,
    GetPresent(usize),
    GetAbsent(usize),
}

/// The operations of one phase.
#[derive(Debug)]
pub struct PhaseStream<'a> {
    stream: &'a mut Stream,
    choice: Choice,
    selectivity: f64,
    ops: u64,
    ops_left: u64,
    /// Operations left of each kind; the inserts come first.
    left: Vec<(Drawn, u64)>,
}

impl Iterator for PhaseStream<'_> {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        if self.ops_left == 0 {
            return None;
        }
        let progress = 1.0 - numbers::ratio(self.ops_left, self.ops);
        let mut ticket = self.stream.order.below(self.ops_left);
        let mut drawn = 0;
        while ticket >= self.left[drawn].1 {
            ticket -= self.left[drawn].1;
            drawn += 1;
        }
        let stream = &mut *self.stream;
        let mut picked =
            self.choice.pick(&stream.live, stream.keys.as_ref(), progress, &mut stream.choice);
        if picked.is_none() && self.left[0].1 > 0 {
            // Nothing is there to be read or changed: the insert that will make it so comes first.
            drawn = 0;
            picked = Some(0);
        }
        let (kind, left) = &mut self.left[drawn];
        *left -= 1;
        self.ops_left -= 1;
        let record = picked?;
        Some(match *kind {
            Drawn::Insert => Operation::Insert { record: stream.live.insert() },
            Drawn::Update => {
                stream.updates += 1;
                Operation::Update { record, version: stream.updates }
            }
            Drawn::Merge => {
                stream.updates += 1;
                Operation::Merge { record, version: stream.updates }
            }
            Drawn::Delete => {
                stream.live.delete(record);
                Operation::Delete { record }
            }
            Drawn::DeleteRange => stream.delete_range(record),
            Drawn::GetPresent(lookups) => Operation::GetPresent { record, lookups },
            Drawn::GetAbsent(lookups) => {
                Operation::GetAbsent { record, salt: stream.choice.next_u64(), lookups }
            }
            Drawn::Range => {
                let entries = numbers::float(stream.live.count()) * self.selectivity;
                Operation::Range { record, entries: numbers::round(entries).max(1) }
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
        Stream::new(Some(keys), seed).phase(&mixed(distribution)).collect()
    }

    #[test]
    fn counts_are_exact_and_only_what_is_there_is_touched() {
        for distribution in KeyDistribution::ALL {
            let mut live = BTreeSet::new();
            let keys = KeySpace::new(distribution, 1000, 8, 5).unwrap();
            let (mut updates, mut deletes, mut merges, mut ranges) = (0, 0, 0, 0);
            let (mut range_deletes, mut range_deleted) = (0, 0);
            let mut gets = [[0; 2]; 2];
            for operation in operations(distribution, 5) {
                match operation {
                    Operation::Insert { record } => assert!(live.insert(record)),
                    Operation::Update { record, .. } => {
                        updates += 1;
                        assert!(live.contains(&record));
                    }
                    Operation::Merge { record, .. } => {
                        merges += 1;
                        assert!(live.contains(&record));
                    }
                    Operation::Delete { record } => {
                        deletes += 1;
                        assert!(live.remove(&record));
                    }
                    Operation::DeleteRange { record, until } => {
                        assert!(live.contains(&record));
                        let (from, until) =
                            (keys.rank(record), until.map(|until| keys.rank(until)));
                        let places = from..until.unwrap_or(1000);
                        assert!(until.is_none() || places.clone().count() == 10);
                        let before = live.len();
                        live.retain(|record| !places.contains(&keys.rank(*record)));
                        range_deletes += 1;
                        range_deleted += before - live.len();
                    }
                    Operation::GetPresent { record, lookups } => {
                        gets[lookups][0] += 1;
                        assert!(live.contains(&record));
                    }
                    Operation::GetAbsent { lookups, .. } => gets[lookups][1] += 1,
                    Operation::Range { record, entries } => {
                        ranges += 1;
                        assert!(live.contains(&record) && entries >= 1);
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
    fn equal_seeds_give_equal_streams_and_others_do_not() {
        for distribution in KeyDistribution::ALL {
            assert_eq!(operations(distribution, 5), operations(distribution, 5));
            assert_ne!(operations(distribution, 5), operations(distribution, 6));
        }
    }

    #[test]
    fn kinds_are_mixed_to_the_end() {
        let operations = operations(KeyDistribution::Uniform, 1);
        let half = operations.len() / 2;
        let updates = operations[..half]
            .iter()
            .filter(|operation| matches!(operation, Operation::Update { .. }))
            .count();
        assert!((200..300).contains(&updates), "{updates}");
    }

    #[test]
    fn the_next_phase_goes_on_with_what_is_there() {
        let mut stream = Stream::new(None, 1);
        let mut load = Phase::new("load", KeyDistribution::Uniform);
        load.inserts = 10;
        assert_eq!(stream.phase(&load).count(), 10);
        let first = stream.phase(&load).next();
        assert_eq!(first, Some(Operation::Insert { record: 10 }));
    }
}
