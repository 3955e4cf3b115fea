//! The summary table of all policies, and tiles with the best policy for each main cost.

use maud::{Markup, html};

use super::lookups;
use super::page_cell::PageCell;
use crate::experiment::explore::columns::REGISTRY;
use crate::metric::html::{PageRow, render_table_and_legend};
use crate::report::html::page::render_section;

/// Columns that only the HTML table shows.
const MORE_COLUMNS: [&str; 3] = ["stalls.total_us", "compaction.trivial_moves", "elapsed_s"];

pub(super) fn render_policy_table(cells: &[&PageCell<'_>], subjects: &[PageRow]) -> Markup {
    let columns = [REGISTRY.shown, &MORE_COLUMNS].concat();
    let content = html! {
        (render_table_and_legend(&REGISTRY, "policy", &columns, subjects))
        details {
            summary { "The policies with all their parameters" }
            ul {
                @for (cell, subject) in cells.iter().zip(subjects) {
                    li { (subject.marker.swatch()) code { (cell.spec) } }
                }
            }
        }
    };
    let medians = match cells.iter().map(|cell| cell.repetitions).max() {
        Some(count) if count > 1 => {
            format!("Medians of {count} repetitions, each above its lowest and highest value. ")
        }
        _ => String::new(),
    };
    let how = format!("{medians}The best of each column is marked. A click on a heading sorts.");
    render_section("Summary", &how, &content)
}

/// Returns one tile per main cost, with the policy for which the cost is lowest.
pub(super) fn render_best_policies(subjects: &[PageRow]) -> Markup {
    if subjects.len() < 2 {
        return html! {};
    }
    let mut costs = vec![
        ("least written", "write_amplification".to_owned()),
        ("least space", "space_amplification".to_owned()),
    ];
    for alpha in lookups::list_alphas(subjects) {
        costs.push(("fewest reads", lookups::alpha_metric_name(alpha, "ios_per_get")));
    }
    costs.push(("shortest longest put", "put_latency_us.max".to_owned()));
    let tiles = costs.iter().filter_map(|(title, name)| render_best_policy(title, name, subjects));
    html! { div class="tiles" { @for tile in tiles { (tile) } } }
}

fn render_best_policy(title: &str, name: &str, subjects: &[PageRow]) -> Option<Markup> {
    let metric = REGISTRY.find(name)?;
    let text = |number: f64| metric.unit.format_with_unit(number);
    let numbers: Vec<(&PageRow, f64)> =
        subjects.iter().filter_map(|it| Some((it, it.number(name)?))).collect();
    let &(best, least) = numbers.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    // Numbers that are rounded to the same text count as equal.
    let alike = numbers.iter().filter(|(_, number)| text(*number) == text(least)).count() - 1;
    Some(html! {
        div class="tile" {
            span class="what" { (title) }
            span class="who" {
                (best.marker.swatch()) (best.name)
                @if alike > 0 { small { " and " (alike) " more" } }
            }
            span class="figure" { (text(least)) " " small { (metric.expand_title(name)?) } }
        }
    })
}
