//! The HTML page of `lsmx advise`: the ranking, the composition of the costs, and the Pareto front. For the measured
//! designs the page also has the sections of the `explore` page.

use maud::{Markup, html};

use super::columns::{RANKED, build_ranked_row, describe_question, format_usage, shorten_policy};
use super::{Advice, CostWeights, DesignCosts, MeasuredPresets, RankedDesign};
use crate::error::Result;
use crate::experiment::explore::page::page_cell::PageCell;
use crate::experiment::explore::page::render_policy_sections;
use crate::metric::ResultRow;
use crate::metric::html::{PageRow, render_table_and_legend};
use crate::report::html::page::{render_figure, render_page, render_part_legend, render_section};
use crate::report::html::plot::bars::{self, Bar};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::scatter::{self, ScatterPoint};
use crate::report::html::value;

/// CSS class and name of each of the four costs of a design.
const PARTS: [(&str, &str); 4] =
    [("p0", "writes"), ("p1", "point lookups"), ("p2", "range lookups"), ("p3", "space")];
const MARKER_PX2: f64 = 80.0;

type CostSelector = fn(&DesignCosts) -> f64;

pub(super) fn advice_page(result: &Advice) -> Result<String> {
    let names = design_names(result);
    let named = |(number, name): (usize, &String), row: ResultRow| PageRow {
        name: name.clone(),
        marker: Marker::with_number(number),
        row,
    };
    let cells = result.cells.iter().map(PageCell::from_exploration).collect::<Result<Vec<_>>>()?;
    let measured: Vec<PageRow> = names
        .iter()
        .enumerate()
        .zip(&cells)
        .map(|(name, cell)| named(name, cell.row.clone()))
        .collect();
    let rows = result.ranked.iter().map(build_ranked_row).collect::<Result<Vec<_>>>()?;
    let ranked: Vec<PageRow> =
        names.iter().enumerate().zip(rows).map(|(name, row)| named(name, row)).collect();
    let costs = ranked.iter().zip(&result.ranked).map(|(it, ranked)| (&*it.name, &ranked.costs));
    let weights = &result.asked.weights;
    let sections = html! {
        (render_ranking(result, &ranked))
        (render_section("What the costs are made of", "", &render_weighted_costs("Cost by weight", costs, weights)))
        (render_pareto_fronts(result, &ranked))
        @if let Some(MeasuredPresets { advice_to_best, cells }) = &result.presets {
            @let how = advice_to_best.map_or_else(String::new, |ratio| {
                format!("The first design above costs {ratio:.3} × the cheapest of them.")
            });
            @let costs = cells.iter().map(|it| (&*it.policy, &it.measured.costs));
            (render_section("Every preset on the engine", &how,
                &render_weighted_costs("Cost by weight, measured", costs, weights)))
        }
        @if !measured.is_empty() {
            h2 { "The confirmed designs on the engine" }
            (render_policy_sections(&cells.iter().collect::<Vec<_>>(), &measured))
        }
    };
    let headline = describe_question(result).replace('\n', ". ");
    Ok(render_page("lsmx advise", headline.trim_end(), &result.provenance, &[], &sections))
}

/// Returns the names of the designs. The name is the policy, followed by the memtable size if several designs share the
/// policy.
fn design_names(result: &Advice) -> Vec<String> {
    let policies: Vec<String> =
        result.ranked.iter().map(|it| shorten_policy(&it.policy, &it.spec)).collect();
    let name = |(at, policy): (usize, &String)| {
        let alone = policies.iter().filter(|other| *other == policy).count() == 1;
        let memtable = crate::report::text::format_bytes(result.ranked[at].memtable_bytes);
        if alone { policy.clone() } else { format!("{policy}, {memtable}") }
    };
    policies.iter().enumerate().map(name).collect()
}

fn render_ranking(result: &Advice, subjects: &[PageRow]) -> Markup {
    let content = html! {
        (render_table_and_legend(&RANKED, "design", RANKED.shown, subjects))
        ol { @for (it, subject) in result.ranked.iter().zip(subjects) {
            @if it.measured.is_some() { li { strong { (subject.name) } ": " (it.reason) "." } }
        } }
        @if let Some(best) = result.ranked.first() { pre { (format_usage(best)) } }
    };
    render_section("Ranking", "The cost is the weighted sum of the four costs.", &content)
}

/// Returns a bar chart with one bar per design, composed of the four weighted costs.
fn render_weighted_costs<'a>(
    title: &str,
    designs: impl Iterator<Item = (&'a str, &'a DesignCosts)>,
    weights: &CostWeights,
) -> Markup {
    let bar = |((name, costs), number): ((&str, &DesignCosts), usize)| Bar {
        marker: Marker::with_number(number),
        name: name.to_owned(),
        parts: costs.weighted_costs(weights).into(),
        text: format!("{:.3}", costs.weighted_sum(weights)),
    };
    let bars: Vec<Bar> = designs.zip(0..).map(bar).collect();
    let labels = PARTS.map(|(_, name)| name);
    html! {
        (render_figure(title, &bars::draw_bars("Cost by weight of each design", &labels, value::format_plain, &bars)))
        (render_part_legend(PARTS))
    }
}

/// Returns scatter plots of the write cost against each of the other three costs. A cost that is 0 for all designs has
/// no plot.
fn render_pareto_fronts(result: &Advice, subjects: &[PageRow]) -> Markup {
    let all: [(&str, CostSelector); 3] = [
        ("I/Os per point lookup", |costs| costs.points),
        ("I/Os per range lookup", |costs| costs.ranges),
        ("space amplification, ×", |costs| costs.space),
    ];
    let shown =
        all.into_iter().filter(|(_, of)| result.ranked.iter().any(|it| of(&it.costs) > 0.0));
    let content = html! {
        div class="plots" {
            @for (title, of) in shown {
                (render_figure(&format!("Writes against {title}"), &render_cost_plane(result, subjects, title, of)))
            }
        }
    };
    let how = "Lower and further to the left is better. The dashed line joins the designs that no other beats in \
               both; a hollow marker is beaten in all four costs.";
    render_section("The Pareto front", how, &content)
}

fn render_cost_plane(
    result: &Advice,
    subjects: &[PageRow],
    title: &str,
    of: CostSelector,
) -> Markup {
    let point = |(ranked, subject): (&RankedDesign, &PageRow)| ScatterPoint {
        marker: subject.marker,
        name: subject.name.clone(),
        x: ranked.costs.writes,
        y: of(&ranked.costs),
        area: MARKER_PX2,
        faint: !ranked.pareto,
        says: format!(
            "{}: {:.3}, {title} {:.3}",
            subject.name,
            ranked.costs.writes,
            of(&ranked.costs)
        ),
    };
    let points: Vec<ScatterPoint> = result.ranked.iter().zip(subjects).map(point).collect();
    let axis = |title: &str, of: fn(&ScatterPoint) -> f64| {
        let values: Vec<f64> = points.iter().map(of).collect();
        Axis::new(Scale::linear_or_log(&values), title, value::format_plain)
    };
    let x = axis("blocks of 4 KiB moved per write", |point| point.x);
    let y = axis(title, |point| point.y);
    scatter::draw_scatter(&format!("{title} against writes by design"), x, y, &points)
}
