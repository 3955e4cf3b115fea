//! The HTML pages of `lsmx bench --experiment`.

use maud::{Markup, html};

use super::columns::{READS, row};
use super::result::{Cell, Slice, Tuning};
use crate::error::Result;
use crate::experiment::distinct;
use crate::experiment::throughput::columns::summary;
use crate::experiment::throughput::page::of_workload;
use crate::metric::html::{Subject, bars, latencies, table_and_legend};
use crate::numbers::float;
use crate::report::html::page::{line_figure, page, section};
use crate::report::html::plot::frame::{Axis, Format};
use crate::report::html::plot::lines::Line;
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

type OfSlice = fn(&Slice) -> Option<f64>;

pub(super) fn html(result: &Tuning) -> Result<String> {
    let settings = distinct(result.cells.iter().map(|cell| &cell.setting));
    let subject = |cell: &Cell| {
        // Results with the same setting have the same marker.
        let number = settings.iter().position(|setting| **setting == cell.setting).unwrap_or(0);
        let (name, row) = (cell.setting.clone(), row(result.experiment, cell)?);
        Ok(Subject { name, marker: Marker::number(number), row })
    };
    let subjects: Vec<Subject> = result.cells.iter().map(subject).collect::<Result<_>>()?;
    let names = [&["workload"], READS.shown].concat();
    let sections = html! {
        @if result.has_slices() {
            (slices(&result.cells))
        } @else {
            (section("Summary", "A click on a heading sorts.",
                &table_and_legend(&READS, "setting", &names, &subjects)))
            (reads(&subjects))
        }
        (latencies(&[("Latency of an operation", "latency_us")], &subjects))
    };
    let title = format!("lsmx bench · {}", result.experiment);
    let headline = format!("{}: {}.", result.experiment, summary(&result.settings));
    Ok(page(&title, &headline, &result.provenance, &[], &sections))
}

fn reads(subjects: &[Subject]) -> Markup {
    let content = html! {
        div class="plots" {
            @for (workload, keys) in WORKLOADS {
                @for (title, name) in PLOTS {
                    (bars(&READS, name, &format!("{title}, {keys}"), &of_workload(subjects, workload)))
                }
            }
        }
    };
    let how = "Each setting is measured after as many lookups that are not counted.";
    section("Effect of the cache and the filters", how, &content)
}

fn slices(cells: &[Cell]) -> Markup {
    let shown: [(&str, Format, OfSlice); 3] = [
        ("Puts per second", value::count, |slice| Some(slice.ops_per_s)),
        ("The longest put of each slice", value::micros, |slice| Some(slice.max_us)),
        ("Bytes that compaction wrote per slice", value::bytes, |slice| {
            slice.compaction_bytes.map(float)
        }),
    ];
    let content = html! {
        div class="plots" { @for (title, format, of) in shown { (over_time(cells, title, format, of)) } }
    };
    let totals: Vec<String> = cells
        .iter()
        .map(|cell| format!("{}: {} puts per s", cell.engine, value::count(cell.ops_per_s)))
        .collect();
    section("Puts over time", &format!("{}.", totals.join(", ")), &content)
}

fn over_time(cells: &[Cell], title: &str, format: Format, of: OfSlice) -> Markup {
    let line = |(number, cell): (usize, &Cell)| {
        let points = cell.slices.iter().filter_map(|slice| Some((slice.end_s, of(slice)?)));
        Line::new(Marker::number(number), &cell.engine, points.collect())
    };
    line_figure(
        title,
        cells.iter().enumerate().map(line).collect(),
        |ends| Axis { title: "seconds".to_owned(), ..Axis::from_zero(ends, value::plain) },
        |values| Axis::from_zero(values, format),
    )
}
