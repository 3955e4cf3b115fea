//! Operand stores: storage for merge operands outside of the tree.
//!
//! By default, merge operands are entries of the tree. A keyspace with an [`OperandStoreFactory`] keeps them in an
//! [`OperandStore`] instead. Flushes write operands to the store, and reads combine entries of the tree with operands of
//! the store. The engine does not depend on the store's format, and the store does not depend on the tree.
//!
//! # Contract
//! 1. *Order.* Writes use the engine's WAL and memtables. A flush delivers the operands of a memtable to the store with
//!    their sequence numbers. Each [`OperandDelivery`] is newer than all earlier ones.
//! 2. *Commit.* Prepared data is on stable storage, but takes effect only with the manifest edit of the flush or
//!    collection. The edit contains the [`StoreToken`] of the prepared data. An open gets the token of the last edit, and
//!    ignores everything written later.
//! 3. *Views.* Readers pin an immutable [`OperandView`]. It is replaced in one step together with memtables and tables.
//! 4. *Delete markers.* A flush delivers a delete marker for each put or delete of a key that the store may contain, and
//!    a range delete marker for each range delete. A marker voids older operands of its keys, for reads at or after its
//!    sequence number. The tree can therefore drop tombstones as usual. Operands of a key in the store are always newer
//!    than those in the tree: operands move from the store to the tree, never back.
//! 5. *Snapshots.* Operands are merged only between adjacent snapshots. Operands that a snapshot sees are kept.

pub(crate) mod panic_guard;

use std::fmt;
use std::path::PathBuf;

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

pub use crate::cursor::Cursor;
use crate::env::Env;
use crate::error::Result;
use crate::vfs::{File, Vfs};

pub(crate) use crate::operand_store::panic_guard::PanicGuardStore;

/// State of a store, as the manifest stores it. Only the store interprets the numbers, such as a file number and an
/// offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreToken(pub [u64; 4]);

/// Opens the operand stores of keyspaces.
pub trait OperandStoreFactory: fmt::Debug + Send + Sync {
    /// Returns the name of the store type, 1 to 255 bytes.
    ///
    /// The manifest stores it. A keyspace cannot be opened with a factory of another name.
    fn name(&self) -> &str;

    /// Opens the store of a keyspace in the state of `token`. Without a token, creates an empty store.
    ///
    /// The store ignores data that is newer than the token. The engine removes files that only such data uses.
    ///
    /// # Errors
    /// Fails if a file is missing, corrupt or cannot be read.
    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>>;

    /// Reads and checks all data of a token, without any change.
    ///
    /// # Errors
    /// Returns the first error found, with file and offset.
    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics>;
}

impl<T: OperandStoreFactory + ?Sized> OperandStoreFactory for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>> {
        (**self).open(context, token)
    }

    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics> {
        (**self).verify(context, token)
    }
}

/// Context passed to an operand store when it is opened.
#[derive(Clone, Debug)]
pub struct StoreContext {
    /// Name of the keyspace, for error messages.
    pub keyspace: String,
    /// Files of the store.
    pub files: Arc<dyn OperandFiles>,
    /// Clock, random numbers and yield points.
    pub env: Env,
    /// Merges operands of the keyspace.
    pub merger: Arc<dyn OperandMerger>,
    /// Counters of reads.
    pub read_counters: Arc<dyn OperandReadCounters>,
    /// Memory limit of the store, in bytes. `None` without a memory budget.
    pub memory_bytes: Option<u64>,
    /// Whether files should bypass the page cache of the operating system.
    pub direct_reads: bool,
    /// Whether the store must not write.
    pub read_only: bool,
}

/// Kinds of files of an operand store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandFileKind {
    /// Log of changes to the store's state: `NNNNNN.operands`.
    Log,
    /// Operands of a key range: `NNNNNN.bucket`.
    Bucket,
}

/// Files of an operand store, in the directory of the database. File numbers are unique among all files of the database
/// and are never reused.
pub trait OperandFiles: fmt::Debug + Send + Sync {
    /// Returns the file system, for reads.
    fn vfs(&self) -> &Arc<dyn Vfs>;

    /// Returns the path of a file.
    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf;

    /// Creates a file, and returns its number. Writes are subject to the limit of background I/O.
    ///
    /// The file name is on stable storage after the next [`OperandFiles::sync_directory`].
    ///
    /// # Errors
    /// Fails if the file system fails.
    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)>;

    /// Returns the maximum number of files that the store may keep open for appends, at least 1. A running collection
    /// may keep one more open.
    ///
    /// Files open for reading do not count, because the engine closes and reopens them as needed. Default: no limit.
    fn writers_max(&self) -> usize {
        usize::MAX
    }

    /// Makes the names of all files durable.
    ///
    /// # Errors
    /// Fails if the file system fails.
    fn sync_directory(&self) -> Result<()>;

    /// Schedules the removal of a file that no committed state and no view needs. Never blocks, so that it can be called
    /// when a view is dropped.
    fn discard(&self, kind: OperandFileKind, number: u64);
}

/// Merges operands with the merge operator of the keyspace.
pub trait OperandMerger: fmt::Debug + Send + Sync {
    /// Returns one operand that is equivalent to `older` followed by `newer`.
    ///
    /// Returns `None` if the operator does not support this, fails or panics.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>>;
}

/// Counters of operand store reads, for the metrics.
pub trait OperandReadCounters: fmt::Debug + Send + Sync {
    /// Counts a read that found its data in memory.
    fn record_hit(&self);
    /// Counts a file read of `bytes`.
    fn record_read(&self, bytes: u64);
}

/// Storage tiers that a read of an operand store may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandReadTier {
    /// Memory and files.
    Storage,
    /// Memory only. If data is missing in memory, the read fails with [`Error::WouldBlock`](crate::Error::WouldBlock).
    Memory,
}

/// An operand, or the merged result of operands with adjacent sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Smallest sequence number.
    pub first: SeqNo,
    /// Largest sequence number.
    pub last: SeqNo,
    /// Operand bytes.
    pub bytes: Slice,
}

/// Operand store of one keyspace.
///
/// The engine makes deliveries, collections and commits one after the other. Only [`OperandStore::collect`] runs
/// concurrently with deliveries.
pub trait OperandStore: fmt::Debug + Send + Sync {
    /// Returns a view of the committed state.
    fn view(&self) -> Arc<dyn OperandView>;

    /// Starts the delivery of a flush. Its sequence numbers are at most `through` and larger than all earlier ones.
    ///
    /// The delivery extends the last prepared state, committed or not. Dropping it before
    /// [`OperandDelivery::prepare`] cancels it.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>>;

    /// Commits everything prepared up to this token.
    ///
    /// The manifest edit with the token is durable, and readers pin its view. Files that became obsolete may be discarded
    /// when no view needs them.
    fn mark_committed(&self, token: StoreToken);

    /// Abandons everything prepared since the last commit, after an error that made the database read-only.
    ///
    /// It is unknown whether the manifest edit is durable. The next delivery extends the committed state and writes to
    /// new files. Files of the abandoned state are kept until the next commit.
    fn abandon(&self);

    /// Returns whether a collection is needed. Called after every flush and collection, so it must be cheap.
    fn is_collection_due(&self) -> bool;

    /// Starts a collection: reads and merges operands and writes new buckets, while deliveries continue. Returns `None`
    /// if there is nothing to do.
    ///
    /// `snapshots` are the registered snapshots in ascending order, followed by the published sequence number at that
    /// time. Later snapshots see at least that number, and the collection does not know them. It must therefore not merge
    /// operands above the number, and no marker above it voids operands.
    ///
    /// # Errors
    /// Fails if a file is corrupt or cannot be read or written. The state of the store does not change.
    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>>;

    /// Starts a collection that moves all operands to the tree. There are no snapshots.
    ///
    /// # Errors
    /// Same as [`OperandStore::collect`].
    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>>;

    /// Reads a file from the device without caches, and checks its committed part. Returns the bytes read.
    ///
    /// Returns `None` if the store does not support this, which is the default. A failed collection is then retried only
    /// after increasing delays.
    ///
    /// # Errors
    /// Fails if the file is corrupt or cannot be read.
    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        let _ = (kind, number);
        None
    }

    /// Excludes files from collections. A collection that needs one of them is not due.
    ///
    /// Each call replaces the set of the previous one. Does nothing by default.
    fn exclude_files(&self, files: &[(OperandFileKind, u64)]) {
        let _ = files;
    }

    /// Returns the files of the committed state.
    fn live_files(&self) -> Vec<(OperandFileKind, u64)>;

    /// Returns the memory in use, in bytes.
    fn memory_bytes(&self) -> u64;

    /// Returns the maximum number of bytes that the store rewrites after [`OperandStore::abandon`], without new
    /// deliveries. The engine reserves this disk space. Default: 0.
    fn rewrite_bytes_max(&self) -> u64 {
        0
    }

    /// Returns the metrics of the store.
    fn metrics(&self) -> OperandMetrics;
}

/// Operands and delete markers of one flush, in key order. Those of the same key are in descending order of sequence
/// numbers.
pub trait OperandDelivery {
    /// Returns whether the store may contain the key.
    fn may_contain(&self, key: &[u8]) -> bool;

    /// Adds an operand.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()>;

    /// Adds a delete marker, which voids older operands of the key.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()>;

    /// Adds a range delete marker for keys from `start` up to, but not including, `end`. `None` means no upper bound.
    /// May be called at any time, regardless of the key order.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn add_range_delete_marker(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<()>;

    /// Makes the delivery durable.
    ///
    /// # Errors
    /// Fails if a file cannot be written or synced.
    fn prepare(self: Box<Self>) -> Result<PreparedVersion>;
}

/// A state of a store that is on stable storage but not committed.
#[derive(Debug)]
pub struct PreparedVersion {
    /// Token for the manifest edit.
    pub token: StoreToken,
    /// View for readers after the commit.
    pub view: Arc<dyn OperandView>,
}

/// A running collection: rewritten buckets, and operands that move to the tree.
pub trait OperandCollection {
    /// Returns a cursor over the operands that move to the tree, or `None` if no operand moves.
    ///
    /// The entries have the kind [`Merge`](crate::EntryKind::Merge). They are the operands of the buckets that the
    /// collection removes, including deliveries since it began. Of a key, either all operands that no delete marker
    /// voids move, or none: an operand in the tree voids the older operands of its key in the store.
    ///
    /// The engine calls this before [`OperandCollection::prepare`], while no delivery runs.
    ///
    /// # Errors
    /// Fails if a file is corrupt or cannot be read.
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>>;

    /// Makes the collection durable, including deliveries since it began. Called while no delivery runs.
    ///
    /// # Errors
    /// Fails if a file cannot be written or synced.
    fn prepare(self: Box<Self>) -> Result<PreparedVersion>;
}

/// Immutable view of a store's content. Iterators may use it after the database is closed.
pub trait OperandView: fmt::Debug + Send + Sync {
    /// Returns whether the view contains nothing.
    fn is_empty(&self) -> bool;

    /// Returns whether the view may contain the key. Reads no file.
    fn may_contain(&self, key: &[u8]) -> bool;

    /// Appends the operands of a key that are visible at sequence number `at` to `found`, newest first. Operands before
    /// a visible delete marker are omitted.
    ///
    /// # Errors
    /// Fails if a file is corrupt or cannot be read. [`Error::WouldBlock`](crate::Error::WouldBlock) for
    /// [`OperandReadTier::Memory`].
    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()>;

    /// Hints that [`OperandView::read_operands`] will be called for this key after table reads, so that file reads can
    /// start early. Does nothing by default.
    fn prefetch(&self, key: &[u8], at: SeqNo) {
        let _ = (key, at);
    }

    /// Returns a cursor over the operands of all keys, as entries of kind [`Merge`](crate::EntryKind::Merge). Visibility
    /// at sequence number `at` is as in [`OperandView::read_operands`].
    ///
    /// A merged operand has its largest sequence number.
    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor>;

    /// Opens all files of the view, and keeps them open until it is dropped. Called when the database closes, because its
    /// next owner may remove some of them.
    ///
    /// Files that the store did not create may otherwise be closed at any time. A file that cannot be opened is an error
    /// of the read that needs it.
    fn keep_files_open(&self) {}

    /// Copies the view to files created in `target`, for a checkpoint, and returns the token that opens the copy. File
    /// contents are synced, file names are not.
    ///
    /// # Errors
    /// Fails if a file is corrupt or cannot be read or written.
    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken>;
}

/// Metrics of an operand store. Counters start at 0 at each open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OperandMetrics {
    /// Number of buckets.
    pub buckets: u64,
    /// Size of bucket files, in bytes.
    pub bucket_bytes: u64,
    /// Size of log files, in bytes.
    pub log_bytes: u64,
    /// Bytes of buckets that are in memory and not yet in bucket files.
    pub buffered_bytes: u64,
    /// Memory in use for indexes, filters, buffers and cache, in bytes.
    pub memory_bytes: u64,
    /// Bytes written to bucket files.
    pub bucket_written_bytes: u64,
    /// Bytes that collections read from bucket files.
    pub bucket_read_bytes: u64,
    /// Bytes written to log files.
    pub log_written_bytes: u64,
    /// Number of delivered operands.
    pub operands: u64,
    /// Number of delivered delete markers.
    pub anchors: u64,
    /// Number of rewritten buckets.
    pub rewrites: u64,
    /// Number of bucket splits.
    pub splits: u64,
    /// Number of merged pairs of buckets.
    pub merges: u64,
    /// Number of buckets whose operands moved to the tree. For a store without buckets, the number of keys.
    pub to_tree: u64,
    /// Number of reads served by the cache of merged operands.
    pub cache_hits: u64,
    /// Number of reads that missed this cache.
    pub cache_misses: u64,
}
