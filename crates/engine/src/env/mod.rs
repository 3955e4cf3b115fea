//! Time, waiting, randomness and background threads. Tests can replace all of them.
//!
//! | background | threads | clock | waiting |
//! | --- | --- | --- | --- |
//! | [`Background::Threads`] | real | system | sleeps on a [`Signal`] |
//! | [`Background::Inline`] | none; jobs run on the calling thread | virtual | sleeps on a [`Signal`] |
//! | [`Background::Stepped`] | real, one runs at a time | virtual | another thread runs; see `env/stepped.rs` |
//!
//! A virtual clock starts at one second. It advances by [`Env::advance_us`] and [`Env::pause_us`], and to the nearest
//! deadline when all threads wait. System time has two clocks: one for scheduling, and one for the ages of data
//! (see `env/clock.rs`). A virtual clock serves as both.
//!
//! A thread that changes the input of a wait condition must call [`Signal::notify`] after the change. `Stepped` detects
//! a missing notification: it fails the test if a condition holds but its signal was not notified.
//!
//! No lock of [`lsmx_base::sync`] may be held at a wait or a yield point. Debug builds assert this.

mod clock;
pub(crate) mod rate_limit;
mod stepped;
#[cfg(test)]
mod tests;
pub(crate) mod thread_time;

use std::io;
use std::time::{Duration, SystemTime};

use rand::rngs::SysRng;
use rand::{Rng, SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

#[cfg(feature = "internals")]
pub use clock::CLOCK_READING_END_US;
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) use clock::ClockJumpReport;
pub use clock::ManualClock;
pub(crate) use clock::{CLOCK_CONFIRMATION_DEFAULT, CLOCK_JUMP_MAX_DEFAULT, ClockRules};
use clock::{SystemClock, saturating_advance};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, Signal, assert_unlocked};
use stepped::StepScheduler;

/// Start time of a virtual clock, in microseconds.
const VIRTUAL_START_US: u64 = 1_000_000;

/// Execution of flushes and compactions, and the clock in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Jobs run on threads of the engine, with the system clock.
    Threads {
        /// Number of threads.
        workers: usize,
    },
    /// Jobs run on the calling thread, inside the call that makes them necessary.
    Inline,
    /// Jobs run on threads of the engine, of which one runs at a time. Schedules are reproducible.
    Stepped {
        /// Determines the schedule.
        seed: u64,
        /// Number of threads.
        workers: usize,
    },
}

/// A time that is never reached, in microseconds.
pub(crate) const NEVER_US: u64 = u64::MAX;

/// Default number of background threads.
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) const WORKERS_DEFAULT: usize = 2;

impl Default for Background {
    fn default() -> Background {
        Background::Threads { workers: WORKERS_DEFAULT }
    }
}

macro_rules! wait_causes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Cause of a wait. Its text appears in errors, metrics and events.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum WaitCause {
            $($(#[$doc])* $name,)*
        }

        impl WaitCause {
            /// All causes.
            pub const ALL: &'static [WaitCause] = &[$(WaitCause::$name,)*];

            /// Returns the text, such as `a flush`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(WaitCause::$name => $text,)* }
            }
        }
    };
}

wait_causes! {
    /// A write waits for a flush, because all memtables are full.
    MemtablesFull = "a free memtable",
    /// A write waits for a flush, because all memtables together are at their memory limit.
    MemoryFull = "memory for memtables",
    /// A write waits for a compaction, because the policy does not allow more runs.
    TooManyRuns = "a compaction to release runs",
    /// A write waits until files are ingested into its keyspace.
    Ingest = "an ingest of files",
    /// A write waits because it exceeds the admitted write rate.
    Throttle = "the write throttle",
    /// A commit waits for earlier commits.
    CommitAhead = "the commits ahead",
    /// An update waits for another update of the same key.
    Update = "an update of the key",
    /// A locking transaction waits for a key that another transaction has locked.
    KeyLock = "the lock of a key",
    /// A caller waits for a flush, or a flush waits for running inserts into its memtable.
    Flush = "a flush",
    /// A caller waits for a compaction.
    Compaction = "a compaction",
    /// An open waits for another thread that inserts WAL entries into memtables.
    Replay = "the replay of the log",
    /// A compaction waits for subcompactions on other threads.
    Subcompactions = "the parts of a merge",
    /// A caller waits until the tree needs no more work.
    BackgroundWork = "background work",
    /// A background thread waits for a job.
    Work = "work",
    /// A job waits for the background I/O rate limit.
    RateLimit = "the background I/O rate",
    /// A close waits for running work.
    Close = "close",
}

impl std::fmt::Display for WaitCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Point at which a thread yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum YieldKind {
    /// Between operations of the user.
    UserOperation,
    /// Between blocks of a flush.
    FlushBlock,
    /// Between blocks of a compaction.
    CompactionBlock,
    /// Between the steps of a job: write, sync, install, delete inputs.
    JobStep,
    /// Between the stages of a commit.
    Commit,
}

/// Clock, waiting, randomness and threads of a database. Clones share the environment.
#[derive(Clone, Debug)]
pub struct Env(Arc<EnvInner>);

#[derive(Debug)]
struct EnvInner {
    background: Background,
    clock: Clock,
    random: Mutex<ChaCha8Rng>,
    scheduler: Option<Arc<StepScheduler>>,
}

impl Env {
    /// Creates an environment. The seed determines all random numbers. Without a seed they come from the operating
    /// system, or from the seed of [`Background::Stepped`].
    ///
    /// Under `Stepped` the calling thread is the first to run.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn new(background: Background, seed: Option<u64>) -> Env {
        Env::with_clock(background, seed, None)
    }

    /// Like [`Env::new`], with a manual clock in place of the system clock or of the virtual clock of
    /// [`Background::Inline`]. `Stepped` ignores it.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn with_clock(
        background: Background,
        seed: Option<u64>,
        manual: Option<ManualClock>,
    ) -> Env {
        let (clock, scheduler) = match (background, manual) {
            (Background::Threads { .. } | Background::Inline, Some(manual)) => {
                (Clock::System(SystemClock::with_manual_clock(manual)), None)
            }
            (Background::Threads { .. }, None) => {
                (Clock::System(SystemClock::with_system_time()), None)
            }
            (Background::Inline, None) => (Clock::new_virtual(), None),
            (Background::Stepped { seed, .. }, _) => {
                let now_us = Arc::new(AtomicU64::new(VIRTUAL_START_US));
                (Clock::Virtual(now_us.clone()), Some(StepScheduler::new(seed, now_us)))
            }
        };
        let seed = seed.or(match background {
            Background::Stepped { seed, .. } => Some(seed),
            _ => None,
        });
        let random = seed.map_or_else(rng_from_entropy, ChaCha8Rng::seed_from_u64);
        Env(Arc::new(EnvInner { background, clock, random: Mutex::new(random), scheduler }))
    }

    /// Returns how background work runs.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn background(&self) -> Background {
        self.0.background
    }

    /// Returns the scheduling clock in microseconds, for deadlines and durations.
    ///
    /// It starts at the wall clock and advances by the monotonic clock, so steps of the wall clock do not affect it.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.now_us(),
            Clock::Virtual(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// Returns the wall clock in microseconds since the Unix epoch, for other processes. It may be set back.
    pub(crate) fn wall_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.wall_us(),
            Clock::Virtual(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// Returns the database clock in microseconds since the Unix epoch, for the ages of files and tombstones.
    ///
    /// It is the largest accepted reading of the wall clock and never goes back. A virtual clock has its own epoch.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn database_time_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.database_time_us(),
            Clock::Virtual(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// Returns the creation time for a new file: the database clock, or a later wall clock reading that is not accepted
    /// yet. With the database clock alone, the file would become old at once when the later reading is accepted.
    #[must_use]
    pub(crate) fn creation_time_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.creation_time_us(),
            Clock::Virtual(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// Returns the time from which the time to live of a new value counts: the database clock, or a later first reading
    /// of the wall clock after an open that is not accepted yet. After a downtime, the value then does not expire as soon
    /// as the reading is accepted. A later jump of the wall clock has no effect, because the expiry time of a value cannot
    /// be corrected if the reading turns out to be wrong.
    #[must_use]
    pub(crate) fn lifetime_start_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.lifetime_start_us(),
            Clock::Virtual(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// Starts the database clock at the time stored in the manifest, 0 if there is none. Returns the stored time, or 0
    /// if it is ignored.
    ///
    /// `rules` determine when wall clock readings that are ahead are accepted.
    pub(crate) fn start_database_clock(&self, stored_us: u64, rules: ClockRules) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.start_database_clock(stored_us, rules),
            Clock::Virtual(now_us) => {
                now_us.fetch_max(stored_us, Ordering::AcqRel);
                stored_us
            }
        }
    }

    /// Removes and returns the reports about wall clock readings, oldest first.
    #[must_use]
    pub(crate) fn take_clock_reports(&self) -> Vec<ClockJumpReport> {
        match &self.0.clock {
            Clock::System(clock) => clock.take_reports(),
            Clock::Virtual(_) => Vec::new(),
        }
    }

    /// Returns nanoseconds since a fixed moment, for latencies. With a virtual clock it is 1,000 × [`Env::now_us`].
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.monotonic_ns(),
            Clock::Virtual(now_us) => now_us.load(Ordering::Acquire).saturating_mul(1_000),
        }
    }

    /// Returns the CPU time of the calling thread in nanoseconds. Returns 0 with a virtual clock, so that results do
    /// not depend on the machine, and on systems without such a clock.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn thread_cpu_ns(&self) -> u64 {
        if self.has_real_time() { thread_cpu_ns() } else { 0 }
    }

    /// Returns true if the clock advances by itself: it is neither a virtual nor a manual clock.
    pub(crate) fn has_real_time(&self) -> bool {
        matches!(&self.0.clock, Clock::System(clock) if !clock.is_manual())
    }

    /// Advances a virtual clock. Has no effect on the system clock.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn advance_us(&self, us: u64) {
        if let Clock::Virtual(now_us) = &self.0.clock {
            saturating_advance(now_us, us);
        }
    }

    /// Returns a random number.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        self.0.random.lock().next_u64()
    }

    /// Waits until `condition` holds and returns true, or until `deadline_us` of [`Env::now_us`] and returns false.
    ///
    /// Evaluates the condition at least once, even after the deadline, and again after each notification of `signal`.
    /// With real threads the remaining time is measured by the monotonic clock. Under [`Background::Inline`] a wait
    /// that reaches its deadline advances the virtual clock to it.
    ///
    /// # Panics
    /// In debug builds, if a lock is held. Under `Stepped`, at a deadlock.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn wait(
        &self,
        cause: WaitCause,
        signal: &Signal,
        deadline_us: Option<u64>,
        condition: &mut dyn FnMut() -> bool,
    ) -> bool {
        assert_unlocked();
        if let Some(scheduler) = &self.0.scheduler {
            return scheduler.wait_for_signal(cause, signal, deadline_us, condition);
        }
        let mut started = None;
        loop {
            let seen = signal.generation();
            if condition() {
                return true;
            }
            let Some(deadline_us) = deadline_us else {
                signal.wait(seen, None);
                continue;
            };
            let (since, timeout) = started.get_or_insert_with(|| {
                (read_monotonic(), Duration::from_micros(deadline_us.saturating_sub(self.now_us())))
            });
            let left = timeout.saturating_sub(since.elapsed());
            if left.is_zero() {
                match &self.0.clock {
                    Clock::Virtual(now_us) => {
                        now_us.fetch_max(deadline_us, Ordering::AcqRel);
                    }
                    Clock::System(clock) => {
                        clock.advance_manual_us(deadline_us.saturating_sub(clock.now_us()));
                    }
                }
                return false;
            }
            signal.wait(seen, Some(left));
        }
    }

    /// Lets other threads run under [`Background::Stepped`]. Costs one branch otherwise.
    ///
    /// # Panics
    /// In debug builds, if a lock is held.
    #[inline]
    pub fn yield_point(&self, kind: YieldKind) {
        assert_unlocked();
        if let Some(scheduler) = &self.0.scheduler {
            scheduler.yield_point(kind);
        }
    }

    /// Starts a thread. Under `Stepped` it runs when the scheduler selects it.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        match &self.0.scheduler {
            None => Ok(JoinHandle { thread: builder.spawn(body)?, slot: None }),
            Some(scheduler) => {
                let slot = scheduler.register_thread(name);
                let own = scheduler.clone();
                match builder.spawn(move || own.run_thread(slot, body)) {
                    Ok(thread) => Ok(JoinHandle { thread, slot: Some(slot) }),
                    Err(error) => {
                        scheduler.end_thread(slot);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Runs `task` for each number below `tasks` and returns when all are done.
    ///
    /// Uses the calling thread and new threads, at most `threads` in total. With a virtual or manual clock only the
    /// calling thread runs tasks. Fewer threads run if the system cannot create them.
    ///
    /// # Panics
    /// If a task panics. In debug builds, if a lock is held.
    pub(crate) fn run_parallel(&self, tasks: usize, threads: usize, task: &(dyn Fn(usize) + Sync)) {
        assert_unlocked();
        let next = AtomicU64::new(0);
        let work = || {
            while let Ok(number) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                && number < tasks
            {
                task(number);
            }
        };
        let others = if self.has_real_time() { threads.min(tasks).saturating_sub(1) } else { 0 };
        std::thread::scope(|scope| {
            for _ in 0..others {
                let builder = std::thread::Builder::new().name("lsmx-read".to_owned());
                if builder.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    /// Waits until a thread has ended.
    ///
    /// # Errors
    /// The panic payload, if the thread panicked.
    ///
    /// # Panics
    /// Like [`Env::wait`].
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn join(&self, handle: JoinHandle) -> std::thread::Result<()> {
        assert_unlocked();
        if let (Some(scheduler), Some(slot)) = (&self.0.scheduler, handle.slot) {
            scheduler.join(slot);
        }
        handle.thread.join()
    }

    /// Pauses for a short time. With the system clock the thread sleeps. A virtual clock advances by this time. Under
    /// `Stepped`, it advances only when no other thread can run.
    ///
    /// # Panics
    /// Like [`Env::wait`].
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn pause_us(&self, us: u64) {
        assert_unlocked();
        match (&self.0.scheduler, &self.0.clock) {
            (Some(scheduler), _) => {
                let deadline = self.now_us().saturating_add(us);
                scheduler.wait_for_signal(
                    WaitCause::Throttle,
                    &Signal::new(),
                    Some(deadline),
                    &mut || false,
                );
            }
            (None, Clock::Virtual(_)) => self.advance_us(us),
            (None, Clock::System(clock)) if clock.is_manual() => clock.advance_manual_us(us),
            (None, Clock::System(_)) => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "this is the replacement for direct calls"
                )]
                std::thread::sleep(Duration::from_micros(us));
            }
        }
    }

    /// Ends the schedule after this number of further steps: every thread panics with a report of all waits. Tests use
    /// it to limit the work of a call. Has no effect unless `Stepped`.
    #[cfg(feature = "internals")]
    pub fn limit_steps(&self, steps: u64) {
        if let Some(scheduler) = &self.0.scheduler {
            scheduler.limit_steps(steps);
        }
    }

    /// Returns a hash over the order of threads and their yield points. Equal schedules have equal hashes. Returns 0
    /// unless `Stepped`.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.scheduler.as_ref().map_or(0, |scheduler| scheduler.trace_hash())
    }
}

impl Default for Env {
    /// Returns an environment with real threads, the system clock and random numbers of the system.
    fn default() -> Env {
        Env::new(Background::default(), None)
    }
}

/// A thread started by [`Env::spawn`]. Dropping the handle detaches the thread.
#[cfg_attr(feature = "internals", visibility::make(pub))]
#[derive(Debug)]
pub(crate) struct JoinHandle {
    thread: std::thread::JoinHandle<()>,
    /// Slot in the [`StepScheduler`], under `Stepped`.
    slot: Option<usize>,
}

#[derive(Debug)]
enum Clock {
    System(SystemClock),
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    fn new_virtual() -> Clock {
        Clock::Virtual(Arc::new(AtomicU64::new(VIRTUAL_START_US)))
    }
}

fn read_monotonic() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "`env` is the replacement for direct calls")]
    std::time::Instant::now()
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Both fields are never negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn thread_cpu_ns() -> u64 {
    0
}

/// Nice value that is added to the one of the process. A thread of the process then gets about three times as much CPU
/// time as this thread if both compete for a processor.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOW_PRIORITY_NICE: i32 = 5;

/// Lowers the CPU priority of the calling thread. If all processors are busy, a lookup whose read has completed then
/// waits less for a processor.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn lower_thread_priority() {
    // On Linux the priority belongs to the thread. Failure is harmless: the thread keeps its priority.
    if let Ok(nice) = rustix::process::getpriority_process(None) {
        let _ = rustix::process::setpriority_process(None, nice.saturating_add(LOW_PRIORITY_NICE));
    }
}

/// Does nothing. Other systems have no thread priorities, or no portable call to set them.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn lower_thread_priority() {}

fn wall_clock_us() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "`env` is the replacement for direct calls")]
    let now = SystemTime::now();
    unix_time_us(now)
}

/// Returns the Unix time in microseconds. The result is 0 for times before 1970, and saturates at `u64::MAX`.
pub(crate) fn unix_time_us(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, duration_us)
}

/// Converts a duration to microseconds. The result saturates at `u64::MAX`.
pub(crate) fn duration_us(duration: Duration) -> u64 {
    saturating_u64(duration.as_micros())
}

pub(crate) fn saturating_u64(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn rng_from_entropy() -> ChaCha8Rng {
    let mut seed = <ChaCha8Rng as SeedableRng>::Seed::default();
    if SysRng.try_fill_bytes(&mut seed).is_err() {
        // Without an entropy source, as in a sandbox, time and process id differ between databases.
        let mix = wall_clock_us() ^ u64::from(std::process::id()).rotate_left(32);
        return ChaCha8Rng::seed_from_u64(mix);
    }
    ChaCha8Rng::from_seed(seed)
}
