//! Plots of latencies, with a row of percentiles per series.

use maud::Markup;

use super::plot::frame::Axis;
use super::plot::scale::Scale;
use super::plot::spans::{self, Span};
use super::value;

const PERCENTILES: [&str; 5] = ["median", "p90", "p99", "p99.9", "longest"];

/// Draws rows over a logarithmic axis. Returns `None` without values.
pub(crate) fn draw(rows: &[Span]) -> Option<Markup> {
    let all: Vec<f64> = rows.iter().flat_map(|row| row.values.iter().flatten().copied()).collect();
    if all.is_empty() {
        return None;
    }
    let x = Axis { ticks: 7, ..Axis::new(Scale::log_around(&all), "", value::micros) };
    Some(spans::draw("percentiles of latency", x, &PERCENTILES, rows))
}

/// Returns the legend of [`draw`].
pub(crate) fn legend() -> Markup {
    spans::legend(&PERCENTILES)
}
