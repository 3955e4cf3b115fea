//! Reads by the width of filters: a database for each, and a cache for all its metadata.

use lsmx::{FilterBits, FilterLastRun};

use crate::error::Result;
use crate::experiment::Progress;
use crate::numbers::ratio;

use super::result::{Cell, Reads};
use super::{Bench, reads};

/// Widths as they are typed: all narrow, two mixtures by Monkey's reasoning, all wide.
const WIDTHS: [&str; 4] = ["8", "monkey(10)", "monkey(13)", "16"];

pub(super) fn run(bench: &Bench<'_>, progress: &mut dyn Progress) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for width in WIDTHS {
        let path = bench.temporary.join(width);
        let mut settings = bench.config.settings.clone();
        settings.lsmx = settings.lsmx.set(&format!("filter_bits={width}"))?;
        bench.fill(&path, &settings, &format!("fill, filters {width}"), progress)?;
        let sizes = reads::open(bench, &path, 0, FilterLastRun::On)?.sizes()?;
        let cache_bytes = sizes.all_metadata();
        let setting = format!("filters {width}");
        progress.begin(&setting, 0);
        let opened = reads::open(bench, &path, cache_bytes, FilterLastRun::On)?;
        let known = Reads {
            cache_bytes,
            cache_fraction: ratio(cache_bytes, sizes.table_bytes),
            index_cached: true,
            filters_cached: true,
            filter_last_run: true,
            filter_bits: width.parse::<FilterBits>().ok(),
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
    Ok(cells)
}
