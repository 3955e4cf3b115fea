//! The page of an answer of `lsmx advise`: the ranking, what the costs are made of, the front of those
//! that nothing beats, and of the confirmed designs all that an exploration shows.

use maud::{Markup, html};

use super::columns::{RANKED, question, ranked_row, short_policy, usage};
use super::{Advice, Costs, Preset, Weights};
use crate::error::Result;
use crate::experiment::explore::page::compared;
use crate::experiment::explore::page::subject::Subject;
use crate::metric::html::{self as metrics};
use crate::report::html::page::{figure, legend, page, section};
use crate::report::html::plot::bars::{self, Bar};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::scatter::{self, Point};
use crate::report::html::value;

/// The parts of a cost, with the classes of their colours.
const PARTS: [(&str, &str); 4] =
    [("p0", "writes"), ("p1", "point lookups"), ("p2", "range lookups"), ("p3", "space")];
/// What a marker covers, in px².
const MARKER_PX2: f64 = 80.0;

/// One of the costs.
type Cost = fn(&Costs) -> f64;

/// Returns the page of an answer.
///
/// # Errors
/// If a design cannot be JSON.
pub(super) fn html(result: &Advice) -> Result<String> {
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
        (ranking(result, &names)?)
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
    let headline = question(result).replace('\n', ". ");
    Ok(page("lsmx advise", headline.trim_end(), &result.provenance, &[], &sections))
}

/// What the designs are called: the policy, and the memtable where that tells them apart.
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

fn ranking(result: &Advice, names: &[String]) -> Result<Markup> {
    let subject = |((ranked, name), number): ((_, &String), usize)| {
        let (name, marker) = (name.clone(), Marker::number(number));
        Ok(metrics::Subject { name, marker, row: ranked_row(ranked)? })
    };
    let subjects: Vec<metrics::Subject> =
        result.ranked.iter().zip(names).zip(0..).map(subject).collect::<Result<_>>()?;
    let content = html! {
        (metrics::table(&RANKED, "design", RANKED.shown, &subjects))
        (metrics::legend(&RANKED, RANKED.shown, &subjects))
        ol { @for (it, name) in result.ranked.iter().zip(names) {
            @if it.measured.is_some() { li { strong { (name) } ": " (it.reason) "." } }
        } }
        @if let Some(best) = result.ranked.first() { pre { (usage(best)) } }
    };
    Ok(section("Ranking", "The cost is the weighted sum of the four costs.", &content))
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

fn row(name: String, marker: Marker, costs: &Costs, weights: &Weights) -> Bar {
    let text = format!("{:.3}", costs.sum(weights));
    Bar { marker, name, parts: costs.weighted(weights).into(), text }
}

fn draw_costs(rows: &[Bar]) -> Markup {
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
