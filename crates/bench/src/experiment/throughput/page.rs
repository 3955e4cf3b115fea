//! The HTML page of `lsmx bench`.

use maud::{Markup, html};

use super::columns::{REGISTRY, rows, summary};
use super::result::{Cell, Throughput};
use crate::error::Result;
use crate::metric::html::{Subject, bars, latencies, legend, table};
use crate::numbers::float;
use crate::report::html::page::{page, section};
use crate::report::html::plot::marker::Marker;
use crate::report::html::value;
use crate::report::text::bytes;

/// Columns of the table.
const SHOWN: [&str; 11] = [
    "ops",
    "ops_per_s",
    "ops_per_s_unsettled",
    "ratio",
    "latency_us.mean",
    "latency_us.p50",
    "latency_us.p99",
    "latency_us.p999",
    "latency_us.max",
    "device_write_amplification",
    "space_amplification",
];

/// Returns the page of a benchmark.
///
/// # Errors
/// If a cell cannot be JSON.
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
    let how = "Loads count until compaction is idle. A click on a heading sorts.";
    let summary = html! {
        (table(&REGISTRY, "workload", &SHOWN, &subjects))
        (legend(&REGISTRY, &SHOWN, &subjects))
    };
    let amplification = [
        ("device_write_amplification", "Write amplification, with the log, ÷ bytes of puts"),
        ("space_amplification", "Space amplification: table bytes ÷ records"),
    ];
    let amplification: Vec<Markup> = amplification
        .iter()
        .filter(|(name, _)| subjects.iter().any(|it| it.row.shown(name).is_some()))
        .map(|(name, title)| bars(&REGISTRY, name, title, &subjects))
        .collect();
    let sections = html! {
        (section("Summary", how, &summary))
        (section("Rates", "More is better.", &rates(result, &subjects)))
        (latencies(&[("Latency of an operation", "latency_us")], &subjects))
        @if !amplification.is_empty() {
            (section("Amplification", "Less is better. Workloads without writes are left out.", &html! {
                div class="plots" { @for plot in amplification { (plot) } }
            }))
        }
    };
    Ok(page("lsmx bench", &headline, &result.provenance, &[], &sections))
}

/// Names each cell by its workload, with the engine and the threads if these differ.
fn subjects(cells: &[Cell]) -> Result<Vec<Subject>> {
    let mut engines: Vec<&str> = Vec::new();
    for cell in cells {
        if !engines.contains(&cell.engine.as_str()) {
            engines.push(&cell.engine);
        }
    }
    let rows = rows(cells)?;
    let subject = |row: crate::metric::Row| {
        let text = |name| row.get(name).and_then(|it| it.as_str()).unwrap_or_default();
        let (workload, engine) = (text("workload"), text("engine"));
        let threads = row.number("threads").unwrap_or(1.0);
        let differs = cells.iter().any(|it| {
            it.workload == workload
                && it.engine == engine
                && float(it.threads).total_cmp(&threads).is_ne()
        });
        let mut name = workload.to_owned();
        if engines.len() > 1 {
            name.push_str(&format!(" · {engine}"));
        }
        if differs {
            name.push_str(&format!(" · {threads} thr"));
        }
        let number = engines.iter().position(|known| *known == engine).unwrap_or(0);
        Subject { name, marker: Marker::number(number), row }
    };
    Ok(rows.into_iter().map(subject).collect())
}

/// Returns one plot of rates, or with several engines one per workload.
fn rates(result: &Throughput, subjects: &[Subject]) -> Markup {
    let mut workloads: Vec<&str> = Vec::new();
    for cell in &result.cells {
        if !workloads.contains(&cell.workload.as_str()) {
            workloads.push(&cell.workload);
        }
    }
    let one_engine = result.cells.windows(2).all(|pair| pair[0].engine == pair[1].engine);
    let of_workload = |workload: &str| -> Vec<Subject> {
        let is_of = |it: &&Subject| it.row.get("workload").is_some_and(|name| name == workload);
        subjects.iter().filter(is_of).cloned().collect()
    };
    html! {
        div class="plots" {
            @if one_engine {
                (bars(&REGISTRY, "ops_per_s", "Operations per second", subjects))
            } @else {
                @for workload in workloads {
                    (bars(&REGISTRY, "ops_per_s", &format!("Operations per second, {workload}"), &of_workload(workload)))
                }
            }
        }
    }
}
