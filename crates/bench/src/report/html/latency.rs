//! How long puts and jobs took, and how long writes waited.

use maud::{Markup, html};

use super::movement::bars;
use super::page::{figure, section};
use super::plot::frame::Axis;
use super::plot::scale::Scale;
use super::plot::spans::{self, Span};
use super::subject::Subject;
use super::value;
use crate::experiment::explore::result::Cell;
use crate::latency::LatencyUs;
use crate::numbers::float;

/// What each mark of a row is.
const PERCENTILES: [&str; 5] = ["median", "p90", "p99", "p99.9", "longest"];

/// Percentiles by policy, and stalls where there were any.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Markup {
    let deterministic = subjects.iter().any(|it| it.cell.workload.deterministic);
    let puts = percentiles(subjects, |it| Some(it.put_latency_us));
    let jobs = percentiles(subjects, |it| Some(it.compaction.latency_us));
    let stalled = subjects.iter().any(|it| it.cell.stalls.count > 0);
    let content = html! {
        (legend())
        div class="plots" {
            @if let Some(puts) = puts { (figure("Puts", &puts)) }
            @if let Some(jobs) = jobs { (figure("Jobs of compaction, trivial moves left out", &jobs)) }
            @if stalled {
                (figure("Writes that waited, all together and how many", &bars(
                    subjects, &["waited"], value::micros, |it| {
                        let total = float(it.stalls.total_us);
                        (vec![total], format!("{} · {}", value::micros(total), value::count(float(it.stalls.count))))
                    },
                )))
                (figure("The longest of these waits", &bars(
                    subjects, &["longest wait"], value::micros, |it| {
                        let longest = float(it.stalls.max_us);
                        (vec![longest], value::micros(longest))
                    },
                )))
            }
        }
        @if !stalled { p class="how" { "No write waited for a stall to end." } }
    };
    let how = if deterministic {
        "Times by logarithm. With --deterministic all jobs run on the writer's thread and count as \
         part of the put that makes them due; the clock of the database is driven, so that jobs take \
         no time."
    } else {
        "Times by logarithm."
    };
    section("Latency", how, &content)
}

/// A row of percentiles per policy; none where nothing was measured.
pub(super) fn percentiles(
    subjects: &[Subject<'_>],
    of: impl Fn(&Cell) -> Option<LatencyUs>,
) -> Option<Markup> {
    let rows = subjects.iter().filter_map(|it| {
        let latency = of(it.cell).filter(|latency| latency.max > 0.0)?;
        Some(Span { marker: it.marker, name: it.name.clone(), values: values(&latency) })
    });
    draw(&rows.collect::<Vec<_>>())
}

/// A latency at each of [`PERCENTILES`].
pub(super) fn values(latency: &LatencyUs) -> Vec<Option<f64>> {
    [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(Some).to_vec()
}

/// Rows of percentiles on an axis of times.
pub(super) fn draw(rows: &[Span]) -> Option<Markup> {
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

/// The legend of [`draw`].
pub(super) fn legend() -> Markup {
    spans::legend(&PERCENTILES)
}
