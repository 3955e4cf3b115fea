//! A view of the whole database at one number.

use std::ops::RangeBounds;

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::{Handle, Keyspace};
use crate::error::Result;
use crate::iter::range::Range;
use crate::lookup::point::Reads;
use crate::options::read::ReadOptions;
use crate::tree::snapshots::Pinned;

/// All keyspaces as they were at one moment. What it sees is kept until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Snapshot {
    handle: Arc<Handle>,
    pinned: Arc<Pinned>,
}

impl Snapshot {
    pub(crate) fn new(handle: Arc<Handle>, pinned: Pinned) -> Snapshot {
        Snapshot { handle, pinned: Arc::new(pinned) }
    }

    /// Fails if the keyspace is another database's, or was dropped before this snapshot was taken.
    pub(crate) fn check_sees(&self, keyspace: &Keyspace) -> Result<()> {
        keyspace.check_owner(&self.handle)?;
        keyspace.tree().check_seen_by(&self.pinned)
    }

    /// The number up to which it sees; what a guard names.
    #[must_use]
    pub fn seq(&self) -> SeqNo {
        self.pinned.seq()
    }

    /// The value of `key` at that number.
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get); [`Error::ForeignKeyspace`](crate::Error::ForeignKeyspace).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.check_sees(keyspace)?;
        self.handle.0.get(keyspace.tree(), key.as_ref(), Some(self.seq()), Reads::Storage)
    }

    /// Returns the value of `key`, read with these options.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; [`Error::WouldBlock`](crate::Error::WouldBlock) with [`ReadTier::Memory`](crate::ReadTier::Memory).
    pub fn get_with(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        self.check_sees(keyspace)?;
        self.handle.0.get(keyspace.tree(), key.as_ref(), Some(self.seq()), options.into())
    }

    /// The entries of a range at that number. The range gives one error if the keyspace belongs to
    /// another database.
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        match keyspace.check_owner(&self.handle) {
            Ok(()) => keyspace.range_at(range, Some(Arc::clone(&self.pinned))),
            Err(error) => Range::failed(error, keyspace.tree()),
        }
    }

    /// The entries whose keys begin with `prefix`, at that number.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        match keyspace.check_owner(&self.handle) {
            Ok(()) => keyspace.prefix_at(prefix.as_ref(), Some(Arc::clone(&self.pinned))),
            Err(error) => Range::failed(error, keyspace.tree()),
        }
    }

    /// All entries at that number.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range::<&[u8]>(keyspace, ..)
    }
}
