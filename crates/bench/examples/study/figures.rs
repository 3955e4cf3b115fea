//! Computes figures from measurements.

use crate::results::ResultCell;

/// Numbers with labels, or `None` if at least one number was not measured.
pub(crate) type Figures = Option<Vec<(String, f64)>>;
/// Function that extracts a number from a measurement. Returns `None` if the number was not measured.
pub(crate) type Measure = fn(&ResultCell) -> Option<f64>;

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

/// Returns `above ÷ below`, or `None` if a number is missing or `below` is 0.
pub(crate) fn divide(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    let (above, below) = (above?, below?);
    (below != 0.0).then(|| above / below)
}

pub(crate) fn flushes(cell: &ResultCell) -> Option<f64> {
    cell.number("flushes")
}

/// Returns the ratio of bytes that compactions read to ingested bytes.
pub(crate) fn read_ratio(cell: &ResultCell) -> Option<f64> {
    divide(cell.number("compaction.read_bytes"), cell.number("ingested_bytes"))
}

/// Returns the ratio of bytes that compactions wrote to ingested bytes.
pub(crate) fn written_ratio(cell: &ResultCell) -> Option<f64> {
    divide(cell.number("compaction.written_bytes"), cell.number("ingested_bytes"))
}

/// Returns the ratio of bytes that compactions read and wrote to ingested bytes.
pub(crate) fn data_moved_ratio(cell: &ResultCell) -> Option<f64> {
    cell.number("data_moved_ratio")
}

/// Returns the ratio of bytes that compactions wrote to bytes of live data.
pub(crate) fn write_amplification(cell: &ResultCell) -> Option<f64> {
    cell.number("compaction_write_amplification")
}

pub(crate) fn jobs(cell: &ResultCell) -> Option<f64> {
    cell.number("compaction.jobs")
}

pub(crate) fn bytes_per_job(cell: &ResultCell) -> Option<f64> {
    let bytes = cell.number("compaction.read_bytes")? + cell.number("compaction.written_bytes")?;
    divide(Some(bytes), jobs(cell))
}

/// Returns the ratio of the processor time of compactions to their elapsed time, or `None` for a result without times.
pub(crate) fn cpu_share(cell: &ResultCell) -> Option<f64> {
    cell.number("compaction.cpu_fraction").filter(|share| *share > 0.0)
}

pub(crate) fn runs(cell: &ResultCell) -> Option<f64> {
    cell.sum("levels[", "].runs")
}

pub(crate) fn invalid_share(cell: &ResultCell) -> Option<f64> {
    cell.number("space_amplification_invalid")
}

pub(crate) fn tombstones(cell: &ResultCell) -> Option<f64> {
    cell.number("delete_persistence.live_tombstones")
}

/// Returns the mean duration of a compaction in milliseconds.
pub(crate) fn job_mean_ms(cell: &ResultCell) -> Option<f64> {
    time_ms(cell, "compaction.latency_us.mean")
}

/// Returns the longest duration of a compaction in milliseconds.
pub(crate) fn job_max_ms(cell: &ResultCell) -> Option<f64> {
    time_ms(cell, "compaction.latency_us.max")
}

/// Returns the longest latency of a put in milliseconds.
pub(crate) fn put_max_ms(cell: &ResultCell) -> Option<f64> {
    time_ms(cell, "put_latency_us.max")
}

/// Returns the mean latency of a put in microseconds.
pub(crate) fn put_mean_us(cell: &ResultCell) -> Option<f64> {
    time_us(cell, "put_latency_us.mean")
}

/// Returns the mean number of blocks that a lookup reads if the fraction `alpha` of the lookups searches absent keys.
pub(crate) fn ios(cell: &ResultCell, alpha: f64) -> Option<f64> {
    cell.number(&lookup_column(alpha, "ios_per_get"))
}

/// Returns the ratio of the number of blocks read to the number of lookups of present keys.
pub(crate) fn read_amplification(cell: &ResultCell, alpha: f64) -> Option<f64> {
    cell.number(&lookup_column(alpha, "read_amplification"))
}

/// Returns the mean latency of a lookup in microseconds.
pub(crate) fn lookup_us(cell: &ResultCell, alpha: f64) -> Option<f64> {
    time_us(cell, &lookup_column(alpha, "latency_us.mean"))
}

/// Returns the mean latency of a range lookup in microseconds.
pub(crate) fn range_us(cell: &ResultCell, selectivity: f64) -> Option<f64> {
    time_us(cell, &range_column(selectivity))
}

/// Returns the column with the mean latency of a range lookup in microseconds.
pub(crate) fn range_column(selectivity: f64) -> String {
    let selectivity = format_json_number(selectivity);
    format!("range_lookups.by_selectivity[{selectivity}].latency_us.mean")
}

pub(crate) fn lookup_column(alpha: f64, name: &str) -> String {
    format!("point_lookups[{}].{name}", format_json_number(alpha))
}

/// Formats a number as in JSON. Column names contain numbers in this format.
fn format_json_number(number: f64) -> String {
    serde_json::Value::from(number).to_string()
}

/// Returns `None` if the time is 0. Results contain 0 for a time that was not measured.
fn time_us(cell: &ResultCell, column: &str) -> Option<f64> {
    cell.number(column).filter(|time| *time > 0.0)
}

fn time_ms(cell: &ResultCell, column: &str) -> Option<f64> {
    time_us(cell, column).map(|us| us / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_names_contain_numbers_as_in_json() {
        let numbers = [0.0, 0.4, 1.0, 1e-5].map(format_json_number);
        assert_eq!(numbers, ["0.0", "0.4", "1.0", "0.00001"]);
        assert_eq!(lookup_column(1.0, "ios_per_get"), "point_lookups[1.0].ios_per_get");
    }
}
