//! Write batches: operations that are committed atomically.

use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::range_tombstone::half_open_range;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::batch::{
    operation_bytes, put_expiring_operation, put_operation, put_range_delete,
};
use crate::format::expiry::EXPIRY_BYTES;
use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::memtable::{self, Memtable};
use crate::tree::Tree;
use crate::tree::guard_history::{GuardCheck, GuardedKeys};

/// Maximum encoded size of a batch, in bytes: 2 GiB − 1.
pub const BATCH_BYTES_MAX: u64 = (1 << 31) - 1;

/// A condition of a batch: the keys have no write after a sequence number.
#[derive(Clone, Debug)]
pub(crate) struct KeyGuard {
    pub(crate) tree: Arc<Tree>,
    pub(crate) keys: GuardedKeys,
    /// Sequence number at which the keys were read.
    pub(crate) read: SeqNo,
    /// Writes that were checked before the commit was queued, if any.
    pub(crate) checked: Option<CheckedWrites>,
}

/// Writes of a tree that a guard was checked against: all writes before those in a memtable, and the first entries of this
/// memtable, in the order of their inserts.
#[derive(Clone, Debug)]
pub(crate) struct CheckedWrites {
    pub(crate) memtable: Arc<Memtable>,
    /// Number of checked entries. Range tombstones are not checked.
    pub(crate) entries: u32,
}

impl KeyGuard {
    pub(crate) fn new(tree: &Arc<Tree>, keys: GuardedKeys, read: SeqNo) -> KeyGuard {
        KeyGuard { tree: Arc::clone(tree), keys, read, checked: None }
    }

    /// Returns whether the guard protects a range of keys.
    pub(crate) fn protects_range(&self) -> bool {
        matches!(self.keys, GuardedKeys::Range { .. })
    }

    /// Returns the error of a check that failed or was undecided.
    pub(crate) fn error(&self, check: GuardCheck) -> Error {
        let (keyspace, key) = (self.tree.name.clone(), self.keys.first_key().to_vec());
        let read = self.read.0;
        match check {
            GuardCheck::Unknown => Error::ConflictUnknown { keyspace, key, read },
            GuardCheck::Holds | GuardCheck::Refused => Error::Conflict { keyspace, key, read },
        }
    }
}

/// The end of a batch at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchPosition {
    /// Encoded size of the operations, in bytes.
    pub(crate) bytes: usize,
    /// Number of operations.
    pub(crate) operations: u32,
    /// Number of trees.
    trees: usize,
}

impl BatchPosition {
    /// Returns the memory of the operations in a batch and in a memtable, in bytes.
    pub(crate) fn memory_bytes(self) -> u64 {
        let entries = u64::from(self.operations) * memtable::ENTRY_OVERHEAD_BYTES;
        2 * len_u64(self.bytes) + entries
    }
}

/// Operations on keyspaces of one database that are committed atomically, in the order in which they were added.
///
/// If one operation is invalid, [`Db::write`](crate::Db::write) fails for the whole batch. An operation is
/// invalid if a key or value exceeds its maximum size, if an operation exceeds [`BATCH_BYTES_MAX`], if
/// it merges in a keyspace without a merge operator, or if a value would expire in a keyspace with an operand store.
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
    /// Trees of all operations, without duplicates.
    pub(crate) trees: Vec<Arc<Tree>>,
    pub(crate) guards: Vec<KeyGuard>,
    /// Error of the first invalid operation.
    error: Option<Error>,
}

impl WriteBatch {
    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Creates a batch with capacity for one operation.
    pub(crate) fn with_one_put(keyspace: u32, key: &[u8], value: &[u8]) -> WriteBatch {
        // A key or value above its maximum size is never copied.
        let fits = len_u64(key.len()) <= KEY_BYTES_MAX && len_u64(value.len()) <= VALUE_BYTES_MAX;
        let bytes = if fits { operation_bytes(keyspace, key, value) } else { 0 };
        WriteBatch { payload: Vec::with_capacity(bytes), ..WriteBatch::default() }
    }

    /// Returns the number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether the batch contains no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the encoded size of the operations in bytes, without the header of the WAL record.
    #[must_use]
    pub fn encoded_bytes(&self) -> u64 {
        len_u64(self.payload.len())
    }

    /// Returns the approximate memtable memory of the operations, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let overhead = u64::from(self.count) * memtable::ENTRY_OVERHEAD_BYTES;
        self.encoded_bytes().saturating_add(overhead)
    }

    /// Returns the error of the first invalid operation.
    pub(crate) fn check(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Adds an operation on a single key.
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
            self.error.get_or_insert(error);
            return;
        }
        put_operation(&mut self.payload, kind, tree.id, key, value);
        self.count_operation(tree);
    }

    /// Adds a write of a value, which expires if the keyspace has a default time to live.
    pub(crate) fn add_put(&mut self, tree: &Arc<Tree>, key: &[u8], value: &[u8]) {
        match tree.default_ttl_us() {
            None => self.add(tree, EntryKind::Put, key, value),
            Some(ttl_us) => self.add_put_with_ttl(tree, key, value, ttl_us),
        }
    }

    /// Adds a write of a value that expires `ttl_us` microseconds from now.
    ///
    /// After an open, the database clock follows the wall clock only after one minute. The time to live counts from the
    /// later of both, so that the value does not expire too early.
    pub(crate) fn add_put_with_ttl(
        &mut self,
        tree: &Arc<Tree>,
        key: &[u8],
        value: &[u8],
        ttl_us: u64,
    ) {
        let expiry_us = tree.env().creation_time_us().saturating_add(ttl_us);
        self.add_put_until(tree, key, value, expiry_us);
    }

    /// Adds a write of a value that expires at a time, in microseconds of the database clock.
    pub(crate) fn add_put_until(
        &mut self,
        tree: &Arc<Tree>,
        key: &[u8],
        value: &[u8],
        expiry_us: u64,
    ) {
        // The expiry time is part of the stored value.
        let stored_bytes = len_u64(value.len()).saturating_add(len_u64(EXPIRY_BYTES));
        let sizes =
            [("key", len_u64(key.len()), KEY_BYTES_MAX), ("value", stored_bytes, VALUE_BYTES_MAX)];
        let bytes = operation_bytes(tree.id, key, value) + EXPIRY_BYTES + 1;
        if !self.check_sizes(&sizes, bytes) {
            return;
        }
        if tree.operand_store.is_used() {
            self.error.get_or_insert(Error::ExpiryRefused { keyspace: tree.name.clone() });
            return;
        }
        put_expiring_operation(&mut self.payload, tree.id, key, expiry_us, value);
        self.count_operation(tree);
    }

    /// Adds a range delete, unless the range is empty.
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
        // Checked before the keys are copied.
        if !self.check_sizes(&sizes, 0) {
            return;
        }
        let (start, end) = half_open_range(start, end);
        if end.as_ref().is_some_and(|end| *end <= start) {
            return;
        }
        // The end key is encoded like a value, plus one byte for its kind.
        let bytes = operation_bytes(tree.id, &start, end.as_deref().unwrap_or_default()) + 1;
        if self.check_sizes(&[], bytes) {
            put_range_delete(&mut self.payload, tree.id, &start, end.as_deref());
            self.count_operation(tree);
        }
    }

    /// Returns whether the sizes of an operation are allowed: each (name, size, maximum), and the encoded size in bytes.
    /// Otherwise the batch becomes invalid.
    fn check_sizes(&mut self, sizes: &[(&'static str, u64, u64)], operation_bytes: usize) -> bool {
        let batch_bytes = self.encoded_bytes() + len_u64(operation_bytes);
        for &(what, bytes, limit) in sizes.iter().chain([&("batch", batch_bytes, BATCH_BYTES_MAX)])
        {
            if bytes > limit {
                self.error.get_or_insert(Error::TooLarge { what, bytes, limit });
                return false;
            }
        }
        true
    }

    fn count_operation(&mut self, tree: &Arc<Tree>) {
        self.count += 1;
        if !self.trees.iter().any(|known| Arc::ptr_eq(known, tree)) {
            self.trees.push(Arc::clone(tree));
        }
    }

    /// Adds a guard for a key that was read at sequence number `read`.
    pub(crate) fn add_guard(&mut self, tree: &Arc<Tree>, key: &[u8], read: SeqNo) {
        let keys = GuardedKeys::new_key(tree.id, Bytes::copy_from_slice(key));
        self.guards.push(KeyGuard::new(tree, keys, read));
    }

    /// Returns the current end of the batch.
    pub(crate) fn position(&self) -> BatchPosition {
        let (bytes, trees) = (self.payload.len(), self.trees.len());
        BatchPosition { bytes, operations: self.count, trees }
    }

    /// Removes all operations after a position, which this batch returned and to which it was not truncated before.
    pub(crate) fn truncate(&mut self, position: BatchPosition) {
        self.payload.truncate(position.bytes);
        self.count = position.operations;
        // Trees are added in the order of their first operations.
        self.trees.truncate(position.trees);
    }

    /// Returns and removes the error of the first invalid operation, which is not in the batch.
    pub(crate) fn take_error(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }
}
