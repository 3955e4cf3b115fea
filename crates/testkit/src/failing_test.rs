//! Help for tests that fail or hang: shrinks failing lists, silences expected panics, and ends a process that hangs.

use std::any::Any;
use std::cell::Cell;
use std::io::Write;
use std::panic;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::test_run::scale;

/// Removes smaller and smaller parts of a list while the rest still fails. Stops after `time_max`.
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

/// Returns the message of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

thread_local! {
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. Panics of this thread print nothing meanwhile.
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

/// Ends the process if the returned sender is still alive after `time_max` times the scale.
#[expect(clippy::disallowed_methods, reason = "it watches those that could hang")]
pub fn watchdog(test: &'static str, seed: u64, time_max: Duration) -> Sender<()> {
    let (alive, is_dropped) = channel();
    let time_max = time_max.mul_f64(scale().max(1.0));
    std::thread::spawn(move || {
        if is_dropped.recv_timeout(time_max) == Err(RecvTimeoutError::Timeout) {
            // The test harness would capture the output of a macro.
            let text = format!("{test} hangs: LSMX_TEST_SEED={seed}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    });
    alive
}
