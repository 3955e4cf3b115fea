//! Settings of an engine under test.

use lsmx::env::{Background, WORKERS_DEFAULT};
use lsmx::merge_operator::FieldUpdate;
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, KeyspaceOptions, Options, PolicySpec,
    ValueSeparation, WriteControl,
};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::error::{Error, Result};
use crate::numbers;
use crate::quantity::{parse_bytes, parse_count};

use super::BLOCK_BYTES;

/// Settings that experiments vary. Without a value the engine's default applies.
///
/// A peer uses those that it has: memory, workers, direct I/O, the merge operator and the separation of values.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Bytes for memtables, cached blocks and metadata of open tables. It replaces the next two.
    pub memory_budget: Option<u64>,
    /// Bytes of a memtable.
    pub memtable_bytes: Option<u64>,
    /// Bytes of the block cache.
    pub block_cache_bytes: Option<u64>,
    /// Replacement policy of the block cache.
    pub block_cache_kind: Option<BlockCacheKind>,
    /// Target bytes of a table.
    pub table_bytes: Option<u64>,
    /// Target bytes of a data block.
    pub block_bytes: u32,
    /// Width of filters.
    pub filter_bits: Option<FilterBits>,
    /// Whether lookups use the filter of the last sorted run.
    pub filter_last_run: Option<FilterLastRun>,
    /// Threads for compaction. One more thread flushes.
    pub workers: usize,
    /// Whether writes slow down or stop when compaction falls behind.
    pub write_control: WriteControl,
    /// Whether reads of tables bypass the page cache. RocksDB also flushes and compacts past it.
    pub direct_io: bool,
    /// Merge operator.
    pub merge_operator: Option<FieldUpdate>,
    /// Separation of values from keys.
    pub value_separation: Option<ValueSeparation>,
    /// Operand store, which keeps operands outside of the tree.
    pub operand_store: Option<DeltaOptions>,
    /// Whether the calls of lsmx on files are counted. Counting costs a few nanoseconds per call.
    pub counts_io: bool,
    /// Other options of lsmx.
    pub other_options: Options,
    /// Other options of lsmx, per keyspace.
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
            filter_last_run: None,
            workers: WORKERS_DEFAULT,
            write_control: WriteControl::default(),
            direct_io: false,
            merge_operator: None,
            value_separation: None,
            operand_store: None,
            counts_io: false,
            other_options: Options::default(),
            other_keyspace_options: KeyspaceOptions::default(),
        }
    }
}

/// Applies `value` to an option builder with `set`, if there is a value.
fn apply<O, T>(options: O, value: Option<T>, set: impl FnOnce(O, T) -> O) -> O {
    match value {
        Some(value) => set(options, value),
        None => options,
    }
}

impl EngineSettings {
    /// Returns the options of a keyspace of lsmx.
    pub fn keyspace_options(&self) -> KeyspaceOptions {
        let options = self.other_keyspace_options.clone().block_bytes(self.block_bytes);
        let options = apply(options, self.memtable_bytes, KeyspaceOptions::memtable_bytes);
        let options = apply(options, self.table_bytes, KeyspaceOptions::table_bytes);
        let options = apply(options, self.filter_bits, KeyspaceOptions::filter_bits);
        let options = apply(options, self.filter_last_run, KeyspaceOptions::filter_last_run);
        let options = apply(options, self.merge_operator, KeyspaceOptions::merge_operator);
        let options = apply(options, self.value_separation, KeyspaceOptions::value_separation);
        apply(options, self.operand_store, |options, delta| {
            options.operand_store(DeltaStoreFactory::new(delta))
        })
    }

    /// Returns the options of a database of lsmx whose keyspaces have [`EngineSettings::keyspace_options`].
    pub fn options(&self) -> Options {
        let options = self
            .other_options
            .clone()
            .background(Background::Threads { workers: self.workers })
            .write_control(self.write_control)
            .direct_reads(self.direct_io)
            .keyspace_defaults(self.keyspace_options());
        let options = apply(options, self.memory_budget, Options::memory_budget);
        let options = apply(options, self.block_cache_bytes, Options::block_cache_bytes);
        apply(options, self.block_cache_kind, Options::block_cache_kind)
    }

    /// Sets an option of lsmx from the text `KEY=VALUE`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the key is unknown or the value is malformed. The message lists the known keys.
    pub fn set(mut self, text: &str) -> Result<EngineSettings> {
        let invalid = |must: String| Error::invalid("--option", text, must);
        let known = || NAMED.map(|(name, _)| name).join(", ");
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| invalid(format!("KEY=VALUE with a KEY of {}", known())))?;
        let (_, set) = NAMED
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| invalid(format!("one of the known options: {}", known())))?;
        set(&mut self, value).map_err(invalid)?;
        Ok(self)
    }

    fn change_options(&mut self, change: impl FnOnce(Options) -> Options) {
        self.other_options = change(std::mem::take(&mut self.other_options));
    }

    fn change_keyspace(&mut self, change: impl FnOnce(KeyspaceOptions) -> KeyspaceOptions) {
        let options = std::mem::take(&mut self.other_keyspace_options);
        self.other_keyspace_options = change(options);
    }
}

/// Result of setting an option. The error says what the value must be.
type SetResult = std::result::Result<(), String>;
/// Parses the value of an option and sets it.
type SetOption = fn(&mut EngineSettings, &str) -> SetResult;

/// The options that [`EngineSettings::set`] knows, in the order in which messages list them.
const NAMED: [(&str, SetOption); 15] = [
    ("policy", |all, value| {
        let policy: PolicySpec = value.parse().map_err(|error| format!("a policy: {error}"))?;
        all.change_keyspace(|keyspace| keyspace.policy(policy));
        Ok(())
    }),
    ("filter_last_run", |all, value| {
        let known = [FilterLastRun::Off, FilterLastRun::On, FilterLastRun::Auto];
        all.filter_last_run = Some(choice(value, &["off", "on", "auto"], &known)?);
        Ok(())
    }),
    ("filter_bits", |all, value| {
        all.filter_bits = Some(value.parse()?);
        Ok(())
    }),
    ("cache_kind", |all, value| {
        all.block_cache_kind = Some(value.parse()?);
        Ok(())
    }),
    ("block_bytes", |all, value| {
        all.block_bytes = below_4g(parse_bytes(value)?)?;
        Ok(())
    }),
    ("restart_interval", |all, value| {
        let entries = below_4g(parse_count(value)?)?;
        all.change_keyspace(|keyspace| keyspace.restart_interval(entries));
        Ok(())
    }),
    ("block_tags", |all, value| {
        let tags = on_or_off(value)?;
        all.change_keyspace(|keyspace| keyspace.block_tags(tags));
        Ok(())
    }),
    ("compression", |all, value| {
        let known = [Compression::None, Compression::Lz4];
        let compression = choice(value, &["none", "lz4"], &known)?;
        all.change_keyspace(|keyspace| keyspace.compression(compression));
        Ok(())
    }),
    ("table_bytes", |all, value| {
        all.table_bytes = Some(parse_bytes(value)?);
        Ok(())
    }),
    ("wal_bytes_max", |all, value| {
        let bytes = parse_bytes(value)?;
        all.change_options(|options| options.wal_bytes_max(bytes));
        Ok(())
    }),
    ("memtable_bytes_max", |all, value| {
        let bytes = parse_bytes(value)?;
        all.change_options(|options| options.memtable_bytes_max(bytes));
        Ok(())
    }),
    ("write_control", |all, value| {
        let known = [WriteControl::Smooth, WriteControl::Stop];
        all.write_control = choice(value, &["smooth", "stop"], &known)?;
        Ok(())
    }),
    ("direct_reads", |all, value| {
        all.direct_io = on_or_off(value)?;
        Ok(())
    }),
    ("workers", |all, value| {
        all.workers = positive(value)?;
        Ok(())
    }),
    ("merge_parts_max", |all, value| {
        let parts = positive(value)?;
        all.change_options(|options| options.subcompactions_max(parts));
        Ok(())
    }),
];

/// Returns the value at the place that `text` has in `names`.
fn choice<T: Copy>(text: &str, names: &[&str], values: &[T]) -> std::result::Result<T, String> {
    let place = names.iter().position(|name| *name == text);
    place.and_then(|place| values.get(place).copied()).ok_or_else(|| match names {
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => String::new(),
    })
}

fn on_or_off(text: &str) -> std::result::Result<bool, String> {
    choice(text, &["off", "on"], &[false, true])
}

/// Converts a count or a size to a number below 2³².
fn below_4g(number: u64) -> std::result::Result<u32, String> {
    u32::try_from(number).map_err(|_| "below 4G".to_owned())
}

/// Parses a count above 0.
fn positive(text: &str) -> std::result::Result<usize, String> {
    match parse_count(text)? {
        0 => Err("at least 1".to_owned()),
        count => Ok(numbers::length(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_option_takes_a_value() {
        let texts = [
            "policy=tiering",
            "filter_last_run=on",
            "filter_bits=monkey(10)",
            "cache_kind=moka",
            "block_bytes=8K",
            "restart_interval=8",
            "block_tags=off",
            "compression=lz4",
            "table_bytes=1M",
            "wal_bytes_max=1G",
            "memtable_bytes_max=256M",
            "write_control=stop",
            "direct_reads=on",
            "workers=3",
            "merge_parts_max=1",
        ];
        assert_eq!(texts.len(), NAMED.len());
        let mut settings = EngineSettings::default();
        for (text, (name, _)) in texts.iter().zip(NAMED) {
            assert!(text.starts_with(name), "{text}");
            settings = settings.set(text).unwrap();
        }
        assert_eq!((settings.workers, settings.table_bytes), (3, Some(1 << 20)));
        let _ = settings.options();
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
            ("write_control=none", "smooth or stop"),
            ("workers=0", "at least 1"),
            ("workers=x", "a whole number"),
            ("merge_parts_max=0", "at least 1"),
            ("direct_reads=yes", "off or on"),
            ("merge_parts_max=x", "a whole number"),
        ] {
            let error = EngineSettings::default().set(text).unwrap_err();
            assert!(error.is_usage());
            let message = error.to_string();
            assert!(message.contains(text) && message.contains(part), "{message}");
        }
    }
}
