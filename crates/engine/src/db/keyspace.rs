//! The handle of a keyspace, and the methods of a write batch that take a keyspace.

use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use lsmx_base::key::EntryKind;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::deadline::run_with_deadline;
use crate::db::handle::DbHandle;
use crate::db::ingest::bulk_load::{BulkLoadOptions, BulkLoader};
use crate::db::ingest::external_table::ExternalTableWriter;
use crate::db::ingest::files::ingest_files;
use crate::db::ingest::prepared::{IngestOptions, IngestSummary};
use crate::db::inner::{DbInner, check_reentry};
use crate::db::inspect::explain::{Explanation, explain};
use crate::db::inspect::metadata_sizes::{MetadataSizes, compute_sizes};
use crate::db::multi_get::multi_get;
use crate::db::update::{Update, UpdateResult};
use crate::db::write::{write, write_entry};
use crate::db::{compact_range, open_keyspace, operand_store, point_read, update};
use crate::env::WaitCause;
use crate::error::{Error, Result};
use crate::iter::iter_view::IterView;
use crate::iter::key_bounds::{owned_bounds, prefix_upper_bound};
use crate::iter::keyspace_cursor::KeyspaceCursor;
use crate::iter::range::Range;
use crate::options::keyspace::{KeyspaceOptions, OptionsInForce};
use crate::options::policy::Policy;
use crate::options::read::ReadOptions;
use crate::options::write::WriteOptions;
use crate::table::share_before_key;
use crate::tree::Tree;
use crate::tree::snapshots::SnapshotGuard;
use crate::tree::table_file::TableFile;
use crate::write::batch::WriteBatch;

/// A handle of a keyspace: a named tree of a database. Clones of the handle refer to the same keyspace.
#[derive(Clone, Debug)]
pub struct Keyspace {
    handle: Arc<DbHandle>,
    tree: Arc<Tree>,
    write_options: WriteOptions,
}

/// Lets batches accept blocking and asynchronous handles.
impl AsRef<Keyspace> for Keyspace {
    fn as_ref(&self) -> &Keyspace {
        self
    }
}

impl Keyspace {
    pub(crate) fn new(handle: Arc<DbHandle>, tree: Arc<Tree>) -> Keyspace {
        Keyspace { handle, tree, write_options: WriteOptions::default() }
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    pub(crate) fn inner(&self) -> &Arc<DbInner> {
        &self.handle.0
    }

    /// Fails if the keyspace belongs to another database.
    pub(crate) fn check_same_database(&self, handle: &Arc<DbHandle>) -> Result<()> {
        match Arc::ptr_eq(&self.handle, handle) {
            true => Ok(()),
            false => Err(Error::ForeignKeyspace { name: self.tree.name() }),
        }
    }

    /// Returns the options of writes through this handle.
    #[cfg(feature = "tokio")]
    pub(crate) fn write_options(&self) -> WriteOptions {
        self.write_options
    }

    /// Returns a handle of the same keyspace that writes with `options`. Other handles use [`WriteOptions::default`] or
    /// their own options.
    ///
    /// The options apply to all writes of single keys and ranges, and to updates. [`WriteOptions::deadline`] also
    /// limits [`Keyspace::compact_range`]. Other handles and batches are not affected.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::{Durability, KeyspaceOptions};
    ///
    /// let events = db.keyspace("events", KeyspaceOptions::default())?;
    /// let payments = events.with_write_options(Durability::Sync);
    /// events.put("click", "1")?;
    /// payments.put("order", "7 EUR")?; // on stable storage, with all earlier commits
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_write_options(&self, options: impl Into<WriteOptions>) -> Keyspace {
        Keyspace { write_options: options.into(), ..self.clone() }
    }

    /// Returns the current name of the keyspace. [`Db::rename_keyspace`](crate::Db::rename_keyspace) changes it.
    #[must_use]
    pub fn name(&self) -> String {
        self.tree.name()
    }

    /// Looks up `key` as [`Keyspace::get`] does and returns the steps of the lookup.
    ///
    /// The lookup adds blocks to the cache and is counted in the metrics. A second call shows the cached blocks.
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get).
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        explain(self.inner(), self.tree(), key.as_ref())
    }

    /// Returns the memory that filters, indexes and range tombstones of the tables need.
    ///
    /// # Errors
    /// An error if range tombstones cannot be read; [`Error::Closed`].
    pub fn metadata(&self) -> Result<MetadataSizes> {
        compute_sizes(self.inner(), &self.tree)
    }

    /// Returns the current options: those of the last [`Db::keyspace`](crate::Db::keyspace) or
    /// [`Keyspace::set_options`], and the stored values of options that were not set.
    #[must_use]
    pub fn options(&self) -> OptionsInForce {
        let settings = self.tree.settings();
        let options = &settings.options;
        OptionsInForce {
            policy: settings.policy(),
            memtable_bytes: options.memtable_bytes,
            memtable_kind: options.memtable_kind,
            table_bytes: options.table_target_bytes(),
            block_bytes: options.block_bytes,
            restart_interval: options.restart_interval,
            block_tags: options.block_tags,
            compression: options.compression.clone(),
            filter_bits: options.filter_bits,
            prefix_filter: options.prefix_filter,
            filter_last_run: options.filter_last_run,
            merge_operator: self.tree.merge_resolver.name().map(str::to_owned),
            operand_store: self.tree.operand_store.name(),
            compaction_filter: options
                .compaction_filter
                .as_ref()
                .map(|filter| filter.name().to_owned()),
            rmw_mode: options.rmw_mode,
            value_separation: options.value_separation,
            default_ttl: options.default_ttl,
            delete_persistence: options.delete_persistence,
        }
    }

    /// Writes a value.
    ///
    /// # Errors
    /// The errors of [`Db::write`](crate::Db::write).
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Put, key.as_ref(), value.as_ref())
    }

    /// Writes a value that expires after `ttl`.
    ///
    /// The TTL begins with this call. An expired value counts as deleted, and older values of the key stay hidden. See
    /// `docs/guide/expiry.md`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.default_keyspace();
    /// sessions.put_with_ttl("session", "ada", Duration::from_secs(3600))?;
    /// assert_eq!(sessions.get("session")?.as_deref(), Some(&b"ada"[..]));
    ///
    /// sessions.put_with_ttl("session", "bob", Duration::ZERO)?;
    /// assert_eq!(sessions.get("session")?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Db::write`](crate::Db::write); [`Error::ExpiryRefused`] if the keyspace has an operand store.
    pub fn put_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_with_ttl(self, key, value, ttl);
        write(self.inner(), batch, self.write_options)
    }

    /// Writes a value that expires at a time; see [`Keyspace::put_with_ttl`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let offers = db.default_keyspace();
    /// offers.put_until("coffee", "half price", SystemTime::now() + Duration::from_secs(3_600))?;
    /// assert!(offers.get("coffee")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::put_with_ttl`].
    pub fn put_until(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires: SystemTime,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put_until(self, key, value, expires);
        write(self.inner(), batch, self.write_options)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// The errors of [`Db::write`](crate::Db::write).
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Delete, key.as_ref(), &[])
    }

    /// Writes a merge operand, without reading the key.
    ///
    /// Reads combine the operands of a key with the [merge operator](crate::KeyspaceOptions::merge_operator) of the
    /// keyspace; see `docs/guide/merge-operators.md`.
    ///
    /// # Errors
    /// The errors of [`Db::write`](crate::Db::write); [`Error::NoMergeOperator`]. Only reads report an operand that the
    /// operator cannot apply.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.write_entry(EntryKind::Merge, key.as_ref(), operand.as_ref())
    }

    fn write_entry(&self, kind: EntryKind, key: &[u8], value: &[u8]) -> Result<()> {
        write_entry(self.inner(), &self.tree, kind, key, value, self.write_options)
    }

    /// Deletes all keys of a range.
    ///
    /// The deletion is one record, independent of the number of keys. Compactions free the space. An empty range,
    /// such as `b..a`, has no effect.
    ///
    /// # Errors
    /// The errors of [`Db::write`](crate::Db::write).
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(self, range);
        write(self.inner(), batch, self.write_options)
    }

    /// Deletes all keys with a range deletion; see [`Keyspace::delete_range`].
    ///
    /// Files that no snapshot or iterator needs are removed without being read.
    ///
    /// # Errors
    /// The errors of [`Db::write`](crate::Db::write).
    pub fn clear(&self) -> Result<()> {
        self.delete_range::<&[u8]>(..)
    }

    /// Replaces the value of a key by a function of the value, atomically, and returns the previous value.
    ///
    /// `update` returns an [`Update`], the new value, or an `Option` of the new value. `None` deletes the key. `update`
    /// is called again if another commit writes the key, so it must have no side effects. It may use the database. If
    /// it panics, the key is unchanged.
    ///
    /// The number of attempts is not limited, and the deadline of [`Keyspace::with_write_options`] applies to each
    /// attempt. `fetch_update` therefore never returns if each call of `update` writes the same key, or if each call
    /// takes longer than the [write history](WriteBatch::guard) covers.
    ///
    /// Concurrent updates of one key wait for each other. All keys of the database share 64 locks, so updates of
    /// different keys may wait too. An update holds its lock during all attempts, including `update`, the commit and the
    /// sync of [`Durability::Sync`](crate::Durability::Sync). An update waits for the lock at most 20 ms, and then
    /// continues without it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let counters = db.default_keyspace();
    /// let increment = |old: Option<&[u8]>| vec![old.map_or(0, |old| old[0]) + 1];
    /// assert_eq!(counters.fetch_update("visits", increment)?, None);
    /// assert_eq!(counters.fetch_update("visits", increment)?.as_deref(), Some(&[1][..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`] and [`Db::write`](crate::Db::write). The call retries after
    /// [`Error::Conflict`] and [`Error::ConflictUnknown`].
    pub fn fetch_update<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]>,
        update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<Option<Slice>> {
        self.update(key.as_ref(), update).map(|values| values.before)
    }

    /// Updates a value and returns the new value, even if this value has already expired; see
    /// [`Keyspace::fetch_update`].
    ///
    /// # Errors
    /// The errors of [`Keyspace::fetch_update`].
    pub fn update_fetch<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]>,
        update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<Option<Slice>> {
        self.update(key.as_ref(), update).map(|values| values.after)
    }

    fn update<U: Into<Update>>(
        &self,
        key: &[u8],
        mut update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<UpdateResult> {
        let update = &mut |old: Option<&[u8]>| update(old).into();
        update::update(self.inner(), &self.tree, key, self.write_options, update)
    }

    /// Sets and stores another compaction policy, as [`Keyspace::set_options`] does.
    ///
    /// Data is not rewritten at once. The jobs of the new policy reshape the tree in the background. They never move
    /// data to an upper level. If the deepest level is L6, as with the default policy, the policies `tiering`,
    /// `lazy-leveling` and `fluid` may therefore need several times the space of a new tree.
    /// [`Db::clone_keyspace`](crate::Db::clone_keyspace) with the new policy writes a new tree.
    ///
    /// A policy that drops data, such as `fifo`, starts to do so. `fifo` drops no file while a snapshot or a transaction
    /// of any keyspace is open that is newer than the oldest entry of the file. After this call has returned, the
    /// replaced policy drops no file.
    ///
    /// # Errors
    /// [`Error::Policy`] if a parameter is relative to the run of an experiment; [`Error::Contradiction`] if the
    /// keyspace has a bound `delete_persistence`, and the policy is `fifo` or a custom policy; [`Error::InvalidOption`]
    /// if the name of a custom policy is empty or has more than 255 bytes; [`Error::NoOperandStore`]; [`Error::KeyspaceDropped`];
    /// [`Error::OpenedReadOnly`]; [`Error::ReadOnly`] with the cause; [`Error::Closed`].
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<()> {
        let policy = policy.into();
        self.set_options(|options| options.policy(policy.clone()))
    }

    /// Changes options of the open keyspace.
    ///
    /// `change` receives the current options and returns the new ones. It is called again if another thread changes the
    /// options meanwhile. Sizes and table options apply to the memtables and tables that are created later; existing
    /// files are not rewritten. The policy and the name of the merge operator are stored, as by
    /// [`Db::keyspace`](crate::Db::keyspace). Only `Db::keyspace` can set an operand store. If the next open passes
    /// other options, those options apply.
    ///
    /// If the keyspace was opened with [`Db::open_keyspace`](crate::Db::open_keyspace) without options, its setting for
    /// separated values is unknown until it is set. Until then, compactions keep separated values in their blob files.
    /// Use `Db::keyspace` to move these values into tables.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::{Compression, KeyspaceOptions};
    ///
    /// let pages = db.keyspace("pages", KeyspaceOptions::default().memtable_bytes(8 << 20))?;
    /// pages.set_options(|options| options.compression(Compression::Lz4))?;
    /// assert_eq!(pages.options().compression, [Compression::Lz4]);
    /// assert_eq!(pages.options().memtable_bytes, 8 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a value out of bounds or another operand store; [`Error::Contradiction`] for two
    /// options that exclude each other, as listed for [`Db::keyspace`](crate::Db::keyspace), or another merge operator;
    /// [`Error::NoCompactionPolicy`] or [`Error::UnreadablePolicy`] if the stored policy needs to be set and was not
    /// set; the errors of [`Keyspace::set_policy`].
    pub fn set_options(
        &self,
        change: impl FnMut(KeyspaceOptions) -> KeyspaceOptions,
    ) -> Result<()> {
        open_keyspace::set_options(self.inner(), &self.tree, change)
    }

    /// Returns the value of a key. The value shares the memory of its cached block.
    ///
    /// # Errors
    /// The errors of [`Db::get`](crate::Db::get).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.get_with(key, &ReadOptions::default())
    }

    /// Returns the value of a key, read with options.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`]; [`Error::WouldBlock`] with [`ReadTier::Memory`](crate::ReadTier::Memory);
    /// [`Error::Deadline`].
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Slice>> {
        point_read::get(self.inner(), &self.tree, key.as_ref(), None, options)
    }

    /// Returns whether a key has a value.
    ///
    /// A [separated value](crate::ValueSeparation) is not read from its blob file, unless merge operands must be
    /// combined with it. The call counts as a get.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains_key_with(key, &ReadOptions::default())
    }

    pub(crate) fn contains_key_with(
        &self,
        key: impl AsRef<[u8]>,
        options: &ReadOptions,
    ) -> Result<bool> {
        point_read::contains_key(self.inner(), &self.tree, key.as_ref(), None, options)
    }

    /// Returns the values of many keys at one sequence number, in the order of `keys`.
    ///
    /// Keys are looked up in ascending order, each distinct key once. After the first lookup that waits for a
    /// device, the remaining blocks are read concurrently.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`]; one failed lookup fails the call.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        multi_get(self.inner(), &self.tree, keys, None)
    }

    /// Returns the entry with the smallest key.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next().transpose()
    }

    /// Returns the entry with the largest key.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().next_back().transpose()
    }

    /// Returns an iterator over the current entries of a range of keys. It iterates in both directions.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.range_at(range, None)
    }

    /// Returns an iterator over all current entries.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// Returns an iterator over the current entries whose keys start with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.prefix_at(prefix.as_ref(), None)
    }

    pub(crate) fn prefix_at(&self, prefix: &[u8], snapshot: Option<Arc<SnapshotGuard>>) -> Range {
        let lower = Bound::Included(Bytes::copy_from_slice(prefix));
        self.bounded_range(lower, prefix_upper_bound(prefix), snapshot)
    }

    pub(crate) fn range_at<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        snapshot: Option<Arc<SnapshotGuard>>,
    ) -> Range {
        let (lower, upper) = owned_bounds(range);
        self.bounded_range(lower, upper, snapshot)
    }

    fn bounded_range(
        &self,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        snapshot: Option<Arc<SnapshotGuard>>,
    ) -> Range {
        let view = match self.pin_view(snapshot) {
            Ok(view) => view,
            Err(error) => return Range::from_error(error, &self.tree),
        };
        let range = Range::new(view, lower, upper);
        match self.inner().start_scan_trace(&self.tree) {
            Some(trace) => range.with_trace(trace),
            None => range,
        }
    }

    /// Pins the current state, or that of a snapshot, for an iterator.
    fn pin_view(&self, snapshot: Option<Arc<SnapshotGuard>>) -> Result<IterView> {
        let inner = self.inner();
        inner.check_open()?;
        inner.begin_operation();
        let (view, read_point) = match &snapshot {
            Some(snapshot) => {
                (self.tree.pin_super_version(), inner.state.read_point_of_snapshot(snapshot))
            }
            None => inner.state.pin_newest(&self.tree, Tree::pin_super_version),
        };
        match &snapshot {
            Some(snapshot) => self.tree.check_visible_to(snapshot)?,
            None => self.tree.check_live()?,
        }
        self.tree.counters.count_scan();
        Ok(IterView::new(view, &self.tree, read_point, snapshot))
    }

    /// Returns a cursor over the current entries; see [`KeyspaceCursor`].
    ///
    /// # Errors
    /// [`Error::KeyspaceDropped`]; [`Error::Closed`].
    pub fn cursor(&self, options: &ReadOptions) -> Result<KeyspaceCursor> {
        self.cursor_at(options, None)
    }

    pub(crate) fn cursor_at(
        &self,
        options: &ReadOptions,
        snapshot: Option<Arc<SnapshotGuard>>,
    ) -> Result<KeyspaceCursor> {
        let view = self.pin_view(snapshot)?;
        let trace = self.inner().start_scan_trace(&self.tree);
        Ok(KeyspaceCursor::new(view, options, trace))
    }

    /// Returns the approximate number of bytes that a range of keys occupies in table files.
    ///
    /// Obsolete and expired entries count. Memtables and blob files do not count. A file that extends beyond the range
    /// counts in proportion to the number of its index blocks in the range. The maximum error per sorted run and bound
    /// is the data of one index block (some hundred data blocks), or of one file if that is smaller.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`] if a top index cannot be read.
    pub fn approximate_size<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        self.approximate_sum(range, |table| table.shape().bytes)
    }

    /// Returns the approximate number of keys that a range has in table files.
    ///
    /// All entries except tombstones count. The result therefore includes expired entries, entries that newer entries
    /// or range tombstones hide, and all merge operands of a key. Memtables and operand stores do not count.
    ///
    /// A table inside the range counts exactly. A table that extends beyond the range counts in proportion to its index
    /// blocks in the range. Per sorted run and bound, the error is at most the number of entries of one table. If the
    /// index blocks of the table hold equal numbers of entries, the error is at most that number. The count of all keys
    /// is exact if a [`Keyspace::compact_range`] has merged all runs into one and no snapshot existed when its tables
    /// were written.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// let keys = db.default_keyspace();
    /// for number in 0..100u8 {
    ///     keys.put([number], "value")?;
    /// }
    /// db.flush()?;
    /// assert_eq!(keys.approximate_count::<&[u8]>(..)?, 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`] if a top index cannot be read.
    pub fn approximate_count<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        self.approximate_sum(range, |table| {
            let properties = table.table().properties();
            properties.entries.saturating_sub(properties.tombstones)
        })
    }

    /// Returns the sum of `amount` over all tables. A table that extends beyond the range counts in proportion.
    fn approximate_sum<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        amount: impl Fn(&TableFile) -> u64,
    ) -> Result<u64> {
        let lower = range.start_bound().map(AsRef::as_ref);
        let upper = range.end_bound().map(AsRef::as_ref);
        self.inner().check_open()?;
        self.inner().begin_operation();
        let view = self.tree.pin_super_version();
        self.tree.check_live()?;
        if let (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) = (lower, upper)
            && lower > upper
        {
            return Ok(0);
        }
        let tables = view.version.runs().iter().flat_map(|run| run.tables().iter());
        tables.map(|table| share_between(table, amount(table), lower, upper)).sum()
    }

    /// Merges all entries of a range of keys into one sorted run in the deepest level.
    ///
    /// Memtables are flushed first. One job then merges all files that overlap the range, with the files that have to
    /// move with them. It drops tombstones and obsolete entries that no snapshot needs. Reads continue. Writes continue
    /// unless L0 has almost as many runs as the policy permits.
    ///
    /// If all files of the range are already in the oldest run of the deepest level, the job rewrites only those that
    /// contain tombstones. The others keep the options with which they were written. They also keep obsolete entries
    /// that a snapshot needed at that time. [`Db::clone_keyspace`](crate::Db::clone_keyspace) writes all data anew. In
    /// a keyspace with a [`CompactionFilter`](crate::CompactionFilter), the job rewrites all files of the range, so
    /// that the filter sees every value that no snapshot sees.
    ///
    /// If the policy drops old data, as `fifo` does, only the memtables are flushed, because a merge would mix old and
    /// new entries. The inputs are removed at the end, so the range temporarily needs twice its space. The compaction
    /// policy may reshape the tree afterwards. The deadline of [`Keyspace::with_write_options`] is checked between two
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Closed`]; [`Error::KeyspaceDropped`]; [`Error::OpenedReadOnly`];
    /// [`Error::ReadOnly`] with the cause; [`Error::Corrupt`] and [`Error::Io`] if an input cannot be read or an
    /// output cannot be written; [`Error::CompactionBlocked`] if an input is quarantined. After an error the
    /// tables are unchanged, except for the flush.
    pub fn compact_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        check_reentry("compact_range")?;
        let (tree, bounds) = (Arc::clone(&self.tree), owned_bounds(range));
        let (cause, deadline) = (WaitCause::Compaction, self.write_options.deadline);
        run_with_deadline(self.inner(), cause, deadline, move |inner, deadline_us| {
            compact_range::compact_range(inner, &tree, &bounds, deadline_us)
        })
    }

    /// Adds external tables to this keyspace, all or nothing; see [`Db::ingest`](crate::Db::ingest).
    ///
    /// The files are linked into the database directory if the file system supports it. A linked file must not be
    /// modified after the call: a write to its old path damages the table of the database. `Db::ingest` with
    /// [`IngestOptions::copy_files`] copies the files.
    ///
    /// # Errors
    /// The errors of [`Db::ingest`](crate::Db::ingest).
    pub fn ingest<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
    ) -> Result<IngestSummary> {
        check_reentry("ingest")?;
        let files = files.into_iter().map(|file| file.as_ref().to_owned()).collect();
        let requests = vec![(Arc::clone(&self.tree), files)];
        ingest_files(self.inner(), requests, IngestOptions::default())
    }

    /// Returns a writer of an external table on the file system of this database, with the table options of this
    /// keyspace.
    ///
    /// # Errors
    /// The errors of [`ExternalTableWriter::create`].
    pub fn external_table_writer(&self, path: impl AsRef<Path>) -> Result<ExternalTableWriter> {
        let state = &self.inner().state;
        let options = self.tree.settings().options.clone();
        let (vfs, uid) = (Arc::clone(&state.vfs), state.env.random_u64());
        ExternalTableWriter::create_with_uid(vfs, path.as_ref(), &options, uid)
    }

    /// Loads many entries at once, all or nothing, without the log and without memtables.
    ///
    /// The entries are written once, to tables of the deepest level in which they overlap no file. They become visible
    /// together at one sequence number; see [`Db::ingest`](crate::Db::ingest). Without
    /// [`BulkLoadOptions::sort_memory_bytes`], the keys must be distinct and in ascending order.
    /// [`Keyspace::bulk_loader`] accepts entries one by one.
    ///
    /// Three options of the keyspace do not apply:
    /// - `default_ttl`: loaded values never expire.
    /// - `value_separation`: values of any size are written to the tables. Compactions that rewrite a table separate
    ///   its values.
    /// - `filter_bits`: filters have 8 bits per key, until a compaction rewrites the table.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
    /// use lsmx::ingest::BulkLoadOptions;
    ///
    /// let squares = db.default_keyspace();
    /// let entries = (0..1000_u32).map(|n| (n.to_be_bytes(), (n * n).to_string()));
    /// squares.bulk_load(entries, BulkLoadOptions::default())?;
    ///
    /// let unsorted = [("b", "2"), ("a", "1")];
    /// squares.bulk_load(unsorted, BulkLoadOptions::default().sort_memory_bytes(64 << 20))?;
    /// assert_eq!(squares.iter().count(), 1002);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`BulkLoader::put`] and [`BulkLoader::finish`].
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
        options: BulkLoadOptions<'_>,
    ) -> Result<IngestSummary> {
        let mut loader = self.bulk_loader(options)?;
        for (key, value) in entries {
            loader.put(key, value)?;
        }
        loader.finish()
    }

    /// Starts a bulk load whose entries are added one by one; see [`Keyspace::bulk_load`].
    ///
    /// # Errors
    /// [`Error::IngestRefused`] if the keyspace has an operand store; [`Error::InvalidOption`]; [`Error::ReadOnly`] with
    /// the cause; [`Error::OpenedReadOnly`]; [`Error::KeyspaceDropped`]; [`Error::Closed`].
    pub fn bulk_loader<'a>(&self, options: BulkLoadOptions<'a>) -> Result<BulkLoader<'a>> {
        BulkLoader::new(&self.handle, &self.tree, options)
    }

    /// Moves all operands from the operand store of the keyspace to its tree and detaches the store.
    ///
    /// Operands in memtables go to the tree at the next flush. Later opens do not need the store. Without a store the call
    /// has no effect. During the call, [`Db::snapshot`](crate::Db::snapshot) and the starts of transactions wait.
    ///
    /// # Errors
    /// [`Error::SnapshotsHeld`] if a snapshot exists; [`Error::NoOperandStore`]; [`Error::KeyspaceDropped`];
    /// [`Error::OpenedReadOnly`]; [`Error::ReadOnly`] with the cause; [`Error::Closed`]; [`Error::Corrupt`] and
    /// [`Error::Io`] if a file cannot be read or written. After an error the keyspace is unchanged.
    pub fn operands_to_tree(&self) -> Result<()> {
        operand_store::operands_to_tree(self.inner(), &self.tree)
    }
}

/// Returns the approximate part of `amount` that belongs to the keys of a table between two bounds.
fn share_between(
    table: &TableFile,
    amount: u64,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
) -> Result<u64> {
    let range = &table.shape().range;
    let start = match lower {
        Bound::Included(key) | Bound::Excluded(key) if *key > *range.smallest => {
            if *key > *range.largest {
                amount
            } else {
                share_before_key(table.table(), amount, key)?
            }
        }
        _ => 0,
    };
    let end = match upper {
        Bound::Included(key) | Bound::Excluded(key) if *key < *range.largest => {
            if *key < *range.smallest { 0 } else { share_before_key(table.table(), amount, key)? }
        }
        _ => amount,
    };
    Ok(end.saturating_sub(start))
}
