//! Reads by what the block cache holds, with the last sorted run's filter and without.

use lsmx::{FilterLastRun, MetadataSizes};

use crate::error::Result;
use crate::experiment::Progress;
use crate::numbers::ratio;

use super::result::{Cell, Reads};
use super::{Bench, reads};

/// What a cache is large enough for, from little to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    Nothing,
    Filters,
    Index,
    Data,
}

const ALL: [Holds; 4] = [Holds::Nothing, Holds::Filters, Holds::Index, Holds::Data];

impl Holds {
    fn name(self) -> &'static str {
        match self {
            Holds::Nothing => "nothing cached",
            Holds::Filters => "filters cached",
            Holds::Index => "filters and index cached",
            Holds::Data => "all cached",
        }
    }

    /// Bytes of such a cache, where lookups ask the last run's filter or do not.
    fn bytes(self, sizes: &MetadataSizes, last_run: bool) -> u64 {
        let metadata = if last_run { sizes.all_metadata() } else { sizes.inflection_2() };
        match self {
            Holds::Nothing => 0,
            Holds::Filters => metadata - sizes.index_bytes,
            Holds::Index => metadata,
            // Blocks in memory take somewhat more than in their files.
            Holds::Data => metadata + sizes.table_bytes / 4 * 5,
        }
    }
}

pub(super) fn run(bench: &Bench<'_>, progress: &mut dyn Progress) -> Result<Vec<Cell>> {
    let path = bench.filled(progress)?;
    let sizes = reads::open(bench, &path, 0, FilterLastRun::Off)?.sizes()?;
    let mut cells = Vec::new();
    for holds in ALL {
        for last_run in [false, true] {
            let filter = if last_run { FilterLastRun::On } else { FilterLastRun::Off };
            let cache_bytes = holds.bytes(&sizes, last_run);
            let with = if last_run { "last filter asked" } else { "last filter not asked" };
            let setting = format!("{}, {with}", holds.name());
            progress.begin(&setting, 0);
            let opened = reads::open(bench, &path, cache_bytes, filter)?;
            let known = Reads {
                cache_bytes,
                cache_fraction: ratio(cache_bytes, sizes.table_bytes),
                index_cached: holds >= Holds::Index,
                filters_cached: holds >= Holds::Filters,
                filter_last_run: last_run,
                filter_bits: None,
                filter_bytes: sizes.all_filters_bytes,
                table_bytes: sizes.table_bytes,
                ios_per_get: 0.0,
                physical_reads_per_get: 0.0,
                filter_false_positive_rate: 0.0,
                filter_answers: 0,
            };
            for absent in [false, true] {
                cells.push(reads::cell(bench, &opened, absent, &setting, known)?);
            }
            progress.end();
        }
    }
    Ok(cells)
}
