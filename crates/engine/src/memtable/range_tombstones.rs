//! Range tombstones of a memtable, with lock-free readers.
//!
//! 1. The range tombstones are stored in a list of chunks. The oldest chunk is first and largest. A new range tombstone
//!    becomes a chunk of its own. While the last two chunks have equal size, they are combined into one chunk that
//!    refers to both. Therefore n range tombstones have at most log₂ n + 1 chunks, and an insert copies only references
//!    to chunks.
//! 2. The first reader that needs the index of a chunk builds the index. A chunk of 2^k range tombstones is created
//!    once in 2^k inserts, so n inserts with reads in between cost O(n log² n) for the indexes. Without reads no index
//!    is built. A writer never waits for an index.
//!
//! A chunk keeps all range tombstones, including those that a newer range tombstone covers, because readers at older
//! sequence numbers need them.

use bytes::Bytes;
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::{Arc, ArcSwap, AtomicBool, Mutex, OnceLock, Ordering};
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_base::work_counter::{self, WorkKind};

/// Maximum number of range tombstones in a chunk that lookups scan without an index.
const SCANNED_CHUNK_MAX: u64 = 8;

/// Bytes of a range tombstone without its keys: a leaf node, a share of the inner nodes, the reference counts of the
/// nodes and of both keys, and the index.
const TOMBSTONE_BYTES: u64 = (2 * (size_of::<TombstoneNode>() + 16)
    + 2 * 24
    + TombstoneIndex::BYTES_PER_TOMBSTONE_MAX) as u64;

#[derive(Debug)]
struct MemtableTombstone {
    start: Bytes,
    /// First key after the range, or `None` if the range extends to the end of the keyspace.
    end: Option<Bytes>,
    seq: SeqNo,
}

impl MemtableTombstone {
    fn covers(&self, user_key: &[u8]) -> bool {
        *self.start <= *user_key && self.end.as_ref().is_none_or(|end| *user_key < **end)
    }
}

/// Node of a binary tree. The leaves are range tombstones. An inner node combines two chunks of equal size.
#[derive(Debug)]
enum TombstoneNode {
    Leaf(MemtableTombstone),
    Inner { older: Arc<TombstoneNode>, newer: Arc<TombstoneNode> },
}

impl TombstoneNode {
    /// Calls `visitor` for all range tombstones of the subtree, oldest first. The recursion depth is at most 64,
    /// because each level doubles the number of range tombstones.
    fn visit_tombstones<'a>(&'a self, visitor: &mut impl FnMut(&'a MemtableTombstone)) {
        match self {
            TombstoneNode::Leaf(tombstone) => visitor(tombstone),
            TombstoneNode::Inner { older, newer } => {
                older.visit_tombstones(visitor);
                newer.visit_tombstones(visitor);
            }
        }
    }
}

/// A chunk of range tombstones, see the module documentation.
#[derive(Clone, Debug)]
struct TombstoneChunk {
    /// Number of range tombstones, a power of two.
    count: u64,
    root: Arc<TombstoneNode>,
    /// Index of the range tombstones, built by the first reader that needs the index.
    index: Arc<OnceLock<Arc<TombstoneIndex>>>,
}

impl TombstoneChunk {
    fn new(count: u64, root: TombstoneNode) -> TombstoneChunk {
        TombstoneChunk { count, root: Arc::new(root), index: Arc::default() }
    }

    fn get_or_build_index(&self) -> &Arc<TombstoneIndex> {
        self.index.get_or_init(|| {
            let mut all = Vec::new();
            self.root
                .visit_tombstones(&mut |one| all.push((&one.start, one.end.as_ref(), one.seq)));
            Arc::new(TombstoneIndex::new(all))
        })
    }

    fn newest_covering_seq(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        if self.count > SCANNED_CHUNK_MAX {
            return self.get_or_build_index().newest_covering(user_key, snapshot);
        }
        let mut newest = None;
        self.root.visit_tombstones(&mut |tombstone| {
            if tombstone.seq <= snapshot && tombstone.covers(user_key) {
                newest = newest.max(Some(tombstone.seq));
            }
        });
        newest
    }
}

/// The range tombstones of one memtable.
#[derive(Debug)]
pub(crate) struct MemtableRangeTombstones {
    /// True if there are range tombstones. Most memtables have none, and a lookup then reads only this flag. `insert`
    /// stores `chunks` before this flag. The release store in `insert` pairs with the acquire load in `is_empty`.
    has_any: AtomicBool,
    chunks: ArcSwap<Vec<TombstoneChunk>>,
    /// Serializes changes of `chunks`.
    insert_lock: Mutex<()>,
}

impl MemtableRangeTombstones {
    pub(crate) fn new() -> MemtableRangeTombstones {
        MemtableRangeTombstones {
            has_any: AtomicBool::new(false),
            chunks: ArcSwap::default(),
            insert_lock: Mutex::new(()),
        }
    }

    /// Inserts a range tombstone. Returns the number of bytes of memory that the range tombstone needs.
    pub(crate) fn insert(&self, start: Bytes, end: Option<Bytes>, seq: SeqNo) -> u64 {
        let key_bytes = start.len() + end.as_ref().map_or(0, Bytes::len);
        let mut newest =
            TombstoneChunk::new(1, TombstoneNode::Leaf(MemtableTombstone { start, end, seq }));
        let _guard = self.insert_lock.lock();
        let mut chunks = Vec::clone(&self.chunks.load());
        work_counter::add(WorkKind::LeaderVisits, chunks.len());
        while let Some(older) = chunks.pop_if(|older| older.count == newest.count) {
            let combined = TombstoneNode::Inner { older: older.root, newer: newest.root };
            newest = TombstoneChunk::new(2 * newest.count, combined);
        }
        chunks.push(newest);
        self.chunks.store(Arc::new(chunks));
        self.has_any.store(true, Ordering::Release);
        TOMBSTONE_BYTES + key_bytes as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_any.load(Ordering::Acquire)
    }

    /// Returns the sequence number of the newest range tombstone that covers `user_key` and is not newer than
    /// `snapshot`.
    #[inline]
    pub(crate) fn newest_covering_seq(&self, user_key: &[u8], snapshot: SeqNo) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        let chunks = self.chunks.load();
        chunks.iter().filter_map(|chunk| chunk.newest_covering_seq(user_key, snapshot)).max()
    }

    pub(crate) fn chunk_indexes(&self) -> Vec<Arc<TombstoneIndex>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.chunks.load().iter().map(|chunk| Arc::clone(chunk.get_or_build_index())).collect()
    }

    /// Returns all range tombstones, each with one sequence number.
    pub(crate) fn to_vec(&self) -> Vec<RangeTombstone> {
        let mut all = Vec::new();
        if !self.is_empty() {
            for chunk in self.chunks.load().iter() {
                chunk.root.visit_tombstones(&mut |MemtableTombstone { start, end, seq }| {
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
        fn newest_covering_equals_linear_search(
            deletes in prop::collection::vec((0u8..20, 0u8..20), 0..60),
            keys in prop::collection::vec((0u8..20, 0u64..70), 30),
        ) {
            let tombstones = MemtableRangeTombstones::new();
            for (seq, &(start, end)) in (1..).zip(&deletes) {
                let key = |key: u8| Bytes::copy_from_slice(&[key]);
                tombstones.insert(key(start), (end != 7).then(|| key(end)), SeqNo(seq));
            }
            prop_assert_eq!(tombstones.chunk_indexes().len(), deletes.len().count_ones() as usize);
            prop_assert_eq!(tombstones.to_vec().len(), deletes.len());
            for (key, snapshot) in keys {
                let covers = |&(_, &(start, end)): &(u64, &(u8, u8))| start <= key && (key < end || end == 7);
                let numbered = (1u64..).zip(&deletes).filter(covers);
                let expected = numbered.map(|(seq, _)| seq).filter(|&seq| seq <= snapshot).max();
                prop_assert_eq!(tombstones.newest_covering_seq(&[key], SeqNo(snapshot)), expected.map(SeqNo));
                let indexes = tombstones.chunk_indexes();
                let newest = indexes.iter().filter_map(|index| index.newest_covering(&[key], SeqNo(snapshot)));
                prop_assert_eq!(newest.max(), expected.map(SeqNo));
            }
        }
    }
}
