//! The stopwatch of the measurements: the one place that asks the machine for the time.

use std::time::Instant;

/// Measures how long something takes, whatever clock the database under test is driven by.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts to measure.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "latencies are measured, never decided upon")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn elapsed_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Seconds since the start.
    #[must_use]
    pub fn elapsed_s(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
