//! `lsmx iocost`: what a point lookup costs in reads, by the size of the cache.
//!
//! The data set is that of the study of Pebble's read path: keys of 32 bytes that are hashes, values of
//! 110, in the order of the hashes' records, so at random. The tree is settled and not compacted by hand.
//! What its metadata takes in memory gives the two inflection points; then the database is opened for
//! reading with one cache size after the other, around these and around the study's.
//!
//! Reads are counted twice: as blocks that the cache did not have, and as calls that reached the file
//! system.

mod build;
mod keys;
mod measure;
pub mod result;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lsmx::internals::vfs::CountingVfs;
use lsmx::vfs::OsVfs;
use lsmx::{
    BlockCacheKind, Db, FilterBits, FilterLastRun, Keyspace, KeyspaceOptions, MetadataSizes,
    Options,
};

use crate::error::{Error, Result};
use crate::numbers::{self, ratio};
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::random::Random;

use super::Progress;
use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use keys::{Hashed, Keys};
use result::{Build, Cost, IoCost, Level, Point, Settings, Share};

/// Keys shorter than this might be equal.
pub const KEY_BYTES_MIN: u64 = 8;
/// Bytes of a data block where nothing else is asked for.
pub const BLOCK_BYTES_DEFAULT: u32 = 4096;
/// Points of a sweep at most.
const POINTS_MAX: usize = 1000;
/// Cache sizes of the study that are looked at besides the inflection points, in per cent of the
/// database.
const STUDY_PERCENT: [f64; 9] = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 3.0];

const PURPOSE_SAMPLE: u64 = 0x7361_6d70;
const PURPOSE_GETS: u64 = 0x6765_7473;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Config {
    /// An existing database; by default one is built.
    pub database: Option<PathBuf>,
    /// The keyspace of an existing database.
    pub keyspace: String,
    /// Records to build with.
    pub entries: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Bytes of a memtable.
    pub memtable_bytes: u64,
    /// Target bytes of a table.
    pub table_bytes: u64,
    /// Target bytes of a data block; a database is built for each.
    pub block_bytes: Vec<u32>,
    /// Widths of filters; a database is built for each.
    pub filter_bits: Vec<FilterBits>,
    /// Block caches; each database is read with each.
    pub cache_kinds: Vec<BlockCacheKind>,
    /// Cache sizes.
    pub sweep: CacheSweep,
    /// Lookups of present keys at each point, and as many of absent ones.
    pub gets: u64,
    /// Whether tables are read past the system's page cache.
    pub direct_io: bool,
    /// The seed.
    pub seed: u64,
    /// Where databases are built.
    pub directory: PathBuf,
    /// The command line, for the provenance.
    pub command: String,
}

/// How a database is built.
#[derive(Clone, Copy, Debug)]
struct Design {
    block_bytes: u32,
    filter_bits: FilterBits,
}

/// Cache sizes to look at.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheSweep {
    /// The inflection points, places between and around them, and the study's sizes.
    Auto,
    /// Per cent of the database.
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
    /// Cache sizes in bytes, ascending, each once.
    fn sizes(&self, sizes: &MetadataSizes) -> Vec<u64> {
        let (first, second) = (sizes.inflection_1(), sizes.inflection_2());
        let percent =
            |percent: f64| numbers::round(numbers::float(sizes.table_bytes) * percent / 100.0);
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
    /// Builds the database, if none was given, and sweeps the cache.
    ///
    /// # Errors
    /// When a parameter is out of range, the database fails or gives a wrong answer.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<IoCost> {
        self.check()?;
        let place = self.database.as_deref().unwrap_or(&self.directory);
        let provenance = Provenance::new(self.command.clone(), None, self.seed, place);
        let costs = match &self.database {
            Some(path) => self.of_existing(path, progress)?,
            None => {
                let designs = self.block_bytes.iter().flat_map(|&block_bytes| {
                    let of_bits = move |&filter_bits| Design { block_bytes, filter_bits };
                    self.filter_bits.iter().map(of_bits)
                });
                let costs = designs.map(|design| self.of_new(design, progress));
                costs.collect::<Result<Vec<_>>>()?.concat()
            }
        };
        let mut costs = costs.into_iter();
        let Some(cost) = costs.next() else {
            let name = "--block-bytes, --filter-bits, --cache-kind";
            return Err(invalid(name, "nothing".to_owned(), "one of each at least"));
        };
        Ok(IoCost { provenance, settings: self.settings(), cost, others: costs.collect() })
    }

    fn settings(&self) -> Settings {
        let built = |n: u64| self.database.is_none().then_some(n);
        Settings {
            database: self.database.as_ref().map(|path| path.display().to_string()),
            keyspace: self.keyspace.clone(),
            key_len: built(self.key_bytes),
            value_len: built(self.value_bytes),
            memtable_bytes: built(self.memtable_bytes),
            table_bytes: built(self.table_bytes),
            gets: self.gets,
            direct_io: self.direct_io,
        }
    }

    fn check(&self) -> Result<()> {
        between("--key-len", self.key_bytes, KEY_BYTES_MIN, KEY_BYTES_MAX)?;
        between("--value-len", self.value_bytes, 0, VALUE_BYTES_MAX)?;
        between("--entries", self.entries, 1, 1 << 40)?;
        between("--gets", self.gets, 1, 1 << 40)
    }

    /// Opens a database with this block cache of so many bytes, or the engine's default, and asks the
    /// last run's filter or does not.
    fn open(
        &self,
        path: &Path,
        block_cache: Option<(BlockCacheKind, u64)>,
        filter: FilterLastRun,
    ) -> Result<Opened> {
        let failed = |source| Error::Engine { action: "open the database", source };
        let vfs = CountingVfs::new(std::sync::Arc::new(OsVfs));
        let tuning = KeyspaceOptions::default().filter_last_run(filter);
        let mut options = Options::default()
            .create_if_missing(false)
            .direct_reads(self.direct_io)
            .keyspace_defaults(tuning);
        if let Some((kind, bytes)) = block_cache {
            options = options.block_cache_kind(kind).block_cache_bytes(bytes);
        }
        let counted = std::sync::Arc::new(vfs.clone());
        let db = Db::open(path, options.read_only(true).vfs(counted)).map_err(failed)?;
        let keyspace = db.open_keyspace(&self.keyspace, None).map_err(failed)?;
        Ok(Opened { db, keyspace, vfs, path: path.to_owned() })
    }

    fn of_existing(&self, path: &Path, progress: &mut dyn Progress) -> Result<Vec<Cost>> {
        let keys = {
            let opened = self.open(path, None, FilterLastRun::Off)?;
            let mut random = Random::new(self.seed, PURPOSE_SAMPLE);
            progress.begin("sample keys", 0);
            let keys = Keys::sample(&opened.keyspace, &mut random)?;
            progress.end();
            keys
        };
        self.sweeps(path, &keys, None, progress)
    }

    fn of_new(&self, design: Design, progress: &mut dyn Progress) -> Result<Vec<Cost>> {
        let directory = temporary::directory("lsmx-iocost-", &self.directory)?;
        let path = directory.path().join("db");
        let hashed = Hashed::new(self.entries, self.key_bytes, self.seed);
        let build = build::build(self, &path, design, &hashed, progress)?;
        let keys = Keys::Hashed(hashed);
        self.sweeps(&path, &keys, Some((design, build)), progress)
    }

    /// The sweep with each of the block caches.
    fn sweeps(
        &self,
        path: &Path,
        keys: &Keys,
        built: Option<(Design, Build)>,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Cost>> {
        let kinds = self.cache_kinds.iter();
        kinds.map(|&kind| self.sweep(path, keys, built, kind, progress)).collect()
    }

    fn sweep(
        &self,
        path: &Path,
        keys: &Keys,
        built: Option<(Design, Build)>,
        cache_kind: BlockCacheKind,
        progress: &mut dyn Progress,
    ) -> Result<Cost> {
        let (sizes, levels) = {
            let opened = self.open(path, None, FilterLastRun::Off)?;
            (opened.sizes()?, opened.levels(&self.keyspace))
        };
        let share = |bytes: u64| Share { bytes, fraction: ratio(bytes, sizes.table_bytes) };
        let (inflection_1, inflection_2) =
            (share(sizes.inflection_1()), share(sizes.inflection_2()));
        let all_metadata = share(sizes.all_metadata());
        let mut measure = |cache_bytes: u64, filter| {
            let cache = Some((cache_kind, cache_bytes));
            let opened = self.open(path, cache, filter)?;
            // The same keys are asked for at each point, so that points differ by the cache alone.
            let mut random = Random::new(self.seed, PURPOSE_GETS);
            let share = share(cache_bytes);
            let all = if filter == FilterLastRun::On { ", all filters" } else { "" };
            let title = format!("{cache_kind} cache {:.3} %{all}", share.fraction * 100.0);
            let mut point =
                measure::point(&opened, keys, self.gets, &mut random, &title, progress)?;
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
        let points = points.collect::<Result<Vec<Point>>>()?;
        let with_all_filters = measure(all_metadata.bytes, FilterLastRun::On)?;
        Ok(Cost {
            block_bytes: built.map(|(design, _)| design.block_bytes),
            filter_bits: built.map(|(design, _)| design.filter_bits),
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
            build: built.map(|(_, build)| build),
            points,
            with_all_filters,
        })
    }
}

/// A database that is open for reading, with its calls to the file system counted.
struct Opened {
    db: Db,
    keyspace: Keyspace,
    vfs: CountingVfs,
    path: PathBuf,
}

impl Opened {
    fn sizes(&self) -> Result<MetadataSizes> {
        let failed = |source| Error::Engine { action: "read the metadata", source };
        self.keyspace.metadata().map_err(failed)
    }

    fn levels(&self, keyspace: &str) -> Vec<Level> {
        let metrics = self.db.metrics();
        let levels = metrics.keyspaces.get(keyspace).into_iter().flat_map(|it| &it.levels);
        let filled = levels.filter(|level| level.files > 0);
        filled
            .map(|level| Level {
                level: level.level,
                runs: level.runs,
                files: level.files,
                bytes: level.bytes,
                entries: level.entries,
            })
            .collect()
    }
}

fn between(name: &'static str, n: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&n) {
        return Ok(());
    }
    Err(Error::Invalid { name, value: n.to_string(), must: format!("from {min} to {max}") })
}

fn invalid(name: &'static str, value: String, must: &str) -> Error {
    Error::Invalid { name, value, must: must.to_owned() }
}

/// Options of the keyspace that a database is built with.
fn keyspace_options(config: &Config, design: Design) -> KeyspaceOptions {
    KeyspaceOptions::default()
        .memtable_bytes(config.memtable_bytes)
        .table_bytes(config.table_bytes)
        .block_bytes(design.block_bytes)
        .filter_bits(design.filter_bits)
}

#[cfg(test)]
mod tests;
