//! Point lookups by their share of absent keys, and range lookups.

use std::collections::BTreeMap;

use lsmx::metrics::BlockKind;
use maud::{Markup, html};

use super::latency;
use super::movement::bars;
use super::subject::Subject;
use crate::experiment::explore::result::{Cell, PointLookups};
use crate::numbers::ratio;
use crate::report::html::latency::legend as legend_of_latencies;
use crate::report::html::page::{figure, legend, section};
use crate::report::html::plot::frame::{Axis, Format};
use crate::report::html::plot::lines::{self, Line};
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Shares of absent keys that were asked for, ascending.
pub(super) fn alphas(subjects: &[Subject<'_>]) -> Vec<f64> {
    let rows = subjects.iter().flat_map(|it| &it.cell.point_lookups);
    let mut alphas: Vec<f64> = rows.filter(|row| row.ops > 0).map(|row| row.alpha).collect();
    alphas.sort_by(f64::total_cmp);
    alphas.dedup();
    alphas
}

/// The lookups of a cell with this share of absent keys.
pub(super) fn row(cell: &Cell, alpha: f64) -> Option<&PointLookups> {
    cell.point_lookups.iter().find(|row| row.ops > 0 && row.alpha.total_cmp(&alpha).is_eq())
}

/// Flat name of a figure of these lookups.
pub(super) fn metric(alpha: f64, figure: &str) -> String {
    // As JSON writes it.
    format!("point_lookups[{}].{figure}", serde_json::Value::from(alpha))
}

/// Lines over α where there are several, and which blocks were read; none without lookups.
pub(super) fn point_plots(subjects: &[Subject<'_>]) -> Option<Markup> {
    let alphas = alphas(subjects);
    if alphas.is_empty() {
        return None;
    }
    let by_alpha = |title: &str, format: Format, of: fn(&PointLookups) -> f64| {
        by_alpha(subjects, &alphas, title, format, of)
    };
    let kinds = kinds(
        subjects.iter().flat_map(|it| it.cell.point_lookups.iter().map(|row| &row.blocks_read)),
    );
    let measured = subjects.iter().any(|it| !it.cell.is_simulated);
    let content = html! {
        @if alphas.len() > 1 {
            div class="plots" {
                (figure("I/Os per get: blocks of all kinds that the cache did not have",
                    &by_alpha("I/Os per get", value::plain, |row| row.ios_per_get)))
                @if measured {
                    (figure("How long a get took",
                        &by_alpha("mean latency", value::micros, |row| row.latency_us.mean)))
                }
            }
        }
        (kinds_legend(&kinds))
        div class="plots" {
            @for alpha in &alphas {
                (figure(&by_kind(&format!("Blocks read per get, α = {alpha}"), &kinds),
                    &blocks(subjects, &kinds, |it| {
                        row(it, *alpha).map(|row| (&row.blocks_read, row.ops))
                    })))
            }
        }
        @if measured { (legend_of_latencies()) }
        div class="plots" {
            @for alpha in &alphas {
                @let latencies = latency::percentiles(subjects, |it| {
                    row(it, *alpha).map(|row| row.latency_us)
                });
                @if let Some(plot) = latencies {
                    (figure(&format!("Latency of a get, α = {alpha}"), &plot))
                }
            }
        }
    };
    let how = "α is the share of lookups that ask for keys that are not there: filters answer most of \
               them.";
    Some(section("Point lookups", how, &content))
}

/// Latencies and blocks of range lookups; none where there were no ranges.
pub(super) fn range_plots(subjects: &[Subject<'_>]) -> Option<Markup> {
    let ranges = || subjects.iter().filter(|it| it.cell.range_lookups.ops > 0);
    let first = ranges().next()?;
    let kinds = kinds(ranges().map(|it| &it.cell.range_lookups.blocks_read));
    let each = ratio(first.cell.range_lookups.entries, first.cell.range_lookups.ops);
    let latencies = latency::percentiles(subjects, |it| Some(it.range_lookups.latency_us));
    let content = html! {
        @if latencies.is_some() { (legend_of_latencies()) }
        (kinds_legend(&kinds))
        div class="plots" {
            @if let Some(plot) = latencies { (figure("Latency of a range lookup", &plot)) }
            @if !kinds.is_empty() {
                (figure(&by_kind("Blocks read per range lookup", &kinds), &blocks(subjects, &kinds, |it| {
                    Some((&it.range_lookups.blocks_read, it.range_lookups.ops))
                })))
            }
        }
    };
    let how = format!("Each returned {} entries on average.", value::count(each));
    Some(section("Range lookups", &how, &content))
}

fn by_alpha(
    subjects: &[Subject<'_>],
    alphas: &[f64],
    title: &str,
    format: Format,
    of: fn(&PointLookups) -> f64,
) -> Markup {
    let lines: Vec<Line> = subjects
        .iter()
        .map(|it| Line {
            marker: it.marker,
            name: it.name.clone(),
            whiskers: Vec::new(),
            points: alphas
                .iter()
                .filter_map(|&alpha| Some((alpha, of(row(it.cell, alpha)?))))
                .collect(),
        })
        .collect();
    let all = lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let x = Axis {
        scale: Scale::over(alphas),
        title: "α, share of absent keys".to_owned(),
        format: value::plain,
        ticks: 5,
    };
    let y = Axis {
        scale: Scale::fitting(&all.collect::<Vec<_>>()),
        title: title.to_owned(),
        format,
        ticks: 6,
    };
    lines::draw(title, x, y, &lines)
}

/// Kinds of blocks that any of these maps counts.
fn kinds<'a>(maps: impl Iterator<Item = &'a BTreeMap<BlockKind, u64>>) -> Vec<BlockKind> {
    let mut kinds: Vec<BlockKind> = maps.flat_map(|map| map.keys().copied()).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Blocks per lookup, by kind.
fn blocks(
    subjects: &[Subject<'_>],
    kinds: &[BlockKind],
    of: impl Fn(&Cell) -> Option<(&BTreeMap<BlockKind, u64>, u64)>,
) -> Markup {
    let names: Vec<&str> = kinds.iter().map(|&kind| name(kind)).collect();
    bars(subjects, &names, value::plain, |it| {
        let read = |kind| {
            of(it).map_or(0.0, |(read, ops)| ratio(read.get(kind).copied().unwrap_or(0), ops))
        };
        let parts: Vec<f64> = kinds.iter().map(read).collect();
        let sum = value::column(parts.iter().sum());
        (parts, sum)
    })
}

/// A title that says what the parts of the bars are.
fn by_kind(title: &str, kinds: &[BlockKind]) -> String {
    match kinds {
        [kind] => format!("{title}, all of kind {}", name(*kind)),
        _ => format!("{title}, by kind"),
    }
}

fn name(kind: BlockKind) -> &'static str {
    match kind {
        BlockKind::Data => "data",
        BlockKind::Index => "index",
        BlockKind::TopIndex => "top index",
        BlockKind::Filter => "filter",
        BlockKind::RangeTombstones => "range tombstones",
        BlockKind::Open => "footer and properties",
        BlockKind::Blob => "blob",
        BlockKind::Bucket => "bucket",
    }
}

/// None for one kind alone, whose bars have the colours of their series.
fn kinds_legend(kinds: &[BlockKind]) -> Markup {
    if kinds.len() < 2 {
        return html! {};
    }
    let classes: Vec<String> = (0..kinds.len()).map(|index| format!("p{index}")).collect();
    legend(classes.iter().map(String::as_str).zip(kinds.iter().map(|&kind| name(kind))))
}
