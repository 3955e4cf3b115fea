//! Bytes that share their memory: a value read from a cached block is not copied.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// Most bytes that a slice holds by itself. As large as fits without making a slice larger than
/// [`Bytes`]; most keys do.
const INLINE_BYTES: usize = 23;

/// Immutable bytes that share their memory with the block or the write they came from.
///
/// Cloning is cheap. A slice keeps the whole block it lies in alive; `to_vec` (as on any `[u8]`)
/// detaches a copy. A few bytes are not worth sharing: up to 23 of them lie in the slice itself.
#[derive(Clone)]
pub struct Slice(Place);

/// Where the bytes are.
#[derive(Clone)]
enum Place {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Shared(Bytes),
}

const _: () = assert!(size_of::<Slice>() == size_of::<Bytes>(), "inline bytes take no room");

impl Slice {
    /// Wraps shared bytes.
    #[must_use]
    #[inline]
    pub fn new(bytes: Bytes) -> Slice {
        Slice(Place::Shared(bytes))
    }

    /// A copy of so few bytes that the slice holds them itself, or `None` if they are more.
    #[inline]
    pub(crate) fn inline(from: &[u8]) -> Option<Slice> {
        let mut bytes = [0; INLINE_BYTES];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        let len = u8::try_from(from.len()).ok()?;
        Some(Slice(Place::Inline { len, bytes }))
    }

    /// The bytes as [`Bytes`]: shared, or copied if they are few.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Place::Shared(bytes) => bytes,
            Place::Inline { .. } => Bytes::copy_from_slice(&self),
        }
    }
}

impl Deref for Slice {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Place::Shared(bytes) => bytes,
        }
    }
}

impl Default for Slice {
    fn default() -> Slice {
        Slice(Place::Inline { len: 0, bytes: [0; INLINE_BYTES] })
    }
}

impl AsRef<[u8]> for Slice {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Bytes> for Slice {
    fn from(bytes: Bytes) -> Slice {
        Slice::new(bytes)
    }
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Slice {
        Slice::new(Bytes::from(bytes))
    }
}

impl From<&[u8]> for Slice {
    #[inline]
    fn from(bytes: &[u8]) -> Slice {
        Slice::inline(bytes).unwrap_or_else(|| Slice::new(Bytes::copy_from_slice(bytes)))
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Slice {
    #[inline]
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Slice {}

impl PartialOrd for Slice {
    fn partial_cmp(&self, other: &Slice) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slice {
    fn cmp(&self, other: &Slice) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Slice {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn where_the_bytes_are_makes_no_difference() {
        let hasher = std::hash::RandomState::new();
        for len in 0..60 {
            let bytes: Vec<u8> = (0..len).collect();
            let (copied, shared) = (Slice::from(bytes.as_slice()), Slice::from(bytes.clone()));
            assert_eq!(Slice::inline(&bytes).is_some(), bytes.len() <= INLINE_BYTES);
            for slice in [&copied, &shared] {
                assert_eq!(**slice, *bytes);
                assert_eq!(slice.clone().into_bytes(), bytes);
            }
            assert_eq!(copied, shared);
            assert_eq!(copied.cmp(&shared), Ordering::Equal);
            assert_eq!(hasher.hash_one(&copied), hasher.hash_one(&shared));
            assert!(copied < Slice::from([bytes.as_slice(), &[0]].concat()));
        }
    }

    #[test]
    fn slices_of_many_bytes_are_not_copied() {
        let bytes = Bytes::from(vec![7; 100]);
        assert_eq!(Slice::new(bytes.clone()).as_ptr(), bytes.as_ptr());
    }
}
