//! History of flushed writes, for guards that are older than the memtables.
//!
//! A flush records the key hashes and range tombstones of its memtable before the memtable is removed from the
//! super version. The history of a tree is one interval of sequence numbers. It ends at or after the first number
//! of the oldest memtable. The oldest records are dropped when the history exceeds its limit.

use std::collections::{HashMap, VecDeque};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Mutex};
use lsmx_base::tombstone_index::TombstoneIndex;

use crate::memtable::Memtable;
use crate::tree::key_hashes::{BYTES_PER_KEY, KeyHashes, key_hash};

/// Maximum number of records of all trees. A guard may be checked against every record of its tree.
const RECORDS_MAX: usize = 1 << 10;
/// Memory of a record without its hash table and tombstones, in bytes.
const RECORD_BYTES: u64 = 256;

/// Writes of one flushed memtable.
#[derive(Debug)]
pub(crate) struct FlushedWrites {
    keyspace: u32,
    first_seq: SeqNo,
    last_seq: SeqNo,
    keys: KeyHashes,
    tombstones: Vec<Arc<TombstoneIndex>>,
    bytes: u64,
}

impl FlushedWrites {
    /// Adds an entry of the memtable.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo) {
        self.keys.insert(key_hash(self.keyspace, key), seq);
    }

    /// Returns the newest sequence number at which the key was written or deleted.
    fn newest_seq(&self, key: &[u8], key_hash: u64) -> Option<SeqNo> {
        let covering = |index: &Arc<TombstoneIndex>| index.newest_covering(key, SeqNo::MAX);
        self.keys.newest_seq(key_hash).max(self.tombstones.iter().filter_map(covering).max())
    }
}

/// Result of the check of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardCheck {
    /// The key was not modified after the sequence number of the guard.
    Holds,
    /// The key was written or deleted after the sequence number of the guard.
    Refused,
    /// The history does not cover the sequence number of the guard.
    Unknown,
}

/// Flushed writes of one tree, oldest first. Their intervals of sequence numbers are contiguous.
#[derive(Debug, Default)]
struct TreeHistory(VecDeque<FlushedWrites>);

impl TreeHistory {
    /// Returns whether the history contains a write or deletion of the key after `read`.
    fn has_newer_write(&self, key: &[u8], key_hash: u64, read: SeqNo) -> bool {
        let recent = self.0.iter().rev().take_while(|writes| writes.last_seq > read);
        let mut newest = recent.filter_map(|writes| writes.newest_seq(key, key_hash));
        newest.any(|seq| seq > read)
    }

    /// Returns whether the history contains every write after `read` and before `until`.
    fn covers(&self, read: SeqNo, until: SeqNo) -> bool {
        let (Some(oldest), Some(newest)) = (self.0.front(), self.0.back()) else { return false };
        oldest.first_seq.0 <= read.0.saturating_add(1) && newest.last_seq.0 + 1 >= until.0
    }
}

/// Histories of all trees of a database, with one memory limit.
#[derive(Debug)]
pub(crate) struct GuardHistory {
    bytes_max: u64,
    histories: Mutex<TreeHistories>,
}

#[derive(Debug, Default)]
struct TreeHistories {
    trees: HashMap<u32, TreeHistory>,
    /// Keyspace id of each record, oldest record first.
    order: VecDeque<u32>,
    bytes: u64,
}

impl GuardHistory {
    /// Returns an empty history of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> GuardHistory {
        GuardHistory { bytes_max, histories: Mutex::default() }
    }

    /// Returns an empty record for a memtable whose last sequence number is `last_seq`. Returns `None` if the
    /// record would exceed the memory limit.
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
        Some(FlushedWrites { keyspace, first_seq, last_seq, keys, tombstones, bytes })
    }

    /// Appends a record to the history of its tree. If sequence numbers are missing between the previous record and this
    /// one, the older records are removed.
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

    /// Checks a key that was read at `read` against the flushed writes of its tree. `until` is the first sequence
    /// number of the oldest memtable.
    pub(crate) fn check_guard(
        &self,
        keyspace: u32,
        (key, key_hash): (&[u8], u64),
        read: SeqNo,
        until: SeqNo,
    ) -> GuardCheck {
        let histories = self.histories.lock();
        match histories.trees.get(&keyspace) {
            Some(tree) if tree.has_newer_write(key, key_hash, read) => GuardCheck::Refused,
            Some(tree) if tree.covers(read, until) => GuardCheck::Holds,
            _ => GuardCheck::Unknown,
        }
    }

    /// Removes the history of a dropped tree.
    pub(crate) fn remove_tree(&self, keyspace: u32) {
        self.histories.lock().forget(keyspace);
    }

    /// Returns the memory of all records, in bytes.
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

    /// Records a memtable for the sequence numbers `first..=last` with the key `first`, written at `first`.
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
        let key = key.to_be_bytes();
        let hash = key_hash(keyspace, &key);
        history.check_guard(keyspace, (&key, hash), SeqNo(read), SeqNo(until))
    }

    #[test]
    fn guard_history_contiguous_records_cover_their_interval() {
        let history = GuardHistory::new(1 << 20);
        record(&history, 1, 10, 19);
        record(&history, 1, 20, 29);
        // Written after the read and not written after the read.
        assert_eq!(check(&history, 1, 20, 19, 30), GuardCheck::Refused);
        assert_eq!(check(&history, 1, 10, 5, 30), GuardCheck::Refused);
        assert_eq!(check(&history, 1, 20, 20, 30), GuardCheck::Holds);
        assert_eq!(check(&history, 1, 77, 9, 30), GuardCheck::Holds);
        // Before the first record, after the last record and in another tree.
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
