//! Calls with a deadline.
//!
//! A caller cannot leave a device call that hangs. So the work of a call with a deadline runs on a thread of the
//! engine, which ends with the work, and the caller waits for its answer until the deadline. The work knows the
//! deadline as well: it gives up between two device calls. Without a deadline, and under
//! [`Background::Inline`], the work runs on the caller's thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, Mutex, Ordering, Signal};

use crate::callback::{self, CallbackContext};
use crate::db::DbInner;
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};

/// Calls with a deadline whose threads are at work at the same time, at most. Further ones wait for a place: a
/// caller that tries again and again while a device hangs must not leave a thread behind each time.
const CALL_THREADS_MAX: usize = 16;

/// How long a call may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitOptions {
    /// Time after which the call returns [`Error::Deadline`], even if a device call hangs. `None`: no
    /// limit. Work that is in a device call at that moment ends when the device call returns.
    pub deadline: Option<Duration>,
}

impl From<Duration> for WaitOptions {
    fn from(deadline: Duration) -> WaitOptions {
        WaitOptions { deadline: Some(deadline) }
    }
}

/// The result of the work, or the panic that ended it.
#[derive(Debug)]
struct Answer<T> {
    result: Mutex<Option<std::thread::Result<Result<T>>>>,
    given: Signal,
}

impl DbInner {
    /// Runs `work`, and returns at the deadline at the latest. `cause` is what the caller waits for meanwhile.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Deadline`]; [`Error::Io`] if the system gives no thread.
    pub(crate) fn run_with_deadline<T: std::fmt::Debug + Send + 'static>(
        self: &Arc<DbInner>,
        cause: WaitCause,
        deadline_us: Option<u64>,
        work: impl FnOnce(&DbInner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let env = &self.state.env;
        let here = deadline_us.is_none() || env.background() == Background::Inline;
        if here || failpoint::is_on(Failpoint::DeadlineIgnoresDevice) {
            return work(self);
        }
        let late = || Error::Deadline { cause: cause.as_str() };
        let place = &mut || {
            let taken = |count| (count < CALL_THREADS_MAX).then_some(count + 1);
            self.call_threads.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_ok()
        };
        if !env.wait(cause, &self.state.progress, deadline_us, place) {
            return Err(late());
        }
        let answer = Arc::new(Answer { result: Mutex::new(None), given: Signal::new() });
        let (core, to_give) = (Arc::clone(self), Arc::clone(&answer));
        let body = move || {
            let _engine = callback::enter(CallbackContext::EngineThread);
            let result = catch_unwind(AssertUnwindSafe(|| work(&core)));
            *to_give.result.lock() = Some(result);
            to_give.given.notify();
            core.call_threads.fetch_sub(1, Ordering::AcqRel);
            core.state.progress.notify();
        };
        let thread = env.spawn("lsmx-call", body).map_err(|error| {
            self.call_threads.fetch_sub(1, Ordering::AcqRel);
            Error::io("start a thread for a call to", &self.state.dir, error)
        })?;
        let mut result = None;
        env.wait(cause, &answer.given, deadline_us, &mut || {
            result = answer.result.lock().take();
            result.is_some()
        });
        let result = result.ok_or_else(late)?;
        // The work is done, so the thread is about to end.
        let _ = env.join(thread);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
