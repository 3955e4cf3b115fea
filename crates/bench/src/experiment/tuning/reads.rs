//! Measures lookups in a database opened for reading with a given cache size.

use std::path::Path;

use lsmx::metrics::FilterCounts;
use lsmx::{FilterLastRun, MetadataSizes};

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::ThreadGroup;
use crate::numbers::ratio;
use crate::peers::EngineSettings;
use crate::peers::lsmx::Lsmx;

use super::StudyContext;
use super::result::{LookupReads, TuningCell};

const PURPOSE_WARM_UP: u64 = 0x7761_726d;
const PURPOSE_READS: u64 = 0x7265_6164;

fn open_read_only(
    bench: &StudyContext<'_>,
    path: &Path,
    cache_bytes: u64,
    filter: FilterLastRun,
) -> Result<Lsmx> {
    let settings = EngineSettings {
        block_cache_bytes: Some(cache_bytes),
        filter_last_run: Some(filter),
        memtable_bytes: None,
        ..bench.config.settings.clone()
    };
    Lsmx::open_read_only(path, &settings, lsmx::DEFAULT_KEYSPACE)
}

pub(super) fn metadata_sizes(bench: &StudyContext<'_>, path: &Path) -> Result<MetadataSizes> {
    open_read_only(bench, path, 0, FilterLastRun::Off)?.metadata_sizes()
}

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

/// Measures lookups of present keys, followed by lookups of absent keys. Each measurement is preceded by the same
/// number of warm-up lookups. `setting` gives the cache size and the filters to use.
pub(super) fn measure_lookups(
    bench: &StudyContext<'_>,
    path: &Path,
    sizes: &MetadataSizes,
    (name, setting): (&str, LookupReads),
    progress: &mut dyn Progress,
) -> Result<[TuningCell; 2]> {
    let filter = if setting.filter_last_run { FilterLastRun::On } else { FilterLastRun::Off };
    let engine = open_read_only(bench, path, setting.cache_bytes, filter)?;
    let mut look_up = |absent: bool, purpose: u64| {
        let single = ThreadGroup::single_thread(&engine, bench.records);
        let (threads, seed) = (bench.threads(), bench.config.seed);
        let group = ThreadGroup { threads, seed, purpose, ..single };
        group.run_work((name, bench.ops()), progress, &|player| {
            player.for_each_own_number(bench.ops(), |player, _| {
                let record = player.random.next_below(bench.config.entries);
                if absent { player.get_absent(record) } else { player.get_present(record) }
            })
        })
    };
    let mut cell = |absent: bool| -> Result<TuningCell> {
        look_up(absent, PURPOSE_WARM_UP)?;
        let before = LookupCounters::read(&engine);
        let played = look_up(absent, PURPOSE_READS)?;
        let after = LookupCounters::read(&engine);
        let filters = after.filters - before.filters;
        let workload = if absent { "readmissing" } else { "readrandom" };
        Ok(TuningCell {
            reads: Some(LookupReads {
                cache_fraction: ratio(setting.cache_bytes, sizes.table_bytes),
                filter_bytes: sizes.all_filters_bytes,
                table_bytes: sizes.table_bytes,
                ios_per_get: ratio(after.misses - before.misses, played.ops),
                physical_reads_per_get: ratio(after.file_reads - before.file_reads, played.ops),
                filter_false_positive_rate: filters.false_positive_rate(),
                filter_answers: filters.negatives + filters.false_positives,
                ..setting
            }),
            ..TuningCell::new(workload, name, bench.threads(), &played, 0.0)
        })
    };
    Ok([cell(false)?, cell(true)?])
}
