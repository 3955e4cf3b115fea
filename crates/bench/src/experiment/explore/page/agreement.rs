//! What the simulator and the closed form say, beside what the engine did.
//!
//! Whatever a cell holds below `simulated` and `model` is taken by its name and set against the figure
//! of the same name that was measured.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::lookups;
use super::subject::Subject;
use crate::metric;
use crate::report::html::page::{figure, section};
use crate::report::html::plot::frame::{Axis, Format};
use crate::report::html::plot::scale::Scale;
use crate::report::html::plot::spans::{self, Span};
use crate::report::html::value;

/// The three that are compared, in the order of their marks.
const SOURCES: [&str; 3] = ["closed form", "simulated", "engine"];

/// A figure that may be compared.
struct Figure {
    /// Flat name of what is measured.
    name: String,
    title: String,
    format: Format,
}

fn figures(subjects: &[Subject<'_>]) -> Vec<Figure> {
    let named: [(&str, &str, Format); 7] = [
        ("data_moved_ratio", "Data moved, × ingested", value::times),
        ("write_amplification", "Write amplification", value::times),
        ("compaction_write_amplification", "Compaction written ÷ unique live data", value::times),
        ("compaction.jobs", "Merges", value::count),
        ("compaction.trivial_moves", "Trivial moves", value::count),
        (FILES, "Files at the end", value::count),
        ("space_amplification", "Space amplification", value::times),
    ];
    let figure = |(name, title, format): (&str, &str, Format)| Figure {
        name: name.to_owned(),
        title: title.to_owned(),
        format,
    };
    let lookups = lookups::alphas(subjects).into_iter().map(|alpha| Figure {
        name: lookups::metric(alpha, "ios_per_get"),
        title: format!("I/Os per get, α = {alpha}"),
        format: value::plain,
    });
    named.into_iter().map(figure).chain(lookups).collect()
}

/// Files of all levels, which have no name of their own in a result.
const FILES: &str = "files";

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
type Compared = BTreeMap<String, [Option<f64>; 3]>;

/// A plot per figure and a table of deviations; none where nothing was predicted.
pub(super) fn plots(subjects: &[Subject<'_>]) -> Option<Markup> {
    let said = |it: &Subject<'_>| {
        let mut cell = serde_json::to_value(it.cell).unwrap_or_default();
        if it.cell.is_simulated
            && let Some(members) = cell.as_object_mut()
        {
            // What the cell says itself is nothing that an engine did.
            members.retain(|name, _| name == "model" || name == "simulated");
        }
        cell
    };
    let cells: Vec<Value> = subjects.iter().map(said).collect();
    compare(subjects, &cells)
}

fn compare(subjects: &[Subject<'_>], cells: &[Value]) -> Option<Markup> {
    let all: Vec<Compared> = cells.iter().map(compared).collect();
    let predicted = |name: &str, source: usize| {
        all.iter().any(|it| it.get(name).is_some_and(|said| said[source].is_some()))
    };
    let mut shown = figures(subjects);
    shown.retain(|it| (0..SOURCES.len()).filter(|&source| predicted(&it.name, source)).count() > 1);
    if shown.is_empty() {
        return None;
    }
    let measured = shown.iter().any(|it| predicted(&it.name, 2));
    let sources = if measured { &SOURCES[..] } else { &SOURCES[..2] };
    let content = html! {
        (spans::legend(sources))
        div class="plots" {
            @for it in &shown { (figure(&it.title, &plot(subjects, &all, it, sources))) }
        }
        @if measured && shown.iter().any(|it| predicted(&it.name, 1)) {
            (deviations(subjects, &all, &shown))
        }
    };
    let how = "The simulator plays the same policy on a tree without data; the closed form is the \
               literature's, for a full tree. Marks that lie on each other agree.";
    let title = if measured { "Model, simulation and engine" } else { "Model and simulation" };
    Some(section(title, how, &content))
}

/// What the sources say of a cell.
fn compared(cell: &Value) -> Compared {
    let sources = [cell.get("model"), cell.get("simulated"), Some(cell)];
    let mut compared = Compared::new();
    for (source, said) in sources.iter().enumerate() {
        let Some(said) = said else { continue };
        let mut figures: BTreeMap<String, f64> = metric::scalars(said)
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
            figures.insert(FILES.to_owned(), files);
        }
        for (name, figure) in figures {
            compared.entry(name).or_default()[source] = Some(figure);
        }
    }
    compared
}

fn plot(
    subjects: &[Subject<'_>],
    all: &[Compared],
    shown: &Figure,
    sources: &[&'static str],
) -> Markup {
    let rows: Vec<Span> = subjects
        .iter()
        .zip(all)
        .map(|(it, compared)| Span {
            marker: it.marker,
            name: it.name.clone(),
            values: compared.get(&shown.name).copied().unwrap_or_default()[..sources.len()]
                .to_vec(),
        })
        .collect();
    let values: Vec<f64> =
        rows.iter().flat_map(|row| row.values.iter().flatten().copied()).collect();
    let x = Axis {
        scale: Scale::fitting(&values),
        title: String::new(),
        format: shown.format,
        ticks: 6,
    };
    spans::draw(&sources.join(" and "), x, sources, &rows)
}

/// How far the simulation is from the engine, in per cent.
fn deviations(subjects: &[Subject<'_>], all: &[Compared], shown: &[Figure]) -> Markup {
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
                        @for it in shown { th scope="col" { (it.title) small { "%" } } }
                    }
                }
                tbody {
                    @for (it, compared) in subjects.iter().zip(all) {
                        tr data-name=(it.name) {
                            th scope="row" { (it.marker.swatch()) (it.name) }
                            @for figure in shown {
                                (deviation(compared.get(&figure.name).copied().unwrap_or_default()))
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
    use crate::experiment::explore::page::subject;
    use crate::experiment::explore::page::tests::cell;

    #[test]
    fn the_section_is_there_when_predictions_are() {
        let cells = [cell("full", 0), cell("tiering", 1)];
        let groups = subject::groups(&cells);
        let subjects = &groups[0].subjects;
        assert!(plots(subjects).is_none(), "nothing was predicted");
        let mut with: Vec<Value> =
            cells.iter().map(|it| serde_json::to_value(it).unwrap()).collect();
        // The simulator speaks of one, the closed form of both; neither of space.
        with[0]["simulated"] = json!({ "write_amplification": 2.6, "jobs": 10 });
        with[1]["simulated"] = Value::Null;
        for cell in &mut with {
            cell["model"] = json!({ "write_amplification": 3.0 });
        }
        let page = compare(subjects, &with).unwrap().into_string();
        assert_eq!(page.matches("<figure>").count(), 2, "write amplification and merges");
        assert!(page.contains("Merges") && !page.contains("Space amplification"));
        // 2.6 ÷ 2.5, and exactly as many merges.
        assert!(page.contains("+4.0") && page.contains("+0.0") && page.contains("–"));
        assert!(
            page.contains("full, simulated: 2.60 ×")
                && page.contains("tiering, closed form: 3.00 ×")
        );
    }

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
        let compared = compared(&cell);
        for (name, said) in [
            ("data_moved_ratio", [None, Some(10.4), Some(10.0)]),
            ("write_amplification", [Some(5.0), None, Some(6.0)]),
            ("compaction.jobs", [None, Some(80.0), Some(100.0)]),
            ("compaction.trivial_moves", [None, None, Some(0.0)]),
            (FILES, [None, Some(44.0), Some(43.0)]),
            ("point_lookups[0.0].ios_per_get", [None, Some(1.4), Some(1.5)]),
            ("point_lookups[1.0].ios_per_get", [Some(0.3), Some(0.1), Some(0.2)]),
        ] {
            assert_eq!(compared.get(name), Some(&said), "{name}");
        }
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
