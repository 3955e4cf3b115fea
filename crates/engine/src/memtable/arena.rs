//! Memory for keys and values of a memtable.
//!
//! They are copied into chunks of the memtable's own: what it holds is then what it counts, while
//! memory shared with the log, or with a batch that writes to many trees, would stay as long as the
//! last of its trees has an entry there. Handles to a chunk are counted, so that a reader may keep a
//! value when the memtable is gone, and no more than a chunk with it.

use bytes::{Bytes, BytesMut};

/// Bytes of the first chunk: most of thousands of keyspaces may hold next to nothing.
const CHUNK_BYTES_MIN: usize = 1 << 10;
/// Bytes of a chunk once the memtable is large.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// From so many bytes on an entry has its memory to itself.
const ALONE_BYTES: usize = CHUNK_BYTES_MAX / 8;

/// Gives out memory, chunk by chunk.
#[derive(Debug)]
pub(super) struct Arena {
    /// What is left of the chunk at hand; nothing is written there yet.
    chunk: BytesMut,
    /// Size of the next chunk.
    next_bytes: usize,
}

impl Arena {
    pub(super) fn new() -> Arena {
        Arena { chunk: BytesMut::new(), next_bytes: CHUNK_BYTES_MIN }
    }

    /// Copies a key and a value, one behind the other. Returns bytes that were left unused in the
    /// chunk before, too.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> (Bytes, usize) {
        let bytes = key.len() + value.len();
        if bytes >= ALONE_BYTES {
            let mut alone = Vec::with_capacity(bytes);
            alone.extend_from_slice(key);
            alone.extend_from_slice(value);
            return (Bytes::from(alone), 0);
        }
        let mut unused = 0;
        if self.chunk.capacity() < bytes {
            unused = self.chunk.capacity();
            self.chunk = BytesMut::with_capacity(self.next_bytes.max(bytes));
            self.next_bytes = (2 * self.next_bytes).min(CHUNK_BYTES_MAX);
        }
        self.chunk.extend_from_slice(key);
        self.chunk.extend_from_slice(value);
        (self.chunk.split().freeze(), unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_stays_and_what_is_left_is_told() {
        let mut arena = Arena::new();
        let (mut kept, mut put, mut unused) = (Vec::new(), 0, 0);
        for size in (0..500).map(|at: usize| at * at % 9_973) {
            let (key, value) = (vec![7; size / 3], vec![8; size - size / 3]);
            let (data, left) = arena.put(&key, &value);
            if size < ALONE_BYTES {
                (put, unused) = (put + size, unused + left);
            }
            kept.push((data, [key, value].concat()));
        }
        assert!(kept.iter().all(|(data, expected)| data == expected));
        let chunks = put + unused + arena.chunk.capacity();
        let grown: usize = (10..16).map(|power| 1 << power).sum();
        assert!(chunks > grown && (chunks - grown) % CHUNK_BYTES_MAX < CHUNK_BYTES_MAX / 4);
    }
}
