//! The lending cursor that every sorted source of entries offers.

use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;

use crate::error::Result;

/// Walks entries in internal-key order (user key ascending, newest version first), both ways.
///
/// A new cursor stands nowhere: it is not valid until it is positioned. What `key` and `value`
/// lend is good until the next move. After an error the cursor is not valid.
pub trait Cursor: Send {
    /// Whether the cursor stands on an entry.
    fn valid(&self) -> bool;

    /// The entry's key. Only while [`Cursor::valid`].
    fn key(&self) -> InternalKey<'_>;

    /// The entry's value, empty for a tombstone. Only while [`Cursor::valid`].
    fn value(&self) -> &[u8];

    /// The entry's value as bytes that outlive the next move, shared where the source allows.
    /// Only while [`Cursor::valid`].
    fn value_slice(&self) -> Slice;

    /// Moves to the first entry.
    ///
    /// # Errors
    /// When a block cannot be read.
    fn first(&mut self) -> Result<()>;

    /// Moves to the last entry.
    ///
    /// # Errors
    /// When a block cannot be read.
    fn last(&mut self) -> Result<()>;

    /// Moves to the first entry at or after (`user_key`, `seq`): the newest version of `user_key`
    /// that is not newer than `seq`, or the first entry of the next key.
    ///
    /// # Errors
    /// When a block cannot be read.
    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()>;

    /// Moves to the last entry strictly before (`user_key`, `seq`); with [`SeqNo::MAX`] that is the
    /// oldest version of the largest key smaller than `user_key`.
    ///
    /// # Errors
    /// When a block cannot be read.
    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()>;

    /// Moves to the next entry; past the last one the cursor is not valid. Only while valid.
    ///
    /// # Errors
    /// When a block cannot be read.
    fn next(&mut self) -> Result<()>;

    /// Moves to the entry before; before the first one the cursor is not valid. Only while valid.
    ///
    /// # Errors
    /// When a block cannot be read.
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
