//! Runs work on several threads, with a watchdog.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Outcome;

/// Maximum duration of one call of `work`. A call normally takes milliseconds. The maximum allows for other programs on the
/// same processors.
const PATIENCE: Duration = Duration::from_secs(300);

/// Calls `work` with 0, 1, 2, … on two threads until a call fails or returns false. Returns the failure.
pub(crate) fn in_parallel(work: impl Fn(u64) -> Outcome<bool> + Sync) -> Outcome {
    on_threads(2, work)
}

/// Works like [`in_parallel`], but with `count` threads. Suitable for work that mostly waits.
pub(crate) fn on_threads(count: usize, work: impl Fn(u64) -> Outcome<bool> + Sync) -> Outcome {
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let failure = Mutex::new(Ok(()));
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match work(next.fetch_add(1, Ordering::Relaxed)) {
                        Ok(true) => {}
                        Ok(false) => over.store(true, Ordering::Relaxed),
                        Err(what) => {
                            over.store(true, Ordering::Relaxed);
                            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Err(what);
                        }
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`. If `work` hangs, prints `label` and aborts the process, because a single thread cannot be stopped.
pub(crate) fn watched<T>(label: &str, work: impl FnOnce() -> T) -> T {
    let (done, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Print macros are not used, because the test harness would capture their output.
                let _ = std::io::stderr().write_all(format!("{label} hangs\n").as_bytes());
                std::process::abort();
            }
        });
        // The sender is dropped when `work` returns or panics. This stops the watchdog.
        let _done = done;
        work()
    })
}
