//! One self-contained page with plots: it needs no network, and no script to be read.
//!
//! Text goes through templates that escape it, whatever it holds. Plots are drawn in `plot`, whose
//! parts know nothing of experiments; every other module is a section of the page.

mod advice;
mod agreement;
mod deletes;
mod iocost;
mod latency;
mod lookups;
mod movement;
mod page;
mod pareto;
mod place;
mod plot;
mod rmw;
mod simulation;
mod subject;
mod summary;
mod sweep;
#[cfg(test)]
mod tests;
mod throughput;
mod timeline;
mod tuning;
mod value;

use std::path::Path;

use maud::{Markup, html};

use crate::error::{Error, Result};
use crate::experiment::explore::result::{Cell, Exploration};
use crate::report::provenance::Provenance;
use crate::report::text;
use subject::Subject;

pub use advice::page_of as advice;
pub use iocost::iocost;
pub use rmw::rmw;
pub use simulation::simulation;
pub use throughput::throughput;
pub use tuning::tuning;

/// Writes a page.
///
/// # Errors
/// When the file cannot be written.
#[expect(clippy::disallowed_methods, reason = "a report of the user, no part of a database")]
pub fn write(path: &Path, page: &str) -> Result<()> {
    let failed = |source| Error::Io { action: "write", path: path.to_owned(), source };
    std::fs::write(path, page).map_err(failed)
}

/// The page of an exploration: cells of one workload stand together.
#[must_use]
pub fn exploration(result: &Exploration) -> String {
    cells("lsmx explore", &result.cells, &result.provenance)
}

fn cells(title: &str, cells: &[Cell], provenance: &Provenance) -> String {
    let groups = subject::groups(cells);
    let alone = groups.len() == 1;
    let contents: Vec<(String, String)> = (1..)
        .zip(&groups)
        .map(|(number, group)| (format!("g{number}"), format!("{number} · {}", group.place.text)))
        .collect();
    let sections = html! {
        @if !alone && !groups.is_empty() { (sweep::plots(&groups)) }
        @for (group, (id, difference)) in groups.iter().zip(&contents) {
            @if !alone {
                h2 id=(id) { (difference) }
                @if let Some(first) = group.subjects.first() {
                    p class="how" { (text::workload(&first.cell.workload, first.cell.seed)) }
                }
            }
            (compared(&group.subjects))
        }
    };
    let headline = match (alone, groups.first().and_then(|group| group.subjects.first())) {
        (true, Some(first)) => {
            let policies = match cells.len() {
                1 => "One policy".to_owned(),
                count => format!("{count} policies"),
            };
            format!("{policies}: {}.", text::workload(&first.cell.workload, first.cell.seed))
        }
        _ => format!("{} cells of {} workloads.", cells.len(), groups.len()),
    };
    page::page(title, &headline, provenance, &contents, &sections)
}

/// All that is shown of policies under one workload.
fn compared(subjects: &[Subject<'_>]) -> Markup {
    html! {
        (summary::tiles(subjects))
        (summary::table(subjects))
        (pareto::plots(subjects))
        (movement::plots(subjects))
        @if subjects.iter().any(|it| !it.cell.is_simulated) { (latency::plots(subjects)) }
        @if let Some(plots) = lookups::point_plots(subjects) { (plots) }
        @if let Some(plots) = lookups::range_plots(subjects) { (plots) }
        @if let Some(plots) = deletes::plots(subjects) { (plots) }
        @if let Some(plots) = timeline::plots(subjects) { (plots) }
        @if let Some(plots) = agreement::plots(subjects) { (plots) }
    }
}
