//! Time measurement for job threads: CPU time, waits in file system calls, and the remaining time.
//!
//! A wait is the elapsed time of a file system call minus the CPU time of the thread during the call. A read from the
//! page cache therefore counts as CPU time, and no time counts twice. The time in which a thread waits for a free CPU
//! core during a call counts as a wait of this call.

use std::cell::Cell;

use crate::env::Env;

/// Kind of file system call that a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoKind {
    /// Reads of tables and blob files.
    Read,
    /// Appends to tables and blob files.
    Write,
    /// Syncs of files and directories, and manifest edits, which include the wait for concurrent edits.
    Sync,
}

/// Number of values of [`IoKind`].
const IO_KINDS: usize = 3;

thread_local! {
    /// Nanoseconds that this thread has waited in calls of [`measure_wait`], by kind.
    static WAITED_NS: Cell<[u64; IO_KINDS]> = const { Cell::new([0; IO_KINDS]) };
}

/// Makes a file system call and adds the wait of the calling thread to its [`ThreadTime`].
///
/// A measurement costs two system calls, so it is used only for the large calls of background jobs. Calls must not be
/// nested. With a virtual or manual clock nothing is added.
pub(crate) fn measure_wait<T>(env: &Env, kind: IoKind, call: impl FnOnce() -> T) -> T {
    if !env.has_real_time() {
        return call();
    }
    // The CPU time is read first and last, so that a call without a wait adds nothing.
    let cpu_start_ns = env.thread_cpu_ns();
    let start_ns = env.monotonic_ns();
    let result = call();
    let elapsed_ns = env.monotonic_ns().saturating_sub(start_ns);
    let cpu_ns = env.thread_cpu_ns().saturating_sub(cpu_start_ns);
    let mut waited_ns = WAITED_NS.get();
    waited_ns[kind as usize] += elapsed_ns.saturating_sub(cpu_ns);
    WAITED_NS.set(waited_ns);
    result
}

/// Time of one thread, or the sum over several threads, in nanoseconds.
///
/// CPU time and waits do not overlap. The remaining elapsed time consists of waits for locks, rate limits, other
/// threads and a free CPU core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadTime {
    pub(crate) elapsed_ns: u64,
    /// CPU time.
    pub(crate) cpu_ns: u64,
    /// Waits in calls of [`measure_wait`], by kind.
    waited_ns: [u64; IO_KINDS],
}

impl ThreadTime {
    /// Returns the current time of the calling thread.
    pub(crate) fn now(env: &Env) -> ThreadTime {
        ThreadTime {
            elapsed_ns: env.monotonic_ns(),
            cpu_ns: env.thread_cpu_ns(),
            waited_ns: WAITED_NS.get(),
        }
    }

    /// Returns the time since `self`, which must be from the same thread.
    pub(crate) fn elapsed(self, env: &Env) -> ThreadTime {
        let now = ThreadTime::now(env);
        ThreadTime {
            elapsed_ns: now.elapsed_ns.saturating_sub(self.elapsed_ns),
            cpu_ns: now.cpu_ns.saturating_sub(self.cpu_ns),
            waited_ns: std::array::from_fn(|kind| {
                now.waited_ns[kind].saturating_sub(self.waited_ns[kind])
            }),
        }
    }

    pub(crate) fn add(&mut self, other: ThreadTime) {
        self.elapsed_ns += other.elapsed_ns;
        self.cpu_ns += other.cpu_ns;
        for (sum_ns, ns) in self.waited_ns.iter_mut().zip(other.waited_ns) {
            *sum_ns += ns;
        }
    }

    /// Returns the waits of one kind, in microseconds.
    pub(crate) fn waited_us(&self, kind: IoKind) -> u64 {
        self.waited_ns[kind as usize] / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Background;

    #[test]
    fn measure_wait_adds_waits_by_kind_without_processor_time() {
        let env = Env::new(Background::default(), Some(1));
        let spin = || {
            let until_ns = env.monotonic_ns() + 20_000_000;
            while env.monotonic_ns() < until_ns {}
        };
        let start = ThreadTime::now(&env);
        measure_wait(&env, IoKind::Read, || env.pause_us(20_000));
        measure_wait(&env, IoKind::Read, spin);
        measure_wait(&env, IoKind::Sync, || env.pause_us(10_000));
        let time = start.elapsed(&env);
        assert!(time.waited_us(IoKind::Read) >= 15_000, "{time:?}");
        assert_eq!(time.waited_us(IoKind::Write), 0);
        assert!(time.waited_us(IoKind::Sync) >= 7_500, "{time:?}");
        let waited_ns: u64 = time.waited_ns.iter().sum();
        assert!(time.cpu_ns + waited_ns <= time.elapsed_ns + 1_000_000, "{time:?}");
        let mut twice = time;
        twice.add(time);
        assert_eq!(twice.waited_ns, time.waited_ns.map(|ns| 2 * ns));
    }

    #[test]
    fn measure_wait_with_a_virtual_clock_adds_nothing() {
        let env = Env::new(Background::Inline, Some(1));
        let start = ThreadTime::now(&env);
        let result = measure_wait(&env, IoKind::Write, || {
            env.advance_us(100);
            7
        });
        let time = start.elapsed(&env);
        assert_eq!((result, time.elapsed_ns, time.cpu_ns), (7, 100_000, 0));
        assert_eq!(time.waited_ns, [0; IO_KINDS]);
    }
}
