//! Code that users supply (merge operator, compaction policy, operand store, event listener), which panics
//! or misbehaves when a [`Trigger`] says so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the messages of deliberate panics begin.
pub(crate) const MARK: &str = "deliberate panic";

/// A place in user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    Listener,
    FullMerge,
    PartialMerge,
    Pick,
    Debt,
    MustStop,
    DueTime,
    StoreOpen,
    StoreDeliver,
    StoreOperand,
    StorePrepare,
    StoreCommitted,
    StoreAbandon,
    StoreDue,
    StoreCollect,
    StoreLeaving,
    StoreMetrics,
    ViewMayHold,
    ViewOperands,
    ViewCursor,
}

impl Site {
    pub(crate) const ALL: &[Site] = &[
        Site::Listener,
        Site::FullMerge,
        Site::PartialMerge,
        Site::Pick,
        Site::Debt,
        Site::MustStop,
        Site::DueTime,
        Site::StoreOpen,
        Site::StoreDeliver,
        Site::StoreOperand,
        Site::StorePrepare,
        Site::StoreCommitted,
        Site::StoreAbandon,
        Site::StoreDue,
        Site::StoreCollect,
        Site::StoreLeaving,
        Site::StoreMetrics,
        Site::ViewMayHold,
        Site::ViewOperands,
        Site::ViewCursor,
    ];

    pub(crate) fn is_policy(self) -> bool {
        matches!(self, Site::Pick | Site::Debt | Site::MustStop | Site::DueTime)
    }

    pub(crate) fn is_store(self) -> bool {
        let name = format!("{self:?}");
        name.starts_with("Store") || name.starts_with("View")
    }
}

/// Decides which call of user code misbehaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trigger(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The site that panics, how many of its calls pass before, and whether it goes on panicking.
    panics: Option<(Site, u64, bool)>,
    /// Whether the policy stops writes and picks no job.
    stuck: bool,
    fired: u64,
}

impl Trigger {
    pub(crate) fn arm(&self, site: Site, nth: u64, sticky: bool) {
        lock(&self.0).panics = Some((site, nth, sticky));
    }

    pub(crate) fn get_stuck(&self) {
        lock(&self.0).stuck = true;
    }

    /// User code behaves from here on.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.0);
        state.panics = None;
        state.stuck = false;
    }

    pub(crate) fn fired(&self) -> u64 {
        lock(&self.0).fired
    }

    /// Panics if this call of the site is to.
    fn hit(&self, at: Site) {
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
        panic!("{MARK} in {at:?}");
    }

    fn is_stuck(&self) -> bool {
        let mut state = lock(&self.0);
        let stuck = state.stuck;
        state.fired += u64::from(stuck);
        stuck
    }
}

/// Appends operands to values.
#[derive(Debug)]
pub(crate) struct Operator {
    pub(crate) trigger: Trigger,
    pub(crate) partially: bool,
}

impl MergeOperator for Operator {
    fn name(&self) -> &'static str {
        "appending"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        self.trigger.hit(Site::FullMerge);
        Append::default().full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.trigger.hit(Site::PartialMerge);
        if self.partially { Append::default().partial_merge(key, older, newer) } else { None }
    }
}

/// Decides as `inner` does.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) inner: Arc<dyn CompactionPolicy>,
    pub(crate) trigger: Trigger,
}

impl CompactionPolicy for Policy {
    fn name(&self) -> &'static str {
        "moody"
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        self.trigger.hit(Site::Pick);
        if self.trigger.is_stuck() { None } else { self.inner.pick(shape, busy) }
    }

    fn debt(&self, shape: &TreeShape, busy: &RunningJobs) -> Debt {
        self.trigger.hit(Site::Debt);
        self.inner.debt(shape, busy)
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        self.trigger.hit(Site::MustStop);
        self.trigger.is_stuck() || self.inner.must_stop_writes(shape)
    }

    fn next_pick_due_us(&self, shape: &TreeShape) -> Option<u64> {
        self.trigger.hit(Site::DueTime);
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

/// Makes operand stores that do what those of `inner` do.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) inner: SimpleStore,
    pub(crate) trigger: Trigger,
}

impl OperandStoreFactory for Stores {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn open(
        &self,
        place: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        self.trigger.hit(Site::StoreOpen);
        let inner = self.inner.open(place, token)?;
        Ok(Arc::new(Store { inner, trigger: self.trigger.clone() }))
    }

    fn verify(&self, place: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        self.inner.verify(place, token)
    }
}

#[derive(Debug)]
struct Store {
    inner: Arc<dyn OperandStore>,
    trigger: Trigger,
}

impl Store {
    fn view_of(&self, inner: Arc<dyn OperandView>) -> Arc<dyn OperandView> {
        Arc::new(View { inner, trigger: self.trigger.clone() })
    }
}

impl OperandStore for Store {
    fn view(&self) -> Arc<dyn OperandView> {
        self.view_of(self.inner.view())
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>> {
        self.trigger.hit(Site::StoreDeliver);
        Ok(Box::new(Deliveries { inner: self.inner.deliver(through)?, store: self }))
    }

    fn mark_committed(&self, token: StoreToken) {
        self.trigger.hit(Site::StoreCommitted);
        self.inner.mark_committed(token);
    }

    fn abandon(&self) {
        self.trigger.hit(Site::StoreAbandon);
        self.inner.abandon();
    }

    fn is_collection_due(&self) -> bool {
        self.trigger.hit(Site::StoreDue);
        self.inner.is_collection_due()
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>> {
        self.trigger.hit(Site::StoreCollect);
        let collection = self.inner.collect(snapshots)?;
        Ok(collection.map(|inner| Box::new(Collects { inner, store: self }) as _))
    }

    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>> {
        Ok(Box::new(Collects { inner: self.inner.collect_all()?, store: self }))
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
        self.trigger.hit(Site::StoreMetrics);
        self.inner.metrics()
    }
}

struct Deliveries<'a> {
    inner: Box<dyn OperandDelivery + 'a>,
    store: &'a Store,
}

impl OperandDelivery for Deliveries<'_> {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.inner.may_contain(key)
    }

    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.store.trigger.hit(Site::StoreOperand);
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
        self.store.trigger.hit(Site::StorePrepare);
        let PreparedVersion { token, view } = self.inner.prepare()?;
        Ok(PreparedVersion { token, view: self.store.view_of(view) })
    }
}

struct Collects<'a> {
    inner: Box<dyn OperandCollection + 'a>,
    store: &'a Store,
}

impl OperandCollection for Collects<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        self.store.trigger.hit(Site::StoreLeaving);
        self.inner.moved_operands()
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        self.store.trigger.hit(Site::StorePrepare);
        let PreparedVersion { token, view } = self.inner.prepare()?;
        Ok(PreparedVersion { token, view: self.store.view_of(view) })
    }
}

#[derive(Debug)]
struct View {
    inner: Arc<dyn OperandView>,
    trigger: Trigger,
}

impl OperandView for View {
    fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    fn may_contain(&self, key: &[u8]) -> bool {
        self.trigger.hit(Site::ViewMayHold);
        self.inner.may_contain(key)
    }

    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        self.trigger.hit(Site::ViewOperands);
        self.inner.read_operands(key, at, reads, found)
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor> {
        self.trigger.hit(Site::ViewCursor);
        Arc::clone(&self.inner).cursor(at, reads)
    }

    fn keep_files_open(&self) {
        self.inner.keep_files_open();
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken> {
        self.inner.copy_to(target)
    }
}

/// Calls the database from the events that it is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listener {
    pub(crate) trigger: Trigger,
    /// Resumed on this thread when it becomes read-only.
    pub(crate) resumes: Arc<Mutex<Option<Db>>>,
    /// Dropped when a flush has ended.
    pub(crate) drops: Arc<Mutex<Option<Db>>>,
    /// How often the database was called.
    pub(crate) calls: Arc<Mutex<u64>>,
}

impl EventListener for Listener {
    fn on_event(&self, event: &Event) {
        self.trigger.hit(Site::Listener);
        if matches!(event, Event::ReadOnly(_)) {
            let db = lock(&self.resumes).clone();
            if let Some(db) = db {
                *lock(&self.calls) += 1;
                // Refused or done; it must return.
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
