//! The two clocks of a database that runs on system time.
//!
//! - The **scheduling clock** ([`SystemClock::now_us`]) starts at the wall clock and advances by the
//!   monotonic clock alone. Deadlines, pauses and rates use it, so no step of the wall clock ends or
//!   prolongs a wait.
//! - The **database clock** ([`SystemClock::database_us`]) is the largest wall clock reading that was
//!   believed. Ages of files and tombstones use it, and the manifest stores it.
//!
//! A wall clock reading is believed by these rules:
//! 1. A reading at or behind the database clock changes nothing; the database clock advances by the
//!    monotonic clock.
//! 2. A reading after the year 2500 is ignored.
//! 3. A reading that is ahead by at most the bound is believed at once, but not the first one after the
//!    stored time was loaded: that one is believed once the wall clock has agreed with it for a minute of
//!    monotonic time.
//! 4. A reading that is ahead by more than the bound is believed once the wall clock has agreed with it for
//!    an hour of monotonic time. Until then it is *pending*.

use std::fmt;
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

/// Default of [`Options::clock_jump_max`](crate::Options::clock_jump_max): one day.
pub const CLOCK_JUMP_MAX_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// The first moment of the year 2500, in microseconds since the Unix epoch. Readings from here on are
/// ignored.
pub const CLOCK_READING_END_US: u64 = 16_725_225_600_000_000;
/// How long the wall clock must agree with a reading beyond the bound, in monotonic microseconds.
const AGREEMENT_US: u64 = 3_600_000_000;
/// How long the wall clock must agree with the first reading after an open, in monotonic microseconds.
const FIRST_AGREEMENT_US: u64 = 60_000_000;
/// How far a wall clock may drift from the monotonic clock and still agree with an earlier reading.
const DRIFT_US: u64 = 60_000_000;

/// A wall clock and a monotonic clock that a test sets. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualTimes>);

#[derive(Debug)]
struct ManualTimes {
    wall_us: AtomicU64,
    monotonic_us: AtomicU64,
}

impl ManualClock {
    /// A clock whose wall clock stands at `wall_us`, in microseconds since the Unix epoch.
    #[must_use]
    pub fn new(wall_us: u64) -> ManualClock {
        let (wall_us, monotonic_us) = (AtomicU64::new(wall_us), AtomicU64::new(0));
        ManualClock(Arc::new(ManualTimes { wall_us, monotonic_us }))
    }

    /// The wall clock.
    #[must_use]
    pub fn wall_us(&self) -> u64 {
        self.0.wall_us.load(Ordering::Acquire)
    }

    /// Steps the wall clock; the monotonic clock stays.
    pub fn set_wall_us(&self, us: u64) {
        self.0.wall_us.store(us, Ordering::Release);
    }

    /// Advances both clocks.
    pub fn advance_us(&self, us: u64) {
        for time in [&self.0.wall_us, &self.0.monotonic_us] {
            saturating_advance(time, us);
        }
    }
}

/// Adds to a time without wrapping.
pub(crate) fn saturating_advance(time: &AtomicU64, us: u64) {
    // The closure always returns a value.
    let _ = time
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |time| Some(time.saturating_add(us)));
}

/// A wall clock reading that does not agree with the database clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockReport {
    /// A reading, or the time that the manifest stores, is after the year 2500 and is ignored.
    Ignored {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
    },
    /// The wall clock is ahead by more than the bound. It is believed if it stays so for an hour.
    Ahead {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
        /// The database clock.
        database_us: u64,
    },
    /// A reading beyond the bound has lasted and is believed.
    Believed {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
    },
    /// At open, the stored time is ahead of the wall clock by more than the bound. If the stored time is
    /// wrong, [`Options::reset_clock`](crate::Options::reset_clock) forgets it.
    Behind {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
        /// The stored time.
        database_us: u64,
    },
}

impl fmt::Display for ClockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockReport::Ignored { reading_us } => {
                write!(f, "ignored the time {reading_us} us, which is after the year 2500")
            }
            ClockReport::Ahead { reading_us, database_us } => write!(
                f,
                "the wall clock says {reading_us} us, the database {database_us} us; the wall clock is \
                 believed if it stays so for an hour"
            ),
            ClockReport::Believed { reading_us } => {
                write!(f, "the wall clock is believed at {reading_us} us")
            }
            ClockReport::Behind { reading_us, database_us } => write!(
                f,
                "the wall clock says {reading_us} us, the database stores {database_us} us; if the \
                 stored time is wrong, reset the clock"
            ),
        }
    }
}

#[derive(Debug)]
enum Source {
    Real(std::time::Instant),
    Manual(ManualClock),
}

/// System time, or a [`ManualClock`] in its place.
#[derive(Debug)]
pub(crate) struct SystemClock {
    source: Source,
    /// The scheduling clock when the monotonic clock stood at 0.
    started_us: u64,
    /// Database clock minus monotonic clock.
    offset_us: AtomicU64,
    /// Whether the last reading was believed and the next one within the bound may be. Pairs with the
    /// store that follows a change of `belief`.
    settled: AtomicBool,
    jump_us_max: AtomicU64,
    belief: Mutex<Belief>,
    has_reports: AtomicBool,
}

#[derive(Debug, Default)]
struct Belief {
    /// A reading was seen that the next ones must agree with.
    pending: Option<Pending>,
    /// The stored time was loaded, and no reading since was compared with it.
    first: bool,
    /// The last reading was after the year 2500.
    ignoring: bool,
    reports: Vec<ClockReport>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Wall clock minus monotonic clock.
    offset_us: u64,
    /// Monotonic time of the first such reading.
    since_us: u64,
    /// How long readings must agree.
    needed_us: u64,
}

impl SystemClock {
    pub(crate) fn real() -> SystemClock {
        SystemClock::new(Source::Real(crate::env::monotonic()))
    }

    pub(crate) fn manual(clock: ManualClock) -> SystemClock {
        SystemClock::new(Source::Manual(clock))
    }

    fn new(source: Source) -> SystemClock {
        let mut clock = SystemClock {
            source,
            started_us: 0,
            offset_us: AtomicU64::new(0),
            settled: AtomicBool::new(true),
            jump_us_max: AtomicU64::new(u64::MAX),
            belief: Mutex::default(),
            has_reports: AtomicBool::new(false),
        };
        let wall_us = clock.wall_us();
        if wall_us < CLOCK_READING_END_US {
            clock.started_us = wall_us.saturating_sub(clock.since_us());
        }
        clock
    }

    /// Whether a test drives the clock.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.source, Source::Manual(_))
    }

    /// Advances a clock that a test drives, and no other.
    pub(crate) fn advance_manual_us(&self, us: u64) {
        if let Source::Manual(clock) = &self.source {
            clock.advance_us(us);
        }
    }

    fn wall_us(&self) -> u64 {
        match &self.source {
            Source::Real(_) => crate::env::system_us(),
            Source::Manual(clock) => clock.wall_us(),
        }
    }

    fn since_us(&self) -> u64 {
        self.monotonic_ns() / 1_000
    }

    /// Nanoseconds since the clock was made.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.source {
            Source::Real(start) => crate::env::saturating_u64(start.elapsed().as_nanos()),
            Source::Manual(clock) => {
                clock.0.monotonic_us.load(Ordering::Acquire).saturating_mul(1_000)
            }
        }
    }

    /// The scheduling clock.
    pub(crate) fn now_us(&self) -> u64 {
        self.started_us.saturating_add(self.since_us())
    }

    /// Loads the time that a manifest stores, 0 if there is none, and returns the time that is kept of it.
    pub(crate) fn begin(&self, stored_us: u64, jump_us_max: u64) -> u64 {
        // The monotonic clock is read second; see `database_us`.
        let (wall_us, since_us) = (self.wall_us(), self.since_us());
        let mut belief = self.belief.lock();
        let mut stored_us = stored_us;
        if stored_us >= CLOCK_READING_END_US {
            self.report(&mut belief, ClockReport::Ignored { reading_us: stored_us });
            stored_us = 0;
        }
        let sane = wall_us < CLOCK_READING_END_US;
        if sane && stored_us.saturating_sub(wall_us) > jump_us_max {
            let (reading_us, database_us) = (wall_us, stored_us);
            self.report(&mut belief, ClockReport::Behind { reading_us, database_us });
        }
        let start_us = match stored_us {
            // There is nothing to compare the first reading with.
            0 if sane => wall_us,
            stored_us => stored_us,
        };
        belief.first = stored_us > 0;
        self.jump_us_max.store(jump_us_max, Ordering::Relaxed);
        self.offset_us.store(start_us.saturating_sub(since_us), Ordering::Release);
        self.settled.store(stored_us == 0 && sane, Ordering::Release);
        stored_us
    }

    /// The database clock.
    pub(crate) fn database_us(&self) -> u64 {
        self.read().0
    }

    /// The database clock, or a pending reading that is ahead of it.
    pub(crate) fn stamp_us(&self) -> u64 {
        let (database_us, pending_us) = self.read();
        database_us.max(pending_us)
    }

    /// The database clock, and the time of the pending reading or 0.
    fn read(&self) -> (u64, u64) {
        // A thread that is stopped between the two reads must not move the clock ahead by its stop.
        // With the monotonic clock read second, the offset comes out too small, and the maximum
        // ignores it.
        let (wall_us, since_us) = (self.wall_us(), self.since_us());
        let database_us = self.offset_us.load(Ordering::Acquire).saturating_add(since_us);
        let within = database_us.saturating_add(self.jump_us_max.load(Ordering::Relaxed));
        let settled = self.settled.load(Ordering::Acquire);
        if settled && wall_us <= within && wall_us < CLOCK_READING_END_US {
            return (self.believe(wall_us, since_us), 0);
        }
        let mut belief = self.belief.lock();
        let (database_us, pending) = self.judge(&mut belief, wall_us, since_us);
        let settled = pending.is_none() && !belief.first && !belief.ignoring;
        self.settled.store(settled, Ordering::Release);
        (database_us, pending.map_or(0, |pending| pending.offset_us.saturating_add(since_us)))
    }

    /// Applies the rules at the top to one reading.
    fn judge(&self, belief: &mut Belief, wall_us: u64, since_us: u64) -> (u64, Option<Pending>) {
        let database_us = self.offset_us.load(Ordering::Acquire).saturating_add(since_us);
        if wall_us >= CLOCK_READING_END_US {
            if !std::mem::replace(&mut belief.ignoring, true) {
                self.report(belief, ClockReport::Ignored { reading_us: wall_us });
            }
            belief.pending = None;
            return (database_us, None);
        }
        belief.ignoring = false;
        let jump_us_max = self.jump_us_max.load(Ordering::Relaxed);
        let ahead_us = wall_us.saturating_sub(database_us);
        let at_once_us = if belief.first { 0 } else { jump_us_max };
        if ahead_us <= at_once_us || failpoint::is_on(Failpoint::ClockJumpBelieved) {
            belief.pending = None;
            belief.first = false;
            return (self.believe(wall_us, since_us), None);
        }
        let offset_us = wall_us.saturating_sub(since_us);
        let agrees = |pending: &Pending| offset_us.abs_diff(pending.offset_us) <= DRIFT_US;
        let far = ahead_us > jump_us_max;
        let Some(pending) = belief.pending.filter(agrees) else {
            if far && belief.pending.is_none() {
                let (reading_us, database_us) = (wall_us, database_us);
                self.report(belief, ClockReport::Ahead { reading_us, database_us });
            }
            let needed_us = if far { AGREEMENT_US } else { FIRST_AGREEMENT_US };
            belief.pending = Some(Pending { offset_us, since_us, needed_us });
            return (database_us, belief.pending);
        };
        if since_us.saturating_sub(pending.since_us) < pending.needed_us {
            return (database_us, Some(pending));
        }
        if pending.needed_us == AGREEMENT_US {
            self.report(belief, ClockReport::Believed { reading_us: wall_us });
        }
        belief.pending = None;
        belief.first = false;
        (self.believe(wall_us, since_us), None)
    }

    /// Moves the database clock to a reading, unless it is there already.
    fn believe(&self, wall_us: u64, since_us: u64) -> u64 {
        largest_seen(&self.offset_us, wall_us, since_us)
    }

    fn report(&self, belief: &mut Belief, report: ClockReport) {
        belief.reports.push(report);
        self.has_reports.store(true, Ordering::Release);
    }

    /// Takes what was reported since the last call.
    pub(crate) fn take_reports(&self) -> Vec<ClockReport> {
        if !self.has_reports.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.belief.lock().reports)
    }
}

/// The time by the largest offset seen: follows the wall clock forward, never back.
pub(crate) fn largest_seen(offset_us: &AtomicU64, wall_us: u64, since_us: u64) -> u64 {
    let offset = wall_us.saturating_sub(since_us);
    let largest = offset_us.fetch_max(offset, Ordering::AcqRel).max(offset);
    largest.saturating_add(since_us)
}
