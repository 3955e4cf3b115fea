//! The HTML page of `lsmx bench`.

use maud::{Markup, html};

use super::columns::{REGISTRY, summarize_settings};
use super::result::ThroughputResult;
use crate::error::Result;
use crate::experiment::distinct_items;
use crate::metric::ResultRow;
use crate::metric::html::{PageRow, render_bars, render_latency_section, render_table_and_legend};
use crate::numbers::to_f64;
use crate::report::Report;
use crate::report::html::page::{render_page, render_section};
use crate::report::html::plot::marker::Marker;
use crate::report::html::value;
use crate::report::text::format_bytes;

pub(super) fn throughput_page(result: &ThroughputResult) -> Result<String> {
    let settings = &result.settings;
    let rate =
        settings.rate.map(|rate| format!(", {} operations per s due", value::format_count(rate)));
    let headline = format!(
        "{}, cache {}{}.",
        summarize_settings(settings),
        format_bytes(settings.block_cache_bytes),
        rate.unwrap_or_default(),
    );
    let subjects = name_rows(result)?;
    let amplifications = html! {
        (render_bars(&REGISTRY, "device_write_amplification",
            "Write amplification, with the log, ÷ bytes of puts", &subjects))
        (render_bars(&REGISTRY, "space_amplification",
            "Space amplification: live tables ÷ live records", &subjects))
    };
    let columns = [result.registry().shown, &["ops_per_s_unsettled"]].concat();
    let how = "Loads count until compaction is idle. A click on a heading sorts.";
    let sections = html! {
        (render_section("Summary", how, &render_table_and_legend(&REGISTRY, "workload", &columns, &subjects)))
        (render_section("Rates", "More is better.", &render_rates(result, &subjects)))
        (render_latency_section(&[("Latency of an operation", "latency_us")], &subjects))
        @if !amplifications.0.is_empty() {
            (render_section("Amplification", "Less is better. Workloads without writes are left out.", &html! {
                div class="plots" { (amplifications) }
            }))
        }
    };
    Ok(render_page("lsmx bench", &headline, &result.provenance, &[], &sections))
}

/// Names each result by its workload. If there are several engines, the engine is appended. If the workload ran with
/// several numbers of threads, the number of threads is appended.
fn name_rows(result: &ThroughputResult) -> Result<Vec<PageRow>> {
    let cells = [&result.cells[..], &result.device].concat();
    let engines = distinct_items(cells.iter().map(|cell| cell.engine.as_str()));
    let subject = |row: ResultRow| {
        let text = |name| row.get(name).and_then(|it| it.as_str()).unwrap_or_default();
        let (workload, engine) = (text("workload"), text("engine"));
        let threads = row.number("threads").unwrap_or(1.0);
        let has_other_threads = cells.iter().any(|it| {
            it.workload == workload && it.engine == engine && to_f64(it.threads) != threads
        });
        let mut name = workload.to_owned();
        if engines.len() > 1 {
            name.push_str(&format!(" · {engine}"));
        }
        if has_other_threads {
            name.push_str(&format!(" · {threads} thr"));
        }
        let number = engines.iter().position(|known| *known == engine).unwrap_or(0);
        PageRow { name, marker: Marker::with_number(number), row }
    };
    Ok(result.rows()?.into_iter().map(subject).collect())
}

/// Returns plots of the rates: one plot if there is a single engine, otherwise one plot per workload.
fn render_rates(result: &ThroughputResult, subjects: &[PageRow]) -> Markup {
    let workloads = distinct_items(result.cells.iter().map(|cell| cell.workload.as_str()));
    let one_engine = result.cells.windows(2).all(|pair| pair[0].engine == pair[1].engine);
    html! {
        div class="plots" {
            @if one_engine {
                (render_bars(&REGISTRY, "ops_per_s", "Operations per second", subjects))
            } @else {
                @for workload in workloads {
                    (render_bars(&REGISTRY, "ops_per_s", &format!("Operations per second, {workload}"),
                        &filter_by_workload(subjects, workload)))
                }
            }
        }
    }
}

pub(in crate::experiment) fn filter_by_workload(
    subjects: &[PageRow],
    workload: &str,
) -> Vec<PageRow> {
    let is_of = |it: &&PageRow| it.row.get("workload").is_some_and(|name| name == workload);
    subjects.iter().filter(is_of).cloned().collect()
}
