//! What the simulator and the closed form say, beside what the engine did.
//!
//! Whatever a cell holds below `simulated` and `model` is taken by its name and set against the figure
//! of the same name that was measured.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::page::{figure, section};
use super::plot::frame::{Axis, Format};
use super::plot::scale::Scale;
use super::plot::spans::{self, Span};
use super::subject::Subject;
use super::value;
use crate::report::flat;

/// The three that are compared, in the order of their marks.
const SOURCES: [&str; 3] = ["closed form", "simulated", "engine"];

/// Figures that are shown, by the flat name of what is measured.
const FIGURES: [(&str, &str, Format); 9] = [
    ("data_moved_ratio", "Data moved, × ingested", value::times),
    ("write_amplification", "Write amplification", value::times),
    ("compaction_write_amplification", "Compaction written ÷ unique live data", value::times),
    ("compaction.jobs", "Merges", value::count),
    ("compaction.trivial_moves", "Trivial moves", value::count),
    ("files", "Files at the end", value::count),
    ("space_amplification", "Space amplification", value::times),
    ("point_lookups[0.0].ios_per_get", "I/Os per get, α = 0", value::plain),
    ("point_lookups[1.0].ios_per_get", "I/Os per get, α = 1", value::plain),
];

/// What is called otherwise where it is predicted, with the name of what is measured.
const ALIASES: [(&str, &str); 6] = [
    ("jobs", "compaction.jobs"),
    ("trivial_moves", "compaction.trivial_moves"),
    ("ios_per_get.present", "point_lookups[0.0].ios_per_get"),
    ("ios_per_get.absent", "point_lookups[1.0].ios_per_get"),
    ("present_lookup_ios", "point_lookups[0.0].ios_per_get"),
    ("absent_lookup_ios", "point_lookups[1.0].ios_per_get"),
];

/// Deviations above these shares are marked: what the simulator is held to for means, and for a seed.
const DEVIATIONS: [f64; 2] = [0.05, 0.15];

/// Figures of one cell: by name what each source says, in the order of [`SOURCES`].
type Compared = BTreeMap<&'static str, [Option<f64>; 3]>;

/// A plot per figure and a table of deviations; none where nothing was predicted.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Option<Markup> {
    let cells: Vec<Value> =
        subjects.iter().map(|it| serde_json::to_value(it.cell).unwrap_or_default()).collect();
    compare(subjects, &cells)
}

fn compare(subjects: &[Subject<'_>], cells: &[Value]) -> Option<Markup> {
    let all: Vec<Compared> = cells.iter().map(compared).collect();
    let predicted = |name: &str, source: usize| {
        all.iter().any(|it| it.get(name).is_some_and(|said| said[source].is_some()))
    };
    let shown: Vec<&(&str, &str, Format)> = FIGURES
        .iter()
        .filter(|(name, ..)| predicted(name, 2) && (predicted(name, 0) || predicted(name, 1)))
        .collect();
    if shown.is_empty() {
        return None;
    }
    let content = html! {
        (spans::legend(&SOURCES))
        div class="plots" {
            @for (name, title, format) in &shown {
                (figure(title, &plot(subjects, &all, name, *format)))
            }
        }
        @if shown.iter().any(|(name, ..)| predicted(name, 1)) {
            (deviations(subjects, &all, &shown))
        }
    };
    let how = "The simulator plays the same policy on a tree without data; the closed form is the \
               literature's, for a full tree. Marks that lie on each other agree.";
    Some(section("Model, simulation and engine", how, &content))
}

/// What the sources say of a cell.
fn compared(cell: &Value) -> Compared {
    let sources = [cell.get("model"), cell.get("simulated"), Some(cell)];
    let mut compared = Compared::new();
    for (source, said) in sources.iter().enumerate() {
        let Some(said) = said else { continue };
        let mut figures: BTreeMap<String, f64> = flat::scalars(said)
            .into_iter()
            .filter_map(|(name, scalar)| Some((name, scalar.as_f64()?)))
            .collect();
        for (alias, name) in ALIASES {
            if let Some(figure) = figures.get(alias).copied() {
                figures.entry(name.to_owned()).or_insert(figure);
            }
        }
        if let Some(levels) = said.get("levels").and_then(Value::as_array) {
            let files = levels.iter().filter_map(|level| level.get("files")?.as_f64()).sum();
            figures.insert("files".to_owned(), files);
        }
        for (name, ..) in FIGURES {
            if let Some(&figure) = figures.get(name) {
                compared.entry(name).or_default()[source] = Some(figure);
            }
        }
    }
    compared
}

fn plot(subjects: &[Subject<'_>], all: &[Compared], name: &str, format: Format) -> Markup {
    let rows: Vec<Span> = subjects
        .iter()
        .zip(all)
        .map(|(it, compared)| Span {
            marker: it.marker,
            name: it.name.clone(),
            values: compared.get(name).copied().unwrap_or_default().to_vec(),
        })
        .collect();
    let values: Vec<f64> =
        rows.iter().flat_map(|row| row.values.iter().flatten().copied()).collect();
    let x = Axis { scale: Scale::fitting(&values), title: String::new(), format, ticks: 6 };
    spans::draw("the closed form, the simulation and the engine", x, &SOURCES, &rows)
}

/// How far the simulation is from the engine, in per cent.
fn deviations(
    subjects: &[Subject<'_>],
    all: &[Compared],
    shown: &[&(&str, &str, Format)],
) -> Markup {
    html! {
        p class="how" {
            "Simulated against measured. Marked are deviations of more than "
            (value::percent(DEVIATIONS[0])) ", and strongly those of more than "
            (value::percent(DEVIATIONS[1])) "."
        }
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "policy" }
                        @for (_, title, _) in shown { th scope="col" { (title) small { "%" } } }
                    }
                }
                tbody {
                    @for (it, compared) in subjects.iter().zip(all) {
                        tr data-name=(it.name) {
                            th scope="row" { (it.marker.swatch()) (it.name) }
                            @for (name, ..) in shown {
                                (deviation(compared.get(name).copied().unwrap_or_default()))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn deviation([_, simulated, measured]: [Option<f64>; 3]) -> Markup {
    let (Some(simulated), Some(measured)) = (simulated, measured) else {
        return html! { td { "–" } };
    };
    if measured.abs() < f64::EPSILON {
        // Of nothing there is no share.
        return html! { td { @if simulated.abs() < f64::EPSILON { "0.0" } @else { "–" } } };
    }
    let share = simulated / measured - 1.0;
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
    fn what_is_predicted_meets_what_is_measured_by_its_name() {
        let cell = json!({
            "data_moved_ratio": 10.0,
            "write_amplification": 6.0,
            "compaction": { "jobs": 100, "trivial_moves": 0 },
            "levels": [ { "level": 0, "files": 3 }, { "level": 1, "files": 40 } ],
            "point_lookups": [ { "alpha": 0.0, "ios_per_get": 1.5 }, { "alpha": 1.0, "ios_per_get": 0.2 } ],
            "simulated": {
                "data_moved_ratio": 10.4,
                "jobs": 80,
                "levels": [ { "level": 0, "files": 44 } ],
                "ios_per_get": { "present": 1.4, "absent": 0.1 },
                "unheard_of": 7,
            },
            "model": { "write_amplification": 5.0, "absent_lookup_ios": 0.3 },
        });
        let expected: Compared = [
            ("data_moved_ratio", [None, Some(10.4), Some(10.0)]),
            ("write_amplification", [Some(5.0), None, Some(6.0)]),
            ("compaction.jobs", [None, Some(80.0), Some(100.0)]),
            ("compaction.trivial_moves", [None, None, Some(0.0)]),
            ("files", [None, Some(44.0), Some(43.0)]),
            ("point_lookups[0.0].ios_per_get", [None, Some(1.4), Some(1.5)]),
            ("point_lookups[1.0].ios_per_get", [Some(0.3), Some(0.1), Some(0.2)]),
        ]
        .into();
        assert_eq!(compared(&cell), expected);
    }

    #[test]
    fn deviations_are_marked_by_how_far_they_are() {
        for (simulated, measured, class) in
            [(104.0, 100.0, "near"), (90.0, 100.0, "off"), (130.0, 100.0, "far")]
        {
            let cell = deviation([None, Some(simulated), Some(measured)]).into_string();
            assert!(cell.contains(&format!("class=\"{class}\"")), "{cell}");
        }
        assert!(deviation([None, Some(1.0), Some(0.0)]).into_string().contains('–'));
        assert!(deviation([Some(1.0), None, Some(2.0)]).into_string().contains('–'));
    }
}
