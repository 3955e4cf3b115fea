//! The HTML pages of `lsmx bench --experiment`.

use maud::{Markup, html};

use super::columns::{READS, row};
use super::result::{Cell, Slice, Tuning};
use crate::error::Result;
use crate::experiment::throughput::columns::summary;
use crate::metric::html::{Subject, bars, latencies, legend, table};
use crate::numbers::float;
use crate::report::html::page::{figure, page, section};
use crate::report::html::plot::frame::{Axis, Format};
use crate::report::html::plot::lines::{self, Line};
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Number of ticks of an axis, about.
const TICKS: usize = 6;
/// Workloads that read, in the order of the plots.
const WORKLOADS: [(&str, &str); 2] =
    [("readrandom", "present keys"), ("readmissing", "absent keys")];
/// Plots of each of these workloads.
const PLOTS: [(&str, &str); 3] = [
    ("Lookups per second", "ops_per_s"),
    ("I/Os per get", "reads.ios_per_get"),
    ("False positives of filters", "reads.filter_false_positive_rate"),
];

/// A number of a slice.
type OfSlice = fn(&Slice) -> Option<f64>;

/// Returns the page of an experiment.
///
/// # Errors
/// If a cell cannot be JSON.
pub(super) fn html(result: &Tuning) -> Result<String> {
    let subjects: Vec<Subject> =
        result.cells.iter().map(|cell| subject(result, cell)).collect::<Result<_>>()?;
    let names = [&["workload"], READS.shown].concat();
    let sections = html! {
        @if result.has_slices() {
            (slices(&result.cells))
        } @else {
            (section("Summary", "A click on a heading sorts.", &html! {
                (table(&READS, "setting", &names, &subjects))
                (legend(&READS, &names, &subjects))
            }))
            (reads(&subjects))
        }
        (latencies(&[("Latency of an operation", "latency_us")], &subjects))
    };
    let (title, headline) =
        (format!("lsmx bench · {}", result.experiment), summary(&result.settings));
    Ok(page(
        &title,
        &format!("{}: {headline}.", result.experiment),
        &result.provenance,
        &[],
        &sections,
    ))
}

/// Returns a cell under the name of its setting. Equal settings have equal markers.
fn subject(result: &Tuning, cell: &Cell) -> Result<Subject> {
    let mut settings: Vec<&str> = Vec::new();
    for cell in &result.cells {
        if !settings.contains(&cell.setting.as_str()) {
            settings.push(&cell.setting);
        }
    }
    let number = settings.iter().position(|setting| *setting == cell.setting).unwrap_or(0);
    let (name, row) = (cell.setting.clone(), row(result.experiment, cell)?);
    Ok(Subject { name, marker: Marker::number(number), row })
}

fn reads(subjects: &[Subject]) -> Markup {
    let of_workload = |workload: &str| -> Vec<Subject> {
        let is_of = |it: &&Subject| it.row.get("workload").is_some_and(|name| name == workload);
        subjects.iter().filter(is_of).cloned().collect()
    };
    let content = html! {
        div class="plots" {
            @for (workload, keys) in WORKLOADS {
                @for (title, name) in PLOTS {
                    (bars(&READS, name, &format!("{title}, {keys}"), &of_workload(workload)))
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
        div class="plots" {
            @for (title, format, of) in shown {
                @let lines = lines_of(cells, of);
                @if !lines.is_empty() { (figure(title, &plot(title, &lines, format))) }
            }
        }
    };
    let totals: Vec<String> = cells
        .iter()
        .map(|cell| format!("{}: {} puts per s", cell.engine, value::count(cell.ops_per_s)))
        .collect();
    section("Puts over time", &format!("{}.", totals.join(", ")), &content)
}

fn lines_of(cells: &[Cell], of: OfSlice) -> Vec<Line> {
    let lines = cells.iter().enumerate().map(|(number, cell)| Line {
        marker: Marker::number(number),
        name: cell.engine.clone(),
        points: cell.slices.iter().filter_map(|slice| Some((slice.end_s, of(slice)?))).collect(),
        whiskers: Vec::new(),
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn plot(label: &str, lines: &[Line], format: Format) -> Markup {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let last = points().map(|point| point.0).fold(0.0, f64::max);
    let largest = points().map(|point| point.1).fold(0.0, f64::max);
    let axis = |end, title: &str, format| Axis {
        scale: Scale::from_zero(end, TICKS),
        title: title.to_owned(),
        format,
        ticks: TICKS,
    };
    lines::draw(label, axis(last, "seconds", value::plain), axis(largest, "", format), lines)
}
