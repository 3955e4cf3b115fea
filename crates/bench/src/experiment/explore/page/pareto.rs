//! Scatter plots of write cost against read cost and space, with the Pareto front.

use maud::{Markup, html};

use super::lookups;
use crate::metric::html::PageRow;
use crate::report::html::page::{render_figure, render_section};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::scatter::{self, ScatterPoint};
use crate::report::html::value;

/// Smallest and largest area of a marker in px².
const AREA_PX2: (f64, f64) = (50.0, 420.0);
/// Relative area of markers in a plot without a third cost. 0 is the smallest area, 1 the largest.
const AREA_SHARE_DEFAULT: f64 = 0.3;

/// Title and JSON path of a cost.
type CostColumn<'a> = (&'a str, &'a str);

const WRITE: CostColumn<'_> = ("write amplification, ×", "write_amplification");
const SPACE: CostColumn<'_> = ("space amplification, ×", "space_amplification");

/// Returns the section with a plot of write cost against space, and a plot of write cost against read cost for each
/// share of absent keys.
pub(super) fn render_pareto_plots(subjects: &[PageRow]) -> Markup {
    let reads: Vec<(f64, String, String)> = lookups::list_alphas(subjects)
        .into_iter()
        .map(|alpha| {
            (
                alpha,
                format!("I/Os per get, α = {alpha}"),
                lookups::alpha_metric_name(alpha, "ios_per_get"),
            )
        })
        .collect();
    let content = html! {
        div class="plots" {
            @for (alpha, title, name) in &reads {
                (render_figure(&format!("Write against read, α = {alpha}; size is space amplification"),
                    &render_cost_plot(subjects, &[WRITE, (title, name), SPACE])))
            }
            @if let Some((_, title, name)) = reads.first() {
                (render_figure("Write against space; size is I/Os per get",
                    &render_cost_plot(subjects, &[WRITE, SPACE, (title, name)])))
            } @else {
                (render_figure("Write against space", &render_cost_plot(subjects, &[WRITE, SPACE])))
            }
        }
    };
    let how = if reads.is_empty() {
        "Lower and further to the left is better. The dashed line joins the policies that no other policy beats in both \
         costs; hollow markers are behind it. Without lookups there is no cost of reads."
    } else {
        "Lower and further to the left is better. α is the share of lookups whose key is absent. The dashed line joins \
         the policies that no other policy beats in the two costs of the axes; a hollow marker is beaten in all three."
    };
    render_section("What it costs to write, to read and to keep", how, &content)
}

/// Draws a scatter plot of the second cost against the first. A third cost, if given, determines the marker size.
fn render_cost_plot(subjects: &[PageRow], costs: &[CostColumn<'_>]) -> Markup {
    let costs_of = |subject: &PageRow| -> Option<Vec<f64>> {
        costs.iter().map(|(_, name)| subject.number(name)).collect()
    };
    let shown: Vec<(&PageRow, Vec<f64>)> =
        subjects.iter().filter_map(|subject| Some((subject, costs_of(subject)?))).collect();
    let values = |index: usize| -> Vec<f64> {
        shown.iter().filter_map(|(_, costs)| costs.get(index).copied()).collect()
    };
    let largest = values(2).into_iter().fold(f64::NEG_INFINITY, f64::max);
    let smallest = values(2).into_iter().fold(f64::INFINITY, f64::min);
    let point = |(subject, own): &(&PageRow, Vec<f64>)| {
        let share = match own.get(2) {
            Some(size) if largest > smallest => (size - smallest) / (largest - smallest),
            _ => AREA_SHARE_DEFAULT,
        };
        let texts = costs.iter().zip(own);
        let texts: Vec<String> = texts
            .map(|((title, _), cost)| format!("{title} {}", value::format_plain(*cost)))
            .collect();
        ScatterPoint {
            marker: subject.marker,
            name: subject.name.clone(),
            x: own[0],
            y: own[1],
            area: AREA_PX2.0 + share * (AREA_PX2.1 - AREA_PX2.0),
            faint: shown.iter().any(|(_, other)| dominates(other, own)),
            says: format!("{}: {}", subject.name, texts.join(", ")),
        }
    };
    let points: Vec<ScatterPoint> = shown.iter().map(point).collect();
    let axis = |index: usize| {
        Axis::new(Scale::linear_or_log(&values(index)), costs[index].0, value::format_plain)
    };
    let says = format!("{} against {} by policy", costs[0].0, costs[1].0);
    scatter::draw_scatter(&says, axis(0), axis(1), &points)
}

fn dominates(other: &[f64], own: &[f64]) -> bool {
    let pairs = || other.iter().zip(own);
    pairs().all(|(other, own)| other <= own) && pairs().any(|(other, own)| other < own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pareto_equal_costs_do_not_beat_each_other() {
        let costs = [[1.0, 5.0, 2.0], [1.0, 5.0, 2.0], [2.0, 5.0, 2.0], [0.5, 9.0, 9.0]];
        let beaten = costs.map(|own| costs.iter().any(|other| dominates(other, &own)));
        assert_eq!(beaten, [false, false, true, false]);
    }
}
