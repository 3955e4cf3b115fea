//! The figures of all policies as one table.

use maud::{Markup, html};

use super::page::section;
use super::subject::{FigureOf, Subject};
use super::value;
use crate::experiment::explore::result::Cell;
use crate::numbers::float;

/// A column: what it is, in what unit, and its value of a cell.
struct Column {
    name: String,
    unit: &'static str,
    /// Whether the lowest figure is the best; else it only describes.
    compared: bool,
    value: FigureOf,
    digits: fn(f64) -> String,
}

fn column(
    name: impl Into<String>,
    unit: &'static str,
    compared: bool,
    digits: fn(f64) -> String,
    value: impl Fn(&Cell) -> Option<f64> + 'static,
) -> Column {
    Column { name: name.into(), unit, compared, value: Box::new(value), digits }
}

fn columns(subjects: &[Subject<'_>]) -> Vec<Column> {
    let two = value::column;
    let one = |x: f64| format!("{x:.1}");
    let whole = |x: f64| format!("{x:.0}");
    let mut columns = vec![
        column("data moved", "× ingested", true, two, |it| Some(it.data_moved_ratio)),
        column("write amplification", "×", true, two, |it| Some(it.write_amplification)),
        column("space amplification", "×", true, two, |it| Some(it.space_amplification)),
    ];
    for alpha in super::lookups::alphas(subjects) {
        let name = format!("I/Os per get, α = {alpha}");
        columns.push(column(name, "blocks", true, two, move |it| {
            super::lookups::row(it, alpha).map(|row| row.ios_per_get)
        }));
    }
    columns.push(column("range lookup", "µs, mean", true, one, |it| {
        (it.range_lookups.ops > 0).then_some(it.range_lookups.latency_us.mean)
    }));
    columns.extend([
        column("put p99.9", "µs", true, one, |it| Some(it.put_latency_us.p999)),
        column("put max", "ms", true, two, |it| Some(it.put_latency_us.max / 1e3)),
        column("stalled", "s", true, two, |it| Some(float(it.stalls.total_us) / 1e6)),
        column("merges", "jobs", false, whole, |it| Some(float(it.compaction.jobs))),
        column("moves", "jobs", false, whole, |it| Some(float(it.compaction.trivial_moves))),
        column("runs", "at the end", true, whole, |it| {
            Some(float(it.levels.iter().map(|level| level.runs).sum()))
        }),
        column("took", "s", false, one, |it| Some(it.elapsed_s)),
    ]);
    columns.retain(|column| subjects.iter().any(|it| (column.value)(it.cell).is_some()));
    columns
}

/// A line per policy, the best of each column marked.
pub(super) fn table(subjects: &[Subject<'_>]) -> Markup {
    let columns = columns(subjects);
    let best: Vec<Option<String>> = columns.iter().map(|column| best(column, subjects)).collect();
    let content = html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "policy" }
                        @for column in &columns {
                            th scope="col" { (column.name) small { (column.unit) } }
                        }
                    }
                }
                tbody {
                    @for it in subjects {
                        tr data-name=(it.name) {
                            th scope="row" { (it.marker.swatch()) (it.name) }
                            @for (column, best) in columns.iter().zip(&best) {
                                (figure(column, it.cell, best.as_deref()))
                            }
                        }
                    }
                }
            }
        }
        details {
            summary { "The policies with all their parameters" }
            ul { @for it in subjects { li { (it.marker.swatch()) code { (it.cell.spec) } } } }
        }
    };
    let how = "The best of each column is marked. A \
               click on a heading sorts.";
    section("Summary", how, &content)
}

fn figure(column: &Column, cell: &Cell, best: Option<&str>) -> Markup {
    let Some(number) = (column.value)(cell) else { return html! { td { "–" } } };
    let text = (column.digits)(number);
    html! {
        @if best == Some(text.as_str()) {
            td class="best" data-value=(number) { strong { (text) } }
        } @else {
            td data-value=(number) { (text) }
        }
    }
}

/// The best figure as it is written, so that what looks alike is marked alike. None where nobody is
/// better than anybody.
fn best(column: &Column, subjects: &[Subject<'_>]) -> Option<String> {
    if !column.compared {
        return None;
    }
    let values: Vec<f64> = subjects.iter().filter_map(|it| (column.value)(it.cell)).collect();
    let low = (column.digits)(values.iter().copied().reduce(f64::min)?);
    values.iter().any(|&other| (column.digits)(other) != low).then_some(low)
}

/// The best policy of the main figures, as tiles at the top.
pub(super) fn tiles(subjects: &[Subject<'_>]) -> Markup {
    if subjects.len() < 2 {
        return html! {};
    }
    let mut tiles = vec![
        tile("least written", subjects, value::times, "write amplification", |it| {
            Some(it.write_amplification)
        }),
        tile("least space", subjects, value::times, "space amplification", |it| {
            Some(it.space_amplification)
        }),
    ];
    for alpha in super::lookups::alphas(subjects) {
        let what = format!("I/Os per get, α = {alpha}");
        tiles.push(tile("fewest reads", subjects, value::plain, &what, move |it| {
            super::lookups::row(it, alpha).map(|row| row.ios_per_get)
        }));
    }
    tiles.push(tile("shortest longest put", subjects, value::micros, "put max", |it| {
        Some(it.put_latency_us.max)
    }));
    html! { div class="tiles" { @for tile in tiles.into_iter().flatten() { (tile) } } }
}

fn tile(
    title: &str,
    subjects: &[Subject<'_>],
    format: fn(f64) -> String,
    what: &str,
    value: impl Fn(&Cell) -> Option<f64>,
) -> Option<Markup> {
    let figures: Vec<(&Subject<'_>, f64)> =
        subjects.iter().filter_map(|it| Some((it, value(it.cell)?))).collect();
    let &(best, figure) = figures.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    // What is written alike is no better.
    let alike = figures.iter().filter(|(_, other)| format(*other) == format(figure)).count() - 1;
    Some(html! {
        div class="tile" {
            span class="what" { (title) }
            span class="who" {
                (best.marker.swatch()) (best.name)
                @if alike > 0 { small { " and " (alike) " more" } }
            }
            span class="figure" { (format(figure)) " " small { (what) } }
        }
    })
}
