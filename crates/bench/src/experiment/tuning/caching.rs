//! The experiment `caching`: measures lookups with different cache sizes, with and without the filter of the last
//! sorted run.

use lsmx::MetadataSizes;

use crate::error::Result;
use crate::experiment::Progress;

use super::StudyContext;
use super::reads;
use super::result::{LookupReads, TuningCell};

/// Blocks that fit into the cache. Each variant includes the blocks of the preceding variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CacheContent {
    Nothing,
    Filters,
    Index,
    Data,
}

const ALL: [(CacheContent, &str); 4] = [
    (CacheContent::Nothing, "nothing cached"),
    (CacheContent::Filters, "filters cached"),
    (CacheContent::Index, "filters and index cached"),
    (CacheContent::Data, "all cached"),
];

impl CacheContent {
    /// Returns the cache size in bytes at which these blocks fit into the cache. `last_run` is set if lookups use the
    /// filters of the last sorted run.
    fn bytes(self, sizes: &MetadataSizes, last_run: bool) -> u64 {
        let metadata = if last_run { sizes.all_metadata() } else { sizes.inflection_2() };
        match self {
            CacheContent::Nothing => 0,
            CacheContent::Filters => metadata - sizes.index_bytes,
            CacheContent::Index => metadata,
            // The additional 25 % allow for the memory overhead of cached blocks.
            CacheContent::Data => metadata + sizes.table_bytes / 4 * 5,
        }
    }
}

pub(super) fn measure_cache_contents(
    bench: &StudyContext<'_>,
    progress: &mut dyn Progress,
) -> Result<Vec<TuningCell>> {
    let path = bench.filled_database_path(progress)?;
    let sizes = reads::metadata_sizes(bench, &path)?;
    let mut cells = Vec::new();
    for (content, name) in ALL {
        for last_run in [false, true] {
            let with = if last_run { "last filter used" } else { "last filter not used" };
            let setting = LookupReads {
                cache_bytes: content.bytes(&sizes, last_run),
                filters_cached: content >= CacheContent::Filters,
                index_cached: content >= CacheContent::Index,
                filter_last_run: last_run,
                ..LookupReads::default()
            };
            let name = format!("{name}, {with}");
            cells.extend(reads::measure_lookups(bench, &path, &sizes, (&name, setting), progress)?);
        }
    }
    Ok(cells)
}
