//! Sections about point lookups, by the share of absent keys, and about range lookups.

use maud::{Markup, html};

use crate::experiment::distinct_items;
use crate::experiment::explore::columns::REGISTRY;
use crate::metric::Unit;
use crate::metric::html::{PageRow, render_latency_figures, render_stacked_bars};
use crate::report::html::page::{render_line_figure, render_section};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Returns the shares of absent keys for which point lookups were measured, in ascending order.
pub(super) fn list_alphas(subjects: &[PageRow]) -> Vec<f64> {
    let mut alphas: Vec<f64> = Vec::new();
    for subject in subjects {
        let alpha = |name: &str| {
            let alpha = name.strip_prefix("point_lookups[")?.strip_suffix("].ops")?;
            alpha.parse::<f64>().ok().filter(|_| subject.number(name) > Some(0.0))
        };
        alphas.extend(subject.row.names().filter_map(alpha));
    }
    alphas.sort_by(f64::total_cmp);
    alphas.dedup();
    alphas
}

/// Returns the JSON path of the number `number` for point lookups with the share `alpha` of absent keys.
pub(super) fn alpha_metric_name(alpha: f64, number: &str) -> String {
    // The share is formatted as in JSON, so that the result equals the path of the JSON field.
    format!("point_lookups[{}].{number}", serde_json::Value::from(alpha))
}

/// Returns the section about point lookups, or nothing if no point lookups were measured.
pub(super) fn render_point_lookups(subjects: &[PageRow]) -> Markup {
    let alphas = list_alphas(subjects);
    if alphas.is_empty() {
        return html! {};
    }
    let titles: Vec<String> = alphas.iter().map(|alpha| format!("α = {alpha}")).collect();
    let latencies: Vec<(String, String)> = alphas
        .iter()
        .zip(&titles)
        .map(|(&alpha, title)| {
            (format!("Latency of a get, {title}"), alpha_metric_name(alpha, "latency_us"))
        })
        .collect();
    let content = html! {
        @if alphas.len() > 1 {
            div class="plots" {
                (render_alpha_lines(subjects, &alphas, "I/Os per get: blocks of all kinds that the cache did not have", "ios_per_get"))
                (render_alpha_lines(subjects, &alphas, "Mean latency of a get", "latency_us.mean"))
            }
        }
        div class="plots" {
            @for (&alpha, title) in alphas.iter().zip(&titles) {
                (render_block_bars(subjects, &format!("Blocks read per get, {title}"), &alpha_metric_name(alpha, "")))
            }
        }
        (render_latency_figures(&latencies, subjects))
    };
    let how = "α is the share of lookups whose key is absent. Filters answer most of these.";
    render_section("Point lookups", how, &content)
}

/// Returns the section about range lookups, or nothing if no range lookups were measured.
pub(super) fn render_range_lookups(subjects: &[PageRow]) -> Markup {
    let entries = |subject: &PageRow| {
        let ops = subject.number("range_lookups.ops").filter(|ops| *ops > 0.0)?;
        Some(subject.number("range_lookups.entries")? / ops)
    };
    let Some(entries) = subjects.iter().find_map(entries) else { return html! {} };
    let content = html! {
        (render_latency_figures(&[("Latency of a range lookup", "range_lookups.latency_us")], subjects))
        div class="plots" { (render_block_bars(subjects, "Blocks read per range lookup", "range_lookups.")) }
    };
    let how = format!("Each returned {} entries on average.", value::format_count(entries));
    render_section("Range lookups", &how, &content)
}

/// Returns a plot with one line per policy. The x axis is the share of absent keys.
fn render_alpha_lines(subjects: &[PageRow], alphas: &[f64], title: &str, number: &str) -> Markup {
    let line = |subject: &PageRow| {
        let point =
            |&alpha: &f64| Some((alpha, subject.number(&alpha_metric_name(alpha, number))?));
        PlotLine::new(subject.marker, &subject.name, alphas.iter().filter_map(point).collect())
    };
    let format = REGISTRY
        .find(&alpha_metric_name(0.0, number))
        .map_or(Unit::Mean, |it| it.unit)
        .number_format();
    render_line_figure(
        title,
        subjects.iter().map(line).collect(),
        |alphas| {
            Axis::new(Scale::without_margin(alphas), "α, share of absent keys", value::format_plain)
        },
        |values| Axis::new(Scale::linear_or_log(values), "", format),
    )
}

/// Returns stacked bars of the blocks read per lookup, by kind of block. `prefix` is the common prefix of the JSON
/// paths of the numbers.
fn render_block_bars(subjects: &[PageRow], title: &str, prefix: &str) -> Markup {
    let prefix_of_kinds = format!("{prefix}blocks_read.");
    let names = subjects.iter().flat_map(|subject| subject.row.names());
    let kinds =
        distinct_items(names.filter_map(|name| name.strip_prefix(prefix_of_kinds.as_str())));
    let labels: Vec<String> = kinds.iter().map(|kind| kind.replace('_', " ")).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let title = match labels[..] {
        [kind] => format!("{title}, all of kind {kind}"),
        _ => format!("{title}, by kind"),
    };
    render_stacked_bars(&title, &labels, Unit::Blocks, subjects, |subject| {
        let ops = subject.number(&format!("{prefix}ops")).filter(|ops| *ops > 0.0)?;
        let blocks = |kind| subject.number(&format!("{prefix_of_kinds}{kind}")).unwrap_or(0.0);
        Some(kinds.iter().map(|kind| blocks(kind) / ops).collect())
    })
}
