//! Delivery: the operands and delete markers of one flush.
//!
//! 1. Collect the records and range delete markers in memory.
//! 2. Add each record to the tail of its bucket, which is in memory. If a tail exceeds the size limit, write its
//!    records to the bucket's file as pages. Do not sync the file.
//! 3. Append all records to the log and sync it. Recovery rebuilds the tails from the log.

use std::cmp::Reverse;
use std::ops::Range;

use bytes::Bytes;
use lsmx::Result;
use lsmx::operand_store::{OperandDelivery, OperandView, PreparedVersion};
use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::bucket::extent::Extent;
use crate::bucket::lookup::FoundRecord;
use crate::bucket::sorted_part::split_into_pages;
use crate::bucket::tail::Tail;
use crate::cache::{CacheEntry, OperandCache, fold_operands};
use crate::format::frame::FrameKind;
use crate::format::log::{RangeMarker, put_delivery_end, put_first_buckets, put_range_markers};
use crate::format::record::{Record, RecordRef, put_record};
use crate::log::FrameBuffer;
use crate::state::{CacheUpdate, StoreState};
use crate::view::{StoreView, increase_counter, visible_operands};

/// Approximate bytes of records in one frame of the log.
const FRAME_BYTES: usize = 256 << 10;

/// The first delivery to an empty store fills each new bucket to `1 / FIRST_FILL_DIVISOR` of its capacity.
///
/// Source: Li et al., key-delta separation (KDSep), ICDE 2024, initialisation.
const FIRST_FILL_DIVISOR: u64 = 20;

/// Minimum size of the first append to a new file, in pages, if the bucket already has files.
///
/// Each file of a bucket adds a read to lookups, so a small file is not worth its cost.
const PAGES_PER_FILE_MIN: usize = 4;

/// A delivery in progress.
#[derive(Debug)]
pub(crate) struct DeltaDelivery<'a> {
    state: &'a StoreState,
    base: Arc<StoreView>,
    through: SeqNo,
    /// Encoded records.
    bytes: Vec<u8>,
    /// Offset of each record.
    offsets: Vec<usize>,
    range_markers: Vec<RangeMarker>,
    delete_marker_count: usize,
    /// Smallest sequence number of the delete markers and range delete markers.
    oldest_marker: Option<SeqNo>,
}

impl<'a> DeltaDelivery<'a> {
    pub(crate) fn new(state: &'a StoreState, base: Arc<StoreView>, through: SeqNo) -> Self {
        let (bytes, offsets, range_markers) = (Vec::new(), Vec::new(), Vec::new());
        let (delete_marker_count, oldest_marker) = (0, None);
        DeltaDelivery {
            state,
            base,
            through,
            bytes,
            offsets,
            range_markers,
            delete_marker_count,
            oldest_marker,
        }
    }

    fn count_marker(&mut self, seq: SeqNo) {
        self.delete_marker_count += 1;
        self.oldest_marker = self.oldest_marker.into_iter().chain([seq]).min();
    }

    fn put(&mut self, key: &[u8], seq: SeqNo, operand: Option<&[u8]>) {
        self.offsets.push(self.bytes.len());
        put_record(&mut self.bytes, key, (seq, seq), operand);
    }

    fn prepare_version(self) -> Result<PreparedVersion> {
        let DeltaDelivery { state, through, bytes, offsets, range_markers, oldest_marker, .. } =
            self;
        let base = state.load_base_view()?;
        let records = EncodedRecords::new(bytes, offsets);
        let mut view = (*base).clone();
        let first_buckets = match view.buckets.is_empty() {
            true => create_first_buckets(state, &records, &base)?,
            false => Vec::new(),
        };
        let first_entries = first_buckets.iter().map(|it| (it.id, it.smallest_key.clone()));
        let first_entries: Vec<(u64, Bytes)> = first_entries.collect();
        if !first_buckets.is_empty() {
            view.buckets.extend(first_buckets.into_iter().map(Arc::new));
            view.key_search = None;
        }
        let written_tails = add_records(state, &mut view, &records)?;
        view.through = view.through.max(through);
        if !range_markers.is_empty() {
            let markers = base.range_markers.iter().chain(&range_markers);
            view.range_markers = view.select_needed_markers(markers).into();
        }
        let token = state.append_to_log(&base, false, oldest_marker, |frames| {
            put_frames(frames, &first_entries, &records, &range_markers, view.through)
        })?;
        let cache_update = DeliveryCacheUpdate { records, base, written_tails };
        let view = state.install(token, view, Box::new(cache_update));
        Ok(PreparedVersion { token, view })
    }
}

impl OperandDelivery for DeltaDelivery<'_> {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.base.may_contain(key)
    }

    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.put(key, seq, Some(operand));
        Ok(())
    }

    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        self.count_marker(seq);
        self.put(key, seq, None);
        Ok(())
    }

    fn add_range_delete_marker(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<()> {
        self.count_marker(seq);
        let (start, end) = (Bytes::copy_from_slice(start), end.map(Bytes::copy_from_slice));
        self.range_markers.push(RangeMarker { start, end, seq });
        Ok(())
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let (state, delete_markers) = (self.state, self.delete_marker_count);
        let operands = self.offsets.len() + self.range_markers.len() - delete_markers;
        let bytes = self.bytes.len();
        let prepared = self.prepare_version().inspect_err(|_| state.mark_base_stale())?;
        let counters = &state.resources.counters;
        increase_counter(&counters.operands, operands);
        increase_counter(&counters.delete_markers, delete_markers);
        increase_counter(&counters.delivered_bytes, bytes);
        Ok(prepared)
    }
}

/// Encoded records of a delivery in order.
#[derive(Debug)]
struct EncodedRecords {
    bytes: Bytes,
    offsets: Vec<usize>,
}

impl EncodedRecords {
    /// Sorts the records if necessary. [`OperandDelivery`] requires callers to add them in order.
    fn new(bytes: Vec<u8>, offsets: Vec<usize>) -> EncodedRecords {
        let mut records = EncodedRecords { bytes: bytes.into(), offsets };
        let mut offsets = std::mem::take(&mut records.offsets);
        let order = |a: &usize, b: &usize| {
            let (a, b) = (records.decode_at(*a), records.decode_at(*b));
            (a.key, Reverse(a.last)).cmp(&(b.key, Reverse(b.last)))
        };
        if !offsets.is_sorted_by(|a, b| order(a, b).is_le()) {
            offsets.sort_by(order);
        }
        records.offsets = offsets;
        records
    }

    fn decode_at(&self, offset: usize) -> RecordRef<'_> {
        RecordRef::decode_valid(&self.bytes, offset)
    }

    fn len(&self) -> usize {
        self.offsets.len()
    }

    fn get(&self, index: usize) -> RecordRef<'_> {
        self.decode_at(self.offsets[index])
    }

    /// Returns the indexes of the records of a key.
    fn record_indexes(&self, key: &[u8]) -> Range<usize> {
        let start = self.offsets.partition_point(|at| self.decode_at(*at).key < key);
        let count = self.offsets[start..].iter().position(|at| self.decode_at(*at).key != key);
        start..count.map_or(self.offsets.len(), |count| start + count)
    }
}

/// Creates the buckets for the first delivery, with empty tails. The key ranges are chosen so that the records of this
/// delivery will fill at least 5 % of each bucket.
fn create_first_buckets(
    state: &StoreState,
    records: &EncodedRecords,
    base: &StoreView,
) -> Result<Vec<Bucket>> {
    let resources = &state.resources;
    let count_max = len_u64(state.buckets_max / 2).max(1);
    let fill_bytes = resources.options.bucket_bytes / FIRST_FILL_DIVISOR;
    let fill_bytes = fill_bytes.max(len_u64(records.bytes.len()) / count_max + 1);
    let mut smallest_keys = Vec::new();
    let mut start = 0;
    for index in 0..records.len() {
        let is_new_key = index == 0 || records.get(index - 1).key != records.get(index).key;
        let at = len_u64(records.offsets[index]);
        if is_new_key && (smallest_keys.is_empty() || at >= start + fill_bytes) {
            let key = if smallest_keys.is_empty() { &[][..] } else { records.get(index).key };
            smallest_keys.push(Bytes::copy_from_slice(key));
            start = at;
        }
    }
    let first_id = state.allocate_bucket_ids(smallest_keys.len());
    let tail = Arc::new(Tail::new(&[], &resources.memory)?);
    let bucket = |(id, key)| Bucket::new(id, key, base.through, tail.clone());
    Ok((first_id..).zip(smallest_keys).map(bucket).collect())
}

/// Adds each record to the tail of its bucket. Returns the old tails of the buckets whose tails were written to files.
fn add_records(
    state: &StoreState,
    view: &mut StoreView,
    records: &EncodedRecords,
) -> Result<Vec<Arc<Tail>>> {
    // A collection may have left too many files open.
    state.resources.files.close_excess_writers(None)?;
    let frozen_bucket_ids = state.frozen_bucket_ids();
    let tail_bytes_max = state.tail_bytes_max(view.buckets.len());
    let mut written_tails = Vec::new();
    let mut index = 0;
    while index < records.len() {
        // Never `None`: the first bucket begins with the empty key.
        let Some(bucket_index) = view.bucket_index(records.get(index).key) else { break };
        let end = view.bucket_end_key(bucket_index);
        let start = index;
        while index < records.len() && end.is_none_or(|end| records.get(index).key < end) {
            index += 1;
        }
        let bucket = &view.buckets[bucket_index];
        let mut tail_records: Vec<Record> = bucket.tail.records().collect();
        let added = start..index;
        tail_records.extend(added.map(|index| records.get(index).to_record(&records.bytes)));
        tail_records.sort_by(Record::cmp_by_key_and_seq);
        let is_frozen = frozen_bucket_ids.contains(&bucket.id);
        let tail_bytes_max = if is_frozen { usize::MAX } else { tail_bytes_max };
        let next = replace_tail(state, bucket, &tail_records, tail_bytes_max)?;
        if next.file_bytes() > bucket.file_bytes() && !bucket.tail.is_empty() {
            written_tails.push(bucket.tail.clone());
        }
        view.buckets[bucket_index] = Arc::new(next);
    }
    Ok(written_tails)
}

/// Returns a copy of the bucket with `records` as its tail.
///
/// If `records` reach `tail_bytes_max`, writes them to the bucket's file. A last page that is not full stays in the
/// tail.
fn replace_tail(
    state: &StoreState,
    bucket: &Bucket,
    records: &[Record],
    tail_bytes_max: usize,
) -> Result<Bucket> {
    let resources = &state.resources;
    let page_bytes = resources.options.page_bytes();
    let size = |records: &[Record]| records.iter().map(Record::size).sum::<usize>();
    let bytes = size(records);
    let mut next = bucket.clone();
    let mut tail_records = records;
    if bytes >= tail_bytes_max
        && let Some((extent_count, extent)) = extent_for_append(state, bucket, bytes)?
    {
        let mut pages: Vec<&[Record]> = split_into_pages(records, page_bytes).collect();
        let is_partial = |page: &&[Record]| size(page) < page_bytes;
        tail_records = match pages.len() {
            2.. if pages.last().is_some_and(is_partial) => pages.pop().unwrap_or_default(),
            _ => &[],
        };
        next.extents.truncate(extent_count);
        next.extents.push(Arc::new(extent.append(&pages, &resources.memory)?));
    }
    next.tail = Arc::new(Tail::new(tail_records, &resources.memory)?);
    Ok(next)
}

/// Returns the extent to which a delivery appends pages, and the number of extents before it in the bucket.
///
/// Returns `None` if the bucket needs another file, but `bytes` is below the minimum size of a new file.
fn extent_for_append(
    state: &StoreState,
    bucket: &Bucket,
    bytes: usize,
) -> Result<Option<(usize, Arc<Extent>)>> {
    if let Some((last, others)) = bucket.extents.split_last() {
        if last.file.can_append_at(last.end) {
            return Ok(Some((others.len(), last.clone())));
        }
    } else if let Some(sorted) = &bucket.sorted
        && sorted.file.can_append_at(sorted.end)
    {
        return Ok(Some((0, Arc::new(Extent::new_at_end(sorted.file.clone())))));
    }
    let resources = &state.resources;
    let has_files = bucket.sorted.is_some() || !bucket.extents.is_empty();
    if has_files && bytes < resources.options.page_bytes() * PAGES_PER_FILE_MIN {
        return Ok(None);
    }
    let file = resources.files.create_bucket_file()?;
    resources.files.close_excess_writers(Some(&file))?;
    Ok(Some((bucket.extents.len(), Arc::new(Extent::new_at_end(file)))))
}

fn put_frames(
    frames: &mut FrameBuffer,
    first_buckets: &[(u64, Bytes)],
    records: &EncodedRecords,
    range_markers: &[RangeMarker],
    through: SeqNo,
) -> Result<()> {
    if !first_buckets.is_empty() {
        frames.put(FrameKind::FirstBuckets, |out| put_first_buckets(out, first_buckets))?;
    }
    let mut index = 0;
    while index < records.len() {
        frames.put(FrameKind::Records, |out| {
            let start = out.len();
            while index < records.len() && out.len() - start < FRAME_BYTES {
                let record = records.get(index);
                put_record(out, record.key, (record.first, record.last), record.operand);
                index += 1;
            }
        })?;
    }
    if !range_markers.is_empty() {
        frames.put(FrameKind::RangeMarkers, |out| put_range_markers(out, range_markers))?;
    }
    let count = len_u64(records.len());
    frames.put(FrameKind::DeliveryEnd, |out| put_delivery_end(out, through, count))
}

/// Updates existing cache entries with the records of a delivery.
#[derive(Debug)]
struct DeliveryCacheUpdate {
    records: EncodedRecords,
    /// View before the delivery.
    base: Arc<StoreView>,
    /// Old tails of the buckets whose tails this delivery wrote to files.
    ///
    /// The delivery updates the cache entries of all keys in these tails, including keys without a new record. Without
    /// the update, a lookup would read the new page, because the page's summary in memory does not show that the cache
    /// entry already includes the records.
    written_tails: Vec<Arc<Tail>>,
}

impl CacheUpdate for DeliveryCacheUpdate {
    fn update_cache(self: Box<Self>, cache: &OperandCache, view: &StoreView) {
        let mut index = 0;
        while index < self.records.len() {
            let key = self.records.get(index).key;
            let indexes = self.records.record_indexes(key);
            index = indexes.end;
            self.update_cached_key(cache, key, indexes, view);
        }
        for tail in &self.written_tails {
            let mut previous_key = None;
            for record in tail.records() {
                if previous_key.as_ref() != Some(&record.key) {
                    let indexes = self.records.record_indexes(&record.key);
                    self.update_cached_key(cache, &record.key, indexes, view);
                }
                previous_key = Some(record.key);
            }
        }
    }
}

impl DeliveryCacheUpdate {
    fn update_cached_key(
        &self,
        cache: &OperandCache,
        key: &[u8],
        new: Range<usize>,
        view: &StoreView,
    ) {
        if let Some(entry) = cache.get(key)
            && let Some(extended) = self.extend_entry(&entry, key, new, view)
        {
            cache.insert(key, extended);
        }
    }

    /// Returns a copy of the cache entry that includes the records of the delivery.
    ///
    /// Returns `None` if the entry may lack an earlier record, belongs to another bucket, or is already up to date.
    fn extend_entry(
        &self,
        entry: &CacheEntry,
        key: &[u8],
        new: Range<usize>,
        view: &StoreView,
    ) -> Option<CacheEntry> {
        let before = &self.base.buckets[self.base.bucket_index(key)?];
        let now = &view.buckets[view.bucket_index(key)?];
        let complete_through = entry.complete_through;
        if entry.bucket_id != now.id || now.id != before.id || complete_through >= view.through {
            return None;
        }
        if complete_through < self.base.through
            && !before.has_no_record_above(key, complete_through)
        {
            return None;
        }
        let found = new.map(|index| {
            let RecordRef { first, last, operand, .. } = self.records.get(index);
            FoundRecord { first, last, operand: operand.map(Bytes::copy_from_slice) }
        });
        let found: Vec<FoundRecord> = found.collect();
        let newest_marker = view.newest_marker(key, view.through);
        let newest = entry.newest.max(newest_marker);
        let newest = found.iter().map(|it| it.last).fold(newest, SeqNo::max);
        let mut operands = visible_operands(found, &entry.operands, newest_marker);
        fold_operands(&mut operands, key, &*view.resources.files.context.merger);
        let (bucket_id, complete_through) = (now.id, view.through);
        Some(CacheEntry { bucket_id, complete_through, newest, operands: operands.into() })
    }
}
