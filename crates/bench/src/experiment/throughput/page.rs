//! The HTML page of `lsmx bench`.

use maud::{Markup, html};

use super::columns::{REGISTRY, rows, summary};
use super::result::{Cell, Throughput};
use crate::error::Result;
use crate::experiment::distinct;
use crate::metric::Row;
use crate::metric::html::{Subject, bars, latencies, table_and_legend};
use crate::numbers::float;
use crate::report::html::page::{page, section};
use crate::report::html::plot::marker::Marker;
use crate::report::html::value;
use crate::report::text::bytes;

pub(super) fn html(result: &Throughput) -> Result<String> {
    let settings = &result.settings;
    let rate = settings.rate.map(|rate| format!(", {} operations per s due", value::count(rate)));
    let headline = format!(
        "{}, cache {}{}.",
        summary(settings),
        bytes(settings.block_cache_bytes),
        rate.unwrap_or_default(),
    );
    let subjects = subjects(&result.cells)?;
    let amplifications = html! {
        (bars(&REGISTRY, "device_write_amplification",
            "Write amplification, with the log, ÷ bytes of puts", &subjects))
        (bars(&REGISTRY, "space_amplification",
            "Space amplification: live tables ÷ live records", &subjects))
    };
    let columns = [REGISTRY.shown, &["ops_per_s_unsettled"]].concat();
    let how = "Loads count until compaction is idle. A click on a heading sorts.";
    let sections = html! {
        (section("Summary", how, &table_and_legend(&REGISTRY, "workload", &columns, &subjects)))
        (section("Rates", "More is better.", &rates(result, &subjects)))
        (latencies(&[("Latency of an operation", "latency_us")], &subjects))
        @if !amplifications.0.is_empty() {
            (section("Amplification", "Less is better. Workloads without writes are left out.", &html! {
                div class="plots" { (amplifications) }
            }))
        }
    };
    Ok(page("lsmx bench", &headline, &result.provenance, &[], &sections))
}

/// Names each result by its workload. If there are several engines, the engine is appended. If the workload ran with
/// several numbers of threads, the number of threads is appended.
fn subjects(cells: &[Cell]) -> Result<Vec<Subject>> {
    let engines = distinct(cells.iter().map(|cell| cell.engine.as_str()));
    let subject = |row: Row| {
        let text = |name| row.get(name).and_then(|it| it.as_str()).unwrap_or_default();
        let (workload, engine) = (text("workload"), text("engine"));
        let threads = row.number("threads").unwrap_or(1.0);
        let has_other_threads = cells.iter().any(|it| {
            it.workload == workload && it.engine == engine && float(it.threads) != threads
        });
        let mut name = workload.to_owned();
        if engines.len() > 1 {
            name.push_str(&format!(" · {engine}"));
        }
        if has_other_threads {
            name.push_str(&format!(" · {threads} thr"));
        }
        let number = engines.iter().position(|known| *known == engine).unwrap_or(0);
        Subject { name, marker: Marker::number(number), row }
    };
    Ok(rows(cells)?.into_iter().map(subject).collect())
}

/// Returns plots of the rates. A single engine has one plot; several engines have one plot per workload.
fn rates(result: &Throughput, subjects: &[Subject]) -> Markup {
    let workloads = distinct(result.cells.iter().map(|cell| cell.workload.as_str()));
    let one_engine = result.cells.windows(2).all(|pair| pair[0].engine == pair[1].engine);
    html! {
        div class="plots" {
            @if one_engine {
                (bars(&REGISTRY, "ops_per_s", "Operations per second", subjects))
            } @else {
                @for workload in workloads {
                    (bars(&REGISTRY, "ops_per_s", &format!("Operations per second, {workload}"),
                        &of_workload(subjects, workload)))
                }
            }
        }
    }
}

pub(in crate::experiment) fn of_workload(subjects: &[Subject], workload: &str) -> Vec<Subject> {
    let is_of = |it: &&Subject| it.row.get("workload").is_some_and(|name| name == workload);
    subjects.iter().filter(is_of).cloned().collect()
}
