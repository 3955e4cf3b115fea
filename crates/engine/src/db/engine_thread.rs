//! A background thread of an open database that does not belong to the job scheduler.

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::callback::{self, CallbackContext};
use crate::env::{JoinHandle, WaitCause};
use crate::state::DbState;

/// A thread that `close` waits for.
#[derive(Debug, Default)]
pub(crate) struct EngineThread {
    /// True if the thread has finished. The thread stores it with Release, and `join` loads it with Acquire.
    ended: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle>>,
}

impl EngineThread {
    /// Starts the thread. Returns false if the system cannot create it.
    pub(crate) fn start(
        &self,
        state: &Arc<DbState>,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> bool {
        let (ended, of_thread) = (Arc::clone(&self.ended), Arc::clone(state));
        let thread = state.env.spawn(name, move || {
            let _context = callback::enter(CallbackContext::EngineThread);
            body();
            ended.store(true, Ordering::Release);
            of_thread.progress.notify();
        });
        let thread = thread.ok();
        let is_started = thread.is_some();
        *self.thread.lock() = thread;
        is_started
    }

    /// Waits for the thread to end. Returns false if the deadline passes first.
    pub(crate) fn join(&self, state: &DbState, deadline_us: Option<u64>) -> bool {
        if self.thread.lock().is_none() {
            return true;
        }
        let mut ended = || self.ended.load(Ordering::Acquire);
        if !state.env.wait(WaitCause::Close, &state.progress, deadline_us, &mut ended) {
            return false;
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The thread has finished its work without a panic.
            let _ = state.env.join(thread);
        }
        true
    }
}
