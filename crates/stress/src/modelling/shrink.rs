//! Shrinks failing lists, silences expected panics, and stops tests that hang.

use lsmx_testkit::scale;
use std::cell::Cell;
use std::io::Write;
use std::panic;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Removes smaller and smaller parts of a list while the rest still fails. Stops after `patience`.
#[expect(clippy::disallowed_methods, reason = "how long to go on is a matter of real time")]
pub fn shrink<T: Clone>(list: &[T], patience: Duration, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let start = Instant::now();
    let mut list = list.to_vec();
    let mut part = list.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        let mut shorter = false;
        while from < list.len() {
            if start.elapsed() > patience {
                return list;
            }
            let to = (from + part).min(list.len());
            let rest = [&list[..from], &list[to..]].concat();
            if fails(&rest) {
                list = rest;
                shorter = true;
            } else {
                from = to;
            }
        }
        if part == 1 && !shorter {
            return list;
        }
        part = if part == 1 { 1 } else { part / 2 };
    }
    list
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. Panics of this thread print nothing meanwhile.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = work();
    QUIET.set(before);
    result
}

/// Ends the process if the returned sender is still alive after `patience` times the scale.
#[expect(clippy::disallowed_methods, reason = "it watches those that could hang")]
pub fn watchdog(test: &'static str, seed: u64, patience: Duration) -> Sender<()> {
    let (held, gone) = channel();
    let patience = patience.mul_f64(scale().max(1.0));
    std::thread::spawn(move || {
        if gone.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            // The harness would capture the output of a macro.
            let told = format!("{test} hangs: LSMX_TEST_SEED={seed}\n");
            let _ = std::io::stderr().write_all(told.as_bytes());
            std::process::abort();
        }
    });
    held
}
