//! `lsmx iocost`: measures the reads per point lookup for a range of block cache sizes.
//!
//! The records are those of the study of Pebble's read path: hashed keys of 32 bytes with values of 110 bytes, written
//! in random order. After loading, the experiment waits until compaction is idle, but starts no manual compaction.
//!
//! The metadata sizes determine two cache sizes, the inflection points. At the first, the cache holds the top indexes,
//! the range tombstones, and the filters of all sorted runs except the last. At the second, the cache also holds all
//! index blocks. The database is opened for reading with cache sizes around these points, and with the cache sizes of
//! the study.
//!
//! Reads are counted in two ways: as block cache misses and as read calls to the file system.

mod build;
pub mod columns;
mod keys;
mod measure;
mod page;
pub mod result;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lsmx::{BlockCacheKind, FilterBits, FilterLastRun, MetadataSizes};

use crate::error::{Error, Result};
use crate::numbers::{self, ratio};
use crate::peers::EngineSettings;
use crate::peers::lsmx::Lsmx;
use crate::report::file::{parent, sync_directory, write_file};
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::random::Random;

use super::Progress;
use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use keys::{HashedKeys, LookupKeys};
use measure::{LookupTarget, measure_point};
use result::{
    ByteShare, CacheSizePoint, DatabaseCost, IoCostResult, IoCostSettings, LevelMetadata,
};

/// Minimum length of a key in bytes. Shorter keys might not be unique.
pub const KEY_BYTES_MIN: u64 = 8;
/// Default target size of a data block in bytes.
pub const BLOCK_BYTES_DEFAULT: u32 = 4096;
/// Maximum number of measured cache sizes.
const POINTS_MAX: usize = 1000;
/// Cache sizes in the study of Pebble's read path, in percent of the database size.
const STUDY_PERCENT: [f64; 9] = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 3.0];

const PURPOSE_SAMPLE: u64 = 0x7361_6d70;
const PURPOSE_GETS: u64 = 0x6765_7473;

/// Configuration of `lsmx iocost`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    /// Directory of an existing database. If `None`, a new database is built.
    pub database: Option<PathBuf>,
    /// Directory of the new database, which is kept. If the directory exists, the database in it is measured.
    pub keep: Option<PathBuf>,
    pub keyspace: String,
    pub entries: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Engine settings of a new database. For an existing database, only the setting for direct I/O is used.
    pub settings: EngineSettings,
    /// Target sizes of data blocks. A database is built for each combination of block size and filter width.
    pub block_bytes: Vec<u32>,
    /// Filter widths. A database is built for each combination of block size and filter width.
    pub filter_bits: Vec<FilterBits>,
    /// Kinds of block cache. Each database is measured with every kind.
    pub cache_kinds: Vec<BlockCacheKind>,
    pub sweep: CacheSweep,
    /// Number of measured lookups of present keys per cache size. The same number of lookups of absent keys is
    /// measured.
    pub gets: u64,
    pub seed: u64,
    pub directory: PathBuf,
    pub command: String,
}

/// Cache sizes to measure.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheSweep {
    /// Cache sizes of the study, the two inflection points, and cache sizes between and around the inflection points.
    Auto,
    /// Sizes in percent of the database size.
    Percent(Vec<f64>),
}

impl FromStr for CacheSweep {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<CacheSweep, String> {
        if text == "auto" {
            return Ok(CacheSweep::Auto);
        }
        let percent = |text: &str| {
            let percent = text.trim().parse::<f64>().ok();
            percent
                .filter(|percent| percent.is_finite() && (0.0..=1000.0).contains(percent))
                .ok_or_else(|| {
                    format!("{text} is not a number of per cent from 0 to 1000, nor auto")
                })
        };
        let all = text.split(',').map(percent).collect::<std::result::Result<Vec<_>, _>>()?;
        if all.len() > POINTS_MAX {
            return Err(format!("more than {POINTS_MAX} cache sizes"));
        }
        Ok(CacheSweep::Percent(all))
    }
}

impl fmt::Display for CacheSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheSweep::Auto => f.write_str("auto"),
            CacheSweep::Percent(all) => {
                let all: Vec<_> = all.iter().map(f64::to_string).collect();
                f.write_str(&all.join(","))
            }
        }
    }
}

impl CacheSweep {
    /// Returns the distinct cache sizes in bytes, in ascending order.
    fn sizes(&self, sizes: &MetadataSizes) -> Vec<u64> {
        let (first, second) = (sizes.inflection_1(), sizes.inflection_2());
        let percent = |percent: f64| {
            numbers::round_to_u64(numbers::to_f64(sizes.table_bytes) * percent / 100.0)
        };
        let mut bytes: Vec<u64> = match self {
            CacheSweep::Percent(all) => all.iter().copied().map(percent).collect(),
            CacheSweep::Auto => {
                let quarter = (second - first) / 4;
                let between = (1..4).map(|quarters| first + quarters * quarter);
                let around = [first / 2, first / 4 * 3, first, second, second / 4 * 5, 2 * second];
                let study = STUDY_PERCENT.iter().copied().map(percent);
                between.chain(around).chain(study).collect()
            }
        };
        bytes.sort_unstable();
        bytes.dedup();
        bytes
    }
}

impl Config {
    /// Measures all cache sizes on the existing database, or on newly built databases.
    ///
    /// # Errors
    /// A parameter is out of range, a database operation fails, or a lookup returns a wrong answer.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<IoCostResult> {
        Error::check_range("--key-len", self.key_bytes, KEY_BYTES_MIN..=KEY_BYTES_MAX)?;
        Error::check_range("--value-len", self.value_bytes, 0..=VALUE_BYTES_MAX)?;
        Error::check_range("--entries", self.entries, 1..=1 << 40)?;
        Error::check_range("--lookups", self.gets, 1..=1 << 40)?;
        if self.keep.is_some() && self.block_bytes.len() * self.filter_bits.len() > 1 {
            let name = "--block-bytes, --filter-bits";
            return Err(Error::invalid_argument(name, "several", "one of each with --keep"));
        }
        let existing = self.database.as_deref().or(self.keep.as_deref());
        let place = existing.unwrap_or(&self.directory);
        let provenance = Provenance::new(self.command.clone(), None, self.seed, place);
        let mut costs = Vec::new();
        if let Some(path) = &self.database {
            costs.extend(self.measure_existing_database(path, progress)?);
        } else {
            for &block_bytes in &self.block_bytes {
                for &bits in &self.filter_bits {
                    let filter_bits = Some(bits);
                    let settings = self.settings.clone();
                    let settings = EngineSettings { block_bytes, filter_bits, ..settings };
                    costs.extend(self.measure_new_database(&settings, progress)?);
                }
            }
        }
        let mut costs = costs.into_iter();
        let Some(cost) = costs.next() else {
            let name = "--block-bytes, --filter-bits, --cache-kind";
            return Err(Error::invalid_argument(name, "nothing", "one of each at least"));
        };
        Ok(IoCostResult { provenance, settings: self.settings(), cost, others: costs.collect() })
    }

    fn settings(&self) -> IoCostSettings {
        let built = |n: u64| self.database.is_none().then_some(n);
        IoCostSettings {
            database: self.database.as_ref().map(|path| path.display().to_string()),
            keyspace: self.keyspace.clone(),
            key_len: built(self.key_bytes),
            value_len: built(self.value_bytes),
            memtable_bytes: self.settings.memtable_bytes.and_then(built),
            table_bytes: self.settings.table_bytes.and_then(built),
            gets: self.gets,
            direct_io: self.settings.direct_io,
        }
    }

    /// Opens a database for reading. If `block_cache` is `None`, the engine's default block cache is used.
    fn open_database(
        &self,
        path: &Path,
        block_cache: Option<(BlockCacheKind, u64)>,
        filter: FilterLastRun,
    ) -> Result<Lsmx> {
        let settings = EngineSettings {
            block_cache_kind: block_cache.map(|(kind, _)| kind),
            block_cache_bytes: block_cache.map(|(_, bytes)| bytes),
            filter_last_run: Some(filter),
            direct_io: self.settings.direct_io,
            ..EngineSettings::default()
        };
        Lsmx::open_read_only(path, &settings, &self.keyspace)
    }

    fn measure_existing_database(
        &self,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Vec<DatabaseCost>> {
        let opened = self.open_database(path, None, FilterLastRun::Off)?;
        let mut random = Random::new(self.seed, PURPOSE_SAMPLE);
        progress.begin_phase("sample keys", 0);
        let keys = LookupKeys::sample_keyspace(&opened.keyspace, &mut random)?;
        progress.end_phase();
        drop(opened);
        self.measure_caches(path, &keys, progress)
    }

    fn measure_new_database(
        &self,
        settings: &EngineSettings,
        progress: &mut dyn Progress,
    ) -> Result<Vec<DatabaseCost>> {
        let temporary;
        let path = match &self.keep {
            Some(path) => path.clone(),
            None => {
                let parent = &self.directory;
                temporary = temporary::create_temporary_directory("lsmx-iocost-", parent)?;
                temporary.path().join("db")
            }
        };
        let hashed = HashedKeys::new(self.entries, self.key_bytes, self.seed);
        let build = if self.keep.is_some() && path.exists() {
            self.check_kept_database(&path, settings)?;
            None
        } else {
            // An interrupted build must leave no file that states a complete build.
            if self.keep.is_some() {
                remove_if_exists(&parameters_path(&path))?;
            }
            let build = build::build_database(self, &path, settings, &hashed, progress)?;
            if self.keep.is_some() {
                write_file(&parameters_path(&path), self.parameters(settings).as_bytes())?;
            }
            Some(build)
        };
        let keys = LookupKeys::Hashed(hashed);
        let mut costs = self.measure_caches(&path, &keys, progress)?;
        for cost in &mut costs {
            cost.block_bytes = Some(settings.block_bytes);
            cost.filter_bits = settings.filter_bits;
            cost.build = build;
        }
        Ok(costs)
    }

    /// Checks that the build of the kept database has ended, and that it had the same parameters.
    fn check_kept_database(&self, path: &Path, settings: &EngineSettings) -> Result<()> {
        let expected = self.parameters(settings);
        let found = std::fs::read_to_string(parameters_path(path)).unwrap_or_default();
        if found == expected {
            return Ok(());
        }
        let found = match found.is_empty() {
            true => "its build has not ended".to_owned(),
            false => format!("it was built with: {found}"),
        };
        let must = format!("a database that was built with: {expected}; {found}");
        Err(Error::invalid_argument("--keep", path.display(), must))
    }

    /// Describes how a new database is built.
    fn parameters(&self, settings: &EngineSettings) -> String {
        let Config { entries, key_bytes, value_bytes, seed, .. } = self;
        let block_bytes = settings.block_bytes;
        let or_default =
            |bytes: Option<u64>| bytes.map_or("default".to_owned(), |bytes| format!("{bytes} B"));
        let memtable = or_default(settings.memtable_bytes);
        let table = or_default(settings.table_bytes);
        let bits = settings.filter_bits.map(|bits| bits.to_string()).unwrap_or_default();
        format!(
            "{entries} entries, keys of {key_bytes} B, values of {value_bytes} B, seed {seed}, memtables of {memtable}, \
             tables of {table}, blocks of {block_bytes} B, filter bits {bits}"
        )
    }

    /// Measures all cache sizes with each kind of block cache.
    fn measure_caches(
        &self,
        path: &Path,
        keys: &LookupKeys,
        progress: &mut dyn Progress,
    ) -> Result<Vec<DatabaseCost>> {
        let kinds = self.cache_kinds.iter();
        kinds.map(|&kind| self.measure_cache(path, keys, kind, progress)).collect()
    }

    fn measure_cache(
        &self,
        path: &Path,
        keys: &LookupKeys,
        cache_kind: BlockCacheKind,
        progress: &mut dyn Progress,
    ) -> Result<DatabaseCost> {
        let (sizes, levels) = {
            let opened = self.open_database(path, None, FilterLastRun::Off)?;
            (opened.metadata_sizes()?, level_metadata(&opened))
        };
        let share = |bytes: u64| ByteShare { bytes, fraction: ratio(bytes, sizes.table_bytes) };
        let (inflection_1, inflection_2) =
            (share(sizes.inflection_1()), share(sizes.inflection_2()));
        let all_metadata = share(sizes.all_metadata());
        let mut measure = |cache_bytes: u64, filter| {
            let cache = Some((cache_kind, cache_bytes));
            let engine = &self.open_database(path, cache, filter)?;
            // All cache sizes use the same sequence of keys, so that only the cache differs.
            let mut random = Random::new(self.seed, PURPOSE_GETS);
            let share = share(cache_bytes);
            let all = if filter == FilterLastRun::On { ", all filters" } else { "" };
            let title = format!("{cache_kind} cache {:.3} %{all}", share.fraction * 100.0);
            let target = LookupTarget { engine, path, keys };
            let mut point = measure_point(target, self.gets, &mut random, &title, progress)?;
            point.cache_bytes = share.bytes;
            point.cache_fraction = share.fraction;
            point.at = match cache_bytes {
                _ if filter == FilterLastRun::On => Some("all_metadata"),
                bytes if bytes == inflection_1.bytes => Some("inflection_1"),
                bytes if bytes == inflection_2.bytes => Some("inflection_2"),
                _ => None,
            };
            Ok(point)
        };
        let points = self.sweep.sizes(&sizes).into_iter();
        let points = points.map(|bytes| measure(bytes, FilterLastRun::Off));
        let points = points.collect::<Result<Vec<CacheSizePoint>>>()?;
        let with_all_filters = measure(all_metadata.bytes, FilterLastRun::On)?;
        Ok(DatabaseCost {
            block_bytes: None,
            filter_bits: None,
            cache_kind,
            db_bytes: sizes.table_bytes,
            entries: sizes.entries,
            entries_last_run: sizes.entries_last_run,
            levels,
            data_blocks: sizes.data_blocks,
            index_blocks: sizes.index_blocks,
            filter_bytes: sizes.filter_bytes,
            top_index_bytes: sizes.top_index_bytes,
            range_tombstone_bytes: sizes.range_tombstone_bytes,
            index_bytes: sizes.index_bytes,
            all_filters_bytes: sizes.all_filters_bytes,
            inflection_1,
            inflection_2,
            all_metadata,
            build: None,
            points,
            with_all_filters,
        })
    }
}

/// Returns the path of the file that describes a kept database. The file is in the parent directory of the database.
fn parameters_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".iocost");
    name.into()
}

/// Removes a file durably.
#[expect(clippy::disallowed_methods, reason = "the file is not part of a database")]
fn remove_if_exists(path: &Path) -> Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| sync_directory(parent(path))),
    };
    removed.map_err(Error::io("remove", path))
}

/// Returns the levels that contain tables.
fn level_metadata(engine: &Lsmx) -> Vec<LevelMetadata> {
    let metrics = engine.db.metrics();
    let tree = metrics.keyspaces.get(&engine.keyspace.name());
    let levels = tree.into_iter().flat_map(|tree| &tree.levels).filter(|level| level.files > 0);
    levels
        .map(|level| LevelMetadata {
            level: level.level,
            runs: level.runs,
            files: level.files,
            bytes: level.bytes,
            entries: level.entries,
        })
        .collect()
}

#[cfg(test)]
mod tests;
