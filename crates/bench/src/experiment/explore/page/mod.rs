//! The HTML pages of `lsmx explore` and `lsmx simulate`. Plots look up numbers in table rows by JSON path (flat name).
//! A plot is omitted if no row contains its number.

mod agreement;
mod bars;
mod lookups;
mod pareto;
mod place;
pub(crate) mod subject;
mod summary;
mod sweep;
#[cfg(test)]
mod tests;
mod timeline;

use maud::{Markup, html};

use super::columns::workload;
use super::result::Exploration;
use crate::error::Result;
use crate::experiment::simulate::Simulation;
use crate::metric::html::Subject;
use crate::report::html::page;
use crate::report::provenance::Provenance;
use subject::PageCell;

pub(crate) fn exploration(result: &Exploration) -> Result<String> {
    let cells = result.cells.iter().map(PageCell::explored).collect::<Result<Vec<_>>>()?;
    Ok(page_of_cells("lsmx explore", &cells, &result.provenance))
}

pub(crate) fn simulation(result: &Simulation) -> Result<String> {
    let cells = result.cells.iter().map(PageCell::simulated).collect::<Result<Vec<_>>>()?;
    Ok(page_of_cells("lsmx simulate", &cells, &result.provenance))
}

fn page_of_cells(title: &str, cells: &[PageCell<'_>], provenance: &Provenance) -> String {
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
                p class="how" { (workload(group.cells[0].workload, group.cells[0].seed)) }
            }
            (sections_of_policies(&group.cells, &group.subjects))
        }
    };
    let headline = match (&cells, alone) {
        ([one], true) => format!("One policy: {}.", workload(one.workload, one.seed)),
        ([first, ..], true) => {
            format!("{} policies: {}.", cells.len(), workload(first.workload, first.seed))
        }
        _ => format!("{} cells of {} workloads.", cells.len(), groups.len()),
    };
    page::page(title, &headline, provenance, &contents, &sections)
}

/// Returns the sections that compare policies under one workload. `cells` and `subjects` have the same order.
pub(crate) fn sections_of_policies(cells: &[&PageCell<'_>], subjects: &[Subject]) -> Markup {
    html! {
        (summary::tiles(subjects))
        (summary::table(cells, subjects))
        (pareto::plots(subjects))
        (bars::compaction(subjects))
        (bars::latencies_and_stalls(cells, subjects))
        (lookups::point_plots(subjects))
        (lookups::range_plots(subjects))
        (bars::deletes(subjects))
        (timeline::plots(cells, subjects))
        (agreement::plots(subjects))
    }
}
