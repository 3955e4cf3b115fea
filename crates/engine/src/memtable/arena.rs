//! Memory for keys and values of a memtable.
//!
//! They are copied into chunks of the memtable's own: what it holds is then what it counts, while
//! memory shared with the log, or with a batch that writes to many trees, would stay as long as the
//! last of its trees has an entry there. Handles to a chunk are counted, so that a reader may keep a
//! value when the memtable is gone, and no more than a chunk with it.
//!
//! A memtable has an arena for what is inserted. What is replayed comes with memory from another one,
//! which its memtables share.

use bytes::{Bytes, BytesMut};
use lsmx_base::coding::len_u64;

/// Bytes of the first chunk: most of thousands of keyspaces may hold next to nothing.
const CHUNK_BYTES_MIN: usize = 1 << 9;
/// Bytes of a chunk once the memtable is large.
const CHUNK_BYTES_MAX: usize = 32 << 10;
/// From so many bytes on an entry has its memory to itself.
const ALONE_BYTES: usize = CHUNK_BYTES_MAX / 8;
/// What an allocation takes besides: the allocator's header, and the count of its handles.
const ALLOCATION_BYTES: u64 = 48;

/// Gives out memory, chunk by chunk.
#[derive(Debug)]
pub(crate) struct Arena {
    /// What is left of the chunk at hand; nothing is written there yet.
    chunk: BytesMut,
    /// Size of the next chunk.
    next_bytes: usize,
}

impl Arena {
    pub(crate) fn new() -> Arena {
        Arena { chunk: BytesMut::new(), next_bytes: CHUNK_BYTES_MIN }
    }

    /// Copies a key and a value, or whatever belongs behind the key.
    pub(crate) fn copy(&mut self, key: &[u8], value: &[u8]) -> Copied {
        let (data, taken_bytes) = self.put(key, value);
        Copied { data, key_bytes: key.len(), taken_bytes }
    }

    /// Copies a key and a value, one behind the other. Returns the bytes that this takes, too, with
    /// what is left of a chunk that they do not fit into.
    fn put(&mut self, key: &[u8], value: &[u8]) -> (Bytes, u64) {
        let bytes = key.len() + value.len();
        if bytes >= ALONE_BYTES {
            let mut alone = Vec::with_capacity(bytes);
            alone.extend_from_slice(key);
            alone.extend_from_slice(value);
            return (Bytes::from(alone), len_u64(bytes) + ALLOCATION_BYTES);
        }
        let mut taken = len_u64(bytes);
        if self.chunk.capacity() < bytes {
            taken += len_u64(self.chunk.capacity()) + ALLOCATION_BYTES;
            self.chunk = BytesMut::with_capacity(self.next_bytes.max(bytes));
            self.next_bytes = (2 * self.next_bytes).min(CHUNK_BYTES_MAX);
        }
        self.chunk.extend_from_slice(key);
        self.chunk.extend_from_slice(value);
        (self.chunk.split().freeze(), taken)
    }
}

/// A key and a value that lie in memory of an arena.
#[derive(Debug)]
pub(crate) struct Copied {
    /// One behind the other.
    pub(crate) data: Bytes,
    pub(crate) key_bytes: usize,
    /// Bytes of memory that this took.
    pub(crate) taken_bytes: u64,
}

impl Copied {
    pub(crate) fn key(&self) -> &[u8] {
        &self.data[..self.key_bytes]
    }

    pub(crate) fn behind_key(&self) -> &[u8] {
        &self.data[self.key_bytes..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_stays_and_what_it_takes_is_told() {
        let mut arena = Arena::new();
        let (mut kept, mut told, mut alone) = (Vec::new(), 0, 0);
        for size in (0..500).map(|at: usize| at * at % (2 * ALONE_BYTES)) {
            let (key, value) = (vec![7; size / 3], vec![8; size - size / 3]);
            let (data, taken) = arena.put(&key, &value);
            told += taken;
            alone += if size < ALONE_BYTES { 0 } else { taken };
            kept.push((data, [key, value].concat()));
        }
        assert!(kept.iter().all(|(data, expected)| data == expected));
        // What is in chunks, with what is left of the last, is whole chunks: of each size below the
        // largest one, of that several.
        let in_chunks = told - alone + len_u64(arena.chunk.capacity());
        let smaller = len_u64(CHUNK_BYTES_MAX - CHUNK_BYTES_MIN) + 6 * ALLOCATION_BYTES;
        assert_eq!((in_chunks - smaller) % (len_u64(CHUNK_BYTES_MAX) + ALLOCATION_BYTES), 0);
    }
}
