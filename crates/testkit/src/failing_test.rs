//! Helpers that shrink failing lists, silence expected panics, and abort a process that hangs.

use std::any::Any;
use std::cell::Cell;
use std::io::Write;
use std::panic;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::test_run::scale;

/// Shortens a failing list by removing parts of decreasing size, as long as the rest still fails. Stops after
/// `time_max`.
#[expect(clippy::disallowed_methods, reason = "the limit is one of real time")]
pub fn shrink_list<T: Clone>(
    list: &[T],
    time_max: Duration,
    fails: impl Fn(&[T]) -> bool,
) -> Vec<T> {
    let start = Instant::now();
    let mut list = list.to_vec();
    let mut part = list.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        let mut is_shorter = false;
        while from < list.len() {
            if start.elapsed() > time_max {
                return list;
            }
            let to = (from + part).min(list.len());
            let rest = [&list[..from], &list[to..]].concat();
            if fails(&rest) {
                list = rest;
                is_shorter = true;
            } else {
                from = to;
            }
        }
        if part == 1 && !is_shorter {
            return list;
        }
        part = (part / 2).max(1);
    }
    list
}

#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

thread_local! {
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. During the call, panics of this thread print no message.
pub fn with_silent_panics<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_SILENT.get() {
                print(info);
            }
        }));
    });
    let before = IS_SILENT.replace(true);
    let result = work();
    IS_SILENT.set(before);
    result
}

/// Aborts the process if the returned sender is not dropped within `time_max`. A test scale above 1 multiplies this
/// time.
#[expect(clippy::disallowed_methods, reason = "it watches those that could hang")]
pub fn watchdog(test: &'static str, seed: u64, time_max: Duration) -> Sender<()> {
    let (alive, is_dropped) = channel();
    let time_max = time_max.mul_f64(scale().max(1.0));
    std::thread::spawn(move || {
        if is_dropped.recv_timeout(time_max) == Err(RecvTimeoutError::Timeout) {
            // Print macros are not used, because the test harness would capture their output.
            let text = format!("{test} hangs: LSMX_TEST_SEED={seed}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    });
    alive
}
