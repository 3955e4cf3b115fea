//! What a store holds at one moment: buckets in key order, and range anchors. It never changes.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use lsmx::operand_store::{Operand, Token};
use lsmx::{Result, SeqNo, Slice};
use lsmx_base::filter::key_hash;
use lsmx_base::key_search::KeySearch;
use lsmx_base::sync::{Arc, AtomicU64, OnceLock, Ordering};

use crate::bucket::Bucket;
use crate::bucket::lookup::{Found, Wanted};
use crate::bucket::reading::Reading;
use crate::cache::{Cache, Entry, fold};
use crate::charge::Memory;
use crate::files::FileTable;
use crate::format::log::RangeAnchor;
use crate::options::DeltaOptions;
use crate::ranges::{Minima, Ranges};

/// What all views of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Reads a view from the log that a token names. Who does so stands above.
    pub(crate) recover: fn(&Arc<Shared>, Token) -> Result<View>,
    pub(crate) options: DeltaOptions,
    pub(crate) table: Arc<FileTable>,
    pub(crate) cache: Option<Cache>,
    pub(crate) memory: Memory,
    pub(crate) counters: Counters,
}

/// What a store has done since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bucket_read_bytes: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) log_written_bytes: AtomicU64,
    pub(crate) operands: AtomicU64,
    pub(crate) anchors: AtomicU64,
    pub(crate) rewrites: AtomicU64,
    pub(crate) splits: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) to_tree: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) cache_misses: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(lsmx_base::coding::len_u64(by), Ordering::Relaxed);
}

/// Buckets and range anchors at one moment.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) shared: Arc<Shared>,
    /// By smallest key; the first one's is empty.
    pub(crate) buckets: Vec<Arc<Bucket>>,
    /// Of their smallest keys; none until [`View::fenced`].
    pub(crate) fences: Option<Arc<KeySearch>>,
    pub(crate) ranges: Ranges,
    /// All numbers up to here are in it.
    pub(crate) through: SeqNo,
    /// Where the log has all of it; none of one that was made from a log and stands on synced pages alone.
    pub(crate) token: Option<Token>,
    /// The same, read again from the log, where pages were lost.
    pub(crate) again: Arc<OnceLock<Arc<View>>>,
}

impl View {
    pub(crate) fn empty(shared: Arc<Shared>) -> View {
        let (buckets, ranges) = (Vec::new(), Ranges::default());
        let (fences, through, token, again) = (None, SeqNo::ZERO, None, Arc::default());
        View { shared, buckets, fences, ranges, through, token, again }
    }

    /// The same as of a token of the log, which has all of it.
    pub(crate) fn logged(self, token: Token) -> View {
        View { token: Some(token), again: Arc::default(), ..self }
    }

    /// Reads from the bucket at a place. Where the sync of a file has failed, pages that were appended to it
    /// may be gone; the log still has what is on them.
    pub(crate) fn read_bucket<T>(
        &self,
        place: usize,
        mut read: impl FnMut(&Bucket) -> Result<T>,
    ) -> Result<T> {
        let bucket = &self.buckets[place];
        let has_lost = || self.shared.table.has_lost() && bucket.has_lost();
        if !has_lost() {
            match read(bucket) {
                // A sync may have failed meanwhile.
                Err(_) if has_lost() => {}
                result => return result,
            }
        }
        match self.read_again()? {
            Some(again) => read(&again.buckets[place]),
            None => read(bucket),
        }
    }

    /// Whether it stands on pages that may be lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.shared.table.has_lost() && self.buckets.iter().any(|bucket| bucket.has_lost())
    }

    /// The same view, from synced pages and the log: its buckets are at the same places. None where it is
    /// such a one.
    pub(crate) fn read_again(&self) -> Result<Option<Arc<View>>> {
        let Some(token) = self.token else { return Ok(None) };
        if let Some(again) = self.again.get() {
            return Ok(Some(again.clone()));
        }
        let again = (self.shared.recover)(&self.shared, token)?;
        let ids = |view: &View| view.buckets.iter().map(|bucket| bucket.id).collect::<Vec<_>>();
        debug_assert_eq!(ids(self), ids(&again), "the log has another view");
        // Who is second has read the same.
        Ok(Some(self.again.get_or_init(|| Arc::new(again.fenced())).clone()))
    }

    /// The same, made quick to search. Whoever changes the ranges of buckets takes the fences away.
    pub(crate) fn fenced(mut self) -> View {
        if self.fences.is_none() {
            let smallest = self.buckets.iter().map(|bucket| &*bucket.smallest);
            self.fences = Some(Arc::new(KeySearch::new(smallest)));
        }
        self
    }

    /// Place of the bucket whose range has the key.
    pub(crate) fn place_of(&self, key: &[u8]) -> Option<usize> {
        let place = match &self.fences {
            Some(fences) => {
                debug_assert_eq!(fences.len(), self.buckets.len());
                fences.partition_point(key, |at| *self.buckets[at].smallest <= *key)
            }
            None => self.buckets.partition_point(|bucket| *bucket.smallest <= *key),
        };
        place.checked_sub(1)
    }

    /// Where the range of the bucket at a place ends.
    pub(crate) fn end_of(&self, place: usize) -> Option<&[u8]> {
        self.buckets.get(place + 1).map(|next| &*next.smallest)
    }

    /// Places of the buckets that a range anchor overlaps.
    pub(crate) fn overlapped(&self, range: &RangeAnchor) -> Range<usize> {
        let until = range.end.as_ref().map_or(self.buckets.len(), |end| {
            self.buckets.partition_point(|bucket| bucket.smallest < *end)
        });
        self.place_of(&range.start).unwrap_or(0).min(until)..until
    }

    /// The range anchors that still void something in a bucket.
    pub(crate) fn ranges_that_matter<'a>(
        &self,
        ranges: impl IntoIterator<Item = &'a RangeAnchor>,
    ) -> Vec<RangeAnchor> {
        let made_through = |bucket: &Arc<Bucket>| match bucket.is_empty() {
            true => SeqNo::MAX,
            false => bucket.made_through,
        };
        let minima = Minima::new(self.buckets.iter().map(made_through));
        let matters = |range: &&RangeAnchor| minima.smallest(self.overlapped(range)) < range.seq;
        ranges.into_iter().filter(matters).cloned().collect()
    }

    /// For each bucket the number of the newest of these range anchors that overlaps it.
    pub(crate) fn newest_overlapping(&self, ranges: &[RangeAnchor]) -> Vec<Option<SeqNo>> {
        let mut newest_first: Vec<&RangeAnchor> = ranges.iter().collect();
        newest_first.sort_unstable_by_key(|range| Reverse(range.seq));
        let mut newest = vec![None; self.buckets.len()];
        let mut left: BTreeSet<usize> = match ranges.is_empty() {
            true => BTreeSet::new(),
            false => (0..self.buckets.len()).collect(),
        };
        for range in newest_first {
            let places: Vec<usize> = left.range(self.overlapped(range)).copied().collect();
            for place in places {
                newest[place] = Some(range.seq);
                left.remove(&place);
            }
        }
        newest
    }

    /// Newest range anchor up to `at` that covers the key.
    pub(crate) fn range_anchor(&self, key: &[u8], at: SeqNo) -> SeqNo {
        self.ranges.newest(key, at).unwrap_or_default()
    }

    /// What the cache has of a key for a reader at `at`, and what the bucket is to be asked.
    fn asked<'a>(&self, bucket: &Bucket, key: &'a [u8], at: SeqNo) -> Asked<'a> {
        let range_anchor = self.range_anchor(key, at);
        // What the tail alone has is in memory, and not in the cache.
        let cache = self.shared.cache.as_ref().filter(|_| bucket.files_may_hold(key_hash(key)));
        let asks_cache = cache.is_some();
        let known = cache.and_then(|cache| cache.get(key)).filter(|entry| {
            // A view that ends before the entry has all that made it.
            entry.bucket == bucket.id && entry.latest <= at && entry.latest <= self.through
        });
        let after = known.as_ref().map(|entry| entry.covers);
        let has_all = after.is_some_and(|after| after >= self.through || after >= at);
        let lacks = (!has_all).then_some(Wanted { key, after, at, void_below: range_anchor });
        Asked { asks_cache, known, lacks, range_anchor }
    }

    /// Says what [`find`](Self::find) will read of a key.
    pub(crate) fn will_need(&self, bucket: &Bucket, key: &[u8], at: SeqNo) {
        if let Some(wanted) = self.asked(bucket, key, at).lacks {
            bucket.will_need(wanted, &self.shared.memory);
        }
    }

    /// What the cache or the bucket has of a key for a reader at `at`, newest first.
    pub(crate) fn find(
        &self,
        bucket: &Bucket,
        key: &[u8],
        at: SeqNo,
        reading: &mut Reading<'_>,
    ) -> Result<Arc<[Operand]>> {
        let Shared { cache, memory, counters, table, .. } = &*self.shared;
        let Asked { asks_cache, known, lacks, range_anchor } = self.asked(bucket, key, at);
        let newer = match lacks {
            Some(wanted) => bucket.records_of(wanted, reading, memory)?,
            None => Vec::new(),
        };
        if asks_cache {
            count(if known.is_some() { &counters.cache_hits } else { &counters.cache_misses }, 1);
        }
        let older = known.as_ref().map(|entry| &entry.operands);
        if newer.is_empty()
            && let Some(older) = older
            && older.last().is_none_or(|oldest| oldest.last >= range_anchor)
        {
            return Ok(older.clone());
        }
        let mut latest = known.as_ref().map_or(SeqNo::ZERO, |entry| entry.latest).max(range_anchor);
        latest = newer.iter().map(|found| found.last).fold(latest, SeqNo::max);
        let mut operands = visible(newer, older.map_or(&[][..], |older| older), range_anchor);
        match cache {
            // Only what memory does not have is worth it.
            Some(cache) if at >= self.through && reading.calls > 0 => {
                fold(&mut operands, key, &*table.place.folds);
                let operands: Arc<[Operand]> = operands.into();
                let entry = Entry {
                    bucket: bucket.id,
                    covers: self.through,
                    latest,
                    operands: operands.clone(),
                };
                cache.insert(key, entry);
                Ok(operands)
            }
            _ => Ok(operands.into()),
        }
    }
}

/// How a key is looked up.
struct Asked<'a> {
    asks_cache: bool,
    known: Option<Entry>,
    /// What only the bucket can tell.
    lacks: Option<Wanted<'a>>,
    range_anchor: SeqNo,
}

/// What no anchor voids, newest first: of what was found and of older operands. All is within what the
/// reader sees.
pub(crate) fn visible(found: Vec<Found>, older: &[Operand], range_anchor: SeqNo) -> Vec<Operand> {
    let anchors = found.iter().filter(|it| it.operand.is_none()).map(|it| it.last);
    let anchor = anchors.fold(range_anchor, SeqNo::max);
    let mut operands: Vec<Operand> = Vec::with_capacity(found.len() + older.len());
    for Found { first, last, operand } in found {
        if let Some(bytes) = operand
            && last >= anchor
        {
            operands.push(Operand { first, last, bytes: Slice::new(bytes) });
        }
    }
    operands.sort_by_key(|operand| Reverse(operand.last));
    operands.extend(older.iter().filter(|operand| operand.last >= anchor).cloned());
    operands
}
