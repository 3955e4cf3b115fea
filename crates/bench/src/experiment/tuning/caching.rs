//! The experiment `caching`: reads by the content of the block cache, with and without the last filter.

use lsmx::MetadataSizes;

use crate::error::Result;
use crate::experiment::Progress;

use super::Bench;
use super::reads;
use super::result::{Cell, Reads};

/// Content for which a cache is large enough. Each includes the previous ones.
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
    /// Returns the size of a cache for the content. It depends on whether lookups use the last run's filter.
    fn bytes(self, sizes: &MetadataSizes, last_run: bool) -> u64 {
        let metadata = if last_run { sizes.all_metadata() } else { sizes.inflection_2() };
        match self {
            CacheContent::Nothing => 0,
            CacheContent::Filters => metadata - sizes.index_bytes,
            CacheContent::Index => metadata,
            // Blocks are larger in memory than in their files.
            CacheContent::Data => metadata + sizes.table_bytes / 4 * 5,
        }
    }
}

pub(super) fn run(bench: &Bench<'_>, progress: &mut dyn Progress) -> Result<Vec<Cell>> {
    let path = bench.path_of_filled(progress)?;
    let sizes = reads::metadata_sizes(bench, &path)?;
    let mut cells = Vec::new();
    for (content, name) in ALL {
        for last_run in [false, true] {
            let with = if last_run { "last filter asked" } else { "last filter not asked" };
            let setting = Reads {
                cache_bytes: content.bytes(&sizes, last_run),
                filters_cached: content >= CacheContent::Filters,
                index_cached: content >= CacheContent::Index,
                filter_last_run: last_run,
                ..Reads::default()
            };
            let name = format!("{name}, {with}");
            cells.extend(reads::measure(bench, &path, &sizes, (&name, setting), progress)?);
        }
    }
    Ok(cells)
}
