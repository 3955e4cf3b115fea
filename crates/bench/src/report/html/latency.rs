//! Latency plots with one row of percentiles per series.

use maud::Markup;

use super::plot::frame::Axis;
use super::plot::scale::Scale;
use super::plot::spans::{self, ValueSpan};
use super::value;

const PERCENTILES: [&str; 5] = ["median", "p90", "p99", "p99.9", "longest"];

/// Draws latency percentiles over a logarithmic axis, one row per series. Returns `None` if there is no value.
pub(crate) fn draw_latencies(rows: &[ValueSpan]) -> Option<Markup> {
    let all: Vec<f64> = rows.iter().flat_map(|row| row.values.iter().flatten().copied()).collect();
    if all.is_empty() {
        return None;
    }
    let x = Axis { ticks: 7, ..Axis::new(Scale::log_with_margin(&all), "", value::format_micros) };
    Some(spans::draw_spans("percentiles of latency", x, &PERCENTILES, rows))
}

/// Returns the legend of the percentile marks.
pub(crate) fn render_latency_legend() -> Markup {
    spans::render_span_legend(&PERCENTILES)
}
