//! Rewrites buckets: reads old buckets, writes new ones, and selects the operands that move to the tree.

use bytes::Bytes;
use lsmx::Result;
use lsmx::env::YieldKind;
use lsmx::operand_store::{Operand, OperandReadTier};
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, Ordering};

use crate::bucket::reader::BucketReader;
use crate::bucket::sorted_part::SortedPart;
use crate::cache::{CacheEntry, OperandCache, fold_operands};
use crate::format::record::Record;
use crate::plan::pick::DueBuckets;
use crate::plan::retention::{RetainedKey, RetentionRule, retained_markers, retained_records};
use crate::state::{CacheUpdate, StoreState};
use crate::view::StoreView;

/// New buckets that replace one old bucket or two neighbouring old buckets.
#[derive(Debug)]
pub(super) struct BucketGroup {
    pub(super) old_ids: Vec<u64>,
    /// Smallest key of the first old bucket.
    pub(super) smallest_key: Bytes,
    /// In key order. Together they cover the key range of the old buckets.
    pub(super) new: Vec<NewBucket>,
    pub(super) kind: RewriteKind,
}

/// Kind of a rewrite, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RewriteKind {
    Rewrite,
    Split,
    /// The rewrite moved operands to the tree.
    ToTree,
    Merge,
}

/// A new bucket as the collection wrote it. Records delivered during the collection are added later.
#[derive(Debug)]
pub(super) struct NewBucket {
    pub(super) id: u64,
    pub(super) smallest_key: Bytes,
    pub(super) split_sibling: Option<u64>,
    pub(super) sorted: Option<Arc<SortedPart>>,
}

/// New cache entry of a key whose bucket was rewritten.
#[derive(Debug)]
pub(super) struct RewrittenEntry {
    old_ids: Vec<u64>,
    key: Bytes,
    entry: CacheEntry,
}

impl CacheUpdate for Vec<RewrittenEntry> {
    fn update_cache(self: Box<Self>, cache: &OperandCache, _: &StoreView) {
        for RewrittenEntry { old_ids, key, entry } in *self {
            let Some(current) = cache.get(&key) else { continue };
            let is_newer = current.complete_through >= entry.complete_through;
            if old_ids.contains(&current.bucket_id) && is_newer {
                // The current entry is newer. The rewrite has not removed any operand of this entry, so only the bucket
                // id changes.
                cache.insert(&key, CacheEntry { bucket_id: entry.bucket_id, ..current });
            } else {
                cache.insert(&key, entry);
            }
        }
    }
}

/// Rewrites the buckets of a collection.
pub(super) struct BucketRewriter<'a> {
    state: &'a StoreState,
    base: &'a StoreView,
    retention: RetentionRule<'a>,
    /// Number of buckets of the store after the rewrites so far.
    pub(super) bucket_count: usize,
    pub(super) groups: Vec<BucketGroup>,
    /// Operands to move to the tree.
    pub(super) moving: Vec<Record>,
    pub(super) cache_entries: Vec<RewrittenEntry>,
}

impl<'a> BucketRewriter<'a> {
    pub(super) fn new(state: &'a StoreState, base: &'a StoreView, snapshots: &'a [SeqNo]) -> Self {
        let merger = &*state.resources.files.context.merger;
        BucketRewriter {
            state,
            base,
            retention: RetentionRule::new(snapshots, &base.range_markers, merger),
            bucket_count: base.buckets.len(),
            groups: Vec::new(),
            moving: Vec::new(),
            cache_entries: Vec::new(),
        }
    }

    fn read_records(&self, index: usize) -> Result<Vec<Record>> {
        let resources = &self.state.resources;
        resources.files.context.env.yield_point(YieldKind::CompactionBlock);
        let mut reader = BucketReader::for_job(&resources.counters.bucket_read_bytes);
        let tier = OperandReadTier::Storage;
        self.base.read_bucket(index, tier, |bucket| bucket.read_records(&mut reader))
    }

    /// Rewrites one bucket.
    ///
    /// After an open, the store does not know whether the files of a bucket contain delete markers, so such a bucket is
    /// due. If this function reads the bucket and finds no marker, and no other rule makes the bucket due, it keeps the
    /// bucket.
    ///
    /// 1. If the retained records do not exceed the split threshold, writes them to one new bucket.
    /// 2. Otherwise, if the maximum number of buckets permits at least two more, splits the bucket into two or more new
    ///    buckets.
    /// 3. Otherwise moves operands to the tree. Operands that are obsolete but visible to a snapshot stay in the store.
    ///    In the tree they would be newer than the put or delete that covers them.
    pub(super) fn rewrite_bucket(&mut self, index: usize, due: &DueBuckets<'_>) -> Result<()> {
        let records = self.read_records(index)?;
        let bucket = &self.base.buckets[index];
        if records.iter().all(|record| record.operand.is_some()) {
            bucket.set_without_markers();
            if !due.is_due(index) {
                return Ok(());
            }
        }
        let mut keys = self.retention.select_retained(&records);
        let (old_ids, smallest_key) = (vec![bucket.id], bucket.smallest_key.clone());
        let threshold = self.state.resources.options.split_threshold_bytes();
        let bytes = records_bytes(&collect_records(&keys));
        let key_count = keys.iter().filter(|key| !key.operands.is_empty()).count();
        if bytes <= threshold {
            return self.write_group(old_ids, vec![(smallest_key, keys)], RewriteKind::Rewrite);
        }
        let room = self.state.buckets_max.saturating_sub(self.bucket_count);
        if room >= 2 && key_count >= 2 {
            let part_count = usize::try_from(bytes.div_ceil(threshold)).unwrap_or(usize::MAX);
            let mut parts = split_keys(keys, bytes, part_count.clamp(2, room), smallest_key);
            if failpoint::is_on(Failpoint::OperandLostAtSplit)
                && let Some((_, last)) = parts.last_mut()
            {
                last.pop();
            }
            self.bucket_count += parts.len() - 1;
            return self.write_group(old_ids, parts, RewriteKind::Split);
        }
        let moving_before = self.moving.len();
        for key in &mut keys {
            let (moving, staying) = key.operands.drain(..).partition(|it| it.void_by.is_none());
            key.operands = staying;
            let moving: Vec<_> = moving;
            self.moving.extend(moving.into_iter().map(|it| it.record));
        }
        let moves = self.moving.len() > moving_before;
        let kind = if moves { RewriteKind::ToTree } else { RewriteKind::Rewrite };
        self.write_group(old_ids, vec![(smallest_key, keys)], kind)
    }

    /// Merges the bucket at `index` with the next bucket. Does nothing if the retained records exceed the split
    /// threshold.
    pub(super) fn merge_bucket_pair(&mut self, index: usize) -> Result<()> {
        let mut keys = self.retention.select_retained(&self.read_records(index)?);
        keys.append(&mut self.retention.select_retained(&self.read_records(index + 1)?));
        if records_bytes(&collect_records(&keys))
            > self.state.resources.options.split_threshold_bytes()
        {
            return Ok(());
        }
        let (a, b) = (&self.base.buckets[index], &self.base.buckets[index + 1]);
        self.bucket_count -= 1;
        let parts = vec![(a.smallest_key.clone(), keys)];
        self.write_group(vec![a.id, b.id], parts, RewriteKind::Merge)
    }

    /// Writes and syncs the new buckets of a group.
    fn write_group(
        &mut self,
        old_ids: Vec<u64>,
        parts: Vec<(Bytes, Vec<RetainedKey>)>,
        kind: RewriteKind,
    ) -> Result<()> {
        let first_id = self.state.allocate_bucket_ids(parts.len());
        let ids = first_id..first_id + len_u64(parts.len());
        let mut new = Vec::with_capacity(parts.len());
        for (id, (smallest_key, keys)) in ids.clone().zip(parts) {
            let sorted = self.write_sorted_part(&keys)?;
            let smallest_key = Bytes::copy_from_slice(&smallest_key);
            let has_sibling = kind == RewriteKind::Split && id + 1 < ids.end;
            let split_sibling = has_sibling.then_some(id + 1);
            new.push(NewBucket { id, smallest_key, split_sibling, sorted });
            if kind != RewriteKind::ToTree {
                self.collect_cache_entries(&old_ids, id, keys);
            }
        }
        let smallest_key = new[0].smallest_key.clone();
        self.groups.push(BucketGroup { old_ids, smallest_key, new, kind });
        Ok(())
    }

    fn write_sorted_part(&self, keys: &[RetainedKey]) -> Result<Option<Arc<SortedPart>>> {
        let records = collect_records(keys);
        if records.is_empty() {
            return Ok(None);
        }
        let resources = &self.state.resources;
        let file = resources.files.create_pinned()?;
        let page_bytes = resources.options.page_bytes();
        let sorted = SortedPart::write(file, &records, page_bytes, &resources.memory)?;
        sorted.set_markers(retained_markers(keys));
        resources.counters.collection_written_bytes.fetch_add(sorted.end, Ordering::Relaxed);
        sorted.file.sync()?;
        resources.files.unpin_writer(&sorted.file);
        Ok(Some(Arc::new(sorted)))
    }

    /// Creates new cache entries for those keys that are in the cache.
    fn collect_cache_entries(&mut self, old_ids: &[u64], bucket_id: u64, keys: Vec<RetainedKey>) {
        let resources = &self.state.resources;
        let Some(cache) = &resources.cache else { return };
        for RetainedKey { key, operands, newest } in keys {
            if !cache.contains(&key) {
                continue;
            }
            let visible = operands.into_iter().filter(|it| it.void_by.is_none());
            let operands = visible.map(|it| Operand {
                first: it.record.first,
                last: it.record.last,
                // Copies the bytes, so that the entry does not keep the bytes of the bucket in memory.
                bytes: Slice::from(it.record.operand.as_deref().unwrap_or_default()),
            });
            let mut operands: Vec<Operand> = operands.collect();
            fold_operands(&mut operands, &key, &*resources.files.context.merger);
            let (complete_through, operands) = (self.base.through, operands.into());
            let entry = CacheEntry { bucket_id, complete_through, newest, operands };
            let (old_ids, key) = (old_ids.to_vec(), Bytes::copy_from_slice(&key));
            self.cache_entries.push(RewrittenEntry { old_ids, key, entry });
        }
    }
}

fn collect_records(keys: &[RetainedKey]) -> Vec<Record> {
    keys.iter().flat_map(|key| retained_records(&key.operands)).collect()
}

fn records_bytes(records: &[Record]) -> u64 {
    records.iter().map(|record| len_u64(record.size())).sum()
}

/// Splits keys into at least two and at most `part_count` parts of about equal size. Returns each part with its
/// smallest key.
///
/// At least two of the keys must have operands. `bytes` is the size of all records.
fn split_keys(
    keys: Vec<RetainedKey>,
    bytes: u64,
    part_count: usize,
    smallest_key: Bytes,
) -> Vec<(Bytes, Vec<RetainedKey>)> {
    let part_bytes = bytes.div_ceil(len_u64(part_count)).max(1);
    let mut parts: Vec<(Bytes, Vec<RetainedKey>)> = vec![(smallest_key, Vec::new())];
    let (mut bytes_before, mut bytes_in_part) = (0, 0);
    let mut keys_left = keys.iter().filter(|key| !key.operands.is_empty()).count();
    for key in keys {
        let key_bytes = records_bytes(&retained_records(&key.operands));
        let is_last_chance = parts.len() == 1 && keys_left == 1;
        // A key belongs to the part in which the middle of its records lies.
        let is_past_end = bytes_before + key_bytes / 2 >= part_bytes * len_u64(parts.len());
        let may_split = key_bytes > 0 && bytes_in_part > 0 && parts.len() < part_count;
        if may_split && (is_past_end || is_last_chance) {
            parts.push((key.key.clone(), Vec::new()));
            bytes_in_part = 0;
        }
        bytes_before += key_bytes;
        bytes_in_part += key_bytes;
        keys_left -= usize::from(key_bytes > 0);
        if let Some((_, part)) = parts.last_mut() {
            part.push(key);
        }
    }
    parts
}
