//! Asynchronous handle of a transaction that locks keys.

use std::ops::RangeBounds;
use std::time::{Duration, SystemTime};

use ::tokio::task::consume_budget;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::transaction::Transaction as BlockingTransaction;
use crate::db::transaction::state::Savepoint;
use crate::error::Result;
use crate::options::write::WriteOptions;
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::keyspace::Keyspace;
use crate::tokio::runtime::{run_on_pool, wait_until};
use crate::tokio::transaction::{Transaction, TransactionRange};
use crate::write::group::check_reads;

/// Transaction that locks the keys that it writes or reads for update, see [`crate::Db::locking_transaction`].
///
/// Calls that lock a key are asynchronous, because they may wait for another transaction. A wait occupies no thread.
///
/// A future that is dropped while it waits for a key locks nothing. Keys that the transaction has locked stay locked until it
/// ends. It ends with [`LockingTransaction::commit`] or when it is dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # let db = lsmx::tokio::Db::open(&path, lsmx::Options::default()).await?;
/// use std::time::Duration;
/// use lsmx::{Durability, Error};
///
/// let stock = db.default_keyspace();
/// stock.put("apples", [3u8]).await?;
/// let tx = db.locking_transaction(Duration::from_secs(1)).await?;
/// let count = tx.get_for_update(&stock, "apples").await?.map_or(0, |count| count[0]);
/// tx.put(&stock, "apples", [count - 1]).await?;
///
/// let other = db.locking_transaction(Duration::ZERO).await?;
/// let refused = other.get_for_update(&stock, "apples").await;
/// assert!(matches!(refused, Err(Error::LockTimeout { .. })));
/// tx.commit(Durability::Sync).await?;
/// assert_eq!(other.get_for_update(&stock, "apples").await?.as_deref(), Some(&[2][..]));
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Debug)]
pub struct LockingTransaction(Transaction);

impl LockingTransaction {
    pub(crate) fn new(
        transaction: BlockingTransaction,
        timeout: Duration,
        db: Arc<AsyncDbInner>,
    ) -> LockingTransaction {
        LockingTransaction(Transaction::new(transaction.with_locks(timeout), db))
    }

    /// Locks a key before a write. If the database is not writable, locks no key and fails.
    async fn lock_to_write(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        self.0.db().db_inner().check_writable()?;
        self.lock(keyspace, key).await
    }

    /// Locks a key.
    async fn lock(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let keyspace = keyspace.as_blocking();
        let Some(mut wait) = self.0.as_blocking().begin_lock(keyspace, key)? else { return Ok(()) };
        let env = &self.0.db().db_inner().state.env;
        let (signal, limit_us) = (wait.signal(), Some(wait.limit_us()));
        let mut locked = Ok(false);
        let has_ended = || {
            locked = wait.try_lock();
            !matches!(locked, Ok(false))
        };
        wait_until(env, signal, limit_us, has_ended).await;
        wait.finish(locked)
    }

    /// Returns the newest value of a key that the transaction has locked. For any other key, returns the value at the
    /// start of the transaction, see [`crate::Transaction::get`].
    ///
    /// # Errors
    /// See [`crate::Transaction::get`].
    pub async fn get(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<Option<Slice>> {
        self.read_key(keyspace, key.as_ref()).await
    }

    async fn read_key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Slice>> {
        match self.0.as_blocking().holds_lock(keyspace.as_blocking(), key) {
            true => self.read_locked_key(keyspace, key, false).await,
            false => self.0.get(keyspace, key).await,
        }
    }

    /// Locks a key and returns its newest value.
    ///
    /// # Errors
    /// See [`crate::Transaction::get_for_update`].
    pub async fn get_for_update(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<Option<Slice>> {
        let key = key.as_ref();
        self.lock(keyspace, key).await?;
        self.read_locked_key(keyspace, key, true).await
    }

    async fn read_locked_key(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<Option<Slice>> {
        consume_budget().await;
        let (transaction, keyspace) = (self.0.as_blocking(), keyspace.as_blocking());
        if let Some(own) = transaction.begin_locked_read(keyspace, key, is_always_checked)? {
            return own.take_value(keyspace.tree(), key);
        }
        let snapshot = Some(Arc::clone(transaction.snapshot().pinned()));
        let read = self.0.db().read_to_update(keyspace.tree(), key, snapshot).await?;
        transaction.finish_locked_read(keyspace, key, read)
    }

    /// Returns the values of many keys, in the order of `keys`; see [`LockingTransaction::get`].
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
            let mut values = Vec::with_capacity(keys.len());
            for key in &keys {
                values.push(self.read_key(keyspace, key.as_ref()).await?);
            }
            Ok(values)
        }
    }

    /// Returns a stream over the entries of a range at the start of the transaction, including its own writes. The
    /// stream locks no keys, see [`crate::Transaction::range`].
    pub fn range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> TransactionRange<'_> {
        self.0.range(keyspace, range)
    }

    /// Returns a stream over the entries whose keys start with `prefix`; see [`LockingTransaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange<'_> {
        self.0.prefix(keyspace, prefix)
    }

    /// Locks a key and writes a value.
    ///
    /// # Errors
    /// See [`crate::Transaction::put`].
    pub async fn put(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.lock_to_write(keyspace, key.as_ref()).await?;
        self.0.put(keyspace, key, value)
    }

    /// Locks a key and writes a value that expires after `ttl`, counted from the end of the wait for the key.
    ///
    /// # Errors
    /// See [`LockingTransaction::put`] and [`crate::Transaction::put_with_ttl`].
    pub async fn put_with_ttl(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        ttl: Duration,
    ) -> Result<()> {
        self.lock_to_write(keyspace, key.as_ref()).await?;
        self.0.put_with_ttl(keyspace, key, value, ttl)
    }

    /// Locks a key and writes a value that expires at a time.
    ///
    /// # Errors
    /// See [`LockingTransaction::put_with_ttl`].
    pub async fn put_until(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        expires: SystemTime,
    ) -> Result<()> {
        self.lock_to_write(keyspace, key.as_ref()).await?;
        self.0.put_until(keyspace, key, value, expires)
    }

    /// Locks and deletes a key.
    ///
    /// # Errors
    /// See [`LockingTransaction::put`].
    pub async fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]> + Send) -> Result<()> {
        self.lock_to_write(keyspace, key.as_ref()).await?;
        self.0.delete(keyspace, key)
    }

    /// Deletes all keys of a range. Locks nothing, so it is not asynchronous; see [`crate::Transaction::delete_range`].
    ///
    /// # Errors
    /// See [`crate::Transaction::put`].
    pub fn delete_range<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Result<()> {
        self.0.delete_range(keyspace, range)
    }

    /// Locks a key and writes a merge operand.
    ///
    /// # Errors
    /// See [`LockingTransaction::put`] and [`crate::Transaction::merge`].
    pub async fn merge(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.lock_to_write(keyspace, key.as_ref()).await?;
        self.0.merge(keyspace, key, operand)
    }

    /// Returns a savepoint for [`LockingTransaction::rollback_to`].
    pub fn savepoint(&self) -> Savepoint {
        self.0.savepoint()
    }

    /// Discards all writes after a savepoint. Keys stay locked; see [`crate::Transaction::rollback_to`].
    ///
    /// # Errors
    /// See [`crate::Transaction::rollback_to`].
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.0.rollback_to(savepoint)
    }

    /// Commits all writes and releases all locks; see [`crate::Transaction::commit`].
    ///
    /// If the future is dropped, the transaction is either committed as a whole or discarded. Its locks are then released at
    /// once, so a transaction that takes one of them may have a conflict with the commit.
    ///
    /// # Errors
    /// See [`crate::Transaction::commit`].
    pub async fn commit(self, options: impl Into<WriteOptions> + Send) -> Result<()> {
        let (options, db) = (options.into(), self.0.db());
        let batch = self.0.as_blocking().take_batch();
        let has_writes = !batch.is_empty();
        let committed = match has_writes {
            true => db.write(batch, options).await,
            // The check may visit many entries of ranges, so it runs on the blocking pool.
            false if !batch.guards.is_empty() => {
                let inner = Arc::clone(db);
                run_on_pool(move || check_reads(&inner.db_inner().state, &batch.guards)).await
            }
            false => Ok(()),
        };
        db.db_inner().transactions.record_commit(has_writes, &committed);
        committed
    }
}
