//! History of flushed writes. If a guard of a transaction is older than the memtables, it is checked against this
//! history.
//!
//! A flush records the key hashes and range tombstones of its memtable before the memtable is removed from the super
//! version. The history of a tree covers one interval of sequence numbers. This interval extends at least to the first
//! sequence number of the oldest memtable. If the history exceeds its memory limit, the oldest records are dropped.
//!
//! To check guards of key ranges, the history also needs sorted key prefixes. Flushes record them only after a
//! transaction has read a range for the first time.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};
use lsmx_base::tombstone_index::TombstoneIndex;

use crate::memtable::Memtable;
use crate::tree::key_hashes::{BYTES_PER_KEY, KeyHashes, key_hash};
use crate::tree::key_prefixes::{self, KeyPrefixes, common_prefix_len};

/// Maximum number of records of all trees. It bounds the time of a guard check, which may compare all records of a tree.
const RECORDS_MAX: usize = 1 << 10;
/// Memory of a record in bytes without its hash table, key prefixes and range tombstones.
const RECORD_BYTES: u64 = 256;

/// The keys that a guard protects.
#[derive(Clone, Debug)]
pub(crate) enum GuardedKeys {
    /// A single key and its hash.
    Key { key: Bytes, key_hash: u64 },
    /// The keys from `start` (inclusive) to `end` (exclusive). If `end` is `None`, the range ends at the end of the
    /// keyspace. The range is not empty.
    Range { start: Bytes, end: Option<Bytes> },
}

impl GuardedKeys {
    /// Protects a single key of a keyspace.
    pub(crate) fn new_key(keyspace: u32, key: Bytes) -> GuardedKeys {
        let key_hash = key_hash(keyspace, &key);
        GuardedKeys::Key { key, key_hash }
    }

    /// Returns the smallest protected key.
    pub(crate) fn first_key(&self) -> &[u8] {
        match self {
            GuardedKeys::Key { key, .. } => key,
            GuardedKeys::Range { start, .. } => start,
        }
    }
}

/// The writes of one flushed memtable.
#[derive(Debug)]
pub(crate) struct FlushedWrites {
    keyspace: u32,
    first_seq: SeqNo,
    last_seq: SeqNo,
    keys: KeyHashes,
    /// Key prefixes for guards of ranges. `None` if they were not recorded.
    prefixes: Option<KeyPrefixes>,
    tombstones: Vec<Arc<TombstoneIndex>>,
    bytes: u64,
}

impl FlushedWrites {
    /// Adds an entry of the memtable. Entries must be added in the order of a memtable cursor.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo) {
        self.keys.insert(key_hash(self.keyspace, key), seq);
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.push(key, seq);
        }
    }

    /// Returns the newest sequence number at which the key was written or deleted.
    fn newest_seq(&self, key: &[u8], key_hash: u64) -> Option<SeqNo> {
        let covering = |index: &Arc<TombstoneIndex>| index.newest_covering(key, SeqNo::MAX);
        self.keys.newest_seq(key_hash).max(self.tombstones.iter().filter_map(covering).max())
    }

    /// Checks whether these writes changed keys that were read at the sequence number `read`.
    fn check(&self, keys: &GuardedKeys, read: SeqNo) -> GuardCheck {
        let has_newer_write = match keys {
            GuardedKeys::Key { key, key_hash } => self.newest_seq(key, *key_hash) > Some(read),
            GuardedKeys::Range { start, end } => {
                let end = end.as_deref();
                let overlaps = |at: &Arc<TombstoneIndex>| at.has_newer_overlap(start, end, read);
                if self.tombstones.iter().any(overlaps) {
                    return GuardCheck::Refused;
                }
                let Some(prefixes) = &self.prefixes else { return GuardCheck::Unknown };
                prefixes.may_have_newer_write(start, end, read)
            }
        };
        if has_newer_write { GuardCheck::Refused } else { GuardCheck::Holds }
    }
}

/// Result of a guard check. If there are several results, the largest one applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GuardCheck {
    /// No protected key was changed after the sequence number of the guard.
    Holds,
    /// The history does not cover the sequence number of the guard, or it does not contain key prefixes.
    Unknown,
    /// A protected key was written or deleted after the sequence number of the guard.
    Refused,
}

/// Flushed writes of a tree, oldest first. Their intervals of sequence numbers are contiguous.
#[derive(Debug, Default)]
struct TreeHistory(VecDeque<FlushedWrites>);

impl TreeHistory {
    /// Checks whether recorded writes changed keys that were read at the sequence number `read`.
    fn check(&self, keys: &GuardedKeys, read: SeqNo) -> GuardCheck {
        let recent = self.0.iter().rev().take_while(|writes| writes.last_seq > read);
        recent.map(|writes| writes.check(keys, read)).max().unwrap_or(GuardCheck::Holds)
    }

    /// Returns whether the history contains all writes with sequence numbers after `read` and before `until`.
    fn covers(&self, read: SeqNo, until: SeqNo) -> bool {
        let (Some(oldest), Some(newest)) = (self.0.front(), self.0.back()) else { return false };
        oldest.first_seq.0 <= read.0.saturating_add(1) && newest.last_seq.0 + 1 >= until.0
    }
}

/// Histories of all trees of a database. They share one memory limit.
#[derive(Debug)]
pub(crate) struct GuardHistory {
    bytes_max: u64,
    /// Whether flushes record key prefixes. Never reset. Relaxed ordering is sufficient: if a flush reads an old value,
    /// it records no key prefixes, and guards of ranges cannot be decided.
    records_prefixes: AtomicBool,
    histories: Mutex<TreeHistories>,
}

#[derive(Debug, Default)]
struct TreeHistories {
    trees: HashMap<u32, TreeHistory>,
    /// Keyspace id of each record, ordered from the oldest to the newest record.
    order: VecDeque<u32>,
    bytes: u64,
}

impl GuardHistory {
    /// Creates an empty history with a memory limit of `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> GuardHistory {
        let records_prefixes = AtomicBool::new(false);
        GuardHistory { bytes_max, records_prefixes, histories: Mutex::default() }
    }

    /// Makes all later flushes record key prefixes, which are needed for guards of ranges.
    pub(crate) fn record_prefixes(&self) {
        if !self.records_prefixes.load(Ordering::Relaxed) {
            self.records_prefixes.store(true, Ordering::Relaxed);
        }
    }

    /// Creates an empty record for a memtable whose last sequence number is `last_seq`. Returns `None` if the record
    /// would exceed the memory limit.
    pub(crate) fn new_flush_record(
        &self,
        keyspace: u32,
        memtable: &Memtable,
        last_seq: SeqNo,
    ) -> Option<FlushedWrites> {
        let (first_seq, tombstones) = (memtable.first_seq(), memtable.tombstone_indexes());
        let tombstone_bytes: u64 = tombstones.iter().map(|index| len_u64(index.bytes())).sum();
        let key_bytes = memtable.entry_count().saturating_mul(BYTES_PER_KEY);
        let bytes = RECORD_BYTES.saturating_add(tombstone_bytes).saturating_add(key_bytes);
        if bytes > self.bytes_max || failpoint::is_on(Failpoint::GuardHistoryForgotten) {
            return None;
        }
        let entries = usize::try_from(memtable.entry_count()).ok()?;
        let keys = KeyHashes::with_capacity(entries, first_seq);
        let mut writes = FlushedWrites {
            keyspace,
            first_seq,
            last_seq,
            keys,
            prefixes: None,
            tombstones,
            bytes,
        };
        if self.records_prefixes.load(Ordering::Relaxed) {
            self.add_prefixes(&mut writes, memtable, entries);
        }
        Some(writes)
    }

    /// Adds an empty list of key prefixes to a record. Does nothing if the record would then exceed the memory limit.
    fn add_prefixes(&self, writes: &mut FlushedWrites, memtable: &Memtable, entries: usize) {
        let (smallest, largest) = memtable.key_range().unwrap_or_default();
        let common = &smallest[..common_prefix_len(&smallest, &largest)];
        let prefix_bytes = key_prefixes::memory_bytes(len_u64(entries));
        let bytes = writes.bytes.saturating_add(prefix_bytes).saturating_add(len_u64(common.len()));
        if bytes <= self.bytes_max {
            let prefixes = KeyPrefixes::with_capacity(entries, common, writes.first_seq);
            (writes.prefixes, writes.bytes) = (Some(prefixes), bytes);
        }
    }

    /// Appends a record to the history of its tree. If sequence numbers between the previous record and this record are
    /// missing, the previous records are removed.
    pub(crate) fn append(&self, writes: FlushedWrites) {
        let keyspace = writes.keyspace;
        let mut histories = self.histories.lock();
        let follows = |last: &FlushedWrites| last.last_seq.0 + 1 == writes.first_seq.0;
        let history = histories.trees.entry(keyspace).or_default();
        if !history.0.back().is_none_or(follows) {
            histories.forget(keyspace);
        }
        histories.bytes += writes.bytes;
        histories.order.push_back(keyspace);
        histories.trees.entry(keyspace).or_default().0.push_back(writes);
        while (histories.bytes > self.bytes_max || histories.order.len() > RECORDS_MAX)
            && let Some(oldest) = histories.order.pop_front()
        {
            histories.drop_oldest_record(oldest);
        }
    }

    /// Checks whether flushed writes of a tree changed keys that were read at the sequence number `read`. `until` is
    /// the first sequence number of the oldest memtable.
    pub(crate) fn check_guard(
        &self,
        keyspace: u32,
        keys: &GuardedKeys,
        read: SeqNo,
        until: SeqNo,
    ) -> GuardCheck {
        let histories = self.histories.lock();
        let Some(tree) = histories.trees.get(&keyspace) else { return GuardCheck::Unknown };
        let check = tree.check(keys, read);
        if tree.covers(read, until) { check } else { check.max(GuardCheck::Unknown) }
    }

    /// Removes the history of a dropped tree.
    pub(crate) fn remove_tree(&self, keyspace: u32) {
        self.histories.lock().forget(keyspace);
    }

    /// Returns the memory of all records in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.histories.lock().bytes
    }
}

impl TreeHistories {
    fn forget(&mut self, keyspace: u32) {
        self.order.retain(|tree| *tree != keyspace);
        while self.trees.contains_key(&keyspace) {
            self.drop_oldest_record(keyspace);
        }
    }

    /// Drops the oldest record of a tree.
    fn drop_oldest_record(&mut self, keyspace: u32) {
        let Some(history) = self.trees.get_mut(&keyspace) else { return };
        self.bytes -= history.0.pop_front().map_or(0, |writes| writes.bytes);
        if history.0.is_empty() {
            self.trees.remove(&keyspace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deferred_drop::DeferredDrop;
    use crate::memtable::MemtableKind;
    use lsmx_base::key::EntryKind;

    /// Records a memtable with the sequence numbers `first..=last`. It contains the key `first`, written at the
    /// sequence number `first`.
    fn record(history: &GuardHistory, keyspace: u32, first: u64, last: u64) {
        let memtable =
            Memtable::new(MemtableKind::default(), SeqNo(first), &DeferredDrop::default());
        let key = first.to_be_bytes();
        memtable.insert(&key, SeqNo(first), EntryKind::Put, b"");
        let mut writes =
            history.new_flush_record(keyspace, &memtable, SeqNo(last)).expect("one key fits");
        writes.add(&key, SeqNo(first));
        history.append(writes);
    }

    fn check(history: &GuardHistory, keyspace: u32, key: u64, read: u64, until: u64) -> GuardCheck {
        let keys = GuardedKeys::new_key(keyspace, Bytes::copy_from_slice(&key.to_be_bytes()));
        history.check_guard(keyspace, &keys, SeqNo(read), SeqNo(until))
    }

    fn check_range(history: &GuardHistory, keys: (u64, u64), read: u64, until: u64) -> GuardCheck {
        let key = |key: u64| Bytes::copy_from_slice(&key.to_be_bytes());
        let keys = GuardedKeys::Range { start: key(keys.0), end: Some(key(keys.1)) };
        history.check_guard(1, &keys, SeqNo(read), SeqNo(until))
    }

    #[test]
    fn guard_history_range_is_unknown_until_prefixes_are_recorded() {
        let history = GuardHistory::new(1 << 20);
        record(&history, 1, 10, 19);
        assert_eq!(check_range(&history, (0, 99), 9, 20), GuardCheck::Unknown);
        assert_eq!(check_range(&history, (0, 99), 19, 20), GuardCheck::Holds, "no newer record");
        history.record_prefixes();
        record(&history, 1, 20, 29);
        record(&history, 1, 30, 39);
        assert_eq!(check_range(&history, (20, 21), 19, 40), GuardCheck::Refused);
        assert_eq!(check_range(&history, (20, 21), 20, 40), GuardCheck::Holds);
        assert_eq!(check_range(&history, (21, 30), 19, 40), GuardCheck::Holds);
        assert_eq!(check_range(&history, (0, 99), 29, 40), GuardCheck::Refused);
        assert_eq!(check_range(&history, (0, 99), 30, 40), GuardCheck::Holds);
        // The record without key prefixes must be checked. The record of key 30 determines the result.
        assert_eq!(check_range(&history, (21, 30), 15, 40), GuardCheck::Unknown);
        assert_eq!(check_range(&history, (21, 31), 15, 40), GuardCheck::Refused);
    }

    #[test]
    fn guard_history_prefixes_over_limit_are_not_recorded() {
        let history = GuardHistory::new(RECORD_BYTES + BYTES_PER_KEY);
        history.record_prefixes();
        record(&history, 1, 10, 19);
        assert_eq!(check(&history, 1, 77, 9, 20), GuardCheck::Holds);
        assert_eq!(check_range(&history, (77, 78), 9, 20), GuardCheck::Unknown);
        assert_eq!(history.bytes(), RECORD_BYTES + BYTES_PER_KEY);
    }

    #[test]
    fn guard_history_contiguous_records_cover_their_interval() {
        let history = GuardHistory::new(1 << 20);
        record(&history, 1, 10, 19);
        record(&history, 1, 20, 29);
        // First a key that was written after the read, and then a key that was not.
        assert_eq!(check(&history, 1, 20, 19, 30), GuardCheck::Refused);
        assert_eq!(check(&history, 1, 10, 5, 30), GuardCheck::Refused);
        assert_eq!(check(&history, 1, 20, 20, 30), GuardCheck::Holds);
        assert_eq!(check(&history, 1, 77, 9, 30), GuardCheck::Holds);
        // Reads before the first record, after the last record, and of another tree cannot be decided.
        assert_eq!(check(&history, 1, 77, 8, 30), GuardCheck::Unknown);
        assert_eq!(check(&history, 1, 77, 9, 31), GuardCheck::Unknown);
        assert_eq!(check(&history, 2, 20, 19, 30), GuardCheck::Unknown);
    }

    #[test]
    fn guard_history_gap_clears_history() {
        let history = GuardHistory::new(1 << 20);
        record(&history, 1, 10, 19);
        let bytes = history.bytes();
        record(&history, 1, 30, 39);
        assert_eq!(check(&history, 1, 77, 15, 40), GuardCheck::Unknown);
        assert_eq!(check(&history, 1, 77, 29, 40), GuardCheck::Holds);
        assert_eq!(history.bytes(), bytes);
    }

    #[test]
    fn guard_history_over_limit_drops_oldest_record() {
        let history = GuardHistory::new(4 * (RECORD_BYTES + BYTES_PER_KEY));
        for number in 0..10 {
            let (tree, first) = (1 + u32::from(number % 2 == 1), 10 * (number / 2));
            record(&history, tree, first, first + 9);
            assert!(history.bytes() <= history.bytes_max);
        }
        assert_eq!(check(&history, 2, 77, 29, 50), GuardCheck::Holds);
        assert_eq!(check(&history, 2, 77, 28, 50), GuardCheck::Unknown);
        history.remove_tree(1);
        history.remove_tree(2);
        assert_eq!((history.bytes(), history.histories.lock().order.len()), (0, 0));
    }
}
