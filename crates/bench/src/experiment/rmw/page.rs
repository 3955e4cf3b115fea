//! The HTML page of `lsmx rmw`.

use maud::{Markup, html};

use super::columns::REGISTRY;
use super::result::{RmwCell, RmwResult};
use crate::error::Result;
use crate::experiment::distinct_items;
use crate::experiment::sweep::SweepValue;
use crate::metric::html::{PageRow, render_bars, render_latency_section, render_table_and_legend};
use crate::numbers::to_f64;
use crate::report::Report;
use crate::report::html::page::{render_line_figure, render_page, render_section};
use crate::report::html::plot::frame::{Axis, NumberFormat};
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

const PLOTS: [(&str, &str); 14] = [
    ("Operations per second", "ops_per_s"),
    ("Read, mean", "read_latency_us.mean"),
    ("Update, mean", "rmw_latency_us.mean"),
    ("Scan, mean", "scan_latency_us.mean"),
    ("I/Os per read", "ios_per_read"),
    ("Bytes of read and write calls", "file_bytes"),
    ("Bytes that the device read and wrote", "device_bytes"),
    ("Storage at the end", "storage_bytes"),
    ("Memory", "memory_bytes"),
    ("Time to open the database after a kill", "recovery.open_s"),
    ("Bytes that collections read, per delivered byte", "collection_read_ratio"),
    ("Bytes that collections wrote, per delivered byte", "collection_write_ratio"),
    ("Block reads per lookup, by source", "source.block_reads_per_read"),
    ("Operands per lookup, by source", "source.operands_per_read"),
];

/// Function that returns the position of a result on the x axis of a plot.
type CellPosition = fn(&RmwCell) -> f64;

pub(super) fn rmw_page(result: &RmwResult) -> Result<String> {
    let names = distinct_items(result.cells.iter().map(RmwCell::name));
    let varied = varied_parameter(&result.cells);
    let subject = |(cell, row): (&RmwCell, _)| PageRow {
        name: if varied.is_some() || cell.source.is_some() {
            full_cell_name(cell)
        } else {
            cell.name()
        },
        marker: cell_marker(&names, cell),
        row,
    };
    let subjects: Vec<PageRow> = result.cells.iter().zip(result.rows()?).map(subject).collect();
    let columns: Vec<&str> = PLOTS.iter().map(|(_, name)| *name).collect();
    let checked = result.cells.iter().map(|cell| cell.checked_records).min().unwrap_or(0);
    let how = format!(
        "Each cell has at least {checked} records whose final value was checked. A click on a heading sorts."
    );
    let sections = html! {
        (render_section("Summary", &how, &render_table_and_legend(&REGISTRY, "cell", &columns, &subjects)))
        @if let Some((key, position)) = varied {
            (render_curves(result, &subjects, &names, &key, position))
        } @else {
            (render_section("Rates and costs of each mode", "", &html! {
                div class="plots" {
                    @for (title, name) in PLOTS { (render_bars(&REGISTRY, name, title, &subjects)) }
                }
            }))
        }
        (render_latency_section(
            &[
                ("Reads", "read_latency_us"),
                ("Updates of a field", "rmw_latency_us"),
                ("Puts", "put_latency_us"),
                ("Scans", "scan_latency_us"),
            ],
            &subjects,
        ))
    };
    let headline = result.cells.first().map_or_else(String::new, |first| {
        let it = &first.workload;
        format!(
            "Updates of {} B in {} records of {} + {} B, mix {}, zipf {}, memory {}{}.",
            it.delta_len,
            value::format_count(to_f64(it.records)),
            it.key_len,
            it.value_len,
            it.mix,
            it.zipf,
            value::format_bytes(to_f64(it.memory_budget)),
            if it.direct_io { ", without the page cache" } else { "" },
        )
    });
    Ok(render_page("lsmx rmw", &headline, &result.provenance, &[], &sections))
}

/// Returns the name of the varied parameter, and a function that returns the value of the parameter in a result. The
/// varied parameter is the parameter of the experiment, or the share of reads. Returns `None` if the results differ
/// only in the design, or if the values of the parameter are names.
fn varied_parameter(cells: &[RmwCell]) -> Option<(String, CellPosition)> {
    let first = cells.first()?;
    if let Some((key, value)) = first.sweep.0.first() {
        if let SweepValue::Text(_) = value {
            return None;
        }
        return Some((key.replace('_', " "), |cell| match cell.sweep.0.first() {
            Some((_, SweepValue::Whole(n))) => to_f64(*n),
            Some((_, SweepValue::Real(x))) => *x,
            _ => 0.0,
        }));
    }
    let same = |cell: &RmwCell| (cell.read_ratio - first.read_ratio).abs() < f64::EPSILON;
    (!cells.iter().all(same))
        .then(|| ("share of reads".to_owned(), (|cell: &RmwCell| cell.read_ratio) as CellPosition))
}

fn cell_marker(names: &[String], cell: &RmwCell) -> Marker {
    Marker::with_number(names.iter().position(|name| *name == cell.name()).unwrap_or(0))
}

/// Returns the name of a result, including the value of the varied parameter.
fn full_cell_name(cell: &RmwCell) -> String {
    let sweep = if cell.sweep.is_empty() {
        format!("{} reads", value::format_percent(cell.read_ratio))
    } else {
        cell.sweep.to_string()
    };
    format!("{} · {sweep}", cell.name())
}

/// Returns plots of each measurement over the varied parameter. Each plot has one line per engine, update mode and
/// storage location.
fn render_curves(
    result: &RmwResult,
    subjects: &[PageRow],
    names: &[String],
    key: &str,
    position: CellPosition,
) -> Markup {
    let line = |(number, series): (usize, &String), name: &str| {
        let cells = result.cells.iter().zip(subjects).filter(|(cell, _)| cell.name() == *series);
        let points =
            cells.filter_map(|(cell, subject)| Some((position(cell), subject.number(name)?)));
        PlotLine::new(Marker::with_number(number), series, points.collect())
    };
    let plot = |(title, name): (&str, &str)| {
        let format = REGISTRY
            .find(name)
            .map_or(value::format_plain as NumberFormat, |it| it.unit.number_format());
        render_line_figure(
            title,
            names.iter().enumerate().map(|series| line(series, name)).collect(),
            |xs| {
                Axis::new(
                    Scale::linear_or_log(xs).with_ticks(xs.to_vec()),
                    key,
                    value::format_count,
                )
            },
            |values| Axis::with_zero(values, format),
        )
    };
    let content = html! { div class="plots" { @for one in PLOTS { (plot(one)) } } };
    render_section(&format!("Over {key}"), "Files and device until compaction is idle.", &content)
}
