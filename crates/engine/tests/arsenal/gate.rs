//! A disk whose calls can be made to hang, and be released.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lsmx::vfs::{Fault, FaultVfs, MemVfs, Rule, Vfs, VfsCall};

use super::Outcome;

/// After this time a call that has not returned counts as hanging. Calls that return take milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

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
