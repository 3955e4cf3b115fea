//! Key ranges: overlap, cover, hull.

use bytes::Bytes;

/// A user key. Cheap to clone: files of a tree share the bytes.
pub type Key = Bytes;

/// A range of user keys, both ends inclusive, in byte-wise order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Smallest key of the range.
    pub smallest: Key,
    /// Largest key of the range, inclusive.
    pub largest: Key,
}
