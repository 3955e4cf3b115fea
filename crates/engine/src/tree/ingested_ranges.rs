//! Key ranges of ingested files, for guards that are older than the ingest.
//!
//! Ingested entries are neither in memtables nor in the history of flushed writes. A guard on a key in such a range
//! cannot be checked if its sequence number is before that of the ingest.

use std::collections::VecDeque;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::{AtomicU64, Mutex, Ordering};
use lsmx_compaction::KeyRange;

/// Maximum number of ranges. If there are more, the two oldest are replaced by one that covers both.
const RANGES_MAX: usize = 16;

/// Ranges of the ingests into one tree since it was opened.
#[derive(Debug, Default)]
pub(crate) struct IngestedRanges {
    /// Sequence number of the last ingest, or 0. Guards read it before the ranges.
    newest: AtomicU64,
    /// Ranges with the sequence numbers of their ingests, oldest first.
    ranges: Mutex<VecDeque<(SeqNo, KeyRange)>>,
}

impl IngestedRanges {
    /// Adds the range of an ingest. Only the thread that holds the lead of the commit pipeline calls this.
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

    /// Returns whether an ingest after `read` may have written the key.
    #[inline]
    pub(crate) fn may_contain_newer(&self, key: &[u8], read: SeqNo) -> bool {
        self.newest.load(Ordering::Acquire) > read.0 && self.contains_newer(key, read)
    }

    #[cold]
    fn contains_newer(&self, key: &[u8], read: SeqNo) -> bool {
        let ranges = self.ranges.lock();
        let mut newer = ranges.iter().rev().take_while(|(seq, _)| *seq > read);
        newer.any(|(_, range)| range.contains(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_before_ingest_is_undecided_only_in_its_range() {
        let ingested = IngestedRanges::default();
        assert!(!ingested.may_contain_newer(b"c", SeqNo(0)));
        ingested.add(SeqNo(5), KeyRange::new("b", "d"));
        assert!(ingested.may_contain_newer(b"d", SeqNo(4)));
        assert!(!ingested.may_contain_newer(b"d", SeqNo(5)));
        assert!(!ingested.may_contain_newer(b"e", SeqNo(4)));
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
            let key = number.to_be_bytes();
            assert!(ingested.may_contain_newer(&key, SeqNo(9 + number)));
        }
        assert!(!ingested.may_contain_newer(&99_u64.to_be_bytes(), SeqNo(109)));
    }
}
