//! Time, waiting, randomness and background threads, so that tests control all of them.
//!
//! | background | threads | clock | waiting |
//! | --- | --- | --- | --- |
//! | [`Background::Threads`] | real | the system's | real sleep on a [`Signal`] |
//! | [`Background::Inline`] | none of the engine's; jobs run on the caller's thread | driven | real sleep, among the user's threads |
//! | [`Background::Stepped`] | real, but one runs at a time | driven | the baton goes on; see `env/stepped.rs` |
//!
//! A driven clock starts at one second and moves only when told ([`Env::advance_us`],
//! [`Env::pause_us`]) or when all that could go on waits for it. System time has two clocks, one for
//! scheduling and one for the ages of data; see `env/clock.rs`. A driven clock is both.
//!
//! To wait: whoever changes something that a condition looks at calls [`Signal::notify`] directly,
//! after the change. That is enough in every mode; under `Stepped` a thread whose condition holds
//! but whose signal was not given fails the test, for real threads would have slept on.
//!
//! No lock of [`lsmx_base::sync`] may be held at a wait or a yield point; debug builds assert it.

mod clock;
pub mod rate;
mod stepped;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use rand::rngs::SysRng;
use rand::{Rng, SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

pub use clock::{CLOCK_JUMP_MAX_DEFAULT, CLOCK_READING_END_US, ClockReport, ManualClock};
use clock::{SystemClock, saturating_advance};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, Signal, assert_unlocked};
use stepped::Stepper;

/// Where a driven clock starts, in microseconds.
const DRIVEN_START_US: u64 = 1_000_000;

/// Who does flushes and compactions, and under whose clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Threads of the engine do, on the system's clock.
    Threads {
        /// How many.
        workers: usize,
    },
    /// The caller's thread does, before the call that made the work necessary returns.
    Inline,
    /// Threads of the engine do, one at a time: whoever holds the baton runs. The seed decides who
    /// gets it next, so a schedule can be played again.
    Stepped {
        /// Decides the schedule.
        seed: u64,
        /// How many threads.
        workers: usize,
    },
}

/// Threads by default.
pub const WORKERS_DEFAULT: usize = 2;

impl Default for Background {
    fn default() -> Background {
        Background::Threads { workers: WORKERS_DEFAULT }
    }
}

macro_rules! wait_causes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What a thread waits for; prints as it stands in errors, metrics and events.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum WaitCause {
            $($(#[$doc])* $name,)*
        }

        impl WaitCause {
            /// All of them.
            pub const ALL: &'static [WaitCause] = &[$(WaitCause::$name,)*];

            /// Its text, such as `a flush`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(WaitCause::$name => $text,)* }
            }
        }
    };
}

wait_causes! {
    /// Writes: all memtables are full and none has been flushed yet.
    MemtablesFull = "a free memtable",
    /// Writes: all memtables together are at their bound, until a flush has made room.
    MemoryFull = "memory for memtables",
    /// Writes: the policy's hard stop, until a compaction has released runs.
    TooManyRuns = "a compaction to release runs",
    /// Writes: the admitted rate.
    Throttle = "the write throttle",
    /// A commit: those ahead of it in the order.
    CommitAhead = "the commits ahead",
    /// An update of a key: another one of the same key.
    Update = "an update of the key",
    /// A flush that was asked for, or of a memtable with inserts under way.
    Flush = "a flush",
    /// A compaction that was asked for.
    Compaction = "a compaction",
    /// An opening: the commits that another thread puts into memtables.
    Replay = "the replay of the log",
    /// A merge: those of its parts that other threads run.
    Parts = "the parts of a merge",
    /// The tree to settle.
    BackgroundWork = "background work",
    /// A background thread: something to do.
    Work = "work",
    /// A job: the limit of background reads and writes.
    RateLimit = "the background I/O rate",
    /// Work that must end before the database is closed.
    Close = "close",
}

impl std::fmt::Display for WaitCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a thread may give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum YieldKind {
    /// Between operations of a user.
    UserOperation,
    /// Between blocks of a flush.
    FlushBlock,
    /// Between blocks of a compaction.
    CompactionBlock,
    /// Between the steps of a job: written, synced, installed, inputs deleted.
    JobStep,
    /// Between the stations of a commit.
    Commit,
}

/// Time, waiting, randomness and threads. Clones are the same environment.
#[derive(Clone, Debug)]
pub struct Env(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    background: Background,
    clock: Clock,
    random: Mutex<ChaCha8Rng>,
    stepper: Option<Arc<Stepper>>,
}

impl Env {
    /// An environment. With a seed, every random number follows from it; without one they come from
    /// the operating system, or under [`Background::Stepped`] from the seed there.
    ///
    /// Under `Stepped` the calling thread holds the baton from here on.
    #[must_use]
    pub fn new(background: Background, seed: Option<u64>) -> Env {
        Env::with_clock(background, seed, None)
    }

    /// [`Env::new`] with a clock that a test sets, in place of system time or of the driven clock of
    /// [`Background::Inline`]. `Stepped` has a clock of its own and ignores it.
    #[must_use]
    pub fn with_clock(
        background: Background,
        seed: Option<u64>,
        manual: Option<ManualClock>,
    ) -> Env {
        let (clock, stepper) = match (background, manual) {
            (Background::Threads { .. } | Background::Inline, Some(manual)) => {
                (Clock::System(SystemClock::manual(manual)), None)
            }
            (Background::Threads { .. }, None) => (Clock::System(SystemClock::real()), None),
            (Background::Inline, None) => (Clock::driven(), None),
            (Background::Stepped { seed, .. }, _) => {
                let now_us = Arc::new(AtomicU64::new(DRIVEN_START_US));
                (Clock::Driven(now_us.clone()), Some(Stepper::new(seed, now_us)))
            }
        };
        let seed = seed.or(match background {
            Background::Stepped { seed, .. } => Some(seed),
            _ => None,
        });
        let random = seed.map_or_else(from_entropy, ChaCha8Rng::seed_from_u64);
        Env(Arc::new(Inner { background, clock, random: Mutex::new(random), stepper }))
    }

    /// Who does background work.
    #[must_use]
    pub fn background(&self) -> Background {
        self.0.background
    }

    /// The scheduling clock, in microseconds: it starts at the wall clock and advances by the monotonic
    /// clock, so no step of the wall clock changes it. For deadlines and durations.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.now_us(),
            Clock::Driven(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// The database clock, in microseconds since the Unix epoch, or since a driven clock's: the largest
    /// time that was believed. Never goes back. For the ages of files and tombstones.
    #[must_use]
    pub fn database_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.database_us(),
            Clock::Driven(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// The creation time of a file that is written now: the database clock, or a wall clock reading ahead
    /// of it that is not believed yet. If it is believed later, the file must not be old at once.
    #[must_use]
    pub fn stamp_us(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.stamp_us(),
            Clock::Driven(now_us) => now_us.load(Ordering::Acquire),
        }
    }

    /// Starts the database clock at the time that a manifest stores, 0 if it stores none. A reading of the
    /// wall clock ahead by more than `jump_us_max` is not believed at once. Returns the stored time, or 0
    /// if it is ignored.
    pub fn begin_database_clock(&self, stored_us: u64, jump_us_max: u64) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.begin(stored_us, jump_us_max),
            Clock::Driven(now_us) => {
                now_us.fetch_max(stored_us, Ordering::AcqRel);
                stored_us
            }
        }
    }

    /// Takes the reports about wall clock readings since the last call, oldest first.
    #[must_use]
    pub fn take_clock_reports(&self) -> Vec<ClockReport> {
        match &self.0.clock {
            Clock::System(clock) => clock.take_reports(),
            Clock::Driven(_) => Vec::new(),
        }
    }

    /// Nanoseconds since some fixed moment, for latencies; 1,000 × [`Env::now_us`] of a driven
    /// clock.
    #[must_use]
    pub fn monotonic_ns(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) => clock.monotonic_ns(),
            Clock::Driven(now_us) => now_us.load(Ordering::Acquire).saturating_mul(1_000),
        }
    }

    /// Nanoseconds of processor time that the calling thread took so far; 0 on a driven clock, under
    /// which nothing may depend on the machine, and where the system does not tell.
    #[must_use]
    pub fn thread_cpu_ns(&self) -> u64 {
        match &self.0.clock {
            Clock::System(clock) if !clock.is_manual() => thread_cpu_ns(),
            _ => 0,
        }
    }

    /// Moves a driven clock; the system's moves by itself.
    pub fn advance_us(&self, us: u64) {
        if let Clock::Driven(now_us) = &self.0.clock {
            saturating_advance(now_us, us);
        }
    }

    /// A random number.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        self.0.random.lock().next_u64()
    }

    /// Waits until `condition` holds, and returns true; or until `deadline_us` (as
    /// [`Env::now_us`] counts) has passed, and returns false. The condition is asked at least once,
    /// a deadline that has passed or not, and again whenever `signal` was given.
    ///
    /// Real waiting measures what is left of the deadline by a clock that nobody can set. Under
    /// [`Background::Inline`] a wait that meets its deadline moves the driven clock there.
    ///
    /// # Panics
    /// In debug builds, if a lock is held. Under `Stepped`, if no thread can ever go on.
    pub fn wait(
        &self,
        cause: WaitCause,
        signal: &Signal,
        deadline_us: Option<u64>,
        condition: &mut dyn FnMut() -> bool,
    ) -> bool {
        assert_unlocked();
        if let Some(stepper) = &self.0.stepper {
            return stepper.wait(cause, signal, deadline_us, condition);
        }
        let mut started = None;
        loop {
            let seen = signal.generation();
            if condition() {
                return true;
            }
            let Some(deadline_us) = deadline_us else {
                signal.sleep_while(seen, None);
                continue;
            };
            let (since, patience) = started.get_or_insert_with(|| {
                (monotonic(), Duration::from_micros(deadline_us.saturating_sub(self.now_us())))
            });
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                match &self.0.clock {
                    Clock::Driven(now_us) => {
                        now_us.fetch_max(deadline_us, Ordering::AcqRel);
                    }
                    Clock::System(clock) => {
                        clock.advance_manual_us(deadline_us.saturating_sub(clock.now_us()));
                    }
                }
                return false;
            }
            signal.sleep_while(seen, Some(left));
        }
    }

    /// Gives way: cancellation, preemption and replayed schedules meet here. One branch, except
    /// under [`Background::Stepped`].
    ///
    /// # Panics
    /// In debug builds, if a lock is held.
    #[inline]
    pub fn yield_point(&self, kind: YieldKind) {
        assert_unlocked();
        if let Some(stepper) = &self.0.stepper {
            stepper.yield_point(kind);
        }
    }

    /// Starts a thread. Under `Stepped` it first runs when the baton comes to it.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        match &self.0.stepper {
            None => Ok(JoinHandle { thread: builder.spawn(body)?, place: None }),
            Some(stepper) => {
                let place = stepper.announce(name);
                let own = stepper.clone();
                match builder.spawn(move || own.run(place, body)) {
                    Ok(thread) => Ok(JoinHandle { thread, place: Some(place) }),
                    Err(error) => {
                        stepper.leave(place);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Runs `task` for each number below `tasks`, on the calling thread and as many more as are of use, at
    /// most `threads` in all; returns when all are done. Where time is driven they run one after the
    /// other on the calling thread, and where the system gives no thread, on fewer.
    ///
    /// # Panics
    /// As a task does. In debug builds, if a lock is held.
    pub fn fan_out(&self, tasks: usize, threads: usize, task: &(dyn Fn(usize) + Sync)) {
        assert_unlocked();
        let next = AtomicU64::new(0);
        let work = || {
            while let Ok(number) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
                && number < tasks
            {
                task(number);
            }
        };
        let others = match self.0.clock {
            Clock::System(ref clock) if !clock.is_manual() => threads.min(tasks).saturating_sub(1),
            _ => 0,
        };
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

    /// Waits until a thread has ended; under `Stepped` the baton goes on meanwhile.
    ///
    /// # Errors
    /// What the thread panicked with.
    ///
    /// # Panics
    /// As [`Env::wait`].
    pub fn join(&self, handle: JoinHandle) -> std::thread::Result<()> {
        assert_unlocked();
        if let (Some(stepper), Some(place)) = (&self.0.stepper, handle.place) {
            stepper.join(place);
        }
        handle.thread.join()
    }

    /// Pauses for a short time: asleep on the system's clock; on a driven one by moving it, under
    /// `Stepped` once nobody else can go on before.
    ///
    /// # Panics
    /// As [`Env::wait`].
    pub fn pause_us(&self, us: u64) {
        assert_unlocked();
        match (&self.0.stepper, &self.0.clock) {
            (Some(stepper), _) => {
                let deadline = self.now_us().saturating_add(us);
                stepper.wait(WaitCause::Throttle, &Signal::new(), Some(deadline), &mut || false);
            }
            (None, Clock::Driven(_)) => self.advance_us(us),
            (None, Clock::System(clock)) if clock.is_manual() => clock.advance_manual_us(us),
            (None, Clock::System(_)) => {
                #[expect(clippy::disallowed_methods, reason = "this is what the others call")]
                std::thread::sleep(Duration::from_micros(us));
            }
        }
    }

    /// Ends a schedule after so many more steps: every thread panics with a report of what each one
    /// waits for. Tests use it to bound the work of a call. No effect unless `Stepped`.
    #[doc(hidden)]
    pub fn limit_steps(&self, steps: u64) {
        if let Some(stepper) = &self.0.stepper {
            stepper.limit_steps(steps);
        }
    }

    /// Hash over who went on at which point, in order; equal for equal schedules. 0 unless
    /// `Stepped`.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.0.stepper.as_ref().map_or(0, |stepper| stepper.trace_hash())
    }
}

impl Default for Env {
    /// Real threads, the system's clock and randomness.
    fn default() -> Env {
        Env::new(Background::default(), None)
    }
}

/// A thread that was started by [`Env::spawn`]. Dropping it lets the thread run on.
#[derive(Debug)]
pub struct JoinHandle {
    thread: std::thread::JoinHandle<()>,
    /// Its place in the schedule, under `Stepped`.
    place: Option<usize>,
}

#[derive(Debug)]
enum Clock {
    System(SystemClock),
    Driven(Arc<AtomicU64>),
}

impl Clock {
    fn driven() -> Clock {
        Clock::Driven(Arc::new(AtomicU64::new(DRIVEN_START_US)))
    }
}

fn monotonic() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "this is what `env` is made from")]
    std::time::Instant::now()
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is ever negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn thread_cpu_ns() -> u64 {
    0
}

fn system_us() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is what `env` is made from")]
    let now = std::time::SystemTime::now();
    // A clock set before 1970 counts as 1970.
    now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| saturating_u64(since.as_micros()))
}

fn saturating_u64(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn from_entropy() -> ChaCha8Rng {
    let mut seed = <ChaCha8Rng as SeedableRng>::Seed::default();
    if SysRng.try_fill_bytes(&mut seed).is_err() {
        // No source of entropy (a sandbox): time and process differ from every other database's.
        let mix = system_us() ^ u64::from(std::process::id()).rotate_left(32);
        return ChaCha8Rng::seed_from_u64(mix);
    }
    ChaCha8Rng::from_seed(seed)
}
