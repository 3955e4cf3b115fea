//! View of a store at one point in time: the buckets in key order and the range delete markers. A view is immutable.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use lsmx::operand_store::{Operand, OperandMetrics, OperandReadTier, StoreToken};
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::key_search::KeySearch;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicU64, OnceLock, Ordering};

use crate::bucket::Bucket;
use crate::bucket::lookup::{FoundRecord, KeyQuery, find_records, prefetch_records};
use crate::bucket::reader::BucketReader;
use crate::cache::{CacheEntry, OperandCache, fold_operands};
use crate::files::{BucketFile, FileTable};
use crate::format::log::RangeMarker;
use crate::memory::MemoryUsage;
use crate::options::DeltaOptions;
use crate::range_markers::{MinSeqTree, RangeMarkers};

/// Resources that all views of a store share.
#[derive(Debug)]
pub struct StoreResources {
    /// Recovers a view from the log that a token names. A function pointer, because the module `recovery` imports this
    /// module.
    pub recover_view: fn(&Arc<StoreResources>, StoreToken) -> Result<StoreView>,
    pub options: DeltaOptions,
    pub files: Arc<FileTable>,
    pub cache: Option<OperandCache>,
    pub memory: MemoryUsage,
    pub counters: StoreCounters,
}

/// Counters since the store was opened. Only `log_bytes` is not a counter, but the size of the current log.
#[derive(Debug, Default)]
pub struct StoreCounters {
    pub bucket_read_bytes: AtomicU64,
    pub collection_written_bytes: AtomicU64,
    pub log_bytes: AtomicU64,
    pub log_written_bytes: AtomicU64,
    pub operands: AtomicU64,
    pub delete_markers: AtomicU64,
    pub delivered_bytes: AtomicU64,
    pub rewrites: AtomicU64,
    pub splits: AtomicU64,
    pub merges: AtomicU64,
    pub to_tree: AtomicU64,
    pub cache_hits: AtomicU64,
    pub cache_misses: AtomicU64,
}

pub fn increase_counter(counter: &AtomicU64, count: usize) {
    counter.fetch_add(len_u64(count), Ordering::Relaxed);
}

/// Buckets and range delete markers of a store at one point in time.
#[derive(Clone, Debug)]
pub struct StoreView {
    pub resources: Arc<StoreResources>,
    /// In ascending order of smallest keys. The smallest key of the first bucket is empty.
    pub buckets: Vec<Arc<Bucket>>,
    /// Search index over the smallest keys of the buckets. A change of the key ranges must reset it to `None`.
    pub key_search: Option<Arc<KeySearch>>,
    pub range_markers: RangeMarkers,
    /// Last sequence number of the newest delivery. The view includes all deliveries up to this number.
    pub through: SeqNo,
    /// Log position of the view, from which it can be recovered. `None` if this view was itself recovered. A recovered
    /// view uses only synced pages.
    pub token: Option<StoreToken>,
    /// The same view, recovered from the log after a failed sync lost pages.
    pub reloaded: Arc<OnceLock<Arc<StoreView>>>,
}

impl StoreView {
    pub fn empty(resources: Arc<StoreResources>) -> StoreView {
        StoreView {
            resources,
            buckets: Vec::new(),
            key_search: None,
            range_markers: RangeMarkers::default(),
            through: SeqNo::ZERO,
            token: None,
            reloaded: Arc::default(),
        }
    }

    pub fn with_log_token(self, token: StoreToken) -> StoreView {
        StoreView { token: Some(token), reloaded: Arc::default(), ..self }
    }

    /// Builds the search index over the smallest keys if it is missing.
    pub fn build_key_search(mut self) -> StoreView {
        if self.key_search.is_none() {
            let smallest_keys = self.buckets.iter().map(|bucket| &*bucket.smallest_key);
            self.key_search = Some(Arc::new(KeySearch::new(smallest_keys)));
        }
        self
    }

    /// Calls `read` with the bucket at `index`. If the bucket may have lost pages, uses the bucket of the reloaded view
    /// instead. If `reads` allows only memory, and this view is not reloaded yet, fails with [`Error::WouldBlock`].
    pub fn read_bucket<T>(
        &self,
        index: usize,
        reads: OperandReadTier,
        mut read: impl FnMut(&Arc<Bucket>) -> Result<T>,
    ) -> Result<T> {
        let bucket = &self.buckets[index];
        let may_have_lost_pages =
            || self.resources.files.has_failed_sync() && bucket.may_have_lost_pages();
        if !may_have_lost_pages() {
            match read(bucket) {
                // A sync may have failed during the read, so the check is repeated.
                Err(_) if may_have_lost_pages() => {}
                result => return result,
            }
        }
        if reads == OperandReadTier::Memory && self.reloaded.get().is_none() {
            return Err(Error::WouldBlock);
        }
        match self.reload()? {
            Some(reloaded) => read(&reloaded.buckets[index]),
            None => read(bucket),
        }
    }

    /// Returns whether a failed sync may have lost pages of any bucket.
    pub fn may_have_lost_pages(&self) -> bool {
        self.resources.files.has_failed_sync()
            && self.buckets.iter().any(|bucket| bucket.may_have_lost_pages())
    }

    /// Recovers the same view from the log and from synced pages. The buckets have the same indexes as in this view.
    ///
    /// Returns `None` if this view was itself recovered.
    pub fn reload(&self) -> Result<Option<Arc<StoreView>>> {
        let Some(token) = self.token else { return Ok(None) };
        if let Some(reloaded) = self.reloaded.get() {
            return Ok(Some(reloaded.clone()));
        }
        let reloaded = (self.resources.recover_view)(&self.resources, token)?;
        let ids =
            |view: &StoreView| view.buckets.iter().map(|bucket| bucket.id).collect::<Vec<_>>();
        debug_assert_eq!(ids(self), ids(&reloaded), "the log contains another view");
        // Another thread may have stored an equal view first. Both threads use that view.
        Ok(Some(self.reloaded.get_or_init(|| Arc::new(reloaded.build_key_search())).clone()))
    }

    /// Returns the size of all tails, in bytes.
    pub fn tail_bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| len_u64(bucket.tail.bytes().len())).sum()
    }

    /// Returns the files of all buckets. A file may occur more than once.
    pub fn files(&self) -> impl Iterator<Item = &Arc<BucketFile>> {
        self.buckets.iter().flat_map(|bucket| bucket.files())
    }

    /// Returns the index of the bucket whose range contains the key.
    pub fn bucket_index(&self, key: &[u8]) -> Option<usize> {
        let after = match &self.key_search {
            Some(search) => {
                debug_assert_eq!(search.len(), self.buckets.len());
                search.partition_point(key, |index| *self.buckets[index].smallest_key <= *key)
            }
            None => self.buckets.partition_point(|bucket| *bucket.smallest_key <= *key),
        };
        after.checked_sub(1)
    }

    /// Returns the end of the key range of the bucket at `index`. Returns `None` for the last bucket, whose range is
    /// unbounded.
    pub fn bucket_end_key(&self, index: usize) -> Option<&[u8]> {
        self.buckets.get(index + 1).map(|next| &*next.smallest_key)
    }

    /// Returns the indexes of the buckets that a range delete marker overlaps.
    fn overlapping_buckets(&self, marker: &RangeMarker) -> Range<usize> {
        let end = marker.end.as_ref().map_or(self.buckets.len(), |end| {
            self.buckets.partition_point(|bucket| bucket.smallest_key < *end)
        });
        self.bucket_index(&marker.start).unwrap_or(0).min(end)..end
    }

    /// Returns the range delete markers that may still cover operands in a bucket.
    pub fn select_needed_markers<'a>(
        &self,
        markers: impl IntoIterator<Item = &'a RangeMarker>,
    ) -> Vec<RangeMarker> {
        let collected_through = |bucket: &Arc<Bucket>| match bucket.is_empty() {
            true => SeqNo::MAX,
            false => bucket.collected_through,
        };
        let tree = MinSeqTree::new(self.buckets.iter().map(collected_through));
        let is_needed =
            |marker: &&RangeMarker| tree.min_in(self.overlapping_buckets(marker)) < marker.seq;
        markers.into_iter().filter(is_needed).cloned().collect()
    }

    /// Returns the smallest sequence number of the delete markers and range delete markers, or 0 if the markers of a
    /// bucket are not known.
    pub fn oldest_marker(&self) -> Option<SeqNo> {
        let ranges = self.range_markers.iter().map(|marker| marker.seq);
        self.buckets.iter().filter_map(|bucket| bucket.oldest_marker()).chain(ranges).min()
    }

    /// Returns the smallest sequence number of the markers that a snapshot of the view in a log contains.
    pub fn oldest_marker_in_log(&self) -> Option<SeqNo> {
        let ranges = self.range_markers.iter().map(|marker| marker.seq);
        self.buckets.iter().filter_map(|bucket| bucket.tail.oldest_marker).chain(ranges).min()
    }

    /// Returns, for each bucket, the largest sequence number of the markers that overlap the bucket.
    pub fn newest_marker_per_bucket<'a>(
        &self,
        markers: impl Iterator<Item = &'a RangeMarker>,
    ) -> Vec<Option<SeqNo>> {
        let mut newest_first: Vec<&RangeMarker> = markers.collect();
        newest_first.sort_unstable_by_key(|marker| Reverse(marker.seq));
        let mut newest = vec![None; self.buckets.len()];
        let mut unset: BTreeSet<usize> = match newest_first.is_empty() {
            true => BTreeSet::new(),
            false => (0..self.buckets.len()).collect(),
        };
        for marker in newest_first {
            let indexes: Vec<usize> =
                unset.range(self.overlapping_buckets(marker)).copied().collect();
            for index in indexes {
                newest[index] = Some(marker.seq);
                unset.remove(&index);
            }
        }
        newest
    }

    /// Returns the sequence number of the newest range delete marker that covers the key and is visible at `at`, or 0.
    pub fn newest_marker(&self, key: &[u8], at: SeqNo) -> SeqNo {
        self.range_markers.newest_covering(key, at).unwrap_or_default()
    }

    /// Looks up a key in the cache for a reader at `at`. Also returns the query for the records that the cache entry
    /// lacks.
    fn look_up_cache<'a>(&self, bucket: &Bucket, key: &'a [u8], at: SeqNo) -> CacheLookup<'a> {
        let newest_marker = self.newest_marker(key, at);
        // Keys with records only in the tail are not cached, because the tail is in memory.
        let cache =
            self.resources.cache.as_ref().filter(|_| bucket.files_may_contain(key_hash(key)));
        let uses_cache = cache.is_some();
        let entry = cache.and_then(|cache| cache.get(key)).filter(|entry| {
            // An entry may contain records that are newer than `at` or newer than this view. Such an entry cannot be
            // used.
            entry.bucket_id == bucket.id && entry.newest <= at && entry.newest <= self.through
        });
        let after = entry.as_ref().map(|entry| entry.complete_through);
        let is_complete = after.is_some_and(|after| after >= self.through || after >= at);
        let query = KeyQuery { key, after, at, void_below: newest_marker };
        CacheLookup { uses_cache, entry, query: (!is_complete).then_some(query), newest_marker }
    }

    /// Prefetches the pages that [`StoreView::find_operands`] needs.
    pub fn prefetch_key(&self, bucket: &Bucket, key: &[u8], at: SeqNo) {
        if let Some(query) = self.look_up_cache(bucket, key, at).query {
            prefetch_records(bucket, query, &self.resources.memory);
        }
    }

    /// Returns the operands of a key that a reader at `at` sees, newest first.
    pub fn find_operands(
        &self,
        bucket: &Bucket,
        key: &[u8],
        at: SeqNo,
        reader: &mut BucketReader<'_>,
    ) -> Result<Arc<[Operand]>> {
        let StoreResources { cache, memory, counters, files, .. } = &*self.resources;
        let CacheLookup { uses_cache, entry, query, newest_marker } =
            self.look_up_cache(bucket, key, at);
        let newer = match query {
            Some(query) => find_records(bucket, query, reader, memory)?,
            None => Vec::new(),
        };
        if uses_cache {
            let counter =
                if entry.is_some() { &counters.cache_hits } else { &counters.cache_misses };
            increase_counter(counter, 1);
        }
        let older = entry.as_ref().map(|entry| &entry.operands);
        if newer.is_empty()
            && let Some(older) = older
            && older.last().is_none_or(|oldest| oldest.last >= newest_marker)
        {
            return Ok(older.clone());
        }
        let newest = entry.as_ref().map_or(SeqNo::ZERO, |entry| entry.newest).max(newest_marker);
        let newest = newer.iter().map(|found| found.last).fold(newest, SeqNo::max);
        let older = older.map_or(&[][..], |older| older);
        let mut operands = visible_operands(newer, older, newest_marker);
        match cache {
            // A new cache entry is useful only if this lookup read from files.
            Some(cache) if at >= self.through && reader.read_count > 0 => {
                fold_operands(&mut operands, key, &*files.context.merger);
                // Copies the operands, so that the entry does not keep the tail of the bucket in memory.
                for operand in &mut operands {
                    operand.bytes = Slice::from(&*operand.bytes);
                }
                let operands: Arc<[Operand]> = operands.into();
                let entry = CacheEntry {
                    bucket_id: bucket.id,
                    complete_through: self.through,
                    newest,
                    operands: operands.clone(),
                };
                cache.insert(key, entry);
                Ok(operands)
            }
            _ => Ok(operands.into()),
        }
    }

    pub fn metrics(&self) -> OperandMetrics {
        let StoreResources { counters, files, memory, .. } = &*self.resources;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bucket_bytes = self.buckets.iter().map(|bucket| bucket.file_bytes());
        OperandMetrics {
            buckets: len_u64(self.buckets.len()),
            bucket_bytes: bucket_bytes.fold(0, u64::saturating_add),
            log_bytes: get(&counters.log_bytes),
            buffered_bytes: self.tail_bytes(),
            memory_bytes: memory.bytes(),
            bucket_written_bytes: get(&files.written_bytes),
            bucket_read_bytes: get(&counters.bucket_read_bytes),
            collection_written_bytes: get(&counters.collection_written_bytes),
            log_written_bytes: get(&counters.log_written_bytes),
            operands: get(&counters.operands),
            delete_markers: get(&counters.delete_markers),
            delivered_bytes: get(&counters.delivered_bytes),
            rewrites: get(&counters.rewrites),
            splits: get(&counters.splits),
            merges: get(&counters.merges),
            to_tree: get(&counters.to_tree),
            cache_hits: get(&counters.cache_hits),
            cache_misses: get(&counters.cache_misses),
        }
    }
}

struct CacheLookup<'a> {
    uses_cache: bool,
    entry: Option<CacheEntry>,
    /// Query for the records that the entry lacks. `None` if the entry is complete.
    query: Option<KeyQuery<'a>>,
    newest_marker: SeqNo,
}

/// Returns the operands of `found` and `older` that no delete marker covers, newest first.
///
/// All input records must be visible to the reader. The records of `older` are ordered from newest to oldest, and are
/// older than all records of `found`.
pub fn visible_operands(
    found: Vec<FoundRecord>,
    older: &[Operand],
    newest_range_marker: SeqNo,
) -> Vec<Operand> {
    let markers = found.iter().filter(|it| it.operand.is_none()).map(|it| it.last);
    let newest_marker = markers.fold(newest_range_marker, SeqNo::max);
    let mut operands: Vec<Operand> = Vec::with_capacity(found.len() + older.len());
    for FoundRecord { first, last, operand } in found {
        if let Some(bytes) = operand
            && last >= newest_marker
        {
            operands.push(Operand { first, last, bytes: Slice::new(bytes) });
        }
    }
    operands.sort_by_key(|operand| Reverse(operand.last));
    operands.extend(older.iter().filter(|operand| operand.last >= newest_marker).cloned());
    operands
}
