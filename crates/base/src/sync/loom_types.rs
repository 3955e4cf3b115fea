//! What stands in for locks and atomics in models: loom's, and what loom lacks.

use std::ops::Deref;
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

pub use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};

use super::Arc;
use atomic::{AtomicBool, AtomicUsize, Ordering};

/// loom's, which does not know the word `const`.
macro_rules! thread_local_of_model {
    ($(#[$doc:meta])* static $name:ident: $of:ty = const $init:block;) => {
        loom::thread_local! { $(#[$doc])* static $name: $of = $init; }
    };
    ($($plain:tt)*) => { loom::thread_local! { $($plain)* } };
}
pub use thread_local_of_model as thread_local;

/// loom's condition variable, with what else is asked of one. No time passes in a model, so a wait
/// with a timeout is one without: what needs the timeout to go on shows as a deadlock.
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

/// What `arc_swap` promises: a load acquires, a store does both, and a load finds what was stored last.
#[derive(Debug)]
pub struct ArcSwap<T> {
    /// How often it was swapped: where a model may switch threads, and what it orders them by.
    swaps: AtomicUsize,
    /// Never locked while a model switches threads.
    current: std::sync::Mutex<Arc<T>>,
}

/// What a load found.
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

    fn current(&self) -> std::sync::MutexGuard<'_, Arc<T>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load_full(&self) -> Arc<T> {
        // An addition finds the last of all stores.
        self.swaps.fetch_add(0, Ordering::Acquire);
        Arc::clone(&self.current())
    }

    pub fn load(&self) -> Guard<Arc<T>> {
        Guard(self.load_full())
    }

    pub fn store(&self, value: Arc<T>) {
        self.swaps.fetch_add(1, Ordering::AcqRel);
        let before = std::mem::replace(&mut *self.current(), value);
        drop(before);
    }

    /// Swaps in what `make` makes of what is there, which it is asked again if that is another by then;
    /// returns what was there.
    pub fn rcu(&self, mut make: impl FnMut(&Arc<T>) -> T) -> Arc<T> {
        loop {
            let seen = self.load_full();
            let made = Arc::new(make(&seen));
            let unchanged = {
                self.swaps.fetch_add(1, Ordering::AcqRel);
                let mut current = self.current();
                let unchanged = Arc::ptr_eq(&seen, &current);
                if unchanged {
                    *current = Arc::clone(&made);
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

/// What the standard library promises: who finds the value sees what was written before it was set.
#[derive(Debug)]
pub struct OnceLock<T> {
    is_set: AtomicBool,
    setting: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// One without a value.
    #[must_use]
    pub fn new() -> OnceLock<T> {
        let value = std::sync::OnceLock::new();
        OnceLock { is_set: AtomicBool::new(false), setting: Mutex::new(()), value }
    }

    /// The value, if it was set.
    pub fn get(&self) -> Option<&T> {
        self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }

    /// Sets the value, unless it has one.
    ///
    /// # Errors
    /// The value given, if there was one.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _setting = self.setting.lock();
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    /// The value, which is made if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _setting = self.setting.lock();
        let value = self.value.get_or_init(make);
        self.is_set.store(true, Ordering::Release);
        value
    }

    /// Takes the value out.
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

/// What `boxcar` promises: who finds an item sees what was written before it was pushed.
#[derive(Debug)]
pub struct AppendVec<T> {
    count: AtomicUsize,
    items: [std::sync::OnceLock<T>; ITEMS_MAX],
}

/// More than models come to.
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

    /// One thread at a time.
    pub fn push(&self, item: T) {
        let index = self.count.load(Ordering::Relaxed);
        assert!(self.items[index].set(item).is_ok(), "two push at once");
        self.count.store(index + 1, Ordering::Release);
    }
}
