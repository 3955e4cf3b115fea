//! Locks that do not poison.
//!
//! A panic while a lock is held does not poison the lock. Otherwise a panic in a user's merge operator or event
//! listener would make all later calls panic.
//!
//! Debug builds count the locks that each thread holds. Each point at which a thread may yield to another thread calls
//! [`assert_unlocked`]. If a thread held a lock at such a point, replaying a recorded thread schedule could block.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::primitives;
#[cfg(debug_assertions)]
use super::thread_local;

#[cfg(debug_assertions)]
thread_local! {
    static HELD_LOCKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Represents one lock that the current thread holds. Debug builds count these values.
#[derive(Debug)]
struct HeldLock;

impl HeldLock {
    #[inline]
    fn new() -> HeldLock {
        #[cfg(debug_assertions)]
        HELD_LOCKS.with(|held| held.set(held.get() + 1));
        HeldLock
    }
}

#[cfg(debug_assertions)]
impl Drop for HeldLock {
    fn drop(&mut self) {
        HELD_LOCKS.with(|held| held.set(held.get() - 1));
    }
}

/// Panics in debug builds if the current thread holds a lock of this module.
pub fn assert_unlocked() {
    #[cfg(debug_assertions)]
    HELD_LOCKS.with(|held| {
        assert_eq!(held.get(), 0, "a lock is held at a yield point or during a wait");
    });
}

/// A mutex that does not poison.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(primitives::Mutex<T>);

/// Guard of a locked [`Mutex`]. It must be dropped before a yield point or a wait.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized>(primitives::MutexGuard<'a, T>, HeldLock);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(primitives::Mutex::new(value))
    }

    /// Consumes the mutex and returns its value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex. Blocks until it is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard(guard, HeldLock::new())
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

/// A reader-writer lock that does not poison.
#[derive(Debug, Default)]
pub struct RwLock<T>(primitives::RwLock<T>);

/// Guard of a [`RwLock`] that is locked for reading.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T>(primitives::RwLockReadGuard<'a, T>, HeldLock);

/// Guard of a [`RwLock`] that is locked for writing.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T>(primitives::RwLockWriteGuard<'a, T>, HeldLock);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> RwLock<T> {
        RwLock(primitives::RwLock::new(value))
    }

    /// Locks for reading. Blocks while a writer holds the lock.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        RwLockReadGuard(guard, HeldLock::new())
    }

    /// Locks for writing. Blocks while any other thread holds the lock.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        RwLockWriteGuard(guard, HeldLock::new())
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

/// A condition variable for a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(primitives::Condvar);

impl Condvar {
    /// Creates a condition variable.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar(primitives::Condvar::new())
    }

    /// Unlocks the mutex, waits for a notification, and locks the mutex again.
    ///
    /// Wake-ups can be spurious, so the caller must check its condition again. During the wait, the lock still counts
    /// as held. This is harmless, because a waiting thread reaches no yield point.
    #[must_use]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard(guard, held) = guard;
        MutexGuard(self.0.wait(guard).unwrap_or_else(PoisonError::into_inner), held)
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assert_unlocked_panics_while_a_guard_lives() {
        let lock = Mutex::new(1);
        assert_unlocked();
        let guard = lock.lock();
        let checked = std::panic::catch_unwind(assert_unlocked);
        assert_eq!(checked.is_err(), cfg!(debug_assertions));
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
    fn mutex_panic_of_holder_does_not_poison() {
        let lock = Mutex::new(1);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("deliberate panic");
        }));
        assert_unlocked();
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn condvar_wait_keeps_count_of_held_locks() {
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
}
