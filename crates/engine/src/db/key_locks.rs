//! Key locks serialize concurrent updates of one key, so that they do not fail with conflicts.

use std::array;

use lsmx_base::coding::low_u32;
use lsmx_base::sync::{AtomicBool, Ordering, Signal};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::env::{Env, WaitCause};
use crate::tree::Tree;

/// Number of key locks of a database.
const KEY_LOCKS: usize = 64;
/// Maximum wait for a key lock, in microseconds.
const LOCK_WAIT_US_MAX: u64 = 20_000;

/// Locks of keys during updates. Keys with the same hash share a lock.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    locked: [AtomicBool; KEY_LOCKS],
    /// Notified when a lock is released.
    released: Signal,
}

/// Releases a key lock when dropped.
#[derive(Debug)]
pub(crate) struct KeyLock<'a> {
    locks: &'a KeyLocks,
    locked: &'a AtomicBool,
}

impl KeyLocks {
    pub(crate) fn new() -> KeyLocks {
        let locked = array::from_fn(|_| AtomicBool::new(false));
        KeyLocks { locked, released: Signal::new() }
    }

    /// Waits for the lock of a key. Returns `None` after [`LOCK_WAIT_US_MAX`].
    pub(crate) fn lock(&self, env: &Env, tree: &Tree, key: &[u8]) -> Option<KeyLock<'_>> {
        let mut lock = self.try_lock(tree, key);
        if lock.is_none() {
            let limit_us = Some(self.wait_limit_us(env));
            env.wait(WaitCause::Update, &self.released, limit_us, &mut || {
                lock = self.try_lock(tree, key);
                lock.is_some()
            });
        }
        lock
    }

    /// Returns the lock of a key if it is free.
    pub(crate) fn try_lock(&self, tree: &Tree, key: &[u8]) -> Option<KeyLock<'_>> {
        let hash = xxh3_64_with_seed(key, u64::from(tree.id));
        let locked = &self.locked[low_u32(hash) as usize % KEY_LOCKS];
        let was_locked = locked.swap(true, Ordering::Acquire);
        (!was_locked).then(|| KeyLock { locks: self, locked })
    }

    /// Returns the deadline of a lock wait that starts now, in microseconds of [`Env::now_us`].
    pub(crate) fn wait_limit_us(&self, env: &Env) -> u64 {
        env.now_us().saturating_add(LOCK_WAIT_US_MAX)
    }

    /// Returns the signal that is notified when a lock is released.
    #[cfg(feature = "tokio")]
    pub(crate) fn release_signal(&self) -> &Signal {
        &self.released
    }
}

impl Drop for KeyLock<'_> {
    fn drop(&mut self) {
        self.locked.store(false, Ordering::Release);
        self.locks.released.notify();
    }
}
