//! The one file that names locks and atomics, so that a model checker's can take their place.
//!
//! Locks here do not poison: a panic in a user's operator or listener must not turn every later
//! call into a panic. Debug builds count the locks a thread holds; [`assert_unlocked`] is called
//! wherever a thread may give way to another, for a lock held there could stop a replayed schedule.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

pub use std::sync::Arc;
pub use std::sync::Weak;
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn count_lock() {
    #[cfg(debug_assertions)]
    HELD.with(|held| held.set(held.get() + 1));
}

fn count_unlock() {
    #[cfg(debug_assertions)]
    HELD.with(|held| held.set(held.get() - 1));
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
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

/// Holds a [`Mutex`]; must not outlive a yield point or a wait.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized>(std::sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
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
        count_lock();
        MutexGuard(guard)
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

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        count_unlock();
    }
}

/// A lock for many readers or one writer that does not poison.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

/// Holds a [`RwLock`] for reading.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T: ?Sized>(std::sync::RwLockReadGuard<'a, T>);

/// Holds a [`RwLock`] for writing.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T: ?Sized>(std::sync::RwLockWriteGuard<'a, T>);

impl<T> RwLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock, and takes it for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        count_lock();
        RwLockReadGuard(guard)
    }

    /// Waits until nobody holds the lock, and takes it for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        count_lock();
        RwLockWriteGuard(guard)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        count_unlock();
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        count_unlock();
    }
}

/// Something that threads wait for: a counter of notifications and a place to sleep.
///
/// Pairs with `Env::wait`, which reads the generation, asks the condition, and sleeps until the
/// generation has changed; so a notification between the question and the sleep is not lost.
#[derive(Debug, Default)]
pub struct Signal {
    generation: std::sync::Mutex<u64>,
    changed: std::sync::Condvar,
}

impl Signal {
    /// A signal that nobody has given yet.
    #[must_use]
    pub const fn new() -> Signal {
        Signal { generation: std::sync::Mutex::new(0), changed: std::sync::Condvar::new() }
    }

    /// Wakes all threads that wait for this signal, to ask their conditions again.
    pub fn notify(&self) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// How often the signal was given.
    #[must_use]
    pub fn generation(&self) -> u64 {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until the generation is not `seen` any more, or `timeout` is over.
    pub fn sleep_while(&self, seen: u64, timeout: Option<std::time::Duration>) {
        let guard = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        match timeout {
            None => {
                let _guard = self
                    .changed
                    .wait_while(guard, |generation| *generation == seen)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            Some(timeout) => {
                let _guard = self
                    .changed
                    .wait_timeout_while(guard, timeout, |generation| *generation == seen)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
