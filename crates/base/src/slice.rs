//! Immutable byte slices with shared ownership. Reads return values from cached blocks without a copy.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;
use triomphe::HeaderSlice;

use crate::coding::len_u64;
use crate::sync::{Arc, ShardedCounter};

/// Maximum length of an inline slice, in bytes. A larger limit would increase the size of [`Slice`]. Most keys are
/// shorter.
const INLINE_BYTES: usize = 38;

/// Immutable bytes, usually a part of a block or of a write.
///
/// Clones are cheap. A slice keeps its whole block in memory; `to_vec` makes an independent copy. Bytes from a block or
/// from a borrowed `[u8]` are copied into the slice itself if they have at most 38 bytes.
#[derive(Clone)]
pub struct Slice(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Block(BlockBytes),
    Shared(Bytes),
}

const _: () = assert!(size_of::<Slice>() == 40, "inline bytes do not increase the size");

/// A range of the contents of a block, with shared ownership of the block.
///
/// The reference count is stored directly before the contents. A clone therefore accesses memory that the reader needs
/// anyway.
#[derive(Clone)]
pub struct BlockBytes {
    block: triomphe::Arc<HeaderSlice<CountedBlockBytes, [u8]>>,
    /// 32 bits suffice: blocks are shorter than 4 GiB, see `BLOCK_CONTENT_BYTES_MAX`.
    start: u32,
    end: u32,
}

/// Counts the bytes of all blocks in memory: in caches, in iterators, and in slices that callers hold.
#[derive(Debug, Default)]
pub struct BlockMemoryCounter {
    bytes: ShardedCounter,
}

impl BlockMemoryCounter {
    /// Returns the total size of all live blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // The shards are read without a lock. The sum is negative if it includes the release of a block but not its
        // allocation.
        i64::try_from(self.bytes.sum()).map_or(0, i64::unsigned_abs)
    }
}

/// Part of a [`BlockMemoryCounter`]: the bytes of one block. They are subtracted when the last owner drops the block.
struct CountedBlockBytes {
    live: Option<Arc<BlockMemoryCounter>>,
    bytes: u64,
}

impl Drop for CountedBlockBytes {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.bytes.add(self.bytes.wrapping_neg());
        }
    }
}

impl BlockBytes {
    /// Copies the contents of a block. No block exceeds 4 GiB, so longer contents are truncated.
    pub fn copy_from(contents: &[u8]) -> BlockBytes {
        BlockBytes::copy_and_count(contents, None)
    }

    /// Copies the contents of a block and counts them in `live`.
    pub fn copy_and_count(contents: &[u8], live: Option<&Arc<BlockMemoryCounter>>) -> BlockBytes {
        let (bytes, live) = (len_u64(contents.len()), live.cloned());
        if let Some(live) = &live {
            live.bytes.add(bytes);
        }
        let header = CountedBlockBytes { live, bytes };
        let block = triomphe::Arc::from_header_and_slice(header, contents);
        let end = u32::try_from(contents.len()).unwrap_or(u32::MAX);
        BlockBytes { block, start: 0, end }
    }

    /// Returns the range from `start` to `end`, which must be within these bytes.
    #[inline]
    pub fn into_subrange(self, start: usize, end: usize) -> BlockBytes {
        debug_assert!(start <= end && end <= self.len());
        // The additions cannot overflow, because the sums are offsets within the block.
        let absolute = |offset: usize| self.start + u32::try_from(offset).unwrap_or(0);
        let (start, end) = (absolute(start), absolute(end));
        BlockBytes { block: self.block, start, end }
    }
}

impl Deref for BlockBytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.block.slice[self.start as usize..self.end as usize]
    }
}

impl AsRef<[u8]> for BlockBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for BlockBytes {
    fn from(contents: Vec<u8>) -> BlockBytes {
        BlockBytes::copy_from(&contents)
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
        Slice(Repr::Shared(bytes))
    }

    /// Copies the bytes into an inline slice. Returns `None` if they are too long.
    #[inline]
    pub fn new_inline(from: &[u8]) -> Option<Slice> {
        let mut bytes = [0; INLINE_BYTES];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        let len = u8::try_from(from.len()).ok()?;
        Some(Slice(Repr::Inline { len, bytes }))
    }

    /// Returns a slice of a part of a block. Copies short parts inline, so that they do not keep the block in memory.
    #[inline]
    pub fn from_block(part: BlockBytes) -> Slice {
        Slice::new_inline(&part).unwrap_or(Slice(Repr::Block(part)))
    }

    /// Returns the slice without its first `count` bytes, which it must have. Shares the memory of the rest.
    #[must_use]
    pub fn without_first(self, count: usize) -> Slice {
        match self.0 {
            Repr::Shared(bytes) => Slice::new(bytes.slice(count..)),
            Repr::Block(part) => {
                let end = part.len();
                Slice::from_block(part.into_subrange(count, end))
            }
            Repr::Inline { .. } => Slice::from(&self[count..]),
        }
    }

    /// Converts the slice to [`Bytes`]. Copies the bytes only if they are inline.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Repr::Shared(bytes) => bytes,
            Repr::Block(part) => Bytes::from_owner(part),
            Repr::Inline { .. } => Bytes::copy_from_slice(&self),
        }
    }
}

impl Deref for Slice {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Block(part) => part,
            Repr::Shared(bytes) => bytes,
        }
    }
}

impl Default for Slice {
    fn default() -> Slice {
        Slice(Repr::Inline { len: 0, bytes: [0; INLINE_BYTES] })
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
        Slice::new_inline(bytes).unwrap_or_else(|| Slice::new(Bytes::copy_from_slice(bytes)))
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
    fn slice_all_representations_compare_and_hash_equally() {
        let hasher = xxhash_rust::xxh3::Xxh3DefaultBuilder::new();
        for len in 0..60 {
            let bytes: Vec<u8> = (0..len).collect();
            let (copied, shared) = (Slice::from(bytes.as_slice()), Slice::from(bytes.clone()));
            let around = [&[9; 5], bytes.as_slice(), &[9; 7]].concat();
            let block = BlockBytes::from(around).into_subrange(2, bytes.len() + 8);
            let from_block = Slice::from_block(block.into_subrange(3, bytes.len() + 3));
            assert_eq!(Slice::new_inline(&bytes).is_some(), bytes.len() <= INLINE_BYTES);
            for slice in [&copied, &shared, &from_block] {
                assert_eq!(**slice, *bytes);
                assert_eq!(slice.clone().into_bytes(), bytes);
                let skipped = bytes.len().min(8);
                assert_eq!(*slice.clone().without_first(skipped), bytes[skipped..]);
            }
            assert_eq!(copied, shared);
            assert_eq!(copied.cmp(&shared), Ordering::Equal);
            assert_eq!(hasher.hash_one(&copied), hasher.hash_one(&shared));
            let longer = Slice::from([bytes.as_slice(), &[0]].concat());
            assert!(copied < longer);
        }
    }

    #[test]
    fn slice_of_long_bytes_is_not_copied() {
        let block = BlockBytes::from(vec![7; 100]);
        let slice = Slice::from_block(block.clone().into_subrange(20, 90));
        assert_eq!(slice.as_ptr(), block[20..].as_ptr());
        assert_eq!(slice.into_bytes().as_ptr(), block[20..].as_ptr());
        let bytes = Bytes::from(vec![7; 100]);
        assert_eq!(Slice::new(bytes.clone()).as_ptr(), bytes.as_ptr());
    }
}
