//! Cursor over a sorted source of entries.

use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;

use crate::error::Result;

/// Iterates over entries in internal-key order (user key ascending, newest version first), in both directions.
///
/// A new cursor is not valid until it is positioned. The results of `key` and `value` are borrowed until the next
/// move. After an error the cursor is not valid.
pub trait Cursor: Send {
    /// Returns whether the cursor is at an entry.
    fn valid(&self) -> bool;

    /// Returns the key of the entry. The cursor must be valid.
    fn key(&self) -> InternalKey<'_>;

    /// Returns the value of the entry, empty for a tombstone. The cursor must be valid.
    fn value(&self) -> &[u8];

    /// Returns the value of the entry as an owned slice, without a copy if the source can share it.
    ///
    /// The cursor must be valid.
    fn value_slice(&self) -> Slice;

    /// Moves to the first entry.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn first(&mut self) -> Result<()>;

    /// Moves to the last entry.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn last(&mut self) -> Result<()>;

    /// Moves to the first entry at or after (`user_key`, `seq`) in internal-key order.
    ///
    /// This is the newest version of `user_key` that is not newer than `seq`, or the first entry of a later key.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()>;

    /// Moves to the last entry before (`user_key`, `seq`) in internal-key order.
    ///
    /// With [`SeqNo::MAX`] this is the oldest version of the largest key smaller than `user_key`.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()>;

    /// Moves to the next entry, or becomes invalid after the last one. The cursor must be valid.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn next(&mut self) -> Result<()>;

    /// Moves to the previous entry, or becomes invalid before the first one. The cursor must be valid.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn prev(&mut self) -> Result<()>;
}

impl<C: Cursor + ?Sized> Cursor for Box<C> {
    fn valid(&self) -> bool {
        (**self).valid()
    }
    fn key(&self) -> InternalKey<'_> {
        (**self).key()
    }
    fn value(&self) -> &[u8] {
        (**self).value()
    }
    fn value_slice(&self) -> Slice {
        (**self).value_slice()
    }
    fn first(&mut self) -> Result<()> {
        (**self).first()
    }
    fn last(&mut self) -> Result<()> {
        (**self).last()
    }
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        (**self).seek(user_key, seq)
    }
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        (**self).seek_before(user_key, seq)
    }
    fn next(&mut self) -> Result<()> {
        (**self).next()
    }
    fn prev(&mut self) -> Result<()> {
        (**self).prev()
    }
}
