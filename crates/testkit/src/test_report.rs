//! Prints to standard error how long a test took and which parts of a test were skipped.
//!
//! The test harness captures only the output of print macros. These lines are written directly, so they also appear if
//! the test passes.

use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

/// Returns the name of the running test, which is the name of its thread.
fn test_name() -> Option<String> {
    std::thread::current().name().filter(|name| *name != "main").map(str::to_owned)
}

/// Prints `skipped: TEST: PART: REASON`.
pub fn report_skipped(part: &str, reason: impl Display) {
    let name = test_name().unwrap_or_default();
    // A test must not fail if its standard error is closed.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {part}: {reason}");
}

/// Prints `test time: MILLISECONDS ms TEST` when the thread of a test ends.
struct Timer(Option<(String, Instant)>);

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some((name, start)) = &self.0 {
            let ms = start.elapsed().as_millis();
            let _ = writeln!(std::io::stderr(), "test time: {ms} ms {name}");
        }
    }
}

impl Timer {
    #[expect(clippy::disallowed_methods, reason = "measures the time of a test")]
    fn start() -> Timer {
        let is_on = std::env::var_os("LSMX_TEST_TIMES").is_some_and(|value| value == "1");
        Timer(test_name().filter(|_| is_on).map(|name| (name, Instant::now())))
    }
}

/// With `LSMX_TEST_TIMES=1`, prints the time from the first call in a test to the end of the test.
///
/// [`seed`](crate::seed) calls this function. Other tests that take more than one second call it at their start.
pub fn time_test() {
    thread_local! {
        static TIMER: Timer = Timer::start();
    }
    TIMER.with(|_| ());
}
