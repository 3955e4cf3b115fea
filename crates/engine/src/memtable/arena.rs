//! Arena: memory for the keys and values of a memtable.
//!
//! Entries are copied into chunks that belong to the memtable, so that the byte count of the memtable is exact. If
//! entries referred to the memory of a write batch instead, this memory would stay allocated until all keyspaces of the
//! batch are flushed. Chunks are reference counted. A reader can keep a value after the memtable is freed, which keeps
//! only one chunk allocated.
//!
//! Each memtable has an arena for inserts. WAL replay uses one arena for several memtables.

use bytes::{Bytes, BytesMut};
use lsmx_base::coding::len_u64;

/// Bytes of the first chunk. The first chunk is small, because a database may have many keyspaces with few entries.
const CHUNK_BYTES_MIN: usize = 1 << 9;
/// Maximum bytes of a chunk.
const CHUNK_BYTES_MAX: usize = 32 << 10;
/// Minimum bytes of an entry that gets its own allocation instead of a part of a chunk.
const LARGE_ENTRY_BYTES: usize = CHUNK_BYTES_MAX / 8;
/// Estimated overhead of an allocation in bytes: header of the allocator and reference count.
const ALLOCATION_OVERHEAD_BYTES: u64 = 48;

/// Allocates memory from chunks.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Unused part of the current chunk.
    chunk: BytesMut,
    next_chunk_bytes: usize,
}

impl Arena {
    pub(crate) fn new() -> Arena {
        Arena { chunk: BytesMut::new(), next_chunk_bytes: CHUNK_BYTES_MIN }
    }

    /// Copies a key and its payload.
    pub(crate) fn copy_entry(&mut self, key: &[u8], payload: &[u8]) -> CopiedEntry {
        let (data, allocated_bytes) = self.copy_key_and_payload(key, payload);
        CopiedEntry { data, key_bytes: key.len(), allocated_bytes }
    }

    /// Copies a key, followed by its payload. Returns the copy and the number of allocated bytes. This number includes
    /// the unused part of the previous chunk if a new chunk is allocated.
    fn copy_key_and_payload(&mut self, key: &[u8], payload: &[u8]) -> (Bytes, u64) {
        let bytes = key.len() + payload.len();
        if bytes >= LARGE_ENTRY_BYTES {
            let mut large = Vec::with_capacity(bytes);
            large.extend_from_slice(key);
            large.extend_from_slice(payload);
            return (Bytes::from(large), len_u64(bytes) + ALLOCATION_OVERHEAD_BYTES);
        }
        let mut allocated = len_u64(bytes);
        if self.chunk.capacity() < bytes {
            allocated += len_u64(self.chunk.capacity()) + ALLOCATION_OVERHEAD_BYTES;
            self.chunk = BytesMut::with_capacity(self.next_chunk_bytes.max(bytes));
            self.next_chunk_bytes = (2 * self.next_chunk_bytes).min(CHUNK_BYTES_MAX);
        }
        self.chunk.extend_from_slice(key);
        self.chunk.extend_from_slice(payload);
        (self.chunk.split().freeze(), allocated)
    }
}

/// A key and its payload in the memory of an arena.
#[derive(Debug)]
pub(crate) struct CopiedEntry {
    /// Key, followed by the payload.
    pub(crate) data: Bytes,
    pub(crate) key_bytes: usize,
    /// Bytes that the arena allocated for this entry.
    pub(crate) allocated_bytes: u64,
}

impl CopiedEntry {
    pub(crate) fn key(&self) -> &[u8] {
        &self.data[..self.key_bytes]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.data[self.key_bytes..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_keeps_copies_and_counts_allocated_bytes() {
        let mut arena = Arena::new();
        let (mut kept, mut total, mut large) = (Vec::new(), 0, 0);
        for size in (0..500).map(|at: usize| at * at % (2 * LARGE_ENTRY_BYTES)) {
            let (key, value) = (vec![7; size / 3], vec![8; size - size / 3]);
            let (data, allocated) = arena.copy_key_and_payload(&key, &value);
            total += allocated;
            large += if size < LARGE_ENTRY_BYTES { 0 } else { allocated };
            kept.push((data, [key, value].concat()));
        }
        assert!(kept.iter().all(|(data, expected)| data == expected));
        // The entries in chunks and the unused part of the last chunk add up to whole chunks: one chunk of each smaller
        // size, and several chunks of the maximum size.
        let in_chunks = total - large + len_u64(arena.chunk.capacity());
        let smaller = len_u64(CHUNK_BYTES_MAX - CHUNK_BYTES_MIN) + 6 * ALLOCATION_OVERHEAD_BYTES;
        assert_eq!(
            (in_chunks - smaller) % (len_u64(CHUNK_BYTES_MAX) + ALLOCATION_OVERHEAD_BYTES),
            0
        );
    }
}
