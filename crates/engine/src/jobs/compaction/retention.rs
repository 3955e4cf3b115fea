//! Decides which entries and range tombstones a flush or a compaction keeps.
//!
//! Snapshots divide the sequence numbers into stripes. Among the versions of a key in one stripe, only the newest is
//! visible. If the newest version is a merge operand, the older versions down to the first put or delete are visible,
//! too.
//!
//! - A tombstone in the oldest stripe is dropped if neither an older run outside the job nor the operand store can
//!   contain its key.
//! - An entry is dropped if a range tombstone of the same stripe covers it.
//! - A range tombstone keeps only its newest sequence number in each stripe. In the oldest stripe, all readers see the
//!   range tombstone, so the job drops the entries that it covers. The range tombstone is then kept only if older runs
//!   outside the job overlap it.
//! - If the keyspace has a delete persistence bound, a tombstone below a newer entry of its key is kept as long as an
//!   older run can contain the key. Otherwise, no file would record the age of the delete, and the deleted value could
//!   stay in the older run.
//! - A kept range tombstone is narrowed to the keys that it can still delete. Tables therefore never contain a range
//!   tombstone that extends to the end of the keyspace.

use std::collections::HashSet;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::range_tombstone::{
    RangeTombstone, fragment_for_snapshots, join_adjacent, successor,
};
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Job, KeyRange, SortedRun, TableMeta, TreeShape};

use crate::format::range_tombstones::FragmentedTombstones;
use crate::iter::range_tombstone_filter::RangeTombstoneFilter;
use crate::operand_store::OperandView;

/// Retention rules of one job. Entries must be passed in internal-key order.
#[derive(Clone, Debug)]
pub(crate) struct Retention {
    /// Registered snapshots in ascending order.
    snapshots: Arc<[SeqNo]>,
    /// Runs that may contain older versions of the keys of the job.
    older_runs: Vec<Arc<SortedRun>>,
    /// Input files of the job. Searches in `older_runs` skip these files.
    inputs: HashSet<FileId>,
    /// View of the operand store. Only flushes use it, because all operands in it are older than the memtable.
    operand_view: Option<Arc<dyn OperandView>>,
    /// Range tombstones of the memtable or the inputs.
    pub(crate) deleted: Option<RangeTombstoneFilter>,
    user_key: Vec<u8>,
    /// True after the first entry was passed.
    has_entry: bool,
    /// Stripe of the last put or delete of `user_key`. This put or delete hides older entries of the same stripe.
    shadowed_stripe: Option<usize>,
    /// True if tombstones below newer entries of their keys are kept.
    keeps_covered_tombstones: bool,
    /// Stripe of the last tombstone of `user_key`. Older tombstones of that stripe are not needed.
    tombstone_stripe: Option<usize>,
}

impl Retention {
    /// Creates the retention rules of a flush. All runs of the tree are older than the memtable.
    pub(crate) fn for_flush(snapshots: Vec<SeqNo>, shape: &TreeShape) -> Retention {
        Retention::new(
            snapshots,
            shape.runs().map(|(_, run)| Arc::clone(run)).collect(),
            HashSet::new(),
        )
    }

    /// Creates the retention rules of a compaction. Its newest input run and all older runs can contain older versions
    /// of its keys, in files outside the job.
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
        older_runs: Vec<Arc<SortedRun>>,
        inputs: HashSet<FileId>,
    ) -> Retention {
        if failpoint::is_on(Failpoint::SnapshotVersionDropped) {
            snapshots.clear();
        }
        let (snapshots, user_key) = (snapshots.into(), Vec::new());
        let (deleted, operand_view) = (None, None);
        let (has_entry, shadowed_stripe) = (false, None);
        Retention {
            snapshots,
            older_runs,
            inputs,
            operand_view,
            deleted,
            user_key,
            has_entry,
            shadowed_stripe,
            keeps_covered_tombstones: false,
            tombstone_stripe: None,
        }
    }

    /// If `keeps` is true, tombstones below newer entries of their keys are kept as long as an older run can contain
    /// the keys.
    pub(crate) fn keep_covered_tombstones(self, keeps: bool) -> Retention {
        let keeps_covered_tombstones =
            keeps && !failpoint::is_on(Failpoint::CoveredTombstoneDropped);
        Retention { keeps_covered_tombstones, ..self }
    }

    /// Returns the input files of the job.
    pub(crate) fn inputs(&self) -> &HashSet<FileId> {
        &self.inputs
    }

    /// Adds the view of an operand store. All operands in the view must be older than the entries of the job.
    pub(crate) fn with_operand_view(self, view: Option<&Arc<dyn OperandView>>) -> Retention {
        Retention { operand_view: view.cloned(), ..self }
    }

    /// Adds the range tombstones of the memtable or of the inputs. The job drops the entries that they cover.
    ///
    /// `keys` contains the smallest and the largest key for which the job may keep an entry. Returns the range
    /// tombstones that the job must write.
    pub(crate) fn add_range_tombstones(
        &mut self,
        tombstones: &[RangeTombstone],
        keys: Option<(&[u8], &[u8])>,
    ) -> Vec<RangeTombstone> {
        let fragments = fragment_for_snapshots(tombstones, &self.snapshots);
        // Each fragment is checked before adjacent fragments are joined, because only some of them may cover remaining
        // data.
        let kept = fragments
            .iter()
            .filter_map(|tombstone| self.retain_range_tombstone(tombstone, keys))
            .collect();
        let tombstones = Arc::new(FragmentedTombstones::new(join_adjacent(fragments)));
        self.deleted = RangeTombstoneFilter::for_job(tombstones, Arc::clone(&self.snapshots));
        kept
    }

    /// Returns the stripe of a sequence number, counted from the oldest.
    fn stripe_of(&self, seq: SeqNo) -> usize {
        self.snapshots.partition_point(|snapshot| *snapshot < seq)
    }

    /// Returns the part of `tombstone` that the job must write, or `None` if the job need not write it. `tombstone`
    /// must have at most one sequence number per stripe. The result may have fewer sequence numbers and a smaller
    /// range.
    fn retain_range_tombstone(
        &self,
        tombstone: &RangeTombstone,
        keys: Option<(&[u8], &[u8])>,
    ) -> Option<RangeTombstone> {
        let older = self.key_range_of_older_files(tombstone);
        let mut seqs = tombstone.seqs.clone();
        if older.is_none() && seqs.last().is_some_and(|&oldest| self.stripe_of(oldest) == 0) {
            seqs.pop();
        }
        let newest = *seqs.first()?;
        // If the job keeps covered entries for a snapshot, the tombstone must be kept over their keys, so that other
        // readers do not see the entries.
        let own = keys.filter(|_| self.stripe_of(newest) > 0);
        let hull = match (older, own) {
            (Some(first), Some(second)) => (first.0.min(second.0), first.1.max(second.1)),
            (first, second) => first.or(second)?,
        };
        let start = if *hull.0 > *tombstone.start {
            Bytes::copy_from_slice(hull.0)
        } else {
            tombstone.start.clone()
        };
        let past = successor(hull.1);
        let end = tombstone.end.clone().map_or(past.clone(), |end| end.min(past));
        let kept = RangeTombstone { start, end: Some(end), seqs };
        (!kept.is_empty()).then_some(kept)
    }

    /// Returns the smallest and largest key of the files in older runs that overlap `tombstone` and are not job inputs.
    fn key_range_of_older_files(&self, tombstone: &RangeTombstone) -> Option<(&[u8], &[u8])> {
        if failpoint::is_on(Failpoint::SpanDroppedEarly) {
            return None;
        }
        let mut hull: Option<(&[u8], &[u8])> = None;
        for run in &self.older_runs {
            let outside = |file: &&Arc<TableMeta>| !self.inputs.contains(&file.id);
            let mut files = overlapping_files(run, tombstone).iter().filter(outside);
            if let Some(first) = files.next() {
                let last = files.next_back().unwrap_or(first);
                let (smallest, largest) = (&*first.range.smallest, &*last.range.largest);
                hull = Some(hull.map_or((smallest, largest), |(from, to)| {
                    (from.min(smallest), to.max(largest))
                }));
            }
        }
        hull
    }

    /// Decides whether the job keeps the next entry. Entries must be passed in the order of their internal keys.
    pub(crate) fn decide_entry(&mut self, key: InternalKey<'_>) -> EntryDecision {
        let first_of_key = !self.has_entry || self.user_key != key.user_key;
        if first_of_key {
            self.has_entry = true;
            self.user_key.clear();
            self.user_key.extend_from_slice(key.user_key);
            self.shadowed_stripe = None;
            self.tombstone_stripe = None;
        }
        let stripe = self.stripe_of(key.seq);
        let shadowed = self.shadowed_stripe == Some(stripe);
        let range_deleted =
            self.deleted.as_mut().is_some_and(|deleted| deleted.is_deleted(key.user_key, key.seq));
        if range_deleted || key.kind != EntryKind::Merge {
            self.shadowed_stripe = Some(stripe);
        }
        let is_tombstone = key.kind == EntryKind::Delete;
        let needed = !is_tombstone || self.needs_tombstone(stripe, key.user_key);
        let is_covered_tombstone = is_tombstone
            && self.keeps_covered_tombstones
            && self.tombstone_stripe != Some(stripe)
            && needed;
        if is_tombstone {
            self.tombstone_stripe = Some(stripe);
        }
        let kept = (!shadowed || is_covered_tombstone) && !range_deleted && needed;
        let kept_below_fold = is_covered_tombstone && !range_deleted;
        EntryDecision { kept, shadowed, range_deleted, stripe, first_of_key, kept_below_fold }
    }

    /// Returns true if no registered snapshot sees the entries of this stripe.
    pub(crate) fn is_newest_stripe(&self, stripe: usize) -> bool {
        stripe == self.snapshots.len() || failpoint::is_on(Failpoint::FilterIgnoresSnapshots)
    }

    /// Returns true if a tombstone in this stripe may hide an older version of the key.
    pub(crate) fn needs_tombstone(&self, stripe: usize, user_key: &[u8]) -> bool {
        stripe > 0 || self.may_have_older_versions(user_key)
    }

    /// Returns true if no run outside the job contains older data in this range.
    pub(crate) fn is_last_run(&self, range: &KeyRange) -> bool {
        let outside = |run: &Arc<SortedRun>| {
            let files = run.files.get(run.files.overlapping_indices(range)).unwrap_or_default();
            files.iter().any(|file| !self.inputs.contains(&file.id))
        };
        !self.older_runs.iter().any(outside)
    }

    /// Returns true if runs outside the job or the operand store may contain older versions of the key.
    pub(crate) fn may_have_older_versions(&self, user_key: &[u8]) -> bool {
        if failpoint::is_on(Failpoint::TombstoneDroppedEarly) {
            return false;
        }
        self.older_runs.iter().any(|run| {
            run.find_file_for_key(user_key).is_some_and(|file| !self.inputs.contains(&file.id))
        }) || self.operand_view.as_ref().is_some_and(|view| view.may_contain(user_key))
    }
}

/// Returns the files of a run that may contain keys that the range tombstone covers.
fn overlapping_files<'a>(run: &'a SortedRun, tombstone: &RangeTombstone) -> &'a [Arc<TableMeta>] {
    let from = run.files.partition_point(|file| file.range.largest < tombstone.start);
    let before_end =
        |file: &Arc<TableMeta>| tombstone.end.as_ref().is_none_or(|end| file.range.smallest < *end);
    let count = run.files[from..].partition_point(before_end);
    &run.files[from..from + count]
}

/// Decision about one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryDecision {
    pub(crate) kept: bool,
    /// True if a newer put or delete of the key, in the same stripe, hides the entry.
    pub(crate) shadowed: bool,
    /// True if a range tombstone of the same stripe covers the entry. The range tombstone then also covers all older
    /// entries of the key in the stripe.
    pub(crate) range_deleted: bool,
    /// Stripe of the entry, counted from the oldest.
    pub(crate) stripe: usize,
    pub(crate) first_of_key: bool,
    /// True if the entry is a tombstone that must be written even if newer operands are folded onto it.
    pub(crate) kept_below_fold: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_entries(snapshots: &[u64], entries: &[(&str, u64, EntryKind)]) -> Vec<(String, u64)> {
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
        let keeps = entries.iter().filter(|entry| retention.decide_entry(key(entry)).kept);
        keeps.map(|(key, seq, _)| ((*key).to_owned(), *seq)).collect()
    }

    #[test]
    fn retention_puts_newest_of_each_stripe_is_kept() {
        let entries = [
            ("a", 9, EntryKind::Put),
            ("a", 7, EntryKind::Put),
            ("a", 5, EntryKind::Put),
            ("a", 2, EntryKind::Put),
        ];
        assert_eq!(kept_entries(&[], &entries), [("a".to_owned(), 9)]);
        assert_eq!(kept_entries(&[5], &entries), [("a".to_owned(), 9), ("a".to_owned(), 5)]);
        assert_eq!(kept_entries(&[8], &entries), [("a".to_owned(), 9), ("a".to_owned(), 7)]);
        assert_eq!(kept_entries(&[2, 3, 7], &entries).len(), 3);
    }

    #[test]
    fn retention_operands_are_kept_down_to_their_base() {
        let entries = [
            ("a", 9, EntryKind::Merge),
            ("a", 7, EntryKind::Merge),
            ("a", 5, EntryKind::Put),
            ("a", 2, EntryKind::Put),
        ];
        let seqs = |snapshots: &[u64]| -> Vec<u64> {
            kept_entries(snapshots, &entries).into_iter().map(|(_, seq)| seq).collect()
        };
        assert_eq!(seqs(&[]), [9, 7, 5]);
        assert_eq!(seqs(&[8]), [9, 7, 5]);
        assert_eq!(seqs(&[2]), [9, 7, 5, 2]);
        let deleted =
            [("a", 9, EntryKind::Merge), ("a", 7, EntryKind::Delete), ("a", 5, EntryKind::Merge)];
        assert_eq!(kept_entries(&[], &deleted), [("a".to_owned(), 9)]);
    }

    #[test]
    fn retention_tombstone_newer_than_a_snapshot_is_kept() {
        let entries =
            [("a", 9, EntryKind::Delete), ("a", 4, EntryKind::Put), ("b", 3, EntryKind::Delete)];
        assert_eq!(kept_entries(&[], &entries), []);
        assert_eq!(kept_entries(&[9], &entries), []);
        assert_eq!(kept_entries(&[5], &entries), [("a".to_owned(), 9), ("a".to_owned(), 4)]);
    }

    #[test]
    fn retention_covered_tombstone_is_kept_while_an_older_run_may_hold_the_key() {
        use EntryKind::{Delete, Put};
        let entries =
            [("a", 9, Put), ("a", 8, Delete), ("a", 7, Delete), ("a", 6, Put), ("a", 5, Delete)];
        let kept_seqs = |keeps, snapshots: &[u64], older: &[(&'static str, &'static str)]| {
            let snapshots = snapshots.iter().map(|&seq| SeqNo(seq)).collect();
            let retention = Retention::for_flush(snapshots, &tree(older));
            let mut retention = retention.keep_covered_tombstones(keeps);
            let mut kept = Vec::new();
            for (key, seq, kind) in entries {
                let user_key = key.as_bytes();
                let key = InternalKey { user_key, seq: SeqNo(seq), kind };
                if retention.decide_entry(key).kept {
                    kept.push(seq);
                }
            }
            kept
        };
        assert_eq!(kept_seqs(false, &[], &[("a", "c")]), [9]);
        assert_eq!(kept_seqs(true, &[], &[("a", "c")]), [9, 8]);
        // No older run holds the key.
        assert_eq!(kept_seqs(true, &[], &[("b", "c")]), [9]);
        // The snapshot sees the put at 6. The tombstone above it is kept for the value below the snapshot.
        assert_eq!(kept_seqs(true, &[6], &[("b", "c")]), [9, 8, 6]);
        assert_eq!(kept_seqs(true, &[6], &[("a", "c")]), [9, 8, 6, 5]);
    }

    fn tombstone(start: &str, end: Option<&str>, seqs: &[u64]) -> RangeTombstone {
        let bytes = |key: &str| Bytes::copy_from_slice(key.as_bytes());
        let seqs = seqs.iter().copied().map(SeqNo).collect();
        RangeTombstone { start: bytes(start), end: end.map(bytes), seqs }
    }

    /// Builds a tree with one run of files over these ranges.
    fn tree(ranges: &[(&'static str, &'static str)]) -> TreeShape {
        let file = |(id, &(smallest, largest)): (u64, &(&'static str, &'static str))| {
            let meta = TableMeta::new(FileId(id), KeyRange::new(smallest, largest));
            Arc::new(TableMeta { bytes: 10, entries: 1, seq_smallest: 1, seq_largest: 1, ..meta })
        };
        let files = (0..).zip(ranges).map(file).collect();
        TreeShape::default().with_flushed_run(files).unwrap().shape
    }

    fn kept(
        tombstones: &[RangeTombstone],
        snapshots: &[u64],
        older: &[(&'static str, &'static str)],
        keys: Option<(&str, &str)>,
    ) -> Vec<RangeTombstone> {
        let snapshots = snapshots.iter().copied().map(SeqNo).collect();
        let mut retention = Retention::for_flush(snapshots, &tree(older));
        let keys = keys.map(|(smallest, largest)| (smallest.as_bytes(), largest.as_bytes()));
        retention.add_range_tombstones(tombstones, keys)
    }

    #[test]
    fn retention_range_tombstone_is_narrowed_to_older_files() {
        let all = [tombstone("", None, &[9])];
        assert_eq!(
            kept(&all, &[], &[("c", "f"), ("k", "p")], Some(("a", "z"))),
            [tombstone("c", Some("p\0"), &[9])]
        );
        assert_eq!(kept(&all, &[], &[], Some(("a", "z"))), []);
        let apart = [tombstone("d", Some("k"), &[9]), tombstone("q", Some("z"), &[9])];
        assert_eq!(kept(&apart, &[], &[("a", "c"), ("k", "p")], None), []);
        // The exclusive end of a tombstone may be the largest key of a table: one key too many.
        assert_eq!(kept(&apart, &[], &[("j", "p")], None), [tombstone("j", Some("k"), &[9])]);
    }

    #[test]
    fn retention_range_tombstone_newer_than_a_snapshot_is_kept_for_job_keys() {
        let all = [tombstone("", None, &[9, 7, 4, 2])];
        let keys = Some(("b", "y"));
        assert_eq!(kept(&all, &[], &[("c", "d")], keys), [tombstone("c", Some("d\0"), &[9])]);
        // Stripes: up to 3, 4 to 8, 9 and above.
        let newest = [tombstone("b", Some("y\0"), &[9, 7])];
        assert_eq!(kept(&all, &[3, 8], &[], keys), newest);
        let with_oldest = [tombstone("b", Some("y\0"), &[9, 7, 2])];
        assert_eq!(kept(&all, &[3, 8], &[("c", "d")], keys), with_oldest);
        assert_eq!(kept(&all, &[3, 8], &[], None), []);
    }
}
