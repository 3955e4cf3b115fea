//! Figures computed from cells: labels and numbers.

use lsmx_bench::experiment::explore::result::Cell;

use crate::results::Results;
use crate::strategy::Strategy;

/// Labelled numbers; `None` if a result is missing.
pub(crate) type Figures = Option<Vec<(String, f64)>>;

/// A measure of a cell.
pub(crate) type Measure = fn(&Cell) -> Option<f64>;

/// Returns one figure.
pub(crate) fn one(label: impl Into<String>, value: Option<f64>) -> Figures {
    Some(vec![(label.into(), value?)])
}

/// Returns labelled figures.
pub(crate) fn many<L: Into<String>>(values: impl IntoIterator<Item = (L, Option<f64>)>) -> Figures {
    values.into_iter().map(|(label, value)| Some((label.into(), value?))).collect()
}

/// Returns a measure of a strategy in a part without sweep.
pub(crate) fn of(
    results: &Results,
    part: &str,
    strategy: Strategy,
    measure: Measure,
) -> Option<f64> {
    results.cell(part, strategy).and_then(measure)
}

/// Returns a measure of each strategy.
pub(crate) fn each(
    results: &Results,
    part: &str,
    strategies: &[Strategy],
    measure: Measure,
) -> Figures {
    many(strategies.iter().map(|at| (at.name, of(results, part, *at, measure))))
}

/// Returns a measure of each strategy ÷ that of a base.
pub(crate) fn each_by(
    results: &Results,
    part: &str,
    strategies: &[Strategy],
    base: Strategy,
    measure: Measure,
) -> Figures {
    let base = of(results, part, base, measure);
    many(strategies.iter().map(|at| (at.name, divide(of(results, part, *at, measure), base))))
}

/// Returns the measure of a base ÷ that of each strategy.
pub(crate) fn base_by_each(
    results: &Results,
    part: &str,
    base: Strategy,
    strategies: &[Strategy],
    measure: Measure,
) -> Figures {
    let base = of(results, part, base, measure);
    many(strategies.iter().map(|at| (at.name, divide(base, of(results, part, *at, measure)))))
}

/// Returns a measure of a strategy for each value of a swept flag.
pub(crate) fn along(
    results: &Results,
    part: &str,
    strategy: Strategy,
    flag: &str,
    measure: Measure,
) -> Figures {
    let cells = results.swept(part, strategy);
    if cells.is_empty() {
        return None;
    }
    many(cells.iter().map(|cell| {
        let value = cell.sweep.value(flag).map(ToString::to_string).unwrap_or_default();
        (value, measure(cell))
    }))
}

/// Returns the numbers without labels.
pub(crate) fn numbers(figures: Figures) -> Option<Vec<f64>> {
    Some(figures?.into_iter().map(|(_, value)| value).collect())
}

/// Divides figures pairwise. The labels are those of the dividends.
pub(crate) fn quotients(above: Figures, below: Figures) -> Figures {
    let (above, below) = (above?, below?);
    (above.len() == below.len()).then_some(())?;
    many(above.into_iter().zip(below).map(|((label, a), (_, b))| (label, divide(Some(a), Some(b)))))
}

/// Returns the largest number ÷ the smallest.
pub(crate) fn spread(figures: Figures) -> Option<f64> {
    let numbers = numbers(figures)?;
    let most = numbers.iter().copied().reduce(f64::max);
    divide(most, numbers.into_iter().reduce(f64::min))
}

/// Returns the last number ÷ the first.
pub(crate) fn growth(figures: Figures) -> Option<f64> {
    let numbers = numbers(figures)?;
    divide(numbers.last().copied(), numbers.first().copied())
}

/// Returns 1 − each figure.
pub(crate) fn less(figures: Figures) -> Figures {
    Some(figures?.into_iter().map(|(label, value)| (label, 1.0 - value)).collect())
}

/// Returns each figure − 1.
pub(crate) fn more(figures: Figures) -> Figures {
    Some(figures?.into_iter().map(|(label, value)| (label, value - 1.0)).collect())
}

/// Divides numbers. `None` if one is missing or the divisor is 0.
pub(crate) fn divide(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    let (above, below) = (above?, below?);
    (below != 0.0).then(|| above / below)
}

/// Converts a count.
pub(crate) fn float(count: u64) -> f64 {
    lsmx_bench::numbers::float(count)
}

pub(crate) fn moved(cell: &Cell) -> Option<f64> {
    Some(cell.data_moved_ratio)
}

pub(crate) fn moved_bytes(cell: &Cell) -> f64 {
    float(cell.compaction.read_bytes + cell.compaction.written_bytes)
}

pub(crate) fn write_amplification(cell: &Cell) -> Option<f64> {
    Some(cell.compaction_write_amplification)
}

pub(crate) fn jobs(cell: &Cell) -> Option<f64> {
    Some(float(cell.compaction.jobs))
}

pub(crate) fn bytes_per_job(cell: &Cell) -> Option<f64> {
    divide(Some(moved_bytes(cell)), jobs(cell))
}

pub(crate) fn invalid_share(cell: &Cell) -> Option<f64> {
    Some(cell.space_amplification_invalid)
}

pub(crate) fn tombstones(cell: &Cell) -> Option<f64> {
    Some(float(cell.delete_persistence.live_tombstones))
}

/// Returns the mean time of a merge in milliseconds.
pub(crate) fn job_mean_ms(cell: &Cell) -> Option<f64> {
    measured(cell.compaction.latency_us.mean / 1e3)
}

/// Returns the longest time of a merge in milliseconds.
pub(crate) fn job_max_ms(cell: &Cell) -> Option<f64> {
    measured(cell.compaction.latency_us.max / 1e3)
}

/// Returns the longest time of a put in milliseconds.
pub(crate) fn put_max_ms(cell: &Cell) -> Option<f64> {
    measured(cell.put_latency_us.max / 1e3)
}

/// Returns the mean time of a put in microseconds.
pub(crate) fn put_mean_us(cell: &Cell) -> Option<f64> {
    measured(cell.put_latency_us.mean)
}

fn measured(time: f64) -> Option<f64> {
    (time > 0.0).then_some(time)
}
