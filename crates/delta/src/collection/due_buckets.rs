//! Collection of the due buckets. A bucket is due if it is full, has many extents, must apply old range delete markers,
//! or contains operands that the engine requests to remove.
//!
//! 1. Rewrite at most 16 due buckets, see [`BucketRewriter`]. If more buckets are due, start with the first bucket that
//!    the previous collection left out. After the last bucket, continue with the first one.
//! 2. If the maximum number of buckets permits fewer than two more, merge the two neighbouring buckets with the fewest
//!    bytes.
//!
//! If the store's log may contain operands that must be removed, the collection starts a new log and deletes the old
//! one. The new log begins with a list of all buckets and tails.
//!
//! Deliveries may run at the same time. During the collection, the rewritten buckets are frozen: deliveries keep new
//! records in the tails and do not write them to files. The end of the collection moves these records to the tails of
//! the new buckets.
//!
//! An operand that moves to the tree becomes the newest entry of its key there. During the collection, a delivery may
//! add a marker that covers such an operand. The put or delete of the marker is already in the tree, and a moved
//! operand would wrongly be newer. The operand therefore stays in the store.

use std::collections::BTreeSet;

use bytes::Bytes;
use lsmx::Result;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{OperandCollection, OperandReadTier, PreparedVersion};
use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use super::rewrite::{BucketGroup, BucketRewriter, RewriteKind, RewrittenEntry};
use crate::bucket::Bucket;
use crate::bucket::reader::BucketReader;
use crate::bucket::tail::Tail;
use crate::cursor::OperandCursor;
use crate::format::frame::FrameKind;
use crate::format::log::{CollectionEnd, put_bucket, put_collection_end};
use crate::format::record::Record;
use crate::plan::pick::{DueBuckets, is_collection_due, smallest_mergeable_pair};
use crate::state::StoreState;
use crate::view::{StoreView, increase_counter};

/// Maximum number of due buckets per collection.
const DUE_BUCKETS_MAX: usize = 16;

/// Guard that ends the freeze of buckets when it is dropped. While a collection rewrites a bucket, the bucket is
/// frozen: deliveries keep its tail in memory and write no pages to its files.
#[derive(Debug)]
struct FrozenBucketsGuard<'a>(&'a StoreState);

impl Drop for FrozenBucketsGuard<'_> {
    fn drop(&mut self) {
        self.0.freeze_buckets(BTreeSet::new());
    }
}

/// A collection of the due buckets.
#[derive(Debug)]
pub(crate) struct BucketCollection<'a> {
    state: &'a StoreState,
    base: Arc<StoreView>,
    abandon_count: u64,
    groups: Vec<BucketGroup>,
    /// Operands to move to the tree, in record order.
    moving: Vec<Record>,
    /// Last sequence number of the view that [`OperandCollection::moved_operands`] read. `None` before that call.
    moved_at: Option<SeqNo>,
    cache_entries: Vec<RewrittenEntry>,
    _guard: FrozenBucketsGuard<'a>,
}

impl<'a> BucketCollection<'a> {
    /// Starts a collection and rewrites the due buckets. Returns `None` if no collection is due or the base view is
    /// stale.
    pub(crate) fn start_if_due(state: &'a StoreState, snapshots: &[SeqNo]) -> Result<Option<Self>> {
        let Some((base, abandon_count)) = state.base_view_if_valid()? else { return Ok(None) };
        state.set_request_snapshots(snapshots);
        let rules = state.rules();
        if !(is_collection_due(&base, &rules) || state.is_log_due(&rules)) {
            return Ok(None);
        }
        let due_buckets = DueBuckets::new(&base, &rules);
        let due = take_due_buckets(&base, &due_buckets, &mut state.next_due_key.lock());
        let pair = smallest_mergeable_pair(&base, &due, &rules.excluded_files, state.buckets_max);
        let pair_indexes = pair.into_iter().flat_map(|index| [index, index + 1]);
        let indexes = due.iter().copied().chain(pair_indexes);
        state.freeze_buckets(indexes.map(|index| base.buckets[index].id).collect());
        let guard = FrozenBucketsGuard(state);
        let mut rewriter = BucketRewriter::new(state, &base, snapshots);
        for index in due {
            rewriter.rewrite_bucket(index, &due_buckets)?;
        }
        if let Some(index) = pair
            && rewriter.bucket_count + 2 > state.buckets_max
        {
            rewriter.merge_bucket_pair(index)?;
        }
        let BucketRewriter { groups, mut moving, cache_entries, .. } = rewriter;
        moving.sort_by(Record::cmp_by_key_and_seq);
        let moved_at = None;
        Ok(Some(BucketCollection {
            state,
            base,
            abandon_count,
            groups,
            moving,
            moved_at,
            cache_entries,
            _guard: guard,
        }))
    }

    /// Divides the operands to move into those that stay, because a newer delete marker covers them, and those that
    /// move.
    fn partition_moving_operands(
        &self,
        newest_view: &StoreView,
    ) -> Result<(Vec<Record>, Vec<Record>)> {
        let through = self.base.through;
        let mut marked_keys = BTreeSet::new();
        let old_ids: BTreeSet<u64> =
            self.groups.iter().flat_map(|group| &group.old_ids).copied().collect();
        for bucket in newest_view.buckets.iter().filter(|bucket| old_ids.contains(&bucket.id)) {
            let added = self.records_since_start(newest_view, bucket)?;
            let markers = added.into_iter().filter(|record| record.operand.is_none());
            marked_keys.extend(markers.map(|marker| marker.key));
        }
        Ok(self.moving.iter().cloned().partition(|record| {
            newest_view.newest_marker(&record.key, SeqNo::MAX) > through
                || marked_keys.contains(&record.key)
        }))
    }

    /// Returns the records that deliveries added to a bucket of `newest_view` since the start of the collection.
    fn records_since_start(&self, newest_view: &StoreView, bucket: &Bucket) -> Result<Vec<Record>> {
        let before = self.base.buckets.iter().find(|before| before.id == bucket.id);
        let has_new_pages = before.is_none_or(|before| !before.has_same_stored_pages(bucket));
        let mut records: Vec<Record> = match has_new_pages {
            // A delivery that started before the freeze may have written some of these records to a file.
            true => {
                let counter = &self.state.resources.counters.bucket_read_bytes;
                let mut reader = BucketReader::for_job(counter);
                let index = newest_view.bucket_index(&bucket.smallest_key).unwrap_or(usize::MAX);
                let tier = OperandReadTier::Storage;
                newest_view.read_bucket(index, tier, |bucket| bucket.read_records(&mut reader))?
            }
            false => bucket.tail.records().collect(),
        };
        records.retain(|record| record.last > self.base.through);
        Ok(records)
    }

    fn prepare_version(mut self) -> Result<PreparedVersion> {
        let newest_view = self.load_newest_view()?;
        let staying = match self.moved_at {
            // The caller has not read the operands to move, so they stay in the store.
            None => std::mem::take(&mut self.moving),
            Some(through) if through == newest_view.through => {
                self.partition_moving_operands(&newest_view)?.0
            }
            Some(_) => {
                let reason = "a delivery ended after the moving operands were read";
                return Err(self.state.changed_input_error(reason));
            }
        };
        let mut view = (*newest_view).clone();
        let mut new_entries = Vec::new();
        for group in &self.groups {
            let index = view.bucket_index(&group.smallest_key).unwrap_or(usize::MAX);
            let indexes = index..index.saturating_add(group.old_ids.len());
            let old = view.buckets.get(indexes.clone()).unwrap_or_default();
            if !old.iter().map(|bucket| &bucket.id).eq(&group.old_ids) {
                let reason = "a bucket under collection has changed";
                return Err(self.state.changed_input_error(reason));
            }
            let end = view.bucket_end_key(indexes.end - 1).map(Bytes::copy_from_slice);
            let mut tail_records = Vec::new();
            for bucket in old {
                tail_records.append(&mut self.records_since_start(&newest_view, bucket)?);
            }
            let is_in_range = |record: &&Record| {
                group.smallest_key <= record.key && end.as_ref().is_none_or(|it| record.key < *it)
            };
            tail_records.extend(staying.iter().filter(is_in_range).cloned());
            tail_records.sort_by(Record::cmp_by_key_and_seq);
            let new = self.create_buckets(group, &tail_records)?;
            new_entries.extend(new.iter().map(|bucket| bucket.to_entry()));
            view.buckets.splice(indexes, new);
            view.key_search = None;
        }
        view.range_markers = view.select_needed_markers(view.range_markers.iter()).into();
        let removed_ids = self.groups.iter().flat_map(|group| group.old_ids.iter().copied());
        let end = CollectionEnd {
            new_count: len_u64(new_entries.len()),
            removed_ids: removed_ids.collect(),
            range_markers: view.range_markers.to_vec(),
        };
        let token = match self.state.must_replace_log(&view) {
            true => self.state.replace_log(&view)?,
            false => {
                let void_from = Some(newest_view.through);
                self.state.append_to_log(&newest_view, true, void_from, |frames| {
                    for entry in &new_entries {
                        frames.put(FrameKind::Bucket, |out| put_bucket(out, entry))?;
                    }
                    frames.put(FrameKind::CollectionEnd, |out| put_collection_end(out, &end))
                })?
            }
        };
        self.count_groups();
        let cache_entries = std::mem::take(&mut self.cache_entries);
        let view = self.state.install(token, view, Box::new(cache_entries));
        Ok(PreparedVersion { token, view })
    }

    /// Returns the newest view, including deliveries since the start of the collection. Fails if the base view was
    /// abandoned.
    fn load_newest_view(&self) -> Result<Arc<StoreView>> {
        let newest_view = self.state.load_base_view()?;
        if self.state.abandon_count() != self.abandon_count {
            return Err(self.state.changed_input_error("the base of the collection was abandoned"));
        }
        Ok(newest_view)
    }

    /// Creates the new buckets of a group. Distributes `records`, which are sorted, to their tails.
    fn create_buckets(&self, group: &BucketGroup, records: &[Record]) -> Result<Vec<Arc<Bucket>>> {
        let mut left = records;
        let mut buckets = Vec::with_capacity(group.new.len());
        for (index, new) in group.new.iter().enumerate() {
            let end = group.new.get(index + 1).map(|next| &next.smallest_key);
            let count = end.map_or(left.len(), |end| left.partition_point(|it| it.key < *end));
            let (tail_records, rest) = left.split_at(count);
            left = rest;
            let tail = Arc::new(Tail::new(tail_records, &self.state.resources.memory)?);
            let bucket = Bucket::new(new.id, new.smallest_key.clone(), self.base.through, tail);
            buckets.push(Arc::new(Bucket {
                collected_bytes: new.sorted.as_ref().map_or(0, |sorted| sorted.end),
                split_sibling: new.split_sibling,
                sorted: new.sorted.clone(),
                ..bucket
            }));
        }
        Ok(buckets)
    }

    fn count_groups(&self) {
        let counters = &self.state.resources.counters;
        for group in &self.groups {
            let counter = match group.kind {
                RewriteKind::Rewrite => &counters.rewrites,
                RewriteKind::Split => &counters.splits,
                RewriteKind::ToTree => &counters.to_tree,
                RewriteKind::Merge => &counters.merges,
            };
            increase_counter(counter, 1);
        }
    }
}

/// Returns the indexes of at most [`DUE_BUCKETS_MAX`] due buckets. If more buckets are due, starts with the first due
/// bucket at or after `next_key`, and sets `next_key` to the smallest key of the first due bucket that is left out.
///
/// Each due bucket is therefore collected at some time, even if other buckets are due again after each collection.
fn take_due_buckets(
    view: &StoreView,
    due_buckets: &DueBuckets<'_>,
    next_key: &mut Bytes,
) -> Vec<usize> {
    let smallest_key = |index: usize| &view.buckets[index].smallest_key;
    let mut due: Vec<usize> = due_buckets.indexes().collect();
    if due.len() > DUE_BUCKETS_MAX {
        let start = due.partition_point(|index| *smallest_key(*index) < *next_key);
        due.rotate_left(start);
        *next_key = smallest_key(due[DUE_BUCKETS_MAX]).clone();
        due.truncate(DUE_BUCKETS_MAX);
    }
    due
}

impl OperandCollection for BucketCollection<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        if self.moving.is_empty() {
            return Ok(None);
        }
        let newest_view = self.load_newest_view()?;
        self.moved_at = Some(newest_view.through);
        let (_, moving) = self.partition_moving_operands(&newest_view)?;
        Ok((!moving.is_empty())
            .then(|| Box::new(OperandCursor::from_records(moving)) as Box<dyn Cursor>))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let state = self.state;
        self.prepare_version().inspect_err(|_| state.mark_base_stale())
    }
}
