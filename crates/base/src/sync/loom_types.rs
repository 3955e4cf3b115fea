//! Types of the model checker loom, and replacements for types that loom does not have.

use std::ops::Deref;
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

pub use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};

use super::Arc;
use atomic::{AtomicBool, AtomicUsize, Ordering};

pub use loom;

/// Wrapper of `loom::thread_local!` that also accepts `const` initializers.
#[doc(hidden)]
#[macro_export]
macro_rules! loom_thread_local {
    ($(#[$doc:meta])* static $name:ident: $type:ty = const $init:block;) => {
        $crate::sync::loom_types::loom::thread_local! { $(#[$doc])* static $name: $type = $init; }
    };
    ($($item:tt)*) => { $crate::sync::loom_types::loom::thread_local! { $($item)* } };
}
pub use crate::loom_thread_local as thread_local;

/// The condition variable of loom, with methods of the standard condition variable that loom lacks.
///
/// A model has no clock, so timeouts never expire. Code that needs a timeout to make progress deadlocks in a model.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar::default()
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.0.wait(guard)?;
        }
        Ok(guard)
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        let waited = self.wait_while(guard, condition);
        waited.map(|guard| (guard, ())).map_err(|error| PoisonError::new((error.into_inner(), ())))
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Replacement of `arc_swap::ArcSwap` with the same guarantees. Loads have acquire ordering and return the last stored
/// value. Stores have acquire-release ordering.
#[derive(Debug)]
pub struct ArcSwap<T> {
    /// Number of stores. At accesses to this counter, the model switches threads. The accesses also establish the same
    /// happens-before order as the real `ArcSwap`.
    swaps: AtomicUsize,
    /// Never held while the model switches threads.
    current: std::sync::Mutex<Arc<T>>,
}

/// Value that a load returned.
#[derive(Debug)]
pub struct Guard<T>(T);

impl<T> Deref for Guard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> ArcSwap<T> {
    pub fn new(value: Arc<T>) -> ArcSwap<T> {
        ArcSwap { swaps: AtomicUsize::new(0), current: std::sync::Mutex::new(value) }
    }

    pub fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap::new(Arc::new(value))
    }

    fn lock_current(&self) -> std::sync::MutexGuard<'_, Arc<T>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load_full(&self) -> Arc<T> {
        // Unlike a load, a read-modify-write operation always reads the newest value.
        self.swaps.fetch_add(0, Ordering::Acquire);
        Arc::clone(&self.lock_current())
    }

    pub fn load(&self) -> Guard<Arc<T>> {
        Guard(self.load_full())
    }

    pub fn store(&self, value: Arc<T>) {
        self.swaps.fetch_add(1, Ordering::AcqRel);
        let before = std::mem::replace(&mut *self.lock_current(), value);
        drop(before);
    }

    /// Replaces the value by `update(value)` and returns the old value. If another thread changes the value at the same
    /// time, calls `update` again.
    pub fn rcu(&self, mut update: impl FnMut(&Arc<T>) -> T) -> Arc<T> {
        loop {
            let seen = self.load_full();
            let updated = Arc::new(update(&seen));
            let unchanged = {
                self.swaps.fetch_add(1, Ordering::AcqRel);
                let mut current = self.lock_current();
                let unchanged = Arc::ptr_eq(&seen, &current);
                if unchanged {
                    *current = updated;
                }
                unchanged
            };
            if unchanged {
                return seen;
            }
        }
    }
}

impl<T: Default> Default for ArcSwap<T> {
    fn default() -> ArcSwap<T> {
        ArcSwap::from_pointee(T::default())
    }
}

/// Replacement of `std::sync::OnceLock` with the same guarantee: a thread that reads the value sees all writes that
/// happened before the value was set.
#[derive(Debug)]
pub struct OnceLock<T> {
    is_set: AtomicBool,
    setting: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// Creates an empty cell.
    #[must_use]
    pub fn new() -> OnceLock<T> {
        let value = std::sync::OnceLock::new();
        OnceLock { is_set: AtomicBool::new(false), setting: Mutex::new(()), value }
    }

    /// Returns the value, or `None` if it is not set.
    pub fn get(&self) -> Option<&T> {
        self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Returns `value` if the cell already has a value.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _setting = self.setting.lock();
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the value. Initializes the cell with `init` if it is empty.
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _setting = self.setting.lock();
        let value = self.value.get_or_init(init);
        self.is_set.store(true, Ordering::Release);
        value
    }

    /// Removes and returns the value.
    pub fn take(&mut self) -> Option<T> {
        self.is_set.store(false, Ordering::Relaxed);
        self.value.take()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        let value = std::sync::OnceLock::from(value);
        OnceLock { is_set: AtomicBool::new(true), setting: Mutex::new(()), value }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

/// Replacement of `boxcar::Vec` with the same guarantee: a thread that reads an item sees all writes that happened
/// before the item was pushed.
#[derive(Debug)]
pub struct AppendVec<T> {
    count: AtomicUsize,
    items: [std::sync::OnceLock<T>; ITEMS_MAX],
}

/// Capacity of [`AppendVec`]. No model pushes more items.
const ITEMS_MAX: usize = 32;

impl<T> AppendVec<T> {
    pub fn new() -> AppendVec<T> {
        let items = [const { std::sync::OnceLock::new() }; ITEMS_MAX];
        AppendVec { count: AtomicUsize::new(0), items }
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        (index < self.count()).then(|| self.items[index].get()).flatten()
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        (0..self.count()).filter_map(|index| Some((index, self.items[index].get()?)))
    }

    /// Appends an item. Only one thread may push at a time.
    pub fn push(&self, item: T) {
        let index = self.count.load(Ordering::Relaxed);
        assert!(self.items[index].set(item).is_ok(), "concurrent pushes");
        self.count.store(index + 1, Ordering::Release);
    }
}
