//! Database operations that are decoded from the bytes of a fuzz input.

use std::ops::Bound;

use lsmx::vfs::CrashImage;

/// Keys that operations use, in ascending order. Some keys are prefixes of others, and some contain the bytes 0x00 or
/// 0xff.
pub(super) const KEYS: [&[u8]; 16] = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"aa",
    b"aaaaaaaaaaaaaaaa",
    b"aaaaaaaaaaaaaaab",
    b"ab",
    b"b",
    b"key-0001",
    b"key-0002",
    b"key-00020",
    b"\xfe\xff",
    b"\xff",
    b"\xff\xff",
];
/// Maximum number of open snapshots.
pub(super) const SNAPSHOTS_MAX: usize = 3;

/// Bounds of a key range. The end may be smaller than the start.
pub(super) type KeyBounds = (Bound<&'static [u8]>, Bound<&'static [u8]>);

#[derive(Clone, Copy, Debug)]
pub(super) enum Write {
    /// Puts a value of `bytes` bytes.
    Put {
        keyspace: usize,
        key: &'static [u8],
        bytes: usize,
    },
    Delete {
        keyspace: usize,
        key: &'static [u8],
    },
    /// Writes a merge operand of `bytes` bytes.
    Merge {
        keyspace: usize,
        key: &'static [u8],
        bytes: usize,
    },
    DeleteRange {
        keyspace: usize,
        bounds: KeyBounds,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    WriteBatch {
        writes: Vec<Write>,
        sync: bool,
    },
    /// Moves an iterator once per step (`true`: forward), then forward to the end of the range.
    Iterate {
        keyspace: usize,
        bounds: KeyBounds,
        steps: Vec<bool>,
    },
    TakeSnapshot,
    /// Drops the snapshot at this index. Does nothing if the index is out of bounds.
    DropSnapshot(usize),
    Flush,
    CompactRange {
        keyspace: usize,
        bounds: KeyBounds,
    },
    /// Sets a compaction policy preset. `preset` is an index, taken modulo the number of presets.
    SetPolicy {
        keyspace: usize,
        preset: usize,
    },
    Sync,
    /// Reopens the database, after a call of `close` or after the handle was dropped.
    Reopen {
        close: bool,
    },
    Crash {
        image: CrashImage,
        seed: u64,
    },
}

/// Decodes operations. Bytes beyond the end of the input are 0.
pub(super) struct OperationDecoder<'a>(pub(super) &'a [u8]);

impl OperationDecoder<'_> {
    pub(super) fn next_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn next_below(&mut self, end: usize) -> usize {
        usize::from(self.next_byte().unwrap_or(0)) % end
    }

    fn next_bound(&mut self) -> Bound<&'static [u8]> {
        match self.next_below(2 * KEYS.len() + 1).checked_sub(1) {
            None => Bound::Unbounded,
            Some(index) if index < KEYS.len() => Bound::Included(KEYS[index]),
            Some(index) => Bound::Excluded(KEYS[index - KEYS.len()]),
        }
    }

    fn next_bounds(&mut self) -> KeyBounds {
        (self.next_bound(), self.next_bound())
    }

    fn next_write(&mut self) -> Write {
        let (kind, keyspace) = (self.next_below(6), self.next_below(2));
        if kind == 0 {
            return Write::DeleteRange { keyspace, bounds: self.next_bounds() };
        }
        let key = KEYS[self.next_below(KEYS.len())];
        match kind {
            1 => Write::Delete { keyspace, key },
            2 | 3 => Write::Merge { keyspace, key, bytes: self.next_below(64) },
            _ => Write::Put { keyspace, key, bytes: self.next_below(64) },
        }
    }

    /// Decodes the next operation. Returns `None` at the end of the input.
    pub(super) fn next_operation(&mut self) -> Option<Operation> {
        let kind = self.next_byte()? % 32;
        Some(match kind {
            0 => Operation::Flush,
            1 => {
                let (keyspace, bounds) = (self.next_below(2), self.next_bounds());
                let bits = self.next_below(256);
                let steps = (0..8).map(|bit| bits >> bit & 1 == 1).collect();
                Operation::Iterate { keyspace, bounds, steps }
            }
            2 => Operation::TakeSnapshot,
            3 => Operation::DropSnapshot(self.next_below(SNAPSHOTS_MAX)),
            4 => {
                Operation::CompactRange { keyspace: self.next_below(2), bounds: self.next_bounds() }
            }
            5 => {
                Operation::SetPolicy { keyspace: self.next_below(2), preset: self.next_below(256) }
            }
            6 => Operation::Sync,
            7 => Operation::Reopen { close: self.next_below(2) == 0 },
            8 => {
                let image = CrashImage::ALL[self.next_below(CrashImage::ALL.len())];
                Operation::Crash { image, seed: u64::from(self.next_byte().unwrap_or(0)) }
            }
            9..13 => {
                let count = self.next_below(6);
                let writes = (0..count).map(|_| self.next_write()).collect();
                Operation::WriteBatch { writes, sync: kind == 9 }
            }
            _ => Operation::WriteBatch { writes: vec![self.next_write()], sync: kind == 13 },
        })
    }
}

/// Returns encoded sequences of operations that reach rare states.
#[must_use]
pub(crate) fn operation_seeds() -> Vec<Vec<u8>> {
    let put = |keyspace, key, bytes| [14, 4, keyspace, key, bytes];
    let merge = |keyspace, key, bytes| [14, 2, keyspace, key, bytes];
    let delete = |keyspace, key| [14, 1, keyspace, key];
    let compact_all = |keyspace| [4, keyspace, 0, 0];
    // Flushes overlapping tables and changes the policy after each flush.
    let rounds = (0..6).flat_map(|round| {
        let puts = (0..5).flat_map(|key| put(round % 2, (key * 3 + round) % 16, 60));
        puts.chain([0, 5, round % 2, round * 5]).collect::<Vec<u8>>()
    });
    vec![
        // Writes a range tombstone and a point tombstone above a table, iterates from both ends, and compacts.
        [
            &[1][..],
            &put(0, 3, 40),
            &put(0, 4, 30),
            &put(0, 9, 30),
            &[0],
            &delete(0, 9),
            &[14, 0, 0, 4, 6],
            &[1, 0, 0, 0, 0x5a],
            &compact_all(0),
            &[1, 0, 4, 20, 0xaa],
        ]
        .concat(),
        // Writes merge operands with and without a base value. Compacts with a snapshot, and again without it.
        [
            &[0][..],
            &merge(0, 3, 5),
            &merge(1, 3, 50),
            &[2],
            &merge(0, 3, 6),
            &[0],
            &merge(1, 3, 60),
            &delete(0, 3),
            &merge(0, 3, 4),
            &[0],
            &compact_all(0),
            &[3, 0],
            &compact_all(1),
            &[7, 0],
        ]
        .concat(),
        // Writes batches to both keyspaces and values to blob files, and simulates several kinds of power loss.
        [
            &[8][..],
            &[10, 3, 4, 0, 1, 50, 4, 1, 1, 20, 2, 0, 2, 8],
            &[13, 4, 0, 5, 9],
            &[10, 2, 1, 0, 1, 0, 1, 0, 0],
            &[8, 2, 7],
            &put(1, 9, 30),
            &[8, 5, 1, 6],
            &put(0, 0, 10),
            &[0, 8, 0, 3],
            &put(0, 0, 11),
            &[8, 6, 9, 7, 1],
        ]
        .concat(),
        [1].into_iter().chain(rounds).chain(compact_all(0)).chain([7, 1, 7, 0]).collect(),
    ]
}
