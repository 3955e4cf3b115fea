//! Locks of keys that locking transactions hold until they end.
//!
//! A transaction waits for a key that another transaction has locked. Before it waits, it searches for a deadlock: it
//! follows the keys that the owners of locks wait for. Every deadlock is found, because the last transaction that begins to
//! wait closes the cycle.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering, Signal};

use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::tree::Tree;

/// Number of a locking transaction.
type TransactionId = u64;

/// Keyspace id and key.
type LockedKey = (u32, Bytes);

/// Locks of all locking transactions of a database.
#[derive(Debug)]
pub(crate) struct LockTable {
    state: Mutex<LockTableState>,
    /// Notified when locks are released.
    released: Signal,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct LockTableState {
    /// Owner of each locked key, with the tree of the key.
    owners: HashMap<LockedKey, (TransactionId, Arc<Tree>)>,
    /// Keys that transactions wait for. The threads of a transaction may wait for several keys.
    waiting: HashMap<TransactionId, Vec<LockedKey>>,
}

impl LockTable {
    pub(crate) fn new() -> LockTable {
        let (state, released) = (Mutex::default(), Signal::new());
        LockTable { state, released, next_id: AtomicU64::new(0) }
    }
}

impl LockTableState {
    /// Locks a free key. Returns whether the transaction owns the key now.
    fn try_lock(&mut self, id: TransactionId, tree: &Arc<Tree>, key: &LockedKey) -> bool {
        match self.owners.get(key) {
            Some((owner, _)) => *owner == id,
            None => {
                self.owners.insert(key.clone(), (id, Arc::clone(tree)));
                true
            }
        }
    }

    /// Returns the keys of a cycle that a wait of a transaction for `key` would close, or `None` without a cycle. The first
    /// key is `key`. The owner of each key waits for the next key, and the transaction owns the last key.
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
    /// Returns the locks of a new transaction, whose calls wait at most `timeout_us` for a key.
    pub(super) fn new(table: &LockTable, timeout_us: u64) -> TransactionLocks {
        let id = table.next_id.fetch_add(1, Ordering::Relaxed);
        TransactionLocks { id, timeout_us, held: Mutex::default() }
    }

    /// Returns whether the transaction has locked a key.
    pub(super) fn holds(&self, tree: &Tree, key: &[u8]) -> bool {
        self.held.lock().contains(&(tree.id, Bytes::copy_from_slice(key)))
    }

    /// Begins to lock a key until [`TransactionLocks::release`]. Returns the wait for the key, or `None` if the transaction
    /// has locked it.
    ///
    /// # Errors
    /// [`Error::Deadlock`].
    pub(super) fn begin_lock<'a>(
        &'a self,
        table: &'a LockTable,
        tree: &'a Arc<Tree>,
        key: &[u8],
    ) -> Result<Option<KeyWait<'a>>> {
        let key: LockedKey = (tree.id, Bytes::copy_from_slice(key));
        let mut state = table.state.lock();
        if state.try_lock(self.id, tree, &key) {
            drop(state);
            self.held.lock().insert(key);
            return Ok(None);
        }
        if let Some(cycle) = state.find_cycle(self.id, &key)
            && !failpoint::is_on(Failpoint::DeadlockNotFound)
        {
            let cycle = cycle.iter().map(|key| state.describe(key)).collect();
            return Err(Error::Deadlock { cycle });
        }
        state.waiting.entry(self.id).or_default().push(key.clone());
        let limit_us = tree.env().now_us().saturating_add(self.timeout_us);
        Ok(Some(KeyWait { table, locks: self, tree, key, limit_us, is_waiting: true }))
    }

    /// Releases all locks.
    pub(super) fn release(&self, table: &LockTable) {
        let held = std::mem::take(&mut *self.held.lock());
        if held.is_empty() {
            return;
        }
        {
            let mut state = table.state.lock();
            for key in &held {
                state.owners.remove(key);
            }
        }
        table.released.notify();
    }
}

/// A wait of a transaction for a key that another transaction has locked. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct KeyWait<'a> {
    table: &'a LockTable,
    locks: &'a TransactionLocks,
    tree: &'a Arc<Tree>,
    key: LockedKey,
    /// End of the wait, in microseconds of the clock of the environment.
    limit_us: u64,
    /// Whether the lock table lists the wait.
    is_waiting: bool,
}

impl<'a> KeyWait<'a> {
    /// Returns the signal that is notified when locks are released.
    #[cfg(feature = "tokio")]
    pub(crate) fn signal(&self) -> &'a Signal {
        &self.table.released
    }

    /// Returns the end of the wait, in microseconds of the clock of the environment.
    #[cfg(feature = "tokio")]
    pub(crate) fn limit_us(&self) -> u64 {
        self.limit_us
    }

    /// Locks the key if it is free. Returns whether the transaction has locked it.
    pub(crate) fn try_lock(&mut self) -> bool {
        let is_locked = {
            let mut state = self.table.state.lock();
            let is_locked = state.try_lock(self.locks.id, self.tree, &self.key);
            if is_locked {
                // In the same step, so that no other search finds an owner that waits for its own key.
                state.remove_waiting(self.locks.id, &self.key);
            }
            is_locked
        };
        if is_locked {
            self.is_waiting = false;
            self.locks.held.lock().insert(self.key.clone());
        }
        is_locked
    }

    /// Blocks the thread until the key is locked.
    ///
    /// # Errors
    /// [`Error::LockTimeout`].
    pub(super) fn wait(mut self) -> Result<()> {
        let (env, signal, limit_us) = (self.tree.env(), &self.table.released, self.limit_us);
        match env.wait(WaitCause::KeyLock, signal, Some(limit_us), &mut || self.try_lock()) {
            true => Ok(()),
            false => Err(self.timeout_error()),
        }
    }

    /// Returns the error of a wait that has reached its end.
    pub(crate) fn timeout_error(&self) -> Error {
        Error::LockTimeout { keyspace: self.tree.name(), key: self.key.1.to_vec() }
    }
}

impl Drop for KeyWait<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.table.state.lock().remove_waiting(self.locks.id, &self.key);
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
