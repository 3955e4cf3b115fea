//! The database handle [`Db`] and the parts of an open database.

pub(crate) mod admission;
mod batch;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod clone_keyspace;
pub(crate) mod close;
pub(crate) mod compact_range;
pub(crate) mod copy_file;
pub(crate) mod deadline;
pub(crate) mod drop_keyspace;
pub(crate) mod engine_thread;
pub(crate) mod follower;
pub(crate) mod handle;
pub(crate) mod ingest;
pub(crate) mod inner;
pub(crate) mod inspect;
pub(crate) mod key_locks;
pub(crate) mod keyspace;
pub(crate) mod log_archive;
pub(crate) mod metrics;
pub(crate) mod metrics_file;
pub(crate) mod multi_get;
pub(crate) mod open;
pub(crate) mod open_keyspace;
pub(crate) mod operand_store;
pub(crate) mod point_read;
pub(crate) mod rename_keyspace;
pub(crate) mod snapshot;
pub(crate) mod transaction;
pub(crate) mod update;
pub(crate) mod write;
pub(crate) mod write_back;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::EntryKind;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::deadline::run_with_deadline;
use crate::db::handle::DbHandle;
use crate::db::inner::{DbInner, check_reentry};
use crate::db::inspect::health;
use crate::db::transaction::retry::TransactionAttempts;
use crate::db::write::{write, write_entry};
#[cfg(feature = "internals")]
use crate::env::Env;
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::metrics::{LatencySampling, Metrics, ReadMetrics};
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::state::work_queue::WorkKind;
use crate::tree::snapshots::ReadPoint;
use crate::workload_trace::{Trace, TraceOptions};
use crate::write::batch::WriteBatch;

pub use crate::db::check::key_search::{
    CoveringTombstone, KeySearchReport, RemainingEntry, RemainingKind, search_key,
};
pub use crate::db::check::repair::{Finding, Loss, LossKind, RepairOptions, RepairReport, repair};
pub use crate::db::check::verify::{VerifyReport, verify};
#[cfg(feature = "internals")]
pub use crate::db::checkpoint::check_output_path;
pub use crate::db::follower::Follower;
pub use crate::db::ingest::bulk_load::{
    BulkLoadOptions, BulkLoadPhase, BulkLoadProgress, BulkLoader,
};
pub use crate::db::ingest::external_table::{ExternalTable, ExternalTableWriter};
pub use crate::db::ingest::prepared::{IngestOptions, IngestSummary};
pub use crate::db::inspect::explain::{
    EntryFound, Explanation, MemtableStep, OperandStep, RunStep,
};
pub use crate::db::inspect::files::{ContentIdentity, DatabaseFile, list_files};
pub use crate::db::inspect::health::{BlockedCompaction, Health, QuarantinedFile};
pub use crate::db::inspect::metadata_sizes::MetadataSizes;
pub use crate::db::inspect::observe::{Observation, ObservedKeyspace, ObservedLevel, observe};
pub use crate::db::keyspace::Keyspace;
pub use crate::db::log_archive::{LogArchiver, LogChunk, LogExtender};
pub use crate::db::metrics_file::{MetricsReading, read_metrics_file};
pub use crate::db::snapshot::Snapshot;
pub use crate::db::transaction::Transaction;
pub use crate::db::transaction::range::TransactionRange;
pub use crate::db::transaction::state::Savepoint;
pub use crate::db::update::Update;
pub use crate::table::explain::{BlockRead, BlockSource};

pub use crate::options::db::DEFAULT_KEYSPACE;

/// An open database. Clones share it; dropping the last handle closes it.
#[derive(Clone, Debug)]
pub struct Db {
    handle: Arc<DbHandle>,
    /// Maximum duration of calls that wait for background work or devices.
    deadline: Option<Duration>,
}

impl Db {
    /// Opens the database in a directory, or creates it.
    ///
    /// A missing or damaged operand store does not fail the open. Calls on its keyspace return
    /// [`Error::NoOperandStore`] instead.
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::Locked`], [`Error::UnsupportedVersion`], [`Error::Corrupt`],
    /// [`Error::Missing`], [`Error::Contradiction`], [`Error::InvalidOption`], [`Error::Policy`],
    /// [`Error::TooFewDescriptors`], [`Error::Io`]; [`Error::NoCompactionPolicy`] and [`Error::UnreadablePolicy`] for the
    /// default keyspace. After an error, existing data is unchanged.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        // A panic in user code, such as an operand store, fails the open and releases the lock.
        let opened = catch_unwind(AssertUnwindSafe(|| match options.read_only {
            true => open::read_only::open(path, options),
            false => open::open(path, options),
        }));
        opened.unwrap_or_else(|panic| Err(Error::from_panic(&*panic))).map(Db::new)
    }

    /// Opens a follower: a read-only handle of a database that another process, or another handle of this process, has
    /// open for writing. The database must exist. [`Options::read_only`] has no effect.
    ///
    /// A follower cannot read operand stores. Calls on a keyspace with an operand store return
    /// [`Error::NoOperandStore`].
    ///
    /// # Errors
    /// [`Error::NotADatabase`], [`Error::UnsupportedVersion`], [`Error::Corrupt`], [`Error::Missing`],
    /// [`Error::Contradiction`], [`Error::InvalidOption`], [`Error::FollowerOvertaken`]; [`Error::Io`], also if the
    /// directory cannot be written.
    pub fn open_follower(path: impl AsRef<Path>, options: Options) -> Result<Follower> {
        Follower::open(path.as_ref(), options)
    }

    fn new(inner: DbInner) -> Db {
        let inner = Arc::new(inner);
        metrics_file::start_metrics_file(&inner);
        Db { handle: Arc::new(DbHandle(inner)), deadline: None }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn handle(&self) -> &Arc<DbHandle> {
        &self.handle
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn into_handle(self) -> Arc<DbHandle> {
        self.handle
    }

    pub(crate) fn inner(&self) -> &Arc<DbInner> {
        &self.handle.0
    }

    /// Returns a handle of the same database that limits the duration of [`Db::checkpoint`], [`Db::flush`],
    /// [`Db::resume`], [`Db::sync`] and [`Db::wait_idle`]. On other handles, these calls wait without limit.
    ///
    /// After the deadline, these calls fail with [`Error::Deadline`], even if a device call hangs. Their work ends when
    /// the current device call returns. [`WriteOptions::deadline`] limits writes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// db.with_deadline(std::time::Duration::from_secs(10)).flush()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Db {
        Db { handle: Arc::clone(&self.handle), deadline: Some(deadline) }
    }

    /// Calls `work` with the deadline of this handle.
    fn run_with_deadline(
        &self,
        cause: WaitCause,
        work: impl FnOnce(&DbInner, Option<u64>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        run_with_deadline(self.inner(), cause, self.deadline, work)
    }

    /// Returns the keyspace named [`DEFAULT_KEYSPACE`], which always exists.
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        Keyspace::new(Arc::clone(&self.handle), Arc::clone(&self.inner().default_tree))
    }

    /// Opens a keyspace, or creates it, and sets all its options.
    ///
    /// If the keyspace is already open, all its handles have the new options. An option that `options` does not set gets
    /// its default: a second call with `KeyspaceOptions::default()` removes `default_ttl`, `delete_persistence`,
    /// `compaction_filter` and `value_separation` of the first call. Only the policy, the merge operator and the operand
    /// store stay the same if `options` does not set them.
    ///
    /// To get another handle and keep the options, call [`Db::open_keyspace`] with `None`. [`Keyspace::set_options`]
    /// changes single options.
    ///
    /// The options apply until the next call or until the database is closed; [`Keyspace::options`] returns them. The
    /// database stores only the policy and the names of merge operator and operand store. After each open of the
    /// database, a call must therefore set the other options again.
    ///
    /// # Errors
    /// - [`Error::Contradiction`] if the keyspace has another merge operator or operand store, or if two options
    ///   exclude each other: `default_ttl` and a merge operator or an operand store; `delete_persistence` and a policy
    ///   or an operand store that does not support it; `memtable_bytes` above [`Options::memtable_bytes_max`] without a
    ///   memory budget; `table_bytes` below `block_bytes`.
    /// - [`Error::InvalidOption`] for an empty name, a name of more than 255 bytes, or an option out of range.
    /// - [`Error::Policy`] if a parameter of the policy is relative to the run of an experiment.
    /// - [`Error::NoCompactionPolicy`] if it has a custom policy that is not set, and [`Error::UnreadablePolicy`] if its
    ///   stored policy cannot be read.
    /// - [`Error::NoOperandStore`] if it needs an operand store that is not set, or the error of opening the store,
    ///   such as [`Error::TooFewDescriptors`]. [`Error::Corrupt`] and [`Error::Io`] if the log segments that are kept
    ///   for the store cannot be read, or their data cannot be written. [`Error::Io`] if no thread can be started for
    ///   the store.
    /// - [`Error::Reentrant`] if an event listener makes the call and log segments are kept for the store.
    /// - [`Error::OpenedReadOnly`] if the keyspace does not exist and the database was opened read-only.
    /// - [`Error::ReadOnly`], [`Error::Closed`].
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let tree = open_keyspace::open_keyspace(self.inner(), name, options, true)?;
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Opens a keyspace that must exist. `None` keeps its current options.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`] if it does not exist. With options, the errors of [`Db::keyspace`]. Without options,
    /// [`Error::NoCompactionPolicy`] or [`Error::UnreadablePolicy`] if its stored policy needs to be set and was not set
    /// since the open, unless the database is read-only.
    pub fn open_keyspace(&self, name: &str, options: Option<KeyspaceOptions>) -> Result<Keyspace> {
        let (inner, has_options) = (self.inner(), options.is_some());
        let tree = match options {
            Some(options) => open_keyspace::open_keyspace(inner, name, options, false)?,
            None => inner.existing_tree(name)?,
        };
        if !has_options && inner.read_only.is_none() {
            tree.check_policy()?;
            if tree.confirm_value_separation() {
                inner.state.work.push(WorkKind::Compaction, tree.id);
            }
        }
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Drops a keyspace with all its entries, durably.
    ///
    /// Its handles then return [`Error::KeyspaceDropped`]. Running iterators and older snapshots still read it.
    /// A new keyspace of the same name is empty.
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`], [`Error::DefaultKeyspace`]: the keyspaces are unchanged.
    /// [`Error::ReadOnly`] with the cause: the keyspace exists until the next open, which may find it dropped.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        check_reentry("drop_keyspace")?;
        drop_keyspace::drop_keyspace(self.inner(), name)
    }

    /// Creates a keyspace with the contents of another one, durably. Later changes of one do not affect the other.
    ///
    /// The clone has the contents as of one moment during the call. Commits, flushes and compactions continue. The
    /// entries are written once, as tables in key order. Values that have expired are omitted, and the others keep
    /// their expiry times. Merge operands are combined. A combined value has the expiry time of the value to which the
    /// operands were applied. Snapshots that are older than the call see an empty keyspace.
    ///
    /// The clone does not exist before the call returns. After an error or a crash it does not exist, and its files are
    /// removed. The clone has the merge operator of the source. All other options are those in `options`, which must
    /// not contain an operand store.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::KeyspaceOptions;
    ///
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// users.put("ada", "1815")?;
    /// let draft = db.clone_keyspace("users", "draft", KeyspaceOptions::default())?;
    /// draft.put("ada", "1816")?;
    /// assert_eq!(users.get("ada")?.as_deref(), Some(&b"1815"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::UnknownKeyspace`] for `source`; [`Error::KeyspaceExists`] for `new`; [`Error::InvalidOption`] and
    ///   [`Error::Contradiction`] for the name, an operand store, another merge operator or an option out of range;
    ///   [`Error::NoOperandStore`], [`Error::NoMergeOperator`], [`Error::MergeFailed`], [`Error::Corrupt`], [`Error::Io`] if
    ///   an entry cannot be read or written, also on a full disk; [`Error::TooLarge`] if a combined value and the 8
    ///   bytes of its expiry time exceed [`VALUE_BYTES_MAX`](crate::limits::VALUE_BYTES_MAX);
    ///   [`Error::CloneInterrupted`] after a concurrent [`Db::resume`]; [`Error::OpenedReadOnly`]; [`Error::Closed`]: no
    ///   keyspace is created.
    /// - [`Error::ReadOnly`] with the cause: the next open may find the clone, as a whole.
    pub fn clone_keyspace(
        &self,
        source: &str,
        new: &str,
        options: KeyspaceOptions,
    ) -> Result<Keyspace> {
        check_reentry("clone_keyspace")?;
        let tree = clone_keyspace::clone_keyspace(self.inner(), source, new, options)?;
        Ok(Keyspace::new(Arc::clone(&self.handle), tree))
    }

    /// Renames a keyspace, atomically and durably.
    ///
    /// Open handles, iterators and snapshots of the keyspace stay valid, and [`Keyspace::name`] returns the new name. Metrics,
    /// events and errors have the new name from then on. Data is not rewritten. A call with two equal names has no effect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::KeyspaceOptions;
    ///
    /// let index = db.keyspace("index.new", KeyspaceOptions::default())?;
    /// index.put("ada", "1815")?;
    /// db.rename_keyspace("index.new", "index")?;
    /// assert_eq!(index.name(), "index");
    /// assert_eq!(db.keyspaces(), ["default", "index"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownKeyspace`] for `old`; [`Error::KeyspaceExists`] for `new`; [`Error::DefaultKeyspace`];
    /// [`Error::InvalidOption`] for an empty name or a name of more than 255 bytes; [`Error::NoOperandStore`] if the
    /// keyspace needs an operand store that is not open; [`Error::OpenedReadOnly`]; [`Error::Closed`]: the keyspaces are
    /// unchanged. [`Error::ReadOnly`] with the cause: the keyspace has its old name until the next open, which may find
    /// either name.
    pub fn rename_keyspace(&self, old: &str, new: &str) -> Result<()> {
        check_reentry("rename_keyspace")?;
        rename_keyspace::rename_keyspace(self.inner(), old, new)
    }

    /// Copies the database to `target`, which must not exist or must be an empty directory.
    ///
    /// The copy is an independent database. It contains every commit before the call, and possibly later ones, and
    /// is on stable storage when the call returns. Tables are hard links where the file system supports them. Writes,
    /// flushes and compactions continue during the call. After a deadline the engine removes the partial copy as soon as
    /// the current device call returns. Until then the target is locked.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::TargetNotEmpty`]; [`Error::Locked`] if another process uses the target;
    /// [`Error::Io`]; [`Error::OutputInDatabase`] if the path has the name of an engine file in a database directory;
    /// [`Error::NoOperandStore`] if the operand store of a keyspace is not open; [`Error::Closed`];
    /// [`Error::ReadOnly`]. After an error, the target cannot be opened as a database.
    pub fn checkpoint(&self, target: impl AsRef<Path>) -> Result<()> {
        check_reentry("checkpoint")?;
        let target = target.as_ref().to_owned();
        self.run_with_deadline(WaitCause::BackgroundWork, move |inner, deadline_us| {
            checkpoint::checkpoint(inner, &target, deadline_us)
        })
    }

    /// Returns whether a keyspace of this name exists.
    #[must_use]
    pub fn keyspace_exists(&self, name: &str) -> bool {
        self.inner().state.trees.read().by_name(name).is_some()
    }

    /// Returns the names of all keyspaces in ascending order.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<String> {
        let trees = self.inner().state.trees.read();
        trees.iter_by_name().map(|(name, _)| name.clone()).collect()
    }

    /// Writes a value to the default keyspace with [`Durability::Buffered`](crate::Durability::Buffered).
    ///
    /// # Errors
    /// The errors of [`Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Put, key.as_ref(), value.as_ref())
    }

    /// Deletes a key of the default keyspace with [`Durability::Buffered`](crate::Durability::Buffered).
    ///
    /// # Errors
    /// The errors of [`Db::write`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Delete, key.as_ref(), &[])
    }

    fn write_entry(&self, kind: EntryKind, key: &[u8], value: &[u8]) -> Result<()> {
        let inner = self.inner();
        write_entry(inner, &inner.default_tree, kind, key, value, WriteOptions::default())
    }

    /// Returns the value of a key in the default keyspace. The value shares the memory of its cached block.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`] if a block cannot be read; [`Error::NoMergeOperator`],
    /// [`Error::MergeFailed`] if the operands of the key cannot be combined; [`Error::NoOperandStore`];
    /// [`Error::KeyspaceDropped`]; [`Error::Closed`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let options = ReadOptions::default();
        point_read::get(self.inner(), &self.inner().default_tree, key.as_ref(), None, &options)
    }

    /// Commits a batch atomically, across all its keyspaces.
    ///
    /// # Errors
    /// - [`Error::TooLarge`], [`Error::ForeignKeyspace`], [`Error::KeyspaceDropped`], [`Error::NoMergeOperator`],
    ///   [`Error::NoOperandStore`], [`Error::ExpiryRefused`], [`Error::Conflict`], [`Error::ConflictUnknown`],
    ///   [`Error::WouldWait`], [`Error::Deadline`], [`Error::Background`], [`Error::CompactionBlocked`],
    ///   [`Error::PolicyStalled`], [`Error::OpenedReadOnly`], [`Error::Closed`]: the batch is not committed.
    /// - [`Error::Undecided`]: the deadline has passed, and the batch may still become visible.
    /// - [`Error::ReadOnly`] with the cause: the batch is not visible. The next open may find it, as a whole.
    pub fn write(&self, batch: WriteBatch, options: impl Into<WriteOptions>) -> Result<()> {
        write(self.inner(), batch, options.into())
    }

    /// Adds external tables to keyspaces, all or nothing, at one sequence number.
    ///
    /// The entries are newer than all earlier commits. They are on stable storage and visible together when the call
    /// returns. Each file is linked or copied into the database directory, and verified completely before it is added.
    /// It becomes a table of the deepest level in which it overlaps no file, so that it usually needs no compaction.
    /// Files of one keyspace must not overlap each other. [`ExternalTableWriter`] writes the files.
    ///
    /// A linked file must not be modified after the ingest, also not under its old path: a write to the path damages the
    /// table of the database. The old path may be removed. [`IngestOptions::copy_files`] copies each file instead.
    ///
    /// The option `default_ttl` does not apply: ingested values never expire. Values of any size stay in the tables
    /// until a compaction rewrites them, also with `value_separation`.
    ///
    /// Memtables that overlap a file are flushed first. Commits wait during the last step, which syncs the manifest
    /// once. Existing snapshots and iterators do not see the entries. A guard or a transaction that is older than the
    /// ingest fails with [`Error::ConflictUnknown`] if its keys overlap the ingested key range. This range extends from
    /// the smallest to the largest ingested key of the keyspace. The 16 last ranges of a keyspace are kept; older ones are
    /// combined into one range, which counts as ingested at the last of their times.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::KeyspaceOptions;
    /// use lsmx::ingest::{ExternalTableWriter, IngestOptions};
    ///
    /// let options = KeyspaceOptions::default();
    /// let (users, names) = (db.keyspace("users", options.clone())?, db.keyspace("names", options.clone())?);
    /// let [by_id, by_name] = ["by_id.sst", "by_name.sst"].map(|name| dir.path().join(name));
    /// let mut table = ExternalTableWriter::create(&by_id, &options)?;
    /// table.put("1", "ada")?;
    /// table.finish()?;
    /// let mut table = ExternalTableWriter::create(&by_name, &options)?;
    /// table.put("ada", "1")?;
    /// table.finish()?;
    /// db.ingest(&[(users, vec![by_id]), (names.clone(), vec![by_name])], IngestOptions::default())?;
    /// assert_eq!(names.get("ada")?.as_deref(), Some(&b"1"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::IngestRefused`] if a file is no external table, if files of one keyspace overlap, or if a keyspace has
    ///   an operand store; [`Error::Corrupt`], [`Error::UnsupportedVersion`], [`Error::Io`] if a file is damaged, too new or
    ///   cannot be read, linked or copied, also on a full disk; [`Error::ForeignKeyspace`], [`Error::KeyspaceDropped`],
    ///   [`Error::OpenedReadOnly`], [`Error::Closed`]: no keyspace is changed.
    /// - [`Error::ReadOnly`] with the cause: the entries are not visible. The next open may find all of them.
    pub fn ingest<P: AsRef<Path>>(
        &self,
        files: &[(Keyspace, Vec<P>)],
        options: IngestOptions,
    ) -> Result<IngestSummary> {
        check_reentry("ingest")?;
        let mut requests = Vec::with_capacity(files.len());
        for (keyspace, paths) in files {
            keyspace.check_same_database(&self.handle)?;
            let paths = paths.iter().map(|path| path.as_ref().to_owned()).collect();
            requests.push((Arc::clone(keyspace.tree()), paths));
        }
        ingest::files::ingest_files(self.inner(), requests, options)
    }

    /// Starts a transaction, which reads the current state of all keyspaces.
    ///
    /// [`Db::transact`] also commits the transaction, and retries it after a conflict.
    ///
    /// The commit of a long transaction may fail with [`Error::ConflictUnknown`] although no other commit has written
    /// its keys: the write history of a keyspace may no longer reach back to the start of the transaction.
    /// [`WriteBatch::guard`] states the size of the history. A retry cannot succeed while each attempt takes longer than
    /// the history covers.
    ///
    /// The call may wait, and returns no error, like [`Db::snapshot`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keyspace = db.default_keyspace();
    /// let tx = db.transaction();
    /// let next = tx.get(&keyspace, "next")?.map_or(0, |next| next[0]) + 1;
    /// tx.put(&keyspace, "next", [next])?;
    /// tx.commit(lsmx::Durability::Sync)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.snapshot())
    }

    /// Starts a transaction that locks the keys that it writes or reads with
    /// [`get_for_update`](Transaction::get_for_update).
    ///
    /// Use it if several transactions often write the same keys: they wait for each other instead of failing with
    /// [`Error::Conflict`]. The end of the transaction releases its locks. A call waits at most `timeout` for a key, and
    /// then fails with [`Error::LockTimeout`]. If the wait would cause a deadlock, the call fails with
    /// [`Error::Deadlock`].
    ///
    /// `get_for_update` returns the newest value of the key. All other reads show the state at the start of the
    /// transaction, except for keys that it has locked. Writes outside of locking transactions ignore the locks. The
    /// commit therefore checks all reads, like the commit of a [`Db::transaction`]. It fails with [`Error::Conflict`]
    /// if another commit has written a key that was read. Range deletes lock nothing.
    ///
    /// Locks do not prevent [`Error::ConflictUnknown`]. The commit fails with it if the [write
    /// history](WriteBatch::guard) no longer reaches back to a read. This happens if the transaction works longer than
    /// the history covers, while other keys are written and flushed. The time of a read is that of the
    /// first call that reads the locked key; for keys that are not locked, it is the start of the transaction.
    ///
    /// The call may wait, and returns no error, like [`Db::snapshot`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use std::time::Duration;
    /// use lsmx::{Durability, Error};
    ///
    /// let stock = db.default_keyspace();
    /// stock.put("apples", [3u8])?;
    /// let tx = db.locking_transaction(Duration::from_secs(1));
    /// let count = tx.get_for_update(&stock, "apples")?.map_or(0, |count| count[0]);
    /// tx.put(&stock, "apples", [count - 1])?;
    ///
    /// let other = db.locking_transaction(Duration::ZERO);
    /// assert!(matches!(other.get_for_update(&stock, "apples"), Err(Error::LockTimeout { .. })));
    /// tx.commit(Durability::Sync)?;
    /// assert_eq!(other.get_for_update(&stock, "apples")?.as_deref(), Some(&[2][..]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn locking_transaction(&self, timeout: Duration) -> Transaction {
        self.transaction().with_locks(timeout)
    }

    /// Calls `body` with a transaction and commits it. Repeats both after a conflict, at most 23 times, with random
    /// pauses of up to 20 ms.
    ///
    /// `body` must have no side effects. If it returns an error, the transaction is discarded. The
    /// [deadline](WriteOptions::deadline) applies to each attempt.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::{Durability, Transaction};
    ///
    /// let stock = db.default_keyspace();
    /// stock.put("apples", [3u8])?;
    /// let sold = db.transact(Durability::Buffered, |tx: &Transaction| -> lsmx::Result<bool> {
    ///     match tx.get(&stock, "apples")?.as_deref() {
    ///         None | Some([0]) => Ok(false),
    ///         Some(count) => tx.put(&stock, "apples", [count[0] - 1]).map(|()| true),
    ///     }
    /// })?;
    /// assert!(sold);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of `body`; the errors of [`Transaction::commit`], among them [`Error::Conflict`] and
    /// [`Error::ConflictUnknown`] of the last attempt.
    pub fn transact<T, E: From<Error>>(
        &self,
        options: impl Into<WriteOptions>,
        mut body: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let (inner, options) = (self.inner(), options.into());
        let mut attempts = TransactionAttempts::new();
        loop {
            let transaction = self.transaction();
            let value = body(&transaction)?;
            let Err(error) = transaction.commit(options) else { return Ok(value) };
            match attempts.begin_next(inner, &error) {
                Some(pause_us) => inner.state.env.pause_us(pause_us),
                None => return Err(error.into()),
            }
        }
    }

    /// Returns a consistent, unchanging view of all keyspaces.
    ///
    /// The call waits, without a limit, while a job removes entries that the snapshot would see:
    /// - while the policy `fifo` drops a file, or the result of a compaction filter is installed. Both take about one
    ///   sync of the manifest.
    /// - during a whole [`Keyspace::operands_to_tree`] of any keyspace.
    ///
    /// After a [`Db::close`], the call still returns a snapshot. Reads through it fail with [`Error::Closed`].
    ///
    /// While a snapshot is open, compactions keep the entries that it sees, `fifo` drops no file with such entries, and
    /// compaction filters change none of them.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner().begin_operation();
        let state = &self.inner().state;
        loop {
            if let Some(snapshot) = self.try_snapshot() {
                return snapshot;
            }
            // No snapshot can be taken while an edit is installed that removes data which the snapshot could see. The
            // installation always ends.
            let ended = &mut || !state.sequence.has_entry_removal();
            state.env.wait(WaitCause::BackgroundWork, &state.progress, None, ended);
        }
    }

    /// Returns a snapshot, or `None` if the caller has to wait for a manifest edit.
    pub(crate) fn try_snapshot(&self) -> Option<Snapshot> {
        let state = &self.inner().state;
        let now_us = state.env.now_us();
        let pinned = if failpoint::is_on(Failpoint::SnapshotInTwoSteps) {
            let seq = state.sequence.published();
            state.env.yield_point(YieldKind::UserOperation);
            let time_us = state.env.database_time_us();
            state.sequence.register_snapshot_at(now_us, |_| ReadPoint { seq, time_us })?
        } else {
            state.sequence.register(now_us, || state.env.database_time_us())?
        };
        Some(Snapshot::new(Arc::clone(&self.handle), pinned))
    }

    /// Syncs the WAL, so that all earlier commits are on stable storage.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause; [`Error::Deadline`]: the sync may still complete.
    pub fn sync(&self) -> Result<()> {
        self.run_with_deadline(WaitCause::CommitAhead, |inner, deadline_us| {
            inner.check_writable()?;
            inner.committer.sync(deadline_us)
        })
    }

    /// Writes all memtables to tables on stable storage.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause; [`Error::Deadline`]: the flushes continue in the background.
    pub fn flush(&self) -> Result<()> {
        check_reentry("flush")?;
        self.run_with_deadline(WaitCause::Flush, DbInner::flush)
    }

    /// Waits until all sealed memtables are flushed and no compaction is due.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] with the cause; the error of failing compactions; [`Error::CompactionBlocked`] if a
    /// quarantined file blocks a compaction; the reason of a quarantine; [`Error::PolicyStalled`]; [`Error::Deadline`].
    pub fn wait_idle(&self) -> Result<()> {
        check_reentry("wait_idle")?;
        let cause = WaitCause::BackgroundWork;
        self.run_with_deadline(cause, move |inner, deadline_us| {
            inner.check_open()?;
            inner.scheduler.wait_idle(cause, deadline_us)
        })
    }

    /// Makes the database writable again after an error made it read-only.
    ///
    /// All acknowledged writes are first written to new files; failed commits stay lost. This needs about as much
    /// free space as the memtables. A close and a new open without `resume` may lose acknowledged writes that are newer
    /// than the last successful sync. Quarantined files are verified, and intact ones are used again.
    /// [`Db::health`] still lists the others.
    ///
    /// # Errors
    /// The error that prevents the resume; the database stays read-only. [`Error::CompactionBlocked`] if the database
    /// is writable again, except for one keyspace: its policy has stopped writes, and a quarantined file blocks its
    /// compaction. [`Error::Deadline`]: if the resume is in a device call, it continues when this device call returns,
    /// and [`Event::Resumed`](crate::Event::Resumed) reports its success.
    pub fn resume(&self) -> Result<()> {
        check_reentry("resume")?;
        self.run_with_deadline(WaitCause::BackgroundWork, open::resume::resume)
    }

    /// Loads the metadata that lookups need into the block cache: range tombstones, top indexes, filters, index
    /// blocks. Stops when the cache is full. Filters of the last sorted run are skipped if lookups do not use
    /// them.
    ///
    /// Reads about 0.14 % of the database, see [`MetadataSizes`]. Counts no cache hits or misses.
    /// Lookups continue meanwhile. [`Options::warm_up`] does the same in the background after an open.
    ///
    /// # Errors
    /// [`Error::Closed`]; the error of a block that cannot be read or is damaged.
    pub fn warm_up(&self) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        open::warm_up::load_metadata(&inner.state, &|| inner.check_open().is_ok())?;
        inner.check_open()
    }

    /// Returns the obstacles to writes and background work: the read-only cause, quarantined files, and keyspaces
    /// whose compaction is blocked. Reads no file.
    #[must_use]
    pub fn health(&self) -> Health {
        health::current_health(&self.inner().state)
    }

    /// Sets the maximum rate of flush and compaction I/O, in bytes per second; `None` removes the limit. See
    /// [`Options::background_io_rate`].
    pub fn set_background_io_rate(&self, bytes_per_s: Option<u64>) {
        self.inner().state.tables.rate.set_rate(bytes_per_s);
    }

    /// Records all following operations in a new file, until the returned handle is stopped or dropped.
    ///
    /// A trace has keys or their hashes, value sizes and times. [`crate::workload_trace`] describes its cost and guarantees.
    ///
    /// # Errors
    /// [`Error::Io`] if the file exists or cannot be created; [`Error::InvalidOption`] if a recording is active;
    /// [`Error::OutputInDatabase`] if the path has the name of an engine file in a database directory;
    /// [`Error::Closed`].
    pub fn record_trace(&self, path: impl AsRef<Path>, options: TraceOptions) -> Result<Trace> {
        let (inner, path) = (self.inner(), path.as_ref());
        inner.check_open()?;
        let vfs = Arc::clone(&inner.state.vfs);
        checkpoint::check_output_path(&*vfs, path)?;
        Trace::start(&inner.recording, vfs, &inner.state.env, path, options)
    }

    /// Sets which operations are measured from now on; see [`Options::latency_sampling`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::metrics::LatencySampling;
    ///
    /// db.set_latency_sampling(LatencySampling::OneIn(1));
    /// db.get("key")?;
    /// assert_eq!(db.metrics().operation_latency.get_ns.count, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_latency_sampling(&self, sampling: LatencySampling) {
        self.inner().state.latencies.set_sampling(sampling);
    }

    /// Creates an archiver, which returns all later commits as chunks for an archive.
    ///
    /// A checkpoint that is created after this call can be extended with the chunks to any later commit; see
    /// [`LogExtender`]. The database keeps retired log segments until the archiver has returned their commits, up to
    /// `held_bytes_max` bytes. Beyond this limit it deletes the segments, and the archiver ends.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let mut archiver = db.archive_log(1 << 30)?;
    /// db.put("ada", "1815")?;
    /// db.sync()?;
    /// let chunk = archiver.next_chunk(4 << 20)?.expect("a commit is durable");
    /// assert!(chunk.first_seq <= chunk.last_seq);
    /// assert!(archiver.next_chunk(4 << 20)?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::OpenedReadOnly`], [`Error::ReadOnly`].
    pub fn archive_log(&self, held_bytes_max: u64) -> Result<LogArchiver> {
        check_reentry("archive_log")?;
        LogArchiver::new(Arc::clone(&self.handle), held_bytes_max)
    }

    /// Returns all counters and the shape of all trees.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics::metrics(self.inner())
    }

    /// Publishes all metrics to the recorder of the crate [`metrics`](https://docs.rs/metrics). `labels` are added to
    /// the labels of each metric.
    ///
    /// The program calls this method periodically. Names and labels are those of [`Metrics::to_prometheus`], which also
    /// states the forbidden names of `labels`. Counters in seconds, and sums and quantiles of durations, are published
    /// as gauges, because counters of a recorder are integers.
    ///
    /// The call never removes a series from the recorder. The series of a dropped or renamed keyspace, and of a replaced
    /// policy, keep their last values. An exporter with an idle timeout can remove them.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// // `NoopRecorder` stands for the recorder of an exporter.
    /// metrics::with_local_recorder(&metrics::NoopRecorder, || {
    ///     db.publish_metrics(&[("database", "users")]);
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self, labels: &[(&str, &str)]) {
        crate::metrics::publish::publish(&self.metrics(), labels);
    }

    /// Returns the counters of [`Db::metrics`] that reads change. Cheap enough to call around single operations.
    #[must_use]
    pub fn read_metrics(&self) -> ReadMetrics {
        metrics::read_metrics(self.inner())
    }

    /// Closes the database: flushes, stops background work, marks the WAL and releases the lock.
    ///
    /// Later calls on any handle return [`Error::Closed`]. Memtables that are not flushed before the deadline are
    /// replayed from the WAL by the next open. The memtables of a database that is read-only after a write error are not
    /// flushed, see [`Db::resume`]. Iterators and running reads continue. A running read returns
    /// [`Error::Closed`] if the next owner of the database has removed a file that it needs.
    ///
    /// # Errors
    /// The error of the first failed step; the database is closed in any case. After [`Error::Deadline`] the lock
    /// is released when the current device call returns, and a second `close` waits for that. Under
    /// [`Background::Inline`](crate::env::Background::Inline) only a second `close` releases it.
    pub fn close(&self, deadline: Option<Duration>) -> Result<()> {
        check_reentry("close")?;
        close::close(self.inner(), deadline)
    }

    /// Returns the clock and random generator of this database, for experiments.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.inner().state.env
    }
}
