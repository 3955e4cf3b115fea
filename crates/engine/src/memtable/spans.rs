//! Range tombstones of a memtable. Readers take no lock while others are added.
//!
//! 1. They lie in chunks, oldest and largest first. A new range tombstone is a chunk of its own. While the
//!    last two chunks hold equally many, they become one, which refers to both. So there are at most log₂ n
//!    chunks, and adding one copies nothing but references to chunks.
//! 2. The first reader of a chunk indexes it. A chunk of 2^k range tombstones arises once in 2^k additions,
//!    so all indexes together cost O(n log² n) in n additions with reads between them, and nothing
//!    without reads. A writer never waits for an index.
//!
//! Readers at older sequence numbers than the newest are served by the index, so a chunk keeps every range
//! tombstone.

use bytes::Bytes;
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::{Arc, ArcSwap, AtomicBool, Mutex, OnceLock, Ordering};
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_base::work_counter::{self, WorkKind};

/// Range tombstones up to which a lookup goes through a chunk without an index.
const SCANNED_MAX: u64 = 8;

/// Memory per range tombstone without its keys: node and share of the nodes above, with the counters of
/// their references, those of both keys, and the index.
const SPAN_BYTES: u64 =
    (2 * (size_of::<Node>() + 16) + 2 * 24 + TombstoneIndex::BYTES_PER_TOMBSTONE_MAX) as u64;

/// A range tombstone.
#[derive(Debug)]
struct Span {
    start: Bytes,
    /// First key past it; `None` for the end of the keyspace.
    end: Option<Bytes>,
    seq: SeqNo,
}

impl Span {
    fn covers(&self, user_key: &[u8]) -> bool {
        *self.start <= *user_key && self.end.as_ref().is_none_or(|end| *user_key < **end)
    }
}

/// Range tombstones as the leaves of a tree of chunks that became one.
#[derive(Debug)]
enum Node {
    One(Span),
    Both(Arc<Node>, Arc<Node>),
}

impl Node {
    /// Visits all range tombstones. The depth is that of chunks, at most 64.
    fn visit<'a>(&'a self, take: &mut impl FnMut(&'a Span)) {
        match self {
            Node::One(span) => take(span),
            Node::Both(older, newer) => {
                older.visit(take);
                newer.visit(take);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    /// Range tombstones in it, a power of two.
    count: u64,
    root: Arc<Node>,
    /// Made by the first reader that needs it.
    index: Arc<OnceLock<Arc<TombstoneIndex>>>,
}

impl Chunk {
    fn new(count: u64, root: Node) -> Chunk {
        Chunk { count, root: Arc::new(root), index: Arc::default() }
    }

    fn index(&self) -> &Arc<TombstoneIndex> {
        self.index.get_or_init(|| {
            let mut spans = Vec::new();
            self.root.visit(&mut |span| spans.push((&span.start, span.end.as_ref(), span.seq)));
            Arc::new(TombstoneIndex::new(spans))
        })
    }

    fn covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        if self.count > SCANNED_MAX {
            return self.index().newest_covering(user_key, snapshot);
        }
        let mut newest = None;
        self.root.visit(&mut |span| {
            if span.seq <= snapshot && span.covers(user_key) {
                newest = newest.max(Some(span.seq));
            }
        });
        newest
    }
}

/// The range tombstones of one memtable.
#[derive(Debug)]
pub(crate) struct MemtableSpans {
    /// Whether there are any: most memtables have none, and a lookup reads nothing else there. Set
    /// after the chunk is in place; pairs with the load in [`MemtableSpans::is_empty`].
    any: AtomicBool,
    chunks: ArcSwap<Vec<Chunk>>,
    /// Serializes additions to `chunks`.
    adding: Mutex<()>,
}

impl MemtableSpans {
    pub(crate) fn new() -> MemtableSpans {
        MemtableSpans {
            any: AtomicBool::new(false),
            chunks: ArcSwap::default(),
            adding: Mutex::new(()),
        }
    }

    /// Adds a range tombstone. Returns the memory that it takes, its share of an index included.
    pub(crate) fn insert(&self, start: Bytes, end: Option<Bytes>, seq: SeqNo) -> u64 {
        let key_bytes = start.len() + end.as_ref().map_or(0, Bytes::len);
        let mut newest = Chunk::new(1, Node::One(Span { start, end, seq }));
        let _adding = self.adding.lock();
        let mut chunks = Vec::clone(&self.chunks.load());
        work_counter::add(WorkKind::LeaderVisits, chunks.len());
        while let Some(older) = chunks.pop_if(|older| older.count == newest.count) {
            newest = Chunk::new(2 * newest.count, Node::Both(older.root, newest.root));
        }
        chunks.push(newest);
        self.chunks.store(Arc::new(chunks));
        self.any.store(true, Ordering::Release);
        SPAN_BYTES + key_bytes as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// The newest one that covers `user_key` for a reader at `snapshot`.
    #[inline]
    pub(crate) fn covering(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        let chunks = self.chunks.load();
        chunks.iter().filter_map(|chunk| chunk.covering(user_key, snapshot)).max()
    }

    /// Indexes of all of them; none if there are none.
    pub(crate) fn indexes(&self) -> Vec<Arc<TombstoneIndex>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.chunks.load().iter().map(|chunk| Arc::clone(chunk.index())).collect()
    }

    /// All of them, each with its one number.
    pub(crate) fn range_tombstones(&self) -> Vec<RangeTombstone> {
        let mut all = Vec::new();
        if !self.is_empty() {
            for chunk in self.chunks.load().iter() {
                chunk.root.visit(&mut |Span { start, end, seq }| {
                    let (start, end) = (start.clone(), end.clone());
                    all.push(RangeTombstone { start, end, seqs: vec![*seq] });
                });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn covering_equals_a_search_of_all_range_tombstones(
            deletes in prop::collection::vec((0u8..20, 0u8..20), 0..60),
            keys in prop::collection::vec((0u8..20, 0u64..70), 30),
        ) {
            let spans = MemtableSpans::new();
            for (seq, &(start, end)) in (1..).zip(&deletes) {
                let key = |key: u8| Bytes::copy_from_slice(&[key]);
                spans.insert(key(start), (end != 7).then(|| key(end)), SeqNo(seq));
            }
            prop_assert_eq!(spans.indexes().len(), deletes.len().count_ones() as usize);
            prop_assert_eq!(spans.range_tombstones().len(), deletes.len());
            for (key, snapshot) in keys {
                let covers = |&(_, &(start, end)): &(u64, &(u8, u8))| start <= key && (key < end || end == 7);
                let numbered = (1u64..).zip(&deletes).filter(covers);
                let expected = numbered.map(|(seq, _)| seq).filter(|&seq| seq <= snapshot).max();
                prop_assert_eq!(spans.covering(&[key], SeqNo(snapshot)), expected.map(SeqNo));
                let indexes = spans.indexes();
                let newest = indexes.iter().filter_map(|index| index.newest_covering(&[key], SeqNo(snapshot)));
                prop_assert_eq!(newest.max(), expected.map(SeqNo));
            }
        }
    }
}
