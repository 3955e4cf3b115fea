//! The HTML pages of `lsmx bench --experiment`.

use maud::{Markup, html};

use super::columns::{READS, SIZES, build_row};
use super::result::{PutSlice, TuningCell, TuningResult};
use crate::error::Result;
use crate::experiment::distinct_items;
use crate::experiment::throughput::page::filter_by_workload;
use crate::metric::html::{PageRow, render_bars, render_latency_section, render_table_and_legend};
use crate::numbers::to_f64;
use crate::report::Report;
use crate::report::html::page::{render_line_figure, render_page, render_section};
use crate::report::html::plot::frame::{Axis, NumberFormat};
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::marker::Marker;
use crate::report::html::value;

/// Names of the lookup workloads, and the keys that they look up, in the order of the plots.
const WORKLOADS: [(&str, &str); 2] =
    [("readrandom", "present keys"), ("readmissing", "absent keys")];
/// Titles of the plots for each lookup workload, and the JSON paths of the plotted numbers.
const PLOTS: [(&str, &str); 3] = [
    ("Lookups per second", "ops_per_s"),
    ("I/Os per get", "reads.ios_per_get"),
    ("False positives of filters", "reads.filter_false_positive_rate"),
];
/// Operations of the experiment `data-size`, in the order of the plots.
const OPERATIONS: [&str; 3] = ["put", "get", "delete"];
/// Titles of the plots for each operation of `data-size`, and the JSON paths of the plotted numbers.
const OPERATION_PLOTS: [(&str, &str); 2] =
    [("Operations per second", "ops_per_s"), ("Mean time", "latency_us.mean")];

type SliceNumber = fn(&PutSlice) -> Option<f64>;

pub(super) fn tuning_page(result: &TuningResult) -> Result<String> {
    let settings = distinct_items(result.cells.iter().map(|cell| &cell.setting));
    let subject = |cell: &TuningCell| {
        // Results with the same setting have the same marker.
        let number = settings.iter().position(|setting| **setting == cell.setting).unwrap_or(0);
        let (name, row) = (cell.setting.clone(), build_row(result.experiment, cell)?);
        Ok(PageRow { name, marker: Marker::with_number(number), row })
    };
    let subjects: Vec<PageRow> = result.cells.iter().map(subject).collect::<Result<_>>()?;
    let registry = result.registry();
    let names = [&["workload"], registry.shown].concat();
    let sections = html! {
        @if result.has_slices() {
            (render_slices(&result.cells))
        } @else {
            (render_section("Summary", "A click on a heading sorts.",
                &render_table_and_legend(registry, "setting", &names, &subjects)))
            @if result.has_data_sizes() {
                (render_data_sizes(&subjects))
            } @else {
                (render_reads(&subjects))
            }
        }
        (render_latency_section(&[("Latency of an operation", "latency_us")], &subjects))
    };
    let title = format!("lsmx bench · {}", result.experiment);
    let headline = format!("{}: {}.", result.experiment, result.summarize());
    Ok(render_page(&title, &headline, &result.provenance, &[], &sections))
}

fn render_data_sizes(subjects: &[PageRow]) -> Markup {
    let content = html! {
        div class="plots" {
            @for operation in OPERATIONS {
                @for (title, name) in OPERATION_PLOTS {
                    (render_bars(&SIZES, name, &format!("{title}, {operation}"), &filter_by_workload(subjects, operation)))
                }
            }
        }
    };
    let how = "Rates of puts and deletes count until compaction is idle.";
    render_section("Effect of the amount of data", how, &content)
}

fn render_reads(subjects: &[PageRow]) -> Markup {
    let content = html! {
        div class="plots" {
            (render_bars(&READS, "ops_per_s", "Puts per second", &filter_by_workload(subjects, "fillrandom")))
            @for (workload, keys) in WORKLOADS {
                @for (title, name) in PLOTS {
                    (render_bars(&READS, name, &format!("{title}, {keys}"), &filter_by_workload(subjects, workload)))
                }
            }
        }
    };
    let how = "Each setting is measured after as many lookups that are not counted.";
    render_section("Effect of the cache and the filters", how, &content)
}

fn render_slices(cells: &[TuningCell]) -> Markup {
    let shown: [(&str, NumberFormat, SliceNumber); 3] = [
        ("Puts per second", value::format_count, |slice| Some(slice.ops_per_s)),
        ("The longest put of each slice", value::format_micros, |slice| Some(slice.max_us)),
        ("Bytes that compaction wrote per slice", value::format_bytes, |slice| {
            slice.compaction_bytes.map(to_f64)
        }),
    ];
    let content = html! {
        div class="plots" { @for (title, format, of) in shown { (render_over_time(cells, title, format, of)) } }
    };
    let totals: Vec<String> = cells
        .iter()
        .map(|cell| format!("{}: {} puts per s", cell.engine, value::format_count(cell.ops_per_s)))
        .collect();
    render_section("Puts over time", &format!("{}.", totals.join(", ")), &content)
}

fn render_over_time(
    cells: &[TuningCell],
    title: &str,
    format: NumberFormat,
    of: SliceNumber,
) -> Markup {
    let line = |(number, cell): (usize, &TuningCell)| {
        let points = cell.slices.iter().filter_map(|slice| Some((slice.end_s, of(slice)?)));
        PlotLine::new(Marker::with_number(number), &cell.engine, points.collect())
    };
    render_line_figure(
        title,
        cells.iter().enumerate().map(line).collect(),
        |ends| Axis { title: "seconds".to_owned(), ..Axis::with_zero(ends, value::format_plain) },
        |values| Axis::with_zero(values, format),
    )
}
