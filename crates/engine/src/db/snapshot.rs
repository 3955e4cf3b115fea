//! Snapshots of a database.

use std::ops::RangeBounds;

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::handle::DbHandle;
use crate::db::inner::DbInner;
use crate::db::keyspace::Keyspace;
use crate::db::multi_get::multi_get;
use crate::db::point_read;
use crate::error::Result;
use crate::iter::keyspace_cursor::KeyspaceCursor;
use crate::iter::range::Range;
use crate::options::read::ReadOptions;
use crate::tree::snapshots::{ReadPoint, SnapshotGuard};

/// A consistent view of all keyspaces at one sequence number and one time.
///
/// An entry that expires later stays visible in the snapshot. Entries that the snapshot sees are kept until its last
/// clone is dropped.
#[derive(Clone, Debug)]
pub struct Snapshot {
    handle: Arc<DbHandle>,
    pinned: Arc<SnapshotGuard>,
}

impl Snapshot {
    pub(crate) fn new(handle: Arc<DbHandle>, pinned: SnapshotGuard) -> Snapshot {
        Snapshot { handle, pinned: Arc::new(pinned) }
    }

    /// Fails if the keyspace belongs to another database or was dropped before the snapshot.
    pub(crate) fn check_keyspace_visible(&self, keyspace: &Keyspace) -> Result<()> {
        keyspace.check_same_database(&self.handle)?;
        keyspace.tree().check_visible_to(&self.pinned)
    }

    pub(crate) fn inner(&self) -> &DbInner {
        &self.handle.0
    }

    /// Returns the registration of the snapshot.
    pub(crate) fn pinned(&self) -> &Arc<SnapshotGuard> {
        &self.pinned
    }

    pub(crate) fn read_point(&self) -> ReadPoint {
        self.inner().state.read_point_of_snapshot(&self.pinned)
    }

    /// Returns the largest sequence number that the snapshot sees. [`WriteBatch::guard`](crate::WriteBatch::guard)
    /// takes it.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.pinned.seq()
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The errors of [`Db::get`](crate::Db::get); [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.get_with(keyspace, key, &ReadOptions::default())
    }

    /// Returns the value of a key, read with options.
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`]; [`Error::WouldBlock`](crate::Error::WouldBlock) with
    /// [`ReadTier::Memory`](crate::ReadTier::Memory); [`Error::Deadline`](crate::Error::Deadline).
    pub fn get_with(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        self.check_keyspace_visible(keyspace)?;
        point_read::get(
            self.inner(),
            keyspace.tree(),
            key.as_ref(),
            Some(self.read_point()),
            options,
        )
    }

    /// Returns whether a key has a value; see [`Keyspace::contains_key`].
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains_key_with(keyspace, key, &ReadOptions::default())
    }

    pub(crate) fn contains_key_with(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<bool> {
        self.check_keyspace_visible(keyspace)?;
        let (key, read_point) = (key.as_ref(), Some(self.read_point()));
        point_read::contains_key(self.inner(), keyspace.tree(), key, read_point, options)
    }

    /// Returns the values of many keys; see [`Keyspace::multi_get`].
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        self.check_keyspace_visible(keyspace)?;
        multi_get(self.inner(), keyspace.tree(), keys, Some(self.read_point()))
    }

    /// Returns the entry with the smallest key.
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Slice, Slice)>> {
        self.iter(keyspace).next().transpose()
    }

    /// Returns the entry with the largest key.
    ///
    /// # Errors
    /// The errors of [`Snapshot::get`].
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Slice, Slice)>> {
        self.iter(keyspace).next_back().transpose()
    }

    /// Returns a cursor over the entries of a keyspace; see [`Keyspace::cursor`].
    ///
    /// # Errors
    /// The errors of [`Keyspace::cursor`]; [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace).
    pub fn cursor(&self, keyspace: &Keyspace, options: &ReadOptions) -> Result<KeyspaceCursor> {
        keyspace.check_same_database(&self.handle)?;
        keyspace.cursor_at(options, Some(Arc::clone(&self.pinned)))
    }

    /// Returns an iterator over a range of keys. For a keyspace of another database it returns one error.
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        match keyspace.check_same_database(&self.handle) {
            Ok(()) => keyspace.range_at(range, Some(Arc::clone(&self.pinned))),
            Err(error) => Range::from_error(error, keyspace.tree()),
        }
    }

    /// Returns an iterator over the entries whose keys start with `prefix`; see [`Snapshot::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        match keyspace.check_same_database(&self.handle) {
            Ok(()) => keyspace.prefix_at(prefix.as_ref(), Some(Arc::clone(&self.pinned))),
            Err(error) => Range::from_error(error, keyspace.tree()),
        }
    }

    /// Returns an iterator over all entries; see [`Snapshot::range`].
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range::<&[u8]>(keyspace, ..)
    }
}
