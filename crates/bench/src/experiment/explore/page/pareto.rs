//! Write against read against space: which policies nothing is better than.

use maud::{Markup, html};

use super::lookups;
use super::subject::{FigureOf, Subject};
use crate::experiment::explore::result::Cell;
use crate::report::html::page::{figure, section};
use crate::report::html::plot::frame::{Axis, Format};
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::scatter::{self, Point};
use crate::report::html::value;

/// Smallest and largest area of a marker, in px².
const AREA_PX2: (f64, f64) = (50.0, 420.0);

/// One of the costs that are weighed against each other; less is better.
struct Cost {
    name: String,
    format: Format,
    of: FigureOf,
}

/// A plot of writes against reads for each share of absent keys, and one of writes against space.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Markup {
    let write = || Cost {
        name: "write amplification, ×".to_owned(),
        format: value::plain,
        of: Box::new(|it| Some(it.write_amplification)),
    };
    let space = || Cost {
        name: "space amplification, ×".to_owned(),
        format: value::plain,
        of: Box::new(|it| Some(it.space_amplification)),
    };
    let reads: Vec<(f64, Cost)> = lookups::alphas(subjects)
        .into_iter()
        .map(|alpha| {
            let of = move |it: &Cell| lookups::row(it, alpha).map(|row| row.ios_per_get);
            let name = format!("I/Os per get, α = {alpha}");
            (alpha, Cost { name, format: value::plain, of: Box::new(of) })
        })
        .collect();
    let content = html! {
        div class="plots" {
            @for (alpha, read) in &reads {
                (figure(
                    &format!("Write against read, α = {alpha}; size is space amplification"),
                    &plot(subjects, &write(), read, &space()),
                ))
            }
            @if let Some((_, read)) = reads.first() {
                (figure("Write against space; size is I/Os per get", &plot(subjects, &write(), &space(), read)))
            } @else {
                (figure("Write against space", &pair(subjects, &write(), &space())))
            }
        }
    };
    let how = if reads.is_empty() {
        "Lower and further to the left is better. The dashed line joins the policies that no other \
         beats in both; hollow markers are behind it. There were no lookups, so reads are not weighed."
    } else {
        "Lower and further to the left is better, α is the share of lookups that ask for absent keys. \
         The dashed line joins the policies that no \
         other beats in the two costs of the axes; a hollow marker is beaten in all three."
    };
    section("What it costs to write, to read and to keep", how, &content)
}

fn plot(subjects: &[Subject<'_>], x: &Cost, y: &Cost, size: &Cost) -> Markup {
    let shown: Vec<(&Subject<'_>, [f64; 3])> = subjects
        .iter()
        .filter_map(|it| Some((it, [(x.of)(it.cell)?, (y.of)(it.cell)?, (size.of)(it.cell)?])))
        .collect();
    let costs: Vec<[f64; 3]> = shown.iter().map(|(_, costs)| *costs).collect();
    let sizes = costs.iter().map(|costs| costs[2]);
    let largest = sizes.clone().fold(f64::NEG_INFINITY, f64::max);
    let smallest = sizes.fold(f64::INFINITY, f64::min);
    let area = |size: f64| {
        let share = if largest > smallest { (size - smallest) / (largest - smallest) } else { 0.3 };
        AREA_PX2.0 + share * (AREA_PX2.1 - AREA_PX2.0)
    };
    let points = shown.iter().map(|(it, [at_x, at_y, at_size])| Point {
        marker: it.marker,
        name: it.name.clone(),
        x: *at_x,
        y: *at_y,
        area: area(*at_size),
        faint: is_beaten(&[*at_x, *at_y, *at_size], &costs),
        says: format!(
            "{}: {} {}, {} {}, {} {}",
            it.name,
            x.name,
            (x.format)(*at_x),
            y.name,
            (y.format)(*at_y),
            size.name,
            (size.format)(*at_size)
        ),
    });
    draw(x, y, &points.collect::<Vec<_>>())
}

/// As [`plot`], without a third cost.
fn pair(subjects: &[Subject<'_>], x: &Cost, y: &Cost) -> Markup {
    let shown: Vec<(&Subject<'_>, [f64; 2])> =
        subjects.iter().filter_map(|it| Some((it, [(x.of)(it.cell)?, (y.of)(it.cell)?]))).collect();
    let costs: Vec<[f64; 2]> = shown.iter().map(|(_, costs)| *costs).collect();
    let points = shown.iter().map(|(it, [at_x, at_y])| Point {
        marker: it.marker,
        name: it.name.clone(),
        x: *at_x,
        y: *at_y,
        area: AREA_PX2.0 * 1.6,
        faint: is_beaten(&[*at_x, *at_y], &costs),
        says: format!(
            "{}: {} {}, {} {}",
            it.name,
            x.name,
            (x.format)(*at_x),
            y.name,
            (y.format)(*at_y)
        ),
    });
    draw(x, y, &points.collect::<Vec<_>>())
}

fn draw(x: &Cost, y: &Cost, points: &[Point]) -> Markup {
    let axis = |cost: &Cost, values: Vec<f64>| Axis {
        scale: Scale::fitting(&values),
        title: cost.name.clone(),
        format: cost.format,
        ticks: 6,
    };
    let says = format!("{} against {} by policy", x.name, y.name);
    let x = axis(x, points.iter().map(|point| point.x).collect());
    let y = axis(y, points.iter().map(|point| point.y).collect());
    scatter::draw(&says, x, y, points)
}

/// Whether one of the others is no worse in any cost and better in at least one.
fn is_beaten<const N: usize>(costs: &[f64; N], others: &[[f64; N]]) -> bool {
    others.iter().any(|other| {
        other.iter().zip(costs).all(|(other, own)| other <= own)
            && other.iter().zip(costs).any(|(other, own)| other < own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_do_not_beat_each_other() {
        let costs = [[1.0, 5.0, 2.0], [1.0, 5.0, 2.0], [2.0, 5.0, 2.0], [0.5, 9.0, 9.0]];
        let beaten: Vec<bool> = costs.iter().map(|own| is_beaten(own, &costs)).collect();
        assert_eq!(beaten, [false, false, true, false]);
    }
}
