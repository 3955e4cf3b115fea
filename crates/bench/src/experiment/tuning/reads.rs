//! Lookups in a database that is opened for reading with one cache size.

use std::path::Path;

use lsmx::metrics::FilterCounts;
use lsmx::{FilterBits, FilterLastRun, MetadataSizes};

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::ThreadGroup;
use crate::numbers::ratio;
use crate::peers::EngineSettings;
use crate::peers::lsmx::Lsmx;

use super::Bench;
use super::result::{Cell, Reads};

const PURPOSE_WARM_UP: u64 = 0x7761_726d;
const PURPOSE_READS: u64 = 0x7265_6164;

/// Settings of a cell of reads.
pub(super) struct ReadSetting {
    pub(super) name: String,
    pub(super) cache_bytes: u64,
    pub(super) filters_cached: bool,
    pub(super) index_cached: bool,
    pub(super) filter_last_run: FilterLastRun,
    pub(super) filter_bits: Option<FilterBits>,
}

fn open(bench: &Bench<'_>, path: &Path, cache_bytes: u64, filter: FilterLastRun) -> Result<Lsmx> {
    let settings = EngineSettings {
        block_cache_bytes: Some(cache_bytes),
        filter_last_run: Some(filter),
        memtable_bytes: None,
        ..bench.config.settings.clone()
    };
    Lsmx::open_read_only(path, &settings, lsmx::DEFAULT_KEYSPACE)
}

/// Returns the memory that the metadata of a database takes.
pub(super) fn metadata_sizes(bench: &Bench<'_>, path: &Path) -> Result<MetadataSizes> {
    open(bench, path, 0, FilterLastRun::Off)?.metadata_sizes()
}

/// Counters of lookups.
struct LookupCounters {
    misses: u64,
    filters: FilterCounts,
    file_reads: u64,
}

impl LookupCounters {
    fn read(engine: &Lsmx) -> LookupCounters {
        let metrics = engine.db.read_metrics();
        LookupCounters {
            misses: metrics.cache.values().map(|cache| cache.misses).sum(),
            filters: metrics.filter,
            file_reads: engine.file_reads().0,
        }
    }
}

/// Measures lookups of present keys, then of absent keys. As many lookups before each warm the cache up.
pub(super) fn measure(
    bench: &Bench<'_>,
    path: &Path,
    sizes: &MetadataSizes,
    setting: &ReadSetting,
    progress: &mut dyn Progress,
) -> Result<[Cell; 2]> {
    let engine = open(bench, path, setting.cache_bytes, setting.filter_last_run)?;
    let mut look_up = |absent: bool, purpose: u64| {
        let single = ThreadGroup::single(&engine, bench.records);
        let (threads, seed) = (bench.threads(), bench.config.seed);
        let group = ThreadGroup { threads, seed, purpose, ..single };
        group.play((&setting.name, bench.ops()), progress, &|player| {
            player.repeat(bench.ops(), |player, _| {
                let record = player.random.below(bench.config.entries);
                if absent { player.get_absent(record) } else { player.get_present(record) }
            })
        })
    };
    let mut cell = |absent: bool| -> Result<Cell> {
        look_up(absent, PURPOSE_WARM_UP)?;
        let before = LookupCounters::read(&engine);
        let played = look_up(absent, PURPOSE_READS)?;
        let after = LookupCounters::read(&engine);
        let filters = after.filters - before.filters;
        Ok(Cell {
            workload: if absent { "readmissing" } else { "readrandom" },
            engine: "lsmx".to_owned(),
            setting: setting.name.clone(),
            threads: bench.threads(),
            ops: played.ops,
            ops_per_s: played.ops_per_s(0.0),
            latency_us: played.latency_of_all(),
            reads: Some(Reads {
                cache_bytes: setting.cache_bytes,
                cache_fraction: ratio(setting.cache_bytes, sizes.table_bytes),
                index_cached: setting.index_cached,
                filters_cached: setting.filters_cached,
                filter_last_run: setting.filter_last_run == FilterLastRun::On,
                filter_bits: setting.filter_bits,
                filter_bytes: sizes.all_filters_bytes,
                table_bytes: sizes.table_bytes,
                ios_per_get: ratio(after.misses - before.misses, played.ops),
                physical_reads_per_get: ratio(after.file_reads - before.file_reads, played.ops),
                filter_false_positive_rate: filters.false_positive_rate(),
                filter_answers: filters.negatives + filters.false_positives,
            }),
            slices: Vec::new(),
        })
    };
    Ok([cell(false)?, cell(true)?])
}
