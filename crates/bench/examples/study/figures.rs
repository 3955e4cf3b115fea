//! Computes figures from measurements.

use lsmx_bench::experiment::explore::result::{ExplorationCell, PointLookups};
pub(crate) use lsmx_bench::numbers::to_f64;

/// Numbers with labels; `None` if at least one number was not measured.
pub(crate) type Figures = Option<Vec<(String, f64)>>;
/// Function that extracts a number from a measurement; `None` if the number was not measured.
pub(crate) type Measure = fn(&ExplorationCell) -> Option<f64>;

pub(crate) fn single_figure(label: impl Into<String>, value: Option<f64>) -> Figures {
    Some(vec![(label.into(), value?)])
}

pub(crate) fn labeled_figures<L: Into<String>>(
    values: impl IntoIterator<Item = (L, Option<f64>)>,
) -> Figures {
    values.into_iter().map(|(label, value)| Some((label.into(), value?))).collect()
}

pub(crate) fn nth_figure(figures: &Figures, index: usize) -> Option<f64> {
    figures.as_ref()?.get(index).map(|(_, value)| *value)
}

/// Divides each figure in `above` by the figure at the same index in `below`. Keeps the labels of `above`.
pub(crate) fn divide_figures(above: Figures, below: Figures) -> Figures {
    let (above, below) = (above?, below?);
    (above.len() == below.len()).then_some(())?;
    labeled_figures(
        above.into_iter().zip(below).map(|((label, a), (_, b))| (label, divide(Some(a), Some(b)))),
    )
}

/// Returns the largest figure divided by the smallest.
pub(crate) fn relative_spread(figures: Figures) -> Option<f64> {
    let numbers = figures?.into_iter().map(|(_, value)| value);
    divide(numbers.clone().reduce(f64::max), numbers.reduce(f64::min))
}

/// Returns the last figure divided by the first.
pub(crate) fn relative_growth(figures: Figures) -> Option<f64> {
    let last = figures.as_ref()?.len().checked_sub(1)?;
    divide(nth_figure(&figures, last), nth_figure(&figures, 0))
}

/// Replaces each figure x by 1 − x.
pub(crate) fn reductions(figures: Figures) -> Figures {
    Some(figures?.into_iter().map(|(label, value)| (label, 1.0 - value)).collect())
}

/// Replaces each figure x by x − 1.
pub(crate) fn increases(figures: Figures) -> Figures {
    Some(figures?.into_iter().map(|(label, value)| (label, value - 1.0)).collect())
}

/// Returns `above ÷ below`; `None` if a number is missing or `below` is 0.
pub(crate) fn divide(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    let (above, below) = (above?, below?);
    (below != 0.0).then(|| above / below)
}

pub(crate) fn ratio(above: u64, below: u64) -> Option<f64> {
    divide(Some(to_f64(above)), Some(to_f64(below)))
}

pub(crate) fn flushes(cell: &ExplorationCell) -> Option<f64> {
    Some(to_f64(cell.flushes))
}

/// Returns (bytes read by compactions + bytes written by compactions) ÷ ingested bytes.
pub(crate) fn data_moved_ratio(cell: &ExplorationCell) -> Option<f64> {
    Some(cell.data_moved_ratio)
}

pub(crate) fn write_amplification(cell: &ExplorationCell) -> Option<f64> {
    Some(cell.compaction_write_amplification)
}

pub(crate) fn jobs(cell: &ExplorationCell) -> Option<f64> {
    Some(to_f64(cell.compaction.jobs))
}

pub(crate) fn bytes_per_job(cell: &ExplorationCell) -> Option<f64> {
    ratio(cell.compaction.read_bytes + cell.compaction.written_bytes, cell.compaction.jobs)
}

pub(crate) fn runs(cell: &ExplorationCell) -> Option<f64> {
    Some(to_f64(cell.levels.iter().map(|level| level.runs).sum()))
}

pub(crate) fn invalid_share(cell: &ExplorationCell) -> Option<f64> {
    Some(cell.space_amplification_invalid)
}

pub(crate) fn tombstones(cell: &ExplorationCell) -> Option<f64> {
    Some(to_f64(cell.delete_persistence.live_tombstones))
}

/// Returns the mean duration of a compaction in milliseconds.
pub(crate) fn job_mean_ms(cell: &ExplorationCell) -> Option<f64> {
    nonzero_time(cell.compaction.latency_us.mean / 1e3)
}

/// Returns the longest duration of a compaction in milliseconds.
pub(crate) fn job_max_ms(cell: &ExplorationCell) -> Option<f64> {
    nonzero_time(cell.compaction.latency_us.max / 1e3)
}

/// Returns the longest latency of a put in milliseconds.
pub(crate) fn put_max_ms(cell: &ExplorationCell) -> Option<f64> {
    nonzero_time(cell.put_latency_us.max / 1e3)
}

/// Returns the mean latency of a put in microseconds.
pub(crate) fn put_mean_us(cell: &ExplorationCell) -> Option<f64> {
    nonzero_time(cell.put_latency_us.mean)
}

/// Returns the mean number of blocks that a lookup reads if the fraction `alpha` of the lookups searches absent keys.
pub(crate) fn ios(cell: &ExplorationCell, alpha: f64) -> Option<f64> {
    lookups(cell, alpha).map(|lookups| lookups.ios_per_get)
}

/// Returns the number of blocks read ÷ the number of lookups of present keys.
pub(crate) fn read_amplification(cell: &ExplorationCell, alpha: f64) -> Option<f64> {
    lookups(cell, alpha)?.read_amplification
}

/// Returns the mean latency of a lookup in microseconds.
pub(crate) fn lookup_us(cell: &ExplorationCell, alpha: f64) -> Option<f64> {
    nonzero_time(lookups(cell, alpha)?.latency_us.mean)
}

/// Returns the mean latency of a range lookup in microseconds.
pub(crate) fn range_us(cell: &ExplorationCell, selectivity: f64) -> Option<f64> {
    let mut groups = cell.range_lookups.by_selectivity.iter();
    let group = groups.find(|group| (group.selectivity - selectivity).abs() < 1e-12)?;
    nonzero_time(group.latency_us.mean)
}

fn lookups(cell: &ExplorationCell, alpha: f64) -> Option<&PointLookups> {
    cell.point_lookups.iter().find(|lookups| (lookups.alpha - alpha).abs() < 1e-9)
}

/// Returns `None` if `time` is 0. Results contain 0 for a time that was not measured.
fn nonzero_time(time: f64) -> Option<f64> {
    (time > 0.0).then_some(time)
}
