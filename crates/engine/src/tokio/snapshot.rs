//! Asynchronous handle of a snapshot.

use std::ops::RangeBounds;

use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::error::Result;
use crate::options::read::ReadOptions;
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::keyspace::Keyspace;
use crate::tokio::range::Range;
use crate::tokio::reads;

/// A consistent state of all keyspaces at one time. All clones refer to the same snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    snapshot: crate::db::snapshot::Snapshot,
    /// Must be dropped after `snapshot`, see [`AsyncDbInner`].
    db: Arc<AsyncDbInner>,
}

impl Snapshot {
    pub(crate) fn new(snapshot: crate::db::snapshot::Snapshot, db: Arc<AsyncDbInner>) -> Snapshot {
        Snapshot { snapshot, db }
    }

    /// Returns the blocking handle of the same snapshot.
    ///
    /// [`crate::Snapshot::seq`] exists only on the blocking handle.
    #[must_use]
    pub fn as_blocking(&self) -> &crate::db::snapshot::Snapshot {
        &self.snapshot
    }

    /// Returns the value of `key`, or `None` if the key has no value.
    ///
    /// # Errors
    /// Same as [`crate::Snapshot::get`].
    pub async fn get(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<Option<Slice>> {
        self.get_with(keyspace, key, &ReadOptions::default()).await
    }

    /// Returns the value of `key`, or `None` if the key has no value. Uses these read options.
    ///
    /// # Errors
    /// Same as [`crate::Snapshot::get`].
    pub async fn get_with(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        let (keyspace, snapshot) = (keyspace.as_blocking(), Some(&self.snapshot));
        reads::get(&self.db, keyspace, snapshot, key.as_ref(), options).await
    }

    /// Returns whether `key` has a value; see [`crate::Keyspace::contains_key`].
    ///
    /// # Errors
    /// Same as [`crate::Snapshot::get`].
    pub async fn contains_key(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]> + Send,
    ) -> Result<bool> {
        let (keyspace, snapshot) = (keyspace.as_blocking(), Some(&self.snapshot));
        reads::contains_key(&self.db, keyspace, snapshot, key.as_ref()).await
    }

    /// Returns the values of `keys` in the order of `keys`.
    ///
    /// # Errors
    /// Same as [`crate::Snapshot::get`]. If the lookup of one key fails, the call fails.
    pub fn multi_get<K: AsRef<[u8]> + Send + 'static>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> impl Future<Output = Result<Vec<Option<Slice>>>> + Send {
        let keys: Vec<K> = keys.into_iter().collect();
        reads::multi_get(&self.db, keyspace.as_blocking(), Some(&self.snapshot), keys)
    }

    /// Returns a stream over the entries of a range.
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        Range::new(self.snapshot.range(keyspace.as_blocking(), range))
    }

    /// Returns a stream over the entries whose keys start with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self.snapshot.prefix(keyspace.as_blocking(), prefix))
    }

    /// Returns a stream over all entries.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        Range::new(self.snapshot.iter(keyspace.as_blocking()))
    }
}
