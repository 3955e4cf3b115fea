//! Locks of keys that locking transactions hold until they end.
//!
//! A transaction waits for a key that another transaction has locked. Two events can close a cycle of waits. Both search for
//! a deadlock: they follow the keys that the owners of locks wait for.
//!
//! 1. A transaction begins to wait for a key.
//! 2. A transaction locks a free key for which others wait. It closes a cycle only if another call of the same transaction
//!    waits.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, Signal};

use crate::db::transaction::counters::LockCounters;
use crate::db::transaction::state::TransactionState;
use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::metrics::TransactionMetrics;
use crate::tree::Tree;
use crate::tree::counters::add;

/// Number of a locking transaction.
type TransactionId = u64;

/// The map of owners shrinks if it has at least this capacity and is nearly empty.
const SHRINK_CAPACITY_MIN: usize = 1 << 12;

/// Keyspace id and key.
type LockedKey = (u32, Bytes);

/// Locks of all locking transactions of a database.
#[derive(Debug)]
pub(crate) struct LockTable {
    state: Mutex<LockTableState>,
    /// Notified when locks are released.
    released: Signal,
    next_id: AtomicU64,
    counters: LockCounters,
}

#[derive(Debug, Default)]
struct LockTableState {
    /// Owner of each locked key, with the tree of the key.
    owners: HashMap<LockedKey, (TransactionId, Arc<Tree>)>,
    /// Keys that transactions wait for. The threads of a transaction may wait for several keys.
    waiting: HashMap<TransactionId, Vec<LockedKey>>,
    /// Whether the database is closed. No key can be locked then.
    is_closed: bool,
}

impl LockTable {
    pub(crate) fn new() -> LockTable {
        let (state, released) = (Mutex::default(), Signal::new());
        let (next_id, counters) = (AtomicU64::new(0), LockCounters::default());
        LockTable { state, released, next_id, counters }
    }

    /// Ends all waits with [`Error::Closed`]. All later attempts to lock a key fail with it, too.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.released.notify();
    }

    /// Counts a failed attempt to lock a key.
    fn count_failure(&self, error: &Error) {
        if matches!(error, Error::Deadlock { .. }) {
            add(&self.counters.deadlocks, 1);
        }
    }

    /// Adds the metrics of locks to those of transactions.
    pub(crate) fn add_metrics(&self, metrics: &mut TransactionMetrics) {
        let LockCounters { waits, wait_us, timeouts, deadlocks } = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        metrics.locks_held = len_u64(self.state.lock().owners.len());
        metrics.lock_waits = read(waits);
        metrics.lock_wait_us_total = read(wait_us);
        metrics.lock_timeouts = read(timeouts);
        metrics.lock_deadlocks = read(deadlocks);
    }
}

impl LockTableState {
    /// Locks a free key. Returns whether the transaction owns the key now.
    ///
    /// # Errors
    /// [`Error::Deadlock`] if another call of the transaction waits, and the lock would close a cycle; [`Error::Closed`].
    fn try_lock(&mut self, id: TransactionId, tree: &Arc<Tree>, key: &LockedKey) -> Result<bool> {
        if self.is_closed {
            return Err(Error::Closed);
        }
        if let Some((owner, _)) = self.owners.get(key) {
            return Ok(*owner == id);
        }
        self.owners.insert(key.clone(), (id, Arc::clone(tree)));
        let is_foreign = |key: &LockedKey| self.owners.get(key).is_some_and(|owner| owner.0 != id);
        let waiting = self.waiting.get(&id).into_iter().flatten();
        let checked =
            waiting.filter(|key| is_foreign(key)).try_for_each(|key| self.check_no_cycle(id, key));
        if checked.is_err() {
            self.owners.remove(key);
        }
        checked.map(|()| true)
    }

    /// Locks a free key, or adds a wait for a key that another transaction has locked. Returns whether the transaction owns
    /// the key now.
    ///
    /// # Errors
    /// [`Error::Deadlock`], [`Error::Closed`].
    fn lock_or_wait(
        &mut self,
        id: TransactionId,
        tree: &Arc<Tree>,
        key: &LockedKey,
    ) -> Result<bool> {
        let is_locked = self.try_lock(id, tree, key)?;
        if !is_locked {
            self.check_no_cycle(id, key)?;
            self.waiting.entry(id).or_default().push(key.clone());
        }
        Ok(is_locked)
    }

    /// Checks that a wait of a transaction for `key` closes no cycle.
    ///
    /// # Errors
    /// [`Error::Deadlock`].
    fn check_no_cycle(&self, id: TransactionId, key: &LockedKey) -> Result<()> {
        match self.find_cycle(id, key) {
            Some(cycle) if !failpoint::is_on(Failpoint::DeadlockNotFound) => {
                let cycle = cycle.iter().map(|key| self.describe(key)).collect();
                Err(Error::Deadlock { cycle })
            }
            _ => Ok(()),
        }
    }

    /// Returns the deadlock that would result if transaction `id` waited for `key`, as a cycle of keys, or `None`. The
    /// first key is `key`. The owner of each key waits for the next key, and transaction `id` owns the last key.
    fn find_cycle(&self, id: TransactionId, key: &LockedKey) -> Option<Vec<LockedKey>> {
        // Breadth-first search. Each key has the index of the key whose owner waits for it.
        let mut visited: Vec<(&LockedKey, Option<usize>)> = vec![(key, None)];
        let (mut owners_seen, mut index) = (HashSet::new(), 0);
        while let Some(&(key, _)) = visited.get(index) {
            if let Some((owner, _)) = self.owners.get(key) {
                if *owner == id {
                    let mut cycle = Vec::new();
                    let mut next = Some(index);
                    while let Some((key, parent)) = next.map(|index| visited[index]) {
                        cycle.push(key.clone());
                        next = parent;
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if owners_seen.insert(*owner) {
                    let keys = self.waiting.get(owner).into_iter().flatten();
                    visited.extend(keys.map(|key| (key, Some(index))));
                }
            }
            index += 1;
        }
        None
    }

    /// Returns the name of the keyspace and the bytes of a locked key.
    fn describe(&self, key: &LockedKey) -> (String, Vec<u8>) {
        let keyspace = self.owners.get(key).map(|(_, tree)| tree.name());
        (keyspace.unwrap_or_default(), key.1.to_vec())
    }

    /// Removes the owners of keys.
    fn unlock<'a>(&mut self, keys: impl IntoIterator<Item = &'a LockedKey>) {
        for key in keys {
            self.owners.remove(key);
        }
        let (count, capacity) = (self.owners.len(), self.owners.capacity());
        if capacity >= SHRINK_CAPACITY_MIN && count < capacity / 8 {
            self.owners.shrink_to(2 * count);
        }
    }

    fn remove_waiting(&mut self, id: TransactionId, key: &LockedKey) {
        if let Some(keys) = self.waiting.get_mut(&id) {
            if let Some(index) = keys.iter().position(|waiting| waiting == key) {
                keys.swap_remove(index);
            }
            if keys.is_empty() {
                self.waiting.remove(&id);
            }
        }
    }
}

/// Locks of one transaction.
#[derive(Debug)]
pub(super) struct TransactionLocks {
    id: TransactionId,
    timeout_us: u64,
    held: Mutex<HashSet<LockedKey>>,
}

impl TransactionLocks {
    /// Creates the locks of a new transaction. Its calls wait at most `timeout_us` for a key.
    pub(super) fn new(table: &LockTable, timeout_us: u64) -> TransactionLocks {
        let id = table.next_id.fetch_add(1, Ordering::Relaxed);
        TransactionLocks { id, timeout_us, held: Mutex::default() }
    }

    /// Returns whether the transaction has locked a key.
    pub(super) fn holds(&self, tree: &Tree, key: &[u8]) -> bool {
        self.held.lock().contains(&(tree.id, Bytes::copy_from_slice(key)))
    }

    /// Begins to lock a key until [`TransactionLocks::release`]. Returns the wait for the key, or `None` if the transaction
    /// has locked it. `state` is the state of the transaction. It counts the memory of the lock.
    ///
    /// # Errors
    /// [`Error::Deadlock`]; [`Error::Closed`]; [`Error::TooLarge`] if transactions use too much memory.
    pub(super) fn begin_lock<'a>(
        &'a self,
        table: &'a LockTable,
        state: &'a Mutex<TransactionState>,
        tree: &'a Arc<Tree>,
        key: &[u8],
    ) -> Result<Option<KeyWait<'a>>> {
        state.lock().add_lock(key)?;
        let key: LockedKey = (tree.id, Bytes::copy_from_slice(key));
        let is_locked = table.state.lock().lock_or_wait(self.id, tree, &key);
        let is_locked = is_locked.inspect_err(|error| {
            table.count_failure(error);
            state.lock().subtract_lock(&key.1);
        })?;
        if is_locked {
            self.held.lock().insert(key);
            return Ok(None);
        }
        add(&table.counters.waits, 1);
        let begin_us = tree.env().now_us();
        Ok(Some(KeyWait { table, locks: self, state, tree, key, begin_us, is_waiting: true }))
    }

    /// Releases all locks.
    pub(super) fn release(&self, table: &LockTable) {
        let held = std::mem::take(&mut *self.held.lock());
        if held.is_empty() {
            return;
        }
        table.state.lock().unlock(&held);
        table.released.notify();
    }
}

/// A wait of a transaction for a key that another transaction has locked. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct KeyWait<'a> {
    table: &'a LockTable,
    locks: &'a TransactionLocks,
    /// Counts the memory of the lock.
    state: &'a Mutex<TransactionState>,
    tree: &'a Arc<Tree>,
    key: LockedKey,
    /// Start of the wait, in microseconds of the clock of the environment.
    begin_us: u64,
    /// Whether the lock table lists the wait.
    is_waiting: bool,
}

impl<'a> KeyWait<'a> {
    /// Returns the signal that is notified when locks are released.
    #[cfg(feature = "tokio")]
    pub(crate) fn signal(&self) -> &'a Signal {
        &self.table.released
    }

    /// Returns the latest end of the wait, in microseconds of the clock of the environment.
    pub(crate) fn limit_us(&self) -> u64 {
        self.begin_us.saturating_add(self.locks.timeout_us)
    }

    /// Locks the key if it is free. Returns whether the transaction has locked it.
    ///
    /// # Errors
    /// [`Error::Deadlock`], [`Error::Closed`].
    pub(crate) fn try_lock(&mut self) -> Result<bool> {
        let is_locked = {
            let mut state = self.table.state.lock();
            let is_locked = state.try_lock(self.locks.id, self.tree, &self.key)?;
            if is_locked {
                // Removed under the same lock, so that no deadlock search finds an owner that waits for its own key.
                state.remove_waiting(self.locks.id, &self.key);
            }
            is_locked
        };
        if is_locked {
            self.is_waiting = false;
            self.locks.held.lock().insert(self.key.clone());
        }
        Ok(is_locked)
    }

    /// Blocks the thread until the key is locked.
    ///
    /// # Errors
    /// [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::Closed`].
    pub(super) fn wait(mut self) -> Result<()> {
        let (env, signal, limit_us) = (self.tree.env(), &self.table.released, self.limit_us());
        let mut locked = Ok(false);
        env.wait(WaitCause::KeyLock, signal, Some(limit_us), &mut || {
            locked = self.try_lock();
            !matches!(locked, Ok(false))
        });
        self.finish(locked)
    }

    /// Returns the result of a wait that has ended. `locked` is the result of the last call of [`KeyWait::try_lock`].
    ///
    /// # Errors
    /// The error in `locked`; [`Error::LockTimeout`] if the key is not locked.
    pub(crate) fn finish(self, locked: Result<bool>) -> Result<()> {
        match locked.inspect_err(|error| self.table.count_failure(error))? {
            true => Ok(()),
            false => {
                add(&self.table.counters.timeouts, 1);
                let (keyspace, key) = (self.tree.name(), self.key.1.to_vec());
                Err(Error::LockTimeout { keyspace, key })
            }
        }
    }
}

impl Drop for KeyWait<'_> {
    fn drop(&mut self) {
        let wait_us = self.tree.env().now_us().saturating_sub(self.begin_us);
        add(&self.table.counters.wait_us, wait_us);
        if self.is_waiting {
            self.table.state.lock().remove_waiting(self.locks.id, &self.key);
            self.state.lock().subtract_lock(&self.key.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Db, Transaction};
    use crate::options::db::Options;
    use crate::options::write::Durability;
    use crate::vfs::MemVfs;
    use std::time::Duration;

    fn open() -> Db {
        Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap()
    }

    fn begin(db: &Db) -> Transaction {
        db.locking_transaction(Duration::from_secs(100))
    }

    #[test]
    fn cycle_of_three_transactions_is_found_and_named() {
        let db = open();
        let keyspace = db.default_keyspace();
        let [one, two, three] = [begin(&db), begin(&db), begin(&db)];
        one.put(&keyspace, "a", "1").unwrap();
        two.put(&keyspace, "b", "2").unwrap();
        three.put(&keyspace, "c", "3").unwrap();
        let waiting = |count: usize| {
            while db.inner().lock_table.state.lock().waiting.len() < count {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let keyspace = &keyspace;
            let first = scope.spawn(move || one.get_for_update(keyspace, "b").map(|_| one));
            waiting(1);
            let second = scope.spawn(move || two.get_for_update(keyspace, "c").map(|_| two));
            waiting(2);
            let error = three.get_for_update(keyspace, "a").unwrap_err();
            let Error::Deadlock { cycle } = &error else { panic!("{error}") };
            let keys: Vec<_> = cycle.iter().map(|(_, key)| key.as_slice()).collect();
            assert_eq!(keys, [b"a", b"b", b"c"]);
            assert!(cycle.iter().all(|(keyspace, _)| keyspace == "default"));
            // Each owner gets its key when the next transaction ends.
            drop(three);
            second.join().unwrap().unwrap();
            first.join().unwrap().unwrap();
        });
    }

    /// Bug: the lock of a free key closed a cycle over another wait of the same transaction, and no call searched for it.
    #[test]
    fn cycle_over_two_waits_of_one_transaction_is_found() {
        for waits_before in [false, true] {
            let db = open();
            let keyspace = db.default_keyspace();
            let [one, two, three] = [begin(&db), begin(&db), begin(&db)];
            let lock = |tx: &Transaction, key: &str| tx.put(&keyspace, key, "value").unwrap();
            lock(&one, "m");
            lock(&two, "k");
            let mut first = one.begin_lock(&keyspace, b"k").unwrap().unwrap();
            let mut second = three.begin_lock(&keyspace, b"m").unwrap().unwrap();
            let refused = if waits_before {
                let mut third = three.begin_lock(&keyspace, b"k").unwrap().unwrap();
                assert!(!third.try_lock().unwrap());
                drop(two);
                third.try_lock().map(drop)
            } else {
                drop(two);
                three.begin_lock(&keyspace, b"k").map(drop)
            };
            let Err(Error::Deadlock { cycle }) = refused else { panic!("{refused:?}") };
            let keys: Vec<_> = cycle.iter().map(|(_, key)| key.as_slice()).collect();
            assert_eq!(keys, [b"m", b"k"]);
            assert!(cycle.iter().all(|(keyspace, _)| keyspace == "default"));
            assert!(first.try_lock().unwrap() && !second.try_lock().unwrap());
            drop(first);
            drop(one);
            assert!(second.try_lock().unwrap());
        }
    }

    #[test]
    fn two_waits_of_one_transaction_without_cycle_lock_their_keys() {
        let db = open();
        let keyspace = db.default_keyspace();
        let [one, two, three] = [begin(&db), begin(&db), begin(&db)];
        one.put(&keyspace, "a", "1").unwrap();
        two.put(&keyspace, "b", "2").unwrap();
        let begin_lock = |key| three.begin_lock(&keyspace, key).unwrap().unwrap();
        // Two calls wait for the same key.
        let mut waits = [b"a", b"b", b"b"].map(|key| begin_lock(key));
        drop(two);
        assert!(waits[1].try_lock().unwrap() && waits[2].try_lock().unwrap());
        assert!(!waits[0].try_lock().unwrap());
        three.put(&keyspace, "c", "3").unwrap();
        drop(one);
        assert!(waits[0].try_lock().unwrap());
    }

    #[test]
    fn locks_end_with_commit_and_with_drop() {
        let db = open();
        let keyspace = db.default_keyspace();
        for commits in [false, true] {
            let one = begin(&db);
            one.put(&keyspace, "a", "1").unwrap();
            one.put(&keyspace, "a", "2").unwrap();
            let two = db.locking_transaction(Duration::ZERO);
            let refused = two.delete(&keyspace, "a");
            assert!(matches!(refused, Err(Error::LockTimeout { .. })), "{refused:?}");
            match commits {
                true => one.commit(Durability::Buffered).unwrap(),
                false => drop(one),
            }
            let value = two.get_for_update(&keyspace, "a").unwrap();
            assert_eq!(value.as_deref(), commits.then_some(&b"2"[..]));
            drop(two);
            assert!(db.inner().lock_table.state.lock().owners.is_empty());
        }
    }

    /// Bug: a call that waited for a key ended only with the owner of the key or with its timeout.
    #[test]
    fn close_ends_waits_and_prevents_locks() {
        let db = open();
        let keyspace = db.default_keyspace();
        let [one, two] = [begin(&db), begin(&db)];
        one.put(&keyspace, "a", "1").unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| two.put(&keyspace, "a", "2"));
            while db.inner().lock_table.state.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            db.close(None).unwrap();
            let ended = waiting.join().unwrap();
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        });
        for key in ["a", "b"] {
            let refused = two.put(&keyspace, key, "2");
            assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
            let refused = two.get_for_update(&keyspace, key);
            assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
        }
        let state = db.inner().lock_table.state.lock();
        assert_eq!((state.owners.len(), state.waiting.len()), (1, 0));
        drop(state);
        let mut metrics = TransactionMetrics::default();
        db.inner().lock_table.add_metrics(&mut metrics);
        assert_eq!((metrics.lock_timeouts, metrics.lock_deadlocks), (0, 0));
    }

    /// Bug: each failed or cancelled attempt to lock a key used memory of the transaction until its end.
    #[test]
    fn failed_and_cancelled_locks_release_their_memory() {
        let db = open();
        let keyspace = db.default_keyspace();
        let [one, two] = [begin(&db), db.locking_transaction(Duration::ZERO)];
        let [key, other] = [[1; 60 << 10], [2; 60 << 10]];
        one.put(&keyspace, key, "1").unwrap();
        two.put(&keyspace, other, "2").unwrap();
        let before = db.metrics().memory.transactions;
        for _ in 0..100 {
            assert!(matches!(two.delete(&keyspace, key), Err(Error::LockTimeout { .. })));
            drop(two.begin_lock(&keyspace, &key).unwrap().unwrap());
        }
        let _wait = one.begin_lock(&keyspace, &other).unwrap().unwrap();
        for _ in 0..100 {
            assert!(matches!(two.delete(&keyspace, key), Err(Error::Deadlock { .. })));
        }
        let metrics = db.metrics().transactions;
        let TransactionMetrics { lock_waits, lock_timeouts, lock_deadlocks, .. } = metrics;
        assert_eq!((lock_waits, lock_timeouts, lock_deadlocks), (201, 100, 100));
        // Each attempt counted 120 KiB.
        assert!(db.metrics().memory.transactions <= before + (1 << 20));
    }

    #[test]
    fn map_of_owners_shrinks_after_a_large_transaction() {
        let db = open();
        let keyspace = db.default_keyspace();
        let [small, large] = [begin(&db), begin(&db)];
        small.put(&keyspace, "a", "1").unwrap();
        for number in 0..10_000u32 {
            large.put(&keyspace, number.to_be_bytes(), "2").unwrap();
        }
        drop(large);
        let state = db.inner().lock_table.state.lock();
        assert_eq!(state.owners.len(), 1);
        assert!(state.owners.capacity() < SHRINK_CAPACITY_MIN);
    }

    #[test]
    fn increments_of_locking_transactions_never_conflict() {
        let db = open();
        let keyspace = db.default_keyspace();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let tx = begin(&db);
                        let count = tx.get_for_update(&keyspace, "n").unwrap();
                        let count = count
                            .map_or(0, |count| u64::from_be_bytes(count[..].try_into().unwrap()));
                        tx.put(&keyspace, "n", (count + 1).to_be_bytes()).unwrap();
                        tx.commit(Durability::Buffered).unwrap();
                    }
                });
            }
        });
        let count = keyspace.get("n").unwrap().unwrap();
        assert_eq!(count[..], 200u64.to_be_bytes());
    }

    #[test]
    fn write_without_lock_is_a_conflict() {
        let db = open();
        let keyspace = db.default_keyspace();
        let tx = begin(&db);
        assert_eq!(tx.get_for_update(&keyspace, "a").unwrap(), None);
        keyspace.put("a", "other").unwrap();
        tx.put(&keyspace, "a", "own").unwrap();
        let committed = tx.commit(Durability::Buffered);
        assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
    }
}
