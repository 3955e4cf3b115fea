//! The experiments of the study: published figures, and figures computed from results of lsmx.

mod load;
mod lookups;
mod others;
mod sizes;
mod writes;

use crate::claim::{ClaimTexts, digits};
use crate::figures::Figures;
use crate::results::Results;
use crate::table::{Section, Table};

/// The tables of an experiment, and the figures of its claims in the order of `claims.toml`.
type Measurements = (Vec<Table>, Vec<Figures>);
/// Name of an experiment in `claims.toml`, and the function that computes its tables and figures.
type Experiment = (&'static str, fn(&Results) -> Measurements);

/// The experiments in the order of the study.
const EXPERIMENTS: [Experiment; 12] = [
    ("reference", load::measure_ratios),
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
];

/// Returns the report of each experiment in `claims.toml`.
pub(crate) fn all(results: &Results, texts: &ClaimTexts) -> Vec<Section> {
    let sections = EXPERIMENTS.iter().filter_map(|(name, measure)| {
        let (tables, figures) = measure(results);
        Some(Section::new(texts.experiment(name)?, tables, figures))
    });
    sections.collect()
}

fn text(figure: Option<f64>) -> String {
    figure.map_or_else(|| "–".to_owned(), digits)
}

/// Formats a measured figure, followed by the published figure in parentheses.
fn with_study(ours: Option<f64>, published: Option<f64>) -> String {
    format!("{} ({})", text(ours), text(published))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::results::tests::results;

    #[test]
    fn range_decides_the_verdict() {
        for (lo1, statement, figures, verdict) in [
            (26, "LO+1 moves", "LO+1 48 %", Verdict::Holds),
            (40, "LO+1 moves", "LO+1 20 %", Verdict::DoesNotHold),
            (26, "Universal moves", "Tier 0.38 ×", Verdict::Holds),
            (20, "Universal moves", "Tier 0.50 ×", Verdict::DoesNotHold),
        ] {
            let sections = all(&results("r1", lo1), &ClaimTexts::read().unwrap());
            let mut claims = sections[0].claims.iter();
            let claim = claims.find(|claim| claim.row()[0].starts_with(statement)).unwrap();
            assert_eq!((claim.row()[2].as_str(), claim.verdict()), (figures, verdict), "{lo1}");
        }
    }

    #[test]
    fn every_claim_has_figures_and_is_not_measured_without_results() {
        let texts = ClaimTexts::read().unwrap();
        for (name, measure) in EXPERIMENTS {
            let (text, (tables, figures)) =
                (texts.experiment(name).unwrap(), measure(&Results::default()));
            assert_eq!(text.claims.len(), figures.len(), "{name}");
            let section = Section::new(text, tables, figures);
            for claim in &section.claims {
                assert_eq!(claim.verdict(), Verdict::NotMeasured, "{:?}", claim.row());
            }
            assert!(section.markdown().starts_with("\n## "));
        }
    }
}
