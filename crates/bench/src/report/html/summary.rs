//! The figures of all policies as one table.

use maud::{Markup, html};

use super::lookups;
use super::page::section;
use super::plot::frame::Format;
use super::subject::{FigureOf, Subject, spread};
use super::value;
use crate::experiment::explore::result::Cell;
use crate::numbers::float;

/// A column: what it is, in what unit, and its value of a cell.
struct Column {
    name: String,
    unit: &'static str,
    /// Whether the lowest figure is the best; else it only describes.
    compared: bool,
    digits: Format,
    /// Flat name of what is measured.
    metric: String,
    /// What is shown is so much of what is measured.
    share: f64,
    measured: FigureOf,
}

impl Column {
    fn shown(&self, cell: &Cell) -> Option<f64> {
        (self.measured)(cell).map(|measured| measured * self.share)
    }

    /// From the lowest to the highest of the repetitions.
    fn spread(&self, cell: &Cell) -> Option<String> {
        let (low, high) = spread(cell, &self.metric)?;
        let text = |measured: f64| (self.digits)(measured * self.share);
        Some(format!("{} – {}", text(low), text(high)))
    }
}

fn columns(subjects: &[Subject<'_>]) -> Vec<Column> {
    let column = |name: &str, unit, digits, metric: &str, measured: FigureOf| Column {
        name: name.to_owned(),
        unit,
        compared: true,
        digits,
        metric: metric.to_owned(),
        share: 1.0,
        measured,
    };
    let two: Format = value::column;
    let one: Format = |x| format!("{x:.1}");
    let whole: Format = |x| format!("{x:.0}");
    let mut columns = vec![
        column(
            "data moved",
            "× ingested",
            two,
            "data_moved_ratio",
            Box::new(|it| Some(it.data_moved_ratio)),
        ),
        column(
            "write amplification",
            "×",
            two,
            "write_amplification",
            Box::new(|it| Some(it.write_amplification)),
        ),
        column(
            "space amplification",
            "×",
            two,
            "space_amplification",
            Box::new(|it| Some(it.space_amplification)),
        ),
    ];
    for alpha in lookups::alphas(subjects) {
        columns.push(column(
            &format!("I/Os per get, α = {alpha}"),
            "blocks",
            two,
            &lookups::metric(alpha, "ios_per_get"),
            Box::new(move |it| lookups::row(it, alpha).map(|row| row.ios_per_get)),
        ));
    }
    columns.push(column(
        "range lookup",
        "µs, mean",
        one,
        "range_lookups.latency_us.mean",
        Box::new(|it| Some(it.range_lookups.latency_us.mean).filter(|&us| us > 0.0)),
    ));
    let p999 = "put_latency_us.p999";
    let measured = |of: fn(&Cell) -> f64| -> FigureOf {
        Box::new(move |it| (!it.is_simulated).then(|| of(it)))
    };
    columns.push(column("put p99.9", "µs", one, p999, measured(|it| it.put_latency_us.p999)));
    columns.push(Column {
        share: 1e-3,
        ..column("put max", "ms", two, "put_latency_us.max", measured(|it| it.put_latency_us.max))
    });
    columns.push(Column {
        share: 1e-6,
        ..column("stalled", "s", two, "stalls.total_us", measured(|it| float(it.stalls.total_us)))
    });
    let runs: FigureOf = Box::new(|it| Some(float(it.levels.iter().map(|level| level.runs).sum())));
    columns.push(column("runs", "at the end", whole, "", runs));
    let jobs: FigureOf = Box::new(|it| Some(float(it.compaction.jobs)));
    let moves: FigureOf = Box::new(|it| Some(float(it.compaction.trivial_moves)));
    let took: FigureOf = Box::new(|it| Some(it.elapsed_s));
    let described = [
        column("merges", "jobs", whole, "compaction.jobs", jobs),
        column("moves", "jobs", whole, "compaction.trivial_moves", moves),
        column("took", "s", one, "elapsed_s", took),
    ];
    columns.extend(described.map(|column| Column { compared: false, ..column }));
    columns.retain(|column| subjects.iter().any(|it| column.shown(it.cell).is_some()));
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
    let repeats = subjects.iter().find_map(|it| it.cell.repeats.as_ref());
    let medians = repeats.map_or(String::new(), |repeats| {
        let count = repeats.seeds.len();
        format!("Medians of {count} repetitions, below each its lowest and highest value. ")
    });
    let how = format!("{medians}The best of each column is marked. A click on a heading sorts.");
    section("Summary", &how, &content)
}

fn figure(column: &Column, cell: &Cell, best: Option<&str>) -> Markup {
    let Some(number) = column.shown(cell) else { return html! { td { "–" } } };
    let text = (column.digits)(number);
    let range = html! {
        @if let Some(spread) = column.spread(cell) { small class="spread" { (spread) } }
    };
    html! {
        @if best == Some(text.as_str()) {
            td class="best" data-value=(number) { strong { (text) } (range) }
        } @else {
            td data-value=(number) { (text) (range) }
        }
    }
}

/// The best figure as it is written, so that what looks alike is marked alike. None where nobody is
/// better than anybody.
fn best(column: &Column, subjects: &[Subject<'_>]) -> Option<String> {
    if !column.compared {
        return None;
    }
    let values: Vec<f64> = subjects.iter().filter_map(|it| column.shown(it.cell)).collect();
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
    for alpha in lookups::alphas(subjects) {
        let what = format!("I/Os per get, α = {alpha}");
        tiles.push(tile("fewest reads", subjects, value::plain, &what, move |it| {
            lookups::row(it, alpha).map(|row| row.ios_per_get)
        }));
    }
    tiles.push(tile("shortest longest put", subjects, value::micros, "put max", |it| {
        Some(it.put_latency_us.max).filter(|_| !it.is_simulated)
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
