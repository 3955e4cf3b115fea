//! The one file that names locks and atomics, so that a model checker's can take their place.
//!
//! Locks here do not poison: a panic in a user's operator or listener must not turn every later
//! call into a panic. Debug builds count the locks a thread holds; [`assert_unlocked`] is called
//! wherever a thread may give way to another, for a lock held there could stop a replayed schedule.

#[cfg(loom)]
mod loom_types;
#[cfg(all(test, loom))]
pub mod models;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::task::Waker;

#[cfg(loom)]
use loom_types as primitives;
#[cfg(not(loom))]
use std::sync as primitives;

#[cfg(not(loom))]
pub use arc_swap::{ArcSwap, Guard};
#[cfg(not(loom))]
pub use boxcar::Vec as AppendVec;
#[cfg(loom)]
pub use loom_types::OnceLock;
#[cfg(loom)]
pub use loom_types::{AppendVec, ArcSwap, Guard, thread_local};
pub use primitives::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub use std::sync::OnceLock;
pub use std::sync::{Arc, Weak};
#[cfg(not(loom))]
pub use std::thread_local;

/// Atomics for statics: a model checker's live no longer than one run of a model.
pub use std::sync::atomic as statics;

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One lock that this thread holds, counted in debug builds.
#[derive(Debug)]
struct Held;

impl Held {
    #[inline]
    fn new() -> Held {
        #[cfg(debug_assertions)]
        HELD.with(|held| held.set(held.get() + 1));
        Held
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get() - 1));
    }
}

/// Panics in debug builds if this thread holds a lock of this module.
pub fn assert_unlocked() {
    #[cfg(debug_assertions)]
    HELD.with(|held| {
        assert_eq!(held.get(), 0, "a lock is held across a yield point or a wait");
    });
}

/// A mutual exclusion lock that does not poison.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(primitives::Mutex<T>);

/// Holds a [`Mutex`]; must not outlive a yield point or a wait.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized>(primitives::MutexGuard<'a, T>, Held);

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(primitives::Mutex::new(value))
    }

    /// The value, when nobody else can reach the lock any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard(guard, Held::new())
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A lock for many readers or one writer that does not poison.
#[derive(Debug, Default)]
pub struct RwLock<T>(primitives::RwLock<T>);

/// Holds a [`RwLock`] for reading.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T>(primitives::RwLockReadGuard<'a, T>, Held);

/// Holds a [`RwLock`] for writing.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T>(primitives::RwLockWriteGuard<'a, T>, Held);

impl<T> RwLock<T> {
    /// A free lock around `value`.
    pub fn new(value: T) -> RwLock<T> {
        RwLock(primitives::RwLock::new(value))
    }
}

impl<T> RwLock<T> {
    /// Waits until no writer holds the lock, and takes it for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        RwLockReadGuard(guard, Held::new())
    }

    /// Waits until nobody holds the lock, and takes it for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        RwLockWriteGuard(guard, Held::new())
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A place to sleep under a [`Mutex`] until another thread says that what it guards has changed.
#[derive(Debug, Default)]
pub struct Condvar(primitives::Condvar);

impl Condvar {
    /// A place where nobody sleeps.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar(primitives::Condvar::new())
    }

    /// Frees the lock, sleeps until notified (or for no reason at all: ask again), takes the lock.
    ///
    /// The lock goes on counting as held; a sleeping thread reaches no yield point.
    #[must_use]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard(guard, held) = guard;
        MutexGuard(self.0.wait(guard).unwrap_or_else(PoisonError::into_inner), held)
    }

    /// Wakes one sleeper.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all sleepers.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Something that threads wait for: a count of notifications and a place to sleep. Clones are the
/// same signal.
///
/// One word holds how often the signal was given (its *generation*, the upper 48 bits) and how many
/// threads sleep or are about to (the lower 16). No wake-up is lost:
///
/// 1. A waiting thread reads the generation, asks its condition, and only then calls
///    [`Signal::sleep_while`] with that generation.
/// 2. To sleep it takes the lock, adds itself to the sleepers, and looks at the generation that
///    this very addition found. If the signal was given since step 1 it does not sleep.
/// 3. A notifier changes what conditions look at, then adds one to the generation, and looks at the
///    number of sleepers that this very addition found.
///
/// Both additions hit one atomic word, so one comes first. If the notifier's does, the sleeper sees
/// the new generation and stays awake. If the sleeper's does, the notifier sees a sleeper and takes
/// the lock, which it gets only once the sleeper waits on the condition variable, and wakes it.
/// With no sleeper a notification is one atomic addition.
///
/// Tasks wait with a [`WakeSlot`]. However many do, together they count as one sleeper, which is added
/// and taken off under the lock: a notifier that has found it gets the lock only once the task's waker
/// is in place.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    /// Generation << [`SLEEPER_BITS`] | sleepers.
    word: AtomicU64,
    /// Guards the step from "counted as sleeper" to "asleep".
    lock: primitives::Mutex<Tasks>,
    changed: primitives::Condvar,
}

/// Tasks that wait for a signal.
#[derive(Debug, Default)]
struct Tasks {
    id_next: u64,
    wakers: BTreeMap<u64, Waker>,
}

const SLEEPER_BITS: u32 = 16;
const SLEEPER_MASK: u64 = (1 << SLEEPER_BITS) - 1;

impl Signal {
    /// A signal that nobody has given yet.
    #[must_use]
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Wakes all threads that wait for this signal, to ask their conditions again. Call it after
    /// what the conditions look at has changed.
    #[inline]
    pub fn notify(&self) {
        // Release: who sees the new generation sees what was changed before.
        let before = self.0.word.fetch_add(1 << SLEEPER_BITS, Ordering::AcqRel);
        if before & SLEEPER_MASK != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let wakers = {
            let mut tasks = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
            let wakers = std::mem::take(&mut tasks.wakers);
            if !wakers.is_empty() {
                self.0.word.fetch_sub(1, Ordering::AcqRel);
            }
            wakers
        };
        self.0.changed.notify_all();
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    /// A place for a task that waits.
    #[must_use]
    pub fn slot(&self) -> WakeSlot {
        let mut tasks = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.id_next += 1;
        WakeSlot { id: tasks.id_next, signal: self.clone() }
    }

    /// How often the signal was given.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.word.load(Ordering::Acquire) >> SLEEPER_BITS
    }

    /// Sleeps until the generation is not `seen` any more, or `timeout` is over.
    pub fn sleep_while(&self, seen: u64, timeout: Option<std::time::Duration>) {
        let state = &*self.0;
        let guard = state.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.word.fetch_add(1, Ordering::AcqRel) >> SLEEPER_BITS;
        if found == seen {
            let unchanged = |_: &mut Tasks| self.generation() == seen;
            match timeout {
                None => drop(
                    state
                        .changed
                        .wait_while(guard, unchanged)
                        .unwrap_or_else(PoisonError::into_inner),
                ),
                Some(timeout) => drop(
                    state
                        .changed
                        .wait_timeout_while(guard, timeout, unchanged)
                        .unwrap_or_else(PoisonError::into_inner),
                ),
            }
        }
        state.word.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The place of a task that waits for a [`Signal`]; dropping it leaves.
#[derive(Debug)]
pub struct WakeSlot {
    signal: Signal,
    id: u64,
}

impl WakeSlot {
    /// Has the task woken once when the signal is given; false, and nothing done, if its generation is
    /// not `seen` any more. As with [`Signal::sleep_while`], the condition is asked after the
    /// generation was read and before this.
    #[must_use]
    pub fn arm(&self, seen: u64, waker: &Waker) -> bool {
        let state = &*self.signal.0;
        let mut tasks = state.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let first = tasks.wakers.is_empty();
        let word = match first {
            true => state.word.fetch_add(1, Ordering::AcqRel),
            false => state.word.load(Ordering::Acquire),
        };
        let unchanged = word >> SLEEPER_BITS == seen;
        let mut before = None;
        if unchanged {
            before = tasks.wakers.insert(self.id, waker.clone());
        } else if first {
            state.word.fetch_sub(1, Ordering::AcqRel);
        }
        drop(tasks);
        // What a waker does when it goes is not done under the lock.
        drop(before);
        unchanged
    }
}

impl Drop for WakeSlot {
    fn drop(&mut self) {
        let state = &*self.signal.0;
        let mut tasks = state.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let left = tasks.wakers.remove(&self.id);
        if left.is_some() && tasks.wakers.is_empty() {
            state.word.fetch_sub(1, Ordering::AcqRel);
        }
        drop(tasks);
        drop(left);
    }
}

/// A signal of the calling thread's own, for what it alone waits for.
#[must_use]
pub fn thread_signal() -> Signal {
    thread_local! {
        static SIGNAL: Signal = Signal::new();
    }
    // A thread whose locals are gone is ending; a new one serves it.
    SIGNAL.try_with(Signal::clone).unwrap_or_default()
}

/// A small number of the calling thread's own, never given twice while the process lives.
#[must_use]
pub fn thread_number() -> usize {
    static NEXT: statics::AtomicUsize = statics::AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread whose locals are gone is ending; any number serves it.
    NUMBER.try_with(|number| *number).unwrap_or(usize::MAX)
}

/// Shards of a [`ShardedCounter`].
const SHARDS: usize = 16;

/// Two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

/// A counter for hot paths: threads add to shards of their own, a reader sums them.
///
/// A sum read while others add may miss what they are adding; it counts everything that
/// happened before. 2 KiB each, from the first addition on: most keyspaces of a database that has
/// thousands are never touched.
#[derive(Debug, Default)]
pub struct ShardedCounter {
    shards: OnceLock<Box<[Shard; SHARDS]>>,
}

impl ShardedCounter {
    /// A counter at zero.
    #[must_use]
    pub fn new() -> ShardedCounter {
        ShardedCounter::default()
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.add_here(count);
    }

    /// Adds `count`, and returns what the thread's own shard then has.
    #[inline]
    pub fn add_here(&self, count: u64) -> u64 {
        let shards = self.shards.get_or_init(Box::default);
        let shard = &shards[thread_number() % SHARDS].0;
        shard.fetch_add(count, Ordering::Relaxed).wrapping_add(count)
    }

    /// The sum of all that was added; wraps past `u64::MAX`.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let shards = self.shards.get().into_iter().flat_map(|shards| shards.iter());
        shards.fold(0u64, |sum, shard| sum.wrapping_add(shard.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn scoped(threads: usize, body: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let body = &body;
                scope.spawn(move || body(thread));
            }
        });
    }

    #[test]
    fn a_lock_is_counted_while_its_guard_lives() {
        let lock = Mutex::new(1);
        assert_unlocked();
        let guard = lock.lock();
        let held = std::panic::catch_unwind(assert_unlocked);
        assert_eq!(held.is_err(), cfg!(debug_assertions));
        drop(guard);
        assert_unlocked();
        let lock = RwLock::new(1);
        let guard = lock.read();
        assert_eq!(std::panic::catch_unwind(assert_unlocked).is_err(), cfg!(debug_assertions));
        drop(guard);
        drop(lock.write());
        assert_unlocked();
    }

    #[test]
    fn a_panic_under_a_lock_does_not_poison_it() {
        let lock = Mutex::new(1);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("on purpose");
        }));
        assert_unlocked();
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn a_condvar_gives_the_lock_back_and_the_count_stays_right() {
        let lock = Mutex::new(false);
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *lock.lock() = true;
                changed.notify_one();
                assert_unlocked();
            });
            let mut guard = lock.lock();
            while !*guard {
                guard = changed.wait(guard);
            }
            drop(guard);
            assert_unlocked();
        });
    }

    #[test]
    fn a_signal_given_before_the_sleep_prevents_it() {
        let signal = Signal::new();
        let seen = signal.generation();
        signal.notify();
        signal.sleep_while(seen, None);
        assert_eq!(signal.generation(), seen + 1);
    }

    #[test]
    fn a_sleep_ends_at_its_timeout() {
        let signal = Signal::new();
        signal.sleep_while(signal.generation(), Some(Duration::from_millis(1)));
        assert_eq!(signal.0.word.load(Ordering::Relaxed) & SLEEPER_MASK, 0);
    }

    /// Threads pass a number round a ring, each sleeping on the same signal until it is its turn.
    /// One lost wake-up and the ring stands still.
    #[test]
    fn no_wake_up_is_lost() {
        const THREADS: usize = 4;
        const ROUNDS: usize = if cfg!(miri) { 100 } else { 20_000 };
        let signal = Signal::new();
        let turn = AtomicUsize::new(0);
        scoped(THREADS, |me| {
            loop {
                let seen = signal.generation();
                let now = turn.load(Ordering::Relaxed);
                if now >= ROUNDS {
                    break;
                }
                if now % THREADS == me {
                    turn.store(now + 1, Ordering::Relaxed);
                    signal.notify();
                } else {
                    signal.sleep_while(seen, None);
                }
            }
        });
        assert!(turn.load(Ordering::Relaxed) >= ROUNDS);
        assert_eq!(signal.0.word.load(Ordering::Relaxed) & SLEEPER_MASK, 0);
    }

    /// The same ring of tasks, each polled by a thread of its own, some of which give up and come again.
    #[test]
    fn no_wake_up_of_a_task_is_lost() {
        const THREADS: usize = 4;
        const ROUNDS: usize = if cfg!(miri) { 100 } else { 20_000 };
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let signal = Signal::new();
        let turn = AtomicUsize::new(0);
        scoped(THREADS, |me| {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let mut slot = signal.slot();
            for step in 0.. {
                let seen = signal.generation();
                let now = turn.load(Ordering::Relaxed);
                if now >= ROUNDS {
                    break;
                }
                if now % THREADS == me {
                    turn.store(now + 1, Ordering::Relaxed);
                    signal.notify();
                } else if slot.arm(seen, &waker) {
                    if step % 7 == 0 {
                        slot = signal.slot();
                    } else {
                        std::thread::park();
                    }
                }
            }
        });
        assert!(turn.load(Ordering::Relaxed) >= ROUNDS);
        assert_eq!(signal.0.word.load(Ordering::Relaxed) & SLEEPER_MASK, 0);
    }

    #[test]
    fn a_sharded_counter_loses_nothing() {
        let counter = ShardedCounter::new();
        scoped(8, |thread| {
            for _ in 0..1_000 {
                counter.add(thread as u64);
            }
        });
        assert_eq!(counter.sum(), 28_000);
    }

    #[test]
    fn every_thread_has_a_number_of_its_own() {
        let numbers = Mutex::new(std::collections::BTreeSet::new());
        scoped(8, |_| {
            assert_eq!(thread_number(), thread_number());
            numbers.lock().insert(thread_number());
        });
        assert_eq!(numbers.into_inner().len(), 8);
    }
}
