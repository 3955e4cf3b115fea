//! The HTML pages of `lsmx explore` and `lsmx simulate`. Plots look up numbers in table rows by JSON path (flat name).
//! A plot is omitted if no row contains its number.

mod agreement;
mod bars;
mod lookups;
pub(crate) mod page_cell;
mod pareto;
mod summary;
mod sweep;
#[cfg(test)]
mod tests;
mod timeline;
mod workload_difference;

use maud::{Markup, html};

use super::columns::describe_workload;
use super::result::Exploration;
use crate::error::Result;
use crate::experiment::simulate::Simulation;
use crate::metric::html::PageRow;
use crate::report::html::page;
use crate::report::provenance::Provenance;
use page_cell::PageCell;

pub(crate) fn exploration_page(result: &Exploration) -> Result<String> {
    let cells = result.cells.iter().map(PageCell::from_exploration).collect::<Result<Vec<_>>>()?;
    Ok(render_cells_page("lsmx explore", &cells, &result.provenance))
}

pub(crate) fn simulation_page(result: &Simulation) -> Result<String> {
    let cells = result.cells.iter().map(PageCell::from_simulation).collect::<Result<Vec<_>>>()?;
    Ok(render_cells_page("lsmx simulate", &cells, &result.provenance))
}

fn render_cells_page(title: &str, cells: &[PageCell<'_>], provenance: &Provenance) -> String {
    let groups = page_cell::group_by_workload(cells);
    let alone = groups.len() == 1;
    let contents: Vec<(String, String)> = (1..)
        .zip(&groups)
        .map(|(number, group)| (format!("g{number}"), format!("{number} · {}", group.place.text)))
        .collect();
    let sections = html! {
        @if !alone && !groups.is_empty() { (sweep::render_sweep_plots(&groups)) }
        @for (group, (id, difference)) in groups.iter().zip(&contents) {
            @if !alone {
                h2 id=(id) { (difference) }
                p class="how" { (describe_workload(group.cells[0].workload, group.cells[0].seed)) }
            }
            (render_policy_sections(&group.cells, &group.subjects))
        }
    };
    let headline = match (&cells, alone) {
        ([one], true) => format!("One policy: {}.", describe_workload(one.workload, one.seed)),
        ([first, ..], true) => {
            format!("{} policies: {}.", cells.len(), describe_workload(first.workload, first.seed))
        }
        _ => format!("{} cells of {} workloads.", cells.len(), groups.len()),
    };
    page::render_page(title, &headline, provenance, &contents, &sections)
}

/// Returns the sections that compare policies under one workload. `cells` and `subjects` have the same order.
pub(crate) fn render_policy_sections(cells: &[&PageCell<'_>], subjects: &[PageRow]) -> Markup {
    html! {
        (summary::render_best_policies(subjects))
        (summary::render_policy_table(cells, subjects))
        (pareto::render_pareto_plots(subjects))
        (bars::render_compaction(subjects))
        (bars::render_latencies_and_stalls(cells, subjects))
        (lookups::render_point_lookups(subjects))
        (lookups::render_range_lookups(subjects))
        (bars::render_deletes(subjects))
        (timeline::render_timelines(cells, subjects))
        (agreement::render_agreement_plots(subjects))
    }
}
