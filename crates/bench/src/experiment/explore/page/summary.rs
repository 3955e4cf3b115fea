//! The table of all policies, and the best policy of the main costs.

use maud::{Markup, html};

use super::lookups;
use super::subject::{Subject, metric_subjects};
use crate::experiment::explore::columns::REGISTRY;
use crate::metric::html::{self as metrics};
use crate::metric::{Row, find};
use crate::report::html::page::section;

/// Columns of the table.
const SHOWN: [&str; 14] = [
    "data_moved_ratio",
    "write_amplification",
    "space_amplification",
    "disk_amplification",
    "point_lookups[*].ios_per_get",
    "range_lookups.latency_us.mean",
    "put_latency_us.p999",
    "put_latency_us.max",
    "stalls.total_us",
    "runs",
    "compaction.jobs",
    "compaction.trivial_moves",
    "levels[*].share",
    "elapsed_s",
];

/// Returns the table: a line per policy, the best of each column marked.
pub(super) fn table(subjects: &[Subject<'_>]) -> Markup {
    let rows = metric_subjects(subjects);
    let content = html! {
        (metrics::table(&REGISTRY, "policy", &SHOWN, &rows))
        (metrics::legend(&REGISTRY, &SHOWN, &rows))
        details {
            summary { "The policies with all their parameters" }
            ul { @for it in subjects { li { (it.marker.swatch()) code { (it.cell.spec) } } } }
        }
    };
    let repeats = subjects.iter().find_map(|it| it.cell.repeats.as_ref());
    let medians = repeats.map_or(String::new(), |repeats| {
        let count = repeats.seeds.len();
        format!("Medians of {count} repetitions, each above its lowest and highest value. ")
    });
    let how = format!("{medians}The best of each column is marked. A click on a heading sorts.");
    section("Summary", &how, &content)
}

/// Returns the best policy of each of the main costs.
pub(super) fn tiles(subjects: &[Subject<'_>]) -> Markup {
    if subjects.len() < 2 {
        return html! {};
    }
    let rows = metric_subjects(subjects);
    let mut costs = vec![
        ("least written", "write_amplification".to_owned()),
        ("least space", "space_amplification".to_owned()),
    ];
    for alpha in lookups::alphas(subjects) {
        costs.push(("fewest reads", lookups::metric(alpha, "ios_per_get")));
    }
    costs.push(("shortest longest put", "put_latency_us.max".to_owned()));
    let tiles = costs.iter().filter_map(|(title, name)| tile(title, name, &rows));
    html! { div class="tiles" { @for tile in tiles { (tile) } } }
}

fn tile(title: &str, name: &str, subjects: &[metrics::Subject]) -> Option<Markup> {
    let metric = find(name)?;
    let number = |row: &Row| row.shown(name)?.as_f64();
    let numbers: Vec<(&metrics::Subject, f64)> =
        subjects.iter().filter_map(|it| Some((it, number(&it.row)?))).collect();
    let &(best, least) = numbers.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let text = metric.unit.text_with_unit(least);
    // Numbers that look alike are equally good.
    let alike =
        numbers.iter().filter(|(_, it)| metric.unit.text_with_unit(*it) == text).count() - 1;
    Some(html! {
        div class="tile" {
            span class="what" { (title) }
            span class="who" {
                (best.marker.swatch()) (best.name)
                @if alike > 0 { small { " and " (alike) " more" } }
            }
            span class="figure" { (text) " " small { (metric.title_of(name)?) } }
        }
    })
}
