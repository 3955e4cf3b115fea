//! Puts the commits of the log into memtables, on two threads.
//!
//! The thread that reads the log gathers commits in batches. It hands a batch to a helper if that has
//! none, and else inserts it itself, so both are always at work. The order does not matter: where an
//! entry stands in a memtable depends on its key and its number alone. Before a full memtable becomes
//! a table, everything that was read is in.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::coding::len_u64;
use crate::env::{Background, Env, JoinHandle, WaitCause};
use crate::error::{Error, Result};
use crate::format::batch::{Action, Operations};
use crate::key::SeqNo;
use crate::keyspace::Tree;
use crate::sabotage::{self, Bug};
use crate::sync::{Arc, Mutex, Signal};

/// Most bytes of commits in a batch.
const BATCH_BYTES_MAX: u64 = 256 << 10;
/// A batch is at most this part of a memtable, which may pass its size by two of them.
const BATCH_PART: u64 = 16;

/// A tree that commits are replayed into.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) tree: Arc<Tree>,
    /// Its tables hold what was written up to here.
    pub(super) flushed_through: SeqNo,
}

/// Commits, one behind the other.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// First number and place of each.
    commits: Vec<(SeqNo, Range<usize>)>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.commits.clear();
    }

    /// Inserts all commits as far as tables do not hold them; adds the trees whose memtable is full
    /// now to `full`.
    fn insert(&self, targets: &BTreeMap<u32, Target>, full: &mut Vec<u32>) {
        for (first_seq, place) in &self.commits {
            let payload = &self.bytes[place.clone()];
            let mut seq = *first_seq;
            // The record was checked, so every operation decodes.
            for operation in Operations::new(payload).flatten() {
                if let Some(target) = targets.get(&operation.keyspace)
                    && seq > target.flushed_through
                {
                    let active = &target.tree.view().active;
                    let key = &payload[operation.key];
                    match operation.action {
                        Action::Entry { kind, value } => {
                            active.insert(key, seq, kind, &payload[value])
                        }
                        Action::DeleteRange { .. }
                            if sabotage::on(Bug::ReplaySkipsRangeDeletes) =>
                        {
                            0
                        }
                        Action::DeleteRange { end } => {
                            active.insert_span(key, end.map(|end| &payload[end]), seq)
                        }
                    };
                    if active.bytes() >= target.tree.settings().options.memtable_bytes
                        && !full.contains(&operation.keyspace)
                    {
                        full.push(operation.keyspace);
                    }
                }
                seq = SeqNo(seq.0 + 1);
            }
        }
    }
}

/// What lies between the two threads.
#[derive(Debug, Default)]
struct Handover {
    batch: Option<Batch>,
    /// A batch is being inserted.
    busy: bool,
    /// An empty batch, for its memory.
    spare: Option<Batch>,
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

    /// Takes a batch if the helper has none, and gives an empty one for it.
    fn offer(&self, batch: &mut Batch) -> bool {
        {
            let mut handover = self.handover.lock();
            if handover.batch.is_some() || handover.busy || handover.failed.is_some() {
                return false;
            }
            let spare = handover.spare.take().unwrap_or_default();
            handover.batch = Some(std::mem::replace(batch, spare));
        }
        self.changed.notify();
        true
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
        let mut full = Vec::new();
        let insert = || batch.insert(targets, &mut full);
        let inserted = catch_unwind(AssertUnwindSafe(insert));
        batch.clear();
        {
            let mut handover = shared.lock();
            handover.busy = false;
            handover.full.extend(full);
            handover.spare = Some(batch);
            handover.failed = inserted.err().map(|panic| Error::panicked(&*panic));
        }
        changed.notify();
    }
}

/// A replay that is under way.
#[derive(Debug)]
pub(super) struct Replay {
    targets: Arc<BTreeMap<u32, Target>>,
    batch: Batch,
    batch_bytes: u64,
    full: Vec<u32>,
    helper: Option<Helper>,
}

impl Replay {
    pub(super) fn new(env: &Env, targets: BTreeMap<u32, Target>) -> Replay {
        let memtable_bytes = |target: &Target| target.tree.settings().options.memtable_bytes;
        let smallest = targets.values().map(memtable_bytes).min().unwrap_or(0);
        let inline = env.background() == Background::Inline;
        let batch_bytes = if inline { 0 } else { (smallest / BATCH_PART).min(BATCH_BYTES_MAX) };
        let (targets, batch) = (Arc::new(targets), Batch::default());
        Replay { targets, batch, batch_bytes, full: Vec::new(), helper: None }
    }

    /// Takes a commit. Returns the trees whose memtables are full; then everything that was taken is
    /// in the memtables, and nobody inserts.
    ///
    /// # Errors
    /// If the helper has panicked.
    pub(super) fn take(
        &mut self,
        env: &Env,
        first_seq: SeqNo,
        payload: &[u8],
    ) -> Result<Vec<Arc<Tree>>> {
        let from = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(payload);
        self.batch.commits.push((first_seq, from..self.batch.bytes.len()));
        if len_u64(self.batch.bytes.len()) < self.batch_bytes {
            return Ok(Vec::new());
        }
        if self.helper.is_none() && self.batch_bytes > 0 {
            // Only now: most openings have less to replay than a batch.
            self.helper = Helper::start(env, &self.targets);
        }
        let handed_over = self.helper.as_ref().is_some_and(|helper| helper.offer(&mut self.batch));
        if !handed_over {
            self.insert();
        }
        if let Some(helper) = &self.helper {
            self.full.append(&mut helper.handover.lock().full);
        }
        if self.full.is_empty() { Ok(Vec::new()) } else { self.finish() }
    }

    fn insert(&mut self) {
        self.batch.insert(&self.targets, &mut self.full);
        self.batch.clear();
    }

    /// Inserts what is left, and waits until all is in. Returns the trees whose memtables are full.
    ///
    /// # Errors
    /// If the helper has panicked.
    pub(super) fn finish(&mut self) -> Result<Vec<Arc<Tree>>> {
        self.insert();
        if let Some(helper) = &self.helper {
            helper.drain()?;
            self.full.append(&mut helper.handover.lock().full);
        }
        self.full.sort_unstable();
        self.full.dedup();
        let full = std::mem::take(&mut self.full);
        let tree = |id| self.targets.get(&id).map(|target| Arc::clone(&target.tree));
        Ok(full.into_iter().filter_map(tree).collect())
    }
}
