//! Settings of the storage engine in an experiment.

use lsmx::env::{Background, WORKERS_DEFAULT};
use lsmx::merge_operator::{FieldUpdate, MergeOperator, MergeResult};
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, KeyspaceOptions, MemtableKind, Options,
    PolicySpec, RmwMode, ValueSeparation, WriteControl,
};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::error::{Error, Result};
use crate::numbers;
use crate::quantity::{parse_bytes, parse_count};

use super::BLOCK_BYTES;

/// Engine settings that experiments vary. `None` selects the default of the engine.
///
/// RocksDB uses only the memory sizes, `workers`, `direct_io`, the merge operator, `partial_merges` and
/// `value_separation`. fjall uses only the sizes of memtables and of the block cache, and `workers`.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Memory for memtables, cached blocks and table metadata, in bytes. If set, replaces `block_cache_bytes`. In
    /// RocksDB, also replaces `memtable_bytes`. fjall ignores the setting.
    pub memory_budget: Option<u64>,
    pub memtable_bytes: Option<u64>,
    pub block_cache_bytes: Option<u64>,
    pub block_cache_kind: Option<BlockCacheKind>,
    /// Target length of a table, in bytes.
    pub table_bytes: Option<u64>,
    /// Target length of a data block, in bytes.
    pub block_bytes: u32,
    pub filter_bits: Option<FilterBits>,
    pub compression: Option<Compression>,
    pub memtable_kind: Option<MemtableKind>,
    pub filter_last_run: Option<FilterLastRun>,
    /// Number of compaction threads. One additional thread flushes memtables.
    pub workers: usize,
    pub write_control: WriteControl,
    /// Whether table reads of each engine bypass the page cache. In RocksDB, flushes and compactions bypass the page
    /// cache too. fjall ignores the setting.
    pub direct_io: bool,
    pub merge_operator: Option<FieldUpdate>,
    /// True if the merge operator supports partial merges, which combine operands without the value that they update.
    pub partial_merges: bool,
    pub value_separation: Option<ValueSeparation>,
    pub operand_store: Option<DeltaOptions>,
    /// Whether lsmx counts file system calls. Counting costs a few nanoseconds per call.
    pub counts_io: bool,
    /// Database options of lsmx for which this type has no field.
    pub other_options: Options,
    /// Keyspace options of lsmx for which this type has no field.
    pub other_keyspace_options: KeyspaceOptions,
}

impl Default for EngineSettings {
    fn default() -> EngineSettings {
        EngineSettings {
            memory_budget: None,
            memtable_bytes: None,
            block_cache_bytes: None,
            block_cache_kind: None,
            table_bytes: None,
            block_bytes: BLOCK_BYTES,
            filter_bits: None,
            compression: None,
            memtable_kind: None,
            filter_last_run: None,
            workers: WORKERS_DEFAULT,
            write_control: WriteControl::default(),
            direct_io: false,
            merge_operator: None,
            partial_merges: true,
            value_separation: None,
            operand_store: None,
            counts_io: false,
            other_options: Options::default(),
            other_keyspace_options: KeyspaceOptions::default(),
        }
    }
}

/// A merge operator without partial merges, so that the operands of a key are combined only with its value.
#[derive(Debug)]
struct FullMergeOnly(FieldUpdate);

impl MergeOperator for FullMergeOnly {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        self.0.full_merge(key, base, operands)
    }
}

/// Passes `value` to the option setter `set`. If `value` is `None`, returns the options unchanged.
fn apply_if_set<O, T>(options: O, value: Option<T>, set: impl FnOnce(O, T) -> O) -> O {
    match value {
        Some(value) => set(options, value),
        None => options,
    }
}

impl EngineSettings {
    pub fn keyspace_options(&self) -> KeyspaceOptions {
        let options = self.other_keyspace_options.clone().block_bytes(self.block_bytes);
        let options = apply_if_set(options, self.memtable_bytes, KeyspaceOptions::memtable_bytes);
        let options = apply_if_set(options, self.table_bytes, KeyspaceOptions::table_bytes);
        let options = apply_if_set(options, self.filter_bits, KeyspaceOptions::filter_bits);
        let options = apply_if_set(options, self.compression, KeyspaceOptions::compression);
        let options = apply_if_set(options, self.memtable_kind, KeyspaceOptions::memtable_kind);
        let options = apply_if_set(options, self.filter_last_run, KeyspaceOptions::filter_last_run);
        let options = apply_if_set(options, self.merge_operator, |options, operator| {
            match self.partial_merges {
                true => options.merge_operator(operator),
                false => options.merge_operator(FullMergeOnly(operator)),
            }
        });
        let options =
            apply_if_set(options, self.value_separation, KeyspaceOptions::value_separation);
        apply_if_set(options, self.operand_store, |options, delta| {
            options.operand_store(DeltaStoreFactory::new(delta))
        })
    }

    /// Returns the options of an lsmx database, with [`EngineSettings::keyspace_options`] as keyspace defaults.
    pub fn database_options(&self) -> Options {
        let options = self
            .other_options
            .clone()
            .background(Background::Threads { workers: self.workers })
            .write_control(self.write_control)
            .keyspace_defaults(self.keyspace_options());
        let options = apply_if_set(options, self.direct_io.then_some(true), Options::direct_reads);
        let options = apply_if_set(options, self.memory_budget, Options::memory_budget);
        let options = apply_if_set(options, self.block_cache_bytes, Options::block_cache_bytes);
        apply_if_set(options, self.block_cache_kind, Options::block_cache_kind)
    }

    /// Parses the text `KEY=VALUE` and sets the lsmx option `KEY`.
    pub fn with_option(self, text: &str) -> Result<EngineSettings> {
        let invalid = |must: String| Error::invalid_argument("--option", text, must);
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| invalid(format!("KEY=VALUE with a KEY of {NAMES}")))?;
        self.with_named_option(name, value).map_err(invalid)
    }

    /// Sets the option `name`, one of [`NAMES`]. The error describes the accepted values.
    fn with_named_option(
        mut self,
        name: &str,
        value: &str,
    ) -> std::result::Result<EngineSettings, String> {
        let (options, keyspace) = (self.other_options.clone(), self.other_keyspace_options.clone());
        match name {
            "policy" => {
                let policy = value.parse::<PolicySpec>();
                let policy = policy.map_err(|error| format!("a policy: {error}"))?;
                self.other_keyspace_options = keyspace.policy(policy);
            }
            "filter_last_run" => {
                let known = [FilterLastRun::Off, FilterLastRun::On, FilterLastRun::Auto];
                self.filter_last_run = Some(parse_choice(value, &["off", "on", "auto"], &known)?);
            }
            "filter_bits" => self.filter_bits = Some(value.parse()?),
            "cache_kind" => self.block_cache_kind = Some(value.parse()?),
            "block_bytes" => self.block_bytes = check_below_4g(parse_bytes(value)?)?,
            "restart_interval" => {
                let entries = check_below_4g(parse_count(value)?)?;
                self.other_keyspace_options = keyspace.restart_interval(entries);
            }
            "block_tags" => self.other_keyspace_options = keyspace.block_tags(parse_on_off(value)?),
            "compression" => {
                let known = [Compression::None, Compression::Lz4];
                self.compression = Some(parse_choice(value, &["none", "lz4"], &known)?);
            }
            "memtable_kind" => self.memtable_kind = Some(value.parse()?),
            "rmw_mode" => {
                let known = [RmwMode::Fixed, RmwMode::Adaptive];
                let mode = parse_choice(value, &["fixed", "adaptive"], &known)?;
                self.other_keyspace_options = keyspace.rmw_mode(mode);
            }
            "table_bytes" => self.table_bytes = Some(parse_bytes(value)?),
            "wal_bytes_max" => self.other_options = options.wal_bytes_max(parse_bytes(value)?),
            "memtable_bytes_max" => {
                self.other_options = options.memtable_bytes_max(parse_bytes(value)?);
            }
            "write_control" => {
                let known = [WriteControl::Smooth, WriteControl::Stop];
                self.write_control = parse_choice(value, &["smooth", "stop"], &known)?;
            }
            "direct_reads" => self.other_options = options.direct_reads(parse_on_off(value)?),
            "keep_compactions_cached" => {
                self.other_options = options.keep_compactions_cached(parse_on_off(value)?);
            }
            "workers" => self.workers = parse_positive(value)?,
            "merge_parts_max" => {
                self.other_options = options.subcompactions_max(parse_positive(value)?)
            }
            _ => return Err(format!("one of the known options: {NAMES}")),
        }
        Ok(self)
    }
}

/// Names of the options that [`EngineSettings::with_option`] accepts.
const NAMES: &str = "policy, filter_last_run, filter_bits, cache_kind, block_bytes, restart_interval, block_tags, \
    compression, memtable_kind, rmw_mode, table_bytes, wal_bytes_max, memtable_bytes_max, write_control, direct_reads, \
    keep_compactions_cached, workers, merge_parts_max";

/// Returns the value whose name is `text`. `names` and `values` have the same order. The error lists the names.
fn parse_choice<T: Copy>(
    text: &str,
    names: &[&str],
    values: &[T],
) -> std::result::Result<T, String> {
    let found = names.iter().zip(values).find(|(name, _)| **name == text);
    found.map(|(_, value)| *value).ok_or_else(|| match names {
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => String::new(),
    })
}

fn parse_on_off(text: &str) -> std::result::Result<bool, String> {
    parse_choice(text, &["off", "on"], &[false, true])
}

fn check_below_4g(number: u64) -> std::result::Result<u32, String> {
    u32::try_from(number).map_err(|_| "below 4G".to_owned())
}

/// Parses a count above 0.
fn parse_positive(text: &str) -> std::result::Result<usize, String> {
    match parse_count(text)? {
        0 => Err("at least 1".to_owned()),
        count => Ok(numbers::to_usize(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_option_takes_a_value() {
        let values =
            "tiering on monkey(10) moka 8K 8 off lz4 skip-list adaptive 1M 1G 256M stop on off 3 1";
        let names = NAMES.split(", ");
        assert_eq!(values.split(' ').count(), names.clone().count());
        let mut settings = EngineSettings::default();
        for (value, name) in values.split(' ').zip(names) {
            settings = settings.with_option(&format!("{name}={value}")).unwrap();
        }
        assert_eq!((settings.workers, settings.table_bytes), (3, Some(1 << 20)));
        let _ = settings.database_options();
    }

    #[test]
    fn malformed_option_error_names_the_option() {
        for (text, part) in [
            ("speed=1", "filter_last_run"),
            ("policy", "KEY=VALUE"),
            ("policy=nosuch", "nosuch"),
            ("filter_last_run=maybe", "off, on or auto"),
            ("filter_bits=12", "8, 16, or monkey"),
            ("cache_kind=lru", "quick or moka"),
            ("block_bytes=5G", "below 4G"),
            ("table_bytes=lots", "a number of bytes"),
            ("table_bytes=99999999999G", "a number of bytes"),
            ("compression=zip", "none or lz4"),
            ("memtable_kind=b-tree", "b-link-tree or skip-list"),
            ("rmw_mode=kd", "fixed or adaptive"),
            ("write_control=none", "smooth or stop"),
            ("workers=0", "at least 1"),
            ("workers=x", "a whole number"),
            ("merge_parts_max=0", "at least 1"),
            ("direct_reads=yes", "off or on"),
            ("merge_parts_max=x", "a whole number"),
        ] {
            let error = EngineSettings::default().with_option(text).unwrap_err();
            assert!(error.is_usage());
            let message = error.to_string();
            assert!(message.contains(text) && message.contains(part), "{message}");
        }
    }
}
