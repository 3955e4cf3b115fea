//! How the main figures change from workload to workload: the overview of a page with several.

use maud::{Markup, html};

use super::lookups;
use super::subject::{FigureOf, Group, spread};
use crate::numbers::float;
use crate::report::html::page::{figure, section};
use crate::report::html::plot::frame::{Axis, Format};
use crate::report::html::plot::lines::{self, Line};
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// A figure that is followed over the workloads.
struct Figure {
    title: String,
    format: Format,
    /// Its flat name, by which repetitions know it.
    metric: String,
    of: FigureOf,
}

/// A line per policy over the workloads, for each of the main figures.
pub(super) fn plots(groups: &[Group<'_>]) -> Markup {
    let subjects: Vec<_> = groups.iter().flat_map(|group| group.subjects.clone()).collect();
    let mut figures = vec![
        Figure {
            title: "Write amplification".to_owned(),
            format: value::plain,
            metric: "write_amplification".to_owned(),
            of: Box::new(|it| Some(it.write_amplification)),
        },
        Figure {
            title: "Space amplification".to_owned(),
            format: value::plain,
            metric: "space_amplification".to_owned(),
            of: Box::new(|it| Some(it.space_amplification)),
        },
    ];
    for alpha in lookups::alphas(&subjects) {
        figures.push(Figure {
            title: format!("I/Os per get, α = {alpha}"),
            format: value::plain,
            metric: lookups::metric(alpha, "ios_per_get"),
            of: Box::new(move |it| lookups::row(it, alpha).map(|row| row.ios_per_get)),
        });
    }
    figures.push(Figure {
        title: "The longest put".to_owned(),
        format: value::micros,
        metric: "put_latency_us.max".to_owned(),
        of: Box::new(|it| Some(it.put_latency_us.max).filter(|&us| us > 0.0)),
    });
    let content = html! {
        div class="plots" {
            @for it in &figures {
                @if let Some(plot) = over(groups, it) { (figure(&it.title, &plot)) }
            }
        }
    };
    let how = match groups.first().and_then(|group| group.place.number.as_ref()) {
        Some((name, _)) => format!("The main figures over {name}; each value has its part below."),
        None => "The main figures by workload, numbered as the parts below.".to_owned(),
    };
    section("Over all workloads", &how, &content)
}

fn over(groups: &[Group<'_>], shown: &Figure) -> Option<Markup> {
    let places: Vec<f64> = (1..)
        .zip(groups)
        .map(|(number, group)| group.place.number.as_ref().map_or(float(number), |(_, at)| *at))
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for (group, &at) in groups.iter().zip(&places) {
        for subject in &group.subjects {
            let Some(figure) = (shown.of)(subject.cell) else { continue };
            let known = lines.iter().position(|line| line.name == subject.name);
            let index = known.unwrap_or_else(|| {
                lines.push(Line {
                    marker: subject.marker,
                    name: subject.name.clone(),
                    points: Vec::new(),
                    whiskers: Vec::new(),
                });
                lines.len() - 1
            });
            lines[index].points.push((at, figure));
            if let Some((low, high)) = spread(subject.cell, &shown.metric) {
                lines[index].whiskers.push((at, low, high));
            }
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let values: Vec<f64> = lines
        .iter()
        .flat_map(|line| {
            let whiskers = line.whiskers.iter().flat_map(|&(_, low, high)| [low, high]);
            line.points.iter().map(|point| point.1).chain(whiskers)
        })
        .collect();
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
            if is_bytes(name) { value::bytes } else { value::count },
        ),
        None => ("workload", Scale::around(&places), value::count),
    };
    let count = groups.len();
    let x =
        Axis { scale: scale.with_ticks(ticks), title: title.to_owned(), format: at, ticks: count };
    let y = Axis {
        scale: Scale::fitting(&values),
        title: String::new(),
        format: shown.format,
        ticks: 6,
    };
    let says = format!("a line per policy over {count} workloads");
    Some(lines::draw(&says, x, y, &lines))
}

/// Whether a flag or a field counts bytes.
fn is_bytes(name: &str) -> bool {
    name.ends_with("bytes") || ["memtable", "block-cache", "key-len", "value-len"].contains(&name)
}
