//! Calls with a deadline.
//!
//! A thread cannot cancel a blocked device call. Therefore the work of a call with a deadline runs on a separate
//! thread, and the caller waits for the result until the deadline. The work itself also checks the deadline between
//! device calls. Without a deadline, and under [`Background::Inline`], the work runs on the thread of the caller.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, Mutex, Ordering, Signal};

use crate::callback::{self, CallbackContext};
use crate::db::inner::DbInner;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};

/// Maximum number of threads that run calls with a deadline. If all are in use, a further call waits for a free thread.
/// A close may use one more thread, because the lock on the directory would otherwise not be released after its
/// deadline.
///
/// Without a limit, each retry of a call during a device failure would leave another blocked thread.
const CALL_THREADS_MAX: usize = 16;

/// The result of a call, passed from its thread to the caller.
#[derive(Debug)]
struct CallResult {
    /// Result of the work. The outer error is a panic of the work.
    result: Mutex<Option<thread::Result<Result<()>>>>,
    is_set: Signal,
}

/// Runs `work` and returns its result, or an error at the deadline. `cause` is the cause in [`Error::Deadline`].
///
/// `work` receives the deadline in microseconds of [`Env::now_us`](crate::env::Env::now_us).
///
/// # Errors
/// Errors of `work`; [`Error::Deadline`]; [`Error::Io`] if no thread can be created.
pub(crate) fn run_with_deadline(
    inner: &Arc<DbInner>,
    cause: WaitCause,
    deadline: Option<Duration>,
    work: impl FnOnce(&DbInner, Option<u64>) -> Result<()> + Send + 'static,
) -> Result<()> {
    let deadline_us = inner.committer.deadline_us(deadline);
    let env = &inner.state.env;
    let is_local = deadline_us.is_none() || env.background() == Background::Inline;
    if is_local || failpoint::is_on(Failpoint::DeadlineIgnoresDevice) {
        return work(inner, deadline_us);
    }
    let deadline_error = || Error::Deadline { cause: cause.as_str() };
    let threads_max = CALL_THREADS_MAX + usize::from(cause == WaitCause::Close);
    let reserve_thread = &mut || {
        let add = |count| (count < threads_max).then_some(count + 1);
        inner.call_threads.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    };
    if !env.wait(cause, &inner.state.progress, deadline_us, reserve_thread) {
        return Err(deadline_error());
    }
    let call = Arc::new(CallResult { result: Mutex::new(None), is_set: Signal::new() });
    let (thread_inner, thread_call) = (Arc::clone(inner), Arc::clone(&call));
    let body = move || {
        let _context = callback::enter(CallbackContext::EngineThread);
        let result = catch_unwind(AssertUnwindSafe(|| work(&thread_inner, deadline_us)));
        *thread_call.result.lock() = Some(result);
        thread_call.is_set.notify();
        thread_inner.call_threads.fetch_sub(1, Ordering::AcqRel);
        thread_inner.state.progress.notify();
    };
    let thread = env.spawn("lsmx-call", body).map_err(|error| {
        inner.call_threads.fetch_sub(1, Ordering::AcqRel);
        Error::io("start a thread for a call to", &inner.state.dir, error)
    })?;
    let mut result = None;
    env.wait(cause, &call.is_set, deadline_us, &mut || {
        result = call.result.lock().take();
        result.is_some()
    });
    let result = result.ok_or_else(deadline_error)?;
    // The work is complete, so the join does not block for long.
    let _ = env.join(thread);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::AtomicBool;

    use super::*;
    use crate::db::Db;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;

    /// Bug: if calls with a deadline had blocked all threads, a close failed at its deadline without a start of the close.
    /// The lock on the directory was not released when the threads were free again.
    #[test]
    fn close_starts_while_all_call_threads_are_blocked() {
        let options = Options::default().background(Background::Stepped { seed: 1, workers: 1 });
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let inner = db.inner();
        let (is_released, changed) = (Arc::new(AtomicBool::new(false)), Signal::new());
        let cause = WaitCause::BackgroundWork;
        let block = || {
            let (is_released, changed) = (Arc::clone(&is_released), changed.clone());
            run_with_deadline(inner, cause, Some(Duration::ZERO), move |inner, _| {
                let is_released = &mut || is_released.load(Ordering::Acquire);
                inner.state.env.wait(cause, &changed, None, is_released);
                Ok(())
            })
        };
        for _ in 0..=CALL_THREADS_MAX {
            assert!(matches!(block(), Err(Error::Deadline { .. })));
        }
        assert_eq!(inner.call_threads.load(Ordering::Acquire), CALL_THREADS_MAX);
        db.close(Some(Duration::from_secs(10))).unwrap();
        is_released.store(true, Ordering::Release);
        changed.notify();
        let is_free = &mut || inner.call_threads.load(Ordering::Acquire) == 0;
        inner.state.env.wait(cause, &inner.state.progress, None, is_free);
    }
}
