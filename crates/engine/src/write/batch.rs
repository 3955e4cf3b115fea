//! Write batches: operations that are committed atomically.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::range_tombstone::half_open_range;
use lsmx_base::sync::Arc;
use lsmx_base::work_counter::{self, WorkKind};

use crate::error::{Error, Result};
use crate::format::batch::{
    operation_bytes, put_expiring_operation, put_operation, put_range_delete,
};
use crate::format::expiry::EXPIRY_BYTES;
use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::memtable::{self, Memtable};
use crate::tree::Tree;
use crate::tree::guard_history::{GuardCheck, GuardedKeys};

/// Maximum encoded size of a batch in bytes: 2 GiB − 1.
pub const BATCH_BYTES_MAX: u64 = (1 << 31) - 1;

/// Number of trees among which a scan is faster than a search in a set.
const SCANNED_TREES: usize = 8;

/// Condition under which a batch commits: the guarded keys have no write that is newer than `read`.
#[derive(Clone, Debug)]
pub(crate) struct KeyGuard {
    pub(crate) tree: Arc<Tree>,
    pub(crate) keys: GuardedKeys,
    /// Sequence number at which the keys were read.
    pub(crate) read: SeqNo,
    /// Writes that were already checked before the commit was queued.
    pub(crate) checked: Option<CheckedWrites>,
}

/// Writes against which a guard has already been checked: the first entries of `memtable` in insertion order, and all
/// writes that are older than `memtable`.
#[derive(Clone, Debug)]
pub(crate) struct CheckedWrites {
    pub(crate) memtable: Arc<Memtable>,
    /// Number of checked entries of the memtable. Range tombstones are not included, and must be checked again.
    pub(crate) entries: u32,
}

impl KeyGuard {
    pub(crate) fn new(tree: &Arc<Tree>, keys: GuardedKeys, read: SeqNo) -> KeyGuard {
        KeyGuard { tree: Arc::clone(tree), keys, read, checked: None }
    }

    /// Returns whether the guard protects a range of keys instead of a single key.
    pub(crate) fn protects_range(&self) -> bool {
        matches!(self.keys, GuardedKeys::Range { .. })
    }

    /// Returns the error for a guard that does not hold or cannot be decided.
    pub(crate) fn error(&self, check: GuardCheck) -> Error {
        let (keyspace, key) = (self.tree.name(), self.keys.first_key().to_vec());
        let read = self.read.0;
        match check {
            GuardCheck::Unknown => Error::ConflictUnknown { keyspace, key, read },
            GuardCheck::Holds | GuardCheck::Refused => Error::Conflict { keyspace, key, read },
        }
    }
}

/// Position in a batch: its end at the time of the call to [`WriteBatch::position`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchPosition {
    /// Encoded size in bytes of the operations before the position.
    pub(crate) bytes: usize,
    /// Number of operations before the position.
    pub(crate) operations: u32,
    /// Number of trees to which the operations before the position write.
    trees: usize,
}

impl BatchPosition {
    /// Estimates the memory in bytes that the operations before the position need: their bytes in the batch and in a
    /// memtable, and the overhead of their memtable entries.
    pub(crate) fn memory_bytes(self) -> u64 {
        let entries = u64::from(self.operations) * memtable::ENTRY_OVERHEAD_BYTES;
        2 * len_u64(self.bytes) + entries
    }
}

/// Operations on keyspaces of one database that are committed atomically. They are applied in the order in which they
/// were added.
///
/// If one operation is invalid, [`Db::write`](crate::Db::write) fails and writes nothing. An operation is invalid in
/// these cases:
///
/// - A key or a value exceeds its maximum size.
/// - The encoded batch would exceed [`BATCH_BYTES_MAX`].
/// - The operation is a merge, and the keyspace has no merge operator.
/// - The operation puts an expiring value, and the keyspace has an operand store.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use lsmx::{Db, Options, WriteBatch, WriteOptions};
///
/// let db = Db::open(dir.path().join("data"), Options::default())?;
/// let keyspace = db.default_keyspace();
/// let mut batch = WriteBatch::new();
/// batch.put(&keyspace, b"apple", b"red");
/// batch.delete(&keyspace, b"pear");
/// db.write(batch, WriteOptions::default())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    pub(crate) payload: Vec<u8>,
    pub(crate) count: u32,
    /// Trees to which the operations write, without duplicates. Ordered by first operation.
    pub(crate) trees: Vec<Arc<Tree>>,
    /// Addresses of the trees, because trees of two databases may have the same id. Empty until there are more than
    /// [`SCANNED_TREES`].
    tree_set: BTreeSet<usize>,
    pub(crate) guards: Vec<KeyGuard>,
    /// Error of the first invalid operation. Boxed, because batches are moved often.
    error: Option<Box<Error>>,
}

impl WriteBatch {
    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Creates an empty batch with capacity for one operation.
    pub(crate) fn with_one_put(keyspace: u32, key: &[u8], value: &[u8]) -> WriteBatch {
        // No memory is reserved for a key or a value that is too large, because such an operation is never added.
        let fits = len_u64(key.len()) <= KEY_BYTES_MAX && len_u64(value.len()) <= VALUE_BYTES_MAX;
        let bytes = if fits { operation_bytes(keyspace, key, value) } else { 0 };
        WriteBatch { payload: Vec::with_capacity(bytes), ..WriteBatch::default() }
    }

    /// Returns the number of operations in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether the batch contains no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the encoded size of the operations in bytes. The header of the WAL record is not included.
    #[must_use]
    pub fn encoded_bytes(&self) -> u64 {
        len_u64(self.payload.len())
    }

    /// Estimates the memory in bytes that the operations need in memtables.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let overhead = u64::from(self.count) * memtable::ENTRY_OVERHEAD_BYTES;
        self.encoded_bytes().saturating_add(overhead)
    }

    /// Returns the error of the first invalid operation, if there is one.
    pub(crate) fn check(&self) -> Result<()> {
        self.error.as_ref().map_or(Ok(()), |error| Err((**error).clone()))
    }

    /// Adds a put, a merge or a delete of one key.
    pub(crate) fn add(&mut self, tree: &Arc<Tree>, kind: EntryKind, key: &[u8], value: &[u8]) {
        let bytes = operation_bytes(tree.id, key, value);
        let sizes = [
            ("key", len_u64(key.len()), KEY_BYTES_MAX),
            ("value", len_u64(value.len()), VALUE_BYTES_MAX),
        ];
        if !self.check_sizes(&sizes, bytes) {
            return;
        }
        if kind == EntryKind::Merge
            && let Err(error) = tree.merge_resolver.operator()
        {
            self.set_error(error);
            return;
        }
        put_operation(&mut self.payload, kind, tree.id, key, value);
        self.count_operation(tree);
    }

    /// Adds a put. The value expires if the keyspace has a default time to live.
    pub(crate) fn add_put(&mut self, tree: &Arc<Tree>, key: &[u8], value: &[u8]) {
        match tree.default_ttl_us() {
            None => self.add(tree, EntryKind::Put, key, value),
            Some(ttl_us) => self.add_put_with_ttl(tree, key, value, ttl_us),
        }
    }

    /// Adds a put with a value that expires in `ttl_us` microseconds.
    pub(crate) fn add_put_with_ttl(
        &mut self,
        tree: &Arc<Tree>,
        key: &[u8],
        value: &[u8],
        ttl_us: u64,
    ) {
        self.add_put_until(tree, key, value, tree.expiry_us_after(ttl_us));
    }

    /// Adds a put with a value that expires at `expiry_us`, in microseconds of the database clock.
    pub(crate) fn add_put_until(
        &mut self,
        tree: &Arc<Tree>,
        key: &[u8],
        value: &[u8],
        expiry_us: u64,
    ) {
        // The stored value contains the expiry time.
        let stored_bytes = len_u64(value.len()).saturating_add(len_u64(EXPIRY_BYTES));
        let sizes =
            [("key", len_u64(key.len()), KEY_BYTES_MAX), ("value", stored_bytes, VALUE_BYTES_MAX)];
        let bytes = operation_bytes(tree.id, key, value) + EXPIRY_BYTES + 1;
        if !self.check_sizes(&sizes, bytes) {
            return;
        }
        if tree.operand_store.is_used() {
            self.set_error(Error::ExpiryRefused { keyspace: tree.name() });
            return;
        }
        put_expiring_operation(&mut self.payload, tree.id, key, expiry_us, value);
        self.count_operation(tree);
    }

    /// Adds a range delete. Does nothing if the range is empty.
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
        // The sizes are checked before the keys are copied.
        if !self.check_sizes(&sizes, 0) {
            return;
        }
        let (start, end) = half_open_range(start, end);
        if end.as_ref().is_some_and(|end| *end <= start) {
            return;
        }
        // The encoded end key consists of one byte for its kind, its length and its bytes.
        let bytes = operation_bytes(tree.id, &start, end.as_deref().unwrap_or_default()) + 1;
        if self.check_sizes(&[], bytes) {
            put_range_delete(&mut self.payload, tree.id, &start, end.as_deref());
            self.count_operation(tree);
        }
    }

    /// Checks the sizes of an operation. `sizes` contains name, size and maximum of each key and value.
    /// `operation_bytes` is the encoded size of the operation. If a size is too large, sets the error of the batch and
    /// returns false.
    fn check_sizes(&mut self, sizes: &[(&'static str, u64, u64)], operation_bytes: usize) -> bool {
        let batch_bytes = self.encoded_bytes() + len_u64(operation_bytes);
        for &(what, bytes, limit) in sizes.iter().chain([&("batch", batch_bytes, BATCH_BYTES_MAX)])
        {
            if bytes > limit {
                self.set_error(Error::TooLarge { what, bytes, limit });
                return false;
            }
        }
        true
    }

    /// Sets the error of the batch, unless an earlier operation has set it.
    #[cold]
    fn set_error(&mut self, error: Error) {
        self.error.get_or_insert_with(|| Box::new(error));
    }

    #[inline]
    fn count_operation(&mut self, tree: &Arc<Tree>) {
        self.count += 1;
        let is_known = match self.tree_set.is_empty() {
            true => self.trees.iter().any(|known| Arc::ptr_eq(known, tree)),
            false => self.tree_set.contains(&address_of(tree)),
        };
        if !is_known {
            self.add_tree(tree);
        }
    }

    fn add_tree(&mut self, tree: &Arc<Tree>) {
        self.trees.push(Arc::clone(tree));
        if !self.tree_set.is_empty() {
            self.tree_set.insert(address_of(tree));
        } else if self.trees.len() > SCANNED_TREES {
            self.tree_set = self.trees.iter().map(address_of).collect();
        }
    }

    /// Adds a guard: the commit fails if the key has a write that is newer than the sequence number `read`.
    pub(crate) fn add_guard(&mut self, tree: &Arc<Tree>, key: &[u8], read: SeqNo) {
        let keys = GuardedKeys::new_key(tree.id, Bytes::copy_from_slice(key));
        self.guards.push(KeyGuard::new(tree, keys, read));
    }

    /// Returns the position at the current end of the batch.
    pub(crate) fn position(&self) -> BatchPosition {
        let (bytes, trees) = (self.payload.len(), self.trees.len());
        BatchPosition { bytes, operations: self.count, trees }
    }

    /// Removes all operations after `position`. The position must come from [`WriteBatch::position`] of this batch.
    /// Since then, the batch must not have been truncated to an earlier position.
    pub(crate) fn truncate(&mut self, position: BatchPosition) {
        self.payload.truncate(position.bytes);
        self.count = position.operations;
        // Trees are in the order of their first operations. The trees of the remaining operations are therefore the
        // first ones.
        for tree in self.trees.drain(position.trees.min(self.trees.len())..) {
            self.tree_set.remove(&address_of(&tree));
        }
    }

    /// Removes and returns the error of the first invalid operation. The batch does not contain this operation.
    pub(crate) fn take_error(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), |error| Err(*error))
    }
}

fn address_of(tree: &Arc<Tree>) -> usize {
    Arc::as_ptr(tree).addr()
}

/// Finds the trees of a batch by keyspace id.
#[derive(Debug)]
pub(crate) struct TreeIndexes<'a> {
    trees: &'a [Arc<Tree>],
    /// Ids and indexes of the trees in the order of the ids, if there are more than [`SCANNED_TREES`].
    by_id: Vec<(u32, usize)>,
}

impl<'a> TreeIndexes<'a> {
    pub(crate) fn new(trees: &'a [Arc<Tree>]) -> TreeIndexes<'a> {
        let mut by_id = Vec::new();
        if trees.len() > SCANNED_TREES {
            by_id.extend(trees.iter().enumerate().map(|(index, tree)| (tree.id, index)));
            by_id.sort_unstable();
        }
        TreeIndexes { trees, by_id }
    }

    /// Returns the index of a tree in the batch.
    pub(crate) fn find(&self, id: u32) -> Option<usize> {
        let count = |is_match| {
            work_counter::add(WorkKind::LeaderVisits, 1);
            is_match
        };
        match self.by_id.is_empty() {
            true => self.trees.iter().position(|tree| count(tree.id == id)),
            false => {
                let at = self.by_id.partition_point(|(other, _)| count(*other < id));
                self.by_id.get(at).filter(|(found, _)| *found == id).map(|(_, index)| *index)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::options::write::Durability;
    use crate::vfs::MemVfs;

    #[test]
    fn batch_over_many_keyspaces_lists_each_tree_once() {
        let db = Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let open = |number| db.keyspace(&format!("{number}"), KeyspaceOptions::default()).unwrap();
        let keyspaces: Vec<_> = (0..20).map(open).collect();
        for count in [1, SCANNED_TREES, SCANNED_TREES + 1, 20] {
            let (mut batch, mut positions) = (WriteBatch::new(), Vec::new());
            for keyspace in keyspaces[..count].iter().rev() {
                positions.push(batch.position());
                batch.put(keyspace, "key", "old");
            }
            for position in positions.into_iter().rev() {
                batch.truncate(position);
                keyspaces[..count].iter().for_each(|keyspace| batch.put(keyspace, "key", "old"));
                let mut ids: Vec<_> = batch.trees.iter().map(|tree| tree.id).collect();
                let indexes = TreeIndexes::new(&batch.trees);
                for (index, id) in ids.iter().enumerate() {
                    assert_eq!(indexes.find(*id), Some(index));
                }
                assert_eq!(indexes.find(u32::MAX), None);
                ids.sort_unstable();
                ids.dedup();
                assert_eq!((ids.len(), batch.trees.len()), (count, count));
            }
            for (number, keyspace) in (0u8..).zip(&keyspaces[..count]) {
                batch.put(keyspace, "key", [number]);
            }
            db.write(batch, Durability::Buffered).unwrap();
            for (number, keyspace) in (0u8..).zip(&keyspaces[..count]) {
                assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&[number][..]));
            }
        }
    }
}
