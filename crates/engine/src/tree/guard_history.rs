//! History of flushed writes, for guards older than the memtables.
//!
//! A flush records the key hashes and range deletes of its memtable here before the memtable leaves the super
//! version. The history of a tree is one interval of sequence numbers that ends where its oldest
//! memtable begins, or later. The oldest records leave when all of them exceed the bound.

use std::collections::{HashMap, VecDeque};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Mutex};
use lsmx_base::tombstone_index::TombstoneIndex;

use crate::memtable::Memtable;
use crate::tree::key_hashes::{BYTES_PER_KEY, KeyHashes, key_hash};

/// Most records of all trees: a guard may be checked against each one of its tree.
const RECORDS_MAX: usize = 1 << 10;
/// Bytes of a record besides its table of keys.
const RECORD_BYTES: u64 = 256;

/// Writes of one flushed memtable: for each key the newest sequence number.
#[derive(Debug)]
pub(crate) struct FlushedWrites {
    keyspace: u32,
    first_seq: SeqNo,
    last_seq: SeqNo,
    keys: KeyHashes,
    spans: Vec<Arc<TombstoneIndex>>,
    bytes: u64,
}

impl FlushedWrites {
    /// Adds an entry.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo) {
        self.keys.insert(key_hash(self.keyspace, key), seq);
    }

    /// Returns the newest number at which the key was written or deleted.
    fn newest(&self, key: &[u8], key_hash: u64) -> Option<SeqNo> {
        let covering = |spans: &Arc<TombstoneIndex>| spans.newest_covering(key, SeqNo::MAX);
        self.keys.newest(key_hash).max(self.spans.iter().filter_map(covering).max())
    }
}

/// Whether a guard holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardState {
    /// The key was not written after the number of the guard.
    Holds,
    /// The key was written after it, or deleted.
    Refused,
    /// The number is older than the history.
    Unknown,
}

/// Recent writes of one tree that are flushed, oldest first. The intervals are contiguous.
#[derive(Debug, Default)]
struct TreeHistory(VecDeque<FlushedWrites>);

impl TreeHistory {
    /// Returns whether the key was written or deleted after `read`, as far as the history knows.
    fn has_newer(&self, key: &[u8], key_hash: u64, read: SeqNo) -> bool {
        let recent = self.0.iter().rev().take_while(|writes| writes.last_seq > read);
        let mut newest = recent.filter_map(|writes| writes.newest(key, key_hash));
        newest.any(|seq| seq > read)
    }

    /// Returns whether the history holds every write after `read` and before `until`.
    fn covers(&self, read: SeqNo, until: SeqNo) -> bool {
        let (Some(oldest), Some(newest)) = (self.0.front(), self.0.back()) else { return false };
        oldest.first_seq.0 <= read.0.saturating_add(1) && newest.last_seq.0 + 1 >= until.0
    }
}

/// The histories of all trees of a database, within one bound of bytes.
#[derive(Debug)]
pub(crate) struct GuardHistory {
    bytes_max: u64,
    recorded: Mutex<Recorded>,
}

#[derive(Debug, Default)]
struct Recorded {
    trees: HashMap<u32, TreeHistory>,
    /// Trees of the records, oldest record first.
    order: VecDeque<u32>,
    bytes: u64,
}

impl GuardHistory {
    /// Returns an empty history of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> GuardHistory {
        GuardHistory { bytes_max, recorded: Mutex::default() }
    }

    /// Returns an empty record for a memtable whose last number is `last_seq`, or `None` if its keys do
    /// not fit into the bound.
    pub(crate) fn begin(
        &self,
        keyspace: u32,
        memtable: &Memtable,
        last_seq: SeqNo,
    ) -> Option<FlushedWrites> {
        let (first_seq, spans) = (memtable.first_seq(), memtable.tombstone_indexes());
        let span_bytes: u64 = spans.iter().map(|spans| len_u64(spans.bytes())).sum();
        let key_bytes = memtable.entry_count().saturating_mul(BYTES_PER_KEY);
        let bytes = RECORD_BYTES.saturating_add(span_bytes).saturating_add(key_bytes);
        if bytes > self.bytes_max || failpoint::is_on(Failpoint::GuardHistoryForgotten) {
            return None;
        }
        let entries = usize::try_from(memtable.entry_count()).ok()?;
        let keys = KeyHashes::with_capacity(entries, first_seq);
        Some(FlushedWrites { keyspace, first_seq, last_seq, keys, spans, bytes })
    }

    /// Appends a record to the history of its tree. A record that does not follow the last one begins a
    /// new history.
    pub(crate) fn append(&self, writes: FlushedWrites) {
        let keyspace = writes.keyspace;
        let mut recorded = self.recorded.lock();
        let follows = |last: &FlushedWrites| last.last_seq.0 + 1 == writes.first_seq.0;
        let history = recorded.trees.entry(keyspace).or_default();
        if !history.0.back().is_none_or(follows) {
            recorded.forget(keyspace);
        }
        recorded.bytes += writes.bytes;
        recorded.order.push_back(keyspace);
        recorded.trees.entry(keyspace).or_default().0.push_back(writes);
        while (recorded.bytes > self.bytes_max || recorded.order.len() > RECORDS_MAX)
            && let Some(oldest) = recorded.order.pop_front()
        {
            recorded.drop_oldest(oldest);
        }
    }

    /// Checks a key that was read at `read` against the flushed writes of its tree, up to the number
    /// `until` where the oldest memtable begins.
    pub(crate) fn check(
        &self,
        keyspace: u32,
        (key, key_hash): (&[u8], u64),
        read: SeqNo,
        until: SeqNo,
    ) -> GuardState {
        let recorded = self.recorded.lock();
        match recorded.trees.get(&keyspace) {
            Some(tree) if tree.has_newer(key, key_hash, read) => GuardState::Refused,
            Some(tree) if tree.covers(read, until) => GuardState::Holds,
            _ => GuardState::Unknown,
        }
    }

    /// Removes the history of a tree that was dropped.
    pub(crate) fn forget(&self, keyspace: u32) {
        self.recorded.lock().forget(keyspace);
    }

    /// Bytes of all records.
    pub(crate) fn bytes(&self) -> u64 {
        self.recorded.lock().bytes
    }
}

impl Recorded {
    fn forget(&mut self, keyspace: u32) {
        self.order.retain(|tree| *tree != keyspace);
        while self.trees.contains_key(&keyspace) {
            self.drop_oldest(keyspace);
        }
    }

    /// Drops the oldest record of a tree.
    fn drop_oldest(&mut self, keyspace: u32) {
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
    use lsmx_base::key::EntryKind;

    /// Records a memtable for the numbers from `first` up to `last` that has the key `first`, written at
    /// `first`.
    fn record(history: &GuardHistory, keyspace: u32, first: u64, last: u64) {
        let memtable = Memtable::new(SeqNo(first), &DeferredDrop::default());
        let key = first.to_be_bytes();
        memtable.insert(&key, SeqNo(first), EntryKind::Put, b"");
        let mut writes = history.begin(keyspace, &memtable, SeqNo(last)).expect("one key fits");
        writes.add(&key, SeqNo(first));
        history.append(writes);
    }

    fn check(history: &GuardHistory, keyspace: u32, key: u64, read: u64, until: u64) -> GuardState {
        let key = key.to_be_bytes();
        let hash = key_hash(keyspace, &key);
        history.check(keyspace, (&key, hash), SeqNo(read), SeqNo(until))
    }

    #[test]
    fn guard_history_contiguous_records_decide_their_interval() {
        let history = GuardHistory::new(1 << 20);
        record(&history, 1, 10, 19);
        record(&history, 1, 20, 29);
        // Written after the read, or not.
        assert_eq!(check(&history, 1, 20, 19, 30), GuardState::Refused);
        assert_eq!(check(&history, 1, 10, 5, 30), GuardState::Refused);
        assert_eq!(check(&history, 1, 20, 20, 30), GuardState::Holds);
        assert_eq!(check(&history, 1, 77, 9, 30), GuardState::Holds);
        // Before the first record, behind the last one, in another tree.
        assert_eq!(check(&history, 1, 77, 8, 30), GuardState::Unknown);
        assert_eq!(check(&history, 1, 77, 9, 31), GuardState::Unknown);
        assert_eq!(check(&history, 2, 20, 19, 30), GuardState::Unknown);
    }

    #[test]
    fn guard_history_gap_begins_a_new_history() {
        let history = GuardHistory::new(1 << 20);
        record(&history, 1, 10, 19);
        let bytes = history.bytes();
        record(&history, 1, 30, 39);
        assert_eq!(check(&history, 1, 77, 15, 40), GuardState::Unknown);
        assert_eq!(check(&history, 1, 77, 29, 40), GuardState::Holds);
        assert_eq!(history.bytes(), bytes);
    }

    #[test]
    fn guard_history_past_its_bound_drops_the_oldest_record() {
        let history = GuardHistory::new(4 * (RECORD_BYTES + BYTES_PER_KEY));
        for number in 0..10 {
            let (tree, first) = (1 + u32::from(number % 2 == 1), 10 * (number / 2));
            record(&history, tree, first, first + 9);
            assert!(history.bytes() <= history.bytes_max);
        }
        assert_eq!(check(&history, 2, 77, 29, 50), GuardState::Holds);
        assert_eq!(check(&history, 2, 77, 28, 50), GuardState::Unknown);
        history.forget(1);
        history.forget(2);
        assert_eq!((history.bytes(), history.recorded.lock().order.len()), (0, 0));
    }
}
