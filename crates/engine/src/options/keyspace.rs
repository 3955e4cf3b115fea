//! Options of a keyspace.

use std::time::Duration;

use lsmx_base::sync::Arc;
use lsmx_compaction::CompactionPolicy;

use crate::compaction_filter::CompactionFilter;
use crate::error::{Error, Result};
use crate::format::prefix_extractor::PrefixExtractor;
use crate::memtable::MemtableKind;
use crate::merge_operator::MergeOperator;
use crate::operand_store::OperandStoreFactory;
use crate::options::filter_bits::FilterBits;
use crate::options::policy::{Policy, StoredPolicy};
use crate::options::value_separation::ValueSeparation;
use crate::options::{check_type_name, invalid_option};
use crate::table::{Compression, FilterWidth, TableOptions};

/// Default of [`KeyspaceOptions::memtable_bytes`]: 64 MiB.
const MEMTABLE_BYTES_DEFAULT: u64 = 64 << 20;
/// Minimum of [`KeyspaceOptions::memtable_bytes`]: 1 KiB.
pub(crate) const MEMTABLE_BYTES_MIN: u64 = 1 << 10;
/// Range of the default of [`KeyspaceOptions::table_bytes`].
const TABLE_BYTES_DEFAULTS: (u64, u64) = (8 << 20, 64 << 20);

/// Minimum of [`KeyspaceOptions::delete_persistence`].
const DELETE_PERSISTENCE_MIN: Duration = Duration::from_millis(1);

/// Whether lookups use the filter of the last sorted run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterLastRun {
    /// The filter is not loaded, which saves most of the memory of filters. Most keys that exist are in the last run.
    /// A lookup of an absent key reads a block of the last run.
    Off,
    /// The filter is used like that of any other run.
    On,
    /// The filter is used while it saves more reads than cached data blocks of the same size would. If the block cache
    /// is not full, the filter is used while at least one of ten lookups in the last run is for an absent key.
    ///
    /// [`KeyspaceMetrics::filter_last_run`](crate::metrics::KeyspaceMetrics::filter_last_run) shows the current state.
    #[default]
    Auto,
}

/// Whether point lookups store the values that they combine from merge operands. Reads return the same values in both
/// modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RmwMode {
    /// Point lookups do not store combined values.
    #[default]
    Fixed,
    /// A get of a frequently read key may store the combined value in the active memtable. This requires that the
    /// newest operand is in this memtable and that the memtable has room. Later gets read this value. A flush writes
    /// the value to a table, even if the keyspace has an operand store.
    ///
    /// The mode does not affect keys that are rarely read. Counting gets needs 64 KiB of memory per keyspace.
    Adaptive,
}

/// Options of a keyspace. They are checked when the keyspace is opened.
///
/// The manifest stores the policy, and the names of the merge operator and the operand store. A stored policy is used
/// until another one is given. Another merge operator or operand store is refused. All other options are taken from the
/// caller at each open, and every value works with existing data.
#[derive(Clone, Debug)]
#[must_use]
pub struct KeyspaceOptions {
    pub(crate) policy: Option<Policy>,
    pub(crate) memtable_bytes: u64,
    pub(crate) memtable_kind: MemtableKind,
    pub(crate) table_bytes: Option<u64>,
    pub(crate) block_bytes: u32,
    pub(crate) restart_interval: u32,
    pub(crate) block_tags: bool,
    pub(crate) compression: Vec<Compression>,
    pub(crate) filter_bits: FilterBits,
    pub(crate) prefix_filter: Option<PrefixExtractor>,
    pub(crate) filter_last_run: FilterLastRun,
    pub(crate) merge_operator: Option<Arc<dyn MergeOperator>>,
    pub(crate) operand_store: Option<Arc<dyn OperandStoreFactory>>,
    pub(crate) compaction_filter: Option<Arc<dyn CompactionFilter>>,
    pub(crate) rmw_mode: RmwMode,
    pub(crate) value_separation: Option<ValueSeparation>,
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) delete_persistence: Option<Duration>,
}

impl From<Compression> for Vec<Compression> {
    fn from(compression: Compression) -> Vec<Compression> {
        vec![compression]
    }
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        let table = TableOptions::default();
        KeyspaceOptions {
            policy: None,
            memtable_bytes: MEMTABLE_BYTES_DEFAULT,
            memtable_kind: MemtableKind::default(),
            table_bytes: None,
            block_bytes: table.block_bytes,
            restart_interval: table.restart_interval,
            block_tags: table.block_tags,
            compression: vec![Compression::None],
            filter_bits: FilterBits::default(),
            prefix_filter: None,
            filter_last_run: FilterLastRun::default(),
            merge_operator: None,
            operand_store: None,
            compaction_filter: None,
            rmw_mode: RmwMode::default(),
            value_separation: None,
            default_ttl: None,
            delete_persistence: None,
        }
    }
}

impl KeyspaceOptions {
    /// Compaction policy: a [`PolicySpec`](crate::PolicySpec), or an `Arc` of a type that implements
    /// [`CompactionPolicy`]. Default: the stored policy; `leveled` for a new keyspace.
    ///
    /// The manifest stores a spec, or the name of a custom policy. The name has 1 to 255 bytes. A custom policy must be
    /// given at each open. Without it or another policy, opening the keyspace fails with [`Error::NoCompactionPolicy`],
    /// and the keyspace runs no compactions. If [`CompactionPolicy::can_drop_data`] is false, jobs that drop files are
    /// refused.
    ///
    /// ```
    /// use lsmx::{KeyspaceOptions, PolicySpec};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = KeyspaceOptions::default().policy("tiering(T=4)".parse::<PolicySpec>()?);
    /// # let _ = options;
    /// # Ok(())
    /// # }
    /// ```
    pub fn policy(mut self, policy: impl Into<Policy>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Size at which a memtable is sealed and flushed, in bytes, at least 1 KiB.
    ///
    /// Larger memtables mean fewer flushes and less compaction, but more memory and a longer recovery. The engine
    /// reduces larger values: with a memory budget to half of the memory for memtables, and if the keyspace has an
    /// [operand store](KeyspaceOptions::operand_store) to 1 GiB. Without a budget, a value above
    /// [`Options::memtable_bytes_max`](crate::Options::memtable_bytes_max) is refused with [`Error::Contradiction`].
    /// [`Keyspace::options`](crate::Keyspace::options) returns the size in use. Default: 64 MiB.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = bytes;
        self
    }

    /// Data structure of memtables. Another kind applies from the next memtable on. Default: [`MemtableKind::BLinkTree`].
    pub fn memtable_kind(mut self, kind: MemtableKind) -> Self {
        self.memtable_kind = kind;
        self
    }

    /// Target size of a table that a compaction writes, in bytes, at least [`KeyspaceOptions::block_bytes`].
    ///
    /// Smaller tables mean less compaction, because a job rewrites whole tables, but more files. With a memory budget,
    /// the engine reduces larger values to 1/16 of the budget. Default: the size of a memtable, but at least 8 MiB and
    /// at most 64 MiB.
    pub fn table_bytes(mut self, bytes: u64) -> Self {
        self.table_bytes = Some(bytes);
        self
    }

    /// Target size of a data block before compression, in bytes, 64 bytes to 16 MiB.
    ///
    /// Larger blocks make the index smaller, but a lookup reads more bytes. Default: 4096.
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Number of entries between restart points of a data block, 1 to 4096. Default: 16.
    pub fn restart_interval(mut self, entries: u32) -> Self {
        self.restart_interval = entries;
        self
    }

    /// Whether data blocks contain one hash byte per key, if their entries have at least 32 bytes on average.
    ///
    /// A lookup then skips most entries, which saves most if the block is in memory but not in the CPU cache. An entry
    /// becomes one byte larger. Default: true.
    pub fn block_tags(mut self, tags: bool) -> Self {
        self.block_tags = tags;
        self
    }

    /// Compression of all levels, or a list with the compression of each level, starting with L0. Deeper levels use the
    /// last element of the list. Default: [`Compression::None`].
    ///
    /// ```
    /// use lsmx::{Compression, KeyspaceOptions};
    ///
    /// let all_levels = KeyspaceOptions::default().compression(Compression::Lz4);
    /// let not_l0 = KeyspaceOptions::default().compression([Compression::None, Compression::Lz4]);
    /// # let _ = (all_levels, not_l0);
    /// ```
    pub fn compression(mut self, compression: impl Into<Vec<Compression>>) -> Self {
        self.compression = compression.into();
        self
    }

    /// Size of the filters that flushes and compactions write. Existing filters do not change.
    ///
    /// Larger filters save reads of runs that do not contain the key, but need more memory.
    /// Default: [`FilterBits::Fuse8`].
    pub fn filter_bits(mut self, bits: FilterBits) -> Self {
        self.filter_bits = bits;
        self
    }

    /// Prefixes of keys that the filters of new tables also contain. Default: none.
    ///
    /// If all keys of a range have the same prefix, a range read skips the sorted runs whose filters exclude this
    /// prefix. This saves the read of one block per skipped run. It helps ranges of few entries in trees of many runs.
    /// Each distinct prefix of a table takes as much memory as a key. The filter of the last sorted run is used only
    /// while it is in memory.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// use lsmx::{Db, KeyspaceOptions, Options, PrefixExtractor};
    ///
    /// let db = Db::open(dir.path().join("data"), Options::default())?;
    /// let options = KeyspaceOptions::default().prefix_filter(PrefixExtractor::Delimiter(b'/'));
    /// let files = db.keyspace("files", options)?;
    /// files.put("home/a", "1")?;
    /// assert_eq!(files.prefix("home/").count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix_filter(mut self, prefixes: impl Into<Option<PrefixExtractor>>) -> Self {
        self.prefix_filter = prefixes.into();
        self
    }

    /// Whether lookups use the filter of the last sorted run. Default: [`FilterLastRun::Auto`].
    pub fn filter_last_run(mut self, filter: FilterLastRun) -> Self {
        self.filter_last_run = filter;
        self
    }

    /// Merge operator, which combines merge operands. Default: none, merges are refused.
    ///
    /// The manifest stores the name of the operator permanently. A keyspace without an operator accepts any operator.
    /// After that, another operator is refused with [`Error::Contradiction`]. The operator must be given at each open,
    /// in [`Options`](crate::Options) or with [`Db::keyspace`](crate::Db::keyspace). While the operator is missing,
    /// operands are kept, and reads of operands fail with [`Error::NoMergeOperator`].
    pub fn merge_operator(mut self, operator: impl MergeOperator + 'static) -> Self {
        self.merge_operator = Some(Arc::new(operator));
        self
    }

    /// Operand store for the merge operands of this keyspace. Default: none, operands are entries of the tree.
    ///
    /// The manifest stores the name of the store, and every read needs the store. While the store is missing or cannot
    /// be opened, all calls on the keyspace fail with [`Error::NoOperandStore`], and WAL segments with undelivered
    /// operands are kept. Other keyspaces stay usable. A later call of [`Db::keyspace`](crate::Db::keyspace) with the
    /// store opens the keyspace. Another store is refused with [`Error::Contradiction`].
    ///
    /// A keyspace without a store can get one: later flushes then write operands to the store.
    /// [`Keyspace::operands_to_tree`](crate::Keyspace::operands_to_tree) moves the operands back to the tree and
    /// removes the store.
    pub fn operand_store(mut self, factory: impl OperandStoreFactory + 'static) -> Self {
        self.operand_store = Some(Arc::new(factory));
        self
    }

    /// Compaction filter, which removes or changes values while compactions rewrite them. Default: none.
    ///
    /// The manifest does not store the name of the filter: data can be read without the filter, and another filter may
    /// replace it at each open. While no filter is given, compactions keep all values. Compactions that run when the
    /// option changes use the previous filter. See [`CompactionFilter`].
    pub fn compaction_filter(mut self, filter: impl CompactionFilter + 'static) -> Self {
        self.compaction_filter = Some(Arc::new(filter));
        self
    }

    /// Whether a point lookup that combines operands may store the combined value, see [`RmwMode`]. Default:
    /// [`RmwMode::Fixed`].
    pub fn rmw_mode(mut self, mode: RmwMode) -> Self {
        self.rmw_mode = mode;
        self
    }

    /// Value separation, which stores large values in blob files. `None` disables it. Default: none.
    ///
    /// It can be enabled and disabled at any time: existing values stay readable, and compactions write values as the
    /// current option says.
    pub fn value_separation(mut self, separation: impl Into<Option<ValueSeparation>>) -> Self {
        self.value_separation = separation.into();
        self
    }

    /// Time to live of values that are written without an expiry time, at least 1 µs. `None` disables it. Default: none.
    ///
    /// It applies to puts and to the results of updates, including those in batches, that are written while the option
    /// is set. It does not apply to existing values, to bulk loads and to ingested files. A keyspace with a merge
    /// operator or an operand store cannot have this option, see `docs/guide/expiry.md`. The manifest does not store
    /// the option.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lsmx::KeyspaceOptions;
    ///
    /// let sessions = KeyspaceOptions::default().default_ttl(Duration::from_secs(3600));
    /// # let _ = sessions;
    /// ```
    pub fn default_ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.default_ttl = ttl.into();
        self
    }

    /// Sets the time within which deleted and expired values are removed from tables, blob files, operand stores and
    /// the log. `None` sets no limit. Default: none.
    ///
    /// The time counts from the delete or the expiry, on the database clock. It applies to deletes that are written
    /// while the option is set. A shorter bound means more compactions, more garbage collection of blob files and
    /// earlier flushes of all keyspaces. Values that a snapshot or an iterator may need stay longer than the bound.
    /// Metrics and [`Event::DeletePersistenceOverdue`](crate::Event::DeletePersistenceOverdue) name the snapshot or the
    /// iterator. Checkpoints, backups and freed blocks of the device are not covered. See `docs/guide/deletion.md`.
    ///
    /// The bound must be at least one millisecond. The keyspace does not store the option, so it must be given at each
    /// open. [`Error::Contradiction`] refuses the bound together with one of these:
    ///
    /// - the policy `fifo`, which merges no files and drops deleted values only with their whole files,
    /// - a custom policy, which has no rule for the bound,
    /// - an operand store that does not
    ///   [support the bound](crate::operand_store::OperandStoreFactory::supports_delete_persistence).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lsmx::KeyspaceOptions;
    ///
    /// let personal = KeyspaceOptions::default().delete_persistence(Duration::from_secs(24 * 3600));
    /// # let _ = personal;
    /// ```
    ///
    /// Source: Sarkar et al., "Lethe", SIGMOD 2020.
    pub fn delete_persistence(mut self, bound: impl Into<Option<Duration>>) -> Self {
        self.delete_persistence = bound.into();
        self
    }

    /// Fails if `delete_persistence` is set, and `policy` or the operand store does not support it.
    pub(crate) fn check_delete_persistence(
        &self,
        policy: &StoredPolicy,
        store: Option<&Arc<dyn OperandStoreFactory>>,
    ) -> Result<()> {
        let Some(bound) = self.delete_persistence else { return Ok(()) };
        let contradiction = |second: String, why| {
            let first = format!("delete_persistence = {bound:?}");
            Err(Error::Contradiction { first, second, why })
        };
        match policy {
            StoredPolicy::Custom(_) => contradiction(
                format!("policy = {policy}"),
                "a custom policy has no rule that removes deleted values within a bound",
            ),
            // The keyspace cannot be used before another policy is set.
            StoredPolicy::Unreadable(..) => Ok(()),
            StoredPolicy::Spec(spec) if spec.can_drop_data() => contradiction(
                format!("policy = {policy}"),
                "the policy merges no files, so deletes remove no values",
            ),
            StoredPolicy::Spec(_) => match store.filter(|it| !it.supports_delete_persistence()) {
                Some(store) => contradiction(
                    format!("operand_store = {}", store.name()),
                    "the operand store does not bound the time of deleted operands",
                ),
                None => Ok(()),
            },
        }
    }

    /// Fails if a default time to live is set and `operands` is given. `operands` describes the merge operator or the
    /// operand store in the error.
    pub(crate) fn check_default_ttl(&self, operands: Option<&str>) -> Result<()> {
        let (Some(ttl), Some(operands)) = (self.default_ttl, operands) else { return Ok(()) };
        Err(Error::Contradiction {
            first: format!("default_ttl = {ttl:?}"),
            second: operands.to_owned(),
            why: "merge operands do not expire with the value below them",
        })
    }

    /// Returns the stored form of the policy.
    pub(crate) fn stored_policy(&self) -> Option<StoredPolicy> {
        self.policy.as_ref().map(Policy::to_stored)
    }

    /// Returns the policy if it is a custom policy.
    pub(crate) fn custom_policy(&self) -> Option<&Arc<dyn CompactionPolicy>> {
        match &self.policy {
            Some(Policy::Custom(policy)) => Some(policy),
            Some(Policy::Spec(_)) | None => None,
        }
    }

    /// Returns whether both options have the same operand store, or none.
    pub(crate) fn has_same_operand_store(&self, other: &KeyspaceOptions) -> bool {
        match (&self.operand_store, &other.operand_store) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Checks all values, and all pairs of values that may contradict each other.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(Policy::Spec(spec)) = &self.policy {
            spec.check_for_database().map_err(Error::Policy)?;
        }
        check_type_name("policy", self.custom_policy().map(|policy| policy.name()))?;
        if self.memtable_bytes < MEMTABLE_BYTES_MIN {
            return Err(invalid_option("memtable_bytes", self.memtable_bytes, "at least 1024"));
        }
        self.filter_bits.check()?;
        if self.compression.is_empty() {
            let must = "a compression for at least one level";
            return Err(invalid_option("compression", "empty", must));
        }
        check_type_name(
            "merge_operator",
            self.merge_operator.as_ref().map(|operator| operator.name()),
        )?;
        check_type_name("operand_store", self.operand_store.as_ref().map(|store| store.name()))?;
        check_type_name(
            "compaction_filter",
            self.compaction_filter.as_ref().map(|filter| filter.name()),
        )?;
        if let Some(separation) = &self.value_separation {
            separation.check()?;
        }
        if self.default_ttl.is_some_and(|ttl| ttl.as_micros() == 0) {
            return Err(invalid_option("default_ttl", "0", "at least 1 microsecond"));
        }
        if self.delete_persistence.is_some_and(|bound| bound < DELETE_PERSISTENCE_MIN) {
            let value = format!("{:?}", self.delete_persistence.unwrap_or_default());
            return Err(invalid_option("delete_persistence", value, "at least 1 millisecond"));
        }
        let policy = self.stored_policy().unwrap_or_default();
        self.check_delete_persistence(&policy, self.operand_store.as_ref())?;
        let operator = self.merge_operator.as_ref();
        let operator = operator.map(|operator| format!("merge_operator = {}", operator.name()));
        let store = self.operand_store.as_ref();
        let store = store.map(|store| format!("operand_store = {}", store.name()));
        self.check_default_ttl(operator.or(store).as_deref())?;
        if self.table_target_bytes() < u64::from(self.block_bytes) {
            return Err(Error::Contradiction {
                first: format!("table_bytes = {}", self.table_target_bytes()),
                second: format!("block_bytes = {}", self.block_bytes),
                why: "a table contains at least one block",
            });
        }
        self.table_options(0, FilterWidth::default()).validate()
    }

    /// Returns [`KeyspaceOptions::table_bytes`] or its default.
    pub(crate) fn table_target_bytes(&self) -> u64 {
        let (min, max) = TABLE_BYTES_DEFAULTS;
        let default = self.memtable_bytes.clamp(min, max).max(u64::from(self.block_bytes));
        self.table_bytes.unwrap_or(default)
    }

    /// Returns the compression for tables in `level`.
    pub(crate) fn compression_of(&self, level: u8) -> Compression {
        let compression = self.compression.get(usize::from(level)).or(self.compression.last());
        compression.copied().unwrap_or(Compression::None)
    }

    /// Returns the table options for `level`, with a filter of the given width.
    pub(crate) fn table_options(&self, level: u8, filter: FilterWidth) -> TableOptions {
        TableOptions {
            block_bytes: self.block_bytes,
            restart_interval: self.restart_interval,
            block_tags: self.block_tags,
            compression: self.compression_of(level),
            filter: Some(filter),
            prefixes: self.prefix_filter,
            ..TableOptions::default()
        }
    }
}

/// Current options of a keyspace, returned by [`Keyspace::options`](crate::Keyspace::options).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OptionsInForce {
    /// [`KeyspaceOptions::policy`], or the stored policy.
    pub policy: Policy,
    /// [`KeyspaceOptions::memtable_bytes`], limited by the memory budget.
    pub memtable_bytes: u64,
    /// [`KeyspaceOptions::memtable_kind`].
    pub memtable_kind: MemtableKind,
    /// [`KeyspaceOptions::table_bytes`] or its default, limited by the memory budget.
    pub table_bytes: u64,
    /// [`KeyspaceOptions::block_bytes`].
    pub block_bytes: u32,
    /// [`KeyspaceOptions::restart_interval`].
    pub restart_interval: u32,
    /// [`KeyspaceOptions::block_tags`].
    pub block_tags: bool,
    /// [`KeyspaceOptions::compression`] of each level.
    pub compression: Vec<Compression>,
    /// [`KeyspaceOptions::filter_bits`].
    pub filter_bits: FilterBits,
    /// [`KeyspaceOptions::prefix_filter`].
    pub prefix_filter: Option<PrefixExtractor>,
    /// [`KeyspaceOptions::filter_last_run`].
    pub filter_last_run: FilterLastRun,
    /// Stored name of the merge operator, whether or not it was given at this open.
    pub merge_operator: Option<String>,
    /// Stored name of the operand store, whether or not it was given at this open.
    pub operand_store: Option<String>,
    /// Name of the [`KeyspaceOptions::compaction_filter`] that was given last.
    pub compaction_filter: Option<String>,
    /// [`KeyspaceOptions::rmw_mode`].
    pub rmw_mode: RmwMode,
    /// [`KeyspaceOptions::value_separation`].
    pub value_separation: Option<ValueSeparation>,
    /// [`KeyspaceOptions::default_ttl`].
    pub default_ttl: Option<Duration>,
    /// [`KeyspaceOptions::delete_persistence`].
    pub delete_persistence: Option<Duration>,
}
