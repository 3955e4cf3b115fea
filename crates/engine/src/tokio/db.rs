//! Asynchronous handle of a database.

use std::ops::RangeBounds;
use std::path::Path;
use std::time::Duration;

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::metrics::{MemoryMetrics, Metrics};
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::keyspace::Keyspace;
use crate::tokio::runtime::run_on_pool;
use crate::tokio::snapshot::Snapshot;
use crate::workload_trace::Trace;
use crate::write::batch::WriteBatch;

/// Open database. Clones share it.
///
/// Dropping the last handle closes the database in the background. [`Db::close`] waits for it and returns errors.
#[derive(Clone, Debug)]
pub struct Db {
    inner: Arc<AsyncDbInner>,
}

impl TryFrom<crate::db::Db> for Db {
    type Error = Error;

    /// Fails with [`Error::Contradiction`] for [`Background::Stepped`](crate::env::Background::Stepped).
    fn try_from(db: crate::db::Db) -> Result<Db> {
        Ok(Db { inner: AsyncDbInner::new(db)? })
    }
}

impl Db {
    /// Opens a database, or creates it.
    ///
    /// # Errors
    /// See [`crate::Db::open`] and [`Db::try_from`].
    pub async fn open(path: impl AsRef<Path> + Send, options: Options) -> Result<Db> {
        let path = path.as_ref().to_owned();
        run_on_pool(move || Db::try_from(crate::db::Db::open(path, options)?)).await
    }

    /// Returns the blocking handle of the same database.
    ///
    /// Methods that never block, such as [`crate::Db::health`] and [`crate::Db::read_metrics`], exist only there.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::db::Db {
        self.inner.db()
    }

    /// Runs `call` with the blocking handle on the blocking pool of the runtime.
    ///
    /// `call` completes even if the future is dropped. Use it for calls with options:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let options = lsmx::Options::default().vfs(std::sync::Arc::new(lsmx::vfs::MemVfs::new()));
    /// # let db = lsmx::tokio::Db::open("db", options).await?;
    /// use lsmx::WaitOptions;
    ///
    /// let options = WaitOptions::from(std::time::Duration::from_secs(10));
    /// db.run_blocking(move |db| db.flush_with(options)).await?;
    /// # Ok::<(), lsmx::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `call`; [`Error::RuntimeEnded`] if the runtime shut down before the call began.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&crate::db::Db) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        run_on_pool(move || call(inner.db())).await
    }

    fn to_async(&self, keyspace: crate::db::keyspace::Keyspace) -> Keyspace {
        Keyspace::new(keyspace, Arc::clone(&self.inner))
    }

    /// Returns the keyspace `default`.
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        self.to_async(self.as_blocking().default_keyspace())
    }

    /// Returns the keyspace `name`, which is created with `options` if it does not exist.
    ///
    /// # Errors
    /// See [`crate::Db::keyspace`].
    pub async fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let name = name.to_owned();
        Ok(self.to_async(self.run_blocking(move |db| db.keyspace(&name, options)).await?))
    }

    /// Returns the existing keyspace `name`.
    ///
    /// # Errors
    /// See [`crate::Db::open_keyspace`].
    pub async fn open_keyspace(
        &self,
        name: &str,
        options: Option<KeyspaceOptions>,
    ) -> Result<Keyspace> {
        let name = name.to_owned();
        Ok(self.to_async(self.run_blocking(move |db| db.open_keyspace(&name, options)).await?))
    }

    /// Drops the keyspace `name` and deletes its data.
    ///
    /// # Errors
    /// See [`crate::Db::drop_keyspace`].
    pub async fn drop_keyspace(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.run_blocking(move |db| db.drop_keyspace(&name)).await
    }

    /// Creates a consistent copy of the database in the directory `target`.
    ///
    /// # Errors
    /// See [`crate::Db::checkpoint`].
    pub async fn checkpoint(&self, target: impl AsRef<Path> + Send) -> Result<()> {
        let target = target.as_ref().to_owned();
        self.run_blocking(move |db| db.checkpoint(target)).await
    }

    /// Writes `key` in the default keyspace, see [`Keyspace::put`].
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn put(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.default_keyspace().put(key, value).await
    }

    /// Deletes `key` from the default keyspace, see [`Keyspace::delete`].
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn delete(&self, key: impl AsRef<[u8]> + Send) -> Result<()> {
        self.default_keyspace().delete(key).await
    }

    /// Deletes a range of keys from the default keyspace, see [`Keyspace::delete_range`].
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn delete_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        self.default_keyspace().delete_range(range).await
    }

    /// Adds a merge operand to `key` in the default keyspace, see [`Keyspace::merge`].
    ///
    /// # Errors
    /// See [`crate::Db::merge`].
    pub async fn merge(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.default_keyspace().merge(key, operand).await
    }

    /// Returns the value of `key` in the default keyspace.
    ///
    /// # Errors
    /// See [`crate::Db::get`].
    pub async fn get(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Slice>> {
        self.default_keyspace().get(key).await
    }

    /// Returns the value of `key` in the default keyspace, read with `options`.
    ///
    /// # Errors
    /// See [`crate::Db::get`].
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        self.default_keyspace().get_with(key, options).await
    }

    /// Returns whether `key` has a value in the default keyspace.
    ///
    /// # Errors
    /// See [`crate::Db::get`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]> + Send) -> Result<bool> {
        self.default_keyspace().contains_key(key).await
    }

    /// Returns the values of `keys` in the default keyspace, see [`Keyspace::multi_get`].
    ///
    /// # Errors
    /// See [`crate::Db::get`].
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        async move { self.default_keyspace().multi_get(keys).await }
    }

    /// Commits a batch atomically. The batch accepts blocking and asynchronous keyspaces.
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn write(
        &self,
        batch: WriteBatch,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        self.inner.write(batch, options.into()).await
    }

    /// Returns a snapshot of all keyspaces. Waits while a job drops live data.
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`], if the call had to wait.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        self.inner.db_inner().begin_operation();
        let snapshot = match self.as_blocking().try_snapshot() {
            Some(snapshot) => snapshot,
            None => self.run_blocking(|db| Ok(db.snapshot())).await?,
        };
        Ok(Snapshot::new(snapshot, Arc::clone(&self.inner)))
    }

    /// Syncs all committed writes to stable storage.
    ///
    /// # Errors
    /// See [`crate::Db::sync`].
    pub async fn sync(&self) -> Result<()> {
        self.run_blocking(crate::db::Db::sync).await
    }

    /// Writes all memtables to tables and syncs these.
    ///
    /// # Errors
    /// See [`crate::Db::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.run_blocking(crate::db::Db::flush).await
    }

    /// Waits until all flushes and compactions that are due are done.
    ///
    /// # Errors
    /// See [`crate::Db::wait_idle`].
    pub async fn wait_idle(&self) -> Result<()> {
        self.run_blocking(crate::db::Db::wait_idle).await
    }

    /// Loads filters and indexes into memory, as far as the block cache has room.
    ///
    /// # Errors
    /// See [`crate::Db::warm_up`].
    pub async fn warm_up(&self) -> Result<()> {
        self.run_blocking(crate::db::Db::warm_up).await
    }

    /// Leaves the read-only state that an error caused, and reads quarantined files again.
    ///
    /// # Errors
    /// See [`crate::Db::resume`].
    pub async fn resume(&self) -> Result<()> {
        self.run_blocking(crate::db::Db::resume).await
    }

    /// Returns the memory use of the database.
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`].
    pub async fn memory(&self) -> Result<MemoryMetrics> {
        self.run_blocking(|db| Ok(db.memory())).await
    }

    /// Returns all metrics of the database.
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`].
    pub async fn metrics(&self) -> Result<Metrics> {
        self.run_blocking(|db| Ok(db.metrics())).await
    }

    /// Records all operations in a new file until the trace is stopped. [`Trace::stop`] blocks.
    ///
    /// # Errors
    /// See [`crate::Db::record_trace`].
    pub async fn record_trace(&self, path: impl AsRef<Path> + Send) -> Result<Trace> {
        let path = path.as_ref().to_owned();
        self.run_blocking(|db| db.record_trace(path)).await
    }

    /// Flushes and closes the database. Gives up flushes after `deadline`; the WAL keeps their data.
    ///
    /// # Errors
    /// See [`crate::Db::close`].
    pub async fn close(&self, deadline: Option<Duration>) -> Result<()> {
        self.run_blocking(move |db| db.close(deadline)).await
    }
}
