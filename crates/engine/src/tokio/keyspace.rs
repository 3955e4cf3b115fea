//! Asynchronous handle of a keyspace.

use std::ops::RangeBounds;
use std::time::{Duration, SystemTime};

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::update::{Update, UpdateResult};
use crate::error::Result;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::range::Range;
use crate::tokio::reads;
use crate::tokio::runtime::run_on_pool;
use crate::write::batch::WriteBatch;

/// Handle of a keyspace in an open database. All clones refer to the same keyspace.
#[derive(Clone, Debug)]
pub struct Keyspace {
    keyspace: crate::db::keyspace::Keyspace,
    /// Must be dropped after `keyspace`, see [`AsyncDbInner`].
    db: Arc<AsyncDbInner>,
}

/// With this implementation, a [`WriteBatch`] also accepts asynchronous handles of keyspaces.
impl AsRef<crate::db::keyspace::Keyspace> for Keyspace {
    fn as_ref(&self) -> &crate::db::keyspace::Keyspace {
        &self.keyspace
    }
}

impl Keyspace {
    pub(crate) fn new(keyspace: crate::db::keyspace::Keyspace, db: Arc<AsyncDbInner>) -> Keyspace {
        Keyspace { keyspace, db }
    }

    /// Returns the blocking handle of the same keyspace.
    ///
    /// Methods that never block, such as [`crate::Keyspace::name`], exist only on the blocking handle.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::db::keyspace::Keyspace {
        &self.keyspace
    }

    /// Calls `call` with the blocking handle on the blocking pool of the runtime, see
    /// [`Db::run_blocking`](crate::tokio::Db::run_blocking).
    ///
    /// Methods such as [`crate::Keyspace::compact_range`], [`crate::Keyspace::set_policy`], [`crate::Keyspace::ingest`]
    /// and [`crate::Keyspace::bulk_load`] exist only on the blocking handle.
    ///
    /// # Errors
    /// - The error of `call`.
    /// - [`Error::RuntimeEnded`](crate::Error::RuntimeEnded) if the runtime is shut down before the call starts.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&crate::db::keyspace::Keyspace) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let keyspace = self.clone();
        run_on_pool(move || call(&keyspace.keyspace)).await
    }

    /// Returns a handle of the same keyspace that uses `options` for writes, see
    /// [`crate::Keyspace::with_write_options`].
    #[must_use]
    pub fn with_write_options(&self, options: impl Into<WriteOptions>) -> Keyspace {
        Keyspace::new(self.keyspace.with_write_options(options), Arc::clone(&self.db))
    }

    async fn write(&self, batch: WriteBatch) -> Result<()> {
        self.db.write(batch, self.keyspace.write_options()).await
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn put(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        let mut batch =
            WriteBatch::with_one_put(self.keyspace.tree().id, key.as_ref(), value.as_ref());
        batch.put(&self.keyspace, key, value);
        self.write(batch).await
    }

    /// Sets the value of `key`. The value expires after `ttl`.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::put_with_ttl`].
    pub async fn put_with_ttl(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        ttl: Duration,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_with_ttl(&self.keyspace, key, value, ttl);
        self.write(batch).await
    }

    /// Sets the value of `key`. The value expires at the time `expires`.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::put_with_ttl`].
    pub async fn put_until(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        expires: SystemTime,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_until(&self.keyspace, key, value, expires);
        self.write(batch).await
    }

    /// Deletes `key`.
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn delete(&self, key: impl AsRef<[u8]> + Send) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete(&self.keyspace, key);
        self.write(batch).await
    }

    /// Adds a merge operand to `key`.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::merge`].
    pub async fn merge(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.merge(&self.keyspace, key, operand);
        self.write(batch).await
    }

    /// Deletes all keys in a range.
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn delete_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(&self.keyspace, range);
        self.write(batch).await
    }

    /// Deletes all keys of the keyspace.
    ///
    /// # Errors
    /// Same as [`crate::Db::write`].
    pub async fn clear(&self) -> Result<()> {
        self.delete_range::<&[u8]>(..).await
    }

    /// Returns the value of `key`, or `None` if the key has no value.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::get`].
    pub async fn get(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Slice>> {
        self.get_with(key, &ReadOptions::default()).await
    }

    /// Returns the value of `key`, or `None` if the key has no value. Uses these read options.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::get`].
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        reads::get(&self.db, &self.keyspace, None, key.as_ref(), options).await
    }

    /// Returns whether `key` has a value; see [`crate::Keyspace::contains_key`].
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::get`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]> + Send) -> Result<bool> {
        reads::contains_key(&self.db, &self.keyspace, None, key.as_ref()).await
    }

    /// Returns the values of `keys` in the order of `keys`. All values belong to the same state of the keyspace.
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::get`]. If the lookup of one key fails, the call fails.
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        reads::multi_get(&self.db, &self.keyspace, None, keys)
    }

    /// Returns a stream over the entries of a range in the current state of the keyspace.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range::new(self.keyspace.range(range))
    }

    /// Returns a stream over the entries whose keys start with `prefix`, in the current state of the keyspace.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.keyspace.prefix(prefix))
    }

    /// Returns a stream over all entries in the current state of the keyspace.
    pub fn iter(&self) -> Range {
        Range::new(self.keyspace.iter())
    }

    /// Replaces the value of `key` by the result of `update` atomically. Returns the previous value.
    ///
    /// The calling task executes `update`, possibly several times, see [`crate::Keyspace::fetch_update`].
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::fetch_update`].
    pub async fn fetch_update<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        Ok(self.update(key.as_ref(), update).await?.before)
    }

    /// Replaces the value of `key` by the result of `update` atomically. Returns the new value.
    ///
    /// The calling task executes `update`, possibly several times, see [`crate::Keyspace::update_fetch`].
    ///
    /// # Errors
    /// Same as [`crate::Keyspace::fetch_update`].
    pub async fn update_fetch<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        Ok(self.update(key.as_ref(), update).await?.after)
    }

    async fn update<U: Into<Update>>(
        &self,
        key: &[u8],
        mut update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<UpdateResult> {
        let update = &mut |old: Option<&[u8]>| update(old).into();
        self.db.update(self.keyspace.tree(), key, self.keyspace.write_options(), update).await
    }
}
