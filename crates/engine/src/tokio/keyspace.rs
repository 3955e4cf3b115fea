//! A keyspace as tasks use it.

use std::ops::{Bound, RangeBounds};

use ::tokio::task::consume_budget;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::update::Update;
use crate::db::{Entry, Explanation, MetadataSizes, WaitOptions};
use crate::error::Result;
use crate::options::policy::Policy;
use crate::options::read::{ReadOptions, ReadTier};
use crate::options::write::WriteOptions;
use crate::tokio::Range;
use crate::tokio::pool::on_pool;
use crate::tokio::reads::{KEYS_ON_TASK_MAX, MEMORY, end_of, many};
use crate::tokio::shared::Shared;
use crate::write::batch::WriteBatch;

/// As [`crate::Keyspace`]: a named tree of one database. Clones are handles of the same one.
#[derive(Clone, Debug)]
pub struct Keyspace {
    inner: crate::Keyspace,
    /// After `inner`: see [`Shared`].
    shared: Arc<Shared>,
}

/// For batches, which take either kind of handle.
impl AsRef<crate::Keyspace> for Keyspace {
    fn as_ref(&self) -> &crate::Keyspace {
        &self.inner
    }
}

impl Keyspace {
    pub(crate) fn new(inner: crate::Keyspace, shared: Arc<Shared>) -> Keyspace {
        Keyspace { inner, shared }
    }

    /// The keyspace itself, whose verbs block.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::Keyspace {
        &self.inner
    }

    /// Has a thread of the pool do it.
    async fn on_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce(&crate::Keyspace) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let keyspace = self.clone();
        on_pool(move || work(&keyspace.inner)).await
    }

    /// As [`crate::Keyspace::name`].
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// As [`crate::Keyspace::policy`].
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.inner.policy()
    }

    /// As [`crate::Keyspace::options`].
    #[must_use]
    pub fn options(&self) -> crate::OptionsInForce {
        self.inner.options()
    }

    /// As [`crate::Keyspace::put`].
    ///
    /// # Errors
    /// As there.
    pub async fn put(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.put_with(key, value, WriteOptions::default()).await
    }

    /// As [`crate::Keyspace::put_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        value: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::for_one(self.inner.tree().id, key.as_ref(), value.as_ref());
        batch.put(&self.inner, key, value);
        self.shared.write(batch, options.into()).await
    }

    /// As [`crate::Keyspace::delete`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete(&self, key: impl AsRef<[u8]> + Send) -> Result<()> {
        self.delete_with(key, WriteOptions::default()).await
    }

    /// As [`crate::Keyspace::delete_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete(&self.inner, key);
        self.shared.write(batch, options.into()).await
    }

    /// As [`crate::Keyspace::merge`].
    ///
    /// # Errors
    /// As there.
    pub async fn merge(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
    ) -> Result<()> {
        self.merge_with(key, operand, WriteOptions::default()).await
    }

    /// As [`crate::Keyspace::merge_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn merge_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        operand: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.merge(&self.inner, key, operand);
        self.shared.write(batch, options.into()).await
    }

    /// As [`crate::Keyspace::delete_range`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        self.delete_range_with(range, WriteOptions::default()).await
    }

    /// As [`crate::Keyspace::delete_range_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn delete_range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
        options: impl Into<WriteOptions> + Send,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(&self.inner, range);
        self.shared.write(batch, options.into()).await
    }

    /// As [`crate::Keyspace::clear`].
    ///
    /// # Errors
    /// As there.
    pub async fn clear(&self) -> Result<()> {
        self.delete_range::<&[u8]>(..).await
    }

    /// As [`crate::Keyspace::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, key: impl AsRef<[u8]> + Send) -> Result<Option<Slice>> {
        self.get_with(key, &ReadOptions::default()).await
    }

    /// As [`crate::Keyspace::get_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        consume_budget().await;
        let key = key.as_ref();
        match self.inner.get_with(key, &MEMORY) {
            Err(crate::Error::WouldBlock) if options.tier == ReadTier::Storage => {}
            answer => return answer,
        }
        let (key, options) = (key.to_vec(), *options);
        self.on_pool(move |keyspace| keyspace.get_with(key, &options)).await
    }

    /// As [`crate::Keyspace::contains_key`].
    ///
    /// # Errors
    /// As there.
    pub async fn contains_key(&self, key: impl AsRef<[u8]> + Send) -> Result<bool> {
        Ok(self.get(key).await?.is_some())
    }

    /// As [`crate::Keyspace::multi_get`].
    ///
    /// # Errors
    /// As there.
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        async move {
            if keys.len() > KEYS_ON_TASK_MAX {
                return self.on_pool(|keyspace| keyspace.multi_get(keys)).await;
            }
            let tree = self.inner.tree();
            let lookups = self.shared.inner().begin_multi_get(tree, keys, None)?;
            many(&self.shared, tree, lookups, ()).await
        }
    }

    /// As [`crate::Keyspace::first`].
    ///
    /// # Errors
    /// As there.
    pub async fn first(&self) -> Result<Option<Entry>> {
        end_of(self.inner.iter(), false).await
    }

    /// As [`crate::Keyspace::last`].
    ///
    /// # Errors
    /// As there.
    pub async fn last(&self) -> Result<Option<Entry>> {
        end_of(self.inner.iter(), true).await
    }

    /// As [`crate::Keyspace::range`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range::new(self.inner.range(range))
    }

    /// As [`crate::Keyspace::prefix`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.inner.prefix(prefix))
    }

    /// As [`crate::Keyspace::iter`].
    pub fn iter(&self) -> Range {
        Range::new(self.inner.iter())
    }

    /// As [`crate::Keyspace::fetch_update`]. The closure is called on the task.
    ///
    /// # Errors
    /// As there.
    pub async fn fetch_update<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        self.fetch_update_with(key, WriteOptions::default(), update).await
    }

    /// As [`crate::Keyspace::fetch_update_with`]. The closure is called on the task.
    ///
    /// # Errors
    /// As there.
    pub async fn fetch_update_with<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
        mut update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        let (key, options) = (key.as_ref(), options.into());
        let update = &mut |old: Option<&[u8]>| update(old).into();
        Ok(self.shared.update(self.inner.tree(), key, options, update).await?.before)
    }

    /// As [`crate::Keyspace::update_fetch`]. The closure is called on the task.
    ///
    /// # Errors
    /// As there.
    pub async fn update_fetch<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        self.update_fetch_with(key, WriteOptions::default(), update).await
    }

    /// As [`crate::Keyspace::update_fetch_with`]. The closure is called on the task.
    ///
    /// # Errors
    /// As there.
    pub async fn update_fetch_with<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]> + Send,
        options: impl Into<WriteOptions> + Send,
        mut update: impl FnMut(Option<&[u8]>) -> U + Send,
    ) -> Result<Option<Slice>> {
        let (key, options) = (key.as_ref(), options.into());
        let update = &mut |old: Option<&[u8]>| update(old).into();
        Ok(self.shared.update(self.inner.tree(), key, options, update).await?.after)
    }

    /// As [`crate::Keyspace::set_policy`].
    ///
    /// # Errors
    /// As there.
    pub async fn set_policy(&self, policy: impl Into<Policy>) -> Result<()> {
        let policy = policy.into();
        self.on_pool(move |keyspace| keyspace.set_policy(policy)).await
    }

    /// As [`crate::Keyspace::compact_range`].
    ///
    /// # Errors
    /// As there.
    pub async fn compact_range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<()> {
        let range = owned(&range);
        self.on_pool(move |keyspace| keyspace.compact_range(range)).await
    }

    /// As [`crate::Keyspace::operands_to_tree`].
    ///
    /// # Errors
    /// As there.
    pub async fn operands_to_tree(&self) -> Result<()> {
        self.on_pool(|keyspace| keyspace.operands_to_tree()).await
    }

    /// As [`crate::Keyspace::compact_range_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn compact_range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
        options: WaitOptions,
    ) -> Result<()> {
        let range = owned(&range);
        self.on_pool(move |keyspace| keyspace.compact_range_with(range, &options)).await
    }

    /// As [`crate::Keyspace::approximate_size`].
    ///
    /// # Errors
    /// As there.
    pub async fn approximate_size<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K> + Send,
    ) -> Result<u64> {
        let range = owned(&range);
        self.on_pool(move |keyspace| keyspace.approximate_size(range)).await
    }

    /// As [`crate::Keyspace::explain`].
    ///
    /// # Errors
    /// As there.
    pub async fn explain(&self, key: impl AsRef<[u8]> + Send) -> Result<Explanation> {
        let key = key.as_ref().to_vec();
        self.on_pool(move |keyspace| keyspace.explain(key)).await
    }

    /// As [`crate::Keyspace::metadata`].
    ///
    /// # Errors
    /// As there.
    pub async fn metadata(&self) -> Result<MetadataSizes> {
        self.on_pool(crate::Keyspace::metadata).await
    }
}

/// Bounds that outlive what they were made of.
fn owned<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let bound = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (bound(range.start_bound()), bound(range.end_bound()))
}
