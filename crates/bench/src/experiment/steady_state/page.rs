//! The HTML page of the experiment `steady-state`.

use maud::{Markup, html};

use super::columns::{REGISTRY, build_summary};
use super::result::{SteadyStateCell, SteadyStatePeriod, SteadyStateResult};
use crate::error::Result;
use crate::experiment::throughput::columns::summarize_settings;
use crate::latency::LatencyUs;
use crate::metric::html::{PageRow, render_bars, render_latency_section, render_table_and_legend};
use crate::numbers::to_f64;
use crate::report::html::page::{render_line_figure, render_page, render_section};
use crate::report::html::plot::frame::{Axis, NumberFormat};
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

type PeriodNumber = fn(&SteadyStatePeriod) -> Option<f64>;
type Percentile = fn(&LatencyUs) -> f64;

/// Titles of the latency plots, each with the percentile that the plot shows.
const PERCENTILES: [(&str, Percentile); 4] = [
    ("median", |latency| latency.p50),
    ("p99", |latency| latency.p99),
    ("p99.9", |latency| latency.p999),
    ("longest", |latency| latency.max),
];
const COSTS: [(&str, NumberFormat, PeriodNumber); 5] = [
    ("Bytes that the device read per get", value::format_bytes, |it| it.device_read_bytes_per_get),
    ("Bytes that the device wrote per put", value::format_bytes, |it| {
        it.device_written_bytes_per_put
    }),
    ("Seconds by which writes were delayed", value::format_plain, |it| it.stall_s),
    ("Bytes of pending compactions", value::format_bytes, |it| {
        it.pending_compaction_bytes.map(to_f64)
    }),
    ("Space amplification", value::format_ratio, |it| Some(it.space_amplification)),
];

pub(super) fn steady_state_page(result: &SteadyStateResult) -> Result<String> {
    let subject = |(number, cell): (usize, &SteadyStateCell)| {
        let (name, row) = (cell.engine.clone(), build_summary(cell)?);
        Ok(PageRow { name, marker: Marker::with_number(number), row })
    };
    let subjects: Vec<PageRow> =
        result.cells.iter().enumerate().map(subject).collect::<Result<_>>()?;
    let columns = [&["sustained_ops_per_s"], REGISTRY.shown].concat();
    let sections = html! {
        (render_section("Summary", "The whole running phase. A click on a heading sorts.", &html! {
            (render_table_and_legend(&REGISTRY, "engine", &columns, &subjects))
            div class="plots" {
                (render_bars(&REGISTRY, "sustained_ops_per_s", "Sustained operations per second", &subjects))
            }
        }))
        (render_latency_section(
            &[("Latency of a put", "put_latency_us"), ("Latency of a get", "get_latency_us")],
            &subjects,
        ))
        (render_minutes(&result.cells))
    };
    let title = format!("lsmx bench · {}", result.experiment);
    let headline = format!("{}: {}.", result.experiment, summarize_settings(&result.settings));
    Ok(render_page(&title, &headline, &result.provenance, &[], &sections))
}

fn render_minutes(cells: &[SteadyStateCell]) -> Markup {
    let rate: PeriodNumber = |it| Some(it.ops_per_s);
    let content = html! {
        div class="plots" {
            (render_over_minutes(cells, "Operations per second", value::format_count, rate))
            @for (title, of) in PERCENTILES {
                (render_over_minutes(cells, &format!("Puts: {title}"), value::format_micros,
                    |it| Some(of(&it.put_latency_us)).filter(|us| *us > 0.0)))
            }
            @for (title, of) in PERCENTILES {
                (render_over_minutes(cells, &format!("Gets: {title}"), value::format_micros,
                    |it| Some(of(&it.get_latency_us)).filter(|us| *us > 0.0)))
            }
            @for (title, format, of) in COSTS { (render_over_minutes(cells, title, format, of)) }
        }
    };
    render_section("By minute", "Each point is a minute of the running phase.", &content)
}

fn render_over_minutes(
    cells: &[SteadyStateCell],
    title: &str,
    format: NumberFormat,
    of: impl Fn(&SteadyStatePeriod) -> Option<f64>,
) -> Markup {
    let line = |(number, cell): (usize, &SteadyStateCell)| {
        let minutes = (1u64..).map(to_f64).zip(&cell.by_minute);
        let points = minutes.filter_map(|(minute, period)| Some((minute, of(period)?)));
        PlotLine::new(Marker::with_number(number), &cell.engine, points.collect())
    };
    render_line_figure(
        title,
        cells.iter().enumerate().map(line).collect(),
        |ends| Axis { title: "minutes".to_owned(), ..Axis::with_zero(ends, value::format_plain) },
        |values| Axis::new(Scale::linear_or_log(values), "", format),
    )
}
