//! The HTML pages of `lsmx explore` and `lsmx simulate`.

mod agreement;
mod deletes;
mod latency;
mod lookups;
mod movement;
mod pareto;
mod place;
mod simulation;
pub(crate) mod subject;
mod summary;
mod sweep;
#[cfg(test)]
mod tests;
mod timeline;

use maud::{Markup, html};

use super::columns::workload;
use super::result::{Cell, Exploration};
use crate::report::html::page;
use crate::report::provenance::Provenance;
pub(crate) use simulation::{levels, simulation};
use subject::Subject;

/// Returns the page of an exploration, with a part per workload.
pub(crate) fn exploration(result: &Exploration) -> String {
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
                    p class="how" { (workload(&first.cell.workload, first.cell.seed)) }
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
            format!("{policies}: {}.", workload(&first.cell.workload, first.cell.seed))
        }
        _ => format!("{} cells of {} workloads.", cells.len(), groups.len()),
    };
    page::page(title, &headline, provenance, &contents, &sections)
}

/// Returns the sections about policies under one workload.
pub(crate) fn compared(subjects: &[Subject<'_>]) -> Markup {
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
