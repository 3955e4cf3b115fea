//! Optimistic, serializable transactions.
//!
//! 1. A transaction takes a snapshot. Its operations are collected in a write batch.
//! 2. Reads see the snapshot and the own writes (`own_writes.rs`). They add keys and ranges to the read set
//!    (`read_set.rs`).
//! 3. The commit adds a guard on each element of the read set to the batch. The commit leader writes the batch only if
//!    no commit after the snapshot has written or deleted a guarded key.
//!
//! The transaction then has the same result as if it had run at the moment of its commit. Transactions without writes are not
//! checked: their result is that of a run at the moment of their snapshot.

mod own_writes;
pub(crate) mod range;
mod read_set;
pub(crate) mod retry;

use std::ops::RangeBounds;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, Mutex, Ordering, std_atomic};

use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::db::transaction::own_writes::OwnWrites;
use crate::db::transaction::range::TransactionRange;
use crate::db::transaction::read_set::ReadSet;
use crate::db::write::write;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::iter::operand_fold::OperandFold;
use crate::iter::range::Range;
use crate::memtable::Memtable;
use crate::options::write::WriteOptions;
use crate::tree::Tree;
use crate::write::batch::{BatchPosition, WriteBatch};

/// Reads and writes of several keyspaces that take effect together, as if no other commit ran meanwhile.
///
/// [`Db::transaction`](crate::Db::transaction) starts a transaction. Reads see the state of the database at the start and the
/// own writes. [`Transaction::commit`] fails with [`Error::Conflict`] if another commit has written a key or a range that the
/// transaction read. [`Db::transact`](crate::Db::transact) then retries. Committed transactions are serializable.
/// A transaction without writes never fails because of a conflict.
///
/// Dropping a transaction discards it. A transaction keeps a [`Snapshot`] until it ends.
/// Its writes, and the keys and ranges that it has read, are limited to
/// [`BATCH_BYTES_MAX`](crate::limits::BATCH_BYTES_MAX) bytes each. To read many keys without writes, use a [`Snapshot`].
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
    /// Not locked during reads of the database.
    writes: Mutex<TransactionWrites>,
    /// Not locked during reads of the database.
    reads: Mutex<ReadSet>,
}

#[derive(Debug, Default)]
struct TransactionWrites {
    batch: WriteBatch,
    /// The operations of the batch, for reads.
    own: OwnWrites,
    /// Savepoints in ascending order, with the end of the batch.
    savepoints: Vec<(Savepoint, BatchPosition)>,
}

/// A point in a transaction to which [`Transaction::rollback_to`] returns.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// let keyspace = db.default_keyspace();
/// let tx = db.transaction();
/// let empty: lsmx::Savepoint = tx.savepoint();
/// tx.put(&keyspace, "key", "value")?;
/// tx.rollback_to(empty)?;
/// assert_eq!(tx.get(&keyspace, "key")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(u64);

impl Savepoint {
    /// Returns a savepoint that is different from all others of this process, and greater than earlier ones.
    fn new() -> Savepoint {
        static NEXT: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
        Savepoint(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Transaction {
    pub(crate) fn new(snapshot: Snapshot) -> Transaction {
        Transaction { snapshot, writes: Mutex::default(), reads: Mutex::default() }
    }

    fn env(&self) -> &Env {
        &self.snapshot.inner().state.env
    }

    /// Returns the value of a key.
    ///
    /// The commit fails if another commit has written the key. A read that only needs own writes adds no such condition.
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
    /// The errors of [`Snapshot::get`]; [`Error::TooLarge`] if the transaction has read too many keys.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.read_key(keyspace, key.as_ref(), false)
    }

    /// Returns the value of a key. The commit fails if another commit has written the key, even if the own writes alone
    /// determine the value.
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
    /// The errors of [`Transaction::get`].
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
        self.snapshot.check_keyspace_visible(keyspace)?;
        let (tree, keys) = (keyspace.tree(), keys.into_iter().collect::<Vec<K>>());
        let own = keys.iter().map(|key| self.own_versions(tree, key.as_ref(), false));
        let own = own.collect::<Result<Vec<_>>>()?;
        let incomplete = keys.iter().zip(&own).filter(|(_, own)| !own.is_complete);
        let incomplete = incomplete.map(|(key, _)| key.as_ref());
        let mut values = self.snapshot.multi_get(keyspace, incomplete)?.into_iter();
        let complete = |(key, mut own): (&K, OwnVersions)| {
            if !own.is_complete {
                own.add_base(self.snapshot.seq(), values.next().flatten());
            }
            own.fold.take_value(&tree.merge_resolver, key.as_ref())
        };
        keys.iter().zip(own).map(complete).collect()
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
        self.with_own_writes(keyspace, self.snapshot.range(keyspace, range))
    }

    /// Returns an iterator over the entries whose keys start with `prefix`; see [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange<'_> {
        self.with_own_writes(keyspace, self.snapshot.prefix(keyspace, prefix))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::ForeignKeyspace`], [`Error::OpenedReadOnly`], [`Error::Closed`]. The transaction stays
    /// usable, without this write.
    pub fn put(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.add(keyspace, |batch| batch.put(keyspace, key, value))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// The errors of [`Transaction::put`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.add(keyspace, |batch| batch.delete(keyspace, key))
    }

    /// Deletes all keys of a range, including own writes. The keys are not read; see [`Keyspace::delete_range`].
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
    /// The errors of [`Transaction::put`]; [`Error::NoMergeOperator`].
    pub fn merge(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.add(keyspace, |batch| batch.merge(keyspace, key, operand))
    }

    /// Returns a savepoint for [`Transaction::rollback_to`].
    pub fn savepoint(&self) -> Savepoint {
        let mut writes = self.writes.lock();
        let position = writes.batch.position();
        match writes.savepoints.last() {
            Some((last, at)) if *at == position => *last,
            _ => {
                let savepoint = Savepoint::new();
                writes.savepoints.push((savepoint, position));
                savepoint
            }
        }
    }

    /// Discards all writes after a savepoint. Later savepoints become invalid. The reads are still checked by the commit.
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
    /// [`Error::UnknownSavepoint`].
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        let mut writes = self.writes.lock();
        let found = writes.savepoints.binary_search_by_key(&savepoint, |(known, _)| *known);
        let index = found.map_err(|_| Error::UnknownSavepoint)?;
        let position = writes.savepoints[index].1;
        writes.savepoints.truncate(index + 1);
        writes.own.truncate(position);
        writes.batch.truncate(position);
        Ok(())
    }

    /// Commits all writes, if no other commit has written a key or a range that the transaction read.
    ///
    /// A transaction without writes returns at once: it checks and syncs nothing.
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
    /// - [`Error::Conflict`]: another commit has written a key that was read. The transaction is not committed.
    /// - [`Error::ConflictUnknown`]: the transaction is older than the write history of a keyspace; see
    ///   [`WriteBatch::guard`]. The first range read of an open database starts the recording of the history for ranges. The
    ///   transaction is not committed.
    /// - The other errors of [`Db::write`](crate::Db::write).
    pub fn commit(self, options: impl Into<WriteOptions>) -> Result<()> {
        let Transaction { snapshot, writes, reads } = self;
        let TransactionWrites { mut batch, .. } = writes.into_inner();
        if batch.is_empty() {
            return Ok(());
        }
        let read_seq = match failpoint::is_on(Failpoint::ReadsValidatedFromCommit) {
            true => snapshot.inner().state.sequence.published(),
            false => snapshot.seq(),
        };
        reads.into_inner().add_guards(&mut batch, read_seq);
        write(snapshot.inner(), batch, options.into())
    }

    /// Adds an operation to the batch.
    fn add(&self, keyspace: &Keyspace, add: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        self.snapshot.check_keyspace_visible(keyspace)?;
        self.snapshot.inner().check_writable()?;
        let mut writes = self.writes.lock();
        add(&mut writes.batch);
        writes.batch.take_error()
    }

    fn read_key(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<Option<Slice>> {
        self.snapshot.check_keyspace_visible(keyspace)?;
        let mut own = self.own_versions(keyspace.tree(), key, is_always_checked)?;
        if !own.is_complete {
            own.add_base(self.snapshot.seq(), self.snapshot.get(keyspace, key)?);
        }
        own.fold.take_value(&keyspace.tree().merge_resolver, key)
    }

    /// Returns the own versions of a key. If older versions are needed, or if `is_always_checked`, adds the key to the
    /// read set.
    fn own_versions(
        &self,
        tree: &Arc<Tree>,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<OwnVersions> {
        let mut own = OwnVersions::default();
        if let Some((memtable, _)) = self.own_writes(tree) {
            let covering = memtable.newest_covering_seq(key, SeqNo::MAX);
            let found_base = memtable.visit_versions(key, SeqNo::MAX, |seq, kind, value| {
                covering < Some(seq) && own.fold.push_older(seq, kind, value)
            });
            own.is_complete = found_base || covering.is_some();
        }
        if is_always_checked || !own.is_complete {
            self.reads.lock().add_key(tree, key)?;
        }
        Ok(own)
    }

    /// Returns the own writes to a tree and the sequence number of the last one.
    fn own_writes(&self, tree: &Tree) -> Option<(Arc<Memtable>, SeqNo)> {
        let mut writes = self.writes.lock();
        let TransactionWrites { batch, own, .. } = &mut *writes;
        own.of_tree(batch, tree)
    }

    /// Adds the own writes to a range of the snapshot, and the range to the read set.
    fn with_own_writes(&self, keyspace: &Keyspace, range: Range) -> TransactionRange<'_> {
        let (tree, span) = (keyspace.tree(), range.key_span());
        if self.snapshot.check_keyspace_visible(keyspace).is_err() {
            return TransactionRange::new(range, span, None);
        }
        self.snapshot.inner().state.guard_history.record_prefixes();
        let number = match self.reads.lock().add_span(tree, span.clone()) {
            Ok(number) => number,
            Err(error) => {
                return TransactionRange::new(Range::from_error(error, tree), span, None);
            }
        };
        let range = match self.own_writes(tree) {
            Some((memtable, last_seq)) => range.with_own_writes(memtable, last_seq),
            None => range,
        };
        TransactionRange::new(range, span, Some((&self.reads, number)))
    }
}

/// The own versions of a key, and whether older versions cannot affect its value.
#[derive(Debug, Default)]
struct OwnVersions {
    fold: OperandFold,
    is_complete: bool,
}

impl OwnVersions {
    /// Adds the value of the key in the snapshot with sequence number `seq`.
    fn add_base(&mut self, seq: SeqNo, value: Option<Slice>) {
        let kind = if value.is_some() { EntryKind::Put } else { EntryKind::Delete };
        self.fold.push_older(seq, kind, value.unwrap_or_default());
    }
}
