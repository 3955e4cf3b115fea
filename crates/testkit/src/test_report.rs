//! Prints how long a test took and which parts of it were skipped, to standard error.
//!
//! The test harness captures only the output of print macros. These lines are written without print macros, so they
//! appear even if the test passes.

use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

/// Returns the name of the running test, which is the name of its thread.
fn test_name() -> Option<String> {
    std::thread::current().name().filter(|name| *name != "main").map(str::to_owned)
}

/// Prints the line `skipped: TEST: PART: REASON`.
pub fn report_skipped(part: &str, reason: impl Display) {
    let name = test_name().unwrap_or_default();
    // A test must not fail if its standard error is closed.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {part}: {reason}");
}

/// Prints the line `test time: MILLISECONDS ms TEST` when the thread of the test ends.
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

/// If `LSMX_TEST_TIMES=1` is set, prints the time from the first call in a test to the end of the test.
///
/// [`seed`](crate::seed) calls this function. A test without a seed calls it at its start if the test takes more than a
/// second.
pub fn time_test() {
    thread_local! {
        static TIMER: Timer = Timer::start();
    }
    TIMER.with(|_| ());
}
