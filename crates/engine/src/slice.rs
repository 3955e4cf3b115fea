//! Bytes that share their memory: a value read from a cached block is not copied.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

/// Immutable bytes that share their memory with the block or the write they came from.
///
/// Cloning is cheap. A slice keeps the whole block it lies in alive; `to_vec` (as on any `[u8]`)
/// detaches a copy.
#[derive(Clone, Default, Eq, Hash, PartialOrd, Ord)]
pub struct Slice(Bytes);

impl Slice {
    /// Wraps shared bytes.
    #[must_use]
    pub fn new(bytes: Bytes) -> Slice {
        Slice(bytes)
    }

    /// The shared bytes inside.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Bytes> for Slice {
    fn from(bytes: Bytes) -> Slice {
        Slice(bytes)
    }
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Slice {
        Slice(Bytes::from(bytes))
    }
}

impl From<&[u8]> for Slice {
    fn from(bytes: &[u8]) -> Slice {
        Slice(Bytes::copy_from_slice(bytes))
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Slice {
    fn eq(&self, other: &T) -> bool {
        &*self.0 == other.as_ref()
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
