//! A keyspace as users hold it, and how one comes into being.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::operand_store::OpenedStore;
use crate::db::{DbInner, Handle};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, KEYSPACE_NAME_BYTES_MAX, VersionEdit};
use crate::iter::range::{Range, after_prefix};
use crate::lookup::point::Reads;
use crate::options::keyspace::{KeyspaceOptions, OptionsInForce, Persisted, StoredOperandStore};
use crate::options::read::ReadOptions;
use crate::options::stored_policy::Policy;
use crate::options::stored_policy::StoredPolicy;
use crate::options::write::WriteOptions;
use crate::state::work_queue::WorkKind;
use crate::tree::operands::Attached;
use crate::tree::snapshots::Pinned;
use crate::tree::version::Version;
use crate::tree::{Origin, Tree};
use crate::write::backpressure;
use crate::write::batch::WriteBatch;

/// A named tree of one database. Clones are handles of the same one.
#[derive(Clone, Debug)]
pub struct Keyspace {
    handle: Arc<Handle>,
    tree: Arc<Tree>,
}

/// For batches, which take any kind of handle.
impl AsRef<Keyspace> for Keyspace {
    fn as_ref(&self) -> &Keyspace {
        self
    }
}

impl Keyspace {
    pub(crate) fn new(handle: Arc<Handle>, tree: Arc<Tree>) -> Keyspace {
        Keyspace { handle, tree }
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    pub(crate) fn inner(&self) -> &Arc<DbInner> {
        &self.handle.0
    }

    pub(crate) fn check_owner(&self, handle: &Arc<Handle>) -> Result<()> {
        if Arc::ptr_eq(&self.handle, handle) {
            Ok(())
        } else {
            Err(Error::ForeignKeyspace { name: self.tree.name.clone() })
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.tree.name
    }

    /// Returns the compaction policy. Its text is the spec, or `custom:` and the name of a custom policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.tree.settings().policy()
    }

    /// The options that are in force: those of the last [`Db::keyspace`](crate::Db::keyspace) or
    /// [`Keyspace::set_policy`], and what the manifest stores of the options that were left out.
    #[must_use]
    pub fn options(&self) -> OptionsInForce {
        let settings = self.tree.settings();
        let options = &settings.options;
        OptionsInForce {
            policy: settings.policy(),
            memtable_bytes: options.memtable_bytes,
            table_bytes: options.table_bytes,
            block_bytes: options.block_bytes,
            restart_interval: options.restart_interval,
            block_tags: options.block_tags,
            compression: options.compression.clone(),
            filter_bits: options.filter_bits,
            filter_last_run: options.filter_last_run,
            merge_operator: self.tree.merging.name().map(str::to_owned),
            operand_store: self.tree.beside.name(),
            value_separation: options.value_separation,
        }
    }

    /// Gives `key` a value, `Buffered`.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.handle.0.put(&self.tree, key.as_ref(), value.as_ref())
    }

    /// Deletes `key`, `Buffered`.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.handle.0.delete(&self.tree, key.as_ref())
    }

    /// Merges an operand into `key`, `Buffered`: without reading, its value becomes what the
    /// keyspace's [merge operator](KeyspaceOptions::merge_operator) makes of the value and the
    /// operand. See `docs/guide/merge-operators.md`.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write); [`Error::NoMergeOperator`]. Whether the operand makes
    /// sense to the operator, a read tells.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.handle.0.merge(&self.tree, key.as_ref(), operand.as_ref())
    }

    /// [`Keyspace::merge`] with options.
    ///
    /// # Errors
    /// As [`Keyspace::merge`].
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.merge(self, key, operand);
        self.handle.0.write(batch, options.into())
    }

    /// [`Keyspace::put`] with options.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put(self, key, value);
        self.handle.0.write(batch, options.into())
    }

    /// [`Keyspace::delete`] with options.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn delete_with(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete(self, key);
        self.handle.0.write(batch, options.into())
    }

    /// Deletes all keys of a range, `Buffered`. It costs one record, however many keys there are;
    /// their space is freed in the background. A range that no key can be in, such as `b..a`,
    /// deletes nothing.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.delete_range_with(range, WriteOptions::default())
    }

    /// [`Keyspace::delete_range`] with options.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn delete_range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        options: impl Into<WriteOptions>,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(self, range);
        self.handle.0.write(batch, options.into())
    }

    /// Gives the keyspace another compaction policy, which is remembered. Nothing is rewritten for that
    /// alone: the tree comes to the shape that the policy wants job by job, while reads and writes go
    /// on. One that drops data, `fifo`, begins to do so.
    ///
    /// # Errors
    /// [`Error::Policy`] if a parameter of the policy is a share of an experiment's run;
    /// [`Error::KeyspaceDropped`]; [`Error::OpenedReadOnly`]; [`Error::ReadOnly`] with the cause;
    /// [`Error::Closed`].
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<()> {
        self.handle.0.retune(&self.tree, |options| options.policy(policy))
    }

    /// Deletes all keys, `Buffered`: a range delete like any other, in the log and in the order of
    /// commits. Files that nobody can see into any more go without being read.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn clear(&self) -> Result<()> {
        self.delete_range::<&[u8]>(..)
    }

    /// The value of `key`; shares the memory of the block it lies in.
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.handle.0.get(&self.tree, key.as_ref(), None, Reads::Storage)
    }

    /// Returns the value of `key`, read with these options.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::WouldBlock`] with [`ReadTier::Memory`](crate::ReadTier::Memory).
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Slice>> {
        self.handle.0.get(&self.tree, key.as_ref(), None, options.into())
    }

    /// The entries of a range of keys, as they are now, from both ends.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.range_at(range, None)
    }

    /// All entries.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.prefix_at(prefix.as_ref(), None)
    }

    pub(crate) fn prefix_at(&self, prefix: &[u8], pinned: Option<Arc<Pinned>>) -> Range {
        let lower = Bound::Included(Bytes::copy_from_slice(prefix));
        self.bounded(lower, after_prefix(prefix), pinned)
    }

    pub(crate) fn range_at<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        pinned: Option<Arc<Pinned>>,
    ) -> Range {
        let owned = |bound: Bound<&K>| bound.map(|key| Bytes::copy_from_slice(key.as_ref()));
        self.bounded(owned(range.start_bound()), owned(range.end_bound()), pinned)
    }

    fn bounded(
        &self,
        lower: Bound<Bytes>,
        upper: Bound<Bytes>,
        pinned: Option<Arc<Pinned>>,
    ) -> Range {
        let core = &self.handle.0;
        if let Err(error) = core.check_open() {
            return Range::failed(error, &self.tree);
        }
        core.begin_operation();
        let view = self.tree.pin();
        let gone = match &pinned {
            None => self.tree.check_live(),
            Some(pinned) => self.tree.check_seen_by(pinned),
        };
        if let Err(error) = gone {
            return Range::failed(error, &self.tree);
        }
        let seq =
            pinned.as_ref().map_or_else(|| core.state.sequence.published(), |pinned| pinned.seq());
        let merging = Arc::clone(&self.tree.merging);
        let range = Range::new(view, merging, seq, pinned, lower, upper);
        let range = range.reading_ahead(&core.state.env);
        match core.start_scan_trace(&self.tree) {
            Some(trace) => range.recorded(trace),
            None => range,
        }
    }
}

impl WriteBatch {
    /// Gives `key` a value.
    pub fn put(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) {
        self.add(keyspace.as_ref().tree(), EntryKind::Put, key.as_ref(), value.as_ref());
    }

    /// Deletes `key`.
    pub fn delete(&mut self, keyspace: &impl AsRef<Keyspace>, key: impl AsRef<[u8]>) {
        self.add(keyspace.as_ref().tree(), EntryKind::Delete, key.as_ref(), &[]);
    }

    /// Deletes all keys of a range, those that the batch has written before included. Of a range that
    /// no key can be in, such as `b..a`, nothing is noted.
    pub fn delete_range<K: AsRef<[u8]>>(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        range: impl RangeBounds<K>,
    ) {
        let start = range.start_bound().map(AsRef::as_ref);
        let end = range.end_bound().map(AsRef::as_ref);
        self.add_range_delete(keyspace.as_ref().tree(), start, end);
    }

    /// Merges an operand into `key`, as [`Keyspace::merge`]. In a keyspace without a merge operator
    /// the write of the batch fails with [`Error::NoMergeOperator`].
    pub fn merge(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) {
        self.add(keyspace.as_ref().tree(), EntryKind::Merge, key.as_ref(), operand.as_ref());
    }

    /// Makes the batch conditional. The write fails with [`Error::GuardRefused`] if `key` was written or
    /// deleted after the sequence number `read` (see [`Snapshot::seq`](crate::Snapshot::seq)). It fails
    /// with [`Error::GuardUnknown`] if `read` is older than the recent history. The history consists of
    /// the memtables and of hashes of flushed keys, up to 16 MiB and 1/16 of the memory budget. That is the
    /// last second under ordinary load. In both cases the caller reads the key again and retries.
    pub fn guard(&mut self, keyspace: &impl AsRef<Keyspace>, key: impl AsRef<[u8]>, read: SeqNo) {
        self.add_guard(keyspace.as_ref().tree(), key.as_ref(), read);
    }
}

impl DbInner {
    /// Opens the keyspace, or creates it if it does not exist and `create` is true.
    pub(crate) fn open_keyspace(
        &self,
        name: &str,
        options: KeyspaceOptions,
        create: bool,
    ) -> Result<Arc<Tree>> {
        self.check_open()?;
        self.begin_operation();
        if name.is_empty() || name.len() > KEYSPACE_NAME_BYTES_MAX {
            return Err(Error::InvalidOption {
                name: "keyspace name",
                value: format!("{} bytes", name.len()),
                must: "1 to 255 bytes",
            });
        }
        self.options.check_keyspace(name, &options)?;
        let options = self.options.memory_plan().fit(options);
        self.state.error_state.check_writable()?;
        loop {
            if !create && self.state.trees.read().by_name(name).is_none() {
                return Err(Error::UnknownKeyspace { name: name.to_owned() });
            }
            let beside = self.open_operand_store(name, &options)?;
            if let Some(opened) = &beside {
                let tree = opened.tree.and_then(|id| self.state.trees.read().by_id(id).cloned());
                tree.map_or(Ok(()), |tree| {
                    self.deliver_kept_log(&tree, &opened.attached, &options)
                })?;
            }
            let tree = self.open_keyspace_alone(name, &options, beside, create);
            self.state.emit_pending_events();
            self.state.discard_unclaimed_files();
            // None: another keyspace has this name by now.
            if let Some(tree) = tree? {
                if self.read_only.is_none() {
                    // Not under the lock: this calls the policy, and may call the listener.
                    backpressure::refresh(&self.state, &self.throttle, &tree);
                }
                return Ok(tree);
            }
        }
    }

    fn open_keyspace_alone(
        &self,
        name: &str,
        options: &KeyspaceOptions,
        beside: Option<OpenedStore>,
        create: bool,
    ) -> Result<Option<Arc<Tree>>> {
        let _one_at_a_time = self.keyspace_changes.lock();
        // Closing takes the lock once, and after that changes nothing but its own.
        self.check_open()?;
        let existing = self.state.trees.read().by_name(name).cloned();
        let other = |opened: &OpenedStore| opened.tree != existing.as_ref().map(|tree| tree.id);
        let lacks = existing.as_ref().is_some_and(|tree| {
            beside.is_none() && options.operand_store.is_some() && tree.beside.attached().is_none()
        });
        if beside.as_ref().is_some_and(other) || (lacks && self.read_only.is_none()) {
            return Ok(None);
        }
        let attached = beside.map(|opened| opened.attached);
        if attached.is_some() && self.read_only.is_none() {
            let started = self.scheduler.start_flush_threads(1);
            started.map_err(|error| Error::io("start a thread for", &self.state.dir, error))?;
        }
        let options = options.clone();
        match existing {
            Some(tree) if self.read_only.is_some() => {
                tree.merging.admit(options.merge_operator.as_ref())?;
                if let Some(operator) = options.merge_operator.clone() {
                    tree.merging.supply(operator);
                }
                if let Some(attached) = attached {
                    self.attach(&tree, attached);
                }
                // Tuning is the caller's business; what would be remembered is not.
                let policy = tree.settings().stored_policy.clone();
                tree.set_settings(options, policy);
                Ok(Some(tree))
            }
            None if self.read_only.is_some() => Err(Error::OpenedReadOnly),
            Some(tree) => {
                self.change_options(&tree, options, attached)?;
                Ok(Some(tree))
            }
            None if !create => Err(Error::UnknownKeyspace { name: name.to_owned() }),
            None => self.create_keyspace(name, options, attached).map(Some),
        }
    }

    /// Changes the options of a keyspace that is open.
    fn retune(
        &self,
        tree: &Arc<Tree>,
        change: impl FnOnce(KeyspaceOptions) -> KeyspaceOptions,
    ) -> Result<()> {
        self.check_open()?;
        self.begin_operation();
        if self.read_only.is_some() {
            return Err(Error::OpenedReadOnly);
        }
        self.state.error_state.check_writable()?;
        let changed = self.retune_alone(tree, change);
        self.state.emit_pending_events();
        changed?;
        backpressure::refresh(&self.state, &self.throttle, tree);
        self.scheduler.run_inline();
        Ok(())
    }

    fn retune_alone(
        &self,
        tree: &Arc<Tree>,
        change: impl FnOnce(KeyspaceOptions) -> KeyspaceOptions,
    ) -> Result<()> {
        let _one_at_a_time = self.keyspace_changes.lock();
        self.check_open()?;
        tree.check_takes_writes()?;
        let options = change(tree.settings().options.clone());
        options.check()?;
        self.change_options(tree, options, None)
    }

    /// Appends a manifest edit that an operation makes, under a lock; the log is synced first, so that the
    /// keyspace is not ahead of commits made before.
    pub(crate) fn append_edit(&self, changes: Vec<Change>) -> Result<()> {
        let store = &self.state;
        let synced = match failpoint::is_on(Failpoint::EditWithoutWalSync) {
            true => Ok(()),
            false => store.wal.sync().map(drop),
        };
        let appended = synced.and_then(|()| store.manifest.append(&VersionEdit { changes }));
        appended.map_err(|error| store.fail_locked(error))
    }

    fn create_keyspace(
        &self,
        name: &str,
        options: KeyspaceOptions,
        attached: Option<Arc<Attached>>,
    ) -> Result<Arc<Tree>> {
        let store = &self.state;
        let policy = options.stored_policy().unwrap_or_default();
        let id = store.manifest.with_state(|state| state.keyspace_id_next);
        let persisted = Persisted::of_new(&options);
        self.append_edit(vec![Change::CreateKeyspace {
            id,
            name: name.to_owned(),
            options: persisted.encode(),
        }])?;
        let first_seq = self.committer.next_seq();
        let (name, version) =
            (name.to_owned(), Arc::new(Version::empty(&store.tables.deferred_drop)));
        let origin = Origin { opening: self.opening, env: store.env.clone() };
        let tree = Tree::new(origin, id, name, options, policy, version, first_seq);
        let tree = Arc::new(tree);
        if let Some(attached) = attached {
            self.attach(&tree, attached);
        }
        store.trees.write().insert(Arc::clone(&tree));
        Ok(tree)
    }

    /// `attached` is the store that it is given, if that is news.
    fn change_options(
        &self,
        tree: &Arc<Tree>,
        options: KeyspaceOptions,
        attached: Option<Arc<Attached>>,
    ) -> Result<()> {
        let attached = attached.filter(|_| tree.beside.attached().is_none());
        let converted = attached.is_some() && !tree.beside.is_there();
        let settings = tree.settings();
        let current = settings.stored_policy.clone();
        let policy = options.stored_policy().unwrap_or_else(|| current.clone());
        let mut options = options;
        if let (StoredPolicy::Custom(_), None) = (&policy, options.custom_policy()) {
            tree.check_policy()?;
            // Given before, and not given up.
            options.policy = settings.options.policy.clone();
        }
        drop(settings);
        let operator = options.merge_operator.clone();
        let separates = options.value_separation.is_some() && !tree.is_separated();
        let operator_is_news = tree.merging.admit(operator.as_ref())?;
        if operator_is_news || policy != current || converted || separates {
            let name = operator.as_ref().map(|operator| operator.name());
            let persisted = Persisted {
                policy: policy.to_string(),
                merge_operator: tree.merging.name().or(name).map(str::to_owned),
                operand_store: attached
                    .as_ref()
                    .map(|attached| StoredOperandStore::Name(attached.factory.name().to_owned()))
                    .or_else(|| tree.beside.stored()),
                value_separation: tree.is_separated() || separates,
            };
            let options = persisted.encode();
            self.append_edit(vec![Change::SetOptions { keyspace: tree.id, options }])?;
        }
        if let Some(operator) = operator {
            tree.merging.supply(operator);
        }
        if let Some(attached) = attached {
            self.attach(tree, attached);
        }
        tree.set_settings(options, policy);
        // The obstacle belonged to the previous policy.
        tree.jobs.lock().blocked = None;
        self.state.work.push(WorkKind::Compaction, tree.id);
        Ok(())
    }
}
