//! Range deletes of a memtable, to be read while others are added, without a lock.
//!
//! They lie in chunks of spans that do not overlap, oldest and largest first. A new range delete is
//! a chunk of its own; as long as the last two chunks hold equally many, they are made one. So there
//! are at most log₂ n chunks for a reader to ask, each range delete takes part in log₂ n mergers,
//! and what a reader has in hand never changes.

use crate::format::range_tombstones::{RangeTombstone, Spans};
use crate::key::SeqNo;
use crate::sync::{Arc, ArcSwap, AtomicBool, Mutex, Ordering};

#[derive(Clone, Debug)]
struct Chunk {
    /// How many range deletes it holds, a power of two.
    count: u64,
    spans: Arc<Spans>,
}

/// The range deletes of one memtable.
#[derive(Debug)]
pub(super) struct MemtableSpans {
    /// Whether there are any: most memtables have none, and a lookup asks nothing else there. Set
    /// after the chunk is in place; pairs with the load of who asks.
    any: AtomicBool,
    chunks: ArcSwap<Vec<Chunk>>,
    /// Held by whoever adds one; guards the most bytes that the chunks ever took.
    adding: Mutex<u64>,
}

impl MemtableSpans {
    pub(super) fn new() -> MemtableSpans {
        MemtableSpans {
            any: AtomicBool::new(false),
            chunks: ArcSwap::default(),
            adding: Mutex::new(0),
        }
    }

    /// Adds one; returns the bytes that all of them together grew by.
    pub(super) fn insert(&self, span: RangeTombstone) -> u64 {
        let mut most = self.adding.lock();
        let mut chunks = Vec::clone(&self.chunks.load());
        let mut newest = Chunk { count: 1, spans: Arc::new(Spans::of(&[span])) };
        while let Some(older) = chunks.pop_if(|older| older.count == newest.count) {
            let both = [older.spans.as_slice(), newest.spans.as_slice()].concat();
            newest = Chunk { count: 2 * newest.count, spans: Arc::new(Spans::of(&both)) };
        }
        chunks.push(newest);
        let bytes = chunks.iter().map(|chunk| chunk.spans.bytes() as u64).sum::<u64>();
        self.chunks.store(Arc::new(chunks));
        self.any.store(true, Ordering::Release);
        // Making two chunks one may save some bytes; those stay charged.
        let grown = bytes.saturating_sub(*most);
        *most += grown;
        grown
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// The newest one that covers `user_key` for a reader at `snapshot`.
    #[inline]
    pub(super) fn covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        let chunks = self.chunks.load();
        chunks.iter().filter_map(|chunk| chunk.spans.covering(user_key, snapshot)).max()
    }

    /// All of them, in pieces that do not change.
    pub(super) fn chunks(&self) -> Vec<Arc<Spans>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.chunks.load().iter().map(|chunk| Arc::clone(&chunk.spans)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_covers_what_it_covers_alone(
            deletes in prop::collection::vec((0u8..20, 0u8..20), 0..60),
            keys in prop::collection::vec((0u8..20, 0u64..70), 30),
        ) {
            let spans = MemtableSpans::new();
            let mut grown = 0;
            for (seq, &(start, end)) in (1..).zip(&deletes) {
                let key = |key: u8| Bytes::copy_from_slice(&[key]);
                let end = (end != 7).then(|| key(end));
                grown += spans.insert(RangeTombstone { start: key(start), end, seqs: vec![SeqNo(seq)] });
            }
            let chunks = spans.chunks();
            prop_assert_eq!(chunks.len(), deletes.len().count_ones() as usize);
            prop_assert!(grown >= chunks.iter().map(|chunk| chunk.bytes() as u64).sum::<u64>());
            for (key, snapshot) in keys {
                let covers = |&(_, &(start, end)): &(u64, &(u8, u8))| start <= key && (key < end || end == 7);
                let numbered = (1u64..).zip(&deletes).filter(covers);
                let expected = numbered.map(|(seq, _)| seq).filter(|&seq| seq <= snapshot).max();
                prop_assert_eq!(spans.covering(&[key], SeqNo(snapshot)), expected.map(SeqNo));
            }
        }
    }
}
