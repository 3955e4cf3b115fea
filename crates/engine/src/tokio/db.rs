//! Asynchronous handle of a database.

use std::path::Path;
use std::time::Duration;

use ::tokio::time::sleep;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::transaction::Transaction as BlockingTransaction;
use crate::db::transaction::retry::TransactionAttempts;
use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::write::WriteOptions;
use crate::tokio::inner::{AsyncDbInner, check_background};
use crate::tokio::keyspace::Keyspace;
use crate::tokio::locking_transaction::LockingTransaction;
use crate::tokio::runtime::{run_on_pool, run_on_pool_until};
use crate::tokio::snapshot::Snapshot;
use crate::tokio::transaction::Transaction;
use crate::write::batch::WriteBatch;

/// Handle of an open database. All clones refer to the same database.
///
/// If the last handle is dropped, the database is closed in the background. [`Db::close`] waits until the database is
/// closed, and returns errors.
#[derive(Clone, Debug)]
pub struct Db {
    inner: Arc<AsyncDbInner>,
}

impl TryFrom<crate::db::Db> for Db {
    type Error = Error;

    /// Fails with [`Error::Contradiction`] if the environment is
    /// [`Background::Stepped`](crate::env::Background::Stepped).
    fn try_from(db: crate::db::Db) -> Result<Db> {
        check_background(&db)?;
        Ok(Db::new(db))
    }
}

impl Db {
    /// Creates a handle. The caller must have called [`check_background`].
    pub(crate) fn new(db: crate::db::Db) -> Db {
        Db { inner: AsyncDbInner::new(db) }
    }

    /// Opens a database. Creates it if it does not exist.
    ///
    /// # Errors
    /// Same as [`crate::Db::open`] and [`Db::try_from`].
    pub async fn open(path: impl AsRef<Path> + Send, options: Options) -> Result<Db> {
        let path = path.as_ref().to_owned();
        run_on_pool(move || Db::try_from(crate::db::Db::open(path, options)?)).await
    }

    /// Returns the blocking handle of the same database.
    ///
    /// Methods that never block, such as [`crate::Db::health`] and [`crate::Db::read_metrics`], exist only on the
    /// blocking handle.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::db::Db {
        self.inner.db()
    }

    /// Calls `call` with the blocking handle on the blocking pool of the runtime.
    ///
    /// The call completes even if the future is dropped. Administrative methods, such as [`crate::Db::checkpoint`],
    /// [`crate::Db::flush`] and [`crate::Db::drop_keyspace`], exist only on the blocking handle:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let options = lsmx::Options::default().vfs(std::sync::Arc::new(lsmx::vfs::MemVfs::new()));
    /// # let db = lsmx::tokio::Db::open("db", options).await?;
    /// db.run_blocking(|db| db.with_deadline(std::time::Duration::from_secs(10)).flush()).await?;
    /// # Ok::<(), lsmx::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - The error of `call`.
    /// - [`Error::RuntimeEnded`] if the runtime is shut down before the call starts.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&crate::db::Db) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        run_on_pool(move || call(inner.db())).await
    }

    fn wrap_keyspace(&self, keyspace: crate::db::keyspace::Keyspace) -> Keyspace {
        Keyspace::new(keyspace, Arc::clone(&self.inner))
    }

    /// Returns the keyspace with the name `default`.
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        self.wrap_keyspace(self.as_blocking().default_keyspace())
    }

    /// Opens a keyspace, or creates it, and sets all its options, see [`crate::Db::keyspace`].
    ///
    /// The call also replaces the options of a keyspace that is already open. To get another handle and keep the
    /// options, call [`Db::open_keyspace`] with `None`.
    ///
    /// # Errors
    /// Same as [`crate::Db::keyspace`].
    pub async fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let name = name.to_owned();
        Ok(self.wrap_keyspace(self.run_blocking(move |db| db.keyspace(&name, options)).await?))
    }

    /// Opens a keyspace that must exist. `None` keeps its current options.
    ///
    /// # Errors
    /// Same as [`crate::Db::open_keyspace`].
    pub async fn open_keyspace(
        &self,
        name: &str,
        options: Option<KeyspaceOptions>,
    ) -> Result<Keyspace> {
        let name = name.to_owned();
        Ok(self.wrap_keyspace(self.run_blocking(move |db| db.open_keyspace(&name, options)).await?))
    }

    /// Creates a keyspace with the contents of another one, see [`crate::Db::clone_keyspace`]. Completes even if the future is
    /// dropped.
    ///
    /// # Errors
    /// See [`crate::Db::clone_keyspace`].
    pub async fn clone_keyspace(
        &self,
        source: &str,
        new: &str,
        options: KeyspaceOptions,
    ) -> Result<Keyspace> {
        let (source, new) = (source.to_owned(), new.to_owned());
        let clone = move |db: &crate::db::Db| db.clone_keyspace(&source, &new, options);
        Ok(self.wrap_keyspace(self.run_blocking(clone).await?))
    }

    /// Renames a keyspace, see [`crate::Db::rename_keyspace`]. Completes even if the future is dropped.
    ///
    /// # Errors
    /// See [`crate::Db::rename_keyspace`].
    pub async fn rename_keyspace(&self, old: &str, new: &str) -> Result<()> {
        let (old, new) = (old.to_owned(), new.to_owned());
        self.run_blocking(move |db| db.rename_keyspace(&old, &new)).await
    }

    /// Sets the value of `key` in the default keyspace, see [`Keyspace::put`].
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn put(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.default_keyspace().put(key, value).await
    }

    /// Deletes `key` in the default keyspace, see [`Keyspace::delete`].
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn delete(&self, key: impl AsRef<[u8]> + Send) -> Result<()> {
        self.default_keyspace().delete(key).await
    }

    /// Returns the value of `key` in the default keyspace, or `None` if the key has no value.
    ///
    /// # Errors
    /// Same as [`crate::Db::get`].
    pub async fn get(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Slice>> {
        self.default_keyspace().get(key).await
    }

    /// Commits a batch atomically. A batch accepts blocking and asynchronous handles of keyspaces.
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn write(
        &self,
        batch: WriteBatch,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        self.inner.write(batch, options.into()).await
    }

    /// Starts a transaction, see [`crate::Db::transaction`]. Waits while a job removes entries that the transaction would
    /// see, such as a whole [`crate::Keyspace::operands_to_tree`]; see [`crate::Db::snapshot`].
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`] if the call must wait and the runtime is shut down.
    pub async fn transaction(&self) -> Result<Transaction> {
        let transaction = BlockingTransaction::new(self.begin_snapshot().await?);
        Ok(Transaction::new(transaction, Arc::clone(&self.inner)))
    }

    /// Starts a transaction that locks keys, see [`crate::Db::locking_transaction`]. Its calls wait for the lock of a
    /// key for at most `timeout`. A waiting call occupies no thread. Waits like [`Db::transaction`].
    ///
    /// # Errors
    /// Same as [`Db::transaction`].
    pub async fn locking_transaction(&self, timeout: Duration) -> Result<LockingTransaction> {
        let transaction = BlockingTransaction::new(self.begin_snapshot().await?);
        Ok(LockingTransaction::new(transaction, timeout, Arc::clone(&self.inner)))
    }

    /// Calls `body` with a transaction, and then commits the transaction. After a conflict, both are repeated with a
    /// new transaction, see [`crate::Db::transact`].
    ///
    /// In a spawned task, `body` must be an `async move` closure that owns the handles that it uses. Otherwise, the
    /// compiler cannot prove that the future is `Send`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("data");
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let db = lsmx::tokio::Db::open(&path, lsmx::Options::default()).await?;
    /// use lsmx::tokio::Transaction;
    /// use lsmx::{Durability, Result};
    ///
    /// let stock = db.default_keyspace();
    /// stock.put("apples", [3u8]).await?;
    /// let sell = async move |tx: &Transaction| -> Result<bool> {
    ///     match tx.get(&stock, "apples").await?.as_deref() {
    ///         None | Some([0]) => Ok(false),
    ///         Some(count) => tx.put(&stock, "apples", [count[0] - 1]).map(|()| true),
    ///     }
    /// };
    /// assert!(db.transact(Durability::Buffered, sell).await?);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// - The error of `body`.
    /// - The errors of [`crate::Db::transact`].
    /// - [`Error::RuntimeEnded`] if the runtime is shut down.
    pub async fn transact<T, E: From<Error>>(
        &self,
        options: impl Into<WriteOptions>,
        mut body: impl AsyncFnMut(&Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let (inner, options) = (self.inner.db_inner(), options.into());
        let mut attempts = TransactionAttempts::new();
        loop {
            let transaction = self.transaction().await?;
            let value = body(&transaction).await?;
            let Err(error) = transaction.commit(options).await else { return Ok(value) };
            match attempts.begin_next(inner, &error) {
                Some(pause_us) => sleep(Duration::from_micros(pause_us)).await,
                None => return Err(error.into()),
            }
        }
    }

    /// Returns a snapshot of all keyspaces, see [`crate::Db::snapshot`]. Waits while a job removes entries that the
    /// snapshot would see, such as a whole [`crate::Keyspace::operands_to_tree`].
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`] if the call must wait and the runtime is shut down.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot::new(self.begin_snapshot().await?, Arc::clone(&self.inner)))
    }

    async fn begin_snapshot(&self) -> Result<crate::db::snapshot::Snapshot> {
        self.inner.db_inner().begin_operation();
        match self.as_blocking().try_snapshot() {
            Some(snapshot) => Ok(snapshot),
            None => self.run_blocking(|db| Ok(db.snapshot())).await,
        }
    }

    /// Syncs the WAL. All commits before the call are durable afterwards.
    ///
    /// # Errors
    /// Same as [`crate::Db::sync`].
    pub async fn sync(&self) -> Result<()> {
        self.run_blocking(crate::db::Db::sync).await
    }

    /// Returns all metrics of the database.
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`] if the runtime is shut down.
    pub async fn metrics(&self) -> Result<Metrics> {
        self.run_blocking(|db| Ok(db.metrics())).await
    }

    /// Flushes the memtables and closes the database. After `deadline`, memtables are no longer flushed. Their commits
    /// remain in the WAL.
    ///
    /// The wait for a thread of the blocking pool counts towards the deadline. After [`Error::Deadline`], the database is
    /// closed when a thread is free.
    ///
    /// # Errors
    /// Same as [`crate::Db::close`].
    pub async fn close(&self, deadline: Option<Duration>) -> Result<()> {
        let (inner, db) = (Arc::clone(&self.inner), self.inner.db_inner());
        let deadline_us = db.committer.deadline_us(deadline);
        let close = move || {
            let now_us = inner.db_inner().state.env.now_us();
            let left = deadline_us.map(|at| Duration::from_micros(at.saturating_sub(now_us)));
            inner.db().close(left)
        };
        run_on_pool_until(&db.state.env, deadline_us, WaitCause::Close, close).await
    }
}
