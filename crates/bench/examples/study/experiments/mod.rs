//! The experiments of the study: published figures, and figures computed from results of lsmx.

mod load;
mod lookups;
mod others;
mod sizes;
mod times;
mod why;
mod writes;

pub(crate) use load::written_bars;

use crate::claim::{ClaimTexts, format_significant};
use crate::figures::Figures;
use crate::results::{ResultCell, Results};
use crate::strategy::Strategy;
use crate::table::{MarkdownTable, ReportSection};

/// The tables of an experiment, and the figures of its claims in the order of `claims.toml`.
type Measurements = (Vec<MarkdownTable>, Vec<Figures>);
/// Name of an experiment in `claims.toml`, and the function that computes its tables and figures.
type Experiment = (&'static str, fn(&Results) -> Measurements);

/// The experiments in the order of the study.
const EXPERIMENTS: [Experiment; 13] = [
    ("load", load::measure),
    ("load_times", load::measure_times),
    ("lookups", lookups::measure),
    ("interleaved", lookups::measure_interleaved),
    ("updates", writes::measure_updates),
    ("deletes", writes::measure_deletes),
    ("scale", sizes::measure_data),
    ("entry_size", sizes::measure_entries),
    ("memtable", sizes::measure_memtables),
    ("others", others::measure),
    ("discrepancies", others::measure_discrepancies),
    ("stalls", load::measure_stalls),
    ("why", why::measure),
];

/// Returns the report of each experiment in `claims.toml`.
pub(crate) fn build_sections(results: &Results, texts: &ClaimTexts) -> Vec<ReportSection> {
    let sections = EXPERIMENTS.iter().filter_map(|(name, measure)| {
        let (tables, figures) = measure(results);
        Some(ReportSection::new(texts.experiment(name)?, tables, figures))
    });
    sections.filter(|section| !(section.tables.is_empty() && section.claims.is_empty())).collect()
}

fn format_figure(figure: Option<f64>) -> String {
    figure.map_or_else(|| "–".to_owned(), format_significant)
}

fn format_share(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// Formats a time in microseconds, divided by `divisor`: the median over the repetitions, followed by the lowest and the
/// highest value.
fn format_time(cell: Option<&ResultCell>, column: &str, divisor: f64) -> String {
    let median = cell.and_then(|cell| cell.number(column)).filter(|us| *us > 0.0);
    let text = format_figure(median.map(|us| us / divisor));
    match cell.and_then(|cell| cell.spread(column)) {
        Some((low, high)) if median.is_some() => {
            let [low, high] = [low, high].map(|us| format_significant(us / divisor));
            format!("{text} ({low}–{high})")
        }
        _ => text,
    }
}

/// Returns a table with a row per strategy and a column per name. Each cell contains a measured figure, followed by the
/// published figure in parentheses.
fn compared_table<const N: usize>(
    caption: &'static str,
    columns: [&str; N],
    published: &[(Strategy, Option<[f64; N]>)],
    measured: impl Fn(Strategy) -> [Option<f64>; N],
) -> MarkdownTable {
    let columns = columns.map(|name| format!("{name} (study)"));
    let mut table = MarkdownTable::new(caption, std::iter::once(String::new()).chain(columns));
    for (strategy, published) in published {
        let row = measured(*strategy).into_iter().enumerate();
        table.add_row(
            strategy.name,
            row.map(|(at, figure)| format_with_published(figure, published.map(|all| all[at]))),
        );
    }
    table
}

/// Formats a measured figure, followed by the published figure in parentheses.
fn format_with_published(ours: Option<f64>, published: Option<f64>) -> String {
    format!("{} ({})", format_figure(ours), format_figure(published))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::results::tests::results;

    #[test]
    fn range_decides_the_verdict() {
        let texts = ClaimTexts::read().unwrap();
        for (lo1, figures, verdict) in
            [(26, "Tier 0.38 ×", Verdict::Holds), (20, "Tier 0.50 ×", Verdict::DoesNotHold)]
        {
            let sections = build_sections(&results("r1", lo1), &texts);
            let mut claims = sections[0].claims.iter();
            let claim = claims
                .find(|claim| claim.table_row()[0].starts_with("Tier moves the least"))
                .unwrap();
            let measured = (claim.table_row()[2].clone(), claim.verdict());
            assert_eq!(measured, (figures.to_owned(), verdict), "{lo1}");
        }
    }

    #[test]
    fn every_claim_has_figures_and_is_not_measured_without_results() {
        let texts = ClaimTexts::read().unwrap();
        for (name, measure) in EXPERIMENTS {
            let (text, (tables, figures)) =
                (texts.experiment(name).unwrap(), measure(&Results::default()));
            assert_eq!(text.claims.len(), figures.len(), "{name}");
            let section = ReportSection::new(text, tables, figures);
            for claim in &section.claims {
                assert_eq!(claim.verdict(), Verdict::NotMeasured, "{:?}", claim.table_row());
            }
            assert!(section.to_markdown().starts_with("\n## "));
        }
    }
}
