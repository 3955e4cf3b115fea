//! Inserts the commits of a log into memtables, on two threads.
//!
//! The reading thread reads the log and collects commits in batches. It sorts the operations of each batch and copies
//! them to an arena of their memtable. The inserting thread inserts the operations. More inserting threads would not
//! help, because a memtable admits one writer at a time. Operations are sorted so that consecutive inserts visit nodes
//! that are already in the CPU cache.
//!
//! When a memtable is full, all commits read so far are inserted, and then the memtable is flushed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, KeyPrefix, SeqNo};
use lsmx_base::sync::{Arc, Mutex, Signal};

use crate::env::{Background, Env, JoinHandle, WaitCause};
use crate::error::{Error, Result};
use crate::format::batch::{BatchOperation, BatchOperationIter, OperationEffect};
use crate::memtable::{Arena, CopiedEntry};
use crate::tree::Tree;

/// Maximum bytes of commits in a batch.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Minimum number of batches per memtable. The size of a memtable is checked only between batches, so small batches limit
/// the bytes by which a memtable can exceed its maximum size.
const BATCHES_PER_MEMTABLE: u64 = 16;

/// A tree into which commits are replayed.
#[derive(Debug)]
pub(crate) struct ReplayTarget {
    pub(crate) tree: Arc<Tree>,
    /// Largest sequence number whose operations are in tables. The replay skips operations up to this number.
    pub(crate) flushed_through: SeqNo,
}

/// Collects the operations of a batch.
#[derive(Debug, Default)]
struct BatchCollector {
    /// Encoded commits, concatenated.
    encoded: Vec<u8>,
    /// Operations that are not in tables yet, with their sequence numbers. Their keys and values are ranges of
    /// `encoded`.
    operations: Vec<(SeqNo, BatchOperation)>,
    /// Sort keys of `operations`. The insertion order is by keyspace, key and sequence number.
    order: Vec<OperationOrder>,
    /// Arena for the memtable of each keyspace.
    arenas: BTreeMap<u32, Arena>,
}

/// Sort key of an operation.
#[derive(Clone, Copy, Debug)]
struct OperationOrder {
    keyspace: u32,
    /// Index in `operations`.
    index: u32,
    prefix: KeyPrefix,
}

/// An operation whose key and value were copied to the arena of the memtable.
#[derive(Debug)]
struct CopiedOperation {
    keyspace: u32,
    seq: SeqNo,
    copied: CopiedEntry,
    action: CopiedAction,
}

#[derive(Debug)]
enum CopiedAction {
    Entry(EntryKind),
    /// The value of the copied entry is the end of the range.
    DeleteRange {
        is_unbounded: bool,
    },
}

impl BatchCollector {
    /// Adds the operations of a commit that are not in tables yet.
    fn add_commit(
        &mut self,
        targets: &BTreeMap<u32, ReplayTarget>,
        first_seq: SeqNo,
        payload: &[u8],
    ) {
        let offset = self.encoded.len();
        self.encoded.extend_from_slice(payload);
        // The record was verified during the read, so every operation can be decoded.
        for (seq, mut operation) in (first_seq.0..).zip(BatchOperationIter::new(payload).flatten())
        {
            let target = targets.get(&operation.keyspace);
            if target.is_some_and(|target| SeqNo(seq) > target.flushed_through) {
                operation.shift_positions(offset);
                self.operations.push((SeqNo(seq), operation));
            }
        }
    }

    /// Moves all operations to `batch`, in insertion order.
    fn move_operations_to(&mut self, batch: &mut Vec<CopiedOperation>) {
        self.sort();
        batch.extend(self.order.iter().map(|order| {
            let (seq, operation) = &self.operations[order.index as usize];
            let (value, action) = match &operation.action {
                OperationEffect::Entry { kind, value } => {
                    (value.clone(), CopiedAction::Entry(*kind))
                }
                OperationEffect::DeleteRange { end } => {
                    let action = CopiedAction::DeleteRange { is_unbounded: end.is_none() };
                    (end.clone().unwrap_or(0..0), action)
                }
            };
            let arena = self.arenas.entry(order.keyspace).or_insert_with(Arena::new);
            let (key, value) = (&self.encoded[operation.key.clone()], &self.encoded[value]);
            let copied = arena.copy_entry(key, value);
            CopiedOperation { keyspace: order.keyspace, seq: *seq, copied, action }
        }));
        self.encoded.clear();
        self.operations.clear();
        self.order.clear();
    }

    fn sort(&mut self) {
        // A batch has fewer than 2^32 operations, because each takes several bytes.
        let operations = (0u32..).zip(&self.operations);
        self.order.extend(operations.map(|(index, (_, operation))| OperationOrder {
            keyspace: operation.keyspace,
            index,
            prefix: KeyPrefix::new(&self.encoded[operation.key.clone()]),
        }));
        let key = |order: &OperationOrder| {
            &self.encoded[self.operations[order.index as usize].1.key.clone()]
        };
        self.order.sort_unstable_by(|a, b| {
            (a.keyspace.cmp(&b.keyspace))
                .then_with(|| a.prefix.cmp(&b.prefix))
                .then_with(|| key(a).cmp(key(b)))
                .then_with(|| a.index.cmp(&b.index))
        });
    }
}

/// Inserts a batch into the memtables and empties the batch. Adds the ids of the trees with full memtables to `full`.
fn insert_batch(
    batch: &mut Vec<CopiedOperation>,
    targets: &BTreeMap<u32, ReplayTarget>,
    full: &mut Vec<u32>,
) {
    let mut batch = batch.drain(..).peekable();
    while let Some(keyspace) = batch.peek().map(|first| first.keyspace) {
        // The collector only adds operations that have a target.
        let Some(target) = targets.get(&keyspace) else { return };
        let memtable = &target.tree.super_version().active;
        while let Some(operation) = batch.next_if(|next| next.keyspace == keyspace) {
            let CopiedOperation { seq, copied, action, .. } = operation;
            match action {
                CopiedAction::Entry(kind) => {
                    if kind.is_expiring() {
                        target.tree.set_may_expire();
                    }
                    memtable.insert_copied(copied, seq, kind)
                }
                CopiedAction::DeleteRange { .. }
                    if failpoint::is_on(Failpoint::ReplaySkipsRangeDeletes) =>
                {
                    0
                }
                CopiedAction::DeleteRange { is_unbounded } => {
                    let end = (!is_unbounded).then(|| copied.payload());
                    memtable.insert_range_tombstone(copied.key(), end, seq)
                }
            };
        }
        if memtable.bytes() >= target.tree.settings().options.memtable_bytes {
            full.push(keyspace);
        }
    }
}

/// State shared by the reading and the inserting thread.
#[derive(Debug, Default)]
struct SharedBatch {
    /// Next batch to insert.
    batch: Option<Vec<CopiedOperation>>,
    /// Whether a batch is being inserted.
    is_inserting: bool,
    /// An empty batch whose allocation is reused.
    spare: Option<Vec<CopiedOperation>>,
    /// Ids of the trees whose memtable is full.
    full: Vec<u32>,
    /// Whether the inserting thread must end.
    is_closed: bool,
    failed: Option<Error>,
}

/// Handle of the inserting thread.
#[derive(Debug)]
struct InsertThread {
    env: Env,
    shared: Arc<Mutex<SharedBatch>>,
    changed: Signal,
    thread: Option<JoinHandle>,
}

impl InsertThread {
    /// Spawns the inserting thread. Returns `None` if the thread cannot be spawned; the reading thread then inserts.
    fn spawn(env: &Env, targets: &Arc<BTreeMap<u32, ReplayTarget>>) -> Option<InsertThread> {
        let (shared, changed) = (Arc::new(Mutex::new(SharedBatch::default())), Signal::new());
        let body = {
            let (env, targets) = (env.clone(), Arc::clone(targets));
            let (shared, changed) = (Arc::clone(&shared), changed.clone());
            move || insert_batches(&env, &targets, &shared, &changed)
        };
        let thread = env.spawn("lsmx-replay", body).ok()?;
        Some(InsertThread { env: env.clone(), shared, changed, thread: Some(thread) })
    }

    /// Passes a batch to the inserting thread and replaces it with an empty batch. Waits until the thread has taken the
    /// previous batch.
    fn send(&self, batch: &mut Vec<CopiedOperation>) {
        self.env.wait(WaitCause::Replay, &self.changed, None, &mut || {
            let mut shared = self.shared.lock();
            if shared.batch.is_some() && shared.failed.is_none() {
                return false;
            }
            let spare = shared.spare.take().unwrap_or_default();
            // After a failure, the batch is not inserted, and `flush` returns the error.
            shared.batch = Some(std::mem::replace(batch, spare));
            true
        });
        self.changed.notify();
    }

    /// Waits until all batches are inserted. Returns the error of a failed insertion.
    fn flush(&self) -> Result<()> {
        self.env.wait(WaitCause::Replay, &self.changed, None, &mut || {
            let shared = self.shared.lock();
            shared.failed.is_some() || (shared.batch.is_none() && !shared.is_inserting)
        });
        self.shared.lock().failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for InsertThread {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.changed.notify();
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics.
            let _ = self.env.join(thread);
        }
    }
}

/// Body of the inserting thread: inserts batches until the handle of the thread is dropped or an insertion fails.
fn insert_batches(
    env: &Env,
    targets: &BTreeMap<u32, ReplayTarget>,
    shared: &Mutex<SharedBatch>,
    changed: &Signal,
) {
    loop {
        let mut batch = None;
        env.wait(WaitCause::Work, changed, None, &mut || {
            let mut shared = shared.lock();
            batch = shared.batch.take();
            shared.is_inserting = batch.is_some();
            shared.is_inserting || shared.is_closed
        });
        let Some(mut batch) = batch else { return };
        // Wakes the reading thread if it waits to pass the next batch.
        changed.notify();
        let mut full = Vec::new();
        let insert = || insert_batch(&mut batch, targets, &mut full);
        let inserted = catch_unwind(AssertUnwindSafe(insert));
        let failed = inserted.err().map(|panic| Error::from_panic(&*panic));
        let has_failed = failed.is_some();
        {
            let mut shared = shared.lock();
            shared.is_inserting = false;
            shared.full.extend(full);
            shared.spare = Some(batch);
            shared.failed = failed;
        }
        changed.notify();
        if has_failed {
            return;
        }
    }
}

/// Replays commits into the memtables of trees.
#[derive(Debug)]
pub(crate) struct LogReplay {
    env: Env,
    targets: Arc<BTreeMap<u32, ReplayTarget>>,
    collector: BatchCollector,
    batch: Vec<CopiedOperation>,
    /// Size at which a batch is complete, in bytes. 0 if there is no inserting thread.
    batch_bytes: u64,
    /// Ids of the trees whose memtable is full.
    full: Vec<u32>,
    thread: Option<InsertThread>,
}

impl LogReplay {
    pub(crate) fn new(env: &Env, targets: BTreeMap<u32, ReplayTarget>) -> LogReplay {
        let memtable_bytes = |target: &ReplayTarget| target.tree.settings().options.memtable_bytes;
        let smallest = targets.values().map(memtable_bytes).min().unwrap_or(0);
        let batch_bytes = match env.background() {
            Background::Inline => 0,
            _ => (smallest / BATCHES_PER_MEMTABLE).min(BATCH_BYTES_MAX),
        };
        LogReplay {
            env: env.clone(),
            targets: Arc::new(targets),
            collector: BatchCollector::default(),
            batch: Vec::new(),
            batch_bytes,
            full: Vec::new(),
            thread: None,
        }
    }

    /// Adds a commit and returns the trees with full memtables. If the result is not empty, all commits added so far
    /// are inserted, and the inserting thread is idle until the next call.
    pub(crate) fn add_commit(
        &mut self,
        first_seq: SeqNo,
        payload: &[u8],
    ) -> Result<Vec<Arc<Tree>>> {
        self.collector.add_commit(&self.targets, first_seq, payload);
        if len_u64(self.collector.encoded.len()) < self.batch_bytes {
            return Ok(Vec::new());
        }
        self.collector.move_operations_to(&mut self.batch);
        if self.thread.is_none() && self.batch_bytes > 0 {
            // The thread is spawned with the first complete batch, because most logs have less than one batch.
            self.thread = InsertThread::spawn(&self.env, &self.targets);
        }
        match &self.thread {
            Some(thread) => {
                thread.send(&mut self.batch);
                self.full.append(&mut thread.shared.lock().full);
            }
            None => insert_batch(&mut self.batch, &self.targets, &mut self.full),
        }
        if self.full.is_empty() { Ok(Vec::new()) } else { self.finish() }
    }

    /// Inserts all commits added so far. Returns the trees whose memtables are full.
    pub(crate) fn finish(&mut self) -> Result<Vec<Arc<Tree>>> {
        if let Some(thread) = &self.thread {
            thread.flush()?;
            self.full.append(&mut thread.shared.lock().full);
        }
        // Batches must be inserted in log order, because a memtable counts the consecutive operands of a key.
        self.collector.move_operations_to(&mut self.batch);
        insert_batch(&mut self.batch, &self.targets, &mut self.full);
        self.full.sort_unstable();
        self.full.dedup();
        let full = std::mem::take(&mut self.full);
        let tree = |id| self.targets.get(&id).map(|target| Arc::clone(&target.tree));
        Ok(full.into_iter().filter_map(tree).collect())
    }
}
