//! A gate that blocks and releases the calls of a file system.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_stress::Outcome;

/// Returns the time after which a call is considered to hang. Other calls take milliseconds. The time is shorter while a
/// deliberate bug is enabled, because the bug may be that a call hangs.
pub(crate) fn patience() -> Duration {
    let has_bug = Failpoint::ALL.iter().any(|&bug| failpoint::is_on(bug));
    Duration::from_secs(if has_bug { 2 } else { 10 })
}

/// Maximum time to wait until a gate blocks a call.
const ARRIVAL_MAX: Duration = Duration::from_secs(100);

/// While the gate is shut, it blocks the matching file system calls. Clones share the same state.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    shut: bool,
    /// Number of blocked calls to release.
    released: usize,
    /// Descriptions of the blocked calls, in the order of arrival.
    blocked: Vec<String>,
}

/// Opens a gate when this guard is dropped. The blocked calls are therefore also released after a panic.
pub(crate) struct OpenOnDrop<'a>(&'a Gate);

impl Drop for OpenOnDrop<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Gate {
    /// Returns an in-memory file system. While the gate is shut, the file system blocks calls that match `rule`, on
    /// threads whose names contain `thread`. The fault of `rule` must be [`Fault::Delay`].
    pub(crate) fn disk(&self, rule: FaultRule, thread: &'static str) -> FaultVfs {
        self.over(Arc::new(MemVfs::new()), rule, thread)
    }

    /// Works like [`Gate::disk`], but wraps the file system `inner`.
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

    pub(crate) fn shut(&self) {
        *self.state() = State { shut: true, ..State::default() };
    }

    /// Releases all blocked calls and stops blocking.
    pub(crate) fn open(&self) {
        self.state().shut = false;
        self.0.1.notify_all();
    }

    pub(crate) fn open_on_drop(&self) -> OpenOnDrop<'_> {
        OpenOnDrop(self)
    }

    /// Releases one blocked call. If no call is blocked, the gate lets the next call pass.
    pub(crate) fn release_one(&self) {
        self.state().released += 1;
        self.0.1.notify_all();
    }

    /// Waits until the gate has blocked `count` calls since it was shut. Returns a description of the last of these
    /// calls.
    pub(crate) fn wait_until_blocked(&self, count: usize) -> String {
        let is_missing = |state: &mut State| state.blocked.len() < count;
        let waited = self.0.1.wait_timeout_while(self.state(), ARRIVAL_MAX, is_missing);
        waited.unwrap_or_else(PoisonError::into_inner).0.blocked[count - 1].clone()
    }

    /// Waits at most `time` until a call is blocked. Returns whether a call is blocked.
    pub(crate) fn is_blocked_within(&self, time: Duration) -> bool {
        let is_free = |state: &mut State| state.blocked.is_empty();
        let waited = self.0.1.wait_timeout_while(self.state(), time, is_free);
        !waited.unwrap_or_else(PoisonError::into_inner).0.blocked.is_empty()
    }

    /// Returns a description of the first call that was blocked since the gate was shut.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.state().blocked.first().cloned()
    }
}

/// Returns a rule that delays every call of these kinds to files whose paths contain `files`.
pub(crate) fn each(calls: &[VfsCall], files: &str) -> FaultRule {
    FaultRule::new(Fault::Delay).for_calls(calls).path_contains(files).chance(1.0)
}

/// Returns a rule that delays only the `k`-th file system call. The first call has number 0.
pub(crate) fn nth(k: u64) -> FaultRule {
    FaultRule::new(Fault::Delay).nth(k).once()
}

/// Runs `hanging` on a thread until the gate blocks it. Then runs `call` on another thread. Returns the result of
/// `call`, or an error if `call` does not return while the first thread is blocked. Opens the gate at the end.
pub(crate) fn returns_while_blocked<T: Send>(
    gate: &Gate,
    hanging: impl FnOnce() + Send,
    call: impl FnOnce() -> T + Send,
) -> Outcome<T> {
    gate.shut();
    std::thread::scope(|scope| {
        let _opens = gate.open_on_drop();
        scope.spawn(hanging);
        let blocked = gate.wait_until_blocked(1);
        let (send, answer) = channel();
        scope.spawn(move || send.send(call()));
        answer.recv_timeout(patience()).map_err(|_| format!("a call waits for {blocked}"))
    })
}
