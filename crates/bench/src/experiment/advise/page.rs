//! The HTML page of `lsmx advise`: the ranking, the composition of the costs, and the Pareto front. For the measured
//! designs the page also has the sections of the `explore` page.

use maud::{Markup, html};

use super::columns::{RANKED, question, ranked_row, short_policy, usage};
use super::{Advice, Costs, Presets, Ranked, Weights};
use crate::error::Result;
use crate::experiment::explore::page::sections_of_policies;
use crate::experiment::explore::page::subject::PageCell;
use crate::metric::Row;
use crate::metric::html::{Subject, table_and_legend};
use crate::report::html::page::{figure, legend, page, section};
use crate::report::html::plot::bars::{self, Bar};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::scatter::{self, Point};
use crate::report::html::value;

/// CSS class and name of each of the four costs.
const PARTS: [(&str, &str); 4] =
    [("p0", "writes"), ("p1", "point lookups"), ("p2", "range lookups"), ("p3", "space")];
const MARKER_PX2: f64 = 80.0;

type CostOf = fn(&Costs) -> f64;

pub(super) fn html(result: &Advice) -> Result<String> {
    let names = names(result);
    let named = |(number, name): (usize, &String), row: Row| Subject {
        name: name.clone(),
        marker: Marker::number(number),
        row,
    };
    let cells = result.cells.iter().map(PageCell::explored).collect::<Result<Vec<_>>>()?;
    let measured: Vec<Subject> = names
        .iter()
        .enumerate()
        .zip(&cells)
        .map(|(name, cell)| named(name, cell.row.clone()))
        .collect();
    let rows = result.ranked.iter().map(ranked_row).collect::<Result<Vec<_>>>()?;
    let ranked: Vec<Subject> =
        names.iter().enumerate().zip(rows).map(|(name, row)| named(name, row)).collect();
    let costs = ranked.iter().zip(&result.ranked).map(|(it, ranked)| (&*it.name, &ranked.costs));
    let weights = &result.asked.weights;
    let sections = html! {
        (ranking(result, &ranked))
        (section("What the costs are made of", "", &weighted_costs("Cost by weight", costs, weights)))
        (front(result, &ranked))
        @if let Some(Presets { advice_to_best, cells }) = &result.presets {
            @let how = format!("The first design above costs {advice_to_best:.3} × the cheapest of them.");
            @let costs = cells.iter().map(|it| (&*it.policy, &it.measured.costs));
            (section("Every preset on the engine", &how,
                &weighted_costs("Cost by weight, measured", costs, weights)))
        }
        @if !measured.is_empty() {
            h2 { "The confirmed designs on the engine" }
            (sections_of_policies(&cells.iter().collect::<Vec<_>>(), &measured))
        }
    };
    let headline = question(result).replace('\n', ". ");
    Ok(page("lsmx advise", headline.trim_end(), &result.provenance, &[], &sections))
}

/// Returns the names of the designs. The name is the policy, followed by the memtable size if several designs share the
/// policy.
fn names(result: &Advice) -> Vec<String> {
    let policies: Vec<String> =
        result.ranked.iter().map(|it| short_policy(&it.policy, &it.spec)).collect();
    let name = |(at, policy): (usize, &String)| {
        let alone = policies.iter().filter(|other| *other == policy).count() == 1;
        let memtable = crate::report::text::bytes(result.ranked[at].memtable_bytes);
        if alone { policy.clone() } else { format!("{policy}, {memtable}") }
    };
    policies.iter().enumerate().map(name).collect()
}

fn ranking(result: &Advice, subjects: &[Subject]) -> Markup {
    let content = html! {
        (table_and_legend(&RANKED, "design", RANKED.shown, subjects))
        ol { @for (it, subject) in result.ranked.iter().zip(subjects) {
            @if it.measured.is_some() { li { strong { (subject.name) } ": " (it.reason) "." } }
        } }
        @if let Some(best) = result.ranked.first() { pre { (usage(best)) } }
    };
    section("Ranking", "The cost is the weighted sum of the four costs.", &content)
}

/// Returns a bar chart with one bar per design, composed of the four weighted costs.
fn weighted_costs<'a>(
    title: &str,
    designs: impl Iterator<Item = (&'a str, &'a Costs)>,
    weights: &Weights,
) -> Markup {
    let bar = |((name, costs), number): ((&str, &Costs), usize)| Bar {
        marker: Marker::number(number),
        name: name.to_owned(),
        parts: costs.weighted(weights).into(),
        text: format!("{:.3}", costs.sum(weights)),
    };
    let bars: Vec<Bar> = designs.zip(0..).map(bar).collect();
    let labels = PARTS.map(|(_, name)| name);
    html! {
        (figure(title, &bars::draw("Cost by weight of each design", &labels, value::plain, &bars)))
        (legend(PARTS))
    }
}

/// Returns a scatter plot of the write cost against each other cost that is not 0 for all designs.
fn front(result: &Advice, subjects: &[Subject]) -> Markup {
    let all: [(&str, CostOf); 3] = [
        ("I/Os per point lookup", |costs| costs.points),
        ("I/Os per range lookup", |costs| costs.ranges),
        ("space amplification, ×", |costs| costs.space),
    ];
    let shown =
        all.into_iter().filter(|(_, of)| result.ranked.iter().any(|it| of(&it.costs) > 0.0));
    let content = html! {
        div class="plots" {
            @for (title, of) in shown {
                (figure(&format!("Writes against {title}"), &plane(result, subjects, title, of)))
            }
        }
    };
    let how = "Lower and further to the left is better. The dashed line joins the designs that no other beats in \
               both; a hollow marker is beaten in all four costs.";
    section("The Pareto front", how, &content)
}

fn plane(result: &Advice, subjects: &[Subject], title: &str, of: CostOf) -> Markup {
    let point = |(ranked, subject): (&Ranked, &Subject)| Point {
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
    let points: Vec<Point> = result.ranked.iter().zip(subjects).map(point).collect();
    let axis = |title: &str, of: fn(&Point) -> f64| {
        let values: Vec<f64> = points.iter().map(of).collect();
        Axis::new(Scale::fitting(&values), title, value::plain)
    };
    let x = axis("blocks of 4 KiB moved per write", |point| point.x);
    let y = axis(title, |point| point.y);
    scatter::draw(&format!("{title} against writes by design"), x, y, &points)
}
