//! Deliveries, collections and commits of the simple operand store.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::env::YieldKind;
use lsmx::operand_store::{
    Cursor, Operand, OperandCollection, OperandDelivery, OperandFileKind, OperandMetrics,
    OperandStore, OperandView, PreparedVersion, StoreContext, StoreToken,
};
use lsmx::{Result, SeqNo, Slice};

use super::contents::{Contents, Item, RangeMarker};
use super::cursor::OperandCursor;
use super::view::{StoreFile, View};
use super::{SimpleStore, lock};

#[derive(Debug)]
struct StoreState {
    committed: Arc<View>,
    /// Prepared versions that are not committed yet, oldest first.
    prepared: Vec<Arc<View>>,
    /// Files of abandoned versions. They are kept, because the recovered manifest may refer to them after a power loss.
    abandoned: Vec<Arc<StoreFile>>,
    deliveries: u64,
    collections: u64,
    /// Upper bound of the sequence numbers of all deliveries so far.
    through: SeqNo,
}

#[derive(Debug)]
struct Store {
    options: SimpleStore,
    context: StoreContext,
    state: Mutex<StoreState>,
    operands: AtomicU64,
    delete_markers: AtomicU64,
    written_bytes: AtomicU64,
    to_tree: AtomicU64,
}

pub(super) fn open(
    options: SimpleStore,
    context: StoreContext,
    token: Option<StoreToken>,
) -> Result<Arc<dyn OperandStore>> {
    let file = token.map(|token| StoreFile::open(&context, token).map(Arc::new)).transpose()?;
    let contents = file.as_ref().map_or_else(|| Ok(Contents::default()), |file| file.read())?;
    let state = StoreState {
        through: contents.through,
        committed: View::new(&context, file, contents, options.lazy),
        prepared: Vec::new(),
        abandoned: Vec::new(),
        deliveries: 0,
        collections: 0,
    };
    let (operands, delete_markers, written_bytes, to_tree) = Default::default();
    let state = Mutex::new(state);
    Ok(Arc::new(Store {
        options,
        context,
        state,
        operands,
        delete_markers,
        written_bytes,
        to_tree,
    }))
}

impl Store {
    /// Returns the newest version, committed or not.
    fn newest(&self) -> Arc<View> {
        let state = lock(&self.state);
        Arc::clone(state.prepared.last().unwrap_or(&state.committed))
    }

    fn prepare(&self, contents: Contents) -> Result<PreparedVersion> {
        assert!(!self.context.read_only, "a read-only store must not be written");
        let file = StoreFile::write(&self.context, &*self.context.files, &contents)?;
        self.written_bytes.fetch_add(file.token.0[1], Ordering::Relaxed);
        if let Err(error) = self.context.files.sync_directory() {
            file.is_obsolete.store(true, Ordering::Release);
            return Err(error);
        }
        let mut state = lock(&self.state);
        state.through = contents.through;
        let token = file.token;
        let view = View::new(&self.context, Some(Arc::new(file)), contents, self.options.lazy);
        state.prepared.push(Arc::clone(&view));
        Ok(PreparedVersion { token, view })
    }
}

impl OperandStore for Store {
    fn view(&self) -> Arc<dyn OperandView> {
        Arc::clone(&lock(&self.state).committed) as _
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>> {
        assert!(through > lock(&self.state).through, "the delivery is older than the previous one");
        self.context.env.yield_point(YieldKind::JobStep);
        let mut contents = (*self.newest().contents()?).clone();
        let previous = contents.through;
        contents.through = through;
        Ok(Box::new(Delivery { store: self, contents, previous, last: None }))
    }

    fn mark_committed(&self, token: StoreToken) {
        let mut state = lock(&self.state);
        let has_token = |view: &Arc<View>| view.file.as_ref().map(|file| file.token) == Some(token);
        let Some(index) = state.prepared.iter().position(has_token) else {
            assert!(
                has_token(&state.committed),
                "the engine commits a version that was not prepared"
            );
            return;
        };
        let mut replaced: Vec<_> = state.prepared.drain(..=index).collect();
        let committed = replaced.pop().expect("the drained range ends with the committed version");
        replaced.push(std::mem::replace(&mut state.committed, committed));
        let files = replaced.iter().filter_map(|view| view.file.clone());
        let files: Vec<_> = files.chain(std::mem::take(&mut state.abandoned)).collect();
        drop(state);
        for file in files {
            file.is_obsolete.store(true, Ordering::Release);
        }
    }

    fn abandon(&self) {
        let mut state = lock(&self.state);
        let prepared = std::mem::take(&mut state.prepared);
        state.abandoned.extend(prepared.iter().filter_map(|view| view.file.clone()));
        let file = state.committed.file.as_ref();
        state.through = file.map_or(SeqNo::ZERO, |file| SeqNo(file.token.0[3]));
    }

    fn is_collection_due(&self) -> bool {
        lock(&self.state).deliveries >= self.options.collect_after
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>> {
        self.context.env.yield_point(YieldKind::JobStep);
        let mut state = lock(&self.state);
        state.deliveries = 0;
        state.collections += 1;
        let to_tree = state.collections.is_multiple_of(self.options.to_tree_one_in);
        let view = Arc::clone(&state.committed);
        drop(state);
        let visible =
            snapshots.last().copied().expect("the list ends with the last visible sequence number");
        let through = view.contents()?.through.min(visible);
        let (snapshots, moved_keys) = (snapshots.to_vec(), BTreeSet::new());
        Ok(Some(Box::new(Collection { store: self, snapshots, through, to_tree, moved_keys })))
    }

    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>> {
        let (snapshots, moved_keys) = Default::default();
        let (through, to_tree) = (SeqNo::MAX, true);
        Ok(Box::new(Collection { store: self, snapshots, through, to_tree, moved_keys }))
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        let state = lock(&self.state);
        let files = state.committed.file.iter();
        files.map(|file| (OperandFileKind::Log, file.token.0[0])).collect()
    }

    fn memory_bytes(&self) -> u64 {
        self.newest().keys.iter().map(|key| key.len() as u64).sum()
    }

    fn metrics(&self) -> OperandMetrics {
        OperandMetrics {
            log_bytes: self.newest().file_bytes(),
            log_written_bytes: self.written_bytes.load(Ordering::Relaxed),
            operands: self.operands.load(Ordering::Relaxed),
            delete_markers: self.delete_markers.load(Ordering::Relaxed),
            to_tree: self.to_tree.load(Ordering::Relaxed),
            ..OperandMetrics::default()
        }
    }
}

struct Delivery<'a> {
    store: &'a Store,
    contents: Contents,
    /// Upper bound of the sequence numbers of the previous delivery.
    previous: SeqNo,
    /// Key and sequence number of the previous item in this delivery.
    last: Option<(Vec<u8>, SeqNo)>,
}

impl Delivery<'_> {
    fn check_seq(&self, seq: SeqNo) {
        assert!(seq > self.previous && seq <= self.contents.through, "{seq:?} is out of bounds");
    }

    fn check_order(&mut self, key: &[u8], seq: SeqNo) {
        self.check_seq(seq);
        if let Some((last, at)) = &self.last {
            assert!(
                (last.as_slice(), seq) < (key, *at) || last.as_slice() < key,
                "items are delivered out of order"
            );
        }
        self.last = Some((key.to_vec(), seq));
    }
}

impl OperandDelivery for Delivery<'_> {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.contents.keys.contains_key(key)
    }

    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.store.context.env.yield_point(YieldKind::FlushBlock);
        self.check_order(key, seq);
        self.store.operands.fetch_add(1, Ordering::Relaxed);
        let operand = Operand { first: seq, last: seq, bytes: Slice::from(operand) };
        self.contents.insert(key, Item::Operand(operand));
        Ok(())
    }

    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        self.check_order(key, seq);
        self.store.delete_markers.fetch_add(1, Ordering::Relaxed);
        self.contents.insert(key, Item::DeleteMarker(seq));
        Ok(())
    }

    fn add_range_delete_marker(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<()> {
        self.check_seq(seq);
        let (start, end) = (start.to_vec(), end.map(<[u8]>::to_vec));
        self.contents.ranges.push(RangeMarker { start, end, seq });
        Ok(())
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let prepared = self.store.prepare(self.contents)?;
        lock(&self.store.state).deliveries += 1;
        Ok(prepared)
    }
}

struct Collection<'a> {
    store: &'a Store,
    snapshots: Vec<SeqNo>,
    /// Operands with larger sequence numbers are not changed, because snapshots that are newer than those in
    /// `snapshots` may read them.
    through: SeqNo,
    to_tree: bool,
    moved_keys: BTreeSet<Vec<u8>>,
}

impl Collection<'_> {
    fn compact(&self, contents: &mut Contents) {
        contents.compact(&self.snapshots, self.through, &*self.store.context.merger);
    }

    /// Returns a compacted copy of the newest contents.
    fn compacted_contents(&self) -> Result<Contents> {
        let mut contents = (*self.store.newest().contents()?).clone();
        self.compact(&mut contents);
        Ok(contents)
    }
}

impl OperandCollection for Collection<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        if !self.to_tree {
            return Ok(None);
        }
        let contents = self.compacted_contents()?;
        let mut moved = Vec::new();
        for (key, items) in &contents.keys {
            let visible = contents.visible_operands(key, SeqNo::MAX);
            let operands = items.iter().filter_map(Item::operand).count();
            // If a snapshot can read deleted operands of a key, the key stays in the store. In the tree, these operands
            // would be placed above the delete that removes them.
            if visible.len() == operands || self.through == SeqNo::MAX {
                self.moved_keys.insert(key.clone());
                moved.extend(visible.into_iter().map(|operand| (key.clone(), operand)));
            }
        }
        self.store.to_tree.fetch_add(self.moved_keys.len() as u64, Ordering::Relaxed);
        Ok(Some(Box::new(OperandCursor::over_entries(moved))))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let mut contents = self.compacted_contents()?;
        contents.keys.retain(|key, _| !self.moved_keys.contains(key));
        self.compact(&mut contents);
        self.store.prepare(contents)
    }
}

impl fmt::Debug for Collection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collection").field("through", &self.through).finish_non_exhaustive()
    }
}
