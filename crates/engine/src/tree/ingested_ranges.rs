//! Key ranges of ingested files. If a guard of a transaction is older than an ingest, it is checked against these
//! ranges.
//!
//! Ingested entries are neither in memtables nor in the history of flushed writes. If the keys of a guard overlap an
//! ingested range, and the guard is older than the ingest, the guard cannot be decided.

use std::collections::VecDeque;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{AtomicU64, Mutex, Ordering};
use lsmx_compaction::KeyRange;

use crate::tree::guard_history::GuardedKeys;

/// Maximum number of ranges. If there are more, the two oldest ranges are replaced by one range that covers both.
const RANGES_MAX: usize = 16;

/// Key ranges of all ingests into a tree since the tree was opened.
#[derive(Debug, Default)]
pub(crate) struct IngestedRanges {
    /// Sequence number of the last ingest, or 0 if there was none. Guard checks read it before they lock `ranges`.
    newest: AtomicU64,
    /// Key ranges with the sequence numbers of their ingests, oldest first.
    ranges: Mutex<VecDeque<(SeqNo, KeyRange)>>,
}

impl IngestedRanges {
    /// Adds the key range of an ingest. The calling thread must be the leader of the commit pipeline.
    pub(crate) fn add(&self, seq: SeqNo, range: KeyRange) {
        let mut ranges = self.ranges.lock();
        ranges.push_back((seq, range));
        if ranges.len() > RANGES_MAX
            && let (Some((_, oldest)), Some((seq, second))) =
                (ranges.pop_front(), ranges.pop_front())
        {
            ranges.push_front((seq, oldest.enclosing_both(&second)));
        }
        self.newest.store(seq.0, Ordering::Release);
    }

    /// Returns whether an ingest after `read` may have written one of the keys.
    #[inline]
    pub(crate) fn may_contain_newer(&self, keys: &GuardedKeys, read: SeqNo) -> bool {
        self.newest.load(Ordering::Acquire) > read.0 && self.contains_newer(keys, read)
    }

    #[cold]
    fn contains_newer(&self, keys: &GuardedKeys, read: SeqNo) -> bool {
        let ranges = self.ranges.lock();
        let mut newer = ranges.iter().rev().take_while(|(seq, _)| *seq > read);
        newer.any(|(_, range)| match keys {
            GuardedKeys::Key { key, .. } => range.contains(key),
            GuardedKeys::Range { start, end } => {
                *start <= range.largest && end.as_ref().is_none_or(|end| range.smallest < *end)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn key(key: &[u8]) -> GuardedKeys {
        GuardedKeys::Key { key: Bytes::copy_from_slice(key), key_hash: 0 }
    }

    fn range(start: &'static str, end: Option<&'static str>) -> GuardedKeys {
        GuardedKeys::Range { start: Bytes::from(start), end: end.map(Bytes::from) }
    }

    #[test]
    fn guard_before_ingest_is_undecided_only_in_its_range() {
        let ingested = IngestedRanges::default();
        assert!(!ingested.may_contain_newer(&key(b"c"), SeqNo(0)));
        assert!(!ingested.may_contain_newer(&range("", None), SeqNo(0)));
        ingested.add(SeqNo(5), KeyRange::new("b", "d"));
        assert!(ingested.may_contain_newer(&key(b"d"), SeqNo(4)));
        assert!(!ingested.may_contain_newer(&key(b"d"), SeqNo(5)));
        assert!(!ingested.may_contain_newer(&key(b"e"), SeqNo(4)));
        for (start, end, overlaps) in [
            ("", None, true),
            ("", Some("b"), false),
            ("", Some("ba"), true),
            ("c", Some("ca"), true),
            ("d", Some("e"), true),
            ("da", Some("e"), false),
            ("da", None, false),
        ] {
            assert_eq!(ingested.may_contain_newer(&range(start, end), SeqNo(4)), overlaps);
            assert!(!ingested.may_contain_newer(&range(start, end), SeqNo(5)));
        }
    }

    #[test]
    fn ranges_over_limit_are_merged_and_not_lost() {
        let ingested = IngestedRanges::default();
        for number in 0..100_u64 {
            let key = number.to_be_bytes().to_vec();
            ingested.add(SeqNo(10 + number), KeyRange::new(key.clone(), key));
        }
        assert_eq!(ingested.ranges.lock().len(), RANGES_MAX);
        for number in 0..100_u64 {
            assert!(ingested.may_contain_newer(&key(&number.to_be_bytes()), SeqNo(9 + number)));
        }
        assert!(!ingested.may_contain_newer(&key(&99_u64.to_be_bytes()), SeqNo(109)));
    }
}
