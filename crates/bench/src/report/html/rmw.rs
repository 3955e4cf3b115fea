//! The page of `lsmx rmw`: the study's plots, ours beside the published ones.

use maud::{Markup, html};

use super::latency;
use super::page::{figure, page, section};
use super::plot::bars::{self, Row};
use super::plot::frame::{Axis, Format};
use super::plot::lines::{self, Line};
use super::plot::marker::Marker;
use super::plot::scale::Scale;
use super::plot::spans::Span;
use super::value;
use crate::experiment::rmw::published;
use crate::experiment::rmw::result::{Cell, Rmw};
use crate::experiment::sweep::SweepValue;
use crate::latency::LatencyUs;
use crate::numbers::float;

/// Ticks of an axis, about.
const TICKS: usize = 6;
/// Markers of published figures begin here, apart from ours.
const PUBLISHED_FROM: usize = 12;

/// A figure of a cell, if it was measured.
type Of = fn(&Cell) -> Option<f64>;

/// How long operations of one kind took.
type Times = fn(&Cell) -> &LatencyUs;

/// A figure and how it is called and written.
struct Shown {
    title: &'static str,
    format: Format,
    of: Of,
}

/// What the study shows of each mode.
const SHOWN: [Shown; 8] = [
    Shown {
        title: "Operations per second",
        format: value::count,
        of: |cell| Some(cell.ops_per_s).filter(|&rate| rate > 0.0),
    },
    Shown { title: "Read, mean", format: value::micros, of: |cell| mean(&cell.read_latency_us) },
    Shown { title: "Update, mean", format: value::micros, of: |cell| mean(&cell.rmw_latency_us) },
    Shown { title: "Scan, mean", format: value::micros, of: |cell| mean(&cell.scan_latency_us) },
    Shown { title: "I/Os per read", format: value::plain, of: |cell| cell.ios_per_read },
    Shown {
        title: "Bytes read and written by calls on files",
        format: value::bytes,
        of: |cell| Some(float(cell.read_bytes + cell.written_bytes)),
    },
    Shown {
        title: "Bytes that the device read and wrote",
        format: value::bytes,
        of: |cell| cell.device.map(|io| float(io.read_bytes + io.written_bytes)),
    },
    Shown {
        title: "Storage at the end",
        format: value::bytes,
        of: |cell| Some(float(cell.storage_bytes)),
    },
];

fn mean(latency: &LatencyUs) -> Option<f64> {
    Some(latency.mean).filter(|_| latency.max > 0.0)
}

/// The page of a run.
#[must_use]
pub fn rmw(result: &Rmw) -> String {
    let names = names(&result.cells);
    let varied = varied(&result.cells);
    let sections = html! {
        (table(result, &names))
        @if let Some((key, of)) = varied {
            (curves(result, &names, &key, of))
        } @else {
            (compared(result, &names))
        }
        (latencies(&result.cells, &names))
        (published_table(result))
    };
    let headline = result.cells.first().map_or_else(String::new, |first| {
        let it = &first.workload;
        format!(
            "Updates of {} B in {} records of {} + {} B, mix {}, zipf {}, memory {}{}.",
            it.delta_len,
            value::count(float(it.records)),
            it.key_len,
            it.value_len,
            it.mix,
            it.zipf,
            value::bytes(float(it.memory_budget)),
            if it.direct_io { ", past the page cache" } else { "" },
        )
    });
    page("lsmx rmw", &headline, &result.provenance, &[], &sections)
}

/// Where a cell stands on the axis of what is varied.
type Place = fn(&Cell) -> f64;

/// What differs from cell to cell besides engine, mode and base: what an experiment varies, or the share of
/// reads.
fn varied(cells: &[Cell]) -> Option<(String, Place)> {
    let first = cells.first()?;
    if let Some((key, _)) = first.sweep.0.first() {
        return Some((key.replace('_', " "), |cell| match cell.sweep.0.first() {
            Some((_, SweepValue::Whole(n))) => float(*n),
            Some((_, SweepValue::Real(x))) => *x,
            _ => 0.0,
        }));
    }
    let same = |cell: &Cell| (cell.read_ratio - first.read_ratio).abs() < f64::EPSILON;
    (!cells.iter().all(same))
        .then(|| ("share of reads".to_owned(), (|cell: &Cell| cell.read_ratio) as Place))
}

/// Engine, mode and base of the cells, each once.
fn names(cells: &[Cell]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for cell in cells {
        let name = cell.name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn marker(names: &[String], cell: &Cell) -> Marker {
    Marker::number(names.iter().position(|name| *name == cell.name()).unwrap_or(0))
}

/// What a cell is called among all of them.
fn long_name(cell: &Cell) -> String {
    let sweep = if cell.sweep.is_empty() {
        format!("{} reads", value::percent(cell.read_ratio))
    } else {
        cell.sweep.to_string()
    };
    format!("{} · {sweep}", cell.name())
}

fn table(result: &Rmw, names: &[String]) -> Markup {
    let content = html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "cell" }
                        @for shown in SHOWN { th scope="col" { (shown.title) } }
                        th scope="col" { "Memory" small { "resident" } }
                    }
                }
                tbody {
                    @for cell in &result.cells {
                        tr data-name=(long_name(cell)) {
                            th scope="row" { (marker(names, cell).swatch()) (long_name(cell)) }
                            @for shown in SHOWN { (column((shown.of)(cell), shown.format)) }
                            (column(cell.memory_bytes.map(float), value::bytes))
                        }
                    }
                }
            }
        }
    };
    let checked = result.cells.iter().map(|cell| cell.checked_records).min().unwrap_or(0);
    let how = format!(
        "In each cell {checked} records or more were compared with what the operations amount to. A click on a \
         heading sorts."
    );
    section("Summary", &how, &content)
}

fn column(figure: Option<f64>, format: Format) -> Markup {
    html! {
        @match figure {
            Some(figure) => { td data-value=(figure) { (format(figure)) } }
            None => { td { "–" } }
        }
    }
}

/// Bars of each figure.
fn compared(result: &Rmw, names: &[String]) -> Markup {
    let content = html! {
        div class="plots" {
            @for shown in SHOWN {
                @let rows = bar_rows(&result.cells, names, &shown);
                @if !rows.is_empty() {
                    (figure(shown.title, &bars::draw(shown.title, &[shown.title], shown.format, &rows)))
                }
            }
        }
    };
    section(
        "What each mode does and costs",
        "Files and device with the settling afterwards.",
        &content,
    )
}

fn bar_rows(cells: &[Cell], names: &[String], shown: &Shown) -> Vec<Row> {
    let row = |cell: &Cell| {
        let figure = (shown.of)(cell)?;
        let text = (shown.format)(figure);
        Some(Row { marker: marker(names, cell), name: cell.name(), parts: vec![figure], text })
    };
    cells.iter().filter_map(row).collect()
}

/// Lines of each figure over what is varied.
fn curves(result: &Rmw, names: &[String], key: &str, place: Place) -> Markup {
    let experiment = result.experiment.as_deref().unwrap_or_default();
    let content = html! {
        div class="plots" {
            @for shown in SHOWN {
                @let lines = our_lines(&result.cells, names, &shown, place);
                @if !lines.is_empty() {
                    (figure(shown.title, &plot(shown.title, key, &lines, shown.format)))
                }
            }
            @if result.cells.iter().any(|cell| cell.recovery.is_some()) {
                @let opening = Shown {
                    title: "Opening what a kill leaves, seconds",
                    format: value::plain,
                    of: |cell| cell.recovery.map(|it| it.open_s),
                };
                @let lines = our_lines(&result.cells, names, &opening, place);
                (figure(opening.title, &plot(opening.title, key, &lines, opening.format)))
            }
            @let published = published::curves(match experiment {
                "" if key == "share of reads" => "read-ratio",
                other => other,
            });
            @if !published.is_empty() {
                @let lines: Vec<Line> = (PUBLISHED_FROM..).zip(published).map(|(number, (name, points))| Line {
                    marker: Marker::number(number),
                    name: (*name).to_owned(),
                    points: points.iter().map(|&(x, kops)| (x, kops * 1e3)).collect(),
                    whiskers: Vec::new(),
                }).collect();
                (figure("Operations per second, as published", &plot("published rates", key, &lines, value::count)))
            }
        }
    };
    section(&format!("Over {key}"), "Files and device with the settling afterwards.", &content)
}

fn our_lines(cells: &[Cell], names: &[String], shown: &Shown, place: Place) -> Vec<Line> {
    let lines = names.iter().enumerate().map(|(number, name)| {
        let of_name = cells.iter().filter(|cell| cell.name() == *name);
        let points = of_name.filter_map(|cell| Some((place(cell), (shown.of)(cell)?)));
        Line {
            marker: Marker::number(number),
            name: name.clone(),
            points: points.collect(),
            whiskers: Vec::new(),
        }
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn plot(says: &str, key: &str, lines: &[Line], format: Format) -> Markup {
    let xs: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    let most =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)).fold(0.0, f64::max);
    let mut ticks = xs.clone();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let x = Axis {
        scale: Scale::fitting(&xs).with_ticks(ticks),
        title: key.to_owned(),
        format: value::count,
        ticks: TICKS,
    };
    let y =
        Axis { scale: Scale::from_zero(most, TICKS), title: String::new(), format, ticks: TICKS };
    lines::draw(says, x, y, lines)
}

fn latencies(cells: &[Cell], names: &[String]) -> Markup {
    let spans = |of: Times| -> Option<Markup> {
        let measured = cells.iter().filter(|cell| of(cell).max > 0.0);
        let rows = measured.map(|cell| Span {
            marker: marker(names, cell),
            name: long_name(cell),
            values: latency::values(of(cell)),
        });
        latency::draw(&rows.collect::<Vec<_>>())
    };
    let kinds: [(&str, Times); 4] = [
        ("Reads", |cell| &cell.read_latency_us),
        ("Updates of a field", |cell| &cell.rmw_latency_us),
        ("Puts", |cell| &cell.put_latency_us),
        ("Scans", |cell| &cell.scan_latency_us),
    ];
    let content = html! {
        (latency::legend())
        div class="plots" {
            @for (title, of) in kinds {
                @if let Some(plot) = spans(of) { (figure(title, &plot)) }
            }
        }
    };
    section("Latency", "Times by logarithm.", &content)
}

/// The published figures with the same ratios of ours: machines differ, ratios can be compared.
fn published_table(result: &Rmw) -> Markup {
    let mix = result.cells.first().map_or("", |cell| cell.workload.mix.as_str());
    let rates: Vec<Row> = (PUBLISHED_FROM..)
        .zip(published::of_mix(mix))
        .map(|(number, (name, kops))| Row {
            marker: Marker::number(number),
            name: name.to_owned(),
            parts: vec![kops * 1e3],
            text: value::count(kops * 1e3),
        })
        .collect();
    let header: [(&str, &str); 7] = [
        ("rate", "per s"),
        ("read, mean", "µs"),
        ("p99", "µs"),
        ("update, mean", "µs"),
        ("p99", "µs"),
        ("device", "GiB"),
        ("storage", "GiB"),
    ];
    let content = html! {
        @if !rates.is_empty() {
            div class="plots" {
                (figure("Operations per second, as published", &bars::draw("published rates", &["rate"], value::count, &rates)))
            }
        }
        div class="scroll" {
            table {
                thead {
                    tr {
                        th scope="col" { "published, 10 % reads" }
                        @for (name, unit) in header { th scope="col" { (name) small { (unit) } } }
                    }
                }
                tbody {
                    @for it in published::MAIN {
                        tr {
                            th scope="row" { (it.name) " " small { (it.mode) " · " (it.base) } }
                            td { (value::count(it.kops * 1e3)) }
                            td { (value::plain(it.read_us.0)) }
                            td { (value::plain(it.read_us.1)) }
                            td { (value::plain(it.rmw_us.0)) }
                            td { (value::plain(it.rmw_us.1)) }
                            td { (value::plain(it.device_gib)) }
                            td { (value::plain(it.storage_gib)) }
                        }
                    }
                }
            }
        }
    };
    let how = format!(
        "Figures of the study of key-delta separation, on its own machine: {} GiB of records of 24 + 1000 B, {} million \
         operations, zipf 0.99, 4 GiB of memory. Machines differ; compare ratios.",
        published::LOADED_GIB,
        published::MOPS
    );
    section("What was published", &how, &content)
}
