//! Operand stores: store merge operands outside of the tree.
//!
//! By default, merge operands are entries of the tree. If a keyspace has an [`OperandStoreFactory`], its operands are
//! kept in an [`OperandStore`] instead. Flushes write operands to the store. Reads combine values in the tree with
//! operands in the store. The engine does not depend on the file format of the store, and the store does not depend on
//! the tree.
//!
//! # Contract
//! 1. *Order.* Writes use the WAL and the memtables of the engine. A flush delivers the operands of a memtable to the
//!    store, with their sequence numbers. Each [`OperandDelivery`] is newer than all earlier ones.
//! 2. *Commit.* Prepared data is on stable storage, but becomes effective only with the manifest edit of the flush or
//!    the collection. This edit contains the [`StoreToken`] of the prepared data. When a store is opened, it receives
//!    the token of the last edit, and ignores all data that was written later.
//! 3. *Views.* Readers pin an immutable [`OperandView`]. The view is replaced in one step, together with the memtables
//!    and the tables.
//! 4. *Delete markers.* A flush delivers a delete marker for each put or delete of a key that the store may contain,
//!    and a range delete marker for each range delete. A marker hides older operands of its keys from all reads at its
//!    sequence number or later. The tree can therefore drop tombstones without regard to the store. The operands of a
//!    key in the store are always newer than those in the tree, because operands move only from the store to the tree.
//! 5. *Snapshots.* Operands may be merged only if no snapshot is between them. Operands that a snapshot sees are kept.
//! 6. *Deletion within a bound.* A store may support
//!    [`KeyspaceOptions::delete_persistence`](crate::KeyspaceOptions::delete_persistence). The engine then calls
//!    [`OperandStore::remove_void_operands`] regularly. The store must then remove from all its files the operands that
//!    old delete markers hide.

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

/// State of a store as the manifest records it. Only the store interprets the numbers, for example as a file number and
/// an offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreToken(pub [u64; 4]);

/// Opens the operand stores of keyspaces.
pub trait OperandStoreFactory: fmt::Debug + Send + Sync {
    /// Returns the name of the store type, which has 1 to 255 bytes.
    ///
    /// The manifest records the name. A keyspace cannot be opened with a factory that has another name.
    fn name(&self) -> &str;

    /// Opens the store of a keyspace in the state of `token`. If `token` is `None`, creates an empty store.
    ///
    /// The store must ignore data that is newer than the token. The engine deletes files that contain only such data.
    ///
    /// # Errors
    /// Fails if a file is missing, corrupt or cannot be read.
    fn open(
        &self,
        context: StoreContext,
        token: Option<StoreToken>,
    ) -> Result<Arc<dyn OperandStore>>;

    /// Reads and verifies all data of the state `token`. Changes nothing.
    ///
    /// # Errors
    /// Returns the first error that was found, with file and offset.
    fn verify(&self, context: StoreContext, token: StoreToken) -> Result<OperandMetrics>;

    /// Returns whether the stores implement [`OperandStore::remove_void_operands`] and
    /// [`OperandStore::oldest_void_delete`]. Default: false.
    ///
    /// If false, [`KeyspaceOptions::delete_persistence`](crate::KeyspaceOptions::delete_persistence) is refused.
    fn supports_delete_persistence(&self) -> bool {
        false
    }

    /// Reads all files of the state `token`. Returns the records of `key` and the range delete markers that cover
    /// `key`.
    ///
    /// The result includes records that a delete marker hides, and records that are newer than the token. The default
    /// implementation returns `None`, which means that the store does not support this search.
    ///
    /// # Errors
    /// Returns the first error found, with file and offset.
    fn search_key(
        &self,
        context: StoreContext,
        token: StoreToken,
        key: &[u8],
    ) -> Result<Option<Vec<StoredRecord>>> {
        let _ = (context, token, key);
        Ok(None)
    }
}

/// Content of a [`StoredRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRecordKind {
    /// An operand.
    Operand,
    /// A delete marker of one key.
    DeleteMarker,
    /// A range delete marker.
    RangeDeleteMarker,
}

/// A record in a file of an operand store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The file.
    pub path: PathBuf,
    /// Offset of the page or frame with the record, in bytes.
    pub offset: u64,
    /// Content of the record.
    pub kind: StoredRecordKind,
    /// Sequence number. For a merged operand, this is the largest sequence number of its parts.
    pub seq: SeqNo,
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

    fn supports_delete_persistence(&self) -> bool {
        (**self).supports_delete_persistence()
    }

    fn search_key(
        &self,
        context: StoreContext,
        token: StoreToken,
        key: &[u8],
    ) -> Result<Option<Vec<StoredRecord>>> {
        (**self).search_key(context, token, key)
    }
}

/// Context that is passed to an operand store when it is opened.
#[derive(Clone, Debug)]
pub struct StoreContext {
    /// Name of the keyspace at the time of the open, for error messages. A rename may change it while the store is open or
    /// closed, so it does not identify the store.
    pub keyspace: String,
    /// Files of the store.
    pub files: Arc<dyn OperandFiles>,
    /// Clock, random numbers and yield points.
    pub env: Env,
    /// Merges operands with the merge operator of the keyspace.
    pub merger: Arc<dyn OperandMerger>,
    /// Counts reads of the store.
    pub read_counters: Arc<dyn OperandReadCounters>,
    /// Memory limit of the store in bytes: half of the block cache, and at least 1 MiB with a memory budget. `None` if the
    /// store is opened to be verified or copied.
    pub memory_bytes: Option<u64>,
    /// Whether reads should bypass the page cache.
    pub direct_reads: bool,
    /// True if the store must not write files.
    pub read_only: bool,
}

/// Kind of a file of an operand store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandFileKind {
    /// Log of changes to the state of the store. Its name is `NNNNNN.operands`.
    Log,
    /// Bucket: the operands of a key range. Its name is `NNNNNN.bucket`.
    Bucket,
}

/// Files of an operand store in the directory of the database. File numbers are unique among all files of the database
/// and are never reused.
pub trait OperandFiles: fmt::Debug + Send + Sync {
    /// Returns the file system for reads.
    fn vfs(&self) -> &Arc<dyn Vfs>;

    /// Returns the path of a file.
    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf;

    /// Creates a file and returns its number. Writes to the file are subject to the I/O rate limit of background jobs.
    ///
    /// The directory entry of the file is durable after the next call of [`OperandFiles::sync_directory`].
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)>;

    /// Returns the maximum number of files that the store may keep open for appending, which is at least 1. A running
    /// collection may keep one more file open.
    ///
    /// Files that are open for reading do not count, because the engine closes and reopens them as needed. Default: no
    /// limit.
    fn writers_max(&self) -> usize {
        usize::MAX
    }

    /// Makes the directory entries of all created files durable.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    fn sync_directory(&self) -> Result<()>;

    /// Queues a file for deletion. The caller ensures that no committed state and no view needs the file. Never blocks,
    /// so that it can be called when a view is dropped.
    fn discard(&self, kind: OperandFileKind, number: u64);
}

/// Merges operands with the merge operator of the keyspace.
pub trait OperandMerger: fmt::Debug + Send + Sync {
    /// Returns one operand that is equivalent to `older` followed by `newer`.
    ///
    /// Returns `None` if the merge operator cannot merge them partially, fails or panics.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>>;
}

/// Counts reads of an operand store for metrics.
pub trait OperandReadCounters: fmt::Debug + Send + Sync {
    /// Counts a read that has found its data in memory.
    fn record_hit(&self);
    /// Counts a read of `bytes` bytes from a file.
    fn record_read(&self, bytes: u64);
}

/// Data that a read of an operand store may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandReadTier {
    /// Memory and files.
    Storage,
    /// Memory only. If the read needs a file, it fails with [`Error::WouldBlock`](crate::Error::WouldBlock).
    Memory,
}

/// A merge operand, or the merged result of several consecutive operands of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Smallest sequence number of the merged operands.
    pub first: SeqNo,
    /// Largest sequence number of the merged operands.
    pub last: SeqNo,
    /// The operand.
    pub bytes: Slice,
}

/// Operand store of a keyspace.
///
/// The engine never runs two deliveries, collections or commits of a store at the same time, except that
/// [`OperandStore::collect`] runs concurrently with deliveries.
pub trait OperandStore: fmt::Debug + Send + Sync {
    /// Returns a view of the committed state.
    fn view(&self) -> Arc<dyn OperandView>;

    /// Starts the delivery of a flush. Its sequence numbers are at most `through`, and larger than those of all earlier
    /// deliveries.
    ///
    /// The delivery is based on the last prepared state, whether it was committed or not. If the delivery is dropped
    /// before [`OperandDelivery::prepare`] is called, it is cancelled.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>>;

    /// Commits all data that was prepared up to this token.
    ///
    /// The manifest edit with this token is durable, and readers use its view. The store may discard obsolete files as
    /// soon as no view needs them.
    fn mark_committed(&self, token: StoreToken);

    /// Abandons all data that was prepared since the last commit. Called after a failed delivery or collection.
    ///
    /// It may be unknown whether the manifest edit is durable. The next delivery is based on the committed state, and must
    /// write to new files. Files of the abandoned state must be kept until the next commit.
    fn abandon(&self);

    /// Abandons all data that was prepared since the last commit, and discards its files. Called instead of
    /// [`OperandStore::abandon`] if the engine has not tried to store a token of this data.
    ///
    /// The default implementation calls [`OperandStore::abandon`], and keeps the files until the next commit.
    fn discard_prepared(&self) {
        self.abandon();
    }

    /// Recovers the state on which the next delivery or collection is based. Called after [`OperandStore::abandon`],
    /// before the next collection. No delivery, collection or commit runs during the call.
    ///
    /// The default implementation does nothing. It suits a store whose `abandon` restores the committed state.
    ///
    /// # Errors
    /// Fails if a file is corrupt or cannot be read. The engine then repeats the call before the next collection.
    fn recover(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether a collection is needed. The call must be cheap, because it follows every flush and every
    /// collection.
    fn is_collection_due(&self) -> bool;

    /// Starts a collection: reads and merges operands, and writes new buckets. Returns `None` if nothing is due. Flushes
    /// may deliver operands to the store at the same time.
    ///
    /// `snapshots` contains the registered snapshots in ascending order, followed by the sequence number that is
    /// published when the collection starts. The collection does not know snapshots that are taken later, but they see
    /// at least this sequence number. The collection must therefore not merge operands with larger sequence numbers. It
    /// must also not remove operands because of delete markers with larger sequence numbers.
    ///
    /// # Errors
    /// Fails if a file is corrupt, or cannot be read or written. The state of the store then does not change.
    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>>;

    /// Starts a collection that moves all operands to the tree. No snapshot is registered.
    ///
    /// # Errors
    /// Same as [`OperandStore::collect`].
    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>>;

    /// Reads a file from the device without caches, and verifies its committed part. Returns the number of bytes that
    /// were read.
    ///
    /// Returns `None` if the store does not support this, which is the default. A failed collection is then only
    /// retried after increasing pauses.
    ///
    /// # Errors
    /// Fails if the file is corrupt or cannot be read.
    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        let _ = (kind, number);
        None
    }

    /// Excludes files from collections. A collection that needs one of these files is not due.
    ///
    /// Each call replaces the files of the previous call. The default implementation does nothing.
    fn exclude_files(&self, files: &[(OperandFileKind, u64)]) {
        let _ = files;
    }

    /// Requests the removal of all operands that delete markers and range delete markers up to `through` hide, except
    /// for operands that `snapshots` need. `snapshots` has the same form as in [`OperandStore::collect`].
    ///
    /// A collection is then due until the files of the committed state, including logs, contain no such operand. Delete
    /// markers up to `through` may also be delivered after this call. Each call replaces the previous request. The call
    /// must be cheap.
    ///
    /// Called only if [`OperandStoreFactory::supports_delete_persistence`] returns true. The default implementation
    /// does nothing.
    fn remove_void_operands(&self, through: SeqNo, snapshots: &[SeqNo]) {
        let _ = (through, snapshots);
    }

    /// Returns a lower bound of the sequence numbers of the delete markers that may hide operands in the files of the
    /// committed state. Returns `None` if the files contain no such operands, which is the default.
    fn oldest_void_delete(&self) -> Option<SeqNo> {
        None
    }

    /// Returns the files of the committed state.
    fn live_files(&self) -> Vec<(OperandFileKind, u64)>;

    /// Returns the used memory in bytes.
    fn memory_bytes(&self) -> u64;

    /// Returns an upper bound of the bytes that the store may have to rewrite after [`OperandStore::abandon`] if
    /// nothing else is delivered. The engine reserves disk space for them. Default: 0.
    fn rewrite_bytes_max(&self) -> u64 {
        0
    }

    /// Returns the metrics of the store.
    fn metrics(&self) -> OperandMetrics;
}

/// Operands and delete markers of one flush, in key order. For the same key, they are in descending order of sequence
/// numbers.
pub trait OperandDelivery {
    /// Returns whether the store may contain operands of the key.
    fn may_contain(&self, key: &[u8]) -> bool;

    /// Adds an operand.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()>;

    /// Adds a delete marker, which hides older operands of the key.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()>;

    /// Adds a range delete marker for the keys from `start` (inclusive) to `end` (exclusive). If `end` is `None`, the
    /// range ends at the end of the keyspace. May be called at any time, independent of the key order.
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

/// State of a store that is on stable storage, but not committed.
#[derive(Debug)]
pub struct PreparedVersion {
    /// Token for the manifest edit.
    pub token: StoreToken,
    /// View for readers after the commit.
    pub view: Arc<dyn OperandView>,
}

/// A running collection, which rewrites buckets and moves operands to the tree.
pub trait OperandCollection {
    /// Returns a cursor over the operands that move to the tree. Returns `None` if no operand moves.
    ///
    /// The entries of the cursor have the kind [`Merge`](crate::EntryKind::Merge). They are the operands of the buckets
    /// that the collection removes, including operands that were delivered after the collection started. For each key,
    /// either all operands that no delete marker hides must move, or none. The reason is that an operand in the tree
    /// hides all older operands of its key in the store.
    ///
    /// The engine calls this method before [`OperandCollection::prepare`], while no delivery runs.
    ///
    /// # Errors
    /// Fails if a file is corrupt or cannot be read.
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>>;

    /// Makes the collection durable, including deliveries since its start. No delivery runs during this call.
    ///
    /// # Errors
    /// Fails if a file cannot be written or synced.
    fn prepare(self: Box<Self>) -> Result<PreparedVersion>;
}

/// Immutable view of the contents of a store. Iterators may use it after the database is closed.
pub trait OperandView: fmt::Debug + Send + Sync {
    /// Returns whether the view contains no operands.
    fn is_empty(&self) -> bool;

    /// Returns whether the view may contain operands of the key. Reads no file.
    fn may_contain(&self, key: &[u8]) -> bool;

    /// Appends to `found` the operands of a key that are visible at the sequence number `at`, newest first. Operands
    /// that a visible delete marker hides are omitted.
    ///
    /// # Errors
    /// - The error of a read, if a file is corrupt or cannot be read.
    /// - [`Error::WouldBlock`](crate::Error::WouldBlock) if `reads` is [`OperandReadTier::Memory`] and a file must be
    ///   read.
    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()>;

    /// Hints that [`OperandView::read_operands`] will be called for this key after tables have been read. The store can
    /// start to read files early. The default implementation does nothing.
    fn prefetch(&self, key: &[u8], at: SeqNo) {
        let _ = (key, at);
    }

    /// Hints that a cursor of this view will seek this key after tables have been read. The store can start to read files
    /// early. The default implementation does nothing.
    fn prefetch_seek(&self, key: &[u8]) {
        let _ = key;
    }

    /// Returns a cursor over the operands of all keys, as entries of the kind [`Merge`](crate::EntryKind::Merge). The
    /// operands are the same as those of [`OperandView::read_operands`] at the sequence number `at`.
    ///
    /// A merged operand has the largest sequence number of its parts.
    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor>;

    /// Opens all files of the view, and keeps them open until the view is dropped. Called when the database is closed,
    /// because its next owner may delete some of these files.
    ///
    /// Without this call, the engine may close files that the store has opened for reading. If a file cannot be opened
    /// again, the read that needs it must return the error.
    fn keep_files_open(&self) {}

    /// Copies the view to new files in `target` for a checkpoint. Returns the token that opens the copy. The contents
    /// of the files are synced, but their directory entries are not.
    ///
    /// # Errors
    /// Fails if a file is corrupt, or cannot be read or written.
    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken>;
}

/// Metrics of an operand store. Counters start at 0 when the store is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct OperandMetrics {
    /// Number of buckets.
    pub buckets: u64,
    /// Total size of bucket files in bytes.
    pub bucket_bytes: u64,
    /// Total size of log files in bytes.
    pub log_bytes: u64,
    /// Size in bytes of bucket contents that are in memory and not yet in bucket files.
    pub buffered_bytes: u64,
    /// Memory of indexes, filters, buffers and caches in bytes.
    pub memory_bytes: u64,
    /// Number of bytes written to bucket files.
    pub bucket_written_bytes: u64,
    /// Number of bytes that collections have read from bucket files.
    pub bucket_read_bytes: u64,
    /// Number of bytes that collections have written to bucket files. `bucket_written_bytes` includes them.
    pub collection_written_bytes: u64,
    /// Number of bytes written to log files.
    pub log_written_bytes: u64,
    /// Number of delivered operands.
    pub operands: u64,
    /// Number of delivered delete markers.
    pub delete_markers: u64,
    /// Size of the delivered operands and delete markers in bytes, with their keys.
    pub delivered_bytes: u64,
    /// Number of rewritten buckets.
    pub rewrites: u64,
    /// Number of bucket splits.
    pub splits: u64,
    /// Number of bucket merges. Each merge combines two buckets.
    pub merges: u64,
    /// Number of buckets whose operands were moved to the tree. For a store without buckets, the number of keys.
    pub to_tree: u64,
    /// Number of reads that found their result in the cache of merged operands.
    pub cache_hits: u64,
    /// Number of reads that did not find their result in the cache of merged operands.
    pub cache_misses: u64,
}
