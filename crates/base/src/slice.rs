//! Bytes that share their memory: a value read from a cached block is not copied.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;
use triomphe::HeaderSlice;

use crate::coding::len_u64;
use crate::sync::{Arc, ShardedCounter};

/// Most bytes that a slice holds by itself. As many as fit without making a slice larger than its
/// shared forms; nearly all keys do.
const INLINE_BYTES: usize = 38;

/// Immutable bytes that share their memory with the block or the write they came from.
///
/// Cloning is cheap. A slice keeps the whole block it lies in alive; `to_vec` (as on any `[u8]`)
/// detaches a copy. A few bytes are not worth sharing: up to 38 of them lie in the slice itself.
#[derive(Clone)]
pub struct Slice(Place);

/// Where the bytes are.
#[derive(Clone)]
enum Place {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Block(BlockBytes),
    Shared(Bytes),
}

const _: () = assert!(size_of::<Slice>() == 40, "inline bytes take no room of their own");

/// Contents of a block, or a part of them. The count of owners lies right before the bytes, so
/// whoever takes a part touches memory that it is about to read anyway.
#[derive(Clone)]
pub struct BlockBytes {
    block: triomphe::Arc<HeaderSlice<Counted, [u8]>>,
    /// Blocks are shorter than 4 GiB, see `BLOCK_CONTENT_BYTES_MAX`.
    at: u32,
    end: u32,
}

/// Bytes of blocks that somebody has: the cache, a cursor, a slice that a caller holds.
#[derive(Debug, Default)]
pub struct LiveBlocks {
    bytes: ShardedCounter,
}

impl LiveBlocks {
    /// Returns the bytes of all live blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Below zero while of some block only the end is in the sum.
        i64::try_from(self.bytes.sum()).map_or(0, i64::unsigned_abs)
    }
}

/// Counts the bytes of a block until the last who has it lets it go.
struct Counted {
    live: Option<Arc<LiveBlocks>>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.bytes.add(self.bytes.wrapping_neg());
        }
    }
}

impl BlockBytes {
    /// A copy of a block's contents. Bytes past 4 GiB, which no block has, are left out.
    pub fn copy_of(contents: &[u8]) -> BlockBytes {
        BlockBytes::counted(contents, None)
    }

    /// [`BlockBytes::copy_of`], counted among the live blocks.
    pub fn counted(contents: &[u8], live: Option<&Arc<LiveBlocks>>) -> BlockBytes {
        let (bytes, live) = (len_u64(contents.len()), live.cloned());
        if let Some(live) = &live {
            live.bytes.add(bytes);
        }
        let header = Counted { live, bytes };
        let block = triomphe::Arc::from_header_and_slice(header, contents);
        let end = u32::try_from(contents.len()).unwrap_or(u32::MAX);
        BlockBytes { block, at: 0, end }
    }

    /// The part between two offsets, which lie within and in order.
    #[inline]
    pub fn into_part(self, at: usize, end: usize) -> BlockBytes {
        debug_assert!(at <= end && end <= self.len());
        // The sums fit as they lie within these bytes.
        let place = |offset: usize| self.at + u32::try_from(offset).unwrap_or(0);
        let (at, end) = (place(at), place(end));
        BlockBytes { block: self.block, at, end }
    }
}

impl Deref for BlockBytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.block.slice[self.at as usize..self.end as usize]
    }
}

impl AsRef<[u8]> for BlockBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for BlockBytes {
    fn from(contents: Vec<u8>) -> BlockBytes {
        BlockBytes::copy_of(&contents)
    }
}

impl PartialEq for BlockBytes {
    fn eq(&self, other: &BlockBytes) -> bool {
        **self == **other
    }
}

impl fmt::Debug for BlockBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Slice {
    /// Wraps shared bytes.
    #[must_use]
    #[inline]
    pub fn new(bytes: Bytes) -> Slice {
        Slice(Place::Shared(bytes))
    }

    /// A copy of so few bytes that the slice holds them itself, or `None` if they are more.
    #[inline]
    pub fn inline(from: &[u8]) -> Option<Slice> {
        let mut bytes = [0; INLINE_BYTES];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        let len = u8::try_from(from.len()).ok()?;
        Some(Slice(Place::Inline { len, bytes }))
    }

    /// Wraps a part of a block, or copies it if it is short: then the block need not stay in memory
    /// for it.
    #[inline]
    pub fn of_block(part: BlockBytes) -> Slice {
        Slice::inline(&part).unwrap_or(Slice(Place::Block(part)))
    }

    /// The bytes as [`Bytes`]: shared, or copied if they are few.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Place::Shared(bytes) => bytes,
            Place::Block(part) => Bytes::from_owner(part),
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
            Place::Block(part) => part,
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
        let hasher = xxhash_rust::xxh3::Xxh3DefaultBuilder::new();
        for len in 0..60 {
            let bytes: Vec<u8> = (0..len).collect();
            let (copied, shared) = (Slice::from(bytes.as_slice()), Slice::from(bytes.clone()));
            let around = [&[9; 5], bytes.as_slice(), &[9; 7]].concat();
            let block = BlockBytes::from(around).into_part(2, bytes.len() + 8);
            let of_block = Slice::of_block(block.into_part(3, bytes.len() + 3));
            assert_eq!(Slice::inline(&bytes).is_some(), bytes.len() <= INLINE_BYTES);
            for slice in [&copied, &shared, &of_block] {
                assert_eq!(**slice, *bytes);
                assert_eq!(slice.clone().into_bytes(), bytes);
            }
            assert_eq!(copied, shared);
            assert_eq!(copied.cmp(&shared), Ordering::Equal);
            assert_eq!(hasher.hash_one(&copied), hasher.hash_one(&shared));
            let longer = Slice::from([bytes.as_slice(), &[0]].concat());
            assert!(copied < longer);
        }
    }

    #[test]
    fn slices_of_many_bytes_are_not_copied() {
        let block = BlockBytes::from(vec![7; 100]);
        let slice = Slice::of_block(block.clone().into_part(20, 90));
        assert_eq!(slice.as_ptr(), block[20..].as_ptr());
        assert_eq!(slice.into_bytes().as_ptr(), block[20..].as_ptr());
        let bytes = Bytes::from(vec![7; 100]);
        assert_eq!(Slice::new(bytes.clone()).as_ptr(), bytes.as_ptr());
    }
}
