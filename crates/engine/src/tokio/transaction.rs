//! Asynchronous handle of a transaction.

use std::ops::RangeBounds;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::transaction::Transaction as BlockingTransaction;
use crate::db::transaction::range::ReadExtent;
use crate::db::transaction::state::Savepoint;
use crate::error::Result;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::keyspace::Keyspace;
use crate::tokio::range::Range;
use crate::tokio::reads;

/// Reads and writes of several keyspaces that take effect together, see [`crate::Transaction`].
///
/// Writes, savepoints and rollbacks change only memory of the transaction, so they are not asynchronous.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # let db = lsmx::tokio::Db::open(&path, lsmx::Options::default()).await?;
/// use lsmx::{Durability, Error};
///
/// let keyspace = db.default_keyspace();
/// let tx = db.transaction().await?;
/// assert_eq!(tx.get(&keyspace, "key").await?, None);
/// tx.put(&keyspace, "key", "own")?;
/// assert_eq!(tx.get(&keyspace, "key").await?.as_deref(), Some(&b"own"[..]));
///
/// keyspace.put("key", "other").await?;
/// assert!(matches!(tx.commit(Durability::Sync).await, Err(Error::Conflict { .. })));
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Debug)]
pub struct Transaction {
    transaction: BlockingTransaction,
    /// Dropped after `transaction`, see [`AsyncDbInner`].
    db: Arc<AsyncDbInner>,
}

impl Transaction {
    pub(crate) fn new(transaction: BlockingTransaction, db: Arc<AsyncDbInner>) -> Transaction {
        Transaction { transaction, db }
    }

    /// Returns the value of a key; see [`crate::Transaction::get`].
    ///
    /// # Errors
    /// See [`crate::Transaction::get`].
    pub async fn get(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<Option<Slice>> {
        self.read_key(keyspace, key.as_ref(), false).await
    }

    /// Returns the value of a key. The commit fails if another commit has written the key, even if the value depends
    /// only on writes of the transaction itself; see [`crate::Transaction::get_for_update`].
    ///
    /// # Errors
    /// See [`crate::Transaction::get`].
    pub async fn get_for_update(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<Option<Slice>> {
        self.read_key(keyspace, key.as_ref(), true).await
    }

    /// Returns the blocking transaction.
    pub(super) fn as_blocking(&self) -> &BlockingTransaction {
        &self.transaction
    }

    /// Returns the shared state of the asynchronous handles.
    pub(super) fn db(&self) -> &Arc<AsyncDbInner> {
        &self.db
    }

    async fn read_key(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<Option<Slice>> {
        let keyspace = keyspace.as_blocking();
        let mut own = self.transaction.begin_read(keyspace, key, is_always_checked)?;
        if !own.is_complete {
            let (snapshot, options) = (self.transaction.snapshot(), ReadOptions::default());
            let base = reads::get(&self.db, keyspace, Some(snapshot), key, &options).await?;
            own.add_base(snapshot.seq(), base);
        }
        own.take_value(keyspace.tree(), key)
    }

    /// Returns the values of many keys, in the order of `keys`; see [`crate::Transaction::multi_get`].
    ///
    /// # Errors
    /// See [`crate::Transaction::get`]. An error for one key fails the call.
    pub fn multi_get<K: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        async move {
            let keyspace = keyspace.as_blocking();
            let own = self.transaction.begin_reads(keyspace, &keys)?;
            let incomplete = keys.iter().zip(&own).filter(|(_, own)| !own.is_complete);
            let incomplete = incomplete.map(|(key, _)| key.as_ref().to_vec()).collect();
            let snapshot = Some(self.transaction.snapshot());
            let base = reads::multi_get(&self.db, keyspace, snapshot, incomplete).await?;
            self.transaction.finish_reads(keyspace, &keys, own, base)
        }
    }

    /// Returns a stream over the entries of a range; see [`crate::Transaction::range`].
    pub fn range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> TransactionRange<'_> {
        let keyspace = keyspace.as_blocking();
        let range = self.transaction.snapshot().range(keyspace, range);
        TransactionRange::new(self.transaction.begin_range(keyspace, range))
    }

    /// Returns a stream over the entries whose keys start with `prefix`; see [`crate::Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange<'_> {
        let keyspace = keyspace.as_blocking();
        let range = self.transaction.snapshot().prefix(keyspace, prefix);
        TransactionRange::new(self.transaction.begin_range(keyspace, range))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// See [`crate::Transaction::put`].
    pub fn put(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.transaction.put(keyspace.as_blocking(), key, value)
    }

    /// Writes a value that expires after `ttl`.
    ///
    /// # Errors
    /// See [`crate::Transaction::put_with_ttl`].
    pub fn put_with_ttl(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.transaction.put_with_ttl(keyspace.as_blocking(), key, value, ttl)
    }

    /// Writes a value that expires at a time.
    ///
    /// # Errors
    /// See [`crate::Transaction::put_with_ttl`].
    pub fn put_until(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires: SystemTime,
    ) -> Result<()> {
        self.transaction.put_until(keyspace.as_blocking(), key, value, expires)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// See [`crate::Transaction::put`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.transaction.delete(keyspace.as_blocking(), key)
    }

    /// Deletes all keys of a range; see [`crate::Transaction::delete_range`].
    ///
    /// # Errors
    /// See [`crate::Transaction::put`].
    pub fn delete_range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Result<()> {
        self.transaction.delete_range(keyspace.as_blocking(), range)
    }

    /// Writes a merge operand.
    ///
    /// # Errors
    /// See [`crate::Transaction::merge`].
    pub fn merge(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.transaction.merge(keyspace.as_blocking(), key, operand)
    }

    /// Returns a savepoint for [`Transaction::rollback_to`].
    pub fn savepoint(&self) -> Savepoint {
        self.transaction.savepoint()
    }

    /// Discards all writes after a savepoint; see [`crate::Transaction::rollback_to`].
    ///
    /// # Errors
    /// See [`crate::Transaction::rollback_to`].
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.transaction.rollback_to(savepoint)
    }

    /// Commits all writes, if no other commit has written a key or a range that the transaction read; see
    /// [`crate::Transaction::commit`].
    ///
    /// If the future is dropped, the transaction is either committed as a whole or discarded.
    ///
    /// # Errors
    /// See [`crate::Transaction::commit`].
    pub async fn commit(self, options: impl Into<WriteOptions> + Send) -> Result<()> {
        let (options, batch) = (options.into(), self.transaction.take_guarded_batch());
        let has_writes = batch.is_some();
        let committed = match batch {
            Some(batch) => self.db.write(batch, options).await,
            None => Ok(()),
        };
        self.db.db_inner().transactions.record_commit(has_writes, &committed);
        committed
    }
}

/// [`Stream`] over the entries of a range that a transaction sees, see [`crate::TransactionRange`].
///
/// The commit checks the part of the range whose entries were returned. It does not check entries that were only read
/// ahead.
#[derive(Debug)]
pub struct TransactionRange<'tx> {
    range: Range,
    extent: ReadExtent<'tx>,
}

impl<'tx> TransactionRange<'tx> {
    fn new((range, extent): (crate::iter::range::Range, ReadExtent<'tx>)) -> TransactionRange<'tx> {
        TransactionRange { range: Range::new(range), extent }
    }

    /// Returns the next entry from the front. Cancel safe.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn next(&mut self) -> Option<Result<(Slice, Slice)>> {
        let entry = self.range.next().await;
        self.extent.record(entry.as_ref(), false);
        entry
    }

    /// Returns the next entry from the back. Cancel safe.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn next_back(&mut self) -> Option<Result<(Slice, Slice)>> {
        let entry = self.range.next_back().await;
        self.extent.record(entry.as_ref(), true);
        entry
    }
}

impl Stream for TransactionRange<'_> {
    type Item = Result<(Slice, Slice)>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let entry = ready!(Pin::new(&mut self.range).poll_next(task));
        self.extent.record(entry.as_ref(), false);
        Poll::Ready(entry)
    }
}
