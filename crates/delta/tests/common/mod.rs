//! A driver that calls a store as the engine does, with flushes, commits, collections and crashes.
//!
//! The driver's tree is a list of the operands that collections moved out of the store.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of the module")]
#![allow(clippy::unwrap_used, clippy::missing_errors_doc, missing_docs, reason = "test code")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use lsmx::operand_store::{
    Cursor, Operand, OperandCollection, OperandReadTier, OperandStore, OperandStoreFactory,
    OperandView, PreparedVersion, StoreContext, StoreToken,
};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{EntryKind, Error, Result, SeqNo};
use lsmx_base::sync::{Arc, Mutex, Ordering};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;
use lsmx_testkit::delta::{ReadCounts, StoreDir};

/// Maximum length of an operand that a partial merge returns.
const MERGED_BYTES_MAX: usize = 24;

pub fn store_context(files: &Arc<StoreDir>, counts: &Arc<ReadCounts>) -> StoreContext {
    lsmx_testkit::delta::store_context(files, counts, MERGED_BYTES_MAX)
}

/// Returns a file system with an empty database directory.
pub fn disk() -> MemVfs {
    let mem = MemVfs::new();
    mem.create_dir(Path::new("db")).unwrap();
    mem.sync_dir(Path::new("")).unwrap();
    mem
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Operand(Vec<u8>),
    DeleteMarker,
}

/// Key, sequence number and bytes of an operand.
pub type Entry = (Vec<u8>, u64, Vec<u8>);

/// Model of a store: the delivered operands and delete markers of each key, by sequence number, and the range delete
/// markers.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub keys: BTreeMap<Vec<u8>, BTreeMap<u64, Event>>,
    /// Start, end and sequence number of each range delete marker.
    pub range_markers: Vec<(Vec<u8>, Option<Vec<u8>>, u64)>,
    /// Operands that collections moved to the tree.
    pub tree: Vec<Entry>,
    /// Sequence number of the last delivery.
    pub through: u64,
}

impl Model {
    /// Returns the sequence number of the newest delete marker of a key that is visible at `at`, or 0.
    pub fn newest_marker(&self, key: &[u8], at: u64) -> u64 {
        let ranges = self.range_markers.iter().filter(|(start, end, seq)| {
            *seq <= at && **start <= *key && end.as_ref().is_none_or(|end| *key < **end)
        });
        let own = self.keys.get(key).into_iter().flat_map(|events| events.range(..=at));
        let own = own.filter(|(_, event)| **event == Event::DeleteMarker).map(|(seq, _)| *seq);
        ranges.map(|range| range.2).chain(own).max().unwrap_or(0)
    }

    /// Returns the concatenated operands of a key that a reader at sequence number `at` sees.
    fn expected(&self, key: &[u8], at: u64) -> Vec<u8> {
        let marker = self.newest_marker(key, at);
        let events = self.keys.get(key).into_iter().flat_map(|events| events.range(marker..=at));
        let operands = events.map(|(_, event)| match event {
            Event::Operand(bytes) => &bytes[..],
            Event::DeleteMarker => &[],
        });
        operands.flatten().copied().collect()
    }

    /// Works like [`Model::expected`], but only with the first `len` operands that moved to the tree.
    fn expected_in_tree(&self, key: &[u8], at: u64, len: usize) -> Vec<u8> {
        let marker = self.newest_marker(key, at);
        let is_visible = |(own, seq, _): &&Entry| own == key && (marker..=at).contains(seq);
        let mut visible: Vec<_> = self.tree[..len].iter().filter(is_visible).collect();
        visible.sort_by_key(|(_, seq, _)| *seq);
        visible.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect()
    }
}

#[derive(Clone, Debug)]
pub enum Write {
    Operand { key: Vec<u8>, bytes: usize },
    DeleteMarker { key: Vec<u8> },
    RangeDeleteMarker { start: Vec<u8>, end: Option<Vec<u8>> },
}

/// Draws writes to 20 keys, mostly operands.
pub fn draw_writes(rng: &mut TestRng, count: usize, has_ranges: bool) -> Vec<Write> {
    let mut draw = |_| {
        let key = format!("key{:02}", rng.below(20)).into_bytes();
        match rng.below(12) {
            0 => Write::DeleteMarker { key },
            1 if has_ranges => {
                let end = (!rng.is_one_in(4)).then(|| b"key19".to_vec());
                Write::RangeDeleteMarker { start: key, end }
            }
            _ => Write::Operand { key, bytes: 12 },
        }
    };
    (0..count).map(&mut draw).collect()
}

/// The committed state: the token, the model and the snapshots. The engine would store it in its manifest.
pub type Committed = (Option<StoreToken>, Model, BTreeSet<u64>);

#[derive(Debug)]
pub struct Driver {
    pub mem: MemVfs,
    pub files: Arc<StoreDir>,
    pub counts: Arc<ReadCounts>,
    pub options: DeltaOptions,
    pub store: Arc<dyn OperandStore>,
    pub token: Option<StoreToken>,
    pub model: Model,
    pub seq: u64,
    pub snapshots: BTreeSet<u64>,
    /// The last committed state. It is updated before the store may discard files.
    pub committed: Arc<Mutex<Committed>>,
}

impl Driver {
    pub fn new(options: DeltaOptions) -> Driver {
        let mem = disk();
        Driver::on(mem.clone(), Arc::new(mem), options)
    }

    /// Opens a new store. `vfs` must forward its calls to `mem`.
    pub fn on(mem: MemVfs, vfs: Arc<dyn Vfs>, options: DeltaOptions) -> Driver {
        let files = StoreDir::new(vfs, "db", 1);
        let counts = Arc::<ReadCounts>::default();
        let context = store_context(&files, &counts);
        let store = DeltaStoreFactory::new(options).open(context, None).unwrap();
        let (token, seq, model, snapshots) = (None, 0, Model::default(), BTreeSet::new());
        let committed = Arc::default();
        Driver { mem, files, counts, options, store, token, model, seq, snapshots, committed }
    }

    /// Returns a store whose files contain all kinds of data.
    ///
    /// It has sorted parts, unsorted pages, tails, files from before a reopen, and a log with all kinds of frames.
    pub fn sample(cache_bytes: u64) -> Driver {
        let options = DeltaOptions::default().bucket_bytes(1024).log_bytes_max(2500);
        let mut driver = Driver::new(options.cache_bytes(cache_bytes));
        let mut rng = TestRng::new(7);
        for round in 0..14 {
            driver.flush(&draw_writes(&mut rng, 25, round > 10));
            if round < 12 {
                driver.collect(None).unwrap();
            }
            if round == 9 {
                driver.reopen().unwrap();
            }
        }
        driver.check().unwrap();
        driver.verify().unwrap();
        driver
    }

    /// Fills a few buckets with sorted and unsorted parts of many pages.
    ///
    /// Each round delivers 60 operands to some of 200 keys, and runs a collection if one is due.
    pub fn fill_buckets(&mut self, rounds: Range<u64>) {
        for round in rounds {
            let write = |number: u64| {
                let key = format!("key{:03}", (number * 7 + round) % 200).into_bytes();
                Write::Operand { key, bytes: 30 }
            };
            self.flush(&(0..60).map(write).collect::<Vec<_>>());
            self.collect(None).unwrap();
        }
    }

    /// Prepares a delivery of writes with the next sequence numbers. Returns the prepared version, and the model with
    /// these writes.
    pub fn deliver(&mut self, writes: &[Write]) -> Result<(PreparedVersion, Model)> {
        let mut model = self.model.clone();
        let prepared = self.deliver_on(&mut model, writes)?;
        Ok((prepared, model))
    }

    pub fn deliver_on(&mut self, model: &mut Model, writes: &[Write]) -> Result<PreparedVersion> {
        let mut flush: BTreeMap<Vec<u8>, BTreeMap<u64, Event>> = BTreeMap::new();
        let mut ranges = Vec::new();
        for write in writes {
            self.seq += 1;
            let (key, event) = match write {
                Write::Operand { key, bytes } => {
                    let mut operand = format!("{},", self.seq).into_bytes();
                    operand.resize(operand.len().max(*bytes), b'.');
                    (key, Event::Operand(operand))
                }
                Write::DeleteMarker { key } => (key, Event::DeleteMarker),
                Write::RangeDeleteMarker { start, end } => {
                    ranges.push((start.clone(), end.clone(), self.seq));
                    continue;
                }
            };
            flush.entry(key.clone()).or_default().insert(self.seq, event);
        }
        let mut delivery = self.store.deliver(SeqNo(self.seq))?;
        for (key, events) in &flush {
            for (seq, event) in events.iter().rev() {
                match event {
                    Event::Operand(bytes) => delivery.add_operand(key, SeqNo(*seq), bytes)?,
                    Event::DeleteMarker => {
                        let has_older = events.range(..seq).next().is_some();
                        if has_older || delivery.may_contain(key) {
                            delivery.add_delete_marker(key, SeqNo(*seq))?;
                        }
                    }
                }
            }
        }
        for (start, end, seq) in &ranges {
            delivery.add_range_delete_marker(start, end.as_deref(), SeqNo(*seq))?;
        }
        let prepared = delivery.prepare()?;
        for (key, events) in flush {
            model.keys.entry(key).or_default().extend(events);
        }
        model.range_markers.extend(ranges);
        model.through = self.seq;
        Ok(prepared)
    }

    pub fn commit(&mut self, prepared: &PreparedVersion, model: Model) {
        (self.token, self.model) = (Some(prepared.token), model);
        self.save_committed();
        self.store.mark_committed(prepared.token);
    }

    pub fn save_committed(&self) {
        *self.committed.lock() = (self.token, self.model.clone(), self.snapshots.clone());
    }

    /// Continues with a saved state. Later writes get larger sequence numbers than all earlier ones.
    pub fn restore_committed(&mut self, committed: Committed) {
        (self.token, self.model, self.snapshots) = committed;
        self.seq = self.seq.max(self.model.through) + 1000;
    }

    /// Delivers and commits.
    pub fn flush(&mut self, writes: &[Write]) {
        let (prepared, model) = self.deliver(writes).unwrap();
        self.commit(&prepared, model);
    }

    /// Returns the sequence numbers of the snapshots, followed by the newest visible sequence number. The engine passes
    /// this list to a collection.
    pub fn snapshots(&self) -> Vec<SeqNo> {
        let before = self.snapshots.iter().filter(|seq| **seq < self.model.through);
        before.chain([&self.model.through]).map(|seq| SeqNo(*seq)).collect()
    }

    /// Runs and commits a collection if one is due. Delivers the writes of `between` after the start of the collection.
    pub fn collect(&mut self, between: Option<&[Write]>) -> Result<bool> {
        let store = self.store.clone();
        let Some(collection) = store.collect(&self.snapshots())? else { return Ok(false) };
        if let Some(writes) = between {
            let (prepared, model) = self.deliver(writes)?;
            self.commit(&prepared, model);
        }
        self.finish_collection(collection)?;
        Ok(true)
    }

    /// Moves all operands to the tree.
    pub fn collect_all(&mut self) -> Result<()> {
        let store = self.store.clone();
        self.finish_collection(store.collect_all()?)
    }

    pub fn finish_collection(
        &mut self,
        mut collection: Box<dyn OperandCollection + '_>,
    ) -> Result<()> {
        let mut model = self.model.clone();
        if let Some(mut moved) = collection.moved_operands()? {
            move_to_tree(&mut model, &mut *moved)?;
        }
        let prepared = collection.prepare()?;
        self.commit(&prepared, model);
        Ok(())
    }

    /// Opens the store in its committed state again, and removes all files that this state does not need.
    pub fn reopen(&mut self) -> Result<()> {
        let vfs = self.files.vfs.clone();
        self.reopen_on(vfs)
    }

    pub fn reopen_on(&mut self, vfs: Arc<dyn Vfs>) -> Result<()> {
        self.open_on(vfs)?;
        let live: BTreeSet<_> = self.store.live_files().into_iter().collect();
        let existing = self.files.existing_files();
        assert!(live.is_subset(&existing), "{live:?} {existing:?}");
        for (kind, number) in existing.difference(&live) {
            let path = lsmx::operand_store::OperandFiles::path(&*self.files, *kind, *number);
            self.files.vfs.remove(&path).unwrap();
        }
        Ok(())
    }

    /// Opens the store in its committed state, and keeps all other files.
    pub fn open_on(&mut self, vfs: Arc<dyn Vfs>) -> Result<()> {
        // A crash may have left files with numbers that this driver does not know.
        let next = self.files.next_number.load(Ordering::Relaxed) + 100;
        self.files = StoreDir::new(vfs, "db", next);
        self.counts = Arc::default();
        let context = store_context(&self.files, &self.counts);
        self.store = DeltaStoreFactory::new(self.options).open(context, self.token)?;
        Ok(())
    }

    pub fn verify(&self) -> Result<()> {
        let Some(token) = self.token else { return Ok(()) };
        let context = store_context(&self.files, &Arc::default());
        DeltaStoreFactory::new(self.options).verify(context, token)?;
        Ok(())
    }

    /// Compares the committed view with the model at every snapshot and at the newest sequence number. Checks that no
    /// file was discarded twice.
    pub fn check(&self) -> Result<()> {
        let discarded = self.files.discarded.lock();
        let distinct: BTreeSet<_> = discarded.iter().collect();
        assert_eq!(distinct.len(), discarded.len(), "a file was discarded twice: {discarded:?}");
        let view = self.store.view();
        let len = self.model.tree.len();
        for at in self.snapshots.iter().copied().chain([self.model.through, SeqNo::MAX.0]) {
            check_view(&view, &self.model, at, len)?;
        }
        Ok(())
    }
}

fn move_to_tree(model: &mut Model, cursor: &mut dyn Cursor) -> Result<()> {
    let before = model.tree.len();
    cursor.first()?;
    while cursor.valid() {
        let key = cursor.key();
        assert_eq!(key.kind, EntryKind::Merge);
        // An operand that moves to the tree must be newer than all operands of its key in the tree.
        let marker = model.newest_marker(key.user_key, u64::MAX);
        assert!(key.seq.0 > marker, "{} moves below {marker}", key.seq);
        let older = model.tree[..before].iter().filter(|it| it.0 == key.user_key);
        assert!(older.map(|it| it.1).max().is_none_or(|older| older < key.seq.0));
        model.tree.push((key.user_key.to_vec(), key.seq.0, cursor.value().to_vec()));
        cursor.next()?;
    }
    Ok(())
}

/// Reads the operands of a key from storage, and concatenates them from oldest to newest.
pub fn read_operands(view: &dyn OperandView, key: &[u8], at: SeqNo) -> Result<Vec<u8>> {
    let mut found = Vec::new();
    view.read_operands(key, at, OperandReadTier::Storage, &mut found)?;
    assert!(found.iter().all(|operand| operand.last <= at));
    Ok(concat_operands(&found))
}

/// Concatenates operands from oldest to newest. The input is ordered from newest to oldest.
fn concat_operands(operands: &[Operand]) -> Vec<u8> {
    assert!(operands.windows(2).all(|two| two[0].first > two[1].last), "{operands:?}");
    operands.iter().rev().flat_map(|operand| operand.bytes.to_vec()).collect()
}

fn read_cursor(cursor: &mut dyn Cursor, is_forward: bool) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    if is_forward {
        cursor.first()?
    } else {
        cursor.last()?
    }
    while cursor.valid() {
        let key = cursor.key();
        assert_eq!(cursor.value_slice(), cursor.value());
        entries.push((key.user_key.to_vec(), key.seq.0, cursor.value().to_vec()));
        if is_forward { cursor.next()? } else { cursor.prev()? }
    }
    if !is_forward {
        entries.reverse();
    }
    Ok(entries)
}

/// Compares the operands that a reader sees with the model, by lookups, seeks and cursors in both directions.
/// `tree_len` is the number of operands in the tree that the reader sees.
pub fn check_view(
    view: &Arc<dyn OperandView>,
    model: &Model,
    at: u64,
    tree_len: usize,
) -> Result<()> {
    let mut looked_up: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for key in model.keys.keys() {
        let own = read_operands(&**view, key, SeqNo(at))?;
        let all = [model.expected_in_tree(key, at, tree_len), own.clone()].concat();
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let expected = model.expected(key, at);
        assert_eq!(shown(&all), shown(&expected), "key {} at {at}", shown(key));
        // A read from memory returns the same operands or fails with `WouldBlock`.
        let mut from_memory = Vec::new();
        match view.read_operands(key, SeqNo(at), OperandReadTier::Memory, &mut from_memory) {
            Ok(()) => assert_eq!(concat_operands(&from_memory), own),
            Err(Error::WouldBlock) => {}
            Err(other) => return Err(other),
        }
        if !own.is_empty() {
            assert!(view.may_contain(key) && !view.is_empty());
            looked_up.insert(key.clone(), own);
        }
    }
    assert!(read_operands(&**view, b"never written", SeqNo(at))?.is_empty());
    let mut cursor = view.clone().cursor(SeqNo(at), OperandReadTier::Storage);
    let entries = read_cursor(&mut *cursor, true)?;
    assert_eq!(entries, read_cursor(&mut *cursor, false)?);
    assert!(entries.is_sorted_by(|a, b| (&a.0, b.1) < (&b.0, a.1)));
    let mut scanned: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (key, _, bytes) in entries.iter().rev() {
        scanned.entry(key.clone()).or_default().extend_from_slice(bytes);
    }
    assert_eq!(scanned, looked_up);
    let position = |cursor: &dyn Cursor| {
        cursor.valid().then(|| (cursor.key().user_key.to_vec(), cursor.key().seq.0))
    };
    let entry_at = |index: Option<usize>| {
        let entry = index.and_then(|index| entries.get(index));
        entry.map(|(key, seq, _)| (key.clone(), *seq))
    };
    for key in model.keys.keys() {
        for seq in [SeqNo::MAX, SeqNo(at / 2)] {
            let is_before = |entry: &Entry| (&entry.0, Reverse(entry.1)) < (key, Reverse(seq.0));
            let split = entries.partition_point(is_before);
            cursor.seek(key, seq)?;
            assert_eq!(position(&*cursor), entry_at(Some(split)));
            if cursor.valid() {
                cursor.prev()?;
                assert_eq!(position(&*cursor), entry_at(split.checked_sub(1)));
            }
            cursor.seek_before(key, seq)?;
            assert_eq!(position(&*cursor), entry_at(split.checked_sub(1)));
            if cursor.valid() {
                cursor.next()?;
                assert_eq!(position(&*cursor), entry_at(Some(split)));
            }
        }
    }
    Ok(())
}
