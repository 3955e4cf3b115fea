//! Range tombstone filter: determines which entries of a cursor are hidden by range tombstones.
//!
//! All writes in memtables and tables are ordered by their sequence numbers. An entry is hidden if a visible range
//! tombstone covers its key and is newer than the entry. A reader sees all range tombstones up to its snapshot. A job
//! must keep each entry that some snapshot sees. A job therefore considers only range tombstones up to the oldest
//! snapshot that sees the entry.

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::newest_visible_seq;
use lsmx_base::sync::Arc;
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_base::work_counter::{self, WorkKind};

use crate::format::range_tombstones::FragmentedTombstones;

/// Range tombstones, and the snapshots that see them.
#[derive(Clone, Debug)]
enum TombstoneSource {
    /// Indexes of range tombstones, each with the largest sequence number that the reader sees.
    Reader { indexes: Arc<[(Arc<TombstoneIndex>, SeqNo)]> },
    /// Registered snapshots in ascending order. If an entry is newer than all snapshots, any newer range tombstone
    /// hides it. Of all sequence numbers between two adjacent snapshots, `tombstones` contains only the largest.
    Job { tombstones: Arc<FragmentedTombstones>, snapshots: Arc<[SeqNo]> },
}

/// Range tombstones, and a window: a range of keys that the same range tombstones cover.
///
/// Checking a key inside of the window takes two comparisons.
#[derive(Clone, Debug)]
pub(crate) struct RangeTombstoneFilter {
    source: TombstoneSource,
    /// First key of the window. `None` before the first check.
    start: Option<Bytes>,
    /// First key after the window. `None` stands for the end of the keyspace.
    end: Option<Bytes>,
    /// Sequence numbers of the range tombstones that cover the window, newest first. For a reader, only the newest
    /// visible one.
    seqs: Vec<SeqNo>,
}

impl RangeTombstoneFilter {
    /// Creates the filter of an iterator. In each index, range tombstones up to the given sequence number are visible.
    ///
    /// Returns `None` if the indexes contain no range tombstones.
    pub(crate) fn for_reader(
        indexes: Arc<[(Arc<TombstoneIndex>, SeqNo)]>,
    ) -> Option<RangeTombstoneFilter> {
        let is_used = indexes.iter().any(|(index, _)| !index.is_empty());
        is_used.then(|| RangeTombstoneFilter::new(TombstoneSource::Reader { indexes }))
    }

    /// Creates the filter of a flush or a compaction. The job must keep each entry that one of `snapshots` sees.
    /// Returns `None` if `tombstones` is empty.
    pub(crate) fn for_job(
        tombstones: Arc<FragmentedTombstones>,
        snapshots: Arc<[SeqNo]>,
    ) -> Option<RangeTombstoneFilter> {
        let is_used = !tombstones.as_slice().is_empty();
        is_used.then(|| RangeTombstoneFilter::new(TombstoneSource::Job { tombstones, snapshots }))
    }

    fn new(source: TombstoneSource) -> RangeTombstoneFilter {
        RangeTombstoneFilter { source, start: None, end: None, seqs: Vec::new() }
    }

    /// Returns all range tombstones of a filter that [`RangeTombstoneFilter::for_job`] created. Returns `None` for the
    /// filter of a reader.
    pub(crate) fn job_tombstones(&self) -> Option<&FragmentedTombstones> {
        match &self.source {
            TombstoneSource::Job { tombstones, .. } => Some(tombstones),
            TombstoneSource::Reader { .. } => None,
        }
    }

    /// Returns whether the entry (`user_key`, `seq`) is hidden.
    #[inline]
    pub(crate) fn is_deleted(&mut self, user_key: &[u8], seq: SeqNo) -> bool {
        self.newest_visible_seq(user_key, seq).is_some_and(|newest| newest > seq)
    }

    /// Returns whether all entries of a table in the window that contains `user_key` are hidden.
    ///
    /// `smallest` and `largest` are the smallest and largest sequence numbers in the table, including its range
    /// tombstones.
    #[inline]
    pub(crate) fn is_window_deleted(
        &mut self,
        user_key: &[u8],
        smallest: SeqNo,
        largest: SeqNo,
    ) -> bool {
        // Range tombstones and entries have different sequence numbers. A range tombstone with the number `largest`
        // therefore hides all entries.
        self.newest_visible_seq(user_key, smallest).is_some_and(|newest| newest >= largest)
    }

    /// Returns the sequence number of the newest range tombstone that covers a key and may hide entries with the
    /// sequence number `seq` or a larger one.
    #[inline]
    fn newest_visible_seq(&mut self, user_key: &[u8], seq: SeqNo) -> Option<SeqNo> {
        self.move_window(user_key);
        newest_visible_seq(&self.seqs, self.source.seq_limit(seq))
    }

    /// Returns the sequence number of the newest range tombstone that covers a key and is visible to the reader.
    pub(crate) fn newest_covering_seq(&mut self, user_key: &[u8]) -> Option<SeqNo> {
        self.newest_visible_seq(user_key, SeqNo::ZERO)
    }

    /// Returns the first key of the window.
    pub(crate) fn start(&self) -> &[u8] {
        self.start.as_deref().unwrap_or_default()
    }

    /// Returns the first key after the window. `None` stands for the end of the keyspace.
    pub(crate) fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }

    /// Moves the window so that it contains `user_key`.
    #[inline]
    fn move_window(&mut self, user_key: &[u8]) {
        let inside = self.start.as_ref().is_some_and(|start| **start <= *user_key)
            && self.end.as_ref().is_none_or(|end| *user_key < **end);
        if !inside {
            self.load_window(user_key);
        }
    }

    fn load_window(&mut self, user_key: &[u8]) {
        self.seqs.clear();
        let (start, end) = match &self.source {
            TombstoneSource::Reader { indexes } => {
                let sees_all = failpoint::is_on(Failpoint::SpanIgnoresSnapshot);
                let (mut start, mut end): (Option<&Bytes>, Option<&Bytes>) = (None, None);
                let mut newest = None;
                for (index, snapshot) in &**indexes {
                    let limit = if sees_all { SeqNo::MAX } else { *snapshot };
                    let window = index.coverage_range(user_key, limit);
                    start = start.max(window.start);
                    end = match (end, window.end) {
                        (Some(one), Some(other)) => Some(one.min(other)),
                        (one, other) => one.or(other),
                    };
                    newest = newest.max(window.newest);
                }
                self.seqs.extend(newest);
                (start, end)
            }
            TombstoneSource::Job { tombstones, .. } => {
                let window = tombstones.interval_at(user_key);
                work_counter::add(WorkKind::SpanNumbers, window.seqs.len());
                self.seqs.extend_from_slice(window.seqs);
                (window.start, window.end)
            }
        };
        (self.start, self.end) = (Some(start.cloned().unwrap_or_default()), end.cloned());
    }
}

impl TombstoneSource {
    /// Returns the upper bound of the sequence numbers of range tombstones that may hide an entry with the sequence
    /// number `seq`.
    fn seq_limit(&self, seq: SeqNo) -> SeqNo {
        match self {
            // The search in the indexes has already excluded range tombstones that the reader does not see.
            TombstoneSource::Reader { .. } => SeqNo::MAX,
            TombstoneSource::Job { snapshots, .. } => {
                let first = snapshots.partition_point(|snapshot| *snapshot < seq);
                snapshots.get(first).copied().unwrap_or(SeqNo::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use lsmx_base::range_tombstone::{RangeTombstone, build_index, fragment_for_snapshots};

    #[test]
    fn filter_without_tombstones_is_none() {
        let none = Arc::from([(Arc::new(TombstoneIndex::default()), SeqNo::MAX)]);
        assert!(RangeTombstoneFilter::for_reader(none).is_none());
        assert!(RangeTombstoneFilter::for_job(Arc::default(), Arc::from([])).is_none());
    }

    proptest! {
        #[test]
        fn filter_random_tombstones_matches_model(
            deletes in prop::collection::vec((0u8..12, 0u8..12, 1u64..40, 0usize..3), 0..20),
            snapshots in prop::collection::btree_set(0u64..40, 0..4),
            reader in prop::option::of(0u64..40),
            lookups in prop::collection::vec((0u8..12, 0u64..40, 0u64..10), 30),
        ) {
            let key = |key: u8| Bytes::copy_from_slice(&[key]);
            let end = |end: u8| (end != 5).then(|| key(end));
            let spans: Vec<Vec<RangeTombstone>> = (0..3).map(|source| {
                let of_source = deletes.iter().filter(|delete| delete.3 == source);
                of_source.map(|&(from, to, seq, _)| RangeTombstone {
                    start: key(from), end: end(to), seqs: vec![SeqNo(seq)],
                }).collect()
            }).collect();
            let snapshots: Vec<SeqNo> = snapshots.into_iter().map(SeqNo).collect();
            let mut deleted = match reader {
                Some(reader) => {
                    let indexes = spans.iter().map(|spans| (Arc::new(build_index(spans)), SeqNo(reader)));
                    RangeTombstoneFilter::for_reader(indexes.collect())
                }
                None => {
                    let visible = fragment_for_snapshots(&spans.concat(), &snapshots);
                    RangeTombstoneFilter::for_job(Arc::new(FragmentedTombstones::new(visible)), snapshots.clone().into())
                }
            };
            for (user_key, seq, seq_span) in lookups {
                let limit = match reader {
                    Some(reader) => reader,
                    None => snapshots.iter().map(|s| s.0).find(|&s| s >= seq).unwrap_or(u64::MAX),
                };
                let expected = deletes.iter().any(|&(from, to, number, _)| {
                    from <= user_key && (user_key < to || to == 5) && number <= limit && number >= seq + seq_span
                });
                let hidden = deleted.as_mut().is_some_and(|deleted| {
                    deleted.is_window_deleted(&[user_key], SeqNo(seq), SeqNo(seq + seq_span))
                });
                prop_assert_eq!(hidden, expected);
                let expected = deletes.iter().any(|&(from, to, number, _)| {
                    from <= user_key && (user_key < to || to == 5) && number <= limit && number > seq
                });
                let hidden = deleted.as_mut().is_some_and(|deleted| deleted.is_deleted(&[user_key], SeqNo(seq)));
                prop_assert_eq!(hidden, expected);
                if let Some(deleted) = &deleted {
                    let at = [user_key];
                    prop_assert!(*deleted.start() <= at[..] && deleted.end().is_none_or(|end| *end > at[..]));
                }
            }
        }
    }
}
