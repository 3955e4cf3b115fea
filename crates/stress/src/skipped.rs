//! Reports the parts of a test that do not run.

use std::fmt::Display;
use std::io::Write;

/// Prints `skipped: PART: REASON` on standard error.
///
/// The test harness captures only what the print macros write, so the line is shown for passing tests too.
pub fn report_skipped(part: &str, reason: impl Display) {
    // A test does not fail because its standard error is closed.
    let _ = writeln!(std::io::stderr(), "skipped: {part}: {reason}");
}
