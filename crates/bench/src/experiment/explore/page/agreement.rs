//! Compares the numbers of the cost model, the simulator and the engine. Numbers with the same JSON path (flat name)
//! are compared.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::lookups;
use crate::experiment::explore::columns::REGISTRY;
use crate::metric::html::PageRow;
use crate::metric::{ResultRow, Unit};
use crate::report::html::page::{render_figure, render_section};
use crate::report::html::plot::frame::Axis;
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::spans::{self, ValueSpan};
use crate::report::html::value;

/// Compared sources, in the order of their plot markers.
const SOURCES: [&str; 3] = ["closed form", "simulated", "engine"];

const NUMBERS: [(&str, &str); 7] = [
    ("data_moved_ratio", "Data moved, × ingested"),
    ("write_amplification", "Write amplification"),
    ("compaction_write_amplification", "Compaction written ÷ unique live data"),
    ("compaction.jobs", "Merges"),
    ("compaction.trivial_moves", "Trivial moves"),
    ("files", "Files at the end"),
    ("space_amplification", "Space amplification"),
];

/// Names of numbers in the cost model, each with the JSON path of the corresponding measured number.
const ALIASES: [(&str, &str); 2] = [
    ("present_lookup_ios", "point_lookups[0.0].ios_per_get"),
    ("absent_lookup_ios", "point_lookups[1.0].ios_per_get"),
];

/// Relative deviations above which a table cell is highlighted. The tests of the simulator allow a deviation of 0.05
/// for means over seeds and 0.15 for a single seed.
const DEVIATIONS: [f64; 2] = [0.05, 0.15];

/// Numbers of one policy and workload, by flat name (JSON path). Each array contains the value of each source, in the
/// order of [`SOURCES`].
type SourceNumbers = BTreeMap<String, [Option<f64>; 3]>;

/// Returns the section with a plot for each number that at least two sources report. Returns nothing if no number has
/// two sources.
pub(super) fn render_agreement_plots(subjects: &[PageRow]) -> Markup {
    let all: Vec<SourceNumbers> =
        subjects.iter().map(|subject| collect_source_numbers(&subject.row)).collect();
    let has = |name: &str, source: usize| {
        all.iter().any(|it| it.get(name).is_some_and(|numbers| numbers[source].is_some()))
    };
    let numbers = NUMBERS.map(|(name, title)| (name.to_owned(), title.to_owned())).into_iter();
    let reads = lookups::list_alphas(subjects).into_iter().map(|alpha| {
        (lookups::alpha_metric_name(alpha, "ios_per_get"), format!("I/Os per get, α = {alpha}"))
    });
    let mut shown: Vec<(String, String)> = numbers.chain(reads).collect();
    shown.retain(|(name, _)| (0..SOURCES.len()).filter(|&source| has(name, source)).count() > 1);
    if shown.is_empty() {
        return html! {};
    }
    let measured = shown.iter().any(|(name, _)| has(name, 2));
    let sources = if measured { &SOURCES[..] } else { &SOURCES[..2] };
    let content = html! {
        (spans::render_span_legend(sources))
        div class="plots" {
            @for (name, title) in &shown { (render_figure(title, &render_source_plot(subjects, &all, name, sources))) }
        }
        @if measured && shown.iter().any(|(name, _)| has(name, 1)) {
            (render_deviations(subjects, &all, &shown))
        }
    };
    let how = "The simulator runs the same policy on a tree without data. The closed form is that of the literature, for a \
               full tree. Marks at the same place agree.";
    let title = if measured { "Model, simulation and engine" } else { "Model and simulation" };
    render_section(title, how, &content)
}

/// Returns the numbers of a row by source. Rows of `lsmx simulate` contain the numbers of the simulator. Other rows
/// contain the numbers of the engine.
fn collect_source_numbers(row: &ResultRow) -> SourceNumbers {
    let own_source = if row.get("simulated") == Some(&Value::Bool(true)) { 1 } else { 2 };
    let mut compared = SourceNumbers::new();
    for name in row.names() {
        let Some(number) = row.number(name) else { continue };
        let (source, name) = match (name.strip_prefix("model."), name.strip_prefix("simulated.")) {
            (Some(name), _) => (0, name),
            (_, Some(name)) => (1, name),
            _ => (own_source, name),
        };
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        let name = alias.map_or(name, |(_, measured)| measured);
        if source != own_source && name.starts_with("levels[") && name.ends_with("].files") {
            let files = &mut compared.entry("files".to_owned()).or_default()[source];
            *files = Some(files.unwrap_or(0.0) + number);
        } else {
            compared.entry(name.to_owned()).or_default()[source] = Some(number);
        }
    }
    compared
}

fn render_source_plot(
    subjects: &[PageRow],
    all: &[SourceNumbers],
    name: &str,
    sources: &[&'static str],
) -> Markup {
    let row = |(subject, compared): (&PageRow, &SourceNumbers)| ValueSpan {
        marker: subject.marker,
        name: subject.name.clone(),
        values: compared.get(name).copied().unwrap_or_default()[..sources.len()].to_vec(),
    };
    let rows: Vec<ValueSpan> = subjects.iter().zip(all).map(row).collect();
    let values: Vec<f64> =
        rows.iter().flat_map(|row| row.values.iter().flatten().copied()).collect();
    let unit = REGISTRY.find(name).map_or(Unit::Mean, |metric| metric.unit);
    let x = Axis::new(Scale::linear_or_log(&values), "", unit.number_format());
    spans::draw_spans(&sources.join(" and "), x, sources, &rows)
}

/// Returns a table of the deviations of the simulation from the engine, in percent.
fn render_deviations(
    subjects: &[PageRow],
    all: &[SourceNumbers],
    shown: &[(String, String)],
) -> Markup {
    html! {
        p class="how" {
            "Simulated against measured. Marked are deviations of more than "
            (value::format_percent(DEVIATIONS[0])) ", and strongly those of more than "
            (value::format_percent(DEVIATIONS[1])) "."
        }
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "policy" }
                        @for (_, title) in shown { th scope="col" { (title) small { "%" } } }
                    }
                }
                tbody {
                    @for (subject, compared) in subjects.iter().zip(all) {
                        tr data-name=(subject.name) {
                            th scope="row" { (subject.marker.swatch()) (subject.name) }
                            @for (name, _) in shown {
                                (render_deviation(compared.get(name).copied().unwrap_or_default()))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn render_deviation([_, simulated, measured]: [Option<f64>; 3]) -> Markup {
    let share = match (simulated, measured) {
        (Some(simulated), Some(measured)) if measured != 0.0 => simulated / measured - 1.0,
        (Some(0.0), Some(_)) => 0.0,
        _ => return html! { td { "–" } },
    };
    let class = match share.abs() {
        share if share > DEVIATIONS[1] => "far",
        share if share > DEVIATIONS[0] => "off",
        _ => "near",
    };
    html! { td class=(class) data-value=(share) { (format!("{:+.1}", share * 100.0)) } }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn predicted_and_measured_numbers_are_compared_by_name() {
        let cell = json!({
            "data_moved_ratio": 10.0,
            "write_amplification": 6.0,
            "compaction": { "jobs": 100, "trivial_moves": 0 },
            "files": 43,
            "point_lookups": [ { "alpha": 0.0, "ios_per_get": 1.5 }, { "alpha": 1.0, "ios_per_get": 0.2 } ],
            "simulated": {
                "data_moved_ratio": 10.4,
                "compaction": { "jobs": 80 },
                "levels": [ { "level": 0, "files": 4 }, { "level": 1, "files": 40 } ],
                "point_lookups": [ { "alpha": 1.0, "ios_per_get": 0.1 } ],
            },
            "model": { "write_amplification": 5.0, "absent_lookup_ios": 0.3 },
        });
        let compared = collect_source_numbers(&ResultRow::new(&cell).unwrap());
        for (name, numbers) in [
            ("data_moved_ratio", [None, Some(10.4), Some(10.0)]),
            ("write_amplification", [Some(5.0), None, Some(6.0)]),
            ("compaction.jobs", [None, Some(80.0), Some(100.0)]),
            ("compaction.trivial_moves", [None, None, Some(0.0)]),
            ("files", [None, Some(44.0), Some(43.0)]),
            ("point_lookups[0.0].ios_per_get", [None, None, Some(1.5)]),
            ("point_lookups[1.0].ios_per_get", [Some(0.3), Some(0.1), Some(0.2)]),
        ] {
            assert_eq!(compared.get(name), Some(&numbers), "{name}");
        }
    }

    #[test]
    fn large_deviations_are_marked() {
        for (simulated, measured, class) in [
            (104.0, 100.0, "near"),
            (90.0, 100.0, "off"),
            (130.0, 100.0, "far"),
            (0.0, 0.0, "near"),
        ] {
            let cell = render_deviation([None, Some(simulated), Some(measured)]).into_string();
            assert!(cell.contains(&format!("class=\"{class}\"")), "{cell}");
        }
        assert!(render_deviation([None, Some(1.0), Some(0.0)]).into_string().contains('–'));
        assert!(render_deviation([Some(1.0), None, Some(2.0)]).into_string().contains('–'));
    }
}
