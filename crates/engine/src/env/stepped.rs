//! Scheduler that runs one real thread at a time, in an order determined by a seed.
//!
//! 1. Every thread has a slot. The thread of one slot runs; every other thread sleeps on its own condition variable.
//! 2. At a yield point, a wait or a join the running thread records its wait state. It then selects the next thread at
//!    random among all runnable slots, including its own. A slot is runnable if its thread only yielded, if its signal
//!    was notified since the last check, if its deadline has passed, or if the joined thread has ended.
//! 3. A waiting thread that is selected evaluates its condition on its own stack. If the condition is false, the thread
//!    waits again.
//! 4. If no slot is runnable, every waiting thread evaluates its condition once more. A condition that is true without
//!    a notification is a lost wake-up. Otherwise the clock advances to the nearest deadline. Without a deadline there
//!    is a deadlock.
//! 5. A thread that ends leaves its slot. If it was running, another thread is selected.
//!
//! A lost wake-up or a deadlock ends the schedule: every thread panics with a report at its wait, so the test fails
//! instead of hanging. Afterwards threads run freely, and waits during unwinding return at once. A limit on the number
//! of steps ends the schedule in the same way. Without the limit, threads with deadlines could advance the clock
//! forever while another thread never becomes runnable.
//!
//! The thread that creates the environment runs first. A thread that was not registered gets a slot at its first yield
//! point, and waits there until it is selected. The scheduler controls neither the earlier actions of this thread nor
//! the time of its first yield point.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lsmx_base::sync::{
    Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Signal, Weak, thread_number,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::env::{WaitCause, YieldKind};

/// Runs one thread at a time.
#[derive(Debug)]
pub(crate) struct StepScheduler {
    state: Mutex<Schedule>,
    now_us: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Schedule {
    slots: Vec<ThreadSlot>,
    /// Slot of the running thread; `None` after all threads have ended.
    running: Option<usize>,
    rng: ChaCha8Rng,
    trace_hash: u64,
    /// Remaining number of steps.
    steps_left: u64,
    /// Reason for the end of the schedule; `None` while the schedule runs.
    end_report: Option<Arc<str>>,
}

#[derive(Debug)]
struct ThreadSlot {
    name: String,
    /// Number of the thread; `None` before the thread has started and after it has ended.
    thread: Option<usize>,
    wait: SlotWait,
    /// Wakes the thread when it is selected.
    selected: Arc<Condvar>,
}

/// Condition under which a slot is runnable.
#[derive(Debug)]
enum SlotWait {
    Runnable,
    Signal {
        cause: WaitCause,
        signal: Signal,
        /// Number of notifications of the signal before the last check of the condition.
        seen: u64,
        deadline_us: Option<u64>,
        /// State of the recheck, which evaluates the condition once more although the signal was not notified. It finds
        /// lost wake-ups.
        recheck: WaitRecheck,
    },
    ThreadEnd(usize),
    /// The thread has ended.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitRecheck {
    None,
    Pending,
    Done,
}

/// Codes of wait, join and thread end in the trace hash. The code of a yield point is its [`YieldKind`].
const POINT_WAIT: u64 = 0x100;
const POINT_JOIN: u64 = 0x200;
const POINT_END: u64 = 0x300;

thread_local! {
    /// Guards of the slots that this thread got at a yield point. They free the slots when the thread ends, because the
    /// scheduler did not start the thread.
    static UNREGISTERED_SLOTS: RefCell<Vec<SlotGuard>> = const { RefCell::new(Vec::new()) };
}

/// Marks the thread of a slot as ended when it is dropped.
struct SlotGuard {
    scheduler: Weak<StepScheduler>,
    slot: usize,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.end_thread(self.slot);
        }
    }
}

impl StepScheduler {
    pub(crate) fn new(seed: u64, now_us: Arc<AtomicU64>) -> Arc<StepScheduler> {
        let scheduler = Arc::new(StepScheduler {
            state: Mutex::new(Schedule {
                slots: Vec::new(),
                running: None,
                rng: ChaCha8Rng::seed_from_u64(seed),
                trace_hash: 0,
                steps_left: u64::MAX,
                end_report: None,
            }),
            now_us,
        });
        drop(scheduler.enter_schedule());
        scheduler
    }

    #[cfg(feature = "internals")]
    pub(crate) fn trace_hash(&self) -> u64 {
        self.state.lock().trace_hash
    }

    /// Ends the schedule after this number of further steps.
    #[cfg(feature = "internals")]
    pub(crate) fn limit_steps(&self, steps: u64) {
        self.state.lock().steps_left = steps;
    }

    pub(crate) fn yield_point(self: &Arc<StepScheduler>, kind: YieldKind) {
        let (state, slot) = self.enter_schedule();
        let state = self.step(state, slot, SlotWait::Runnable, kind as u64);
        self.check_schedule_running(state);
    }

    pub(crate) fn wait_for_signal(
        self: &Arc<StepScheduler>,
        cause: WaitCause,
        signal: &Signal,
        deadline_us: Option<u64>,
        condition: &mut dyn FnMut() -> bool,
    ) -> bool {
        let point = POINT_WAIT + cause as u64;
        let (state, slot) = self.enter_schedule();
        // Other threads may run before the first check, as at a yield point.
        let state = self.step(state, slot, SlotWait::Runnable, point);
        if !self.check_schedule_running(state) {
            return condition();
        }
        let mut recheck = WaitRecheck::None;
        loop {
            let seen = signal.generation();
            let holds = condition();
            let mut state = self.state.lock();
            if holds && recheck == WaitRecheck::Pending {
                let name = &state.slots[slot].name;
                let report = format!(
                    "lost wake-up: `{name}` waits for {cause}, its condition holds, \
                     and its signal was not notified"
                );
                state.end_schedule(report);
                self.check_schedule_running(state);
                return true;
            }
            if holds {
                return true;
            }
            if deadline_us.is_some_and(|deadline| deadline <= self.now_us.load(Ordering::Acquire)) {
                return false;
            }
            let next =
                if recheck == WaitRecheck::Pending { WaitRecheck::Done } else { WaitRecheck::None };
            let signal = signal.clone();
            let wait = SlotWait::Signal { cause, signal, seen, deadline_us, recheck: next };
            let mut state = self.step(state, slot, wait, point);
            recheck = match std::mem::replace(&mut state.slots[slot].wait, SlotWait::Runnable) {
                SlotWait::Signal { signal, seen, recheck, .. } if signal.generation() == seen => {
                    recheck
                }
                _ => WaitRecheck::None,
            };
            if !self.check_schedule_running(state) {
                return condition();
            }
        }
    }

    /// Waits until the thread of a slot or the schedule has ended.
    pub(crate) fn join(self: &Arc<StepScheduler>, joined: usize) {
        let (state, slot) = self.enter_schedule();
        let mut state = self.step(state, slot, SlotWait::ThreadEnd(joined), POINT_JOIN);
        state.slots[slot].wait = SlotWait::Runnable;
        self.check_schedule_running(state);
    }

    /// Creates a slot for a thread that is about to start.
    pub(crate) fn register_thread(self: &Arc<StepScheduler>, name: &str) -> usize {
        let (mut state, _) = self.enter_schedule();
        state.add_slot(name, None)
    }

    /// Runs the body of a registered thread after it is selected.
    pub(crate) fn run_thread(self: &Arc<StepScheduler>, slot: usize, body: impl FnOnce()) {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut state = self.state.lock();
            state.slots[slot].thread = Some(thread_number());
            let state = self.wait_until_selected(state, slot);
            self.check_schedule_running(state);
            body();
        }));
        self.end_thread(slot);
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
    }

    /// Marks the thread of a slot as ended.
    pub(crate) fn end_thread(&self, slot: usize) {
        let mut state = self.state.lock();
        state.slots[slot].wait = SlotWait::Ended;
        state.slots[slot].thread = None;
        if state.running == Some(slot) {
            state.record_trace_step(slot, POINT_END);
            self.select_next_thread(&mut state);
        } else if state.end_report.is_none() {
            // The thread ended before it was selected. Threads that join it become runnable.
            state.record_trace_step(slot, POINT_END);
        }
    }

    /// Returns the slot of the calling thread. A thread without a slot gets a new slot and waits until it is selected.
    fn enter_schedule(self: &Arc<StepScheduler>) -> (MutexGuard<'_, Schedule>, usize) {
        let mut state = self.state.lock();
        let thread = thread_number();
        if let Some(slot) = state.slots.iter().position(|slot| slot.thread == Some(thread)) {
            return (state, slot);
        }
        let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let slot = state.add_slot(&name, Some(thread));
        // If the thread-local is destroyed already, the thread is exiting, and its slot is never freed.
        let _ = UNREGISTERED_SLOTS.try_with(|guards| {
            let mut guards = guards.borrow_mut();
            guards.retain(|guard| guard.scheduler.strong_count() > 0);
            guards.push(SlotGuard { scheduler: Arc::downgrade(self), slot });
        });
        if state.running.is_none() {
            state.running = Some(slot);
        }
        (self.wait_until_selected(state, slot), slot)
    }

    /// Selects the next thread. Returns when this thread is selected again or the schedule has ended.
    fn step<'a>(
        &'a self,
        mut state: MutexGuard<'a, Schedule>,
        slot: usize,
        wait: SlotWait,
        point: u64,
    ) -> MutexGuard<'a, Schedule> {
        if state.end_report.is_some() {
            return state;
        }
        state.slots[slot].wait = wait;
        state.record_trace_step(slot, point);
        if state.steps_left == 0 {
            let report = state.describe_waits("the schedule exceeds its limit of steps:");
            state.end_schedule(report);
            return state;
        }
        state.steps_left -= 1;
        self.select_next_thread(&mut state);
        self.wait_until_selected(state, slot)
    }

    /// Sleeps until the slot is selected or the schedule has ended.
    fn wait_until_selected<'a>(
        &'a self,
        mut state: MutexGuard<'a, Schedule>,
        slot: usize,
    ) -> MutexGuard<'a, Schedule> {
        let selected = state.slots[slot].selected.clone();
        while state.running != Some(slot) && state.end_report.is_none() {
            state = selected.wait(state);
        }
        state
    }

    /// Returns true if the schedule has not ended, otherwise panics with its report. During unwinding returns false,
    /// because a second panic would abort the process.
    fn check_schedule_running(&self, state: MutexGuard<'_, Schedule>) -> bool {
        let Some(report) = state.end_report.clone() else { return true };
        drop(state);
        assert!(std::thread::panicking(), "{report}");
        false
    }

    /// Selects the next thread at random. If no slot is runnable, rechecks conditions, advances the clock or ends the
    /// schedule.
    fn select_next_thread(&self, state: &mut Schedule) {
        loop {
            let now_us = self.now_us.load(Ordering::Acquire);
            let runnable = state.runnable_slots(now_us);
            if !runnable.is_empty() {
                // The number is smaller than the number of slots, so it fits.
                let drawn = state.rng.next_u64() % runnable.len() as u64;
                let next = runnable[usize::try_from(drawn).unwrap_or(0)];
                if !state.slots[next].is_rechecking() {
                    state.clear_wait_rechecks();
                }
                state.running = Some(next);
                state.record_trace_step(next, 0);
                state.slots[next].selected.notify_one();
                return;
            }
            if state.start_wait_rechecks() {
                continue;
            }
            if let Some(deadline_us) = state.nearest_deadline() {
                self.now_us.fetch_max(deadline_us, Ordering::AcqRel);
                continue;
            }
            state.running = None;
            if state.slots.iter().any(|slot| !matches!(slot.wait, SlotWait::Ended)) {
                let report = state.describe_waits("deadlock, no thread is runnable:");
                state.end_schedule(report);
            }
            return;
        }
    }
}

impl ThreadSlot {
    fn is_rechecking(&self) -> bool {
        matches!(self.wait, SlotWait::Signal { recheck: WaitRecheck::Pending, .. })
    }
}

impl Schedule {
    fn add_slot(&mut self, name: &str, thread: Option<usize>) -> usize {
        self.slots.push(ThreadSlot {
            name: name.to_owned(),
            thread,
            wait: SlotWait::Runnable,
            selected: Arc::new(Condvar::new()),
        });
        self.slots.len() - 1
    }

    /// Adds a step to the trace hash.
    fn record_trace_step(&mut self, slot: usize, point: u64) {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.trace_hash.to_le_bytes());
        bytes[8..16].copy_from_slice(&(slot as u64).to_le_bytes());
        bytes[16..].copy_from_slice(&point.to_le_bytes());
        self.trace_hash = xxhash_rust::xxh3::xxh3_64(&bytes);
    }

    fn runnable_slots(&self, now_us: u64) -> Vec<usize> {
        let is_runnable = |slot: &ThreadSlot| match &slot.wait {
            SlotWait::Runnable => true,
            SlotWait::Signal { signal, seen, deadline_us, recheck, .. } => {
                *recheck == WaitRecheck::Pending
                    || signal.generation() != *seen
                    || deadline_us.is_some_and(|deadline| deadline <= now_us)
            }
            SlotWait::ThreadEnd(other) => matches!(self.slots[*other].wait, SlotWait::Ended),
            SlotWait::Ended => false,
        };
        (0..self.slots.len()).filter(|&slot| is_runnable(&self.slots[slot])).collect()
    }

    /// Makes every waiting thread evaluate its condition once more. Returns false if all threads have done so since a
    /// thread last made progress.
    fn start_wait_rechecks(&mut self) -> bool {
        let mut any = false;
        for slot in &mut self.slots {
            if let SlotWait::Signal { recheck, .. } = &mut slot.wait
                && *recheck == WaitRecheck::None
            {
                *recheck = WaitRecheck::Pending;
                any = true;
            }
        }
        any
    }

    /// Discards the results of rechecks, because a thread makes progress.
    fn clear_wait_rechecks(&mut self) {
        for slot in &mut self.slots {
            if let SlotWait::Signal { recheck, .. } = &mut slot.wait {
                *recheck = WaitRecheck::None;
            }
        }
    }

    fn nearest_deadline(&self) -> Option<u64> {
        let deadlines = self.slots.iter().filter_map(|slot| match slot.wait {
            SlotWait::Signal { deadline_us, .. } => deadline_us,
            _ => None,
        });
        deadlines.min()
    }

    /// Returns a report that starts with `problem` and lists the wait of each thread.
    fn describe_waits(&self, problem: &str) -> String {
        let mut report = problem.to_owned();
        for slot in &self.slots {
            // Writing to a string does not fail.
            let _ = match &slot.wait {
                SlotWait::Signal { cause, .. } => {
                    write!(report, " `{}` waits for {cause};", slot.name)
                }
                SlotWait::ThreadEnd(other) => {
                    let other = &self.slots[*other].name;
                    write!(report, " `{}` waits for the end of `{other}`;", slot.name)
                }
                SlotWait::Runnable | SlotWait::Ended => Ok(()),
            };
        }
        report.pop();
        report
    }

    /// Ends the schedule and wakes all threads.
    fn end_schedule(&mut self, report: String) {
        self.end_report = Some(report.into());
        self.running = None;
        for slot in &self.slots {
            slot.selected.notify_all();
        }
    }
}
