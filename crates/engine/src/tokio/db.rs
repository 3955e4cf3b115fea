//! The database as tasks use it.

use std::ops::RangeBounds;
use std::path::Path;
use std::time::Duration;

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::{Health, WaitOptions};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::metrics::{MemoryMetrics, Metrics, ReadMetrics};
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::tokio::pool::on_pool;
use crate::tokio::shared::Shared;
use crate::tokio::{Keyspace, Snapshot};
use crate::workload_trace::{Trace, TraceOptions};
use crate::write::batch::WriteBatch;

/// As [`crate::Db`]: an open database. Clones are handles of the same one. The last one that goes has it
/// closed in the background; who needs to know when that is done calls [`Db::close`].
#[derive(Clone, Debug)]
pub struct Db {
    shared: Arc<Shared>,
}

impl TryFrom<crate::Db> for Db {
    type Error = Error;

    /// Fails with [`Error::Contradiction`] under
    /// [`Background::Stepped`](crate::env::Background::Stepped).
    fn try_from(db: crate::Db) -> Result<Db> {
        Ok(Db { shared: Shared::new(db)? })
    }
}

impl Db {
    /// As [`crate::Db::open`].
    ///
    /// # Errors
    /// As there, and as [`Db::try_from`].
    pub async fn open(path: impl AsRef<Path> + Send, options: Options) -> Result<Db> {
        let path = path.as_ref().to_owned();
        on_pool(move || Db::try_from(crate::Db::open(path, options)?)).await
    }

    /// The database itself, whose verbs block.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::Db {
        self.shared.db()
    }

    /// Has a thread of the pool do it.
    async fn on_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce(&crate::Db) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        on_pool(move || work(shared.db())).await
    }

    fn keyspace_of(&self, inner: crate::Keyspace) -> Keyspace {
        Keyspace::new(inner, Arc::clone(&self.shared))
    }

    /// As [`crate::Db::default_keyspace`].
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        self.keyspace_of(self.as_blocking().default_keyspace())
    }

    /// As [`crate::Db::keyspace`].
    ///
    /// # Errors
    /// As there.
    pub async fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let name = name.to_owned();
        let inner = self.on_pool(move |db| db.keyspace(&name, options)).await?;
        Ok(self.keyspace_of(inner))
    }

    /// As [`crate::Db::open_keyspace`].
    ///
    /// # Errors
    /// As there.
    pub async fn open_keyspace(
        &self,
        name: &str,
        options: Option<KeyspaceOptions>,
    ) -> Result<Keyspace> {
        let name = name.to_owned();
        let inner = self.on_pool(move |db| db.open_keyspace(&name, options)).await?;
        Ok(self.keyspace_of(inner))
    }

    /// As [`crate::Db::keyspace_exists`].
    #[must_use]
    pub fn keyspace_exists(&self, name: &str) -> bool {
        self.as_blocking().keyspace_exists(name)
    }

    /// As [`crate::Db::drop_keyspace`].
    ///
    /// # Errors
    /// As there.
    pub async fn drop_keyspace(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.on_pool(move |db| db.drop_keyspace(&name)).await
    }

    /// As [`crate::Db::keyspaces`].
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        self.as_blocking().keyspaces()
    }

    /// As [`crate::Db::checkpoint`].
    ///
    /// # Errors
    /// As there.
    pub async fn checkpoint(&self, target: impl AsRef<Path> + Send) -> Result<()> {
        let target = target.as_ref().to_owned();
        self.on_pool(move |db| db.checkpoint(target)).await
    }

    /// As [`crate::Db::checkpoint_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn checkpoint_with(
        &self,
        target: impl AsRef<Path> + Send,
        options: WaitOptions,
    ) -> Result<()> {
        let target = target.as_ref().to_owned();
        self.on_pool(move |db| db.checkpoint_with(target, &options)).await
    }

    /// As [`crate::Db::put`].
    ///
    /// # Errors
    /// As there.
    pub async fn put(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.default_keyspace().put(key, value).await
    }

    /// As [`crate::Db::delete`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete(&self, key: impl AsRef<[u8]> + Send) -> Result<()> {
        self.default_keyspace().delete(key).await
    }

    /// As [`crate::Db::delete_range`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        self.default_keyspace().delete_range(range).await
    }

    /// As [`crate::Db::merge`].
    ///
    /// # Errors
    /// As there.
    pub async fn merge(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.default_keyspace().merge(key, operand).await
    }

    /// As [`crate::Db::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Slice>> {
        self.default_keyspace().get(key).await
    }

    /// As [`crate::Db::get_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        self.default_keyspace().get_with(key, options).await
    }

    /// As [`crate::Db::contains_key`].
    ///
    /// # Errors
    /// As there.
    pub async fn contains_key(&self, key: impl AsRef<[u8]> + Send) -> Result<bool> {
        self.default_keyspace().contains_key(key).await
    }

    /// As [`crate::Db::multi_get`].
    ///
    /// # Errors
    /// As there.
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        async move { self.default_keyspace().multi_get(keys).await }
    }

    /// As [`crate::Db::write`]. Keyspaces of either kind may be in the batch.
    ///
    /// # Errors
    /// As there.
    pub async fn write(
        &self,
        batch: WriteBatch,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        self.shared.write(batch, options.into()).await
    }

    /// As [`crate::Db::snapshot`].
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`], if it had to wait.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        self.shared.inner().begin_operation();
        let inner = match self.as_blocking().try_snapshot() {
            Some(inner) => inner,
            None => self.on_pool(|db| Ok(db.snapshot())).await?,
        };
        Ok(Snapshot::new(inner, Arc::clone(&self.shared)))
    }

    /// As [`crate::Db::sync`].
    ///
    /// # Errors
    /// As there.
    pub async fn sync(&self) -> Result<()> {
        self.on_pool(crate::Db::sync).await
    }

    /// As [`crate::Db::sync_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn sync_with(&self, options: WaitOptions) -> Result<()> {
        self.on_pool(move |db| db.sync_with(&options)).await
    }

    /// As [`crate::Db::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> Result<()> {
        self.on_pool(crate::Db::flush).await
    }

    /// As [`crate::Db::flush_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush_with(&self, options: WaitOptions) -> Result<()> {
        self.on_pool(move |db| db.flush_with(&options)).await
    }

    /// As [`crate::Db::wait_idle`].
    ///
    /// # Errors
    /// As there.
    pub async fn wait_idle(&self) -> Result<()> {
        self.on_pool(crate::Db::wait_idle).await
    }

    /// As [`crate::Db::wait_idle_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn wait_idle_with(&self, options: WaitOptions) -> Result<()> {
        self.on_pool(move |db| db.wait_idle_with(&options)).await
    }

    /// As [`crate::Db::warm_up`].
    ///
    /// # Errors
    /// As there.
    pub async fn warm_up(&self) -> Result<()> {
        self.on_pool(crate::Db::warm_up).await
    }

    /// As [`crate::Db::resume`].
    ///
    /// # Errors
    /// As there.
    pub async fn resume(&self) -> Result<()> {
        self.on_pool(crate::Db::resume).await
    }

    /// As [`crate::Db::resume_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn resume_with(&self, options: WaitOptions) -> Result<()> {
        self.on_pool(move |db| db.resume_with(&options)).await
    }

    /// As [`crate::Db::read_only_cause`].
    #[must_use]
    pub fn read_only_cause(&self) -> Option<Arc<Error>> {
        self.as_blocking().read_only_cause()
    }

    /// As [`crate::Db::health`].
    #[must_use]
    pub fn health(&self) -> Health {
        self.as_blocking().health()
    }

    /// As [`crate::Db::set_background_io_rate`].
    pub fn set_background_io_rate(&self, bytes_per_s: Option<u64>) {
        self.as_blocking().set_background_io_rate(bytes_per_s);
    }

    /// As [`crate::Db::memory`].
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`].
    pub async fn memory(&self) -> Result<MemoryMetrics> {
        self.on_pool(|db| Ok(db.memory())).await
    }

    /// As [`crate::Db::metrics`].
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`].
    pub async fn metrics(&self) -> Result<Metrics> {
        self.on_pool(|db| Ok(db.metrics())).await
    }

    /// As [`crate::Db::read_metrics`].
    #[must_use]
    pub fn read_metrics(&self) -> ReadMetrics {
        self.as_blocking().read_metrics()
    }

    /// As [`crate::Db::record_trace`]. Ending the trace blocks until its file is written.
    ///
    /// # Errors
    /// As there.
    pub async fn record_trace(&self, path: impl AsRef<Path> + Send) -> Result<Trace> {
        self.record_trace_with(path, TraceOptions::default()).await
    }

    /// As [`crate::Db::record_trace_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn record_trace_with(
        &self,
        path: impl AsRef<Path> + Send,
        options: TraceOptions,
    ) -> Result<Trace> {
        let path = path.as_ref().to_owned();
        self.on_pool(move |db| db.record_trace_with(path, options)).await
    }

    /// As [`crate::Db::close`].
    ///
    /// # Errors
    /// As there.
    pub async fn close(&self, deadline: Option<Duration>) -> Result<()> {
        self.on_pool(move |db| db.close(deadline)).await
    }

    /// As [`crate::Db::env`].
    #[must_use]
    pub fn env(&self) -> &Env {
        self.as_blocking().env()
    }
}
