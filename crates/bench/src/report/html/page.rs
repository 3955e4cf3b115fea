//! Layout of an HTML page. A page is a single file, which includes the style sheet and the script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::plot::frame::Axis;
use super::plot::lines::{self, PlotLine};
use crate::report::provenance::Provenance;

pub(super) const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Returns an HTML document. `headline` describes the experiment. `contents` lists the id and the name of each section.
pub(crate) fn render_page(
    title: &str,
    headline: &str,
    provenance: &Provenance,
    contents: &[(String, String)],
    sections: &Markup,
) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(format!("lsmx {}", provenance.version));
                title { (title) }
                // The style sheet and the script are constants that need no escaping.
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p class="headline" { (headline) }
                    (render_provenance(provenance))
                    @if contents.len() > 1 {
                        nav { @for (id, name) in contents { a href=(format!("#{id}")) { (name) } " " } }
                    }
                }
                main { (sections) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    document.into_string()
}

fn render_provenance(provenance: &Provenance) -> Markup {
    html! {
        p class="command" { code { (provenance.command) } }
        dl class="provenance" {
            div { dt { "lsmx" } dd { (provenance.version) } }
            div { dt { "seed" } dd { (provenance.seed) } }
            div { dt { "processor" } dd { (provenance.cpu) } }
            div { dt { "kernel" } dd { (provenance.kernel) } }
            div { dt { "file system" } dd { (provenance.file_system) } }
        }
        @if let Some(spec) = &provenance.spec {
            details { summary { "The spec file" } pre { (spec) } }
        }
    }
}

/// Returns a section of a page. `how` explains to the reader how to read the section.
pub(crate) fn render_section(title: &str, how: &str, content: &Markup) -> Markup {
    html! {
        section {
            h3 { (title) }
            @if !how.is_empty() { p class="how" { (how) } }
            (content)
        }
    }
}

pub(crate) fn render_figure(title: &str, plot: &Markup) -> Markup {
    html! { figure { figcaption { (title) } (plot) } }
}

/// Returns the legend of stacked bars or areas. `parts` contains the CSS class and the name of each segment.
pub(crate) fn render_part_legend<'a>(
    parts: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Markup {
    html! {
        p class="legend" {
            @for (class, name) in parts { span { i class=(format!("box {class}")) {} (name) } }
        }
    }
}

/// Returns a line plot. Omits lines without points. Returns nothing if no line has points. `x` computes the horizontal
/// axis from the sorted x values. `y` computes the vertical axis from the y values and the ends of error bars.
pub(crate) fn render_line_figure(
    title: &str,
    mut lines: Vec<PlotLine>,
    x: impl FnOnce(&[f64]) -> Axis,
    y: impl FnOnce(&[f64]) -> Axis,
) -> Markup {
    lines.retain(|line| !line.points.is_empty());
    if lines.is_empty() {
        return html! {};
    }
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for line in &lines {
        places.extend(line.points.iter().map(|(x, _)| *x));
        values.extend(line.points.iter().map(|(_, y)| *y));
        values.extend(line.whiskers.iter().flat_map(|&(_, low, high)| [low, high]));
    }
    places.sort_by(f64::total_cmp);
    places.dedup();
    render_figure(title, &lines::draw_lines(title, x(&places), y(&values), &lines))
}
