//! An operand store that is easy to be sure of: each delivery writes all it holds to one file.
//!
//! ```text
//! file    items, then nothing
//! item    kind u8, first u64, last u64, length u32, bytes
//! kinds   0 operand, 1 anchor, 2 range up to a key, 3 range without end, 4 key that those after it are of
//! token   number of the file, its bytes, its checksum, the last number delivered
//! ```
//! Contents are either kept in memory, or read again by each view that is asked for the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::env::YieldKind;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{
    Operand, OperandCollection, OperandDelivery, OperandFileKind, OperandFiles, OperandMetrics,
    OperandReadTier, OperandStore, OperandStoreFactory, OperandView, PreparedVersion, StoreContext,
    StoreToken,
};
use lsmx::vfs::File;
use lsmx::{EntryKind, Error, Malformed, Result, SeqNo, Slice};
use lsmx_base::key::InternalKey;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

/// How stores of this kind behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Deliveries after which a collection is due.
    pub collect_after: u64,
    /// How many collections send what they can to the tree: one in so many.
    pub to_tree_one_in: u64,
    /// Whether views read what they hold from the file.
    pub lazy: bool,
}

impl Default for Plain {
    fn default() -> Plain {
        Plain { collect_after: 3, to_tree_one_in: 2, lazy: true }
    }
}

thread_local! {
    /// Whether databases at hand keep operands in the store that users have.
    static REAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Says whether stores that this thread draws from here on are those that users have. A database keeps
/// the one it began with.
pub fn set_real(real: bool) {
    REAL.set(real);
}

/// A store as drawn: the easy one, or buckets that are so small that a few hundred operands fill some.
#[derive(Debug)]
pub struct Drawn(Box<dyn OperandStoreFactory>);

impl Plain {
    /// The store that databases at hand have.
    pub fn drawn(self) -> Drawn {
        if !REAL.get() {
            return Drawn(Box::new(self));
        }
        let options = DeltaOptions::default()
            .bucket_bytes(512 << (self.collect_after % 3))
            .buckets_max(4 * self.to_tree_one_in)
            .split_threshold(if self.lazy { 0.8 } else { 0.3 })
            .log_bytes_max(1024 << (self.collect_after % 5))
            .cache_bytes(if self.lazy { 4096 } else { 0 });
        Drawn(Box::new(DeltaStoreFactory::new(options)))
    }
}

impl OperandStoreFactory for Drawn {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn open(
        &self,
        place: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        self.0.open(place, token)
    }

    fn verify(&self, place: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        self.0.verify(place, token)
    }
}

/// Whether a file that nothing names after a clean close may be there: pages of buckets whose records the
/// log still has, so that the next opening makes them anew.
pub fn may_be_left(orphan: &std::path::Path) -> bool {
    REAL.get() && orphan.extension().is_some_and(|extension| extension == "bucket")
}

/// Stores of all names, for those who check what others have made.
pub fn all() -> [Arc<dyn OperandStoreFactory>; 2] {
    known().map(|store| Arc::new(store) as Arc<dyn OperandStoreFactory>)
}

/// As [`all`], for the options of a database.
pub fn known() -> [Drawn; 2] {
    let delta = DeltaStoreFactory::new(DeltaOptions::default());
    [Drawn(Box::new(Plain::default())), Drawn(Box::new(delta))]
}

/// What one file holds.
#[derive(Clone, Debug, Default)]
struct Contents {
    /// Newest first.
    keys: BTreeMap<Vec<u8>, Vec<Item>>,
    ranges: Vec<(Vec<u8>, Option<Vec<u8>>, SeqNo)>,
    through: SeqNo,
}

#[derive(Clone, Debug)]
enum Item {
    Operand(Operand),
    Anchor(SeqNo),
}

impl Item {
    fn last(&self) -> SeqNo {
        match self {
            Item::Operand(operand) => operand.last,
            Item::Anchor(seq) => *seq,
        }
    }
}

fn covers(range: &(Vec<u8>, Option<Vec<u8>>, SeqNo), key: &[u8]) -> bool {
    range.0.as_slice() <= key && range.1.as_ref().is_none_or(|end| key < end.as_slice())
}

impl Contents {
    /// The newest number up to `at` that voids what is older of a key.
    fn void_below(&self, key: &[u8], at: SeqNo) -> Option<SeqNo> {
        let ranges = self.ranges.iter().filter(|range| covers(range, key)).map(|range| range.2);
        let items = self.keys.get(key).into_iter().flatten();
        let anchors = items.filter_map(|item| match item {
            Item::Anchor(seq) => Some(*seq),
            Item::Operand(_) => None,
        });
        ranges.chain(anchors).filter(|seq| *seq <= at).max()
    }

    /// The operands of a key that a reader sees, newest first.
    fn seen(&self, key: &[u8], at: SeqNo) -> Vec<Operand> {
        let void = self.void_below(key, at);
        let items = self.keys.get(key).into_iter().flatten();
        let operands = items.filter_map(|item| match item {
            Item::Operand(operand) => Some(operand.clone()),
            Item::Anchor(_) => None,
        });
        operands.filter(|operand| operand.last <= at && void < Some(operand.last)).collect()
    }

    fn all_seen(&self, at: SeqNo) -> Vec<(Vec<u8>, Operand)> {
        let keys = self.keys.keys();
        keys.flat_map(|key| self.seen(key, at).into_iter().map(|one| (key.clone(), one))).collect()
    }

    fn push(&mut self, key: &[u8], item: Item) {
        let items = self.keys.entry(key.to_vec()).or_default();
        let at = items.iter().take_while(|other| other.last() > item.last()).count();
        items.insert(at, item);
    }

    /// Takes out what nobody can see, and folds neighbours: of what there was at `through`, for all
    /// snapshots of that moment and all that come later.
    fn tidy(&mut self, snapshots: &[SeqNo], through: SeqNo, place: &StoreContext) {
        let stripe = |seq: SeqNo| snapshots.partition_point(|snapshot| *snapshot < seq);
        let keys: Vec<_> = self.keys.keys().cloned().collect();
        for key in keys {
            let voids: Vec<SeqNo> =
                self.voids(&key).into_iter().filter(|v| *v <= through).collect();
            let items = self.keys.remove(&key).unwrap_or_default();
            let void = |operand: &Operand| {
                let mut above = voids.iter().filter(|void| **void > operand.last);
                above.any(|void| stripe(*void) == stripe(operand.last))
            };
            let mut kept: Vec<Item> = Vec::new();
            for item in items {
                match (item, kept.last_mut()) {
                    (Item::Operand(operand), _) if void(&operand) => {}
                    (Item::Operand(older), Some(Item::Operand(newer)))
                        if newer.last <= through && stripe(older.last) == stripe(newer.last) =>
                    {
                        let between =
                            voids.iter().any(|void| older.last < *void && *void < newer.first);
                        let merger = &place.merger;
                        match merger.partial_merge(&key, &older.bytes, &newer.bytes) {
                            Some(both) if !between => {
                                newer.first = older.first;
                                newer.bytes = Slice::from(both);
                            }
                            _ => kept.push(Item::Operand(older)),
                        }
                    }
                    (item, _) => kept.push(item),
                }
            }
            // An anchor with nothing below it voids nothing.
            while matches!(kept.last(), Some(Item::Anchor(_))) {
                kept.pop();
            }
            if !kept.is_empty() {
                self.keys.insert(key, kept);
            }
        }
        let keys = &self.keys;
        self.ranges.retain(|range| {
            let mut below = keys.iter().filter(|(key, _)| covers(range, key));
            below.any(|(_, items)| items.iter().any(|item| item.last() < range.2))
        });
    }

    /// All numbers that void something of a key.
    fn voids(&self, key: &[u8]) -> Vec<SeqNo> {
        let ranges = self.ranges.iter().filter(|range| covers(range, key)).map(|range| range.2);
        let items = self.keys.get(key).into_iter().flatten();
        ranges
            .chain(items.filter_map(|item| match item {
                Item::Anchor(seq) => Some(*seq),
                Item::Operand(_) => None,
            }))
            .collect()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut item = |kind: u8, first: SeqNo, last: SeqNo, bytes: &[u8]| {
            out.push(kind);
            out.extend_from_slice(&first.0.to_le_bytes());
            out.extend_from_slice(&last.0.to_le_bytes());
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        // A key once for all its items: one may be long, and have hundreds.
        for (key, items) in &self.keys {
            item(4, SeqNo(0), SeqNo(0), key);
            for one in items {
                match one {
                    Item::Operand(it) => item(0, it.first, it.last, &it.bytes),
                    Item::Anchor(seq) => item(1, *seq, *seq, &[]),
                }
            }
        }
        for (start, end, seq) in &self.ranges {
            item(4, SeqNo(0), SeqNo(0), start);
            match end {
                Some(end) => item(2, *seq, *seq, end),
                None => item(3, *seq, *seq, &[]),
            }
        }
        out
    }

    fn decode(bytes: &[u8], through: SeqNo) -> Option<Contents> {
        let mut contents = Contents { through, ..Contents::default() };
        let mut rest = bytes;
        let mut take = |count: usize| {
            let (head, tail) = rest.split_at_checked(count)?;
            rest = tail;
            Some(head)
        };
        let mut key: &[u8] = &[];
        while let Some(kind) = take(1) {
            let mut number = || Some(SeqNo(u64::from_le_bytes(take(8)?.try_into().ok()?)));
            let (first, last) = (number()?, number()?);
            let length = u32::from_le_bytes(take(4)?.try_into().ok()?);
            let bytes = take(usize::try_from(length).ok()?)?;
            match kind[0] {
                0 => contents
                    .push(key, Item::Operand(Operand { first, last, bytes: Slice::from(bytes) })),
                1 => contents.push(key, Item::Anchor(last)),
                2 => contents.ranges.push((key.to_vec(), Some(bytes.to_vec()), last)),
                3 => contents.ranges.push((key.to_vec(), None, last)),
                4 => key = bytes,
                _ => return None,
            }
        }
        Some(contents)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file, which goes when nobody needs it and it is said to be obsolete.
#[derive(Debug)]
struct Held {
    place: StoreContext,
    file: Arc<dyn File>,
    token: StoreToken,
    obsolete: std::sync::atomic::AtomicBool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire) {
            self.place.files.discard(OperandFileKind::Log, self.token.0[0]);
        }
    }
}

impl Held {
    fn read(&self) -> Result<Contents> {
        let path = self.place.files.path(OperandFileKind::Log, self.token.0[0]);
        let [_, bytes, expected, through] = self.token.0;
        let io =
            |source| Error::Io { action: "read", path: path.clone(), source: Arc::new(source) };
        let there = self.file.len().map_err(io)?;
        if there < bytes {
            let what = Malformed::Truncated { what: "operands", needed: bytes, found: there };
            return Err(Error::malformed(what, &path, there));
        }
        let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let read = self.file.read_at(&mut buffer, 0).map_err(io)?;
        let found = checksum(&buffer[..read]);
        if found != expected {
            return Err(Error::malformed(Malformed::Checksum { expected, found }, &path, 0));
        }
        let contents = Contents::decode(&buffer, SeqNo(through));
        contents.ok_or_else(|| Error::malformed(Malformed::Order { what: "items" }, &path, 0))
    }
}

/// What is in one file.
#[derive(Debug)]
struct View {
    place: StoreContext,
    keys: BTreeSet<Vec<u8>>,
    /// None for nothing at all.
    held: Option<Arc<Held>>,
    /// As soon as it is in memory.
    contents: Mutex<Option<Arc<Contents>>>,
}

impl View {
    fn new(
        place: &StoreContext,
        held: Option<Arc<Held>>,
        contents: Contents,
        lazy: bool,
    ) -> Arc<View> {
        let keys = contents.keys.keys().cloned().collect();
        let contents = (!lazy || held.is_none()).then(|| Arc::new(contents));
        Arc::new(View { place: place.clone(), keys, held, contents: Mutex::new(contents) })
    }

    fn contents(&self, reads: OperandReadTier) -> Result<Arc<Contents>> {
        if let Some(contents) = &*lock(&self.contents) {
            self.place.read_counters.record_hit();
            return Ok(Arc::clone(contents));
        }
        if reads == OperandReadTier::Memory {
            return Err(Error::WouldBlock);
        }
        let contents = self.load()?;
        self.place.read_counters.record_read(self.held.as_ref().map_or(0, |held| held.token.0[1]));
        Ok(contents)
    }

    /// As [`View::contents`], uncounted.
    fn load(&self) -> Result<Arc<Contents>> {
        if let Some(contents) = &*lock(&self.contents) {
            return Ok(Arc::clone(contents));
        }
        let contents = match &self.held {
            Some(held) => Arc::new(held.read()?),
            None => Arc::default(),
        };
        *lock(&self.contents) = Some(Arc::clone(&contents));
        Ok(contents)
    }
}

impl OperandView for View {
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn may_contain(&self, key: &[u8]) -> bool {
        // Some keys are taken for others, as by a filter.
        self.keys.contains(key) || (!self.keys.is_empty() && checksum(key).is_multiple_of(8))
    }

    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        found.extend(self.contents(reads)?.seen(key, at));
        Ok(())
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor> {
        Box::new(Walk { source: Source::View(self, reads), at, entries: None, place: None })
    }

    fn keep_files_open(&self) {
        // In memory the contents need no file. On failure, the read that needs them gets the error.
        let _ = self.load();
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken> {
        let contents = self.load()?;
        Ok(write(&self.place, target, &contents)?.token)
    }
}

/// Writes a file and puts it on stable storage, but for its name.
fn write(place: &StoreContext, files: &dyn OperandFiles, contents: &Contents) -> Result<Arc<Held>> {
    let (number, file) = files.create(OperandFileKind::Log)?;
    let path = files.path(OperandFileKind::Log, number);
    let bytes = contents.encode();
    let io = |action| {
        let path = path.clone();
        move |source| Error::Io { action, path, source: Arc::new(source) }
    };
    let written = file.append(&bytes).map_err(io("append to"));
    let synced = written.and_then(|()| file.sync().map_err(io("sync")));
    if let Err(error) = synced {
        files.discard(OperandFileKind::Log, number);
        return Err(error);
    }
    let token = StoreToken([number, bytes.len() as u64, checksum(&bytes), contents.through.0]);
    let obsolete = false.into();
    Ok(Arc::new(Held { place: place.clone(), file, token, obsolete }))
}

enum Source {
    View(Arc<View>, OperandReadTier),
    List(Vec<(Vec<u8>, Operand)>),
}

/// Walks operands in key order, newest first.
struct Walk {
    source: Source,
    at: SeqNo,
    entries: Option<Vec<(Vec<u8>, Operand)>>,
    place: Option<usize>,
}

impl Walk {
    fn entries(&mut self) -> Result<&Vec<(Vec<u8>, Operand)>> {
        if self.entries.is_none() {
            self.entries = Some(match &mut self.source {
                Source::View(view, reads) => view.contents(*reads)?.all_seen(self.at),
                Source::List(list) => std::mem::take(list),
            });
        }
        Ok(self.entries.get_or_insert_default())
    }

    fn entry(&self) -> &(Vec<u8>, Operand) {
        let entries = self.entries.as_deref().unwrap_or_default();
        &entries[self.place.expect("only while valid")]
    }

    fn go_to(&mut self, place: Option<usize>) -> Result<()> {
        let count = self.entries()?.len();
        self.place = place.filter(|place| *place < count);
        Ok(())
    }

    /// Where the first entry at or after a key and number would be.
    fn at_or_after(&mut self, key: &[u8], seq: SeqNo) -> Result<usize> {
        self.place = None;
        let before = |(other, operand): &(Vec<u8>, Operand)| {
            (other.as_slice(), std::cmp::Reverse(operand.last)) < (key, std::cmp::Reverse(seq))
        };
        Ok(self.entries()?.partition_point(before))
    }
}

impl Cursor for Walk {
    fn valid(&self) -> bool {
        self.place.is_some()
    }
    fn key(&self) -> InternalKey<'_> {
        let (user_key, operand) = self.entry();
        InternalKey { user_key, seq: operand.last, kind: EntryKind::Merge }
    }
    fn value(&self) -> &[u8] {
        &self.entry().1.bytes
    }
    fn value_slice(&self) -> Slice {
        self.entry().1.bytes.clone()
    }
    fn first(&mut self) -> Result<()> {
        self.place = None;
        self.go_to(Some(0))
    }
    fn last(&mut self) -> Result<()> {
        self.place = None;
        let last = self.entries()?.len().checked_sub(1);
        self.go_to(last)
    }
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let place = self.at_or_after(user_key, seq)?;
        self.go_to(Some(place))
    }
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        let place = self.at_or_after(user_key, seq)?.checked_sub(1);
        self.go_to(place)
    }
    fn next(&mut self) -> Result<()> {
        let next = self.place.map(|place| place + 1);
        self.go_to(next)
    }
    fn prev(&mut self) -> Result<()> {
        let prev = self.place.and_then(|place| place.checked_sub(1));
        self.go_to(prev)
    }
}

#[derive(Debug, Default)]
struct State {
    committed: Option<Arc<View>>,
    /// After the last commit, in order.
    prepared: Vec<Arc<View>>,
    /// Prepared in vain, or in doubt.
    abandoned: Vec<Arc<Held>>,
    deliveries: u64,
    collections: u64,
    through: SeqNo,
}

/// The store.
#[derive(Debug)]
struct Store {
    plan: Plain,
    place: StoreContext,
    state: Mutex<State>,
    operands: AtomicU64,
    anchors: AtomicU64,
    written: AtomicU64,
    to_tree: AtomicU64,
}

impl Store {
    /// What was prepared last.
    fn latest(&self) -> Arc<View> {
        let state = lock(&self.state);
        let latest = state.prepared.last().or(state.committed.as_ref());
        Arc::clone(latest.expect("there is a view from the opening on"))
    }

    fn prepare(&self, contents: Contents) -> Result<PreparedVersion> {
        assert!(!self.place.read_only, "nothing may be written");
        let held = write(&self.place, &*self.place.files, &contents)?;
        self.written.fetch_add(held.token.0[1], Ordering::Relaxed);
        if let Err(error) = self.place.files.sync_directory() {
            held.obsolete.store(true, Ordering::Release);
            return Err(error);
        }
        let mut state = lock(&self.state);
        state.through = contents.through;
        let token = held.token;
        let view = View::new(&self.place, Some(held), contents, self.plan.lazy);
        state.prepared.push(Arc::clone(&view));
        Ok(PreparedVersion { token, view })
    }
}

impl OperandStoreFactory for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn open(
        &self,
        place: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        let (held, contents) = match token {
            Some(token) => {
                let path = place.files.path(OperandFileKind::Log, token.0[0]);
                let file = place.files.vfs().open(&path).map_err(|source| Error::Io {
                    action: "open",
                    path: path.clone(),
                    source: Arc::new(source),
                })?;
                let obsolete = false.into();
                let held = Arc::new(Held { place: place.clone(), file, token, obsolete });
                let contents = held.read()?;
                (Some(held), contents)
            }
            None => (None, Contents::default()),
        };
        let through = contents.through;
        let committed = Some(View::new(&place, held, contents, self.lazy));
        let state = Mutex::new(State { committed, through, ..State::default() });
        let (operands, anchors, written, to_tree) = Default::default();
        Ok(Arc::new(Store { plan: *self, place, state, operands, anchors, written, to_tree }))
    }

    fn verify(&self, place: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        Ok(self.open(place, Some(token))?.metrics())
    }
}

impl OperandStore for Store {
    fn view(&self) -> Arc<dyn OperandView> {
        let state = lock(&self.state);
        Arc::clone(state.committed.as_ref().expect("there is a view from the opening on")) as _
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>> {
        assert!(through > lock(&self.state).through, "a delivery is newer than all before");
        self.place.env.yield_point(YieldKind::JobStep);
        let mut contents = (*self.latest().load()?).clone();
        let newer_than = contents.through;
        contents.through = through;
        Ok(Box::new(Deliver { store: self, contents, newer_than, last: None }))
    }

    fn mark_committed(&self, token: StoreToken) {
        let mut state = lock(&self.state);
        let of = |view: &Arc<View>| view.held.as_ref().map(|held| held.token) == Some(token);
        let Some(at) = state.prepared.iter().position(of) else {
            assert!(state.committed.as_ref().is_some_and(of), "a commit of what was not prepared");
            return;
        };
        let mut gone: Vec<_> = state.prepared.drain(..=at).collect();
        let committed = gone.pop();
        gone.extend(std::mem::replace(&mut state.committed, committed));
        let gone = gone.into_iter().filter_map(|view| view.held.clone());
        let gone: Vec<_> = gone.chain(std::mem::take(&mut state.abandoned)).collect();
        drop(state);
        for held in gone {
            held.obsolete.store(true, Ordering::Release);
        }
    }

    fn abandon(&self) {
        let mut state = lock(&self.state);
        let prepared = std::mem::take(&mut state.prepared);
        state.abandoned.extend(prepared.iter().filter_map(|view| view.held.clone()));
        let committed = state.committed.as_ref().and_then(|view| view.held.as_ref());
        state.through = committed.map_or(SeqNo::ZERO, |held| SeqNo(held.token.0[3]));
    }

    fn is_collection_due(&self) -> bool {
        lock(&self.state).deliveries >= self.plan.collect_after
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>> {
        self.place.env.yield_point(YieldKind::JobStep);
        let mut state = lock(&self.state);
        state.deliveries = 0;
        state.collections += 1;
        let to_tree = state.collections.is_multiple_of(self.plan.to_tree_one_in);
        let view = Arc::clone(state.committed.as_ref().expect("there is a view"));
        drop(state);
        let visible = snapshots.last().copied().expect("the last number that is visible");
        let began = view.load()?.through.min(visible);
        let snapshots = snapshots.to_vec();
        Ok(Some(Box::new(Collect {
            store: self,
            snapshots,
            began,
            to_tree,
            left: BTreeSet::new(),
        })))
    }

    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>> {
        let (snapshots, left) = Default::default();
        Ok(Box::new(Collect { store: self, snapshots, began: SeqNo::MAX, to_tree: true, left }))
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        let state = lock(&self.state);
        let held = state.committed.as_ref().and_then(|view| view.held.as_ref());
        held.map(|held| (OperandFileKind::Log, held.token.0[0])).into_iter().collect()
    }

    fn memory_bytes(&self) -> u64 {
        self.latest().keys.iter().map(|key| key.len() as u64).sum()
    }

    fn metrics(&self) -> OperandMetrics {
        let latest = self.latest();
        OperandMetrics {
            log_bytes: latest.held.as_ref().map_or(0, |held| held.token.0[1]),
            log_written_bytes: self.written.load(Ordering::Relaxed),
            operands: self.operands.load(Ordering::Relaxed),
            anchors: self.anchors.load(Ordering::Relaxed),
            to_tree: self.to_tree.load(Ordering::Relaxed),
            ..OperandMetrics::default()
        }
    }
}

struct Deliver<'a> {
    store: &'a Store,
    contents: Contents,
    /// All that comes has larger numbers.
    newer_than: SeqNo,
    /// What came last.
    last: Option<(Vec<u8>, SeqNo)>,
}

impl Deliver<'_> {
    fn check(&mut self, key: &[u8], seq: SeqNo) {
        assert!(seq > self.newer_than && seq <= self.contents.through, "{seq:?} is out of bounds");
        if let Some((last, at)) = &self.last {
            assert!((last.as_slice(), seq) < (key, *at) || last.as_slice() < key, "out of order");
        }
        self.last = Some((key.to_vec(), seq));
    }
}

impl OperandDelivery for Deliver<'_> {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.contents.keys.contains_key(key)
    }

    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.store.place.env.yield_point(YieldKind::FlushBlock);
        self.check(key, seq);
        self.store.operands.fetch_add(1, Ordering::Relaxed);
        let operand = Operand { first: seq, last: seq, bytes: Slice::from(operand) };
        self.contents.push(key, Item::Operand(operand));
        Ok(())
    }

    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        self.check(key, seq);
        self.store.anchors.fetch_add(1, Ordering::Relaxed);
        self.contents.push(key, Item::Anchor(seq));
        Ok(())
    }

    fn add_range_delete_marker(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<()> {
        assert!(seq > self.newer_than && seq <= self.contents.through, "{seq:?} is out of bounds");
        self.contents.ranges.push((start.to_vec(), end.map(<[u8]>::to_vec), seq));
        Ok(())
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let Deliver { store, contents, .. } = *self;
        let prepared = store.prepare(contents)?;
        lock(&store.state).deliveries += 1;
        Ok(prepared)
    }
}

struct Collect<'a> {
    store: &'a Store,
    snapshots: Vec<SeqNo>,
    /// What came later came with snapshots that are not known here.
    began: SeqNo,
    to_tree: bool,
    /// Keys that left.
    left: BTreeSet<Vec<u8>>,
}

impl Collect<'_> {
    /// What there is now, tidied.
    fn now(&self) -> Result<Contents> {
        let mut contents = (*self.store.latest().load()?).clone();
        contents.tidy(&self.snapshots, self.began, &self.store.place);
        Ok(contents)
    }
}

impl OperandCollection for Collect<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        if !self.to_tree {
            return Ok(None);
        }
        let contents = self.now()?;
        let mut list = Vec::new();
        for (key, items) in &contents.keys {
            let seen = contents.seen(key, SeqNo::MAX);
            let operands = items.iter().filter(|item| matches!(item, Item::Operand(_))).count();
            // What a snapshot sees of it cannot be in the tree below what voids it.
            if seen.len() == operands || self.began == SeqNo::MAX {
                self.left.insert(key.clone());
                list.extend(seen.into_iter().map(|operand| (key.clone(), operand)));
            }
        }
        self.store.to_tree.fetch_add(self.left.len() as u64, Ordering::Relaxed);
        let source = Source::List(list);
        Ok(Some(Box::new(Walk { source, at: SeqNo::MAX, entries: None, place: None })))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let mut contents = self.now()?;
        contents.keys.retain(|key, _| !self.left.contains(key));
        contents.tidy(&self.snapshots, self.began, &self.store.place);
        self.store.prepare(contents)
    }
}

impl fmt::Debug for Collect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collect").field("began", &self.began).finish_non_exhaustive()
    }
}
