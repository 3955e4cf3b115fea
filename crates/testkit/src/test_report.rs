//! Lines of a test on standard error: its time, and the parts of it that do not run.
//!
//! The test harness captures only what the print macros write, so the lines are shown for passing tests too.

use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

/// Returns the name of the running test. The harness gives it to the thread of the test.
fn test_name() -> Option<String> {
    std::thread::current().name().filter(|name| *name != "main").map(str::to_owned)
}

/// Prints `skipped: TEST: PART: REASON`.
pub fn report_skipped(part: &str, reason: impl Display) {
    let name = test_name().unwrap_or_default();
    // A test does not fail because its standard error is closed.
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
/// [`seed`](crate::seed) calls it. Other tests that take more than a second call it first.
pub fn time_test() {
    thread_local! {
        static TIMER: Timer = Timer::start();
    }
    TIMER.with(|_| ());
}
