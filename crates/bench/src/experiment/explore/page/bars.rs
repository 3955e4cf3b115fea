//! Sections with bar plots: compaction jobs, latencies and stalls, deletes.

use maud::{Markup, html};

use super::page_cell::PageCell;
use crate::experiment::explore::columns::REGISTRY;
use crate::metric::Unit;
use crate::metric::html::{
    PageRow, render_bars, render_latency_figures, render_part_bars, render_stacked_bars,
};
use crate::report::html::page::render_section;
use crate::report::html::value;

const AMPLIFICATIONS: [(&str, &str); 6] = [
    ("Write amplification: (flushed + compaction written) ÷ ingested", "write_amplification"),
    ("The same with the log, ÷ bytes of puts", "device_write_amplification"),
    ("Compaction written ÷ unique live data", "compaction_write_amplification"),
    ("Space amplification: live tables ÷ live data", "space_amplification"),
    ("The same at its peak, with outputs of jobs and their inputs", "space_amplification_peak"),
    ("Bytes of invalid entries ÷ bytes of live ones", "space_amplification_invalid"),
];

pub(super) fn render_compaction(subjects: &[PageRow]) -> Markup {
    let bytes = [("read", "compaction.read_bytes"), ("written", "compaction.written_bytes")];
    let jobs = [
        ("merges", "compaction.jobs"),
        ("trivial moves, which only edit the manifest", "compaction.trivial_moves"),
    ];
    let content = html! {
        div class="plots" {
            (render_part_bars(&REGISTRY, "Data moved by compaction", &bytes, subjects))
            (render_part_bars(&REGISTRY, "Jobs of compaction", &jobs, subjects))
            @for (title, name) in AMPLIFICATIONS { (render_bars(&REGISTRY, name, title, subjects)) }
        }
    };
    render_section("What compaction did", "", &content)
}

/// Returns the section about put latencies, job latencies and stalls. Returns nothing for a simulation.
pub(super) fn render_latencies_and_stalls(cells: &[&PageCell<'_>], subjects: &[PageRow]) -> Markup {
    if subjects.iter().all(|subject| subject.row.get("put_latency_us.max").is_none()) {
        return html! {};
    }
    let kinds = [
        ("Puts", "put_latency_us"),
        ("Jobs of compaction, trivial moves left out", "compaction.latency_us"),
    ];
    let threads = |subject: &PageRow| {
        let total = |name: &str| subject.number(&format!("compaction.{name}_us_total"));
        let parts = ["cpu", "read_wait", "write_wait", "sync_wait"].map(total);
        let mut parts: Vec<f64> = parts.into_iter().collect::<Option<_>>()?;
        parts.push((total("thread")? - parts.iter().sum::<f64>()).max(0.0));
        Some(parts)
    };
    let labels = [
        "on a processor",
        "waiting for reads",
        "waiting for writes",
        "waiting for syncs",
        "other waiting",
    ];
    let waits = [("waited", "stalls.total_us"), ("slowed by debt", "stalls.throttled_us")];
    let content = html! {
        (render_latency_figures(&kinds, subjects))
        div class="plots" {
            (render_stacked_bars("Time of all threads in jobs", &labels, Unit::Micros, subjects, threads))
            (render_part_bars(&REGISTRY, "Time of writes that were held up", &waits, subjects))
            (render_bars(&REGISTRY, "stalls.count", "Writes that waited", subjects))
            (render_bars(&REGISTRY, "stalls.max_us", "The longest wait of a write", subjects))
        }
        @if !has_positive_number(subjects, "stalls.count") {
            p class="how" { "No write waited for a stall to end." }
        }
    };
    let how = if cells.iter().any(|cell| cell.workload.deterministic) {
        "The axis is logarithmic. With --deterministic all jobs run on the writer's thread, and the put that starts a job \
         includes its time. The clock of the database counts operations, so jobs take no time."
    } else {
        "The axis is logarithmic."
    };
    render_section("Latency", how, &content)
}

/// Returns the section about tombstones, or nothing if no key was deleted.
pub(super) fn render_deletes(subjects: &[PageRow]) -> Markup {
    if !has_positive_number(subjects, "delete_persistence.deletes") {
        return html! {};
    }
    let deletes = subjects.iter().filter_map(|it| it.number("delete_persistence.deletes"));
    let longest = |subject: &PageRow| {
        let age = |name| subject.number(name).unwrap_or(0.0);
        let longest =
            age("delete_persistence.age_us_max").max(age("delete_persistence.oldest_age_us"));
        Some(vec![longest / subject.number("delete_persistence.run_us")?.max(1.0)])
    };
    let content = html! {
        div class="plots" {
            (render_bars(&REGISTRY, "delete_persistence.live_tombstones", "Tombstones in the final tree", subjects))
            (render_stacked_bars("The longest life of a tombstone, as a share of the run", &["longest life"],
                Unit::Share, subjects, longest))
        }
    };
    let how = format!(
        "{} deletes of a key. A tombstone lives until a job drops it, or until the end of the run. A job knows only the \
         oldest tombstone of its inputs, so the life is an upper bound.",
        value::format_count(deletes.fold(0.0, f64::max))
    );
    render_section("Deletes", &how, &content)
}

fn has_positive_number(subjects: &[PageRow], name: &str) -> bool {
    subjects.iter().any(|subject| subject.number(name).is_some_and(|number| number > 0.0))
}
