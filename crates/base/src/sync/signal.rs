//! Notifications that threads and tasks wait for.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::task::Waker;
use std::time::Duration;

use super::{Arc, AtomicU64, Ordering, primitives, thread_local};

/// A counter of notifications, for which threads and tasks can wait. Clones share the counter.
///
/// One atomic word holds the number of notifications (the *generation*, upper 48 bits) and the number of sleepers
/// (lower 16 bits). A sleeper is a thread that waits or is about to wait.
///
/// No wake-up is lost:
///
/// 1. A waiting thread reads the generation, checks its condition, and then calls [`Signal::wait`] with that
///    generation.
/// 2. `wait` takes the lock. In one atomic operation, it increments the number of sleepers and reads the generation. If
///    the generation has changed since step 1, `wait` returns at once.
/// 3. A notifier first changes the state that the conditions read. In one atomic operation, it increments the
///    generation and reads the number of sleepers.
///
/// Steps 2 and 3 modify the same atomic word, so one of them is first:
/// - If step 3 is first, the sleeper sees the new generation and does not sleep.
/// - If step 2 is first, the notifier sees a sleeper and takes the lock. It gets the lock only after the sleeper has
///   started to wait on the condition variable, and then wakes the sleeper.
///
/// Without sleepers, a notification costs one atomic addition.
///
/// Tasks wait with a [`TaskWaiter`]. All waiting tasks together count as one sleeper, which is added and removed under
/// the lock. A notifier that sees this sleeper gets the lock only after the waker of the task is registered.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    /// Generation in the upper 48 bits, number of sleepers in the lower 16 bits.
    word: AtomicU64,
    /// Wakers of the waiting tasks. A thread that waits also holds this lock, from its increment of the sleepers until
    /// it waits on `changed`.
    wakers: primitives::Mutex<TaskWakers>,
    changed: primitives::Condvar,
}

/// Wakers of the tasks that wait for a signal.
#[derive(Debug, Default)]
struct TaskWakers {
    last_id: u64,
    by_id: BTreeMap<u64, Waker>,
}

const SLEEPER_BITS: u32 = 16;
const SLEEPER_MASK: u64 = (1 << SLEEPER_BITS) - 1;

impl SignalState {
    fn lock(&self) -> primitives::MutexGuard<'_, TaskWakers> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> u64 {
        self.word.load(Ordering::Acquire) >> SLEEPER_BITS
    }

    fn remove_sleeper(&self) {
        self.word.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Signal {
    /// Creates a signal with generation 0.
    #[must_use]
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Wakes all waiting threads and tasks, which then check their conditions again.
    ///
    /// The caller must first change the state that the conditions read.
    #[inline]
    pub fn notify(&self) {
        // Release: a thread that acquires the new generation sees all earlier writes of the notifier.
        let before = self.0.word.fetch_add(1 << SLEEPER_BITS, Ordering::AcqRel);
        if before & SLEEPER_MASK != 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let wakers = {
            let mut tasks = self.0.lock();
            let wakers = std::mem::take(&mut tasks.by_id);
            if !wakers.is_empty() {
                self.0.remove_sleeper();
            }
            wakers
        };
        self.0.changed.notify_all();
        for waker in wakers.into_values() {
            // If the waker of a runtime panics, the other tasks must still be woken.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }

    /// Creates a waiter for a task.
    #[must_use]
    pub fn task_waiter(&self) -> TaskWaiter {
        let mut tasks = self.0.lock();
        tasks.last_id += 1;
        TaskWaiter { id: tasks.last_id, signal: self.clone() }
    }

    /// Returns the number of notifications so far.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// Blocks while the generation equals `generation`, at most for `timeout`.
    pub fn wait(&self, generation: u64, timeout: Option<Duration>) {
        let state = &*self.0;
        let guard = state.lock();
        let current = state.word.fetch_add(1, Ordering::AcqRel) >> SLEEPER_BITS;
        if current == generation {
            let changed = &state.changed;
            let unchanged = |_: &mut TaskWakers| state.generation() == generation;
            match timeout {
                None => {
                    drop(
                        changed
                            .wait_while(guard, unchanged)
                            .unwrap_or_else(PoisonError::into_inner),
                    );
                }
                Some(timeout) => drop(
                    changed
                        .wait_timeout_while(guard, timeout, unchanged)
                        .unwrap_or_else(PoisonError::into_inner),
                ),
            }
        }
        state.remove_sleeper();
    }
}

/// Entry of one task in the list of tasks that wait for a [`Signal`]. Dropping it removes the entry.
#[derive(Debug)]
pub struct TaskWaiter {
    signal: Signal,
    id: u64,
}

impl TaskWaiter {
    /// Registers a waker for the next notification. Each registration wakes the task at most once.
    ///
    /// Returns false and registers nothing if the current generation differs from `generation`. As with
    /// [`Signal::wait`], the caller reads the generation, checks its condition, and then calls this function.
    #[must_use]
    pub fn register(&self, generation: u64, waker: &Waker) -> bool {
        let state = &*self.signal.0;
        let mut tasks = state.lock();
        let is_first = tasks.by_id.is_empty();
        let word = match is_first {
            true => state.word.fetch_add(1, Ordering::AcqRel),
            false => state.word.load(Ordering::Acquire),
        };
        let is_unchanged = word >> SLEEPER_BITS == generation;
        let mut replaced = None;
        if is_unchanged {
            replaced = tasks.by_id.insert(self.id, waker.clone());
        } else if is_first {
            state.remove_sleeper();
        }
        drop(tasks);
        // The destructor of a waker is code of the async runtime, so it runs after the unlock.
        drop(replaced);
        is_unchanged
    }
}

impl Drop for TaskWaiter {
    fn drop(&mut self) {
        let state = &*self.signal.0;
        let mut tasks = state.lock();
        let removed = tasks.by_id.remove(&self.id);
        if removed.is_some() && tasks.by_id.is_empty() {
            state.remove_sleeper();
        }
        drop(tasks);
        drop(removed);
    }
}

/// Returns the signal of the current thread, for conditions that only this thread waits for.
#[must_use]
pub fn thread_signal() -> Signal {
    thread_local! {
        static SIGNAL: Signal = Signal::new();
    }
    // While a thread ends, its thread local may already be destroyed. A new signal works as well.
    SIGNAL.try_with(Signal::clone).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::AtomicUsize;
    use super::*;

    fn run_threads(threads: usize, body: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let body = &body;
                scope.spawn(move || body(thread));
            }
        });
    }

    fn assert_no_sleepers(signal: &Signal) {
        assert_eq!(signal.0.word.load(Ordering::Relaxed) & SLEEPER_MASK, 0);
    }

    #[test]
    fn wait_after_notification_returns_at_once() {
        let signal = Signal::new();
        let generation = signal.generation();
        signal.notify();
        signal.wait(generation, None);
        assert_eq!(signal.generation(), generation + 1);
    }

    #[test]
    fn waker_that_panics_does_not_prevent_other_wake_ups() {
        struct CountOrPanic(AtomicUsize, bool);
        impl std::task::Wake for CountOrPanic {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
                assert!(!self.1, "deliberate");
            }
        }
        let signal = Signal::new();
        let waiters = [signal.task_waiter(), signal.task_waiter()];
        let wakers =
            [true, false].map(|panics| Arc::new(CountOrPanic(AtomicUsize::new(0), panics)));
        for (waiter, waker) in waiters.iter().zip(&wakers) {
            assert!(waiter.register(signal.generation(), &Waker::from(Arc::clone(waker))));
        }
        signal.notify();
        assert_eq!(wakers.map(|waker| waker.0.load(Ordering::Relaxed)), [1, 1]);
        assert_no_sleepers(&signal);
    }

    #[test]
    fn wait_without_notification_ends_at_timeout() {
        let signal = Signal::new();
        signal.wait(signal.generation(), Some(Duration::from_millis(1)));
        assert_no_sleepers(&signal);
    }

    /// Threads increment a number in turn, in a fixed cyclic order, and all wait on one signal. `waits` returns the
    /// wait function of a thread. If a wake-up is lost, all threads stop.
    fn check_ring<W: FnMut(u64)>(signal: &Signal, waits: impl Fn() -> W + Sync) {
        const THREADS: usize = 4;
        const ROUNDS: usize = if cfg!(miri) { 100 } else { 20_000 };
        let number = AtomicUsize::new(0);
        run_threads(THREADS, |thread| {
            let mut wait = waits();
            loop {
                let generation = signal.generation();
                let current = number.load(Ordering::Relaxed);
                if current >= ROUNDS {
                    break;
                }
                if current % THREADS == thread {
                    number.store(current + 1, Ordering::Relaxed);
                    signal.notify();
                } else {
                    wait(generation);
                }
            }
        });
        assert!(number.load(Ordering::Relaxed) >= ROUNDS);
        assert_no_sleepers(signal);
    }

    #[test]
    fn signal_threads_in_a_ring_lose_no_wake_up() {
        let signal = Signal::new();
        check_ring(&signal, || |generation| signal.wait(generation, None));
    }

    /// Each task is polled by its own thread. Every seventh wait, a task drops its waiter and creates a new one.
    #[test]
    fn signal_tasks_in_a_ring_lose_no_wake_up() {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let signal = Signal::new();
        check_ring(&signal, || {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let (mut waiter, mut waits) = (signal.task_waiter(), 0);
            let signal = &signal;
            move |generation| {
                if waiter.register(generation, &waker) {
                    waits += 1;
                    if waits % 7 == 0 {
                        waiter = signal.task_waiter();
                    } else {
                        std::thread::park();
                    }
                }
            }
        });
    }
}

/// Models for loom.
#[cfg(all(test, loom))]
mod models {
    use std::task::Wake;

    use loom::thread;

    use super::super::AtomicUsize;
    use super::super::loom_model::{explore_interleavings, spawn};
    use super::*;

    /// Waker that unparks the thread on which a model polls a task.
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// A counter for which threads and tasks wait. Its accesses are relaxed, so only the signal orders them.
    #[derive(Clone, Default)]
    struct SignaledCount {
        signal: Signal,
        count: Arc<AtomicUsize>,
    }

    impl SignaledCount {
        fn increment(&self) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.signal.notify();
        }

        fn wait_for(&self, count: usize) {
            loop {
                let generation = self.signal.generation();
                if self.count.load(Ordering::Relaxed) >= count {
                    return;
                }
                self.signal.wait(generation, None);
            }
        }

        fn poll_until(&self, count: usize) {
            let waker = Waker::from(Arc::new(Unpark(thread::current())));
            let waiter = self.signal.task_waiter();
            loop {
                let generation = self.signal.generation();
                if self.count.load(Ordering::Relaxed) >= count {
                    return;
                }
                if waiter.register(generation, &waker) {
                    thread::park();
                }
            }
        }

        fn assert_no_sleepers(&self) {
            assert_eq!(self.signal.0.word.load(Ordering::Relaxed) & SLEEPER_MASK, 0);
        }
    }

    /// Explores a model that runs each of `waiters` on its own thread while the signal is notified.
    fn check_waiters_end<const WAITERS: usize>(
        preemption_bound: Option<usize>,
        notifications: usize,
        waiters: [fn(&SignaledCount); WAITERS],
    ) {
        explore_interleavings(preemption_bound, move || {
            let count = SignaledCount::default();
            let threads = waiters.map(|wait| {
                let count = count.clone();
                spawn(move || wait(&count))
            });
            (0..notifications).for_each(|_| count.increment());
            for thread in threads {
                thread.join().unwrap();
            }
            count.assert_no_sleepers();
        });
    }

    /// Finds these errors: a notification between the check of the condition and the sleep is lost, or the thread sees
    /// the notification but not the earlier writes. In both cases the thread would sleep forever.
    #[test]
    fn notify_wakes_a_thread() {
        check_waiters_end(None, 1, [|count| count.wait_for(1)]);
    }

    /// Finds these errors: a notification wakes only one of two sleepers, or a sleeper that stops waiting also removes
    /// the count of the other sleeper. In the second case the next notifier would wake no thread.
    #[test]
    fn two_notifications_wake_two_threads() {
        check_waiters_end(Some(2), 2, [|count| count.wait_for(1), |count| count.wait_for(2)]);
    }

    /// Finds these errors: a notifier sees a counted sleeper before its waker is registered, or a registered waker is
    /// not counted. In both cases the task would not be polled again.
    #[test]
    fn notify_wakes_a_task() {
        check_waiters_end(None, 2, [|count| count.poll_until(2)]);
    }

    /// All tasks together count as one sleeper. The notifier removes this sleeper while a thread starts or ends its
    /// wait.
    #[test]
    fn notify_wakes_a_task_and_a_thread() {
        check_waiters_end(Some(3), 1, [|count| count.poll_until(1), |count| count.wait_for(1)]);
    }

    /// A task drops its waiter during a notification. Finds these errors: the sleeper is removed twice or never, or the
    /// remaining task is not woken.
    #[test]
    fn dropped_waiter_removes_its_own_registration_only() {
        let leave: fn(&SignaledCount) = |count| {
            let waiter = count.signal.task_waiter();
            let _ = waiter.register(count.signal.generation(), Waker::noop());
        };
        check_waiters_end(Some(3), 1, [leave, |count| count.poll_until(1)]);
    }
}
