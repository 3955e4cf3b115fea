//! Plots of latencies: a row of percentiles per series.

use maud::Markup;

use super::plot::frame::Axis;
use super::plot::scale::Scale;
use super::plot::spans::{self, Span};
use super::value;
use crate::latency::LatencyUs;

/// Meaning of each mark of a row.
const PERCENTILES: [&str; 5] = ["median", "p90", "p99", "p99.9", "longest"];

/// Returns a latency at each of [`PERCENTILES`].
pub(crate) fn values(latency: &LatencyUs) -> Vec<Option<f64>> {
    [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(Some).to_vec()
}

/// Draws rows of percentiles over a logarithmic axis of time. Returns `None` without values.
pub(crate) fn draw(rows: &[Span]) -> Option<Markup> {
    let all: Vec<f64> = rows.iter().flat_map(|row| row.values.iter().flatten().copied()).collect();
    if all.is_empty() {
        return None;
    }
    let x = Axis {
        scale: Scale::log_around(&all),
        title: String::new(),
        format: value::micros,
        ticks: 7,
    };
    Some(spans::draw("percentiles of latency", x, &PERCENTILES, rows))
}

/// Returns the legend of [`draw`].
pub(crate) fn legend() -> Markup {
    spans::legend(&PERCENTILES)
}
