//! A file system whose calls can be blocked and released.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteOptions};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use super::Outcome;

/// After this time a call that has not returned counts as hanging. Calls that return take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Blocks device calls while it is shut. Clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    shut: bool,
    /// Number of blocked calls that may continue.
    released: usize,
    /// The blocked calls in the order of their arrival.
    blocked: Vec<String>,
}

impl Gate {
    /// A memory file system. While the gate is shut, the calls that match the rule block in threads whose
    /// names contain `thread`. The rule's fault must be [`Fault::Delay`].
    pub(crate) fn disk(&self, rule: FaultRule, thread: &'static str) -> FaultVfs {
        self.over(Arc::new(MemVfs::new()), rule, thread)
    }

    /// Like [`Gate::disk`], over another file system.
    pub(crate) fn over(
        &self,
        inner: Arc<dyn Vfs>,
        rule: FaultRule,
        thread: &'static str,
    ) -> FaultVfs {
        let disk = FaultVfs::new(inner, 0);
        disk.add_rule(rule);
        let gate = self.clone();
        disk.set_delay_hook(Some(Arc::new(move |call, path| gate.pass(call, path, thread))));
        disk
    }

    fn pass(&self, call: VfsCall, path: &Path, thread: &str) {
        let mut state = self.state();
        if !state.shut || !std::thread::current().name().unwrap_or_default().contains(thread) {
            return;
        }
        state.blocked.push(format!("{call:?} {}", path.display()));
        self.0.1.notify_all();
        while state.shut && state.released == 0 {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.released = state.released.saturating_sub(1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to block matching calls.
    pub(crate) fn shut(&self) {
        *self.state() = State { shut: true, ..State::default() };
    }

    /// Releases all blocked calls and stops blocking.
    pub(crate) fn open(&self) {
        self.state().shut = false;
        self.0.1.notify_all();
    }

    /// Releases one blocked call, or the next call.
    pub(crate) fn release_one(&self) {
        self.state().released += 1;
        self.0.1.notify_all();
    }

    /// Waits until `count` calls have been blocked since the gate was shut. Returns the last of them.
    pub(crate) fn wait_until_blocked(&self, count: usize) -> String {
        let mut state = self.state();
        loop {
            if let Some(call) = state.blocked.get(count - 1) {
                return call.clone();
            }
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the first call that was blocked since the gate was shut.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.state().blocked.first().cloned()
    }
}

/// Delays every one of these calls to files whose paths contain `files`.
pub(crate) fn each(calls: &[VfsCall], files: &str) -> FaultRule {
    FaultRule::new(Fault::Delay).for_calls(calls).path_contains(files).chance(1.0)
}

/// Delays one call of the database: the `k`-th, counted from 0.
pub(crate) fn nth(k: u64) -> FaultRule {
    FaultRule::new(Fault::Delay).nth(k).once()
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
        let blocked = gate.wait_until_blocked(1);
        let (send, answer) = channel();
        scope.spawn(move || send.send(call()));
        let answer = answer.recv_timeout(PATIENCE);
        gate.open();
        answer.map_err(|_| format!("a call waits for {blocked}"))
    })
}

/// Blocks appends of some threads to the log of an operand store, and flushes that keyspace and another one. The flush of
/// the other keyspace must end while the append is blocked.
///
/// Threads named `lsmx-compact` collect from the store, those named `lsmx-flush` deliver to it. Both append once
/// they have reserved the store.
pub(crate) fn flushes_while_store_hangs(thread: &'static str) -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Append], ".operands"), thread);
    let options = Options::default().wal_bytes_max(1 << 30);
    let db = Db::open("db", options.vfs(Arc::new(disk))).map_err(failed)?;
    let tuning =
        || KeyspaceOptions::default().memtable_bytes(1 << 10).merge_operator(Append::default());
    let buckets = DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10);
    let store = tuning().operand_store(DeltaStoreFactory::new(buckets));
    let operands = db.keyspace("operands", store).map_err(failed)?;
    let other = db.keyspace("other", tuning()).map_err(failed)?;
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let filled = AtomicBool::new(false);
    let hanging = || {
        // Until writes would wait, so that a flush of the keyspace is due for sure.
        let full = |n: u64| {
            operands.with_write_options(at_once).merge((n % 50).to_be_bytes(), [7; 50]).is_err()
        };
        (0..).find(|n| full(*n) && gate.blocked().is_some());
        filled.store(true, Ordering::Relaxed);
    };
    let sealed = || db.metrics().keyspaces["operands"].memtables_sealed;
    let flushes = || db.metrics().keyspaces["other"].flushes;
    returns_while_blocked(&gate, hanging, || {
        while sealed() == 0 && !filled.load(Ordering::Relaxed) {
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

/// A deadline that passes while a device call is blocked.
pub(crate) const SHORT: Duration = Duration::from_millis(20);

/// Closes a database with a deadline while the creation of a keyspace hangs in the manifest.
pub(crate) fn close_keeps_deadline() -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], "MANIFEST"), "");
    let db = Db::open("db", Options::default().vfs(Arc::new(disk))).map_err(failed)?;
    let hanging = || drop(db.keyspace("new", KeyspaceOptions::default()));
    match returns_while_blocked(&gate, hanging, || db.close(Some(SHORT)))? {
        Err(Error::Deadline { .. }) => Ok(()),
        other => Err(format!("a close whose deadline has passed returns {other:?}")),
    }
}

/// Commits with a deadline, as a member of a group that another thread leads and whose append hangs.
pub(crate) fn follower_keeps_deadline() -> Outcome {
    for attempt in 0..8 {
        let patience = SHORT * (1 << attempt);
        match follower_result(patience)? {
            Err(Error::Undecided { .. }) => return Ok(()),
            // The deadline has passed before the other thread took the write.
            Err(Error::Deadline { .. }) => {}
            other => return Err(format!("a follower whose deadline has passed returns {other:?}")),
        }
    }
    Err("no write joined a group before its deadline".to_owned())
}

fn follower_result(patience: Duration) -> Outcome<lsmx::Result<()>> {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], ".wal"), "");
    // No syncs but those of commits.
    let wal = WalOptions { sync_every_us: u64::MAX, ..WalOptions::default() };
    let options = Options::default().wal(wal);
    let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).map_err(failed)?;
    let main = db.default_keyspace();
    let behind_sync = || db.metrics().commits.behind_sync;
    gate.shut();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| main.with_write_options(Durability::Sync).put("first", "1"));
        gate.wait_until_blocked(1);
        scope.spawn(|| main.put("leader", "2"));
        while behind_sync() < 1 {
            std::thread::yield_now();
        }
        let (send, answer) = channel();
        let follower = WriteOptions { deadline: Some(patience), ..WriteOptions::default() };
        let main = &main;
        scope.spawn(move || send.send(main.with_write_options(follower).put("follower", "3")));
        while behind_sync() < 2 {
            std::thread::yield_now();
        }
        disk.add_rule(each(&[VfsCall::Append], ".wal"));
        // The sync, and the mark that the first thread appends after it. The next append is the leader's.
        gate.release_one();
        gate.wait_until_blocked(2);
        gate.release_one();
        gate.wait_until_blocked(3);
        let result = answer.recv_timeout(PATIENCE);
        gate.open();
        result.map_err(|_| "a follower waits past its deadline".to_owned())
    })?;
    // The threads have ended, so the group is decided.
    let there = db.get("follower").map_err(failed)?.is_some();
    let wanted = !matches!(result, Err(Error::Deadline { .. }));
    match there == wanted {
        true => Ok(result),
        false => Err(format!("after {result:?} the write is there: {there}")),
    }
}
