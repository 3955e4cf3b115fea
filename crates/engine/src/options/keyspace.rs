//! Options of a keyspace.

use std::collections::BTreeMap;

use lsmx_base::sync::Arc;
use lsmx_compaction::CompactionPolicy;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::ManifestState;
use crate::merge_operator::{MergeOperator, OPERATOR_NAME_BYTES_MAX};
use crate::operand_store::{OperandStoreFactory, STORE_NAME_BYTES_MAX};
use crate::options::filter_bits::FilterBits;
use crate::options::kept_log::KeptLog;
use crate::options::stored_policy::{Policy, StoredPolicy};
use crate::options::value_separation::ValueSeparation;
use crate::table::{Compression, FilterWidth, TableOptions};

/// Default of [`KeyspaceOptions::memtable_bytes`]: 64 MiB.
pub const MEMTABLE_BYTES_DEFAULT: u64 = 64 << 20;
/// Smallest memtable that is accepted: 1 KiB.
pub const MEMTABLE_BYTES_MIN: u64 = 1 << 10;
/// Most bytes of the name of a custom compaction policy.
const POLICY_NAME_BYTES_MAX: usize = 255;
/// Default of [`KeyspaceOptions::table_bytes`]: 64 MiB.
pub const TABLE_BYTES_DEFAULT: u64 = 64 << 20;

/// Whether the filter of the last sorted run is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterLastRun {
    /// It is not loaded: most hits end in the last run, and its filter is most of all filter bytes.
    /// An absent key costs a probe of the last run.
    #[default]
    Off,
    /// It is used like any other.
    On,
    /// It is used while that pays: where so many keys are asked for that are not there that the reads it
    /// saves outweigh those that data blocks in its place would save. Metrics say how it stands
    /// ([`KeyspaceMetrics::filter_last_run`](crate::metrics::KeyspaceMetrics::filter_last_run)).
    Auto,
}

/// Settings of one keyspace: builder methods on plain data, checked when the keyspace is opened.
///
/// The policy is remembered with the keyspace and stays unless it is given anew. Of the merge
/// operator the name is remembered, and another one is refused. All others are tuning: they come
/// from the caller at each opening, and any value suits any data on disk.
#[derive(Clone, Debug)]
pub struct KeyspaceOptions {
    pub(crate) policy: Option<Policy>,
    pub(crate) memtable_bytes: u64,
    pub(crate) table_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) restart_interval: u32,
    pub(crate) block_tags: bool,
    pub(crate) compression: Vec<Compression>,
    pub(crate) filter_bits: FilterBits,
    pub(crate) filter_last_run: FilterLastRun,
    pub(crate) merge_operator: Option<Arc<dyn MergeOperator>>,
    pub(crate) operand_store: Option<Arc<dyn OperandStoreFactory>>,
    pub(crate) value_separation: Option<ValueSeparation>,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        let table = TableOptions::default();
        KeyspaceOptions {
            policy: None,
            memtable_bytes: MEMTABLE_BYTES_DEFAULT,
            table_bytes: TABLE_BYTES_DEFAULT,
            block_bytes: table.block_bytes,
            restart_interval: table.restart_interval,
            block_tags: table.block_tags,
            compression: vec![Compression::None],
            filter_bits: FilterBits::default(),
            filter_last_run: FilterLastRun::default(),
            merge_operator: None,
            operand_store: None,
            value_separation: None,
        }
    }
}

impl KeyspaceOptions {
    /// Compaction policy: a [`PolicySpec`](crate::PolicySpec), or an `Arc` of a type that implements
    /// [`CompactionPolicy`]. Default: the stored policy, `leveled` for a new keyspace.
    ///
    /// A spec is stored with the keyspace. Of a custom policy the name is stored, 1 to 255 bytes. It must be given
    /// at each open: opening the keyspace without it and without another policy fails with
    /// [`Error::NoCompactionPolicy`]. No compaction of the keyspace runs before. If
    /// [`CompactionPolicy::can_drop_data`] is false, jobs that drop files are refused.
    ///
    /// ```
    /// use lsmx::{KeyspaceOptions, PolicySpec};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = KeyspaceOptions::default().policy("tiering(T=4)".parse::<PolicySpec>()?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn policy(mut self, policy: impl Into<Policy>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Bytes in memory at which a memtable is sealed and flushed. Larger: fewer flushes and less
    /// compaction, more memory, a longer recovery. Default: [`MEMTABLE_BYTES_DEFAULT`].
    #[must_use]
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = bytes;
        self
    }

    /// Target bytes of a table file that a compaction writes. Default: [`TABLE_BYTES_DEFAULT`].
    #[must_use]
    pub fn table_bytes(mut self, bytes: u64) -> Self {
        self.table_bytes = bytes;
        self
    }

    /// Target bytes of a data block before compression. Larger: smaller index, more bytes per
    /// lookup. Default: 4096.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Entries between restart points of a block. Default: 16.
    #[must_use]
    pub fn restart_interval(mut self, entries: u32) -> Self {
        self.restart_interval = entries;
        self
    }

    /// Whether data blocks have a byte of each key's hash beside their entries, where these have 32 bytes
    /// or more on average. A lookup then finds its entry in a fraction of the time, most of all where
    /// the block is in memory and not in the processor's cache; entries become a byte longer. Default: yes.
    #[must_use]
    pub fn block_tags(mut self, tags: bool) -> Self {
        self.block_tags = tags;
        self
    }

    /// Compression of all levels. Default: none.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = vec![compression];
        self
    }

    /// Compression level by level, from L0; levels past the end have the last one.
    #[must_use]
    pub fn compression_per_level(mut self, compression: Vec<Compression>) -> Self {
        self.compression = compression;
        self
    }

    /// How wide the filters are that flushes and compactions write; those that are there stay as they
    /// are. Wider: fewer reads for keys that a run does not have, more memory. Default:
    /// [`FilterBits::Fuse8`].
    #[must_use]
    pub fn filter_bits(mut self, bits: FilterBits) -> Self {
        self.filter_bits = bits;
        self
    }

    /// Whether the filter of the last sorted run is used. Default: [`FilterLastRun::Off`].
    #[must_use]
    pub fn filter_last_run(mut self, filter: FilterLastRun) -> Self {
        self.filter_last_run = filter;
        self
    }

    /// How operands of this keyspace fold; without it there are no merges. Default: none.
    ///
    /// Its name stays with the keyspace for good: a keyspace that has none takes one on, one that
    /// has one refuses every other with [`Error::Contradiction`]. The operator itself is given at
    /// each opening, in [`Options`](crate::Options) or with [`Db::keyspace`](crate::Db::keyspace),
    /// and serves until the database closes. While it is lacking, operands stay as they are, and
    /// reading them is [`Error::NoMergeOperator`].
    #[must_use]
    pub fn merge_operator(mut self, operator: impl MergeOperator + 'static) -> Self {
        self.merge_operator = Some(Arc::new(operator));
        self
    }

    /// Keeps the merge operands of this keyspace in a store beside the tree. Default: none, they are
    /// entries of the tree.
    ///
    /// Its name stays with the keyspace, and what is in it is needed for every read. While the store is not
    /// given, or cannot be opened, every call on the keyspace is [`Error::NoOperandStore`]; all other keyspaces
    /// work, and the log keeps what the store lacks. [`Db::keyspace`](crate::Db::keyspace) with the store opens
    /// the keyspace at any time. Another store is [`Error::Contradiction`].
    /// A keyspace that has none takes one on, and operands that flushes bring from then on go there;
    /// [`Keyspace::operands_to_tree`](crate::Keyspace::operands_to_tree) leads back.
    #[must_use]
    pub fn operand_store(mut self, factory: impl OperandStoreFactory + 'static) -> Self {
        self.operand_store = Some(Arc::new(factory));
        self
    }

    /// Keeps large values in blob files beside the tree. It may be turned on, off ([`None`]) and on
    /// again: what is stored stays readable, flushes and compactions write what they write by the option
    /// of the time, and without it compactions bring values back into the tables that they write.
    /// Default: off.
    #[must_use]
    pub fn value_separation(mut self, separation: impl Into<Option<ValueSeparation>>) -> Self {
        self.value_separation = separation.into();
        self
    }

    /// The policy in these options as the manifest keeps it, if there is one.
    pub(crate) fn stored_policy(&self) -> Option<StoredPolicy> {
        self.policy.as_ref().map(Policy::stored)
    }

    /// Returns the policy in these options if it is of the caller's own type.
    pub(crate) fn custom_policy(&self) -> Option<&Arc<dyn CompactionPolicy>> {
        self.policy.as_ref().and_then(Policy::custom)
    }

    /// Checks every value and every pair of values that could contradict each other.
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::Contradiction`].
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(Policy::Spec(spec)) = &self.policy {
            spec.check_for_database().map_err(Error::Policy)?;
        }
        if let Some(policy) = self.custom_policy()
            && !(1..=POLICY_NAME_BYTES_MAX).contains(&policy.name().len())
        {
            return Err(Error::InvalidOption {
                name: "policy",
                value: format!("named with {} bytes", policy.name().len()),
                must: "named with 1 to 255 bytes",
            });
        }
        if self.memtable_bytes < MEMTABLE_BYTES_MIN {
            return Err(Error::InvalidOption {
                name: "memtable_bytes",
                value: self.memtable_bytes.to_string(),
                must: "at least 1024",
            });
        }
        self.filter_bits.check()?;
        if self.compression.is_empty() {
            return Err(Error::InvalidOption {
                name: "compression_per_level",
                value: "empty".to_owned(),
                must: "a compression for at least one level",
            });
        }
        if let Some(operator) = &self.merge_operator
            && !(1..=OPERATOR_NAME_BYTES_MAX).contains(&operator.name().len())
        {
            return Err(Error::InvalidOption {
                name: "merge_operator",
                value: format!("named with {} bytes", operator.name().len()),
                must: "named with 1 to 255 bytes",
            });
        }
        if let Some(store) = &self.operand_store
            && !(1..=STORE_NAME_BYTES_MAX).contains(&store.name().len())
        {
            return Err(Error::InvalidOption {
                name: "operand_store",
                value: format!("named with {} bytes", store.name().len()),
                must: "named with 1 to 255 bytes",
            });
        }
        if let Some(separation) = &self.value_separation {
            separation.check()?;
        }
        if self.table_bytes < u64::from(self.block_bytes) {
            return Err(Error::Contradiction {
                first: format!("table_bytes = {}", self.table_bytes),
                second: format!("block_bytes = {}", self.block_bytes),
                why: "a table holds at least one block",
            });
        }
        self.table_options(0, FilterWidth::default()).validate()
    }

    /// Compression of what is written for `level`.
    pub(crate) fn compression_of(&self, level: u8) -> Compression {
        let last = self.compression.last().copied().unwrap_or(Compression::None);
        self.compression.get(usize::from(level)).copied().unwrap_or(last)
    }

    /// How a table in `level` is written, whose filter is to have this width.
    pub(crate) fn table_options(&self, level: u8, filter: FilterWidth) -> TableOptions {
        TableOptions {
            block_bytes: self.block_bytes,
            restart_interval: self.restart_interval,
            block_tags: self.block_tags,
            compression: self.compression_of(level),
            filter: Some(filter),
            ..TableOptions::default()
        }
    }
}

/// The options of a keyspace that are in force; see [`Keyspace::options`](crate::Keyspace::options).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OptionsInForce {
    /// [`KeyspaceOptions::policy`], or the stored policy.
    pub policy: Policy,
    /// [`KeyspaceOptions::memtable_bytes`], fitted into the memory budget.
    pub memtable_bytes: u64,
    /// [`KeyspaceOptions::table_bytes`], fitted into the memory budget.
    pub table_bytes: u64,
    /// [`KeyspaceOptions::block_bytes`].
    pub block_bytes: u32,
    /// [`KeyspaceOptions::restart_interval`].
    pub restart_interval: u32,
    /// [`KeyspaceOptions::block_tags`].
    pub block_tags: bool,
    /// [`KeyspaceOptions::compression_per_level`].
    pub compression: Vec<Compression>,
    /// [`KeyspaceOptions::filter_bits`].
    pub filter_bits: FilterBits,
    /// [`KeyspaceOptions::filter_last_run`].
    pub filter_last_run: FilterLastRun,
    /// Name of the merge operator that the manifest stores, given in this opening or not.
    pub merge_operator: Option<String>,
    /// Name of the operand store that the manifest stores, given in this opening or not.
    pub operand_store: Option<String>,
    /// [`KeyspaceOptions::value_separation`].
    pub value_separation: Option<ValueSeparation>,
}

/// What the manifest keeps of a keyspace's options.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Persisted {
    /// The compaction policy, see [`StoredPolicy`].
    pub(crate) policy: String,
    /// Name of the merge operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merge_operator: Option<String>,
    /// The operand store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operand_store: Option<StoredOperandStore>,
    /// Whether values were ever kept apart from the tree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) value_separation: bool,
}

impl Persisted {
    /// What is kept of a keyspace made with these options.
    pub(crate) fn of_new(options: &KeyspaceOptions) -> Persisted {
        let operator = options.merge_operator.as_ref();
        Persisted {
            policy: options.stored_policy().unwrap_or_default().to_string(),
            merge_operator: operator.map(|operator| operator.name().to_owned()),
            operand_store: options
                .operand_store
                .as_ref()
                .map(|store| StoredOperandStore::Name(store.name().to_owned())),
            value_separation: options.value_separation.is_some(),
        }
    }

    /// Name of the operand store.
    pub(crate) fn store_name(&self) -> Option<&str> {
        self.operand_store.as_ref().map(StoredOperandStore::name)
    }

    /// Log segments that hold operations which neither tables nor the operand store have.
    pub(crate) fn kept_log(&self) -> Option<&KeptLog> {
        match &self.operand_store {
            Some(StoredOperandStore::Behind { log, .. }) => Some(log),
            _ => None,
        }
    }

    /// As the manifest holds it.
    pub(crate) fn encode(&self) -> String {
        // A struct of strings always has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Persisted::encode`] wrote; fields of newer builds are skipped.
    pub(crate) fn decode(text: &str) -> Option<Persisted> {
        serde_json::from_str(text).ok()
    }
}

/// The operand store of a keyspace as the manifest keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum StoredOperandStore {
    /// Name of a store that has everything delivered to it up to the last flush.
    Name(String),
    /// A store that was missing at an opening. A build that does not know this form cannot decode it and refuses
    /// the database; it would otherwise remove the segments.
    Behind {
        /// Name of the store.
        name: String,
        /// What is still to be delivered to it.
        log: KeptLog,
    },
}

impl StoredOperandStore {
    /// A store of this name, with the log that is kept for it.
    pub(crate) fn new(name: String, log: Option<KeptLog>) -> StoredOperandStore {
        match log {
            None => StoredOperandStore::Name(name),
            Some(log) => StoredOperandStore::Behind { name, log },
        }
    }

    fn name(&self) -> &str {
        match self {
            StoredOperandStore::Name(name) | StoredOperandStore::Behind { name, .. } => name,
        }
    }
}

/// The logs that are kept for keyspaces of a manifest, with the ids of these.
pub(crate) fn kept_logs(state: &ManifestState) -> BTreeMap<u32, KeptLog> {
    let kept = state.keyspaces.iter().filter_map(|(&id, keyspace)| {
        let persisted = Persisted::decode(&keyspace.options)?;
        persisted.kept_log().map(|log| (id, log.clone()))
    });
    kept.collect()
}
