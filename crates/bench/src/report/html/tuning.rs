//! The pages of the experiments of `lsmx bench`.

use maud::{Markup, html};

use super::page::{figure, page, section};
use super::plot::bars::{self, Row};
use super::plot::frame::{Axis, Format};
use super::plot::lines::{self, Line};
use super::plot::marker::Marker;
use super::plot::scale::Scale;
use super::plot::spans::Span;
use super::{latency, value};
use crate::experiment::tuning::result::{Cell, Reads, Slice, Tuning};
use crate::numbers::float;
use crate::report::text::bytes;

/// Ticks of an axis, about.
const TICKS: usize = 6;
/// Reads of present keys and of absent ones, in the order in which they are shown.
const WORKLOADS: [(&str, &str); 2] =
    [("readrandom", "present keys"), ("readmissing", "absent keys")];

/// A figure of a cell, if it has it.
type Of = fn(&Cell) -> Option<f64>;
/// A figure of a slice, if it has it.
type OfSlice = fn(&Slice) -> Option<f64>;

/// The page of an experiment.
#[must_use]
pub fn tuning(result: &Tuning) -> String {
    let settings = &result.settings;
    let headline = format!(
        "{}: {} records of {} + {} B, memtable {}, {} compaction threads.",
        result.experiment,
        value::count(float(settings.entries)),
        settings.key_len,
        settings.value_len,
        bytes(settings.memtable_bytes),
        settings.workers,
    );
    let over_time = result.cells.iter().any(|cell| !cell.slices.is_empty());
    let sections = html! {
        @if over_time {
            (slices(&result.cells))
        } @else {
            (table(&result.cells))
            (reads(&result.cells))
        }
        (latencies(&result.cells))
    };
    page(
        &format!("lsmx bench · {}", result.experiment),
        &headline,
        &result.provenance,
        &[],
        &sections,
    )
}

fn table(cells: &[Cell]) -> Markup {
    let header: [(&str, &str); 9] = [
        ("workload", ""),
        ("cache", ""),
        ("of the database", "%"),
        ("filters", ""),
        ("rate", "per s"),
        ("mean", "µs"),
        ("p99", "µs"),
        ("I/Os per get", ""),
        ("false positives", "%"),
    ];
    let of = |cell: &Cell, format: Format, of: fn(&Reads) -> f64| match &cell.reads {
        Some(reads) => html! { td data-value=(of(reads)) { (format(of(reads))) } },
        None => html! { td { "–" } },
    };
    let one: Format = |x| format!("{x:.1}");
    let content = html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "setting" }
                        @for (name, unit) in header { th scope="col" { (name) small { (unit) } } }
                    }
                }
                tbody {
                    @for (cell, marker) in cells.iter().zip(markers(cells)) {
                        tr data-name=(cell.setting) {
                            th scope="row" { (marker.swatch()) (cell.setting) }
                            td { (cell.workload) }
                            (of(cell, value::bytes, |it| float(it.cache_bytes)))
                            (of(cell, value::column, |it| it.cache_fraction * 100.0))
                            (of(cell, value::bytes, |it| float(it.filter_bytes)))
                            td data-value=(cell.ops_per_s) { (value::count(cell.ops_per_s)) }
                            td data-value=(cell.latency_us.mean) { (one(cell.latency_us.mean)) }
                            td data-value=(cell.latency_us.p99) { (one(cell.latency_us.p99)) }
                            (of(cell, value::column, |it| it.ios_per_get))
                            (of(cell, value::plain, |it| it.filter_false_positive_rate * 100.0))
                        }
                    }
                }
            }
        }
    };
    section("Summary", "A click on a heading sorts.", &content)
}

/// A marker for each setting.
fn markers(cells: &[Cell]) -> Vec<Marker> {
    let mut settings: Vec<&str> = Vec::new();
    let of = |cell: &Cell, settings: &[&str]| settings.iter().position(|it| *it == cell.setting);
    for cell in cells {
        if of(cell, &settings).is_none() {
            settings.push(&cell.setting);
        }
    }
    cells.iter().map(|cell| Marker::number(of(cell, &settings).unwrap_or(0))).collect()
}

fn reads(cells: &[Cell]) -> Markup {
    let shown: [(&str, Format, Of); 3] = [
        ("Lookups per second", value::count, |cell| Some(cell.ops_per_s)),
        ("I/Os per get", value::plain, |cell| cell.reads.map(|it| it.ios_per_get)),
        ("Share of filters' answers that were false", value::percent, |cell| {
            cell.reads.filter(|it| it.filter_answers > 0).map(|it| it.filter_false_positive_rate)
        }),
    ];
    let content = html! {
        div class="plots" {
            @for (workload, keys) in WORKLOADS {
                @for (title, format, of) in shown {
                    @let rows = rows(cells, workload, format, of);
                    @if !rows.is_empty() {
                        (figure(&format!("{title}, {keys}"), &bars::draw(title, &[title], format, &rows)))
                    }
                }
            }
        }
    };
    section(
        "What the cache and the filters do",
        "Each setting after as many lookups that are not counted.",
        &content,
    )
}

fn rows(cells: &[Cell], workload: &str, format: Format, of: Of) -> Vec<Row> {
    let of_workload =
        cells.iter().zip(markers(cells)).filter(|(cell, _)| cell.workload == workload);
    let row = |(cell, marker): (&Cell, Marker)| {
        let figure = of(cell)?;
        Some(Row { marker, name: cell.setting.clone(), parts: vec![figure], text: format(figure) })
    };
    of_workload.filter_map(row).collect()
}

fn slices(cells: &[Cell]) -> Markup {
    let shown: [(&str, Format, OfSlice); 3] = [
        ("Puts per second", value::count, |slice| Some(slice.ops_per_s)),
        ("The longest put of each slice", value::micros, |slice| Some(slice.max_us)),
        ("Bytes that compactions wrote, per slice", value::bytes, |slice| {
            slice.compaction_bytes.map(float)
        }),
    ];
    let content = html! {
        div class="plots" {
            @for (title, format, of) in shown {
                @let lines = lines_of(cells, of);
                @if !lines.is_empty() { (figure(title, &plot(title, &lines, format))) }
            }
        }
    };
    let totals: Vec<String> = cells
        .iter()
        .map(|cell| format!("{} {} puts per s in all", cell.engine, value::count(cell.ops_per_s)))
        .collect();
    section("Puts over time", &format!("{}.", totals.join(", ")), &content)
}

fn lines_of(cells: &[Cell], of: OfSlice) -> Vec<Line> {
    let lines = cells.iter().zip(markers(cells)).map(|(cell, marker)| Line {
        marker,
        name: cell.engine.clone(),
        points: cell.slices.iter().filter_map(|slice| Some((slice.end_s, of(slice)?))).collect(),
        whiskers: Vec::new(),
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn plot(says: &str, lines: &[Line], format: Format) -> Markup {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let last = points().map(|point| point.0).fold(0.0, f64::max);
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let x = Axis {
        scale: Scale::from_zero(last, TICKS),
        title: "seconds".to_owned(),
        format: value::plain,
        ticks: TICKS,
    };
    let y =
        Axis { scale: Scale::from_zero(most, TICKS), title: String::new(), format, ticks: TICKS };
    lines::draw(says, x, y, lines)
}

fn latencies(cells: &[Cell]) -> Markup {
    let rows: Vec<Span> = cells
        .iter()
        .zip(markers(cells))
        .filter(|(cell, _)| cell.latency_us.max > 0.0)
        .map(|(cell, marker)| Span {
            marker,
            name: format!("{} · {}", cell.setting, cell.workload),
            values: latency::values(&cell.latency_us),
        })
        .collect();
    let Some(plot) = latency::draw(&rows) else { return html! {} };
    let content = html! {
        (latency::legend())
        div class="plots" { (figure("Latency of an operation", &plot)) }
    };
    section("Latency", "Times by logarithm.", &content)
}
