//! A disk whose calls can be made to hang, and be released.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lsmx::merge::Append;
use lsmx::vfs::{Fault, FaultVfs, MemVfs, Rule, Vfs, VfsCall};
use lsmx::{Db, KeyspaceOptions, Options, WriteOptions};
use lsmx_delta::{DeltaOptions, KeyDelta};

use super::Outcome;

/// After this time a call that has not returned counts as hanging. Calls that return take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Blocks device calls while it is shut. Clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    shut: bool,
    /// The calls that are blocked, in the order in which they came.
    blocked: Vec<String>,
}

impl Gate {
    /// A memory file system. While the gate is shut, the calls that match the rule block in threads whose
    /// names contain `thread`. The rule's fault must be [`Fault::Delay`].
    pub(crate) fn disk(&self, rule: Rule, thread: &'static str) -> FaultVfs {
        self.over(Arc::new(MemVfs::new()), rule, thread)
    }

    /// As [`Gate::disk`], over another file system.
    pub(crate) fn over(&self, inner: Arc<dyn Vfs>, rule: Rule, thread: &'static str) -> FaultVfs {
        let disk = FaultVfs::new(inner, 0);
        disk.add(rule);
        let gate = self.clone();
        disk.set_delay(Some(Arc::new(move |call, path| gate.pass(call, path, thread))));
        disk
    }

    fn pass(&self, call: VfsCall, path: &Path, thread: &str) {
        let mut state = self.state();
        if !state.shut || !std::thread::current().name().unwrap_or_default().contains(thread) {
            return;
        }
        state.blocked.push(format!("{call:?} {}", path.display()));
        self.0.1.notify_all();
        while state.shut {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks matching calls from now on.
    pub(crate) fn shut(&self) {
        *self.state() = State { shut: true, blocked: Vec::new() };
    }

    /// Releases all blocked calls and blocks no more.
    pub(crate) fn open(&self) {
        self.state().shut = false;
        self.0.1.notify_all();
    }

    /// Waits until a call is blocked, and returns it.
    pub(crate) fn wait_until_blocked(&self) -> String {
        let mut state = self.state();
        loop {
            if let Some(call) = state.blocked.first() {
                return call.clone();
            }
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The call that was blocked first since the gate was shut.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.state().blocked.first().cloned()
    }
}

/// Delays every one of these calls to files whose paths contain `files`.
pub(crate) fn each(calls: &[VfsCall], files: &str) -> Rule {
    Rule::new(Fault::Delay).on(calls).path_contains(files).chance(1.0)
}

/// Delays one call of the database: the `k`-th, counted from 0.
pub(crate) fn nth(k: u64) -> Rule {
    Rule::new(Fault::Delay).nth(k).once()
}

/// Runs `hanging` on a thread until it blocks at the gate, then `call` on another one. Opens the gate afterwards
/// and returns the result of `call`; fails if that did not return while the device call was blocked.
pub(crate) fn returns_while_blocked<T: Send>(
    gate: &Gate,
    hanging: impl FnOnce() + Send,
    call: impl FnOnce() -> T + Send,
) -> Outcome<T> {
    gate.shut();
    std::thread::scope(|scope| {
        scope.spawn(hanging);
        let blocked = gate.wait_until_blocked();
        let (send, answer) = channel();
        scope.spawn(move || send.send(call()));
        let answer = answer.recv_timeout(PATIENCE);
        gate.open();
        answer.map_err(|_| format!("a call waits for {blocked}"))
    })
}

/// Hangs a collection of an operand store while it has the store reserved, and has the memtables of that
/// keyspace and of another one flushed: the other one's flush ends while the device call hangs.
pub(crate) fn flushes_while_store_hangs() -> Outcome {
    let gate = Gate::default();
    // A collection appends to the log of the store once it has reserved the store.
    let disk = gate.disk(each(&[VfsCall::Append], ".operands"), "lsmx-compact");
    let options = Options::default().wal_bytes_max(1 << 30);
    let db = Db::open_with(Arc::new(disk), "db", options).map_err(failed)?;
    let tuning =
        || KeyspaceOptions::default().memtable_bytes(1 << 10).merge_operator(Append::new());
    let buckets = DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10);
    let store = tuning().operand_store(KeyDelta::new(buckets));
    let operands = db.keyspace("operands", store).map_err(failed)?;
    let other = db.keyspace("other", tuning()).map_err(failed)?;
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let hanging = || {
        // Until writes would wait, so that a flush of the keyspace is due for sure.
        let full = |n: u64| operands.merge_with((n % 50).to_be_bytes(), [7; 50], at_once).is_err();
        (0..).find(|n| full(*n) && gate.blocked().is_some());
    };
    let sealed = || db.metrics().keyspaces["operands"].memtables_sealed;
    let flushes = || db.metrics().keyspaces["other"].flushes;
    returns_while_blocked(&gate, hanging, || {
        while sealed() == 0 {
            std::thread::yield_now();
        }
        for n in 0..200u64 {
            other.put(n.to_be_bytes(), [1; 100]).map_err(failed)?;
        }
        // More than may be sealed without a flush.
        match flushes() {
            0 => Err("no flush".to_owned()),
            _ => Ok(()),
        }
    })?
}

fn failed(error: lsmx::Error) -> String {
    error.to_string()
}
