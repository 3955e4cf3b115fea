//! Plots of the levels of the trees over time, and of the bytes written by flushes and compactions.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::page_cell::PageCell;
use crate::experiment::explore::result::{HistoryPoint, LevelPoint};
use crate::metric::html::PageRow;
use crate::numbers::to_f64;
use crate::report::html::page::{render_line_figure, render_part_legend, render_section};
use crate::report::html::plot::areas::{self, StackedLayers};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Number of level colors in the style sheet. Deeper levels share the last color.
const LEVEL_COLORS: u64 = 8;
/// Approximate number of ticks per axis of a panel.
const PANEL_TICKS: usize = 4;

/// Returns the section with a panel per policy, or nothing if no history was recorded. All panels have the same axes.
pub(super) fn render_timelines(cells: &[&PageCell<'_>], subjects: &[PageRow]) -> Markup {
    let points = || cells.iter().flat_map(|cell| cell.history);
    let levels: BTreeSet<u64> =
        points().flat_map(|point| point.levels.iter().map(|level| level.level)).collect();
    if levels.is_empty() {
        return html! {};
    }
    let levels: Vec<u64> = levels.into_iter().collect();
    let max = |of: fn(&HistoryPoint) -> u64| to_f64(points().map(of).max().unwrap_or(0));
    let axes = PanelAxes {
        ingested: ingested_axis(max(|point| point.ingested_bytes)),
        bytes: Axis::new(
            Scale::bytes_from_zero(
                max(|point| sum_over_levels(point, |level| level.bytes)),
                PANEL_TICKS,
            ),
            "bytes",
            value::format_bytes,
        ),
        runs: Axis::new(
            Scale::from_zero(max(|point| sum_over_levels(point, |level| level.runs)), PANEL_TICKS),
            "runs",
            value::format_count,
        ),
    };
    let classes: Vec<(String, String)> =
        levels.iter().map(|&level| (level_class(level), format!("L{level}"))).collect();
    let content = html! {
        (render_part_legend(classes.iter().map(|(class, name)| (class.as_str(), name.as_str()))))
        div class="chooser" hidden {
            label { "Side by side: " select {} } " " label { "and " select {} } " "
            button type="button" { "all" }
        }
        div class="panels" {
            @for (cell, subject) in cells.iter().zip(subjects) {
                figure data-name=(subject.name) {
                    figcaption { (subject.marker.swatch()) (subject.name) }
                    (render_panel(cell.history, &subject.name, &levels, &axes))
                }
            }
        }
        (render_final_levels(cells, subjects))
        div class="plots" { (render_written_bytes(cells, subjects, max(|point| point.ingested_bytes))) }
    };
    let how = "Above, the bytes of the live tables; below, the sorted runs; both by level, during the run. All panels have \
               the same axes. The right edge is the time after the last write, until compaction was idle.";
    render_section("The tree over time", how, &content)
}

struct PanelAxes {
    ingested: Axis,
    bytes: Axis,
    runs: Axis,
}

fn ingested_axis(max: f64) -> Axis {
    let scale = Scale::from_zero_to(max).in_binary_units();
    Axis { ticks: PANEL_TICKS, ..Axis::new(scale, "ingested", value::format_bytes) }
}

fn sum_over_levels(point: &HistoryPoint, of: fn(&LevelPoint) -> u64) -> u64 {
    point.levels.iter().map(of).sum()
}

fn render_panel(history: &[HistoryPoint], name: &str, levels: &[u64], axes: &PanelAxes) -> Markup {
    let ticked = |axis: &Axis| Axis { ticks: PANEL_TICKS, ..axis.clone() };
    areas::draw_areas(
        &format!("bytes and runs by level of {name} over bytes ingested"),
        &axes.ingested,
        (ticked(&axes.bytes), &stack_levels(history, levels, |level| level.bytes)),
        (ticked(&axes.runs), &stack_levels(history, levels, |level| level.runs)),
    )
}

/// Returns the stacked layers of a plot, one per level. The deepest level is at the bottom, because it changes least.
fn stack_levels(
    history: &[HistoryPoint],
    levels: &[u64],
    of: fn(&LevelPoint) -> u64,
) -> StackedLayers {
    let from_below = || levels.iter().rev().copied();
    let amount = |point: &HistoryPoint, number: u64| {
        point.levels.iter().find(|level| level.level == number).map_or(0.0, |it| to_f64(of(it)))
    };
    let step = |point: &HistoryPoint| {
        (to_f64(point.ingested_bytes), from_below().map(|level| amount(point, level)).collect())
    };
    StackedLayers {
        names: from_below().map(|level| (level_class(level), format!("L{level}"))).collect(),
        steps: history.iter().map(step).collect(),
    }
}

fn level_class(level: u64) -> String {
    format!("l{}", level.min(LEVEL_COLORS - 1))
}

fn render_final_levels(cells: &[&PageCell<'_>], subjects: &[PageRow]) -> Markup {
    html! {
        details {
            summary { "Levels of the final trees" }
            div class="scroll" {
                table {
                    thead {
                        tr {
                            @for name in ["policy", "level", "runs", "files", "bytes", "entries", "tombstones"] {
                                th scope="col" { (name) }
                            }
                        }
                    }
                    tbody {
                        @for (cell, subject) in cells.iter().zip(subjects) {
                            @for level in cell.levels {
                                tr {
                                    th scope="row" { (subject.name) }
                                    td { "L" (level.level) }
                                    td { (level.runs) }
                                    td { (level.files) }
                                    td { (value::format_bytes(to_f64(level.bytes))) }
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

/// Returns a plot of the written bytes against the ingested bytes, with one line per policy.
fn render_written_bytes(cells: &[&PageCell<'_>], subjects: &[PageRow], ingested: f64) -> Markup {
    let point = |point: &HistoryPoint| {
        (to_f64(point.ingested_bytes), to_f64(point.flushed_bytes + point.written_bytes))
    };
    let line = |(cell, subject): (&&PageCell<'_>, &PageRow)| {
        PlotLine::new(subject.marker, &subject.name, cell.history.iter().map(point).collect())
    };
    render_line_figure(
        "Bytes written by flushes and compaction",
        cells.iter().zip(subjects).map(line).collect(),
        |_| ingested_axis(ingested),
        |values| {
            let most = values.iter().copied().fold(0.0, f64::max);
            Axis::new(Scale::bytes_from_zero(most, 5), "written in all", value::format_bytes)
        },
    )
}
