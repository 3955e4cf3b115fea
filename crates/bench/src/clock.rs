//! A real-time clock for measurements. Databases do not use this clock.

use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "latencies are measured in real time")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub fn elapsed_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn elapsed_s(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Puts this thread to sleep for `ns` nanoseconds.
#[expect(clippy::disallowed_methods, reason = "paces a workload; no database calls it")]
pub fn sleep_ns(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// Reduces the timer slack of the calling thread, so that a sleep ends about 20 µs after its deadline. The default
/// timer slack of Linux is 50 µs. Has no effect on other systems.
pub fn shorten_timer_slack() {
    let Ok(thread) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(id) = thread.file_name() else { return };
    let path = Path::new("/proc").join(id).join("timerslack_ns");
    // An error is ignored, because larger timer slack only makes sleeps end later.
    #[expect(clippy::disallowed_methods, reason = "a setting of the kernel, not a file")]
    let _ = std::fs::write(path, "1");
}

/// Waits until `watch` has run for `ns` nanoseconds. The thread spins during the last 40 µs, because a sleeping thread
/// wakes up late (see [`shorten_timer_slack`]). A longer spin loop would take processor time from the threads of the
/// engine.
pub fn wait_until_elapsed(watch: Stopwatch, ns: u64) {
    const SPIN_NS: u64 = 40_000;
    let left = ns.saturating_sub(watch.elapsed_ns());
    if left > SPIN_NS {
        sleep_ns(left - SPIN_NS);
    }
    while watch.elapsed_ns() < ns {
        std::hint::spin_loop();
    }
}

/// Returns the time to start and read a stopwatch once, in nanoseconds, as a mean over many readings.
pub fn measure_clock_cost_ns() -> f64 {
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
    fn wait_until_returns_after_the_deadline() {
        let watch = Stopwatch::start();
        wait_until_elapsed(watch, 2_000_000);
        assert!(watch.elapsed_ns() >= 2_000_000);
        wait_until_elapsed(watch, 0);
        assert!(measure_clock_cost_ns() > 0.0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn shortened_timer_slack_applies_to_the_calling_thread() {
        let read_slack = || {
            shorten_timer_slack();
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            let id = thread.file_name().unwrap().to_str().unwrap().to_owned();
            std::fs::read_to_string(format!("/proc/{id}/timerslack_ns")).unwrap()
        };
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(read_slack).join().unwrap().trim(), "1");
        });
    }
}
