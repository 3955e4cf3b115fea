//! Puts the commits of the log into memtables, on two threads.
//!
//! The thread that reads the log gathers commits in batches, sorts the operations of each, and copies
//! them to where they will stay; a helper puts them in order. A memtable takes one writer at a time, so
//! two of those would stand in each other's way, but one who comes with sorted keys finds what it looks
//! at in its caches. Before a full memtable becomes a table, everything that was read is in.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, KeyPrefix, SeqNo};
use lsmx_base::sync::{Arc, Mutex, Signal};

use crate::env::{Background, Env, JoinHandle, WaitCause};
use crate::error::{Error, Result};
use crate::format::batch::{BatchAction, BatchOperation, BatchOperations};
use crate::memtable::{Arena, CopiedEntry};
use crate::tree::Tree;

/// Most bytes of commits in a batch.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// A batch is at most this part of a memtable, which may pass its size by three of them.
const BATCH_PART: u64 = 16;

/// A tree that commits are replayed into.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) tree: Arc<Tree>,
    /// Its tables hold what was written up to here.
    pub(crate) flushed_through: SeqNo,
}

/// Commits that are being gathered.
#[derive(Debug, Default)]
struct Gathering {
    /// One behind the other.
    bytes: Vec<u8>,
    /// Their operations that no table holds, in the order of their numbers; places are places in
    /// `bytes`.
    operations: Vec<(SeqNo, BatchOperation)>,
    /// The order to insert them in: by keyspace and key, then number.
    order: Vec<Place>,
    /// Memory for the memtables of each keyspace.
    arenas: BTreeMap<u32, Arena>,
}

/// Where an operation comes in the order.
#[derive(Clone, Copy, Debug)]
struct Place {
    keyspace: u32,
    /// Which of the operations.
    index: u32,
    prefix: KeyPrefix,
}

/// An operation whose bytes lie in memory of its memtable.
#[derive(Debug)]
struct Ready {
    keyspace: u32,
    seq: SeqNo,
    copied: CopiedEntry,
    what: What,
}

#[derive(Debug)]
enum What {
    Entry(EntryKind),
    /// What lies behind the key is the end of the range.
    DeleteRange {
        to_the_end: bool,
    },
}

impl Gathering {
    /// Takes a commit, as far as tables do not hold it.
    fn take(&mut self, targets: &BTreeMap<u32, Target>, first_seq: SeqNo, payload: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        // The record was checked, so every operation decodes.
        for (seq, mut operation) in (first_seq.0..).zip(BatchOperations::new(payload).flatten()) {
            let target = targets.get(&operation.keyspace);
            if target.is_some_and(|target| SeqNo(seq) > target.flushed_through) {
                operation.shift(at);
                self.operations.push((SeqNo(seq), operation));
            }
        }
    }

    /// Gives out what was gathered, in order.
    fn give(&mut self, batch: &mut Vec<Ready>) {
        self.sort();
        batch.extend(self.order.iter().map(|place| {
            let (seq, operation) = &self.operations[place.index as usize];
            let (behind, what) = match &operation.action {
                BatchAction::Entry { kind, value } => (value.clone(), What::Entry(*kind)),
                BatchAction::DeleteRange { end: Some(end) } => {
                    (end.clone(), What::DeleteRange { to_the_end: false })
                }
                BatchAction::DeleteRange { end: None } => {
                    (0..0, What::DeleteRange { to_the_end: true })
                }
            };
            let arena = self.arenas.entry(place.keyspace).or_insert_with(Arena::new);
            let (key, behind) = (&self.bytes[operation.key.clone()], &self.bytes[behind]);
            Ready { keyspace: place.keyspace, seq: *seq, copied: arena.copy(key, behind), what }
        }));
        self.bytes.clear();
        self.operations.clear();
        self.order.clear();
    }

    fn sort(&mut self) {
        // No batch has 2^32 operations: each takes some bytes.
        let operations = (0u32..).zip(&self.operations);
        self.order.extend(operations.map(|(index, (_, operation))| Place {
            keyspace: operation.keyspace,
            index,
            prefix: KeyPrefix::new(&self.bytes[operation.key.clone()]),
        }));
        let key = |place: &Place| &self.bytes[self.operations[place.index as usize].1.key.clone()];
        self.order.sort_unstable_by(|a, b| {
            (a.keyspace.cmp(&b.keyspace))
                .then_with(|| a.prefix.cmp(&b.prefix))
                .then_with(|| key(a).cmp(key(b)))
                .then_with(|| a.index.cmp(&b.index))
        });
    }
}

/// Inserts operations and lets them go; adds the trees whose memtable is full now to `full`.
fn insert(batch: &mut Vec<Ready>, targets: &BTreeMap<u32, Target>, full: &mut Vec<u32>) {
    let mut batch = batch.drain(..).peekable();
    while let Some(keyspace) = batch.peek().map(|first| first.keyspace) {
        // Only operations on targets were taken.
        let Some(target) = targets.get(&keyspace) else { return };
        let active = &target.tree.view().active;
        while let Some(ready) = batch.next_if(|ready| ready.keyspace == keyspace) {
            let Ready { seq, copied, what, .. } = ready;
            match what {
                What::Entry(kind) => active.insert_copied(copied, seq, kind),
                What::DeleteRange { .. }
                    if failpoint::is_on(Failpoint::ReplaySkipsRangeDeletes) =>
                {
                    0
                }
                What::DeleteRange { to_the_end } => {
                    let end = (!to_the_end).then(|| copied.payload());
                    active.insert_range_tombstone(copied.key(), end, seq)
                }
            };
        }
        if active.bytes() >= target.tree.settings().options.memtable_bytes {
            full.push(keyspace);
        }
    }
}

/// What lies between the two threads.
#[derive(Debug, Default)]
struct Handover {
    batch: Option<Vec<Ready>>,
    /// A batch is being inserted.
    busy: bool,
    /// An empty batch, for its memory.
    spare: Option<Vec<Ready>>,
    /// Trees that have become full.
    full: Vec<u32>,
    over: bool,
    failed: Option<Error>,
}

#[derive(Debug)]
struct Helper {
    env: Env,
    handover: Arc<Mutex<Handover>>,
    changed: Signal,
    thread: Option<JoinHandle>,
}

impl Helper {
    /// `None` if the system gives no thread: then there is one thread less at work.
    fn start(env: &Env, targets: &Arc<BTreeMap<u32, Target>>) -> Option<Helper> {
        let (handover, changed) = (Arc::new(Mutex::new(Handover::default())), Signal::new());
        let body = {
            let (env, targets) = (env.clone(), Arc::clone(targets));
            let (handover, changed) = (Arc::clone(&handover), changed.clone());
            move || help(&env, &targets, &handover, &changed)
        };
        let thread = env.spawn("lsmx-replay", body).ok()?;
        Some(Helper { env: env.clone(), handover, changed, thread: Some(thread) })
    }

    /// Hands a batch over and takes an empty one for it, once the one before it is being inserted.
    fn hand_over(&self, batch: &mut Vec<Ready>) {
        self.env.wait(WaitCause::Replay, &self.changed, None, &mut || {
            let mut handover = self.handover.lock();
            if handover.batch.is_some() && handover.failed.is_none() {
                return false;
            }
            let spare = handover.spare.take().unwrap_or_default();
            // After a failure nobody takes it any more, and `drain` tells.
            handover.batch = Some(std::mem::replace(batch, spare));
            true
        });
        self.changed.notify();
    }

    /// Waits until everything that was handed over is inserted.
    fn drain(&self) -> Result<()> {
        self.env.wait(WaitCause::Replay, &self.changed, None, &mut || {
            let handover = self.handover.lock();
            handover.failed.is_some() || (handover.batch.is_none() && !handover.busy)
        });
        self.handover.lock().failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.handover.lock().over = true;
        self.changed.notify();
        if let Some(thread) = self.thread.take() {
            // It catches its own panics.
            let _ = self.env.join(thread);
        }
    }
}

/// What the helper does until it is over.
fn help(env: &Env, targets: &BTreeMap<u32, Target>, shared: &Mutex<Handover>, changed: &Signal) {
    loop {
        let mut batch = None;
        env.wait(WaitCause::Work, changed, None, &mut || {
            let mut handover = shared.lock();
            batch = handover.batch.take();
            handover.busy = batch.is_some();
            handover.busy || handover.over
        });
        let Some(mut batch) = batch else { return };
        // There is room for the next one.
        changed.notify();
        let mut full = Vec::new();
        let insert = || insert(&mut batch, targets, &mut full);
        let inserted = catch_unwind(AssertUnwindSafe(insert));
        {
            let mut handover = shared.lock();
            handover.busy = false;
            handover.full.extend(full);
            handover.spare = Some(batch);
            handover.failed = inserted.err().map(|panic| Error::from_panic(&*panic));
        }
        changed.notify();
    }
}

/// A replay that is under way.
#[derive(Debug)]
pub(crate) struct Replay {
    targets: Arc<BTreeMap<u32, Target>>,
    gathering: Gathering,
    batch: Vec<Ready>,
    batch_bytes: u64,
    full: Vec<u32>,
    helper: Option<Helper>,
}

impl Replay {
    pub(crate) fn new(env: &Env, targets: BTreeMap<u32, Target>) -> Replay {
        let memtable_bytes = |target: &Target| target.tree.settings().options.memtable_bytes;
        let smallest = targets.values().map(memtable_bytes).min().unwrap_or(0);
        let inline = env.background() == Background::Inline;
        let batch_bytes = if inline { 0 } else { (smallest / BATCH_PART).min(BATCH_BYTES_MAX) };
        Replay {
            targets: Arc::new(targets),
            gathering: Gathering::default(),
            batch: Vec::new(),
            batch_bytes,
            full: Vec::new(),
            helper: None,
        }
    }

    /// Takes a commit. Returns the trees whose memtables are full; then everything that was taken is
    /// in the memtables, and nobody inserts.
    ///
    /// # Errors
    /// If the helper has panicked.
    pub(crate) fn take(
        &mut self,
        env: &Env,
        first_seq: SeqNo,
        payload: &[u8],
    ) -> Result<Vec<Arc<Tree>>> {
        self.gathering.take(&self.targets, first_seq, payload);
        if len_u64(self.gathering.bytes.len()) < self.batch_bytes {
            return Ok(Vec::new());
        }
        self.gathering.give(&mut self.batch);
        if self.helper.is_none() && self.batch_bytes > 0 {
            // Only now: most openings have less to replay than a batch.
            self.helper = Helper::start(env, &self.targets);
        }
        match &self.helper {
            Some(helper) => {
                helper.hand_over(&mut self.batch);
                self.full.append(&mut helper.handover.lock().full);
            }
            None => self.insert(),
        }
        if self.full.is_empty() { Ok(Vec::new()) } else { self.finish() }
    }

    fn insert(&mut self) {
        insert(&mut self.batch, &self.targets, &mut self.full);
    }

    /// Waits until what was handed over is in, and inserts the rest. Returns the trees whose memtables are full.
    ///
    /// # Errors
    /// If the helper has panicked.
    pub(crate) fn finish(&mut self) -> Result<Vec<Arc<Tree>>> {
        if let Some(helper) = &self.helper {
            helper.drain()?;
            self.full.append(&mut helper.handover.lock().full);
        }
        // Behind what came before: operands of a key are counted in their order.
        self.gathering.give(&mut self.batch);
        self.insert();
        self.full.sort_unstable();
        self.full.dedup();
        let full = std::mem::take(&mut self.full);
        let tree = |id| self.targets.get(&id).map(|target| Arc::clone(&target.tree));
        Ok(full.into_iter().filter_map(tree).collect())
    }
}
