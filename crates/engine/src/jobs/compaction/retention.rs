//! Which versions a flush or a compaction keeps.
//!
//! Snapshots cut the line of sequence numbers into stripes. Of the versions of a key in one stripe
//! only the newest can ever be seen, and if that is a merge operand, those down to the first that is
//! none. A tombstone in the oldest stripe is dropped too, when no older run outside the job can hold
//! its key. What a range delete of the same stripe hides is dropped; which range deletes themselves
//! are kept stands in `spans.rs`.

use std::collections::HashSet;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Job, KeyRange, SortedRun, TreeShape};

use crate::iter::range_tombstone_filter::Deleted;
use crate::operand_store::OperandView;

/// Decides entry by entry, in internal-key order.
#[derive(Clone, Debug)]
pub(crate) struct Retention {
    /// Registered snapshots, ascending.
    pub(crate) snapshots: Arc<[SeqNo]>,
    /// Runs that may hold older versions of the keys at hand.
    pub(crate) older: Vec<Arc<SortedRun>>,
    /// Files of those runs that do not count: the job reads them itself.
    pub(crate) inputs: HashSet<FileId>,
    /// The operand store beside the tree, for a flush: all it has is older than the memtable.
    beside: Option<Arc<dyn OperandView>>,
    /// What range deletes of the memtable or the inputs hide.
    pub(crate) deleted: Option<Deleted>,
    user_key: Vec<u8>,
    /// Whether there was an entry before.
    begun: bool,
    /// Stripe of the last put or delete of the user key: what is older in it is hidden.
    hidden: Option<usize>,
}

impl Retention {
    /// For a flush: every run of the tree is older than the memtable.
    pub(crate) fn for_flush(snapshots: Vec<SeqNo>, shape: &TreeShape) -> Retention {
        Retention::new(
            snapshots,
            shape.runs().map(|(_, run)| Arc::clone(run)).collect(),
            HashSet::new(),
        )
    }

    /// For a job: every run from its newest input on may hold something older, its inputs apart.
    pub(crate) fn for_job(snapshots: Vec<SeqNo>, shape: &TreeShape, job: &Job) -> Retention {
        let inputs: HashSet<FileId> = job.input_files().collect();
        let newest = |(level, run): &(_, &Arc<SortedRun>)| {
            job.inputs.iter().any(|input| input.level == *level && input.run == run.id)
        };
        let from_newest = shape.runs().skip_while(|at| !newest(at));
        Retention::new(snapshots, from_newest.map(|(_, run)| Arc::clone(run)).collect(), inputs)
    }

    pub(crate) fn new(
        mut snapshots: Vec<SeqNo>,
        older: Vec<Arc<SortedRun>>,
        inputs: HashSet<FileId>,
    ) -> Retention {
        if failpoint::is_on(Failpoint::SnapshotVersionDropped) {
            snapshots.clear();
        }
        let (snapshots, user_key) = (snapshots.into(), Vec::new());
        let (deleted, beside) = (None, None);
        let (begun, hidden) = (false, None);
        Retention { snapshots, older, inputs, beside, deleted, user_key, begun, hidden }
    }

    /// The same with an operand store that may hold something older.
    pub(crate) fn with_store(self, view: Option<&Arc<dyn OperandView>>) -> Retention {
        Retention { beside: view.cloned(), ..self }
    }

    /// Whether this entry, the next in order, is kept; and whether it is the first of its user key.
    pub(crate) fn keep(&mut self, key: InternalKey<'_>) -> Verdict {
        let first_of_key = !self.begun || self.user_key != key.user_key;
        if first_of_key {
            self.begun = true;
            self.user_key.clear();
            self.user_key.extend_from_slice(key.user_key);
            self.hidden = None;
        }
        let stripe = self.snapshots.partition_point(|snapshot| *snapshot < key.seq);
        let hidden = self.hidden == Some(stripe);
        let covered =
            self.deleted.as_mut().is_some_and(|deleted| deleted.hides(key.user_key, key.seq));
        if covered || key.kind != EntryKind::Merge {
            self.hidden = Some(stripe);
        }
        let needed = key.kind != EntryKind::Delete || self.needs_tombstone(stripe, key.user_key);
        let kept = !hidden && !covered && needed;
        Verdict { kept, hidden, covered, stripe, first_of_key }
    }

    /// Whether a tombstone in this stripe has something to hide.
    pub(crate) fn needs_tombstone(&self, stripe: usize, user_key: &[u8]) -> bool {
        stripe > 0 || self.older_may_hold(user_key)
    }

    /// Whether no run outside the job holds anything older in this range.
    pub(crate) fn is_last(&self, range: &KeyRange) -> bool {
        let outside = |run: &Arc<SortedRun>| {
            let files = run.files.get(run.overlapping_indices(range)).unwrap_or_default();
            files.iter().any(|file| !self.inputs.contains(&file.id))
        };
        !self.older.iter().any(outside)
    }

    /// Whether runs outside the job, or the operand store, may hold older versions of the key.
    pub(crate) fn older_may_hold(&self, user_key: &[u8]) -> bool {
        if failpoint::is_on(Failpoint::TombstoneDroppedEarly) {
            return false;
        }
        self.older
            .iter()
            .any(|run| run.file_for(user_key).is_some_and(|file| !self.inputs.contains(&file.id)))
            || self.beside.as_ref().is_some_and(|view| view.may_hold(user_key))
    }
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kept: bool,
    /// A newer put or delete in its stripe makes it void.
    pub(crate) hidden: bool,
    /// A range delete of its stripe makes it void, and all that is older in the stripe.
    pub(crate) covered: bool,
    /// Between which snapshots it lies, counted from the oldest.
    pub(crate) stripe: usize,
    pub(crate) first_of_key: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(snapshots: &[u64], entries: &[(&str, u64, EntryKind)]) -> Vec<(String, u64)> {
        let snapshots = snapshots.iter().map(|&seq| SeqNo(seq)).collect();
        let mut retention = Retention::new(snapshots, Vec::new(), HashSet::new());
        let key = |&(key, seq, kind): &(&'static str, u64, EntryKind)| InternalKey {
            user_key: key.as_bytes(),
            seq: SeqNo(seq),
            kind,
        };
        let entries: Vec<(&'static str, u64, EntryKind)> = entries
            .iter()
            .map(|(key, seq, kind)| (&*String::leak((*key).to_owned()), *seq, *kind))
            .collect();
        let keeps = entries.iter().filter(|entry| retention.keep(key(entry)).kept);
        keeps.map(|(key, seq, _)| ((*key).to_owned(), *seq)).collect()
    }

    #[test]
    fn newest_of_each_stripe_stays() {
        let entries = [
            ("a", 9, EntryKind::Put),
            ("a", 7, EntryKind::Put),
            ("a", 5, EntryKind::Put),
            ("a", 2, EntryKind::Put),
        ];
        assert_eq!(kept(&[], &entries), [("a".to_owned(), 9)]);
        assert_eq!(kept(&[5], &entries), [("a".to_owned(), 9), ("a".to_owned(), 5)]);
        assert_eq!(kept(&[8], &entries), [("a".to_owned(), 9), ("a".to_owned(), 7)]);
        assert_eq!(kept(&[2, 3, 7], &entries).len(), 3);
    }

    #[test]
    fn operands_stay_down_to_what_they_change() {
        let entries = [
            ("a", 9, EntryKind::Merge),
            ("a", 7, EntryKind::Merge),
            ("a", 5, EntryKind::Put),
            ("a", 2, EntryKind::Put),
        ];
        let seqs = |snapshots: &[u64]| -> Vec<u64> {
            kept(snapshots, &entries).into_iter().map(|(_, seq)| seq).collect()
        };
        assert_eq!(seqs(&[]), [9, 7, 5]);
        assert_eq!(seqs(&[8]), [9, 7, 5]);
        assert_eq!(seqs(&[2]), [9, 7, 5, 2]);
        let deleted =
            [("a", 9, EntryKind::Merge), ("a", 7, EntryKind::Delete), ("a", 5, EntryKind::Merge)];
        assert_eq!(kept(&[], &deleted), [("a".to_owned(), 9)]);
    }

    #[test]
    fn tombstone_that_a_snapshot_looks_past_stays() {
        let entries =
            [("a", 9, EntryKind::Delete), ("a", 4, EntryKind::Put), ("b", 3, EntryKind::Delete)];
        assert_eq!(kept(&[], &entries), []);
        assert_eq!(kept(&[9], &entries), []);
        assert_eq!(kept(&[5], &entries), [("a".to_owned(), 9), ("a".to_owned(), 4)]);
    }
}
