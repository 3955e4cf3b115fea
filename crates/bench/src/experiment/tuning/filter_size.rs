//! The experiment `filter-size`: measures puts and lookups with different filter sizes. A database is built for each
//! size.

use lsmx::FilterBits;

use crate::error::Result;
use crate::experiment::Progress;

use super::StudyContext;
use super::reads;
use super::result::{LookupReads, TuningCell};

/// Filter sizes to measure. `8` and `16` are fingerprint lengths in bits, for the filters of all tables. `monkey(B)`
/// distributes a mean of B bits per key over the sorted runs with the Monkey formula.
const WIDTHS: [&str; 4] = ["8", "monkey(10)", "monkey(13)", "16"];

pub(super) fn measure_filter_sizes(
    bench: &StudyContext<'_>,
    progress: &mut dyn Progress,
) -> Result<Vec<TuningCell>> {
    let mut cells = Vec::new();
    for width in WIDTHS {
        let path = bench.temporary.join(width);
        let mut settings = bench.config.settings.clone();
        settings.filter_bits = width.parse::<FilterBits>().ok();
        let name = format!("filters {width}");
        let (played, settle_s) =
            bench.fill_database(&path, &settings, &format!("fill, {name}"), progress)?;
        cells.push(TuningCell::new("fillrandom", &name, 1, &played, settle_s));
        let sizes = reads::metadata_sizes(bench, &path)?;
        let setting = LookupReads {
            cache_bytes: sizes.all_metadata(),
            filters_cached: true,
            index_cached: true,
            filter_last_run: true,
            filter_bits: settings.filter_bits,
            ..LookupReads::default()
        };
        cells.extend(reads::measure_lookups(bench, &path, &sizes, (&name, setting), progress)?);
    }
    Ok(cells)
}
