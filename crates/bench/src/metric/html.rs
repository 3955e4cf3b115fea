//! Tables and plots of metrics in HTML pages.

use maud::{Markup, html};

use super::{BetterDirection, MetricRegistry, ResultRow, TableColumn, Unit};
use crate::report::html::latency;
use crate::report::html::page::{self, render_figure, render_section};
use crate::report::html::plot::bars::{self, Bar};
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::spans::ValueSpan;
use crate::report::provenance::Provenance;

/// Returns a page with a table of all rows and a bar plot of each column.
pub fn render_rows_page(
    registry: &MetricRegistry,
    headline: &str,
    provenance: &Provenance,
    rows: &[ResultRow],
) -> String {
    let identity = registry.columns(registry.identity, rows);
    let subject = |(number, row): (usize, &ResultRow)| {
        let names: Vec<String> = identity.iter().map(|column| column.format_value(row)).collect();
        PageRow { name: names.join(" · "), marker: Marker::with_number(number), row: row.clone() }
    };
    let subjects: Vec<PageRow> = rows.iter().enumerate().map(subject).collect();
    let titles: Vec<&str> = identity.iter().map(|column| column.title.as_str()).collect();
    let content = html! {
        (render_table_and_legend(registry, &titles.join(", "), registry.shown, &subjects))
        div class="plots" {
            @for column in registry.columns(registry.shown, rows) {
                (render_bars(registry, &column.name, &column.title, &subjects))
            }
        }
    };
    let title = format!("lsmx {}", registry.command);
    let summary = render_section("Summary", "A click on a heading sorts.", &content);
    page::render_page(&title, headline, provenance, &[], &summary)
}

/// A row of a result, with the name and the marker that represent it in an HTML page.
#[derive(Clone, Debug)]
pub(crate) struct PageRow {
    pub(crate) name: String,
    pub(crate) marker: Marker,
    pub(crate) row: ResultRow,
}

impl PageRow {
    /// Returns the number with this flat name, or `None` if the number is missing or was not measured.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.row.displayed_value(name)?.as_f64()
    }
}

/// Returns a sortable table with one row per element of `subjects` and one column per metric in `names`. The best value
/// of a cost or rate is bold, unless all values are equal. `heading` is the title of the first column.
fn render_table(
    registry: &MetricRegistry,
    heading: &str,
    names: &[impl AsRef<str>],
    subjects: &[PageRow],
) -> Markup {
    let rows: Vec<ResultRow> = subjects.iter().map(|subject| subject.row.clone()).collect();
    let columns = registry.columns(names, &rows);
    let best: Vec<Option<String>> =
        columns.iter().map(|column| find_best_value(column, &rows)).collect();
    html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { (heading) }
                        @for column in &columns {
                            th scope="col" title=(column.metric.about) {
                                (column.title) small { (column.metric.unit.name()) }
                            }
                        }
                    }
                }
                tbody {
                    @for subject in subjects {
                        tr data-name=(subject.name) {
                            th scope="row" { (subject.marker.swatch()) (subject.name) }
                            @for (column, best) in columns.iter().zip(&best) {
                                (render_cell(column, &subject.row, best.as_deref()))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a collapsible list that explains the columns of a table.
fn render_column_legend(
    registry: &MetricRegistry,
    names: &[impl AsRef<str>],
    subjects: &[PageRow],
) -> Markup {
    let rows: Vec<ResultRow> = subjects.iter().map(|subject| subject.row.clone()).collect();
    html! {
        details {
            summary { "What the columns mean" }
            dl {
                @for column in registry.columns(names, &rows) {
                    dt { (column.title) } dd { (column.metric.about) }
                }
            }
        }
    }
}

fn render_cell(column: &TableColumn, row: &ResultRow, best: Option<&str>) -> Markup {
    let text = column.format_value(row);
    let is_best = best == Some(text.as_str());
    // The script of the page sorts table rows by `number`, or by `text` if there is no number.
    let number = row.displayed_value(&column.name).and_then(|value| value.as_f64());
    html! {
        td class=[is_best.then_some("best")] data-value=[number] {
            @if is_best { strong { (text) } } @else { (text) }
            @if let Some([low, high]) = row.repeat_range(&column.name) {
                @let unit = column.metric.unit;
                small class="spread" { (unit.format_number(low)) " – " (unit.format_number(high)) }
            }
        }
    }
}

/// Returns the best value of a column as text. Returns `None` if all values are equal, or if the metric is neither a
/// cost nor a rate.
fn find_best_value(column: &TableColumn, rows: &[ResultRow]) -> Option<String> {
    let number = |row: &ResultRow| row.displayed_value(&column.name)?.as_f64();
    let numbers = rows.iter().filter_map(number);
    let best = match column.metric.better {
        BetterDirection::Less => numbers.reduce(f64::min)?,
        BetterDirection::More => numbers.reduce(f64::max)?,
        BetterDirection::Neither => return None,
    };
    let text = column.metric.unit.format_number(best);
    let others =
        rows.iter().filter_map(number).map(|number| column.metric.unit.format_number(number));
    others.into_iter().any(|other| other != text).then_some(text)
}

/// Returns a table, followed by explanations of its columns.
pub(crate) fn render_table_and_legend(
    registry: &MetricRegistry,
    heading: &str,
    names: &[impl AsRef<str>],
    subjects: &[PageRow],
) -> Markup {
    html! {
        (render_table(registry, heading, names, subjects))
        (render_column_legend(registry, names, subjects))
    }
}

/// Returns a bar plot of one number, with a bar for each row that contains the number. Returns nothing if all bars are
/// empty.
pub(crate) fn render_bars(
    registry: &MetricRegistry,
    name: &str,
    title: &str,
    subjects: &[PageRow],
) -> Markup {
    render_part_bars(registry, title, &[(title, name)], subjects)
}

/// Returns a bar plot with one stacked bar per row. `parts` contains the label and the flat name of each segment.
pub(crate) fn render_part_bars(
    registry: &MetricRegistry,
    title: &str,
    parts: &[(&str, &str)],
    subjects: &[PageRow],
) -> Markup {
    let Some(metric) = parts.first().and_then(|(_, name)| registry.find(name)) else {
        return html! {};
    };
    let labels: Vec<&str> = parts.iter().map(|(label, _)| *label).collect();
    render_stacked_bars(title, &labels, metric.unit, subjects, |subject| {
        parts.iter().map(|(_, name)| subject.number(name)).collect()
    })
}

/// Returns a plot of stacked bars. `parts` computes the segments of a row. A row has no bar if `parts` returns `None`.
/// The label of a bar is the sum of its segments. Returns nothing if all bars are empty.
pub(crate) fn render_stacked_bars(
    title: &str,
    labels: &[&str],
    unit: Unit,
    subjects: &[PageRow],
    parts: impl Fn(&PageRow) -> Option<Vec<f64>>,
) -> Markup {
    let bar = |subject: &PageRow| {
        let (parts, name) = (parts(subject)?, subject.name.clone());
        let text = unit.format_with_unit(parts.iter().sum());
        Some(Bar { marker: subject.marker, name, parts, text })
    };
    let bars: Vec<Bar> = subjects.iter().filter_map(bar).collect();
    if bars.iter().flat_map(|bar| &bar.parts).all(|part| *part == 0.0) {
        return html! {};
    }
    let classes: Vec<String> = (0..labels.len()).map(|index| format!("p{index}")).collect();
    let legend = classes.iter().map(String::as_str).zip(labels.iter().copied());
    html! {
        div {
            (render_figure(title, &bars::draw_bars(title, labels, unit.number_format(), &bars)))
            @if labels.len() > 1 { (page::render_part_legend(legend)) }
        }
    }
}

/// Returns a page section with the plots of [`render_latency_figures`].
pub(crate) fn render_latency_section(kinds: &[(&str, &str)], subjects: &[PageRow]) -> Markup {
    render_section("Latency", "The axis is logarithmic.", &render_latency_figures(kinds, subjects))
}

/// Returns a plot of latency percentiles for each title and flat name in `kinds`. Omits latencies that no row contains.
pub(crate) fn render_latency_figures(
    kinds: &[(impl AsRef<str>, impl AsRef<str>)],
    subjects: &[PageRow],
) -> Markup {
    let span = |key: &str, subject: &PageRow| {
        let percentiles = ["p50", "p90", "p99", "p999", "max"];
        let values: Vec<Option<f64>> =
            percentiles.map(|name| subject.number(&format!("{key}.{name}"))).into();
        let name = subject.name.clone();
        values.iter().any(Option::is_some).then_some(ValueSpan {
            marker: subject.marker,
            name,
            values,
        })
    };
    let plot = |(title, key): &(_, _)| {
        let (title, key): (&str, &str) = (AsRef::as_ref(title), AsRef::as_ref(key));
        let spans: Vec<ValueSpan> =
            subjects.iter().filter_map(|subject| span(key, subject)).collect();
        Some(render_figure(title, &latency::draw_latencies(&spans)?))
    };
    let plots: Vec<Markup> = kinds.iter().filter_map(plot).collect();
    if plots.is_empty() {
        return html! {};
    }
    html! {
        (latency::render_latency_legend())
        div class="plots" { @for plot in plots { (plot) } }
    }
}
