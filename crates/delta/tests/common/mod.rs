//! Plays the engine's part against a store: flushes, commits, crashes, and a tree of which only the
//! operands that left for it and the puts are known.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::missing_errors_doc, missing_docs, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lsmx::env::{Background, Env};
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{
    Operand, OperandFileKind, OperandFiles, OperandMerger, OperandReadCounters, OperandReadTier,
    OperandStore, OperandStoreFactory, OperandView, PreparedVersion, StoreContext, StoreToken,
};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{EntryKind, Error, Result, SeqNo};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

/// Files in one directory.
#[derive(Debug)]
pub struct Files {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    pub next: AtomicU64,
    pub discarded: Mutex<BTreeSet<(OperandFileKind, u64)>>,
}

impl Files {
    pub fn new(vfs: Arc<dyn Vfs>, dir: &str, next: u64) -> Arc<Files> {
        let (dir, next) = (PathBuf::from(dir), AtomicU64::new(next));
        Arc::new(Files { vfs, dir, next, discarded: Mutex::default() })
    }

    /// Kinds and numbers of the files that are there.
    pub fn existing_files(&self) -> BTreeSet<(OperandFileKind, u64)> {
        let names = self.vfs.list(&self.dir).unwrap();
        let kind = |name: &String| {
            let (number, kind) = name.split_once('.').unwrap();
            let kind = match kind {
                "operands" => OperandFileKind::Log,
                "bucket" => OperandFileKind::Bucket,
                _ => panic!("{name}"),
            };
            (kind, number.parse().unwrap())
        };
        names.iter().map(kind).collect()
    }
}

fn io(action: &'static str, path: &std::path::Path, source: std::io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
}

impl OperandFiles for Files {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        let extension = match kind {
            OperandFileKind::Log => "operands",
            OperandFileKind::Bucket => "bucket",
        };
        self.dir.join(format!("{number:06}.{extension}"))
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        lsmx_base::sync::assert_unlocked();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path(kind, number);
        let file = self.vfs.create(&path).map_err(|e| io("create", &path, e))?;
        Ok((number, file))
    }

    fn sync_directory(&self) -> Result<()> {
        self.vfs.sync_dir(&self.dir).map_err(|e| io("sync", &self.dir, e))
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        assert!(self.discarded.lock().insert((kind, number)), "{kind:?} {number} twice");
        // A file system that fails leaves it there, as the engine's would for a while.
        let _ = self.vfs.remove(&self.path(kind, number));
    }
}

/// Appends; long operands do not fold.
#[derive(Debug)]
pub struct AppendFolds;

const FOLDED_BYTES_MAX: usize = 24;

impl OperandMerger for AppendFolds {
    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        (older.len() + newer.len() <= FOLDED_BYTES_MAX).then(|| [older, newer].concat())
    }
}

#[derive(Debug, Default)]
pub struct Counts {
    pub hits: AtomicU64,
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
}

impl OperandReadCounters for Counts {
    fn record_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    fn record_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

pub fn store_context(files: &Arc<Files>, counts: &Arc<Counts>) -> StoreContext {
    StoreContext {
        keyspace: "default".to_owned(),
        files: files.clone(),
        env: Env::new(Background::Inline, Some(files.next.load(Ordering::Relaxed))),
        merger: Arc::new(AppendFolds),
        read_counters: counts.clone(),
        memory_bytes: None,
        direct_reads: false,
        read_only: false,
    }
}

/// Something that was written, or left for the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Operand(Vec<u8>),
    DeleteMarker,
}

/// Key, number and bytes of an operand.
pub type Entry = (Vec<u8>, u64, Vec<u8>);

/// The delivered events of each key by sequence number, and the delivered range delete markers.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub keys: BTreeMap<Vec<u8>, BTreeMap<u64, Event>>,
    pub range_markers: Vec<(Vec<u8>, Option<Vec<u8>>, u64)>,
    /// Operands in the tree: key, number, bytes.
    pub tree: Vec<Entry>,
    pub through: u64,
}

impl Model {
    /// Newest delete marker of a key up to a number.
    pub fn newest_marker(&self, key: &[u8], at: u64) -> u64 {
        let ranges = self.range_markers.iter().filter(|(start, end, seq)| {
            *seq <= at && **start <= *key && end.as_ref().is_none_or(|end| *key < **end)
        });
        let own = self.keys.get(key).into_iter().flat_map(|events| events.range(..=at));
        let own = own.filter(|(_, event)| **event == Event::DeleteMarker).map(|(seq, _)| *seq);
        ranges.map(|range| range.2).chain(own).max().unwrap_or(0)
    }

    /// What the operands of a key amount to for a reader.
    pub fn expected(&self, key: &[u8], at: u64) -> Vec<u8> {
        let marker = self.newest_marker(key, at);
        let events = self.keys.get(key).into_iter().flat_map(|events| events.range(marker..=at));
        let mut all = Vec::new();
        for (_, event) in events {
            if let Event::Operand(bytes) = event {
                all.extend_from_slice(bytes);
            }
        }
        all
    }

    /// What the first `len` operands in the tree amount to.
    pub fn in_tree(&self, key: &[u8], at: u64, len: usize) -> Vec<u8> {
        let marker = self.newest_marker(key, at);
        let mut own: Vec<_> = self.tree[..len]
            .iter()
            .filter(|(own, seq, _)| own == key && (marker..=at).contains(seq))
            .collect();
        own.sort_by_key(|(_, seq, _)| *seq);
        own.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect()
    }
}

/// One write of a flush.
#[derive(Clone, Debug)]
pub enum Write {
    Operand { key: Vec<u8>, bytes: usize },
    DeleteMarker { key: Vec<u8> },
    RangeDeleteMarker { start: Vec<u8>, end: Option<Vec<u8>> },
}

/// The engine's part.
#[derive(Debug)]
pub struct Driver {
    pub mem: MemVfs,
    pub files: Arc<Files>,
    pub counts: Arc<Counts>,
    pub options: DeltaOptions,
    pub store: Arc<dyn OperandStore>,
    pub token: Option<StoreToken>,
    pub model: Model,
    pub seq: u64,
    pub snapshots: BTreeSet<u64>,
}

impl Driver {
    pub fn new(options: DeltaOptions) -> Driver {
        let mem = MemVfs::new();
        mem.create_dir(std::path::Path::new("db")).unwrap();
        mem.sync_dir(std::path::Path::new("")).unwrap();
        Driver::on(mem.clone(), Arc::new(mem), options)
    }

    pub fn on(mem: MemVfs, vfs: Arc<dyn Vfs>, options: DeltaOptions) -> Driver {
        let files = Files::new(vfs, "db", 1);
        let counts = Arc::<Counts>::default();
        let store =
            DeltaStoreFactory::new(options).open(store_context(&files, &counts), None).unwrap();
        let (model, snapshots) = (Model::default(), BTreeSet::new());
        Driver { mem, files, counts, options, store, token: None, model, seq: 0, snapshots }
    }

    /// Delivers writes with the next numbers; the model afterwards.
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
            match write {
                Write::Operand { key, bytes } => {
                    let mut operand = format!("{},", self.seq).into_bytes();
                    operand.resize(operand.len().max(*bytes), b'.');
                    flush.entry(key.clone()).or_default().insert(self.seq, Event::Operand(operand));
                }
                Write::DeleteMarker { key } => {
                    flush.entry(key.clone()).or_default().insert(self.seq, Event::DeleteMarker);
                }
                Write::RangeDeleteMarker { start, end } => {
                    ranges.push((start.clone(), end.clone(), self.seq));
                }
            }
        }
        let mut delivery = self.store.deliver(SeqNo(self.seq))?;
        for (key, events) in &flush {
            for (seq, event) in events.iter().rev() {
                match event {
                    Event::Operand(bytes) => delivery.add_operand(key, SeqNo(*seq), bytes)?,
                    Event::DeleteMarker => {
                        let older = events.range(..seq).next().is_some();
                        if older || delivery.may_contain(key) {
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
        self.token = Some(prepared.token);
        self.model = model;
        self.store.mark_committed(prepared.token);
    }

    /// Delivers and commits.
    pub fn flush(&mut self, writes: &[Write]) {
        let (prepared, model) = self.deliver(writes).unwrap();
        self.commit(&prepared, model);
    }

    /// What the engine says when a collection begins: snapshots, and the last number that is visible.
    pub fn snapshots(&self) -> Vec<SeqNo> {
        let before = self.snapshots.iter().filter(|seq| **seq < self.model.through);
        before.chain([&self.model.through]).map(|seq| SeqNo(*seq)).collect()
    }

    /// Collects what is due, with a delivery in the middle if there are writes; commits.
    pub fn collect(&mut self, between: Option<&[Write]>) -> Result<bool> {
        let store = self.store.clone();
        let Some(mut collection) = store.collect(&self.snapshots())? else { return Ok(false) };
        if let Some(writes) = between {
            let (prepared, model) = self.deliver(writes)?;
            self.commit(&prepared, model);
        }
        let mut model = self.model.clone();
        if let Some(mut leaving) = collection.moved_operands()? {
            move_to_tree(&mut model, &mut *leaving)?;
        }
        let prepared = collection.prepare()?;
        self.commit(&prepared, model);
        Ok(true)
    }

    /// Everything leaves for the tree.
    pub fn collect_all(&mut self) -> Result<()> {
        let store = self.store.clone();
        let mut collection = store.collect_all()?;
        let mut model = self.model.clone();
        if let Some(mut leaving) = collection.moved_operands()? {
            move_to_tree(&mut model, &mut *leaving)?;
        }
        let prepared = collection.prepare()?;
        self.commit(&prepared, model);
        Ok(())
    }

    /// Opens the store anew as of what is committed.
    pub fn reopen(&mut self) -> Result<()> {
        let vfs = self.files.vfs.clone();
        self.reopen_on(vfs)
    }

    pub fn reopen_on(&mut self, vfs: Arc<dyn Vfs>) -> Result<()> {
        self.open_on(vfs)?;
        let live: BTreeSet<_> = self.store.live_files().into_iter().collect();
        let there = self.files.existing_files();
        assert!(live.is_subset(&there), "{live:?} {there:?}");
        for (kind, number) in there.difference(&live) {
            self.files.vfs.remove(&self.files.path(*kind, *number)).unwrap();
        }
        Ok(())
    }

    /// Opens the store as of what is committed, whatever files are there.
    pub fn open_on(&mut self, vfs: Arc<dyn Vfs>) -> Result<()> {
        // No number is used twice, whatever a crash has left.
        let next = self.files.next.load(Ordering::Relaxed) + 100;
        self.files = Files::new(vfs, "db", next);
        self.counts = Arc::default();
        let context = store_context(&self.files, &self.counts);
        self.store = DeltaStoreFactory::new(self.options).open(context, self.token)?;
        Ok(())
    }

    pub fn verify(&self) -> Result<()> {
        let Some(token) = self.token else { return Ok(()) };
        let counts = Arc::<Counts>::default();
        DeltaStoreFactory::new(self.options).verify(store_context(&self.files, &counts), token)?;
        Ok(())
    }

    /// Compares all that readers of what is committed may see.
    pub fn check(&self) -> Result<()> {
        let view = self.store.view();
        let len = self.model.tree.len();
        for at in self.snapshots.iter().copied().chain([self.model.through, SeqNo::MAX.0]) {
            check_view(&view, &self.model, at, len)?;
        }
        Ok(())
    }
}

pub fn move_to_tree(model: &mut Model, cursor: &mut dyn Cursor) -> Result<()> {
    let before = model.tree.len();
    cursor.first()?;
    while cursor.valid() {
        let key = cursor.key();
        assert_eq!(key.kind, EntryKind::Merge);
        // It becomes the newest of its key in the tree.
        let marker = model.newest_marker(key.user_key, u64::MAX);
        assert!(key.seq.0 > marker, "{} moves below {marker}", key.seq);
        let older = model.tree[..before].iter().filter(|it| it.0 == key.user_key);
        assert!(older.map(|it| it.1).max().is_none_or(|older| older < key.seq.0));
        model.tree.push((key.user_key.to_vec(), key.seq.0, cursor.value().to_vec()));
        cursor.next()?;
    }
    Ok(())
}

/// What operands, newest first, amount to.
pub fn concat_operands(operands: &[Operand]) -> Vec<u8> {
    assert!(operands.windows(2).all(|two| two[0].first > two[1].last), "{operands:?}");
    operands.iter().rev().flat_map(|operand| operand.bytes.to_vec()).collect()
}

/// Compares what a reader of a view at a number sees, key by key and by cursors both ways, with the model,
/// of whose tree the reader knows `tree` operands.
pub fn check_view(view: &Arc<dyn OperandView>, model: &Model, at: u64, tree: usize) -> Result<()> {
    let mut by_key: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for key in model.keys.keys() {
        let mut found = Vec::new();
        view.read_operands(key, SeqNo(at), OperandReadTier::Storage, &mut found)?;
        assert!(found.iter().all(|operand| operand.last.0 <= at));
        let own = concat_operands(&found);
        let whole = [model.in_tree(key, at, tree), own.clone()].concat();
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let expected = model.expected(key, at);
        assert_eq!(shown(&whole), shown(&expected), "key {} at {at}", shown(key));
        if !own.is_empty() {
            assert!(view.may_contain(key) && !view.is_empty());
            by_key.insert(key.clone(), own);
        }
        // Memory alone gives the same or nothing.
        let mut again = Vec::new();
        match view.read_operands(key, SeqNo(at), OperandReadTier::Memory, &mut again) {
            Ok(()) => assert_eq!(concat_operands(&again), concat_operands(&found)),
            Err(Error::WouldBlock) => {}
            Err(other) => return Err(other),
        }
    }
    let mut found = Vec::new();
    view.read_operands(b"never written", SeqNo(at), OperandReadTier::Storage, &mut found)?;
    assert!(found.is_empty());
    let entries = |cursor: &mut dyn Cursor, forwards: bool| -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        if forwards {
            cursor.first()?
        } else {
            cursor.last()?
        }
        while cursor.valid() {
            let key = cursor.key();
            assert_eq!(cursor.value_slice(), cursor.value());
            entries.push((key.user_key.to_vec(), key.seq.0, cursor.value().to_vec()));
            if forwards { cursor.next()? } else { cursor.prev()? }
        }
        Ok(entries)
    };
    let mut cursor = view.clone().cursor(SeqNo(at), OperandReadTier::Storage);
    let ahead = entries(&mut *cursor, true)?;
    let mut back = entries(&mut *cursor, false)?;
    back.reverse();
    assert_eq!(ahead, back);
    let mut amounts: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    assert!(ahead.is_sorted_by(|a, b| (&a.0, b.1) < (&b.0, a.1)));
    for (key, _, bytes) in ahead.iter().rev() {
        amounts.entry(key.clone()).or_default().extend_from_slice(bytes);
    }
    assert_eq!(amounts, by_key);
    for key in model.keys.keys() {
        for seq in [SeqNo::MAX, SeqNo(at / 2)] {
            let before = |entry: &&Entry| {
                (&entry.0, std::cmp::Reverse(entry.1)) < (key, std::cmp::Reverse(seq.0))
            };
            let split = ahead.iter().take_while(before).count();
            cursor.seek(key, seq)?;
            let stands =
                cursor.valid().then(|| (cursor.key().user_key.to_vec(), cursor.key().seq.0));
            assert_eq!(stands, ahead.get(split).map(|entry| (entry.0.clone(), entry.1)));
            cursor.seek_before(key, seq)?;
            let stands =
                cursor.valid().then(|| (cursor.key().user_key.to_vec(), cursor.key().seq.0));
            let expected = split.checked_sub(1).map(|index| &ahead[index]);
            assert_eq!(stands, expected.map(|entry| (entry.0.clone(), entry.1)));
        }
    }
    Ok(())
}
