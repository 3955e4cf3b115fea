//! The page of an answer of `lsmx advise`: the ranking, what the costs are made of, the front of those
//! that nothing beats, and of the confirmed designs all that an exploration shows.

use maud::{Markup, html};

use super::page::{figure, legend, page, section};
use super::plot::bars::{self, Row};
use super::plot::frame::Axis;
use super::plot::marker::Marker;
use super::plot::scale::Scale;
use super::plot::scatter::{self, Point};
use super::subject::Subject;
use super::{compared, value};
use crate::experiment::advise::{Advice, Costs, Preset, Weights};
use crate::report::advice;

/// The parts of a cost, with the classes of their colours.
const PARTS: [(&str, &str); 4] =
    [("p0", "writes"), ("p1", "point lookups"), ("p2", "range lookups"), ("p3", "space")];
/// What a marker covers, in px².
const MARKER_PX2: f64 = 80.0;

/// One of the costs.
type Cost = fn(&Costs) -> f64;

/// The page of an answer.
#[must_use]
pub fn page_of(result: &Advice) -> String {
    let names = names(result);
    let subjects: Vec<Subject<'_>> = result
        .cells
        .iter()
        .zip(names.iter().zip(0..))
        .map(|(cell, (name, number))| Subject {
            name: name.clone(),
            marker: Marker::number(number),
            cell,
        })
        .collect();
    let sections = html! {
        (ranking(result, &names))
        (costs(result, &names))
        (front(result, &names))
        @if let Some(presets) = &result.presets {
            (preset_costs(&presets.cells, presets.advice_to_best, &result.asked.weights))
        }
        @if !subjects.is_empty() {
            h2 { "The confirmed designs on the engine" }
            (compared(&subjects))
        }
    };
    let headline = advice::asked(result).replace('\n', ". ");
    page("lsmx advise", headline.trim_end(), &result.provenance, &[], &sections)
}

/// What the designs are called: the policy, and the memtable where that tells them apart.
fn names(result: &Advice) -> Vec<String> {
    let policies: Vec<String> =
        result.ranked.iter().map(|it| advice::short(&it.policy, &it.spec)).collect();
    let name = |(at, policy): (usize, &String)| {
        let alone = policies.iter().filter(|other| *other == policy).count() == 1;
        let memtable = crate::report::text::bytes(result.ranked[at].memtable_bytes);
        if alone { policy.clone() } else { format!("{policy}, {memtable}") }
    };
    policies.iter().enumerate().map(name).collect()
}

fn ranking(result: &Advice, names: &[String]) -> Markup {
    let header = [
        "cost",
        "simulated",
        "measured",
        "blocks moved per write",
        "I/Os per get",
        "I/Os per range",
        "space",
    ];
    let content = html! {
        div class="scroll" {
            table class="sortable" {
                thead { tr {
                    th scope="col" { "design" }
                    @for name in header { th scope="col" { (name) } }
                } }
                tbody {
                    @for ((it, name), number) in result.ranked.iter().zip(names).zip(0..) {
                        tr data-name=(name) {
                            th scope="row" { (Marker::number(number).swatch()) (name) }
                            (number_cell(Some(it.cost)))
                            (number_cell(Some(it.simulated.cost)))
                            (number_cell(it.measured.map(|it| it.cost)))
                            @for cost in [it.costs.writes, it.costs.points, it.costs.ranges, it.costs.space] {
                                (number_cell(Some(cost)))
                            }
                        }
                    }
                }
            }
        }
        ol { @for (it, name) in result.ranked.iter().zip(names) {
            @if it.measured.is_some() { li { strong { (name) } ": " (it.reason) "." } }
        } }
        @if let Some(best) = result.ranked.first() { pre { (advice::paste(best)) } }
    };
    section(
        "Ranking",
        "The cost is the sum of the four to the right, each by its weight; where a design was confirmed, as the \
         engine has it.",
        &content,
    )
}

fn number_cell(number: Option<f64>) -> Markup {
    match number {
        Some(number) => html! { td data-value=(number) { (format!("{number:.3}")) } },
        None => html! { td { "–" } },
    }
}

fn costs(result: &Advice, names: &[String]) -> Markup {
    let weights = &result.asked.weights;
    let rows =
        result.ranked.iter().zip(names).zip(0..).map(|((it, name), number)| {
            row(name.clone(), Marker::number(number), &it.costs, weights)
        });
    let content = html! {
        (figure("Cost by weight", &draw_costs(&rows.collect::<Vec<_>>())))
        (legend(PARTS))
    };
    section("What the costs are made of", "", &content)
}

fn preset_costs(presets: &[Preset], advice_to_best: f64, weights: &Weights) -> Markup {
    let rows = presets.iter().zip(0..).map(|(it, number)| {
        row(it.policy.clone(), Marker::number(number), &it.measured.costs, weights)
    });
    let content = html! {
        (figure("Cost by weight, measured", &draw_costs(&rows.collect::<Vec<_>>())))
        (legend(PARTS))
    };
    let how = format!("The advice costs {advice_to_best:.3} of the cheapest of them.");
    section("Every preset on the engine", &how, &content)
}

fn row(name: String, marker: Marker, costs: &Costs, weights: &Weights) -> Row {
    let text = format!("{:.3}", costs.sum(weights));
    Row { marker, name, parts: costs.weighted(weights).into(), text }
}

fn draw_costs(rows: &[Row]) -> Markup {
    bars::draw("Cost by weight of each design", &PARTS.map(|(_, name)| name), value::plain, rows)
}

/// Writes against the lookups that cost something.
fn front(result: &Advice, names: &[String]) -> Markup {
    let all: [(&str, Cost); 3] = [
        ("I/Os per point lookup", |costs| costs.points),
        ("I/Os per range lookup", |costs| costs.ranges),
        ("space amplification, ×", |costs| costs.space),
    ];
    let shown =
        all.into_iter().filter(|(_, of)| result.ranked.iter().any(|it| of(&it.costs) > 0.0));
    let content = html! {
        div class="plots" {
            @for (title, of) in shown {
                (figure(&format!("Writes against {title}"), &plane(result, names, title, of)))
            }
        }
    };
    let how = "Lower and further to the left is better. The dashed line joins the designs that no other beats in \
               both; a hollow marker is beaten in all four costs.";
    section("The Pareto front", how, &content)
}

fn plane(result: &Advice, names: &[String], title: &str, of: Cost) -> Markup {
    let points: Vec<Point> = result
        .ranked
        .iter()
        .zip(names)
        .zip(0..)
        .map(|((it, name), number)| Point {
            marker: Marker::number(number),
            name: name.clone(),
            x: it.costs.writes,
            y: of(&it.costs),
            area: MARKER_PX2,
            faint: !it.pareto,
            says: format!("{name}: {:.3}, {title} {:.3}", it.costs.writes, of(&it.costs)),
        })
        .collect();
    let axis = |title: &str, values: Vec<f64>| Axis {
        scale: Scale::fitting(&values),
        title: title.to_owned(),
        format: value::plain,
        ticks: 6,
    };
    let x = axis("blocks of 4 KiB moved per write", points.iter().map(|it| it.x).collect());
    let y = axis(title, points.iter().map(|it| it.y).collect());
    scatter::draw(&format!("{title} against writes by design"), x, y, &points)
}
