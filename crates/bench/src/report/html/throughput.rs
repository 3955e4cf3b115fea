//! The page of `lsmx bench`: rates, latencies and amplifications by workload and engine.

use maud::{Markup, html};

use super::page::{figure, page, section};
use super::plot::bars::{self, Row};
use super::plot::frame::Format;
use super::plot::marker::Marker;
use super::plot::spans::Span;
use super::{latency, value};
use crate::experiment::throughput::result::{Cell, Throughput};
use crate::numbers::float;
use crate::report::text::bytes;

/// A cell with what it is called and the marker of its engine.
struct Subject<'a> {
    name: String,
    marker: Marker,
    cell: &'a Cell,
}

/// An amplification of a cell, if it wrote anything.
type Amplification = fn(&Cell) -> Option<f64>;

/// The page of a benchmark.
#[must_use]
pub fn throughput(result: &Throughput) -> String {
    let subjects = subjects(&result.cells);
    let settings = &result.settings;
    let rate =
        settings.rate.map_or(String::new(), |rate| format!(", {} per s due", value::count(rate)));
    let headline = format!(
        "{} records of {} + {} B, memtable {}, cache {}, {} compaction threads{rate}.",
        value::count(float(settings.entries)),
        settings.key_len,
        settings.value_len,
        bytes(settings.memtable_bytes),
        bytes(settings.block_cache_bytes),
        settings.workers,
    );
    let sections = html! {
        (table(&subjects))
        (rates(&subjects))
        (latencies(&subjects))
        (amplifications(&subjects))
    };
    page("lsmx bench", &headline, &result.provenance, &[], &sections)
}

/// Cells are called by their workload, with the engine and the threads where these differ.
fn subjects(cells: &[Cell]) -> Vec<Subject<'_>> {
    let mut engines: Vec<&str> = Vec::new();
    for cell in cells {
        if !engines.contains(&cell.engine.as_str()) {
            engines.push(&cell.engine);
        }
    }
    // Most workloads run with one number of threads.
    let threads_differ = |cell: &Cell| {
        let same = |it: &&Cell| it.workload == cell.workload && it.engine == cell.engine;
        cells.iter().filter(same).any(|it| it.threads != cell.threads)
    };
    cells
        .iter()
        .map(|cell| {
            let mut name = cell.workload.clone();
            if engines.len() > 1 {
                name.push_str(&format!(" · {}", cell.engine));
            }
            if threads_differ(cell) {
                name.push_str(&format!(" · {} thr", cell.threads));
            }
            let engine = engines.iter().position(|engine| *engine == cell.engine);
            Subject { name, marker: Marker::number(engine.unwrap_or(0)), cell }
        })
        .collect()
}

fn table(subjects: &[Subject<'_>]) -> Markup {
    let header: [(&str, &str); 11] = [
        ("threads", ""),
        ("operations", ""),
        ("rate", "per s"),
        ("unsettled", "per s"),
        ("mean", "µs"),
        ("median", "µs"),
        ("p99", "µs"),
        ("p99.9", "µs"),
        ("max", "ms"),
        ("write amplification", "with the log, ×"),
        ("space amplification", "×"),
    ];
    let content = html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "workload" }
                        @for (name, unit) in header { th scope="col" { (name) small { (unit) } } }
                    }
                }
                tbody {
                    @for it in subjects {
                        tr data-name=(it.name) {
                            th scope="row" { (it.marker.swatch()) (it.name) }
                            @for (figure, text) in figures(it.cell) {
                                @match figure {
                                    Some(figure) => { td data-value=(figure) { (text(figure)) } }
                                    None => { td { "–" } }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    section(
        "Summary",
        "Loads count until the tree has settled. A click on a heading sorts.",
        &content,
    )
}

fn figures(cell: &Cell) -> [(Option<f64>, Format); 11] {
    let latency = &cell.latency_us;
    let one: Format = |x| format!("{x:.1}");
    [
        (Some(float(cell.threads)), value::count),
        (Some(float(cell.ops)), value::count),
        (Some(cell.ops_per_s), value::count),
        (Some(cell.ops_per_s_unsettled), value::count),
        (Some(latency.mean), one),
        (Some(latency.p50), one),
        (Some(latency.p99), one),
        (Some(latency.p999), one),
        (Some(latency.max / 1e3), value::column),
        (cell.device_write_amplification, value::column),
        (cell.space_amplification, value::column),
    ]
}

/// One plot, or with several engines one per workload: their rates are what is compared.
fn rates(subjects: &[Subject<'_>]) -> Markup {
    let one = subjects.iter().all(|it| it.cell.engine == subjects[0].cell.engine);
    let mut workloads: Vec<&str> = Vec::new();
    for it in subjects {
        if !workloads.contains(&it.cell.workload.as_str()) {
            workloads.push(&it.cell.workload);
        }
    }
    let rate = |cell: &Cell| Some(cell.ops_per_s);
    let content = html! {
        div class="plots" {
            @if one {
                @let plot = bars(subjects, "operations per second", value::count, rate);
                (figure("Operations per second", &plot))
            } @else {
                @for workload in workloads {
                    @let plot = bars(subjects, workload, value::count, |cell| {
                        rate(cell).filter(|_| cell.workload == workload)
                    });
                    (figure(&format!("Operations per second, {workload}"), &plot))
                }
            }
        }
    };
    section("Rates", "More is better.", &content)
}

fn latencies(subjects: &[Subject<'_>]) -> Markup {
    let rows: Vec<Span> = subjects
        .iter()
        .filter(|it| it.cell.latency_us.max > 0.0)
        .map(|it| {
            let values = latency::values(&it.cell.latency_us);
            Span { marker: it.marker, name: it.name.clone(), values }
        })
        .collect();
    let Some(plot) = latency::draw(&rows) else { return html! {} };
    let content = html! {
        (latency::legend())
        div class="plots" { (figure("Latency of an operation", &plot)) }
    };
    section("Latency", "Times by logarithm.", &content)
}

fn amplifications(subjects: &[Subject<'_>]) -> Markup {
    let plots: [(&str, Amplification); 2] = [
        ("Write amplification, with the log, ÷ bytes of puts", |cell| {
            cell.device_write_amplification
        }),
        ("Space amplification: table bytes ÷ records", |cell| cell.space_amplification),
    ];
    let shown: Vec<_> = plots
        .into_iter()
        .filter(|(_, of)| subjects.iter().any(|it| of(it.cell).is_some()))
        .collect();
    if shown.is_empty() {
        return html! {};
    }
    let content = html! {
        div class="plots" {
            @for (title, of) in shown { (figure(title, &bars(subjects, title, value::times, of))) }
        }
    };
    section("Amplification", "Less is better. Workloads that write nothing are left out.", &content)
}

/// Bars of the cells that have the figure.
fn bars(
    subjects: &[Subject<'_>],
    what: &str,
    format: Format,
    of: impl Fn(&Cell) -> Option<f64>,
) -> Markup {
    let rows: Vec<Row> = subjects
        .iter()
        .filter_map(|it| {
            let figure = of(it.cell)?;
            let name = it.name.clone();
            Some(Row { marker: it.marker, name, parts: vec![figure], text: format(figure) })
        })
        .collect();
    bars::draw(what, &[what], format, &rows)
}
