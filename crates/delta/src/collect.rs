//! Collection: buckets that are full are made anew.
//!
//! 1. A few victims are read. What anchors void and no snapshot sees is dropped, operands fold.
//! 2. What is left of a bucket is written, sorted: to one bucket if it has room for more; else to several,
//!    by key; else, when there are as many buckets as there may be, what readers see of it leaves for the
//!    tree, and only what anchors void for all but snapshots stays.
//! 3. Where there are that many, the smallest pair of neighbours is made one, if it fits.
//! 4. Deliveries go on meanwhile. What they brought stays in memory, and goes to the tails of the new
//!    buckets in the end.
//!
//! Operands that leave for the tree become the newest of their keys there. So one that an anchor has
//! voided since must not leave: the put that the anchor stands for is in the tree already, and would lie
//! below it. It stays, for a snapshot may see it.

use std::collections::BTreeSet;

use bytes::Bytes;
use lsmx::cursor::Cursor;
use lsmx::env::YieldKind;
use lsmx::operand_store::{Collection, Operand, OperandReads, Prepared};
use lsmx::{Error, Result, SeqNo, Slice};
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, Ordering};

use crate::bucket::Bucket;
use crate::bucket::reading::Reading;
use crate::bucket::sorted::Sorted;
use crate::bucket::tail::Tail;
use crate::cache::{Cache, Entry, fold};
use crate::cursor::{RecordCursor, ViewCursor};
use crate::files::io_error;
use crate::format::frame::FrameKind;
use crate::format::log::{Collected, put_bucket, put_collected};
use crate::format::record::Record;
use crate::keep::{self, Keeping, Kept, KeptKey};
use crate::state::{DeltaStore, Then, is_due, is_left_out, victims};
use crate::view::{View, count};

/// Most buckets that one collection reads.
const VICTIMS_MAX: usize = 16;

/// What is made of one bucket, or of two neighbours.
#[derive(Debug)]
struct Group {
    /// Ids of what goes; the first one's smallest key.
    old: Vec<u64>,
    smallest: Bytes,
    /// In key order; the first one's range begins where that of the old did.
    new: Vec<Output>,
    case: Case,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Rewrite,
    Split,
    ToTree,
    Merge,
}

/// A new bucket, without what came since.
#[derive(Debug)]
struct Output {
    id: u64,
    smallest: Bytes,
    twin: Option<u64>,
    sorted: Option<Arc<Sorted>>,
}

/// A cache entry of a bucket that was made anew.
#[derive(Debug)]
struct Refresh {
    old: Vec<u64>,
    key: Bytes,
    entry: Entry,
}

impl Refresh {
    /// Has the cache know the key by its new bucket, if it still knows the key.
    fn apply(self, cache: &Cache) {
        let Some(there) = cache.get(&self.key) else { return };
        // Of the old bucket, and knows at least as much: all of it holds for the new one.
        if self.old.contains(&there.bucket) && there.covers >= self.entry.covers {
            cache.insert(&self.key, Entry { bucket: self.entry.bucket, ..there });
        } else {
            cache.insert(&self.key, self.entry);
        }
    }
}

impl Then for Vec<Refresh> {
    fn refresh(self: Box<Self>, cache: &Cache, _: &View) {
        self.into_iter().for_each(|refresh| refresh.apply(cache));
    }
}

/// Lets deliveries write to the buckets again.
#[derive(Debug)]
struct Frozen<'a>(&'a DeltaStore);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.freeze(BTreeSet::new());
    }
}

/// A collection of some buckets.
#[derive(Debug)]
pub(crate) struct Victims<'a> {
    store: &'a DeltaStore,
    base: Arc<View>,
    epoch: u64,
    groups: Vec<Group>,
    /// In key order.
    leaving: Vec<Record>,
    /// Number up to which deliveries had come when what leaves was asked for.
    left_at: Option<SeqNo>,
    refresh: Vec<Refresh>,
    _frozen: Frozen<'a>,
}

/// Begins a collection of what is due: of nothing while what is there must be read again first.
pub(crate) fn begin<'a>(store: &'a DeltaStore, snapshots: &[SeqNo]) -> Result<Option<Victims<'a>>> {
    let Some(base) = store.base_at_hand()? else { return Ok(None) };
    let left_out = store.left_out();
    if !is_due(&base, &left_out) {
        return Ok(None);
    }
    let places: Vec<usize> = victims(&base, &left_out).take(VICTIMS_MAX).collect();
    let pair = smallest_pair(store, &base, &places, &left_out);
    let ids = places.iter().copied().chain(pair.into_iter().flat_map(|place| [place, place + 1]));
    let epoch = store.freeze(ids.map(|place| base.buckets[place].id).collect());
    let frozen = Frozen(store);
    let folds = store.shared.table.place.folds.clone();
    let mut making = Making {
        store,
        base: &base,
        keeping: Keeping::new(snapshots, &base.ranges, &*folds),
        count: base.buckets.len(),
        groups: Vec::new(),
        leaving: Vec::new(),
        refresh: Vec::new(),
    };
    for place in places {
        making.bucket(place)?;
    }
    if let Some(place) = pair
        && making.count + 2 > store.buckets_max
    {
        making.pair(place)?;
    }
    let Making { groups, mut leaving, refresh, .. } = making;
    leaving.sort_by(Record::order);
    let left_at = None;
    Ok(Some(Victims { store, base, epoch, groups, leaving, left_at, refresh, _frozen: frozen }))
}

/// Place of the first of two neighbours that could become one, where buckets are scarce.
fn smallest_pair(
    store: &DeltaStore,
    view: &View,
    victims: &[usize],
    left_out: &BTreeSet<u64>,
) -> Option<usize> {
    if view.buckets.len() + 2 <= store.buckets_max {
        return None;
    }
    let fits = |place: &usize| {
        let (a, b) = (&view.buckets[*place], &view.buckets[place + 1]);
        a.twin != Some(b.id)
            && a.made_bytes.saturating_add(b.made_bytes) <= store.shared.options.threshold_bytes()
            && [*place, place + 1]
                .iter()
                .all(|place| !victims.contains(place) && !is_left_out(view, *place, left_out))
    };
    let bytes = |at: usize| view.buckets[at].bytes();
    let bytes = |place: &usize| bytes(*place).saturating_add(bytes(place + 1));
    (0..view.buckets.len() - 1).filter(fits).min_by_key(bytes)
}

/// A collection while it reads and writes.
struct Making<'a> {
    store: &'a DeltaStore,
    base: &'a View,
    keeping: Keeping<'a>,
    /// Buckets there will be.
    count: usize,
    groups: Vec<Group>,
    leaving: Vec<Record>,
    refresh: Vec<Refresh>,
}

/// Records of what is kept of some keys.
fn records(keys: &[KeptKey]) -> Vec<Record> {
    keys.iter().flat_map(|key| keep::records(&key.operands)).collect()
}

fn size(records: &[Record]) -> u64 {
    records.iter().map(|record| len_u64(record.size())).sum()
}

impl Making<'_> {
    fn read(&self, place: usize) -> Result<Vec<KeptKey>> {
        let place_env = &self.store.shared.table.place.env;
        place_env.yield_point(YieldKind::CompactionBlock);
        let counter = &self.store.shared.counters.bucket_read_bytes;
        let mut reading = Reading::of_job(counter);
        let records = self.base.read_bucket(place, |bucket| bucket.all_records(&mut reading))?;
        Ok(self.keeping.keep(&records))
    }

    fn bucket(&mut self, place: usize) -> Result<()> {
        let kept = self.read(place)?;
        let bucket = &self.base.buckets[place];
        let (old, smallest) = (vec![bucket.id], bucket.smallest.clone());
        let threshold = self.store.shared.options.threshold_bytes();
        let bytes = size(&records(&kept));
        let keys = kept.iter().filter(|key| !key.operands.is_empty()).count();
        if bytes <= threshold {
            return self.finish(old, vec![(smallest, kept)], Case::Rewrite);
        }
        let room = self.store.buckets_max.saturating_sub(self.count);
        if room >= 2 && keys >= 2 {
            // Two, but more where a single delivery has brought more than fits in two.
            let pieces = usize::try_from(bytes.div_ceil(threshold)).unwrap_or(usize::MAX);
            let mut parts = split(kept, bytes, pieces.clamp(2, room), smallest);
            if failpoint::is_on(Failpoint::OperandLostAtSplit)
                && let Some((_, last)) = parts.last_mut()
            {
                last.pop();
            }
            self.count += parts.len() - 1;
            return self.finish(old, parts, Case::Split);
        }
        let mut stays = kept;
        let mut leaves = false;
        for key in &mut stays {
            let (leaving, staying): (Vec<Kept>, Vec<Kept>) =
                key.operands.drain(..).partition(|kept| kept.void_by.is_none());
            leaves |= !leaving.is_empty();
            self.leaving.extend(leaving.into_iter().map(|kept| kept.record));
            key.operands = staying;
        }
        let case = if leaves { Case::ToTree } else { Case::Rewrite };
        self.finish(old, vec![(smallest, stays)], case)
    }

    /// Makes one bucket of those at `place` and behind it, if they fit.
    fn pair(&mut self, place: usize) -> Result<()> {
        let mut kept = self.read(place)?;
        kept.append(&mut self.read(place + 1)?);
        if size(&records(&kept)) > self.store.shared.options.threshold_bytes() {
            return Ok(());
        }
        let (a, b) = (&self.base.buckets[place], &self.base.buckets[place + 1]);
        self.count -= 1;
        self.finish(vec![a.id, b.id], vec![(a.smallest.clone(), kept)], Case::Merge)
    }

    /// Writes the buckets of a group.
    fn finish(
        &mut self,
        old: Vec<u64>,
        parts: Vec<(Bytes, Vec<KeptKey>)>,
        case: Case,
    ) -> Result<()> {
        let shared = &self.store.shared;
        let first = self.store.take_ids(parts.len());
        let ids = first..first + len_u64(parts.len());
        let mut new = Vec::with_capacity(parts.len());
        for (id, (smallest, kept)) in ids.clone().zip(parts) {
            let records = records(&kept);
            let sorted = match records.is_empty() {
                true => None,
                false => {
                    let file = shared.table.create_held()?;
                    let page_bytes = shared.options.page_bytes();
                    let sorted = Sorted::write(file, &records, page_bytes, &shared.memory)?;
                    sorted.file.sync()?;
                    shared.table.release(&sorted.file);
                    Some(Arc::new(sorted))
                }
            };
            let smallest = Bytes::copy_from_slice(&smallest);
            // Of each pair of neighbours the first one knows the other.
            let twin = (case == Case::Split && id + 1 < ids.end).then_some(id + 1);
            new.push(Output { id, smallest, twin, sorted });
            if case != Case::ToTree {
                self.refresh_cache(&old, id, kept);
            }
        }
        let smallest = new[0].smallest.clone();
        self.groups.push(Group { old, smallest, new, case });
        Ok(())
    }

    /// Notes what the cache is to know of keys that it knows.
    fn refresh_cache(&mut self, old: &[u64], id: u64, kept: Vec<KeptKey>) {
        let shared = &self.store.shared;
        let Some(cache) = &shared.cache else { return };
        for KeptKey { key, operands, latest } in kept {
            if !cache.contains(&key) {
                continue;
            }
            let seen = operands.into_iter().filter(|kept| kept.void_by.is_none());
            let operand = |kept: Kept| Operand {
                first: kept.record.first,
                last: kept.record.last,
                // A copy: what was read of the bucket need not stay for it.
                bytes: Slice::from(kept.record.operand.as_deref().unwrap_or_default()),
            };
            let mut operands: Vec<Operand> = seen.map(operand).collect();
            fold(&mut operands, &key, &*shared.table.place.folds);
            let operands = operands.into();
            let entry = Entry { bucket: id, covers: self.base.through, latest, operands };
            let key = Bytes::copy_from_slice(&key);
            self.refresh.push(Refresh { old: old.to_vec(), key, entry });
        }
    }
}

/// Cuts keys into parts of about equal bytes, each with its smallest key. There are two keys at least
/// with something, and two parts.
fn split(
    kept: Vec<KeptKey>,
    bytes: u64,
    pieces: usize,
    smallest: Bytes,
) -> Vec<(Bytes, Vec<KeptKey>)> {
    let each = bytes.div_ceil(len_u64(pieces)).max(1);
    let mut parts: Vec<(Bytes, Vec<KeptKey>)> = vec![(smallest, Vec::new())];
    let (mut before, mut in_part) = (0, 0);
    let mut left = kept.iter().filter(|key| !key.operands.is_empty()).count();
    for key in kept {
        let own = size(&keep::records(&key.operands));
        let last_chance = parts.len() == 1 && left == 1;
        // The key belongs where its middle lies.
        let past = before + own / 2 >= each * len_u64(parts.len());
        if own > 0 && in_part > 0 && (past || last_chance) && parts.len() < pieces {
            parts.push((key.key.clone(), Vec::new()));
            in_part = 0;
        }
        before += own;
        in_part += own;
        left -= usize::from(own > 0);
        // There is a part from the start.
        if let Some((_, part)) = parts.last_mut() {
            part.push(key);
        }
    }
    parts
}

impl Victims<'_> {
    /// What was to leave and must stay, for an anchor has come since; and the others.
    fn parted(&self, tip: &View) -> Result<(Vec<Record>, Vec<Record>)> {
        let through = self.base.through;
        let mut anchored = BTreeSet::new();
        let old: BTreeSet<u64> = self.groups.iter().flat_map(|group| &group.old).copied().collect();
        for bucket in tip.buckets.iter().filter(|bucket| old.contains(&bucket.id)) {
            let anchors = self.came(tip, bucket)?.into_iter().filter(|it| it.operand.is_none());
            anchored.extend(anchors.map(|anchor| anchor.key));
        }
        Ok(self.leaving.iter().cloned().partition(|record| {
            let range = tip.range_anchor(&record.key, SeqNo::MAX);
            range > through || anchored.contains(&record.key)
        }))
    }

    /// What deliveries have brought to a bucket of `tip` since the collection began.
    fn came(&self, tip: &View, bucket: &Bucket) -> Result<Vec<Record>> {
        let before = self.base.buckets.iter().find(|before| before.id == bucket.id);
        let paged = before.is_none_or(|before| !before.has_parts_of(bucket));
        let mut records: Vec<Record> = match paged {
            // A delivery that had begun before the buckets were frozen has written to its file.
            true => {
                let counter = &self.store.shared.counters.bucket_read_bytes;
                let mut reading = Reading::of_job(counter);
                let place = tip.place_of(&bucket.smallest).unwrap_or(usize::MAX);
                tip.read_bucket(place, |bucket| bucket.all_records(&mut reading))?
            }
            false => bucket.tail.records().collect(),
        };
        records.retain(|record| record.last > self.base.through);
        Ok(records)
    }

    fn prepare_or_leave(mut self) -> Result<Prepared> {
        let tip = self.tip()?;
        let stays = match self.left_at {
            // Nobody has taken it.
            None => std::mem::take(&mut self.leaving),
            Some(at) if at == tip.through => self.parted(&tip)?.0,
            Some(_) => return Err(self.overtaken("a delivery came after what leaves was taken")),
        };
        let mut view = (*tip).clone();
        let mut made = Vec::new();
        for group in &self.groups {
            let place = view.place_of(&group.smallest).unwrap_or(usize::MAX);
            let places = place..place.saturating_add(group.old.len());
            let there = view.buckets.get(places.clone()).unwrap_or_default();
            if !there.iter().map(|bucket| &bucket.id).eq(&group.old) {
                return Err(self.overtaken("a bucket under collection has changed"));
            }
            let end = view.end_of(places.end - 1).map(Bytes::copy_from_slice);
            let mut came = Vec::new();
            for bucket in there {
                came.append(&mut self.came(&tip, bucket)?);
            }
            let inside = |record: &&Record| {
                group.smallest <= record.key && end.as_ref().is_none_or(|end| record.key < *end)
            };
            came.extend(stays.iter().filter(inside).cloned());
            came.sort_by(Record::order);
            let new = self.buckets(group, &came)?;
            made.extend(new.iter().map(|bucket| bucket.entry()));
            view.buckets.splice(places, new);
            view.fences = None;
        }
        view.ranges = view.ranges_that_matter(view.ranges.iter()).into();
        let gone = self.groups.iter().flat_map(|group| group.old.iter().copied()).collect();
        let collected = Collected { made: len_u64(made.len()), gone, ranges: view.ranges.to_vec() };
        let token = self.store.append(&tip, true, |frames| {
            for entry in &made {
                frames.put(FrameKind::Bucket, |out| put_bucket(out, entry))?;
            }
            frames.put(FrameKind::Collected, |out| put_collected(out, &collected))
        })?;
        self.count();
        let refresh = std::mem::take(&mut self.refresh);
        let view = self.store.install(token, view, Box::new(refresh));
        Ok(Prepared { token, view })
    }

    /// What deliveries have made of things since.
    fn tip(&self) -> Result<Arc<View>> {
        let tip = self.store.base()?;
        if self.store.epoch() != self.epoch {
            return Err(self.overtaken("what it was built on was abandoned"));
        }
        Ok(tip)
    }

    fn overtaken(&self, why: &'static str) -> Error {
        let table = &self.store.shared.table;
        let path = table.place.files.path(lsmx::operand_store::OperandFileKind::Bucket, 0);
        let dir = path.parent().unwrap_or(&path);
        io_error("end a collection in", dir, std::io::Error::other(why))
    }

    /// The new buckets of a group, with what came since in their tails.
    fn buckets(&self, group: &Group, came: &[Record]) -> Result<Vec<Arc<Bucket>>> {
        let memory = &self.store.shared.memory;
        let mut left = came;
        let mut buckets = Vec::with_capacity(group.new.len());
        for (index, output) in group.new.iter().enumerate() {
            let end = group.new.get(index + 1).map(|next| &next.smallest);
            let own = end.map_or(left.len(), |end| left.partition_point(|it| it.key < *end));
            let (own, rest) = left.split_at(own);
            left = rest;
            let tail = Arc::new(Tail::new(own, memory)?);
            let smallest = output.smallest.clone();
            let empty = Bucket::empty(output.id, smallest, self.base.through, tail);
            buckets.push(Arc::new(Bucket {
                made_bytes: output.sorted.as_ref().map_or(0, |sorted| sorted.end),
                twin: output.twin,
                sorted: output.sorted.clone(),
                ..empty
            }));
        }
        Ok(buckets)
    }

    fn count(&self) {
        let counters = &self.store.shared.counters;
        for group in &self.groups {
            let counter = match group.case {
                Case::Rewrite => &counters.rewrites,
                Case::Split => &counters.splits,
                Case::ToTree => &counters.to_tree,
                Case::Merge => &counters.merges,
            };
            count(counter, 1);
        }
    }
}

impl Collection for Victims<'_> {
    fn leaving(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        if self.leaving.is_empty() {
            return Ok(None);
        }
        let tip = self.tip()?;
        self.left_at = Some(tip.through);
        let (_, leaves) = self.parted(&tip)?;
        Ok((!leaves.is_empty()).then(|| Box::new(RecordCursor::new(leaves)) as Box<dyn Cursor>))
    }

    fn prepare(self: Box<Self>) -> Result<Prepared> {
        let store = self.store;
        self.prepare_or_leave().inspect_err(|_| store.distrust())
    }
}

/// A collection of all there is, into the tree.
#[derive(Debug)]
pub(crate) struct Everything<'a> {
    store: &'a DeltaStore,
    epoch: u64,
    left_at: Option<SeqNo>,
}

/// Begins a collection of everything.
pub(crate) fn everything(store: &DeltaStore) -> Result<Everything<'_>> {
    store.base()?;
    Ok(Everything { store, epoch: store.epoch(), left_at: None })
}

impl Collection for Everything<'_> {
    fn leaving(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        let tip = self.store.base()?;
        self.left_at = Some(tip.through);
        let mut cursor = ViewCursor::new(tip, SeqNo::MAX, OperandReads::Storage).of_job();
        cursor.first()?;
        Ok(cursor.valid().then(|| Box::new(cursor) as Box<dyn Cursor>))
    }

    fn prepare(self: Box<Self>) -> Result<Prepared> {
        let store = self.store;
        self.prepare_or_leave().inspect_err(|_| store.distrust())
    }
}

impl Everything<'_> {
    fn prepare_or_leave(self) -> Result<Prepared> {
        let Everything { store, epoch, left_at } = self;
        let tip = store.base()?;
        if store.epoch() != epoch || left_at != Some(tip.through) {
            let path = &store.shared.table.place.files;
            let path = path.path(lsmx::operand_store::OperandFileKind::Bucket, 0);
            let why = std::io::Error::other("what leaves was not taken, or more came since");
            return Err(io_error("end a collection in", path.parent().unwrap_or(&path), why));
        }
        let view = View { through: tip.through, ..View::empty(store.shared.clone()) };
        let gone: Vec<u64> = tip.buckets.iter().map(|bucket| bucket.id).collect();
        let moved = len_u64(gone.len());
        let collected = Collected { made: 0, gone, ranges: Vec::new() };
        let token = store.append(&tip, false, |frames| {
            frames.put(FrameKind::Collected, |out| put_collected(out, &collected))
        })?;
        store.shared.counters.to_tree.fetch_add(moved, Ordering::Relaxed);
        let view = store.install(token, view, Box::new(Vec::<Refresh>::new()));
        Ok(Prepared { token, view })
    }
}
