//! A batch: operations on any keyspaces of one database that happen together or not at all.

use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::range_tombstone::successor;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::batch::{operation_bytes, put_operation, put_range_delete};
use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::memtable;
use crate::tree::Tree;
use crate::tree::key_hashes::key_hash;

/// Largest batch, keys, values and a few bytes per operation: 2 GiB less one byte.
pub const BATCH_BYTES_MAX: u64 = (1 << 31) - 1;

/// A condition of a batch: the key was not written after this number.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) tree: Arc<Tree>,
    pub(crate) key: Bytes,
    pub(crate) key_hash: u64,
    pub(crate) read: SeqNo,
}

/// Operations that take effect together, in the order they were added.
///
/// A key or value past its limit, a batch past [`BATCH_BYTES_MAX`], or a merge in a keyspace without
/// an operator makes the write of the whole batch fail.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    pub(crate) payload: Vec<u8>,
    pub(crate) count: u32,
    /// Keyspaces it touches, each once.
    pub(crate) trees: Vec<Arc<Tree>>,
    pub(crate) guards: Vec<Guard>,
    refused: Option<Error>,
}

impl WriteBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// A batch with room for exactly one operation.
    pub(crate) fn for_one(keyspace: u32, key: &[u8], value: &[u8]) -> WriteBatch {
        // What is past the limits is refused before it is copied.
        let fits = len_u64(key.len()) <= KEY_BYTES_MAX && len_u64(value.len()) <= VALUE_BYTES_MAX;
        let bytes = if fits { operation_bytes(keyspace, key, value) } else { 0 };
        WriteBatch { payload: Vec::with_capacity(bytes), ..WriteBatch::default() }
    }

    /// Operations in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes it takes in the log, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        len_u64(self.payload.len())
    }

    /// Bytes it takes in memtables, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes().saturating_add(u64::from(self.count) * memtable::ENTRY_OVERHEAD_BYTES)
    }

    /// Forgets all operations and guards, and keeps the memory.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.count = 0;
        self.trees.clear();
        self.guards.clear();
        self.refused = None;
    }

    /// Why it cannot be written, if it cannot.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Adds an operation.
    pub(crate) fn add(&mut self, tree: &Arc<Tree>, kind: EntryKind, key: &[u8], value: &[u8]) {
        let bytes = operation_bytes(tree.id, key, value);
        let sizes = [
            ("key", len_u64(key.len()), KEY_BYTES_MAX),
            ("value", len_u64(value.len()), VALUE_BYTES_MAX),
        ];
        if !self.admits(&sizes, bytes) {
            return;
        }
        if kind == EntryKind::Merge
            && let Err(error) = tree.merging.operator()
        {
            self.refused.get_or_insert(error);
            return;
        }
        put_operation(&mut self.payload, kind, tree.id, key, value);
        self.added(tree);
    }

    /// Adds a range delete, unless no key can be between the bounds.
    pub(crate) fn add_range_delete(
        &mut self,
        tree: &Arc<Tree>,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) {
        let bytes_of = |bound: Bound<&[u8]>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => len_u64(key.len()),
            Bound::Unbounded => 0,
        };
        let sizes =
            [("key", bytes_of(start), KEY_BYTES_MAX), ("key", bytes_of(end), KEY_BYTES_MAX)];
        // Before a key past its limit is copied.
        if !self.admits(&sizes, 0) {
            return;
        }
        let start = match start {
            Bound::Unbounded => Bytes::new(),
            Bound::Included(key) => Bytes::copy_from_slice(key),
            Bound::Excluded(key) => successor(key),
        };
        let end = match end {
            Bound::Unbounded => None,
            Bound::Excluded(key) => Some(Bytes::copy_from_slice(key)),
            Bound::Included(key) => Some(successor(key)),
        };
        if end.as_ref().is_some_and(|end| *end <= start) {
            return;
        }
        // An end takes what a value would, and one byte for its kind.
        let bytes = operation_bytes(tree.id, &start, end.as_deref().unwrap_or_default()) + 1;
        if self.admits(&[], bytes) {
            put_range_delete(&mut self.payload, tree.id, &start, end.as_deref());
            self.added(tree);
        }
    }

    /// Whether an operation of these sizes, which takes so many bytes, is within the limits. If it is
    /// not, the batch cannot be written.
    fn admits(&mut self, sizes: &[(&'static str, u64, u64)], bytes: usize) -> bool {
        let batch = ("batch", self.bytes() + len_u64(bytes), BATCH_BYTES_MAX);
        for &(what, bytes, limit) in sizes.iter().chain([&batch]) {
            if bytes > limit {
                self.refused.get_or_insert(Error::TooLarge { what, bytes, limit });
                return false;
            }
        }
        true
    }

    fn added(&mut self, tree: &Arc<Tree>) {
        self.count += 1;
        if !self.trees.iter().any(|known| Arc::ptr_eq(known, tree)) {
            self.trees.push(Arc::clone(tree));
        }
    }

    /// Adds a guard.
    pub(crate) fn add_guard(&mut self, tree: &Arc<Tree>, key: &[u8], read: SeqNo) {
        let key_hash = key_hash(tree.id, key);
        let (tree, key) = (Arc::clone(tree), Bytes::copy_from_slice(key));
        self.guards.push(Guard { tree, key, key_hash, read });
    }
}
