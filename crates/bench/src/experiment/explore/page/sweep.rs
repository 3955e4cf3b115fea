//! Overview of a page with several workloads: plots of the main measurements over the workloads.

use maud::{Markup, html};

use super::lookups;
use super::page_cell::WorkloadGroup;
use crate::experiment::explore::columns::REGISTRY;
use crate::metric::html::PageRow;
use crate::numbers::to_f64;
use crate::report::html::page::{render_line_figure, render_section};
use crate::report::html::plot::frame::{Axis, NumberFormat};
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Returns one plot per main measurement. Each plot has a line per policy, and the workloads on the x axis.
pub(super) fn render_sweep_plots(groups: &[WorkloadGroup<'_>]) -> Markup {
    let subjects: Vec<PageRow> = groups.iter().flat_map(|group| group.subjects.clone()).collect();
    let mut numbers = vec![
        ("Write amplification".to_owned(), "write_amplification".to_owned()),
        ("Space amplification".to_owned(), "space_amplification".to_owned()),
    ];
    numbers.extend(lookups::list_alphas(&subjects).into_iter().map(|alpha| {
        (format!("I/Os per get, α = {alpha}"), lookups::alpha_metric_name(alpha, "ios_per_get"))
    }));
    numbers.push(("The longest put".to_owned(), "put_latency_us.max".to_owned()));
    let content = html! {
        div class="plots" { @for (title, name) in &numbers { (render_group_lines(groups, title, name)) } }
    };
    let how = match groups.first().and_then(|group| group.place.number.as_ref()) {
        Some((name, _)) => format!("The main numbers over {name}; each value has its part below."),
        None => "The main numbers by workload, numbered as the parts below.".to_owned(),
    };
    render_section("Over all workloads", &how, &content)
}

fn render_group_lines(groups: &[WorkloadGroup<'_>], title: &str, name: &str) -> Markup {
    let mut lines: Vec<PlotLine> = Vec::new();
    let mut places: Vec<f64> = Vec::new();
    for (number, group) in (1..).zip(groups) {
        let place = group.place.number.as_ref().map_or(to_f64(number), |(_, at)| *at);
        places.push(place);
        for subject in &group.subjects {
            let Some(value) = subject.number(name) else { continue };
            let known = lines.iter().position(|line| line.name == subject.name);
            let index = known.unwrap_or_else(|| {
                lines.push(PlotLine::new(subject.marker, &subject.name, Vec::new()));
                lines.len() - 1
            });
            lines[index].points.push((place, value));
            let spread = subject.row.repeat_range(name).map(|[low, high]| (place, low, high));
            lines[index].whiskers.extend(spread);
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    places.sort_by(f64::total_cmp);
    let named = groups.first().and_then(|group| group.place.number.as_ref());
    let (x_title, scale, x_format): (&str, Scale, NumberFormat) = match named {
        Some((name, _)) if is_byte_count(name) => {
            (name, Scale::linear_or_log(&places), value::format_bytes)
        }
        Some((name, _)) => (name, Scale::linear_or_log(&places), value::format_count),
        None => ("workload", Scale::with_margin(&places), value::format_count),
    };
    let format = REGISTRY
        .find(name)
        .map_or(value::format_plain as NumberFormat, |it| it.unit.number_format());
    render_line_figure(
        title,
        lines,
        |_| Axis { ticks: groups.len(), ..Axis::new(scale.with_ticks(places), x_title, x_format) },
        |values| Axis::new(Scale::linear_or_log(values), "", format),
    )
}

/// Returns whether the value of the flag or field is a number of bytes.
fn is_byte_count(name: &str) -> bool {
    name.ends_with("bytes") || ["memtable", "block-cache", "key-len", "value-len"].contains(&name)
}
