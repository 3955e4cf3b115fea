//! The stopwatch of the measurements: the one place that asks the machine for the time.

use std::time::{Duration, Instant};

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

/// Lets this thread rest for so many nanoseconds.
#[expect(clippy::disallowed_methods, reason = "the pace of a workload, no wait of a database")]
pub fn pause_ns(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// Rests until `watch` shows `ns`: most of the time asleep, the rest watching, because a sleep ends
/// late by tens of microseconds.
pub fn wait_until(watch: Stopwatch, ns: u64) {
    const WATCHED_NS: u64 = 100_000;
    let left = ns.saturating_sub(watch.elapsed_ns());
    if left > WATCHED_NS {
        pause_ns(left - WATCHED_NS);
    }
    while watch.elapsed_ns() < ns {
        std::hint::spin_loop();
    }
}

/// Nanoseconds that measuring one operation costs: a start and a reading.
#[must_use]
pub fn cost_ns() -> f64 {
    const READINGS: u32 = 10_000;
    let watch = Stopwatch::start();
    for _ in 0..READINGS {
        std::hint::black_box(Stopwatch::start().elapsed_ns());
    }
    watch.elapsed_s() * 1e9 / f64::from(READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_should_and_not_before() {
        let watch = Stopwatch::start();
        wait_until(watch, 2_000_000);
        assert!(watch.elapsed_ns() >= 2_000_000);
        let before = watch.elapsed_ns();
        wait_until(watch, 0);
        assert!(watch.elapsed_ns() >= before);
        assert!(cost_ns() > 0.0);
    }
}
