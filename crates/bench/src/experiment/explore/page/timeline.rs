//! The shape of the trees over time, and what it cost to give it to them.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::subject::Subject;
use crate::experiment::explore::result::{HistoryPoint, LevelPoint};
use crate::numbers::float;
use crate::report::html::page::{figure, legend, section};
use crate::report::html::plot::areas::{self, Layers};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::lines::{self, Line};
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Colours of levels; the style sheet has as many. Deeper levels share the last.
const LEVEL_COLORS: u64 = 8;

/// A panel per policy with bytes and runs by level, all on the same axes; none without a history.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Option<Markup> {
    let points = || subjects.iter().flat_map(|it| &it.cell.history);
    let levels: BTreeSet<u64> =
        points().flat_map(|point| point.levels.iter().map(|level| level.level)).collect();
    if levels.is_empty() {
        return None;
    }
    let levels: Vec<u64> = levels.into_iter().collect();
    let axes = Axes {
        ingested: float(points().map(|point| point.ingested_bytes).max().unwrap_or(0)),
        bytes: float(points().map(|point| sum(point, |level| level.bytes)).max().unwrap_or(0)),
        runs: float(points().map(|point| sum(point, |level| level.runs)).max().unwrap_or(0)),
    };
    let content = html! {
        (levels_legend(&levels))
        div class="chooser" hidden {
            label { "Side by side: " select {} } " " label { "and " select {} } " "
            button type="button" { "all" }
        }
        div class="panels" {
            @for it in subjects {
                figure data-name=(it.name) {
                    figcaption { (it.marker.swatch()) (it.name) }
                    (panel(it, &levels, &axes))
                }
            }
        }
        (at_the_end(subjects))
        div class="plots" { (figure("Bytes written by flushes and compaction", &written(subjects, axes.ingested))) }
    };
    let how = "Above, the bytes of the live files, below, the sorted runs, both by level, while the \
               database was written; all panels have the same axes. The right edge shows the settling.";
    Some(section("The tree over time", how, &content))
}

/// How far the axes of all panels reach.
struct Axes {
    ingested: f64,
    bytes: f64,
    runs: f64,
}

fn sum(point: &HistoryPoint, of: fn(&LevelPoint) -> u64) -> u64 {
    point.levels.iter().map(of).sum()
}

fn panel(subject: &Subject<'_>, levels: &[u64], axes: &Axes) -> Markup {
    let x = Axis {
        scale: Scale::to_edge(axes.ingested).in_binary_units(),
        title: "ingested".to_owned(),
        format: value::bytes,
        ticks: 4,
    };
    let bytes = Axis {
        scale: Scale::bytes_from_zero(axes.bytes, 4),
        title: "bytes".to_owned(),
        format: value::bytes,
        ticks: 4,
    };
    let runs = Axis {
        scale: Scale::from_zero(axes.runs, 3),
        title: "runs".to_owned(),
        format: value::count,
        ticks: 3,
    };
    let history = &subject.cell.history;
    let says = format!("bytes and runs by level of {} over bytes ingested", subject.name);
    areas::draw(
        &says,
        &x,
        (bytes, &layers(history, levels, |level| level.bytes)),
        (runs, &layers(history, levels, |level| level.runs)),
    )
}

/// The deepest level at the bottom: it changes least.
fn layers(history: &[HistoryPoint], levels: &[u64], of: fn(&LevelPoint) -> u64) -> Layers {
    let from_below = || levels.iter().rev();
    let amount = |point: &HistoryPoint, number: u64| {
        point
            .levels
            .iter()
            .find(|level| level.level == number)
            .map_or(0.0, |level| float(of(level)))
    };
    Layers {
        names: from_below().map(|&level| (class(level), format!("L{level}"))).collect(),
        steps: history
            .iter()
            .map(|point| {
                let amounts = from_below().map(|&level| amount(point, level)).collect();
                (float(point.ingested_bytes), amounts)
            })
            .collect(),
    }
}

fn class(level: u64) -> String {
    format!("l{}", level.min(LEVEL_COLORS - 1))
}

fn levels_legend(levels: &[u64]) -> Markup {
    let names: Vec<(String, String)> =
        levels.iter().map(|&level| (class(level), format!("L{level}"))).collect();
    legend(names.iter().map(|(class, name)| (class.as_str(), name.as_str())))
}

/// The levels of the last point of each history, with what the panels do not show.
fn at_the_end(subjects: &[Subject<'_>]) -> Markup {
    html! {
        details {
            summary { "Levels at the end, in figures" }
            div class="scroll" {
                table {
                    thead {
                        tr {
                            th scope="col" { "policy" }
                            @for name in ["level", "runs", "files", "bytes", "entries", "tombstones"] {
                                th scope="col" { (name) }
                            }
                        }
                    }
                    tbody {
                        @for it in subjects {
                            @for level in &it.cell.levels {
                                tr {
                                    th scope="row" { (it.name) }
                                    td { "L" (level.level) }
                                    td { (level.runs) }
                                    td { (level.files) }
                                    td { (value::bytes(float(level.bytes))) }
                                    td { (level.entries) }
                                    td { (level.tombstones) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A line per policy: what had been written for what was ingested.
fn written(subjects: &[Subject<'_>], ingested: f64) -> Markup {
    let lines: Vec<Line> = subjects
        .iter()
        .map(|it| Line {
            marker: it.marker,
            name: it.name.clone(),
            whiskers: Vec::new(),
            points: it
                .cell
                .history
                .iter()
                .map(|point| {
                    (float(point.ingested_bytes), float(point.flushed_bytes + point.written_bytes))
                })
                .collect(),
        })
        .collect();
    let most =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)).fold(0.0, f64::max);
    let x = Axis {
        scale: Scale::to_edge(ingested).in_binary_units(),
        title: "ingested".to_owned(),
        format: value::bytes,
        ticks: 5,
    };
    let y = Axis {
        scale: Scale::bytes_from_zero(most, 5),
        title: "written in all".to_owned(),
        format: value::bytes,
        ticks: 5,
    };
    lines::draw("bytes written over bytes ingested", x, y, &lines)
}
