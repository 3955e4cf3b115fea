//! Tables and plots of metrics in HTML pages.

use maud::{Markup, html};

use super::{Better, Column, Registry, Row, Unit};
use crate::report::html::latency;
use crate::report::html::page::{self, figure, section};
use crate::report::html::plot::bars::{self, Bar};
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::spans::Span;
use crate::report::provenance::Provenance;

/// Returns a page with a table of all rows and a bar plot of each column.
pub fn page_of_rows(
    registry: &Registry,
    headline: &str,
    provenance: &Provenance,
    rows: &[Row],
) -> String {
    let identity = registry.columns(registry.identity, rows);
    let subject = |(number, row): (usize, &Row)| {
        let names: Vec<String> = identity.iter().map(|column| column.text(row)).collect();
        Subject { name: names.join(" · "), marker: Marker::number(number), row: row.clone() }
    };
    let subjects: Vec<Subject> = rows.iter().enumerate().map(subject).collect();
    let titles: Vec<&str> = identity.iter().map(|column| column.title.as_str()).collect();
    let content = html! {
        (table_and_legend(registry, &titles.join(", "), registry.shown, &subjects))
        div class="plots" {
            @for column in registry.columns(registry.shown, rows) {
                (bars(registry, &column.name, &column.title, &subjects))
            }
        }
    };
    let title = format!("lsmx {}", registry.command);
    let summary = section("Summary", "A click on a heading sorts.", &content);
    page::page(&title, headline, provenance, &[], &summary)
}

/// A row of a result, with the name and the marker that represent it in an HTML page.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) marker: Marker,
    pub(crate) row: Row,
}

impl Subject {
    /// Returns the number with this flat name; `None` if the number is missing or was not measured.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.row.shown(name)?.as_f64()
    }
}

/// Returns a sortable table with one row per element of `subjects` and one column per metric in `names`. The best value
/// of a cost or rate is bold, unless all values are equal. `heading` is the title of the first column.
fn table(
    registry: &Registry,
    heading: &str,
    names: &[impl AsRef<str>],
    subjects: &[Subject],
) -> Markup {
    let rows: Vec<Row> = subjects.iter().map(|subject| subject.row.clone()).collect();
    let columns = registry.columns(names, &rows);
    let best: Vec<Option<String>> = columns.iter().map(|column| best(column, &rows)).collect();
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
                                (cell(column, &subject.row, best.as_deref()))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a collapsible list that explains the columns of a table.
fn legend(registry: &Registry, names: &[impl AsRef<str>], subjects: &[Subject]) -> Markup {
    let rows: Vec<Row> = subjects.iter().map(|subject| subject.row.clone()).collect();
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

fn cell(column: &Column, row: &Row, best: Option<&str>) -> Markup {
    let text = column.text(row);
    let is_best = best == Some(text.as_str());
    // The script of the page sorts table rows by `number`, or by `text` if there is no number.
    let number = row.shown(&column.name).and_then(|value| value.as_f64());
    html! {
        td class=[is_best.then_some("best")] data-value=[number] {
            @if is_best { strong { (text) } } @else { (text) }
            @if let Some([low, high]) = row.spread(&column.name) {
                @let unit = column.metric.unit;
                small class="spread" { (unit.text(low)) " – " (unit.text(high)) }
            }
        }
    }
}

/// Returns the best value of a column as text; `None` if all values are equal or the metric is neither cost nor rate.
fn best(column: &Column, rows: &[Row]) -> Option<String> {
    let number = |row: &Row| row.shown(&column.name)?.as_f64();
    let numbers = rows.iter().filter_map(number);
    let best = match column.metric.better {
        Better::Less => numbers.reduce(f64::min)?,
        Better::More => numbers.reduce(f64::max)?,
        Better::Neither => return None,
    };
    let text = column.metric.unit.text(best);
    let others = rows.iter().filter_map(number).map(|number| column.metric.unit.text(number));
    others.into_iter().any(|other| other != text).then_some(text)
}

/// Returns a table, followed by explanations of its columns.
pub(crate) fn table_and_legend(
    registry: &Registry,
    heading: &str,
    names: &[impl AsRef<str>],
    subjects: &[Subject],
) -> Markup {
    html! {
        (table(registry, heading, names, subjects))
        (legend(registry, names, subjects))
    }
}

/// Returns a bar plot of one number, with a bar for each row that contains the number. Returns nothing if all bars are
/// empty.
pub(crate) fn bars(registry: &Registry, name: &str, title: &str, subjects: &[Subject]) -> Markup {
    bars_of_parts(registry, title, &[(title, name)], subjects)
}

/// Returns a bar plot with one stacked bar per row. `parts` contains the label and the flat name of each segment.
pub(crate) fn bars_of_parts(
    registry: &Registry,
    title: &str,
    parts: &[(&str, &str)],
    subjects: &[Subject],
) -> Markup {
    let Some(metric) = parts.first().and_then(|(_, name)| registry.find(name)) else {
        return html! {};
    };
    let labels: Vec<&str> = parts.iter().map(|(label, _)| *label).collect();
    stacked_bars(title, &labels, metric.unit, subjects, |subject| {
        parts.iter().map(|(_, name)| subject.number(name)).collect()
    })
}

/// Returns a plot of stacked bars. `parts` computes the segments of a row; a row without segments has no bar. The label
/// of a bar is the sum of its segments. Returns nothing if all bars are empty.
pub(crate) fn stacked_bars(
    title: &str,
    labels: &[&str],
    unit: Unit,
    subjects: &[Subject],
    parts: impl Fn(&Subject) -> Option<Vec<f64>>,
) -> Markup {
    let bar = |subject: &Subject| {
        let (parts, name) = (parts(subject)?, subject.name.clone());
        let text = unit.text_with_unit(parts.iter().sum());
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
            (figure(title, &bars::draw(title, labels, unit.plot_format(), &bars)))
            @if labels.len() > 1 { (page::legend(legend)) }
        }
    }
}

/// Returns a page section with the plots of [`latency_figures`].
pub(crate) fn latencies(kinds: &[(&str, &str)], subjects: &[Subject]) -> Markup {
    section("Latency", "The axis is logarithmic.", &latency_figures(kinds, subjects))
}

/// Returns a plot of latency percentiles for each title and flat name in `kinds`. Omits latencies that no row contains.
pub(crate) fn latency_figures(
    kinds: &[(impl AsRef<str>, impl AsRef<str>)],
    subjects: &[Subject],
) -> Markup {
    let span = |key: &str, subject: &Subject| {
        let percentiles = ["p50", "p90", "p99", "p999", "max"];
        let values: Vec<Option<f64>> =
            percentiles.map(|name| subject.number(&format!("{key}.{name}"))).into();
        let name = subject.name.clone();
        values.iter().any(Option::is_some).then_some(Span { marker: subject.marker, name, values })
    };
    let plot = |(title, key): &(_, _)| {
        let (title, key): (&str, &str) = (AsRef::as_ref(title), AsRef::as_ref(key));
        let spans: Vec<Span> = subjects.iter().filter_map(|subject| span(key, subject)).collect();
        Some(figure(title, &latency::draw(&spans)?))
    };
    let plots: Vec<Markup> = kinds.iter().filter_map(plot).collect();
    if plots.is_empty() {
        return html! {};
    }
    html! {
        (latency::legend())
        div class="plots" { @for plot in plots { (plot) } }
    }
}
