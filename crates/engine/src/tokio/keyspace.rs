//! Asynchronous handle of a keyspace.

use std::ops::{Bound, RangeBounds};

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::inspect::explain::Explanation;
use crate::db::inspect::metadata_sizes::MetadataSizes;
use crate::db::keyspace::Entry;
use crate::db::update::Update;
use crate::error::Result;
use crate::options::policy::Policy;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::range::Range;
use crate::tokio::reads::{self, first_entry};
use crate::tokio::runtime::run_on_pool;
use crate::write::batch::WriteBatch;

/// Keyspace of an open database. Clones are handles of the same keyspace.
#[derive(Clone, Debug)]
pub struct Keyspace {
    keyspace: crate::db::keyspace::Keyspace,
    /// Dropped after `keyspace`, see [`AsyncDbInner`].
    db: Arc<AsyncDbInner>,
}

/// Lets a [`WriteBatch`] accept asynchronous keyspaces.
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
    /// Methods that never block, such as [`crate::Keyspace::name`], exist only there.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::db::keyspace::Keyspace {
        &self.keyspace
    }

    /// Runs `call` with the blocking handle on the blocking pool of the runtime.
    ///
    /// See [`Db::run_blocking`](crate::tokio::Db::run_blocking).
    ///
    /// # Errors
    /// The error of `call`; [`Error::RuntimeEnded`](crate::Error::RuntimeEnded).
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&crate::db::keyspace::Keyspace) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let keyspace = self.clone();
        run_on_pool(move || call(&keyspace.keyspace)).await
    }

    /// Writes `key` with [`Durability::Buffered`](crate::Durability::Buffered).
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn put(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.put_with(key, value, WriteOptions::default()).await
    }

    /// Writes `key` with `options`.
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch =
            WriteBatch::with_one_put(self.keyspace.tree().id, key.as_ref(), value.as_ref());
        batch.put(&self.keyspace, key, value);
        self.db.write(batch, options.into()).await
    }

    /// Deletes `key` with [`Durability::Buffered`](crate::Durability::Buffered).
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn delete(&self, key: impl AsRef<[u8]> + Send) -> Result<()> {
        self.delete_with(key, WriteOptions::default()).await
    }

    /// Deletes `key` with `options`.
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn delete_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete(&self.keyspace, key);
        self.db.write(batch, options.into()).await
    }

    /// Adds a merge operand to `key` with [`Durability::Buffered`](crate::Durability::Buffered).
    ///
    /// # Errors
    /// See [`crate::Keyspace::merge`].
    pub async fn merge(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.merge_with(key, operand, WriteOptions::default()).await
    }

    /// Adds a merge operand to `key` with `options`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::merge`].
    pub async fn merge_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.merge(&self.keyspace, key, operand);
        self.db.write(batch, options.into()).await
    }

    /// Deletes a range of keys with [`Durability::Buffered`](crate::Durability::Buffered).
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn delete_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        self.delete_range_with(range, WriteOptions::default()).await
    }

    /// Deletes a range of keys with `options`.
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn delete_range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(&self.keyspace, range);
        self.db.write(batch, options.into()).await
    }

    /// Deletes all keys.
    ///
    /// # Errors
    /// See [`crate::Db::write`].
    pub async fn clear(&self) -> Result<()> {
        self.delete_range::<&[u8]>(..).await
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn get(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Slice>> {
        self.get_with(key, &ReadOptions::default()).await
    }

    /// Returns the value of `key`, read with `options`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        reads::get(&self.db, &self.keyspace, None, key.as_ref(), options).await
    }

    /// Returns whether `key` has a value.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]> + Send) -> Result<bool> {
        Ok(self.get(key).await?.is_some())
    }

    /// Returns the values of `keys` as of one moment, in the order of `keys`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`]. An error for one key fails the call.
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        reads::multi_get(&self.db, &self.keyspace, None, keys)
    }

    /// Returns the entry with the smallest key.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn first(&self) -> Result<Option<Entry>> {
        first_entry(self.keyspace.iter(), false).await
    }

    /// Returns the entry with the largest key.
    ///
    /// # Errors
    /// See [`crate::Keyspace::get`].
    pub async fn last(&self) -> Result<Option<Entry>> {
        first_entry(self.keyspace.iter(), true).await
    }

    /// Returns a stream over the entries of a range, as of now.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range::new(self.keyspace.range(range))
    }

    /// Returns a stream over the entries whose keys start with `prefix`, as of now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.keyspace.prefix(prefix))
    }

    /// Returns a stream over all entries, as of now.
    pub fn iter(&self) -> Range {
        Range::new(self.keyspace.iter())
    }

    /// Updates `key` atomically with the result of `update`. Returns the previous value.
    ///
    /// `update` runs on the task and may run several times, see [`crate::Keyspace::fetch_update`].
    ///
    /// # Errors
    /// See [`crate::Keyspace::fetch_update`].
    pub async fn fetch_update<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        self.fetch_update_with(key, WriteOptions::default(), update).await
    }

    /// Like [`Keyspace::fetch_update`], with `options`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::fetch_update`].
    pub async fn fetch_update_with<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
        mut update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        let (key, options) = (key.as_ref(), options.into());
        let update = &mut |old: Option<&[u8]>| update(old).into();
        Ok(self.db.update(self.keyspace.tree(), key, options, update).await?.before)
    }

    /// Updates `key` atomically with the result of `update`. Returns the new value.
    ///
    /// `update` runs on the task and may run several times, see [`crate::Keyspace::update_fetch`].
    ///
    /// # Errors
    /// See [`crate::Keyspace::fetch_update`].
    pub async fn update_fetch<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        self.update_fetch_with(key, WriteOptions::default(), update).await
    }

    /// Like [`Keyspace::update_fetch`], with `options`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::fetch_update`].
    pub async fn update_fetch_with<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
        mut update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        let (key, options) = (key.as_ref(), options.into());
        let update = &mut |old: Option<&[u8]>| update(old).into();
        Ok(self.db.update(self.keyspace.tree(), key, options, update).await?.after)
    }

    /// Changes the compaction policy.
    ///
    /// # Errors
    /// See [`crate::Keyspace::set_policy`].
    pub async fn set_policy(&self, policy: impl Into<Policy>) -> Result<()> {
        let policy = policy.into();
        self.run_blocking(move |keyspace| keyspace.set_policy(policy)).await
    }

    /// Compacts the tables that overlap a range of keys into the last level.
    ///
    /// # Errors
    /// See [`crate::Keyspace::compact_range`].
    pub async fn compact_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        let range = owned_range(&range);
        self.run_blocking(move |keyspace| keyspace.compact_range(range)).await
    }

    /// Moves all operands from the operand store to the tree.
    ///
    /// # Errors
    /// See [`crate::Keyspace::operands_to_tree`].
    pub async fn operands_to_tree(&self) -> Result<()> {
        self.run_blocking(crate::db::keyspace::Keyspace::operands_to_tree).await
    }

    /// Returns the estimated size of the table data of a range, in bytes.
    ///
    /// # Errors
    /// See [`crate::Keyspace::approximate_size`].
    pub async fn approximate_size<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<u64> {
        let range = owned_range(&range);
        self.run_blocking(move |keyspace| keyspace.approximate_size(range)).await
    }

    /// Returns the steps of a lookup of `key`.
    ///
    /// # Errors
    /// See [`crate::Keyspace::explain`].
    pub async fn explain(&self, key: impl AsRef<[u8]> + Send) -> Result<Explanation> {
        let key = key.as_ref().to_vec();
        self.run_blocking(move |keyspace| keyspace.explain(key)).await
    }

    /// Returns the memory that filters, indexes and range tombstones need.
    ///
    /// # Errors
    /// See [`crate::Keyspace::metadata`].
    pub async fn metadata(&self) -> Result<MetadataSizes> {
        self.run_blocking(crate::db::keyspace::Keyspace::metadata).await
    }
}

/// Returns bounds that own their keys.
fn owned_range<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (owned(range.start_bound()), owned(range.end_bound()))
}
