//! What range deletes hide, asked key by key while a cursor walks.
//!
//! Sequence numbers are one order over all memtables and files, so it does not matter where a range
//! delete lies: an entry is hidden if any range delete that covers its key is newer than it and not
//! past the number that counts for it. For a reader that is the reader's own number. For a job,
//! which must please every registered snapshot, it is the first snapshot that can see the entry: a
//! range delete past that one leaves the entry for it.

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::newest_visible;
use lsmx_base::sync::Arc;
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_base::work_counter::{self, WorkKind};

use crate::format::range_tombstones::FragmentedTombstones;

/// Range deletes, and up to which number they count.
#[derive(Clone, Debug)]
enum Source {
    /// For a reader: one number for all entries.
    Reader { indexes: Arc<[Arc<TombstoneIndex>]>, snapshot: SeqNo },
    /// For a job: the first of these snapshots, in ascending order, that sees the entry; all numbers count
    /// for an entry that is past the last one. The spans have the numbers that these snapshots tell apart.
    Job { spans: Arc<FragmentedTombstones>, snapshots: Arc<[SeqNo]> },
}

/// The range deletes of a view, and the window around the key that was looked up last: while a
/// cursor stays in it, a lookup is two comparisons.
#[derive(Clone, Debug)]
pub(crate) struct Deleted {
    source: Source,
    /// From here on; `None` until a key was looked up.
    start: Option<Bytes>,
    /// Before this key; `None` for the end of the keyspace.
    end: Option<Bytes>,
    /// Numbers that cover the window, newest first; for a reader the newest one that counts.
    seqs: Vec<SeqNo>,
}

impl Deleted {
    /// What these range deletes hide from a reader; `None` if there are none.
    pub(crate) fn for_reader(
        indexes: Arc<[Arc<TombstoneIndex>]>,
        snapshot: SeqNo,
    ) -> Option<Deleted> {
        let some = indexes.iter().any(|index| !index.is_empty());
        some.then(|| Deleted::new(Source::Reader { indexes, snapshot }))
    }

    /// What these range deletes hide from a job that keeps what registered snapshots see; `None` if there
    /// are none.
    pub(crate) fn for_job(
        spans: Arc<FragmentedTombstones>,
        snapshots: Arc<[SeqNo]>,
    ) -> Option<Deleted> {
        let some = !spans.as_slice().is_empty();
        some.then(|| Deleted::new(Source::Job { spans, snapshots }))
    }

    fn new(source: Source) -> Deleted {
        Deleted { source, start: None, end: None, seqs: Vec::new() }
    }

    /// The range deletes, if they are those of a job.
    pub(crate) fn job_spans(&self) -> Option<&FragmentedTombstones> {
        match &self.source {
            Source::Job { spans, .. } => Some(spans),
            Source::Reader { .. } => None,
        }
    }

    /// Whether an entry of `user_key` with the number `seq` is hidden.
    #[inline]
    pub(crate) fn hides(&mut self, user_key: &[u8], seq: SeqNo) -> bool {
        self.newest(user_key, seq).is_some_and(|newest| newest > seq)
    }

    /// Whether all entries in the window around `user_key` are hidden of a table whose numbers, those
    /// of its range deletes included, go from `smallest` to `largest`.
    #[inline]
    pub(crate) fn hides_all(&mut self, user_key: &[u8], smallest: SeqNo, largest: SeqNo) -> bool {
        // The number of a range delete is that of no entry, so one that is the largest will do.
        self.newest(user_key, smallest).is_some_and(|newest| newest >= largest)
    }

    /// The newest range delete that covers a key and counts for entries from the number `seq` on.
    #[inline]
    fn newest(&mut self, user_key: &[u8], seq: SeqNo) -> Option<SeqNo> {
        self.look_at(user_key);
        newest_visible(&self.seqs, self.source.limit(seq))
    }

    /// The newest range delete that covers a key, for a reader.
    pub(crate) fn newest_over(&mut self, user_key: &[u8]) -> Option<SeqNo> {
        self.newest(user_key, SeqNo::ZERO)
    }

    /// First key of the window around the key that was asked for last.
    pub(crate) fn start(&self) -> &[u8] {
        self.start.as_deref().unwrap_or_default()
    }

    /// First key past the window; `None` for the end of the keyspace.
    pub(crate) fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }

    #[inline]
    fn look_at(&mut self, user_key: &[u8]) {
        let inside = self.start.as_ref().is_some_and(|start| **start <= *user_key)
            && self.end.as_ref().is_none_or(|end| *user_key < **end);
        if !inside {
            self.open_window(user_key);
        }
    }

    fn open_window(&mut self, user_key: &[u8]) {
        self.seqs.clear();
        let (start, end) = match &self.source {
            Source::Reader { indexes, .. } => {
                let limit = self.source.limit(SeqNo::ZERO);
                let (mut start, mut end): (Option<&Bytes>, Option<&Bytes>) = (None, None);
                let mut newest = None;
                for index in &**indexes {
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
            Source::Job { spans, .. } => {
                let window = spans.interval_at(user_key);
                work_counter::add(WorkKind::SpanNumbers, window.seqs.len());
                self.seqs.extend_from_slice(window.seqs);
                (window.start, window.end)
            }
        };
        (self.start, self.end) = (Some(start.cloned().unwrap_or_default()), end.cloned());
    }
}

impl Source {
    /// The last number that counts for an entry with the number `seq`.
    fn limit(&self, seq: SeqNo) -> SeqNo {
        match self {
            Source::Reader { .. } if failpoint::is_on(Failpoint::SpanIgnoresSnapshot) => SeqNo::MAX,
            Source::Reader { snapshot, .. } => *snapshot,
            Source::Job { snapshots, .. } => {
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
    use lsmx_base::range_tombstone::{RangeTombstone, build_index, fragment_visible};

    #[test]
    fn no_spans_hide_nothing_and_cost_nothing() {
        let none = Arc::from([Arc::new(TombstoneIndex::default())]);
        assert!(Deleted::for_reader(none, SeqNo::MAX).is_none());
        assert!(Deleted::for_job(Arc::default(), Arc::from([])).is_none());
    }

    proptest! {
        #[test]
        fn hidden_is_what_a_newer_delete_within_reach_covers(
            deletes in prop::collection::vec((0u8..12, 0u8..12, 1u64..40, 0usize..3), 0..20),
            snapshots in prop::collection::btree_set(0u64..40, 0..4),
            reader in prop::option::of(0u64..40),
            asked in prop::collection::vec((0u8..12, 0u64..40, 0u64..10), 30),
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
                    let indexes = spans.iter().map(|spans| Arc::new(build_index(spans)));
                    Deleted::for_reader(indexes.collect(), SeqNo(reader))
                }
                None => {
                    let visible = fragment_visible(&spans.concat(), &snapshots);
                    Deleted::for_job(Arc::new(FragmentedTombstones::new(visible)), snapshots.clone().into())
                }
            };
            for (user_key, seq, more) in asked {
                let limit = match reader {
                    Some(reader) => reader,
                    None => snapshots.iter().map(|s| s.0).find(|&s| s >= seq).unwrap_or(u64::MAX),
                };
                let expected = deletes.iter().any(|&(from, to, number, _)| {
                    from <= user_key && (user_key < to || to == 5) && number <= limit && number >= seq + more
                });
                let hidden = deleted.as_mut().is_some_and(|deleted| {
                    deleted.hides_all(&[user_key], SeqNo(seq), SeqNo(seq + more))
                });
                prop_assert_eq!(hidden, expected);
                let newer = deletes.iter().any(|&(from, to, number, _)| {
                    from <= user_key && (user_key < to || to == 5) && number <= limit && number > seq
                });
                let hidden = deleted.as_mut().is_some_and(|deleted| deleted.hides(&[user_key], SeqNo(seq)));
                prop_assert_eq!(hidden, newer);
                if let Some(deleted) = &deleted {
                    let at = [user_key];
                    prop_assert!(*deleted.start() <= at[..] && deleted.end().is_none_or(|end| *end > at[..]));
                }
            }
        }
    }
}
