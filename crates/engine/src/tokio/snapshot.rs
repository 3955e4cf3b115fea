//! A view of the whole database at one number.

use std::ops::RangeBounds;

use ::tokio::task::consume_budget;

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::Entry;
use crate::error::{Error, Result};
use crate::options::read::{ReadOptions, ReadTier};
use crate::tokio::pool::on_pool;
use crate::tokio::reads::{KEYS_ON_TASK_MAX, MEMORY, end_of, many};
use crate::tokio::shared::Shared;
use crate::tokio::{Keyspace, Range};

/// As [`crate::Snapshot`]: all keyspaces as they were at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    inner: crate::Snapshot,
    /// After `inner`: see [`Shared`].
    shared: Arc<Shared>,
}

impl Snapshot {
    pub(crate) fn new(inner: crate::Snapshot, shared: Arc<Shared>) -> Snapshot {
        Snapshot { inner, shared }
    }

    /// The snapshot itself, whose reads block.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::Snapshot {
        &self.inner
    }

    /// As [`crate::Snapshot::seq`].
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.inner.seq()
    }

    /// As [`crate::Snapshot::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<Option<Slice>> {
        self.get_with(keyspace, key, &ReadOptions::default()).await
    }

    /// As [`crate::Snapshot::get_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn get_with(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        consume_budget().await;
        let (keyspace, key) = (keyspace.as_blocking(), key.as_ref());
        match self.inner.get_with(keyspace, key, &MEMORY) {
            Err(Error::WouldBlock) if options.tier == ReadTier::Storage => {}
            answer => return answer,
        }
        let (all, keyspace, key, options) =
            (self.clone(), keyspace.clone(), key.to_vec(), *options);
        on_pool(move || all.inner.get_with(&keyspace, key, &options)).await
    }

    /// As [`crate::Snapshot::contains_key`].
    ///
    /// # Errors
    /// As there.
    pub async fn contains_key(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<bool> {
        Ok(self.get(keyspace, key).await?.is_some())
    }

    /// As [`crate::Snapshot::multi_get`].
    ///
    /// # Errors
    /// As there.
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        async move {
            let keyspace = keyspace.as_blocking();
            if keys.len() > KEYS_ON_TASK_MAX {
                let (all, keyspace) = (self.clone(), keyspace.clone());
                return on_pool(move || all.inner.multi_get(&keyspace, keys)).await;
            }
            self.inner.check_sees(keyspace)?;
            let tree = keyspace.tree();
            let lookups = self.shared.inner().begin_multi_get(tree, keys, Some(self.seq()))?;
            many(&self.shared, tree, lookups, self.clone()).await
        }
    }

    /// As [`crate::Snapshot::first`].
    ///
    /// # Errors
    /// As there.
    pub async fn first(&self, keyspace: &Keyspace) -> Result<Option<Entry>> {
        end_of(self.inner.iter(keyspace.as_blocking()), false).await
    }

    /// As [`crate::Snapshot::last`].
    ///
    /// # Errors
    /// As there.
    pub async fn last(&self, keyspace: &Keyspace) -> Result<Option<Entry>> {
        end_of(self.inner.iter(keyspace.as_blocking()), true).await
    }

    /// As [`crate::Snapshot::range`].
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        Range::new(self.inner.range(keyspace.as_blocking(), range))
    }

    /// As [`crate::Snapshot::prefix`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.inner.prefix(keyspace.as_blocking(), prefix))
    }

    /// As [`crate::Snapshot::iter`].
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        Range::new(self.inner.iter(keyspace.as_blocking()))
    }
}
