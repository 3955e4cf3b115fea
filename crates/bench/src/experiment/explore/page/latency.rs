//! Latencies of puts and compaction jobs, and stalls.

use maud::{Markup, html};

use super::movement::bars;
use super::subject::Subject;
use crate::experiment::explore::result::Cell;
use crate::latency::LatencyUs;
use crate::numbers::float;
use crate::report::html::latency::{draw, legend, values};
use crate::report::html::page::{self, figure, section};
use crate::report::html::plot::spans::Span;
use crate::report::html::value;

/// Percentiles by policy, and stalls where there were any.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Markup {
    let deterministic = subjects.iter().any(|it| it.cell.workload.deterministic);
    let puts = percentiles(subjects, |it| Some(it.put_latency_us));
    let jobs = percentiles(subjects, |it| Some(it.compaction.latency_us));
    let stalled = subjects.iter().any(|it| it.cell.stalls.count > 0);
    let held_up = stalled || subjects.iter().any(|it| it.cell.stalls.throttled_us > 0);
    let threads = bars(subjects, &["on a processor", "waiting"], value::micros, |it| {
        let (all, busy) = (it.compaction.thread_us_total, it.compaction.cpu_us_total);
        (vec![float(busy), float(all.saturating_sub(busy))], value::micros(float(all)))
    });
    let held = bars(subjects, &["waited", "slowed by debt"], value::micros, |it| {
        let parts = vec![float(it.stalls.total_us), float(it.stalls.throttled_us)];
        let text = value::micros(parts.iter().sum());
        (parts, format!("{text} · {}", value::count(float(it.stalls.count))))
    });
    let longest = bars(subjects, &["longest wait"], value::micros, |it| {
        let longest = float(it.stalls.max_us);
        (vec![longest], value::micros(longest))
    });
    let content = html! {
        (legend())
        div class="plots" {
            @if let Some(puts) = puts { (figure("Puts", &puts)) }
            @if let Some(jobs) = jobs { (figure("Jobs of compaction, trivial moves left out", &jobs)) }
            @if subjects.iter().any(|it| it.cell.compaction.thread_us_total > 0) {
                div {
                    (figure("Time of all threads in jobs", &threads))
                    (page::legend([("p0", "on a processor"), ("p1", "waiting, for files mostly")]))
                }
            }
            @if held_up {
                div {
                    (figure("Time of writes that were held up, and how many waited", &held))
                    (page::legend([("p0", "waited"), ("p1", "slowed by debt")]))
                }
            }
            @if stalled {
                (figure("The longest wait of a write", &longest))
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
