//! One baton among real threads, so that a schedule follows from a seed.
//!
//! 1. Every thread has a place. One place holds the baton; all other threads are asleep, each on a
//!    condition variable of its own.
//! 2. At a yield point, a wait or a join the holder says what it needs to go on, and draws who is
//!    next among all places that can go on, itself included: those that only yielded, those whose
//!    signal was given since they last asked, those whose deadline has come, those whose joined
//!    thread has ended. Equal chances, so nobody starves.
//! 3. A waiting thread that gets the baton asks its condition on its own stack, and passes on if it
//!    does not hold.
//! 4. If no place can go on, every waiting thread is asked once more. A condition that holds now
//!    though its signal was not given is a lost wake-up. Else the clock jumps to the
//!    nearest deadline. If there is none, that is a deadlock. Lost wake-ups and deadlocks end the
//!    schedule: every thread panics with the report where it waits, so that the test fails and does
//!    not hang. From then on threads run freely and waits during unwinding return at once. A limit on
//!    the number of steps ends the schedule in the same way: threads that wait with deadlines can
//!    otherwise move the clock for ever while another thread waits in vain.
//! 5. A thread that ends leaves its place, and passes the baton on if it has it.
//!
//! The thread that makes the environment holds the baton first. A thread that nobody announced gets
//! a place at its first point and waits for the baton there; what it did before was not under
//! control, and when it comes is not either.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lsmx_base::sync::{
    Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Signal, Weak, thread_number,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::env::{WaitCause, YieldKind};

/// The schedule.
#[derive(Debug)]
pub(crate) struct Stepper {
    state: Mutex<State>,
    now_us: Arc<AtomicU64>,
}

#[derive(Debug)]
struct State {
    places: Vec<Place>,
    /// The place with the baton; nobody once all have left.
    holder: Option<usize>,
    draw: ChaCha8Rng,
    trace: u64,
    /// How often the baton may still be passed.
    steps_left: u64,
    /// Why the schedule has ended.
    end: Option<Arc<str>>,
}

#[derive(Debug)]
struct Place {
    name: String,
    /// The thread, once it runs.
    thread: Option<usize>,
    needs: Needs,
    /// Where its thread sleeps.
    turn: Arc<Condvar>,
}

/// What a place needs to go on.
#[derive(Debug)]
enum Needs {
    Baton,
    Signal {
        cause: WaitCause,
        signal: Signal,
        /// Its generation before the condition was asked.
        seen: u64,
        deadline_us: Option<u64>,
        /// Whether to ask though nothing has happened: see point 4 above.
        doubt: Doubt,
    },
    EndOf(usize),
    /// The thread has ended.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    ToAsk,
    Asked,
}

/// Numbers of the points in the trace; yield points have their discriminants.
const POINT_WAIT: u64 = 0x100;
const POINT_JOIN: u64 = 0x200;
const POINT_END: u64 = 0x300;

thread_local! {
    /// Places of this thread that nobody else will leave for it.
    static GUESTS: RefCell<Vec<Guest>> = const { RefCell::new(Vec::new()) };
}

/// Leaves a place when the thread ends.
struct Guest {
    stepper: Weak<Stepper>,
    place: usize,
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(stepper) = self.stepper.upgrade() {
            stepper.leave(self.place);
        }
    }
}

impl Stepper {
    pub(crate) fn new(seed: u64, now_us: Arc<AtomicU64>) -> Arc<Stepper> {
        let stepper = Arc::new(Stepper {
            state: Mutex::new(State {
                places: Vec::new(),
                holder: None,
                draw: ChaCha8Rng::seed_from_u64(seed),
                trace: 0,
                steps_left: u64::MAX,
                end: None,
            }),
            now_us,
        });
        drop(stepper.enter());
        stepper
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.state.lock().trace
    }

    /// Ends the schedule with a report after so many more steps.
    pub(crate) fn limit_steps(&self, steps: u64) {
        self.state.lock().steps_left = steps;
    }

    pub(crate) fn yield_point(self: &Arc<Stepper>, kind: YieldKind) {
        let (state, me) = self.enter();
        let state = self.pass(state, me, Needs::Baton, kind as u64);
        self.go_on(state);
    }

    pub(crate) fn wait(
        self: &Arc<Stepper>,
        cause: WaitCause,
        signal: &Signal,
        deadline_us: Option<u64>,
        condition: &mut dyn FnMut() -> bool,
    ) -> bool {
        let point = POINT_WAIT + cause as u64;
        let (state, me) = self.enter();
        // A point like any other: the first question comes after others may have gone on.
        let state = self.pass(state, me, Needs::Baton, point);
        if !self.go_on(state) {
            return condition();
        }
        let mut doubt = Doubt::None;
        loop {
            let seen = signal.generation();
            let holds = condition();
            let mut state = self.state.lock();
            if holds && doubt == Doubt::ToAsk {
                let name = &state.places[me].name;
                let report = format!(
                    "lost wake-up: `{name}` waits for {cause}, its condition holds, \
                     and its signal was not given"
                );
                state.finish(report);
                self.go_on(state);
                return true;
            }
            if holds {
                return true;
            }
            if deadline_us.is_some_and(|deadline| deadline <= self.now_us.load(Ordering::Acquire)) {
                return false;
            }
            let next = if doubt == Doubt::ToAsk { Doubt::Asked } else { Doubt::None };
            let signal = signal.clone();
            let needs = Needs::Signal { cause, signal, seen, deadline_us, doubt: next };
            let mut state = self.pass(state, me, needs, point);
            doubt = match std::mem::replace(&mut state.places[me].needs, Needs::Baton) {
                Needs::Signal { signal, seen, doubt, .. } if signal.generation() == seen => doubt,
                _ => Doubt::None,
            };
            if !self.go_on(state) {
                return condition();
            }
        }
    }

    /// Returns when the thread at `place` has ended, or the schedule has.
    pub(crate) fn join(self: &Arc<Stepper>, place: usize) {
        let (state, me) = self.enter();
        let mut state = self.pass(state, me, Needs::EndOf(place), POINT_JOIN);
        state.places[me].needs = Needs::Baton;
        self.go_on(state);
    }

    /// A place for a thread that is about to start.
    pub(crate) fn announce(self: &Arc<Stepper>, name: &str) -> usize {
        let (mut state, _) = self.enter();
        state.add(name, None)
    }

    /// Runs the body of an announced thread once the baton comes to its place.
    pub(crate) fn run(self: &Arc<Stepper>, place: usize, body: impl FnOnce()) {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut state = self.state.lock();
            state.places[place].thread = Some(thread_number());
            let state = self.sleep(state, place);
            self.go_on(state);
            body();
        }));
        self.leave(place);
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
    }

    /// Gives up a place whose thread has ended.
    pub(crate) fn leave(&self, place: usize) {
        let mut state = self.state.lock();
        state.places[place].needs = Needs::Nothing;
        state.places[place].thread = None;
        if state.holder == Some(place) {
            state.record(place, POINT_END);
            self.choose(&mut state);
        } else if state.end.is_none() {
            // It never ran; who joins it may be the only one left, and finds it ended when asked.
            state.record(place, POINT_END);
        }
    }

    /// The calling thread's place, with the baton: a new place if it has none.
    fn enter(self: &Arc<Stepper>) -> (MutexGuard<'_, State>, usize) {
        let mut state = self.state.lock();
        let thread = thread_number();
        if let Some(me) = state.places.iter().position(|place| place.thread == Some(thread)) {
            return (state, me);
        }
        let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let me = state.add(&name, Some(thread));
        // Where the thread's locals are gone it is ending, and its place stays.
        let _ = GUESTS.try_with(|guests| {
            let mut guests = guests.borrow_mut();
            guests.retain(|guest| guest.stepper.strong_count() > 0);
            guests.push(Guest { stepper: Arc::downgrade(self), place: me });
        });
        if state.holder.is_none() {
            state.holder = Some(me);
        }
        (self.sleep(state, me), me)
    }

    /// Passes the baton, and returns when it has come back or the schedule has ended.
    fn pass<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        me: usize,
        needs: Needs,
        point: u64,
    ) -> MutexGuard<'a, State> {
        if state.end.is_some() {
            return state;
        }
        state.places[me].needs = needs;
        state.record(me, point);
        if state.steps_left == 0 {
            let report = state.waiting("the schedule has taken more steps than it may:");
            state.finish(report);
            return state;
        }
        state.steps_left -= 1;
        self.choose(&mut state);
        self.sleep(state, me)
    }

    /// Sleeps until the place has the baton or the schedule has ended.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let turn = state.places[me].turn.clone();
        while state.holder != Some(me) && state.end.is_none() {
            state = turn.wait(state);
        }
        state
    }

    /// Returns true under the schedule. Once that has ended, panics with the report; returns false
    /// if the thread is unwinding already, for then a panic would end the process.
    fn go_on(&self, state: MutexGuard<'_, State>) -> bool {
        let Some(report) = state.end.clone() else { return true };
        drop(state);
        assert!(std::thread::panicking(), "{report}");
        false
    }

    /// Draws the next holder; moves the clock or ends the schedule if nobody can go on.
    fn choose(&self, state: &mut State) {
        loop {
            let now_us = self.now_us.load(Ordering::Acquire);
            let able = state.able(now_us);
            if !able.is_empty() {
                // Smaller than the number of places, so it fits.
                let drawn = usize::try_from(state.draw.next_u64() % able.len() as u64).unwrap_or(0);
                let next = able[drawn];
                if !state.places[next].in_doubt() {
                    state.believe();
                }
                state.holder = Some(next);
                state.record(next, 0);
                state.places[next].turn.notify_one();
                return;
            }
            if state.doubt() {
                continue;
            }
            if let Some(deadline_us) = state.nearest_deadline() {
                self.now_us.fetch_max(deadline_us, Ordering::AcqRel);
                continue;
            }
            state.holder = None;
            if state.places.iter().any(|place| !matches!(place.needs, Needs::Nothing)) {
                let report = state.waiting("deadlock, no thread can go on:");
                state.finish(report);
            }
            return;
        }
    }
}

impl Place {
    fn in_doubt(&self) -> bool {
        matches!(self.needs, Needs::Signal { doubt: Doubt::ToAsk, .. })
    }
}

impl State {
    fn add(&mut self, name: &str, thread: Option<usize>) -> usize {
        self.places.push(Place {
            name: name.to_owned(),
            thread,
            needs: Needs::Baton,
            turn: Arc::new(Condvar::new()),
        });
        self.places.len() - 1
    }

    fn record(&mut self, place: usize, point: u64) {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.trace.to_le_bytes());
        bytes[8..16].copy_from_slice(&(place as u64).to_le_bytes());
        bytes[16..].copy_from_slice(&point.to_le_bytes());
        self.trace = xxhash_rust::xxh3::xxh3_64(&bytes);
    }

    /// The places that can go on.
    fn able(&self, now_us: u64) -> Vec<usize> {
        let able = |place: &Place| match &place.needs {
            Needs::Baton => true,
            Needs::Signal { signal, seen, deadline_us, doubt, .. } => {
                *doubt == Doubt::ToAsk
                    || signal.generation() != *seen
                    || deadline_us.is_some_and(|deadline| deadline <= now_us)
            }
            Needs::EndOf(other) => matches!(self.places[*other].needs, Needs::Nothing),
            Needs::Nothing => false,
        };
        (0..self.places.len()).filter(|&place| able(&self.places[place])).collect()
    }

    /// Has every waiting thread asked once more; false if all have been since something happened.
    fn doubt(&mut self) -> bool {
        let mut any = false;
        for place in &mut self.places {
            if let Needs::Signal { doubt, .. } = &mut place.needs
                && *doubt == Doubt::None
            {
                *doubt = Doubt::ToAsk;
                any = true;
            }
        }
        any
    }

    /// Somebody goes on: the answers given in doubt are worth nothing any more.
    fn believe(&mut self) {
        for place in &mut self.places {
            if let Needs::Signal { doubt, .. } = &mut place.needs {
                *doubt = Doubt::None;
            }
        }
    }

    fn nearest_deadline(&self) -> Option<u64> {
        let deadlines = self.places.iter().filter_map(|place| match place.needs {
            Needs::Signal { deadline_us, .. } => deadline_us,
            _ => None,
        });
        deadlines.min()
    }

    /// A report that begins with `what` and lists what each thread waits for.
    fn waiting(&self, what: &str) -> String {
        let mut report = what.to_owned();
        for place in &self.places {
            // Writing to a string does not fail.
            let _ = match &place.needs {
                Needs::Signal { cause, .. } => {
                    write!(report, " `{}` waits for {cause};", place.name)
                }
                Needs::EndOf(other) => {
                    let other = &self.places[*other].name;
                    write!(report, " `{}` waits for the end of `{other}`;", place.name)
                }
                Needs::Baton | Needs::Nothing => Ok(()),
            };
        }
        report.pop();
        report
    }

    /// Ends the schedule and wakes everybody.
    fn finish(&mut self, report: String) {
        self.end = Some(report.into());
        self.holder = None;
        for place in &self.places {
            place.turn.notify_all();
        }
    }
}
