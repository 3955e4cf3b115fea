//! User code (merge operator, compaction policy, operand store and event listener) that panics or misbehaves when a
//! [`Trigger`] requests it.

use std::sync::{Arc, Mutex};

use lsmx::merge_operator::Append;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{
    Operand, OperandCollection, OperandDelivery, OperandFileKind, OperandFiles, OperandMetrics,
    OperandReadTier, OperandStore, OperandStoreFactory, OperandView, PreparedVersion, StoreContext,
    StoreToken,
};
use lsmx::{Db, Event, EventListener, MergeOperator, MergeResult, Result, SeqNo};
use lsmx_compaction::{CompactionPolicy, Debt, Job, RunningJobs, TreeShape};
use lsmx_testkit::simple_store::SimpleStore;

use super::super::small_database::lock;

/// Prefix of the messages of deliberate panics.
pub(crate) const MARK: &str = "deliberate panic";

pub(crate) const SITES: [&str; 20] = [
    "Listener",
    "FullMerge",
    "PartialMerge",
    "Pick",
    "Debt",
    "MustStop",
    "DueTime",
    "StoreOpen",
    "StoreDeliver",
    "StoreOperand",
    "StorePrepare",
    "StoreCommitted",
    "StoreAbandon",
    "StoreDue",
    "StoreCollect",
    "StoreLeaving",
    "StoreMetrics",
    "ViewMayHold",
    "ViewOperands",
    "ViewCursor",
];

/// The calls in [`SITES`] that are methods of a compaction policy.
pub(crate) const POLICY_SITES: [&str; 4] = ["Pick", "Debt", "MustStop", "DueTime"];

/// Decides which calls of user code misbehave. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trigger(Arc<Mutex<TriggerState>>);

#[derive(Debug, Default)]
struct TriggerState {
    /// The name of the call that panics, the number of such calls before the panic, and whether all later calls panic
    /// too.
    panics: Option<(&'static str, u64, bool)>,
    /// Whether the compaction policy must stop writes and pick no job.
    stuck: bool,
    fired: u64,
}

impl Trigger {
    pub(crate) fn arm(&self, site: &'static str, nth: u64, sticky: bool) {
        lock(&self.0).panics = Some((site, nth, sticky));
    }

    pub(crate) fn block_policy(&self) {
        lock(&self.0).stuck = true;
    }

    /// Disables the panics and the blocked policy.
    pub(crate) fn disarm(&self) {
        let mut state = lock(&self.0);
        state.panics = None;
        state.stuck = false;
    }

    pub(crate) fn fired(&self) -> u64 {
        lock(&self.0).fired
    }

    /// Panics if this call is selected.
    fn hit(&self, at: &str) {
        let mut state = lock(&self.0);
        let Some((site, left, sticky)) = &mut state.panics else { return };
        if *site != at {
            return;
        }
        if *left > 0 {
            *left -= 1;
            return;
        }
        if !*sticky {
            state.panics = None;
        }
        state.fired += 1;
        drop(state);
        panic!("{MARK} in {at}");
    }

    fn is_stuck(&self) -> bool {
        let mut state = lock(&self.0);
        let stuck = state.stuck;
        state.fired += u64::from(stuck);
        stuck
    }
}

/// A merge operator that appends operands to the value, and panics on demand.
#[derive(Debug)]
pub(crate) struct FaultyOperator {
    pub(crate) trigger: Trigger,
    pub(crate) partial_merges: bool,
}

impl MergeOperator for FaultyOperator {
    fn name(&self) -> &'static str {
        "appending"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        self.trigger.hit("FullMerge");
        Append::default().full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.trigger.hit("PartialMerge");
        if self.partial_merges { Append::default().partial_merge(key, older, newer) } else { None }
    }
}

/// A compaction policy that forwards calls to `inner`. On demand it panics or picks no job.
#[derive(Debug)]
pub(crate) struct FaultyPolicy {
    pub(crate) inner: Arc<dyn CompactionPolicy>,
    pub(crate) trigger: Trigger,
}

impl CompactionPolicy for FaultyPolicy {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        self.trigger.hit("Pick");
        if self.trigger.is_stuck() { None } else { self.inner.pick(shape, busy) }
    }

    fn debt(&self, shape: &TreeShape, busy: &RunningJobs) -> Debt {
        self.trigger.hit("Debt");
        self.inner.debt(shape, busy)
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.trigger.hit("MustStop");
        self.trigger.is_stuck() || self.inner.must_stop_writes(shape)
    }

    fn next_pick_due_us(&self, shape: &TreeShape) -> Option<u64> {
        self.trigger.hit("DueTime");
        self.inner.next_pick_due_us(shape)
    }

    fn memtable_tombstone_age_max_us(&self, shape: &TreeShape) -> Option<u64> {
        self.inner.memtable_tombstone_age_max_us(shape)
    }

    fn is_waiting_for_snapshots(&self, shape: &TreeShape) -> bool {
        self.inner.is_waiting_for_snapshots(shape)
    }

    fn can_drop_data(&self) -> bool {
        self.inner.can_drop_data()
    }
}

/// A factory of operand stores. Each store forwards calls to a store of `inner` and panics on demand.
#[derive(Clone, Debug)]
pub(crate) struct FaultyStores {
    pub(crate) inner: SimpleStore,
    pub(crate) trigger: Trigger,
}

impl OperandStoreFactory for FaultyStores {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        self.trigger.hit("StoreOpen");
        let inner = self.inner.open(context, token)?;
        Ok(Arc::new(FaultyStore { inner, trigger: self.trigger.clone() }))
    }

    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        self.inner.verify(context, token)
    }
}

#[derive(Debug)]
struct FaultyStore {
    inner: Arc<dyn OperandStore>,
    trigger: Trigger,
}

impl FaultyStore {
    fn view_of(&self, inner: Arc<dyn OperandView>) -> Arc<dyn OperandView> {
        Arc::new(FaultyView { inner, trigger: self.trigger.clone() })
    }
}

impl OperandStore for FaultyStore {
    fn view(&self) -> Arc<dyn OperandView> {
        self.view_of(self.inner.view())
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>> {
        self.trigger.hit("StoreDeliver");
        Ok(Box::new(FaultyDelivery { inner: self.inner.deliver(through)?, store: self }))
    }

    fn mark_committed(&self, token: StoreToken) {
        self.trigger.hit("StoreCommitted");
        self.inner.mark_committed(token);
    }

    fn abandon(&self) {
        self.trigger.hit("StoreAbandon");
        self.inner.abandon();
    }

    fn recover(&self) -> Result<()> {
        self.inner.recover()
    }

    fn is_collection_due(&self) -> bool {
        self.trigger.hit("StoreDue");
        self.inner.is_collection_due()
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>> {
        self.trigger.hit("StoreCollect");
        let collection = self.inner.collect(snapshots)?;
        Ok(collection.map(|inner| Box::new(FaultyCollection { inner, store: self }) as _))
    }

    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>> {
        Ok(Box::new(FaultyCollection { inner: self.inner.collect_all()?, store: self }))
    }

    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        self.inner.check_file(kind, number)
    }

    fn exclude_files(&self, files: &[(OperandFileKind, u64)]) {
        self.inner.exclude_files(files);
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        self.inner.live_files()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn rewrite_bytes_max(&self) -> u64 {
        self.inner.rewrite_bytes_max()
    }

    fn metrics(&self) -> OperandMetrics {
        self.trigger.hit("StoreMetrics");
        self.inner.metrics()
    }
}

struct FaultyDelivery<'a> {
    inner: Box<dyn OperandDelivery + 'a>,
    store: &'a FaultyStore,
}

impl OperandDelivery for FaultyDelivery<'_> {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.inner.may_contain(key)
    }

    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.store.trigger.hit("StoreOperand");
        self.inner.add_operand(key, seq, operand)
    }

    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        self.inner.add_delete_marker(key, seq)
    }

    fn add_range_delete_marker(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<()> {
        self.inner.add_range_delete_marker(start, end, seq)
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        self.store.trigger.hit("StorePrepare");
        let PreparedVersion { token, view } = self.inner.prepare()?;
        Ok(PreparedVersion { token, view: self.store.view_of(view) })
    }
}

struct FaultyCollection<'a> {
    inner: Box<dyn OperandCollection + 'a>,
    store: &'a FaultyStore,
}

impl OperandCollection for FaultyCollection<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        self.store.trigger.hit("StoreLeaving");
        self.inner.moved_operands()
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        self.store.trigger.hit("StorePrepare");
        let PreparedVersion { token, view } = self.inner.prepare()?;
        Ok(PreparedVersion { token, view: self.store.view_of(view) })
    }
}

#[derive(Debug)]
struct FaultyView {
    inner: Arc<dyn OperandView>,
    trigger: Trigger,
}

impl OperandView for FaultyView {
    fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    fn may_contain(&self, key: &[u8]) -> bool {
        self.trigger.hit("ViewMayHold");
        self.inner.may_contain(key)
    }

    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        self.trigger.hit("ViewOperands");
        self.inner.read_operands(key, at, reads, found)
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor> {
        self.trigger.hit("ViewCursor");
        Arc::clone(&self.inner).cursor(at, reads)
    }

    fn keep_files_open(&self) {
        self.inner.keep_files_open();
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken> {
        self.inner.copy_to(target)
    }
}

/// A listener that calls `resume` when the database becomes read-only, or drops a database handle after a flush.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallingListener {
    pub(crate) trigger: Trigger,
    pub(crate) resumes: Arc<Mutex<Option<Db>>>,
    pub(crate) drops: Arc<Mutex<Option<Db>>>,
    /// The number of times that the listener called `resume` or dropped a handle.
    pub(crate) calls: Arc<Mutex<u64>>,
}

impl EventListener for CallingListener {
    fn on_event(&self, event: &Event) {
        self.trigger.hit("Listener");
        if matches!(event, Event::ReadOnly(_)) {
            let db = lock(&self.resumes).clone();
            if let Some(db) = db {
                *lock(&self.calls) += 1;
                // The call may fail, but it must return.
                let _ = db.resume();
            }
        }
        if matches!(event, Event::Flush(_)) {
            let db = lock(&self.drops).take();
            *lock(&self.calls) += u64::from(db.is_some());
            drop(db);
        }
    }
}
