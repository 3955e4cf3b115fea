//! What a flush hands over, on its way into buckets.
//!
//! 1. Records and range anchors are gathered in memory, in order.
//! 2. Each goes to the tail of its bucket; a tail with a page or more goes to the bucket's file, without
//!    a sync.
//! 3. All of it goes to the log in one append and one sync: from there a tail is made again after a crash.

use std::cmp::Reverse;
use std::ops::Range;

use bytes::Bytes;
use lsmx::operand_store::{Delivery, OperandView, Prepared};
use lsmx::{Result, SeqNo};
use lsmx_base::coding::{Decoder, len_u64};
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::bucket::extent::Extent;
use crate::bucket::lookup::Found;
use crate::bucket::sorted::pages;
use crate::bucket::tail::Tail;
use crate::cache::{Cache, Entry, fold};
use crate::format::frame::FrameKind;
use crate::format::log::{RangeAnchor, put_delivered, put_made, put_ranges};
use crate::format::record::{self, Record, RecordRef};
use crate::log::Frames;
use crate::state::{DeltaStore, Then, count_delivery};
use crate::view::{View, visible};

/// Bytes of records in a frame of the log, about.
const FRAME_BYTES: usize = 256 << 10;

/// Buckets of the first delivery are filled to one part in so many.
const FIRST_FILL: u64 = 20;

/// Pages that a file must be worth where a bucket has some it cannot append to.
const PAGES_PER_FILE_MIN: usize = 4;

/// A delivery under way.
#[derive(Debug)]
pub(crate) struct DeltaDelivery<'a> {
    store: &'a DeltaStore,
    base: Arc<View>,
    through: SeqNo,
    /// Records, encoded, and where each begins.
    bytes: Vec<u8>,
    starts: Vec<usize>,
    ranges: Vec<RangeAnchor>,
    anchors: usize,
}

impl<'a> DeltaDelivery<'a> {
    pub(crate) fn new(store: &'a DeltaStore, base: Arc<View>, through: SeqNo) -> Self {
        let (bytes, starts, ranges) = (Vec::new(), Vec::new(), Vec::new());
        DeltaDelivery { store, base, through, bytes, starts, ranges, anchors: 0 }
    }

    fn put(&mut self, key: &[u8], seq: SeqNo, operand: Option<&[u8]>) {
        self.starts.push(self.bytes.len());
        record::put(&mut self.bytes, key, (seq, seq), operand);
    }
}

/// Records that were encoded here.
#[derive(Debug)]
pub(crate) struct Records {
    bytes: Bytes,
    starts: Vec<usize>,
}

impl Records {
    fn new(bytes: Vec<u8>, starts: Vec<usize>) -> Records {
        let mut records = Records { bytes: bytes.into(), starts };
        let order = |at: &usize| {
            let record = records.at(*at);
            (record.key, Reverse(record.last))
        };
        if !records.starts.is_sorted_by_key(order) {
            // The terms say they come in order; whoever breaks them loses nothing.
            let mut starts = std::mem::take(&mut records.starts);
            starts.sort_by(|a, b| order_of(records.at(*a)).cmp(&order_of(records.at(*b))));
            records.starts = starts;
        }
        records
    }

    fn at(&self, at: usize) -> RecordRef<'_> {
        let mut decoder = Decoder::new(&self.bytes[at..]);
        // Encoded by this delivery.
        #[expect(clippy::expect_used, reason = "the invariant stands above")]
        record::get(&mut decoder).expect("a record that was just encoded")
    }

    fn len(&self) -> usize {
        self.starts.len()
    }

    fn get(&self, index: usize) -> RecordRef<'_> {
        self.at(self.starts[index])
    }
}

fn order_of<'a>(record: RecordRef<'a>) -> (&'a [u8], Reverse<SeqNo>) {
    (record.key, Reverse(record.last))
}

impl Delivery for DeltaDelivery<'_> {
    fn may_hold(&self, key: &[u8]) -> bool {
        self.base.may_hold(key)
    }

    fn operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.put(key, seq, Some(operand));
        Ok(())
    }

    fn anchor(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        self.anchors += 1;
        self.put(key, seq, None);
        Ok(())
    }

    fn range_anchor(&mut self, start: &[u8], end: Option<&[u8]>, seq: SeqNo) -> Result<()> {
        self.anchors += 1;
        let (start, end) = (Bytes::copy_from_slice(start), end.map(Bytes::copy_from_slice));
        self.ranges.push(RangeAnchor { start, end, seq });
        Ok(())
    }

    fn prepare(self: Box<Self>) -> Result<Prepared> {
        let (store, anchors) = (self.store, self.anchors);
        let operands = self.starts.len() + self.ranges.len() - anchors;
        let prepared = self.prepare_or_leave();
        match &prepared {
            Ok(_) => count_delivery(&store.shared, operands, anchors),
            Err(_) => store.distrust(),
        }
        prepared
    }
}

impl DeltaDelivery<'_> {
    fn prepare_or_leave(self) -> Result<Prepared> {
        let DeltaDelivery { store, through, bytes, starts, ranges, .. } = self;
        let base = store.base()?;
        let records = Records::new(bytes, starts);
        let mut view = (*base).clone();
        let made = match view.buckets.is_empty() {
            true => first_buckets(store, &records, &base)?,
            false => Vec::new(),
        };
        let tags = made.iter().map(|bucket| (bucket.id, bucket.smallest.clone())).collect();
        if !made.is_empty() {
            view.buckets.extend(made.into_iter().map(Arc::new));
            view.fences = None;
        }
        let paged_out = fill(store, &mut view, &records)?;
        view.through = view.through.max(through);
        if !ranges.is_empty() {
            view.ranges = view.ranges_that_matter(base.ranges.iter().chain(&ranges)).into();
        }
        let token = store.append(&base, false, |frames| {
            put_frames(frames, tags, &records, &ranges, view.through)
        })?;
        let delivered = Delivered { records, base, paged_out };
        let view = store.install(token, view, Box::new(delivered));
        Ok(Prepared { token, view })
    }
}

/// The first buckets of all: about a twentieth full, so that there is room in each.
fn first_buckets(store: &DeltaStore, records: &Records, base: &View) -> Result<Vec<Bucket>> {
    let shared = &store.shared;
    let most = len_u64(store.buckets_max / 2).max(1);
    let fill = shared.options.bucket_bytes / FIRST_FILL;
    let fill = fill.max(len_u64(records.bytes.len()) / most + 1);
    let mut smallest = Vec::new();
    let mut from = 0;
    for index in 0..records.len() {
        let begins = index == 0 || records.get(index - 1).key != records.get(index).key;
        let at = len_u64(records.starts[index]);
        if begins && (smallest.is_empty() || at >= from + fill) {
            // The first one's range has no start.
            let key = if smallest.is_empty() { &[][..] } else { records.get(index).key };
            smallest.push(Bytes::copy_from_slice(key));
            from = at;
        }
    }
    let id = store.take_ids(smallest.len());
    let tail = Arc::new(Tail::new(&[], &shared.memory)?);
    let bucket = |(id, smallest)| Bucket::empty(id, smallest, base.through, tail.clone());
    Ok((id..).zip(smallest).map(bucket).collect())
}

/// Puts each record into its bucket; the tails that went to files.
fn fill(store: &DeltaStore, view: &mut View, records: &Records) -> Result<Vec<Arc<Tail>>> {
    // Collections have made some.
    store.shared.table.close_excess()?;
    let frozen = store.frozen();
    let tail_bytes_max = store.tail_bytes_max(view.buckets.len());
    let mut paged_out = Vec::new();
    let mut index = 0;
    while index < records.len() {
        // There are buckets as soon as there are records, and the first begins with the empty key.
        let Some(place) = view.place_of(records.get(index).key) else { break };
        let end = view.end_of(place);
        let from = index;
        while index < records.len() && end.is_none_or(|end| records.get(index).key < end) {
            index += 1;
        }
        let bucket = &view.buckets[place];
        let mut all: Vec<Record> = bucket.tail.records().collect();
        all.extend((from..index).map(|index| records.get(index).shared(&records.bytes)));
        all.sort_by(Record::order);
        let most = if frozen.contains(&bucket.id) { usize::MAX } else { tail_bytes_max };
        let next = with_tail(store, bucket, &all, most)?;
        if next.file_bytes() > bucket.file_bytes() && !bucket.tail.is_empty() {
            paged_out.push(bucket.tail.clone());
        }
        view.buckets[place] = Arc::new(next);
    }
    Ok(paged_out)
}

/// The bucket with these records in its tail, or, if they are too many for that, those that make pages in
/// its file.
fn with_tail(
    store: &DeltaStore,
    bucket: &Bucket,
    records: &[Record],
    tail_bytes_max: usize,
) -> Result<Bucket> {
    let shared = &store.shared;
    let page_bytes = shared.options.page_bytes();
    let bytes: usize = records.iter().map(Record::size).sum();
    let mut next = bucket.clone();
    let mut left = records;
    if bytes >= tail_bytes_max
        && let Some((extents, extent)) = place_to_append(store, bucket, bytes)?
    {
        let mut cut: Vec<&[Record]> = pages(records, page_bytes).collect();
        let short = |page: &[Record]| page.iter().map(Record::size).sum::<usize>() < page_bytes;
        left = match cut.len() {
            2.. if cut.last().is_some_and(|page| short(page)) => cut.pop().unwrap_or_default(),
            _ => &[],
        };
        next.extents.truncate(extents);
        next.extents.push(Arc::new(extent.append(&cut, &shared.memory)?));
    }
    next.tail = Arc::new(Tail::new(left, &shared.memory)?);
    Ok(next)
}

/// Where pages of a bucket may go: an extent, and how many of the bucket's stand before it. `None`: they
/// are too few for a file of their own.
fn place_to_append(
    store: &DeltaStore,
    bucket: &Bucket,
    bytes: usize,
) -> Result<Option<(usize, Arc<Extent>)>> {
    if let Some((last, others)) = bucket.extents.split_last() {
        if last.file.appends_at(last.to) {
            return Ok(Some((others.len(), last.clone())));
        }
    } else if let Some(sorted) = &bucket.sorted
        && sorted.file.appends_at(sorted.end)
    {
        return Ok(Some((0, Arc::new(Extent::empty(sorted.file.clone())))));
    }
    let has_files = bucket.sorted.is_some() || !bucket.extents.is_empty();
    if has_files && bytes < store.shared.options.page_bytes() * PAGES_PER_FILE_MIN {
        return Ok(None);
    }
    let file = store.shared.table.create()?;
    store.shared.table.close_excess()?;
    Ok(Some((bucket.extents.len(), Arc::new(Extent::empty(file)))))
}

fn put_frames(
    frames: &mut Frames,
    made: Vec<(u64, Bytes)>,
    records: &Records,
    ranges: &[RangeAnchor],
    through: SeqNo,
) -> Result<()> {
    if !made.is_empty() {
        frames.put(FrameKind::Made, |out| put_made(out, &made))?;
    }
    let mut index = 0;
    while index < records.len() {
        frames.put(FrameKind::Records, |out| {
            let from = out.len();
            while index < records.len() && out.len() - from < FRAME_BYTES {
                let record = records.get(index);
                record::put(out, record.key, (record.first, record.last), record.operand);
                index += 1;
            }
        })?;
    }
    if !ranges.is_empty() {
        frames.put(FrameKind::Ranges, |out| put_ranges(out, ranges))?;
    }
    let count = len_u64(records.len());
    frames.put(FrameKind::Delivered, |out| put_delivered(out, through, count))
}

/// What a delivery brought, for the cache.
#[derive(Debug)]
pub(crate) struct Delivered {
    records: Records,
    /// What it was built on.
    base: Arc<View>,
    /// Tails that went to files. Of a page memory knows less than of a tail: not which of its keys has
    /// its newest number. So entries of keys that are on it are made to know all of the page.
    paged_out: Vec<Arc<Tail>>,
}

impl Then for Delivered {
    /// Of the keys that came, or went to files.
    fn refresh(self: Box<Self>, cache: &Cache, view: &View) {
        let mut index = 0;
        while index < self.records.len() {
            let came = self.of_key(self.records.get(index).key);
            index = came.end;
            self.extend_key(cache, self.records.get(came.start).key, came, view);
        }
        for tail in &self.paged_out {
            let mut before = None;
            for record in tail.records() {
                if before.as_ref() != Some(&record.key) {
                    self.extend_key(cache, &record.key, self.of_key(&record.key), view);
                }
                before = Some(record.key);
            }
        }
    }
}

impl Delivered {
    /// Which of the records are of a key.
    fn of_key(&self, key: &[u8]) -> Range<usize> {
        let starts = &self.records.starts;
        let from = starts.partition_point(|at| self.records.at(*at).key < key);
        let others = starts[from..].iter().position(|at| self.records.at(*at).key != key);
        from..others.map_or(starts.len(), |others| from + others)
    }

    fn extend_key(&self, cache: &Cache, key: &[u8], came: Range<usize>, view: &View) {
        if let Some(entry) = cache.get(key)
            && let Some(longer) = self.longer(&entry, key, came, view)
        {
            cache.insert(key, longer);
        }
    }

    fn longer(&self, entry: &Entry, key: &[u8], came: Range<usize>, view: &View) -> Option<Entry> {
        let before = &self.base.buckets[self.base.place_of(key)?];
        let now = &view.buckets[view.place_of(key)?];
        if entry.bucket != now.id || now.id != before.id || entry.covers >= view.through {
            return None;
        }
        // Something may have come that the entry does not know of.
        if entry.covers < self.base.through && !before.unchanged_since(key, entry.covers) {
            return None;
        }
        let found = came.map(|index| {
            let RecordRef { first, last, operand, .. } = self.records.get(index);
            Found { first, last, operand: operand.map(Bytes::copy_from_slice) }
        });
        let found: Vec<Found> = found.collect();
        let range_anchor = view.range_anchor(key, view.through);
        let latest =
            found.iter().map(|it| it.last).fold(entry.latest.max(range_anchor), SeqNo::max);
        let mut operands = visible(found, &entry.operands, range_anchor);
        fold(&mut operands, key, &*view.shared.table.place.folds);
        let (bucket, covers) = (now.id, view.through);
        Some(Entry { bucket, covers, latest, operands: operands.into() })
    }
}
