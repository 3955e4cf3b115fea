//! Optimistic, serializable transactions.
//!
//! 1. A transaction takes a snapshot. Its operations are collected in a write batch.
//! 2. Reads see the snapshot and the transaction's own writes, which are not committed yet (`own_writes.rs`). Each read
//!    adds its key or range to the read set (`read_set.rs`).
//! 3. The commit adds a guard on each element of the read set to the batch. The commit leader writes the batch only if
//!    no commit after the snapshot has written or deleted a guarded key.
//!
//! The transaction then has the same result as if it had run at the moment of its commit. Transactions without writes and locks
//! are not checked: their result is that of a run at the moment of their snapshot.
//!
//! Guards do not check expiry. A value that a transaction has read may have expired before its commit. The result may then
//! differ from that of a run at the moment of the commit.
//!
//! A locking transaction also locks each key that it writes or reads for update (`lock_table.rs`). A read for update
//! returns the newest value of the key, so that writes of an earlier owner of the lock cause no conflict. The commit
//! still checks guards, because other writers do not use the locks.

pub(crate) mod counters;
pub(crate) mod lock_table;
mod memory;
mod own_writes;
pub(crate) mod range;
mod read_set;
pub(crate) mod retry;
pub(crate) mod state;

use std::ops::RangeBounds;
use std::time::{Duration, SystemTime};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, Mutex};

use crate::db::inner::DbInner;
use crate::db::keyspace::Keyspace;
use crate::db::point_read::{ReadToUpdate, read_to_update};
use crate::db::snapshot::Snapshot;
use crate::db::transaction::lock_table::{KeyWait, TransactionLocks};
use crate::db::transaction::memory::TransactionMemory;
use crate::db::transaction::own_writes::OwnVersions;
use crate::db::transaction::range::{ReadExtent, TransactionRange};
use crate::db::transaction::state::{Savepoint, TransactionState};
use crate::db::write::write;
use crate::env::duration_us;
use crate::error::Result;
use crate::iter::range::Range;
use crate::lookup::point::ReadScope;
use crate::options::write::WriteOptions;
use crate::tree::counters::add;
use crate::write::batch::WriteBatch;
use crate::write::group::check_reads;

/// Reads and writes of several keyspaces that take effect together, as if no other commit ran meanwhile.
///
/// [`Db::transaction`](crate::Db::transaction) starts a transaction. Reads see the state of the database at the start, and the
/// writes of the transaction itself. [`Transaction::commit`] fails with [`Error::Conflict`](crate::Error::Conflict) if another
/// commit has written a key or a range that the transaction read. [`Db::transact`](crate::Db::transact) then retries. A
/// transaction without writes and without locks never fails because of a conflict.
///
/// Committed transactions are serializable, with one exception: the commit does not check whether values have expired. A
/// transaction may read a value and commit after the value has expired, although a transaction that has committed before it
/// found no value.
///
/// All reads decide at the time of the start which values have expired. A transaction with locks decides at the time of the
/// call if it reads a key that it has locked, except in ranges. This also applies to its own writes.
///
/// Dropping a transaction discards it. A transaction keeps a [`Snapshot`] until it ends.
///
/// The writes of a transaction, and the keys and ranges that it has read, stay in memory until it ends. All transactions
/// together may use a quarter of the block cache, but at least 256 KiB, of a database with a [memory
/// budget](crate::Options::memory_budget), and 8 GiB without one. The first 16 KiB of each transaction do not count in this
/// limit and in the budget. A call that would exceed the limit fails with [`Error::TooLarge`](crate::Error::TooLarge). The encoded
/// writes of one transaction are limited to [`BATCH_BYTES_MAX`](crate::limits::BATCH_BYTES_MAX). To read many keys without
/// writes, use a [`Snapshot`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// use lsmx::{Durability, Error};
///
/// let accounts = db.default_keyspace();
/// let tx = db.transaction();
/// assert_eq!(tx.get(&accounts, "ada")?, None);
/// tx.put(&accounts, "ada", "100")?;
/// assert_eq!(tx.get(&accounts, "ada")?.as_deref(), Some(&b"100"[..]));
///
/// accounts.put("ada", "7")?; // another client
/// assert!(matches!(tx.commit(Durability::Sync), Err(Error::Conflict { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Transaction {
    snapshot: Snapshot,
    /// Not locked during reads of the snapshot.
    state: Mutex<TransactionState>,
    /// Locks of keys, if it is a locking transaction.
    locks: Option<TransactionLocks>,
}

impl Transaction {
    /// Starts a transaction that reads a new snapshot.
    pub(crate) fn new(snapshot: Snapshot) -> Transaction {
        let inner = snapshot.inner();
        add(&inner.transactions.begun, 1);
        let cache = Arc::clone(&inner.state.tables.cache);
        let memory = TransactionMemory::new(cache, inner.memory.transaction_bytes_max());
        let state = Mutex::new(TransactionState::new(memory, snapshot.read_point().time_us));
        Transaction { snapshot, state, locks: None }
    }

    /// Makes the transaction lock keys. Its calls wait at most `timeout` for a key.
    pub(crate) fn with_locks(mut self, timeout: Duration) -> Transaction {
        let timeout_us = duration_us(timeout);
        self.locks = Some(TransactionLocks::new(&self.inner().lock_table, timeout_us));
        self
    }

    pub(crate) fn inner(&self) -> &DbInner {
        self.snapshot.inner()
    }

    /// Returns the snapshot that the transaction reads.
    #[cfg(feature = "tokio")]
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the value of a key.
    ///
    /// The commit fails if another commit has written the key. It does not check a key whose value depends only on writes of
    /// the transaction itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keyspace = db.default_keyspace();
    /// keyspace.put("key", "committed")?;
    /// let tx = db.transaction();
    /// keyspace.put("key", "later")?;
    /// assert_eq!(tx.get(&keyspace, "key")?.as_deref(), Some(&b"committed"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`]; [`Error::TooLarge`](crate::Error::TooLarge) if transactions use too much memory.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.read_key(keyspace, key.as_ref(), false)
    }

    /// Returns the value of a key. The commit fails if another commit has written the key, even if the value depends only on
    /// writes of the transaction itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::{Durability, Error};
    ///
    /// let leases = db.default_keyspace();
    /// let tx = db.transaction();
    /// tx.put(&leases, "owner", "me")?; // alone, this would replace any other value
    /// tx.get_for_update(&leases, "owner")?;
    /// leases.put("owner", "another client")?;
    /// assert!(matches!(tx.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Transaction::get`]; in a locking transaction [`Error::LockTimeout`](crate::Error::LockTimeout) and
    /// [`Error::Deadlock`](crate::Error::Deadlock). After any other error, a locking transaction may have locked the key.
    pub fn get_for_update(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        self.read_key(keyspace, key.as_ref(), true)
    }

    /// Returns the values of many keys, in the order of `keys`; see [`Keyspace::multi_get`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keyspace = db.default_keyspace();
    /// let tx = db.transaction();
    /// tx.put(&keyspace, "a", "own")?;
    /// let values = tx.multi_get(&keyspace, ["a", "b"])?;
    /// assert_eq!((values[0].as_deref(), values[1].as_deref()), (Some(&b"own"[..]), None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Transaction::get`]; one failed lookup fails the call.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        if self.locks.is_some() {
            return keys.iter().map(|key| self.get(keyspace, key)).collect();
        }
        let own = self.begin_reads(keyspace, &keys)?;
        let incomplete = keys.iter().zip(&own).filter(|(_, own)| !own.is_complete);
        let incomplete = incomplete.map(|(key, _)| key.as_ref());
        let base = self.snapshot.multi_get(keyspace, incomplete)?;
        self.finish_reads(keyspace, &keys, own, base)
    }

    /// Returns an iterator over a range of keys.
    ///
    /// The commit fails if another commit has written or deleted a key in the part of the range that was read; see
    /// [`TransactionRange`]. For a keyspace of another database it returns one error.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keyspace = db.default_keyspace();
    /// keyspace.put("b", "committed")?;
    /// let tx = db.transaction();
    /// tx.put(&keyspace, "a", "own")?;
    /// let keys = tx.range(&keyspace, "a".."z").map(|entry| Ok(entry?.0));
    /// assert_eq!(keys.collect::<lsmx::Result<Vec<_>>>()?, ["a", "b"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> TransactionRange<'_> {
        TransactionRange::new(self.begin_range(keyspace, self.snapshot.range(keyspace, range)))
    }

    /// Returns an iterator over the entries whose keys start with `prefix`; see [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange<'_> {
        TransactionRange::new(self.begin_range(keyspace, self.snapshot.prefix(keyspace, prefix)))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge), [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace),
    /// [`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped), [`Error::OpenedReadOnly`](crate::Error::OpenedReadOnly),
    /// [`Error::Closed`](crate::Error::Closed); in a locking transaction [`Error::LockTimeout`](crate::Error::LockTimeout)
    /// and [`Error::Deadlock`](crate::Error::Deadlock). The transaction stays usable, without this write. A locking
    /// transaction may have locked the key before another error, such as `TooLarge`. The key then stays locked until the
    /// transaction ends.
    pub fn put(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.lock_key_to_write(keyspace, key.as_ref())?;
        self.add(keyspace, |batch| batch.put(keyspace, key, value))
    }

    /// Writes a value that expires after `ttl`; see [`Keyspace::put_with_ttl`]. The time is counted from this call. In a
    /// locking transaction, it is counted from the time at which the key is locked.
    ///
    /// # Errors
    /// The errors of [`Transaction::put`]; [`Error::ExpiryRefused`](crate::Error::ExpiryRefused).
    pub fn put_with_ttl(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.lock_key_to_write(keyspace, key.as_ref())?;
        self.add(keyspace, |batch| batch.put_with_ttl(keyspace, key, value, ttl))
    }

    /// Writes a value that expires at a time; see [`Keyspace::put_until`].
    ///
    /// # Errors
    /// The errors of [`Transaction::put_with_ttl`].
    pub fn put_until(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires: SystemTime,
    ) -> Result<()> {
        self.lock_key_to_write(keyspace, key.as_ref())?;
        self.add(keyspace, |batch| batch.put_until(keyspace, key, value, expires))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// The errors of [`Transaction::put`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.lock_key_to_write(keyspace, key.as_ref())?;
        self.add(keyspace, |batch| batch.delete(keyspace, key))
    }

    /// Deletes all keys of a range, including earlier writes of the transaction. The keys are not read; see
    /// [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keyspace = db.default_keyspace();
    /// keyspace.put("b", "committed")?;
    /// let tx = db.transaction();
    /// tx.put(&keyspace, "a", "own")?;
    /// tx.delete_range::<&str>(&keyspace, ..)?;
    /// assert!(tx.range::<&str>(&keyspace, ..).next().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Transaction::put`].
    pub fn delete_range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Result<()> {
        self.add(keyspace, |batch| batch.delete_range(keyspace, range))
    }

    /// Writes a merge operand, without reading the key; see [`Keyspace::merge`].
    ///
    /// # Errors
    /// The errors of [`Transaction::put`]; [`Error::NoMergeOperator`](crate::Error::NoMergeOperator).
    pub fn merge(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.lock_key_to_write(keyspace, key.as_ref())?;
        self.add(keyspace, |batch| batch.merge(keyspace, key, operand))
    }

    /// Returns a savepoint for [`Transaction::rollback_to`].
    pub fn savepoint(&self) -> Savepoint {
        self.state.lock().savepoint()
    }

    /// Discards all writes after a savepoint. Later savepoints become invalid. The commit still checks the reads after the
    /// savepoint, and keys stay locked.
    ///
    /// The next read takes time in proportion to the remaining writes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keyspace = db.default_keyspace();
    /// let tx = db.transaction();
    /// tx.put(&keyspace, "kept", "1")?;
    /// let savepoint = tx.savepoint();
    /// tx.put(&keyspace, "discarded", "2")?;
    /// tx.rollback_to(savepoint)?;
    /// assert_eq!(tx.range::<&str>(&keyspace, ..).count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownSavepoint`](crate::Error::UnknownSavepoint).
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.state.lock().roll_back_to(savepoint)
    }

    /// Commits all writes, if no other commit has written a key or a range that the transaction read.
    ///
    /// The end of the call releases all locks, also after an error. After [`Error::Undecided`](crate::Error::Undecided), the
    /// writes may become visible later, when the keys are no longer locked. Another transaction may then lock a key and read
    /// its old value. The commit of that transaction fails with [`Error::Conflict`](crate::Error::Conflict) if the writes have
    /// taken effect before it.
    ///
    /// A transaction without writes syncs nothing. Its reads are checked only if it is a locking transaction. In other
    /// transactions, all reads show the same state.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::{Durability, Error};
    ///
    /// let keyspace = db.default_keyspace();
    /// let (one, two) = (db.transaction(), db.transaction());
    /// for tx in [&one, &two] {
    ///     // Each transaction reads the key that the other one writes.
    ///     tx.multi_get(&keyspace, ["a", "b"])?;
    /// }
    /// one.put(&keyspace, "a", "1")?;
    /// two.put(&keyspace, "b", "2")?;
    /// one.commit(Durability::Buffered)?;
    /// assert!(matches!(two.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Conflict`](crate::Error::Conflict): another commit has written a key that was read. The transaction is not
    ///   committed.
    /// - [`Error::ConflictUnknown`](crate::Error::ConflictUnknown): a read is older than the write history of its keyspace; see
    ///   [`WriteBatch::guard`]. Locks do not prevent this error. The history for ranges begins with the first range that a transaction reads after
    ///   the open. The error also occurs if the transaction has read keys in the key range of a later ingest. The transaction
    ///   is not committed.
    /// - [`Error::KeyspaceDropped`](crate::Error::KeyspaceDropped): the transaction has writes or is a locking transaction,
    ///   and a keyspace that it has read or written has been dropped.
    /// - The other errors of [`Db::write`](crate::Db::write).
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<()> {
        let (inner, batch) = (self.inner(), self.take_batch());
        let has_writes = !batch.is_empty();
        let committed = match has_writes {
            true => write(inner, batch, options.into()),
            false if failpoint::is_on(Failpoint::LockedReadsNotChecked) => Ok(()),
            false => check_reads(&inner.state, &batch.guards),
        };
        inner.transactions.record_commit(has_writes, &committed);
        committed
    }

    /// Removes and returns all writes, with guards on all reads. Returns `None` without writes.
    #[cfg(any(feature = "tokio", test))]
    pub(crate) fn take_guarded_batch(&self) -> Option<WriteBatch> {
        Some(self.take_batch()).filter(|batch| !batch.is_empty())
    }

    /// Removes and returns all writes, with guards on the reads that the commit checks.
    pub(crate) fn take_batch(&self) -> WriteBatch {
        let (mut batch, reads) = self.state.lock().take_writes_and_reads();
        // All reads show the same snapshot. A read-only database does not change, although the memtables of a follower's view
        // may contain later commits.
        if batch.is_empty() && (self.locks.is_none() || self.inner().read_only.is_some()) {
            return batch;
        }
        let read_seq = match failpoint::is_on(Failpoint::ReadsValidatedFromCommit) {
            true => self.inner().state.sequence.published(),
            false => self.snapshot.seq(),
        };
        batch.guards = reads.into_guards(read_seq);
        batch
    }

    /// Adds an operation to the batch.
    fn add(&self, keyspace: &Keyspace, add: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        self.snapshot.check_keyspace_visible(keyspace)?;
        self.inner().check_writable()?;
        self.state.lock().add_write(add)
    }

    fn read_key(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<Option<Slice>> {
        if let Some(locks) = &self.locks
            && (is_always_checked || locks.holds(keyspace.tree(), key))
        {
            return self.read_locked_key(keyspace, key, is_always_checked);
        }
        let mut own = self.begin_read(keyspace, key, is_always_checked)?;
        if !own.is_complete {
            own.add_base(self.snapshot.seq(), self.snapshot.get(keyspace, key)?);
        }
        own.take_value(keyspace.tree(), key)
    }

    /// Locks a key and returns its newest value.
    fn read_locked_key(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<Option<Slice>> {
        self.lock_key(keyspace, key)?;
        if let Some(own) = self.begin_locked_read(keyspace, key, is_always_checked)? {
            return own.take_value(keyspace.tree(), key);
        }
        let (tree, snapshot) = (keyspace.tree(), Some(&**self.snapshot.pinned()));
        let read = read_to_update(self.inner(), tree, key, snapshot, ReadScope::Storage)?;
        self.finish_locked_read(keyspace, key, read)
    }

    /// Returns the transaction's own versions of a locked key if they alone determine its value and the commit need not
    /// check the key. Otherwise, returns `None`, and the caller must read the key and call
    /// [`Transaction::finish_locked_read`].
    pub(crate) fn begin_locked_read(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<Option<OwnVersions>> {
        // A keyspace of another database may have the id of the keyspace whose key is locked.
        self.snapshot.check_keyspace_visible(keyspace)?;
        self.inner().check_open()?;
        if is_always_checked {
            return Ok(None);
        }
        let own = self.state.lock().own_versions(keyspace.tree(), key);
        Ok(Some(own).filter(|own| own.is_complete))
    }

    /// Adds a locked key to the read set. `read` is its newest committed state. Returns the value after the
    /// transaction's own writes.
    pub(crate) fn finish_locked_read(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        read: ReadToUpdate,
    ) -> Result<Option<Slice>> {
        let tree = keyspace.tree();
        let mut own = self.state.lock().add_locked_read(tree, key, read.guard_seq)?;
        if !own.is_complete {
            own.add_base(read.guard_seq, read.value);
        }
        own.take_value(tree, key)
    }

    /// Returns whether the transaction has locked a key.
    #[cfg(feature = "tokio")]
    pub(crate) fn holds_lock(&self, keyspace: &Keyspace, key: &[u8]) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.holds(keyspace.tree(), key))
    }

    /// Locks a key before a write if it is a locking transaction. If the database is not writable, locks no key and fails.
    fn lock_key_to_write(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        self.inner().check_writable()?;
        self.lock_key(keyspace, key)
    }

    /// Locks a key if it is a locking transaction.
    fn lock_key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        self.begin_lock(keyspace, key)?.map_or(Ok(()), KeyWait::wait)
    }

    /// Begins to lock a key if it is a locking transaction. Returns the wait for the key, or `None` if no wait is needed.
    pub(crate) fn begin_lock<'a>(
        &'a self,
        keyspace: &'a Keyspace,
        key: &[u8],
    ) -> Result<Option<KeyWait<'a>>> {
        let Some(locks) = &self.locks else { return Ok(None) };
        self.snapshot.check_keyspace_visible(keyspace)?;
        let tree = keyspace.tree();
        if locks.holds(tree, key) || failpoint::is_on(Failpoint::KeyNotLocked) {
            return Ok(None);
        }
        locks.begin_lock(&self.inner().lock_table, &self.state, tree, key)
    }

    /// Returns the versions of a key that the transaction has written. Adds the key to the read set if the value also
    /// depends on older versions, or if `is_always_checked`.
    pub(crate) fn begin_read(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<OwnVersions> {
        self.snapshot.check_keyspace_visible(keyspace)?;
        self.state.lock().begin_read(keyspace.tree(), key, is_always_checked)
    }

    /// Like [`Transaction::begin_read`], for many keys and with `is_always_checked` = false.
    pub(crate) fn begin_reads<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
    ) -> Result<Vec<OwnVersions>> {
        self.snapshot.check_keyspace_visible(keyspace)?;
        let mut state = self.state.lock();
        keys.iter().map(|key| state.begin_read(keyspace.tree(), key.as_ref(), false)).collect()
    }

    /// Returns the values of many keys. `base` contains the snapshot values of the keys whose own versions are
    /// incomplete.
    pub(crate) fn finish_reads<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
        own: Vec<OwnVersions>,
        base: Vec<Option<Slice>>,
    ) -> Result<Vec<Option<Slice>>> {
        let mut base = base.into_iter();
        let finish = |(key, mut own): (&K, OwnVersions)| {
            if !own.is_complete {
                own.add_base(self.snapshot.seq(), base.next().flatten());
            }
            own.take_value(keyspace.tree(), key.as_ref())
        };
        keys.iter().zip(own).map(finish).collect()
    }

    /// Adds the transaction's own writes to an iterator over the snapshot, and adds the range to the read set.
    pub(crate) fn begin_range(&self, keyspace: &Keyspace, range: Range) -> (Range, ReadExtent<'_>) {
        let tree = keyspace.tree();
        if self.snapshot.check_keyspace_visible(keyspace).is_err() {
            // `range` returns the error of the check.
            return (range, ReadExtent::default());
        }
        self.inner().state.guard_history.record_prefixes();
        let span = range.key_span();
        let begun = self.state.lock().begin_range(tree, range);
        match begun {
            Ok((number, range)) => (range, ReadExtent::new(&self.state, number, span)),
            Err(error) => (Range::from_error(error, tree), ReadExtent::default()),
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(locks) = &self.locks {
            locks.release(&self.inner().lock_table);
        }
    }
}

#[cfg(test)]
mod tests {
    use lsmx_base::sync::Arc;

    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::error::Error;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;
    use crate::write::group::check_ranges;

    /// The commit leader finds each write that was made after the check of the ranges, and no other write.
    #[test]
    fn writes_between_range_check_and_commit_are_found() {
        type Write = fn(&Keyspace) -> Result<()>;
        let writes: [(Write, bool); 6] = [
            (|_| Ok(()), false),
            (|keyspace| keyspace.put("a", "x"), false),
            (|keyspace| keyspace.put("d", "x"), false),
            (|keyspace| keyspace.put("b", "x"), true),
            (|keyspace| keyspace.delete("c"), true),
            (|keyspace| keyspace.delete_range("a".."bb"), true),
        ];
        for (number, (write, conflicts)) in writes.into_iter().enumerate() {
            for flushes in 0..8 {
                let is_flushed = |point: u32| flushes >> point & 1 == 1;
                let options = Options::default().background(Background::Inline);
                let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
                let keyspace = db.default_keyspace();
                for key in ["a", "b", "c", "d"] {
                    keyspace.put(key, "old").unwrap();
                }
                let tx = db.transaction();
                assert_eq!(tx.range(&keyspace, "b".."d").count(), 2);
                tx.put(&keyspace, "result", "x").unwrap();
                let mut batch = tx.take_guarded_batch().unwrap();
                keyspace.put("e", "before the check").unwrap();
                if is_flushed(0) {
                    db.flush().unwrap();
                }
                check_ranges(&db.inner().state, &mut batch.guards).unwrap();
                if is_flushed(1) {
                    db.flush().unwrap();
                }
                write(&keyspace).unwrap();
                if is_flushed(2) {
                    db.flush().unwrap();
                }
                let committed = db.inner().committer.commit(batch, false, 0, None);
                let is_conflict = matches!(committed, Err(Error::Conflict { .. }));
                assert_eq!(is_conflict, conflicts, "{number} {flushes:b}: {committed:?}");
                assert_eq!(committed.is_ok(), !conflicts, "{number} {flushes:b}: {committed:?}");
            }
        }
    }

    #[test]
    fn range_check_refuses_newer_write() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        let tx = db.transaction();
        assert_eq!(tx.range(&keyspace, "b".."d").count(), 0);
        tx.put(&keyspace, "result", "x").unwrap();
        keyspace.put("c", "newer").unwrap();
        let mut batch = tx.take_guarded_batch().unwrap();
        let checked = check_ranges(&db.inner().state, &mut batch.guards);
        assert!(matches!(checked, Err(Error::Conflict { .. })), "{checked:?}");
    }
}
