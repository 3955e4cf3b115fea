//! The two clocks of a database with system time.
//!
//! - The **scheduling clock** ([`SystemClock::now_us`]) starts at the wall clock and advances by the monotonic clock.
//!   Deadlines, pauses and rates use it, so steps of the wall clock do not affect waits.
//! - The **database clock** ([`SystemClock::database_time_us`]) is the largest accepted wall clock reading. Ages of
//!   files and tombstones use it, and the manifest stores it.
//!
//! Rules for wall clock readings. The limit is `Options::clock_jump_max`.
//! 1. A reading that is not ahead of the database clock has no effect. The database clock advances by the monotonic
//!    clock.
//! 2. A reading after the year 2500 is ignored.
//! 3. A reading that is ahead by at most the limit is accepted at once. Exception: the first reading after an open is
//!    accepted only after later readings have agreed with it for `Options::clock_confirmation` of monotonic time.
//! 4. A reading that is ahead by more than the limit is *pending*. It is accepted after later readings have agreed with
//!    it for one hour of monotonic time.
//!
//! A read-only database accepts each reading before the year 2500 at once, because it drops no data.
use std::fmt;
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

/// Default of [`Options::clock_jump_max`](crate::Options::clock_jump_max): one day.
pub(crate) const CLOCK_JUMP_MAX_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// Start of the year 2500, in microseconds since the Unix epoch. Later readings are ignored.
pub const CLOCK_READING_END_US: u64 = 16_725_225_600_000_000;
/// A reading beyond the limit is accepted after later readings have agreed with it for this monotonic time, in
/// microseconds.
const AGREEMENT_US: u64 = 3_600_000_000;
/// Default of [`Options::clock_confirmation`](crate::Options::clock_confirmation): one minute.
pub(crate) const CLOCK_CONFIRMATION_DEFAULT: Duration = Duration::from_secs(60);
/// Maximum drift between wall clock and monotonic clock at which two readings agree, in microseconds.
const DRIFT_US: u64 = 60_000_000;

/// A wall clock and a monotonic clock that are advanced manually in tests. Clones share the clocks.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualClockState>);

#[derive(Debug)]
struct ManualClockState {
    wall_us: AtomicU64,
    monotonic_us: AtomicU64,
}

impl ManualClock {
    /// Creates a clock with this wall clock reading, in microseconds since the Unix epoch.
    #[must_use]
    pub fn new(wall_us: u64) -> ManualClock {
        let (wall_us, monotonic_us) = (AtomicU64::new(wall_us), AtomicU64::new(0));
        ManualClock(Arc::new(ManualClockState { wall_us, monotonic_us }))
    }

    /// Returns the wall clock reading, in microseconds since the Unix epoch.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn wall_us(&self) -> u64 {
        self.0.wall_us.load(Ordering::Acquire)
    }

    /// Sets the wall clock. The monotonic clock does not change.
    #[cfg(feature = "internals")]
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

/// Adds `us` to `time`. The sum saturates.
pub(crate) fn saturating_advance(time: &AtomicU64, us: u64) {
    // The closure always returns `Some`.
    let _ = time
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |time| Some(time.saturating_add(us)));
}

/// Report of a wall clock reading that disagrees with the database clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockJumpReport {
    /// A reading or the stored time is after the year 2500 and is ignored.
    Ignored {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
    },
    /// The wall clock is ahead of the database clock by more than the limit. The reading is accepted if later readings
    /// agree with it for one hour.
    Ahead {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
        /// The database clock, in microseconds since the Unix epoch.
        database_time_us: u64,
    },
    /// A reading that was ahead by more than the limit is accepted after one hour.
    Accepted {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
    },
    /// At open, the stored time is ahead of the wall clock by more than the limit. If the stored time is wrong,
    /// [`Options::reset_clock`](crate::Options::reset_clock) discards it.
    Behind {
        /// The reading, in microseconds since the Unix epoch.
        reading_us: u64,
        /// The stored time, in microseconds since the Unix epoch.
        database_time_us: u64,
    },
}

impl fmt::Display for ClockJumpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockJumpReport::Ignored { reading_us } => {
                write!(f, "ignored the time {reading_us} us, which is after the year 2500")
            }
            ClockJumpReport::Ahead { reading_us, database_time_us } => write!(
                f,
                "the wall clock is at {reading_us} us, the database clock at {database_time_us} us; the wall clock \
                 is accepted if it stays ahead for an hour"
            ),
            ClockJumpReport::Accepted { reading_us } => {
                write!(f, "the wall clock is accepted at {reading_us} us")
            }
            ClockJumpReport::Behind { reading_us, database_time_us } => write!(
                f,
                "the wall clock is at {reading_us} us, the stored time is {database_time_us} us; if the \
                 stored time is wrong, reset the clock"
            ),
        }
    }
}

#[derive(Debug)]
enum TimeSource {
    Real(std::time::Instant),
    Manual(ManualClock),
}

/// The scheduling clock and the database clock, based on system time or on a [`ManualClock`].
#[derive(Debug)]
pub(crate) struct SystemClock {
    source: TimeSource,
    /// Reading of the scheduling clock when the monotonic clock was 0, in microseconds.
    started_us: u64,
    /// Database clock minus monotonic clock, in microseconds.
    offset_us: AtomicU64,
    /// True if the last reading was accepted. The next reading within the limit is then accepted without a lock. The
    /// acquire load pairs with the release store after a change of `detection`.
    is_settled: AtomicBool,
    jump_us_max: AtomicU64,
    detection: Mutex<JumpDetection>,
    has_reports: AtomicBool,
}

#[derive(Debug, Default)]
struct JumpDetection {
    /// A pending reading. It is accepted if later readings advance like the monotonic clock.
    pending: Option<UnconfirmedReading>,
    /// True until the first reading has been compared with the stored time.
    is_first: bool,
    /// Value of [`ClockRules::confirmation_us`].
    confirmation_us: u64,
    /// True if the last reading was after the year 2500.
    is_ignoring: bool,
    reports: Vec<ClockJumpReport>,
}

/// Time according to a pending reading.
#[derive(Clone, Copy, Debug)]
struct PendingTime {
    us: u64,
    /// Whether no reading has been accepted since the open.
    is_first: bool,
}

#[derive(Clone, Copy, Debug)]
struct UnconfirmedReading {
    /// Wall clock minus monotonic clock.
    offset_us: u64,
    /// Monotonic time of the reading, in microseconds.
    elapsed_us: u64,
    /// Monotonic time for which later readings must agree, in microseconds.
    needed_us: u64,
    /// Whether the reading was ahead by more than the limit.
    exceeds_limit: bool,
}

/// Rules for readings that are ahead of the database clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockRules {
    /// Largest step that the database clock follows at once, in microseconds.
    pub(crate) jump_us_max: u64,
    /// Monotonic time for which later readings must agree with the first one after an open, in microseconds.
    pub(crate) confirmation_us: u64,
    /// Whether every reading before the year 2500 is accepted at once.
    pub(crate) follows_all_readings: bool,
}

impl SystemClock {
    pub(crate) fn with_system_time() -> SystemClock {
        SystemClock::new(TimeSource::Real(super::read_monotonic()))
    }

    pub(crate) fn with_manual_clock(clock: ManualClock) -> SystemClock {
        SystemClock::new(TimeSource::Manual(clock))
    }

    fn new(source: TimeSource) -> SystemClock {
        let mut clock = SystemClock {
            source,
            started_us: 0,
            offset_us: AtomicU64::new(0),
            is_settled: AtomicBool::new(true),
            jump_us_max: AtomicU64::new(u64::MAX),
            detection: Mutex::default(),
            has_reports: AtomicBool::new(false),
        };
        let wall_us = clock.wall_us();
        if wall_us < CLOCK_READING_END_US {
            clock.started_us = wall_us.saturating_sub(clock.elapsed_us());
        }
        clock
    }

    /// Returns whether the time source is a manual clock.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.source, TimeSource::Manual(_))
    }

    /// Advances a manual clock. Has no effect on the system clock.
    pub(crate) fn advance_manual_us(&self, us: u64) {
        if let TimeSource::Manual(clock) = &self.source {
            clock.advance_us(us);
        }
    }

    /// Returns the reading of the wall clock.
    pub(crate) fn wall_us(&self) -> u64 {
        match &self.source {
            TimeSource::Real(_) => super::wall_clock_us(),
            TimeSource::Manual(clock) => clock.wall_us(),
        }
    }

    fn elapsed_us(&self) -> u64 {
        self.monotonic_ns() / 1_000
    }

    /// Returns nanoseconds since the creation of the clock.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.source {
            TimeSource::Real(start) => super::saturating_u64(start.elapsed().as_nanos()),
            TimeSource::Manual(clock) => {
                clock.0.monotonic_us.load(Ordering::Acquire).saturating_mul(1_000)
            }
        }
    }

    /// Returns the scheduling clock.
    pub(crate) fn now_us(&self) -> u64 {
        self.started_us.saturating_add(self.elapsed_us())
    }

    /// Starts the database clock at the stored time, or at the wall clock if `stored_us` is 0. Returns `stored_us`, or
    /// 0 if the stored time is ignored.
    pub(crate) fn start_database_clock(&self, stored_us: u64, rules: ClockRules) -> u64 {
        let jump_us_max = rules.jump_us_max;
        // The monotonic clock is read second, for the reason that `read` states.
        let (wall_us, elapsed_us) = (self.wall_us(), self.elapsed_us());
        let mut detection = self.detection.lock();
        let mut stored_us = stored_us;
        if stored_us >= CLOCK_READING_END_US {
            self.add_report(&mut detection, ClockJumpReport::Ignored { reading_us: stored_us });
            stored_us = 0;
        }
        let is_valid = wall_us < CLOCK_READING_END_US;
        if is_valid && stored_us.saturating_sub(wall_us) > jump_us_max {
            let (reading_us, database_time_us) = (wall_us, stored_us);
            self.add_report(
                &mut detection,
                ClockJumpReport::Behind { reading_us, database_time_us },
            );
        }
        let start_us = match stored_us {
            // Without a stored time there is no reference for the first reading.
            0 if is_valid => wall_us,
            stored_us => stored_us,
        };
        detection.is_first = stored_us > 0;
        detection.confirmation_us = rules.confirmation_us;
        let mut accepted_jump_us = jump_us_max;
        if rules.follows_all_readings {
            (accepted_jump_us, detection.confirmation_us) = (u64::MAX, 0);
        }
        self.jump_us_max.store(accepted_jump_us, Ordering::Relaxed);
        self.offset_us.store(start_us.saturating_sub(elapsed_us), Ordering::Release);
        self.is_settled.store(stored_us == 0 && is_valid, Ordering::Release);
        stored_us
    }

    /// Returns the database clock.
    pub(crate) fn database_time_us(&self) -> u64 {
        self.read().0
    }

    /// Returns the later of the database clock and the time according to a pending reading, in microseconds.
    pub(crate) fn creation_time_us(&self) -> u64 {
        let (database_time_us, pending) = self.read();
        pending.map_or(database_time_us, |pending| pending.us.max(database_time_us))
    }

    /// Returns the time from which a time to live counts, in microseconds: the database clock, or a later pending
    /// reading if no reading has been accepted since the open.
    pub(crate) fn lifetime_start_us(&self) -> u64 {
        let (database_time_us, pending) = self.read();
        let first = pending.filter(|pending| pending.is_first);
        first.map_or(database_time_us, |pending| pending.us.max(database_time_us))
    }

    /// Returns the database clock and the time according to the pending reading.
    fn read(&self) -> (u64, Option<PendingTime>) {
        // A preemption between the two reads must not advance the database clock. Because the monotonic clock is read
        // second, a preemption makes the computed offset smaller. `advance_clock_offset` ignores smaller offsets.
        let (wall_us, elapsed_us) = (self.wall_us(), self.elapsed_us());
        let database_time_us = self.offset_us.load(Ordering::Acquire).saturating_add(elapsed_us);
        let limit_us = database_time_us.saturating_add(self.jump_us_max.load(Ordering::Relaxed));
        let settled = self.is_settled.load(Ordering::Acquire);
        if settled && wall_us <= limit_us && wall_us < CLOCK_READING_END_US {
            return (self.accept_reading(wall_us, elapsed_us), None);
        }
        let mut detection = self.detection.lock();
        let (database_time_us, pending) = self.judge_reading(&mut detection, wall_us, elapsed_us);
        let settled = pending.is_none() && !detection.is_first && !detection.is_ignoring;
        self.is_settled.store(settled, Ordering::Release);
        let is_first = detection.is_first;
        let pending = pending.map(|pending| PendingTime {
            us: pending.offset_us.saturating_add(elapsed_us),
            is_first,
        });
        (database_time_us, pending)
    }

    /// Applies the rules of this module to one reading of the wall clock. Returns the database clock, and the pending
    /// reading if later readings must confirm it.
    fn judge_reading(
        &self,
        detection: &mut JumpDetection,
        wall_us: u64,
        elapsed_us: u64,
    ) -> (u64, Option<UnconfirmedReading>) {
        let database_time_us = self.offset_us.load(Ordering::Acquire).saturating_add(elapsed_us);
        if wall_us >= CLOCK_READING_END_US {
            if !std::mem::replace(&mut detection.is_ignoring, true) {
                self.add_report(detection, ClockJumpReport::Ignored { reading_us: wall_us });
            }
            detection.pending = None;
            return (database_time_us, None);
        }
        detection.is_ignoring = false;
        let jump_us_max = self.jump_us_max.load(Ordering::Relaxed);
        let ahead_us = wall_us.saturating_sub(database_time_us);
        let needs_confirmation = detection.is_first && detection.confirmation_us > 0;
        let accepted_ahead_us = if needs_confirmation { 0 } else { jump_us_max };
        if ahead_us <= accepted_ahead_us || failpoint::is_on(Failpoint::ClockJumpTrusted) {
            detection.pending = None;
            detection.is_first = false;
            return (self.accept_reading(wall_us, elapsed_us), None);
        }
        let offset_us = wall_us.saturating_sub(elapsed_us);
        let agrees =
            |pending: &UnconfirmedReading| offset_us.abs_diff(pending.offset_us) <= DRIFT_US;
        let exceeds_limit = ahead_us > jump_us_max;
        let Some(pending) = detection.pending.filter(agrees) else {
            if exceeds_limit && detection.pending.is_none() {
                let (reading_us, database_time_us) = (wall_us, database_time_us);
                self.add_report(detection, ClockJumpReport::Ahead { reading_us, database_time_us });
            }
            let needed_us = if exceeds_limit { AGREEMENT_US } else { detection.confirmation_us };
            detection.pending =
                Some(UnconfirmedReading { offset_us, elapsed_us, needed_us, exceeds_limit });
            return (database_time_us, detection.pending);
        };
        if elapsed_us.saturating_sub(pending.elapsed_us) < pending.needed_us {
            return (database_time_us, Some(pending));
        }
        if pending.exceeds_limit {
            self.add_report(detection, ClockJumpReport::Accepted { reading_us: wall_us });
        }
        detection.pending = None;
        detection.is_first = false;
        (self.accept_reading(wall_us, elapsed_us), None)
    }

    /// Advances the database clock to a reading if the reading is ahead. Returns the database clock.
    fn accept_reading(&self, wall_us: u64, elapsed_us: u64) -> u64 {
        advance_clock_offset(&self.offset_us, wall_us, elapsed_us)
    }

    fn add_report(&self, detection: &mut JumpDetection, report: ClockJumpReport) {
        detection.reports.push(report);
        self.has_reports.store(true, Ordering::Release);
    }

    /// Removes and returns the reports since the last call.
    pub(crate) fn take_reports(&self) -> Vec<ClockJumpReport> {
        if !self.has_reports.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.detection.lock().reports)
    }
}

/// Raises the offset so that the clock is not behind the reading `wall_us`. Returns the resulting time. The offset
/// never decreases.
pub(crate) fn advance_clock_offset(offset_us: &AtomicU64, wall_us: u64, elapsed_us: u64) -> u64 {
    let offset = wall_us.saturating_sub(elapsed_us);
    let largest = offset_us.fetch_max(offset, Ordering::AcqRel).max(offset);
    largest.saturating_add(elapsed_us)
}
