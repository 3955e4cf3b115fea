//! lsmx itself, with the options that `--option KEY=VALUE` sets by name.

use std::path::Path;

use lsmx::env::{Background, WORKERS_DEFAULT};
use lsmx::internals::vfs::{CountingVfs, VfsCall};
use lsmx::merge_operator::FieldUpdate;
use lsmx::operand_store::OperandMetrics;
use lsmx::vfs::OsVfs;
use lsmx::{
    BlockCacheKind, Compression, Db, Durability, FilterBits, FilterLastRun, Keyspace,
    KeyspaceOptions, Options, PolicySpec, Range, WriteControl,
};

use crate::error::{Error, Result};

use super::{BLOCK_BYTES, Engine, Fields, IoBytes, Settings, Visit, Written, write_field};

/// Options of lsmx by name; what is not named keeps the engine's default.
#[derive(Clone, Debug)]
pub struct LsmxOptions {
    options: Options,
    keyspace: KeyspaceOptions,
    workers: usize,
}

impl Default for LsmxOptions {
    fn default() -> LsmxOptions {
        LsmxOptions {
            options: Options::default(),
            keyspace: KeyspaceOptions::default().block_bytes(BLOCK_BYTES),
            workers: WORKERS_DEFAULT,
        }
    }
}

/// How one option is set.
type Set = fn(LsmxOptions, &str) -> std::result::Result<LsmxOptions, String>;

/// The options that can be named, in the order in which they are listed to users.
const KNOWN: [(&str, Set); 15] = [
    ("policy", |all, value| {
        let policy: PolicySpec = value.parse().map_err(|error| format!("a policy: {error}"))?;
        Ok(all.keyspace(|keyspace| keyspace.policy(policy)))
    }),
    ("filter_last_run", |all, value| {
        let filter = match value {
            "off" => FilterLastRun::Off,
            "on" => FilterLastRun::On,
            "auto" => FilterLastRun::Auto,
            _ => return Err("off, on or auto".to_owned()),
        };
        Ok(all.keyspace(|keyspace| keyspace.filter_last_run(filter)))
    }),
    ("filter_bits", |all, value| {
        let bits: FilterBits = value.parse()?;
        Ok(all.keyspace(|keyspace| keyspace.filter_bits(bits)))
    }),
    ("cache_kind", |mut all, value| {
        let kind: BlockCacheKind = value.parse()?;
        all.options = all.options.block_cache_kind(kind);
        Ok(all)
    }),
    ("block_bytes", |all, value| {
        let bytes = small(value)?;
        Ok(all.keyspace(|keyspace| keyspace.block_bytes(bytes)))
    }),
    ("restart_interval", |all, value| {
        let entries = small(value)?;
        Ok(all.keyspace(|keyspace| keyspace.restart_interval(entries)))
    }),
    ("block_tags", |all, value| {
        let tags = on_or_off(value)?;
        Ok(all.keyspace(|keyspace| keyspace.block_tags(tags)))
    }),
    ("compression", |all, value| {
        let compression = match value {
            "none" => Compression::None,
            "lz4" => Compression::Lz4,
            _ => return Err("none or lz4".to_owned()),
        };
        Ok(all.keyspace(|keyspace| keyspace.compression(compression)))
    }),
    ("table_bytes", |all, value| {
        let bytes = bytes(value)?;
        Ok(all.keyspace(|keyspace| keyspace.table_bytes(bytes)))
    }),
    ("wal_bytes_max", |mut all, value| {
        all.options = all.options.wal_bytes_max(bytes(value)?);
        Ok(all)
    }),
    ("memtable_bytes_max", |mut all, value| {
        all.options = all.options.memtable_bytes_max(bytes(value)?);
        Ok(all)
    }),
    ("write_control", |mut all, value| {
        let control = match value {
            "smooth" => WriteControl::Smooth,
            "stop" => WriteControl::Stop,
            _ => return Err("smooth or stop".to_owned()),
        };
        all.options = all.options.write_control(control);
        Ok(all)
    }),
    ("direct_reads", |mut all, value| {
        let direct = on_or_off(value)?;
        all.options = all.options.direct_reads(direct);
        Ok(all)
    }),
    ("workers", |mut all, value| {
        all.workers = value.parse().map_err(|_| "a number of threads".to_owned())?;
        if all.workers == 0 {
            return Err("at least 1".to_owned());
        }
        Ok(all)
    }),
    ("merge_parts_max", |mut all, value| {
        let parts = value.parse().map_err(|_| "a number of parts".to_owned())?;
        if parts == 0 {
            return Err("at least 1".to_owned());
        }
        all.options = all.options.subcompactions_max(parts);
        Ok(all)
    }),
];

fn on_or_off(value: &str) -> std::result::Result<bool, String> {
    match value {
        "off" => Ok(false),
        "on" => Ok(true),
        _ => Err("off or on".to_owned()),
    }
}

/// Bytes: a number, with K, M or G behind it for powers of 1024.
fn bytes(text: &str) -> std::result::Result<u64, String> {
    let (number, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = number.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "bytes, such as 4096 or 64M".to_owned())
}

/// A number below 2³², with units like [`bytes`].
fn small(text: &str) -> std::result::Result<u32, String> {
    bytes(text).and_then(|n| u32::try_from(n).map_err(|_| "below 4G".to_owned()))
}

impl LsmxOptions {
    /// Sets the option of this name, as typed: `KEY=VALUE`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name, with the known ones, or for a value that is none.
    pub fn set(self, typed: &str) -> Result<LsmxOptions> {
        let invalid =
            |must: String| Error::Invalid { name: "--option", value: typed.to_owned(), must };
        let known = || KNOWN.map(|(name, _)| name).join(", ");
        let (name, value) = typed
            .split_once('=')
            .ok_or_else(|| invalid(format!("KEY=VALUE with a KEY of {}", known())))?;
        let (_, set) = KNOWN
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| invalid(format!("one of the known options: {}", known())))?;
        set(self, value).map_err(invalid)
    }

    fn keyspace(mut self, change: impl FnOnce(KeyspaceOptions) -> KeyspaceOptions) -> LsmxOptions {
        self.keyspace = change(self.keyspace);
        self
    }

    /// The options of the database and of its keyspaces.
    pub(crate) fn parts(&self) -> (Options, KeyspaceOptions) {
        (self.options.clone(), self.keyspace.clone())
    }

    /// Threads for compaction; peers get as many.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }
}

/// An open lsmx database.
pub(crate) struct Lsmx {
    db: Db,
    keyspace: Keyspace,
}

/// One whose calls on files are counted.
pub(crate) struct Counted {
    lsmx: Lsmx,
    vfs: CountingVfs,
}

impl Counted {
    /// Opens the database in this directory, or makes one.
    pub(crate) fn open(path: &Path, options: Options) -> Result<Counted> {
        let vfs = CountingVfs::new(lsmx_base::sync::Arc::new(OsVfs));
        let counted = lsmx_base::sync::Arc::new(vfs.clone());
        let db = Db::open(path, options.vfs(counted)).map_err(failed("open a database"))?;
        Ok(Counted { lsmx: Lsmx { keyspace: db.default_keyspace(), db }, vfs })
    }
}

impl Fields for Counted {
    fn rewrite(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let changed = |old: Option<&[u8]>| {
            let mut value = old.unwrap_or_default().to_vec();
            write_field(&mut value, offset, bytes);
            value
        };
        self.lsmx.keyspace.fetch_update(key, changed).map(drop).map_err(failed("update a value"))
    }

    fn merge(&self, key: &[u8], offset: u32, bytes: &[u8]) -> Result<()> {
        let operand = FieldUpdate::operand(offset, bytes);
        self.lsmx.keyspace.merge(key, operand).map_err(failed("merge into a value"))
    }

    fn rest(&self) -> Result<()> {
        self.lsmx.db.wait_idle().map_err(failed("wait for background work"))
    }

    fn reads_of_this_thread(&self) -> u64 {
        CountingVfs::reads_of_this_thread()
    }

    fn io_bytes(&self) -> IoBytes {
        let bytes = self.vfs.counts().bytes;
        IoBytes { read: bytes.count_of(VfsCall::Read), written: bytes.count_of(VfsCall::Append) }
    }

    fn operand_store(&self) -> Option<OperandMetrics> {
        let metrics = self.lsmx.db.metrics();
        metrics.keyspaces.values().find_map(|keyspace| keyspace.operand_store)
    }

    fn blob_bytes(&self) -> Option<u64> {
        let metrics = self.lsmx.db.metrics();
        Some(metrics.keyspaces.values().map(|keyspace| keyspace.value_log.blob_bytes).sum())
    }
}

impl Engine for Counted {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.lsmx.put(key, value)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.lsmx.put_sync(key, value)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.lsmx.delete(key)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.lsmx.get(key, see)
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        self.lsmx.seek(from, entries, visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        self.lsmx.scan(backward, entries, visit)
    }

    fn settle(&self) -> Result<u64> {
        self.lsmx.settle()
    }

    fn written(&self) -> Option<Written> {
        self.lsmx.written()
    }

    fn table_bytes(&self) -> Result<u64> {
        self.lsmx.table_bytes()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Box::new(self.lsmx).close()
    }
}

impl Lsmx {
    pub(super) fn open(path: &Path, settings: &Settings) -> Result<Lsmx> {
        let LsmxOptions { options, keyspace, workers } = settings.lsmx.clone();
        let options = options
            .background(Background::Threads { workers })
            .block_cache_bytes(settings.block_cache_bytes)
            .keyspace_defaults(keyspace.memtable_bytes(settings.memtable_bytes));
        let db = Db::open(path, options).map_err(failed("open a database"))?;
        Ok(Lsmx { keyspace: db.default_keyspace(), db })
    }
}

fn failed(action: &'static str) -> impl FnOnce(lsmx::Error) -> Error {
    move |source| Error::Engine { action, source }
}

fn show(
    entries: u64,
    mut next: impl FnMut() -> Option<lsmx::Result<(lsmx::Slice, lsmx::Slice)>>,
    visit: &mut Visit<'_>,
) -> Result<u64> {
    let mut found = 0;
    while found < entries {
        let Some(entry) = next() else { break };
        let (key, value) = entry.map_err(failed("read a range"))?;
        visit(&key, &value);
        found += 1;
    }
    Ok(found)
}

impl Engine for Lsmx {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put(key, value).map_err(failed("put a value"))
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace
            .with_write_options(Durability::Sync)
            .put(key, value)
            .map_err(failed("put a value"))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.keyspace.delete(key).map_err(failed("delete a key"))
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.keyspace.get(key).map_err(failed("look a key up"))?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn seek(&self, from: &[u8], entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        let mut range: Range = self.keyspace.range(from..).limit(entries);
        show(entries, || range.next(), visit)
    }

    fn scan(&self, backward: bool, entries: u64, visit: &mut Visit<'_>) -> Result<u64> {
        let mut range = self.keyspace.iter().limit(entries);
        if backward {
            show(entries, || range.next_back(), visit)
        } else {
            show(entries, || range.next(), visit)
        }
    }

    fn settle(&self) -> Result<u64> {
        self.db.flush().map_err(failed("flush"))?;
        self.db.wait_idle().map_err(failed("wait for compactions"))?;
        Ok(0)
    }

    fn written(&self) -> Option<Written> {
        let metrics = self.db.metrics();
        let tree = metrics.keyspaces.get(self.keyspace.name())?;
        Some(Written {
            wal_bytes: metrics.wal.written_bytes,
            flushed_bytes: tree.flushed_bytes,
            compaction_bytes: tree.compaction.written_bytes,
        })
    }

    fn table_bytes(&self) -> Result<u64> {
        let metrics = self.db.metrics();
        let tree = metrics.keyspaces.get(self.keyspace.name());
        Ok(tree.map_or(0, |tree| tree.levels.iter().map(|level| level.bytes).sum()))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close(None).map_err(failed("close the database"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_option_takes_a_value() {
        let typed = [
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
        assert_eq!(typed.len(), KNOWN.len());
        let mut options = LsmxOptions::default();
        for (typed, (name, _)) in typed.iter().zip(KNOWN) {
            assert!(typed.starts_with(name), "{typed}");
            options = options.set(typed).unwrap();
        }
        assert_eq!(options.workers(), 3);
    }

    #[test]
    fn what_is_no_option_is_refused_by_name() {
        for (typed, part) in [
            ("speed=1", "filter_last_run"),
            ("policy", "KEY=VALUE"),
            ("policy=nosuch", "nosuch"),
            ("filter_last_run=maybe", "off, on or auto"),
            ("filter_bits=12", "8, 16, or monkey"),
            ("cache_kind=lru", "quick or moka"),
            ("block_bytes=5G", "below 4G"),
            ("table_bytes=lots", "bytes, such as"),
            ("table_bytes=99999999999G", "bytes, such as"),
            ("compression=zip", "none or lz4"),
            ("write_control=none", "smooth or stop"),
            ("workers=0", "at least 1"),
            ("workers=x", "a number"),
            ("merge_parts_max=0", "at least 1"),
            ("direct_reads=yes", "off or on"),
            ("merge_parts_max=x", "a number"),
        ] {
            let error = LsmxOptions::default().set(typed).unwrap_err();
            assert!(error.is_usage());
            let text = error.to_string();
            assert!(text.contains(typed) && text.contains(part), "{text}");
        }
    }
}
