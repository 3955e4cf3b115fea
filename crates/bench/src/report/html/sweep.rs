//! How the main figures change from workload to workload: the overview of a page with several.

use maud::{Markup, html};

use super::page::{figure, section};
use super::plot::frame::{Axis, Format};
use super::plot::lines::{self, Line};
use super::plot::scale::Scale;
use super::subject::{FigureOf, Group};
use super::{lookups, value};
use crate::numbers::float;

/// A line per policy over the workloads, for each of the main figures.
pub(super) fn plots(groups: &[Group<'_>]) -> Markup {
    let subjects: Vec<_> = groups.iter().flat_map(|group| group.subjects.clone()).collect();
    let mut figures: Vec<(String, Format, FigureOf)> = vec![
        (
            "Write amplification".to_owned(),
            value::plain,
            Box::new(|it| Some(it.write_amplification)),
        ),
        (
            "Space amplification".to_owned(),
            value::plain,
            Box::new(|it| Some(it.space_amplification)),
        ),
    ];
    for alpha in lookups::alphas(&subjects) {
        let of: FigureOf = Box::new(move |it| lookups::row(it, alpha).map(|row| row.ios_per_get));
        figures.push((format!("I/Os per get, α = {alpha}"), value::plain, of));
    }
    figures.push((
        "The longest put".to_owned(),
        value::micros,
        Box::new(|it| Some(it.put_latency_us.max).filter(|&us| us > 0.0)),
    ));
    let content = html! {
        div class="plots" {
            @for (title, format, of) in &figures {
                @if let Some(plot) = over(groups, *format, of) { (figure(title, &plot)) }
            }
        }
    };
    let how = match groups.first().and_then(|group| group.place.number.as_ref()) {
        Some((name, _)) => format!("The main figures over {name}; each value has its part below."),
        None => "The main figures by workload, numbered as the parts below.".to_owned(),
    };
    section("Over all workloads", &how, &content)
}

fn over(groups: &[Group<'_>], format: Format, of: &FigureOf) -> Option<Markup> {
    let places: Vec<f64> = (1..)
        .zip(groups)
        .map(|(number, group)| group.place.number.as_ref().map_or(float(number), |(_, at)| *at))
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for (group, &at) in groups.iter().zip(&places) {
        for subject in &group.subjects {
            let Some(figure) = of(subject.cell) else { continue };
            match lines.iter_mut().find(|line| line.name == subject.name) {
                Some(line) => line.points.push((at, figure)),
                None => lines.push(Line {
                    marker: subject.marker,
                    name: subject.name.clone(),
                    points: vec![(at, figure)],
                }),
            }
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let values: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.1)).collect();
    if values.is_empty() {
        return None;
    }
    let named = groups.first().and_then(|group| group.place.number.as_ref());
    let mut ticks = places.clone();
    ticks.sort_by(f64::total_cmp);
    let (title, scale, at): (&str, Scale, Format) = match named {
        Some((name, _)) => (
            name,
            Scale::fitting(&places),
            if name.ends_with("bytes") { value::bytes } else { value::count },
        ),
        None => ("workload", Scale::around(&places), value::count),
    };
    let count = groups.len();
    let x =
        Axis { scale: scale.with_ticks(ticks), title: title.to_owned(), format: at, ticks: count };
    let y = Axis { scale: Scale::fitting(&values), title: String::new(), format, ticks: 6 };
    let says = format!("a line per policy over {count} workloads");
    Some(lines::draw(&says, x, y, &lines))
}
