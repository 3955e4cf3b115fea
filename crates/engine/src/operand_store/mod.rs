//! Where the merge operands of a keyspace live, if not in its tree.
//!
//! By default operands are entries of the tree like any other. A keyspace that is given an
//! [`OperandStoreFactory`] keeps them in an [`OperandStore`] beside it: flushes hand operands over
//! in place of writing them into tables, and whoever reads a key asks both. The engine knows
//! nothing about how a store keeps what it is given, and a store nothing about trees; this module
//! is all that stands between them.
//!
//! # The terms
//! 1. *One log, one order.* A write goes through the engine's log and memtable as ever. A store gets
//!    operands when a memtable is flushed, with the sequence numbers they have; each [`Delivery`] is
//!    newer than all before it.
//! 2. *One commit point.* What a store has prepared is on stable storage and counts for nobody. It
//!    becomes real by the manifest edit of the flush or the collection, which carries the
//!    [`Token`] that came with it. At opening the store gets the token of the last such edit, and
//!    has nothing to do with whatever lies beyond.
//! 3. *One view.* The [`OperandView`] is a part of what readers pin, swapped in one step with memtables
//!    and tables. It never changes.
//! 4. *Operands have an end.* A put or a delete of a key that the store may have operands of comes as
//!    an *anchor*, a range delete as a *range anchor*, in the delivery of the flush that brings it to the
//!    tree. Operands below an anchor are void for readers at or past the anchor's number. So the tree may
//!    drop tombstones as ever. What the store has of a key is always newer than what tables have of its
//!    operands: operands go from the store to the tree, never back.
//! 5. *Snapshots.* Operands fold only between neighbouring snapshots, and what a snapshot can see stays.

pub(crate) mod panic_guard;

use std::fmt;
use std::path::PathBuf;

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::env::Env;
use crate::error::Result;
use crate::vfs::{File, Vfs};

pub(crate) use crate::operand_store::panic_guard::ContainedStore;

/// What a store has prepared, for the manifest: the store alone knows what the numbers mean, such
/// as a file and a place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token(pub [u64; 4]);

/// Most bytes of the name of a store.
pub const STORE_NAME_BYTES_MAX: usize = 255;

/// Makes the stores of keyspaces.
pub trait OperandStoreFactory: fmt::Debug + Send + Sync {
    /// Its name, which the manifest keeps: what one has written another cannot read. 1 to 255 bytes.
    fn name(&self) -> &str;

    /// Opens the store of a keyspace as of `token`; without one it is new and empty. What lies beyond
    /// the token is ignored, and its files are the engine's to remove.
    ///
    /// # Errors
    /// When a file is missing, damaged or cannot be read.
    fn open(&self, place: Place, token: Option<Token>) -> Result<Arc<dyn OperandStore>>;

    /// Checks all that a token stands for from end to end, without changing anything.
    ///
    /// # Errors
    /// The first thing that is wrong, with file and offset.
    fn verify(&self, place: Place, token: Token) -> Result<OperandMetrics>;
}

impl<T: OperandStoreFactory + ?Sized> OperandStoreFactory for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn open(&self, place: Place, token: Option<Token>) -> Result<Arc<dyn OperandStore>> {
        (**self).open(place, token)
    }

    fn verify(&self, place: Place, token: Token) -> Result<OperandMetrics> {
        (**self).verify(place, token)
    }
}

/// What a store has to do with the world.
#[derive(Clone, Debug)]
pub struct Place {
    /// Name of the keyspace, for errors.
    pub keyspace: String,
    /// Its files.
    pub files: Arc<dyn OperandFiles>,
    /// Clock, randomness, and places to give way at.
    pub env: Env,
    /// How operands fold.
    pub folds: Arc<dyn OperandFolds>,
    /// Counts what reads cost.
    pub counts: Arc<dyn OperandCounts>,
    /// Bytes of memory that the store should stay within, if there is a bound.
    pub memory_bytes: Option<u64>,
    /// Whether what is read, or written, shall not stay in the system's page cache.
    pub direct_reads: bool,
    /// Nothing may be written.
    pub read_only: bool,
}

/// The two kinds of files that stores have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandFileKind {
    /// Says what the store holds: `NNNNNN.operands`.
    Log,
    /// Holds operands of a range of keys: `NNNNNN.bucket`.
    Bucket,
}

/// The files of a store. They lie in the directory of the database; their numbers are of the one line
/// that all files share, and no number is ever used twice.
pub trait OperandFiles: fmt::Debug + Send + Sync {
    /// The file system, for reading.
    fn vfs(&self) -> &Arc<dyn Vfs>;

    /// Where a file lies.
    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf;

    /// Creates a file, paced as background work is. Its name is on stable storage from the next
    /// [`OperandFiles::sync_names`] on.
    ///
    /// # Errors
    /// What the file system says.
    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)>;

    /// Most files that the store may keep open for appending at this moment, at least 1. One more may be open while
    /// a collection writes it. Files that are open for reading do not count: the engine closes them and opens them
    /// again as needed. Default: no limit.
    fn writers_max(&self) -> usize {
        usize::MAX
    }

    /// Puts the names of all files on stable storage.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_names(&self) -> Result<()>;

    /// Has a file removed: nothing durable names it, and no view needs it any more. Never blocks, so it
    /// may be called by whoever drops the last view.
    fn discard(&self, kind: OperandFileKind, number: u64);
}

/// How the operands of a keyspace fold. What the user's operator does wrong, panics included, has no
/// consequence but that operands stay as they are.
pub trait OperandFolds: fmt::Debug + Send + Sync {
    /// One operand that does what `older` and then `newer` do, if there is one.
    fn partial(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>>;
}

/// Counts for the metrics what reads of a store cost.
pub trait OperandCounts: fmt::Debug + Send + Sync {
    /// A read found in memory what it needed of a bucket.
    fn hit(&self);
    /// A read had to go to a file once, for so many bytes.
    fn read(&self, bytes: u64);
}

/// Whether a read may go to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandReads {
    /// It may.
    Storage,
    /// It may not: [`Error::WouldBlock`](crate::Error::WouldBlock) where memory does not do.
    Memory,
}

/// An operand, or several of neighbouring numbers folded into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Smallest number in it.
    pub first: SeqNo,
    /// Largest number in it.
    pub last: SeqNo,
    /// Its bytes.
    pub bytes: Slice,
}

/// Operands of one keyspace.
///
/// Deliveries, collections and what becomes of them come one at a time: the engine sees to it.
pub trait OperandStore: fmt::Debug + Send + Sync {
    /// What is committed.
    fn view(&self) -> Arc<dyn OperandView>;

    /// Begins to take what a flush has, all with numbers up to `through` and larger than any before.
    /// It builds on what was prepared last, committed or not. Dropping the delivery before its end
    /// takes it back.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn deliver(&self, through: SeqNo) -> Result<Box<dyn Delivery + '_>>;

    /// All that was prepared up to this token is real now: the manifest edit that carries it is on stable
    /// storage, and its view is the one that readers pin. What the edit made obsolete may go when no view
    /// needs it.
    fn committed(&self, token: Token);

    /// All that was prepared since the last commit may or may not be real: an error has made the
    /// database read-only. The next delivery builds on what is committed, in files of its own, and the
    /// files of what was prepared stay until the next commit.
    fn abandon(&self);

    /// Whether a collection is due. Cheap; asked after every flush and collection.
    fn collection_is_due(&self) -> bool;

    /// Does what a collection can do while deliveries go on: reads, folds, writes new buckets. `None` if
    /// nothing is to be done after all. `snapshots` are all that are registered, ascending, and behind
    /// them the last number that was visible when they were listed. Snapshots that come later see at
    /// least that; so of what has larger numbers nothing is folded, and nothing is void because of it: a
    /// snapshot may have come in between that the collection does not know.
    ///
    /// # Errors
    /// When a file cannot be read or written, or is damaged; what was there stays.
    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn Collection + '_>>>;

    /// As [`OperandStore::collect`], of everything, into the tree: the keyspace is about to keep its
    /// operands there. There are no snapshots.
    ///
    /// # Errors
    /// As [`OperandStore::collect`].
    fn collect_all(&self) -> Result<Box<dyn Collection + '_>>;

    /// Reads a file again from the device, past all caches, and checks what is committed of it; returns the
    /// bytes read. `None`, which is the default: the store has no such check, and a collection that failed
    /// is only tried again after increasing pauses.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        let _ = (kind, number);
        None
    }

    /// From here on collections neither read nor replace these files, and what needs them is not due. Called
    /// with all such files whenever they change. Does nothing by default.
    fn leave_out(&self, files: &[(OperandFileKind, u64)]) {
        let _ = files;
    }

    /// Numbers of the files that what is committed consists of.
    fn live_files(&self) -> Vec<(OperandFileKind, u64)>;

    /// Bytes of memory in use.
    fn memory_bytes(&self) -> u64;

    /// Bytes that it may have to write anew after [`OperandStore::abandon`], beside what it is delivered: the
    /// engine keeps room for them against a full disk. Default: none.
    fn rewritten_bytes(&self) -> u64 {
        0
    }

    /// What there is of it.
    fn metrics(&self) -> OperandMetrics;
}

/// What one flush hands over: in key order, of each key from the newest number down.
pub trait Delivery {
    /// Whether the store may have something of the key.
    fn may_hold(&self, key: &[u8]) -> bool;

    /// An operand.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()>;

    /// The key was put or deleted: its operands below this number are void.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn anchor(&mut self, key: &[u8], seq: SeqNo) -> Result<()>;

    /// All keys from `start` on, before `end` if there is one, were deleted. May come at any time.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn range_anchor(&mut self, start: &[u8], end: Option<&[u8]>, seq: SeqNo) -> Result<()>;

    /// Makes it last.
    ///
    /// # Errors
    /// When a file cannot be written or synced.
    fn prepare(self: Box<Self>) -> Result<Prepared>;
}

/// What is on stable storage and not yet real.
#[derive(Debug)]
pub struct Prepared {
    /// For the manifest.
    pub token: Token,
    /// What readers will pin.
    pub view: Arc<dyn OperandView>,
}

/// Buckets made anew, and operands that leave for the tree.
pub trait Collection {
    /// Returns a cursor over the operands that move to the tree, or `None` if no operand moves.
    ///
    /// The entries have the kind [`Merge`](crate::EntryKind::Merge). They are the operands of the buckets that the
    /// collection removes, including deliveries since it began. Of a key, either all operands that no delete marker
    /// voids move, or none: an operand in the tree voids the older operands of its key in the store.
    ///
    /// The engine calls this before [`Collection::prepare`], while no delivery runs.
    ///
    /// # Errors
    /// When a file cannot be read, or is damaged.
    fn leaving(&mut self) -> Result<Option<Box<dyn Cursor>>>;

    /// Makes it last, deliveries since it began included. Called while no delivery is under way.
    ///
    /// # Errors
    /// When a file cannot be written or synced.
    fn prepare(self: Box<Self>) -> Result<Prepared>;
}

/// What a store holds at one moment. Iterators may outlive the database that they were made of.
pub trait OperandView: fmt::Debug + Send + Sync {
    /// Whether it holds nothing.
    fn is_empty(&self) -> bool;

    /// Whether it may have something of the key; reads nothing.
    fn may_hold(&self, key: &[u8]) -> bool;

    /// Adds the operands of a key to `found`, newest first: those with numbers up to `at` that no anchor
    /// up to `at` voids.
    ///
    /// # Errors
    /// When a file cannot be read, or is damaged; [`Error::WouldBlock`](crate::Error::WouldBlock).
    fn operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReads,
        found: &mut Vec<Operand>,
    ) -> Result<()>;

    /// Says that [`operands`](Self::operands) will be asked of this key by a lookup that reads tables first: what
    /// it has to read may begin its way here. A hint; by default nothing is done.
    fn will_need(&self, key: &[u8], at: SeqNo) {
        let _ = (key, at);
    }

    /// Walks, as entries of kind [`Merge`](crate::EntryKind::Merge), the operands of all keys with numbers up
    /// to `at` that no anchor up to `at` voids. A folded operand has its largest number.
    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReads) -> Box<dyn Cursor>;

    /// Opens all files that the view needs and keeps them open as long as it lives: the database closes, and its next
    /// owner may remove some. Files that were opened before do not stay open by themselves, unless they were
    /// created by the store. A file that cannot be opened is an error of the read that needs it.
    fn keep_open(&self) {}

    /// Writes a copy of all it holds, for a checkpoint, on stable storage but for the names. The copy's
    /// files are made in `target`; its token opens it.
    ///
    /// # Errors
    /// When a file cannot be read or written, or is damaged.
    fn copy_to(&self, target: &dyn OperandFiles) -> Result<Token>;
}

/// What an operand store holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OperandMetrics {
    /// Buckets.
    pub buckets: u64,
    /// Bytes of bucket files.
    pub bucket_bytes: u64,
    /// Bytes of the store's logs.
    pub log_bytes: u64,
    /// Bytes in memory that are part of buckets and not yet in their files.
    pub buffered_bytes: u64,
    /// Bytes of memory in use: indexes, filters, buffers, cache.
    pub memory_bytes: u64,
    /// Bytes written to bucket files since opening.
    pub bucket_written_bytes: u64,
    /// Bytes read from bucket files by collections since opening.
    pub bucket_read_bytes: u64,
    /// Bytes written to logs since opening.
    pub log_written_bytes: u64,
    /// Operands that came since opening.
    pub operands: u64,
    /// Anchors that came since opening.
    pub anchors: u64,
    /// Buckets that were written anew.
    pub rewrites: u64,
    /// Buckets that were split.
    pub splits: u64,
    /// Pairs of buckets that were merged.
    pub merges: u64,
    /// Buckets whose operands went to the tree, or keys, of a store without buckets.
    pub to_tree: u64,
    /// Reads that the cache of folded operands answered.
    pub cache_hits: u64,
    /// Reads that it did not.
    pub cache_misses: u64,
}
