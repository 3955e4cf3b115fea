//! The experiments: published figures, and the figures computed from results.

mod deletes;
mod discrepancies;
mod entry_size;
mod interleaved;
mod load;
mod load_times;
mod lookups;
mod memtable;
mod others;
mod reference;
mod scale;
mod updates;

use crate::claim::ClaimTexts;
use crate::results::Results;
use crate::table::{Measurements, Section};

/// Computes the tables and figures of an experiment.
type Measure = fn(&Results) -> Measurements;

/// The experiments in the order of the study, by their names in `claims.toml`.
const EXPERIMENTS: [(&str, Measure); 12] = [
    ("reference", reference::measure),
    ("load", load::measure),
    ("load_times", load_times::measure),
    ("lookups", lookups::measure),
    ("interleaved", interleaved::measure),
    ("updates", updates::measure),
    ("deletes", deletes::measure),
    ("scale", scale::measure),
    ("entry_size", entry_size::measure),
    ("memtable", memtable::measure),
    ("others", others::measure),
    ("discrepancies", discrepancies::measure),
];

/// Returns the report of every experiment.
pub(crate) fn all(results: &Results, texts: &ClaimTexts) -> Vec<Section> {
    let sections = EXPERIMENTS.iter().filter_map(|(name, measure)| {
        Some(Section::new(texts.experiment(name)?, measure(results)))
    });
    sections.collect()
}

/// Formats a published figure; a dash if there is none.
fn published(figures: Option<&f64>) -> String {
    figures.map_or_else(dash, |figure| crate::claim::digits(*figure))
}

/// Formats a measured figure; a dash if there is none.
fn ours(figure: Option<f64>) -> String {
    figure.map_or_else(dash, crate::claim::digits)
}

fn dash() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;
    use crate::results::tests::results;

    /// Returns figures and verdict of the reference ratio whose statement starts with `statement`.
    fn reference(lo1: u64, statement: &str) -> (String, Verdict) {
        let sections = all(&results("r1", lo1), &ClaimTexts::read().unwrap());
        let claims = sections[0].claims.iter().map(|claim| (claim.row(), claim.verdict()));
        let (row, verdict) =
            claims.into_iter().find(|(row, _)| row[0].starts_with(statement)).unwrap();
        (row[2].clone(), verdict)
    }

    #[test]
    fn range_decides_the_verdict() {
        assert_eq!(reference(26, "LO+1 moves"), ("LO+1 48 %".to_owned(), Verdict::Holds));
        assert_eq!(reference(40, "LO+1 moves"), ("LO+1 20 %".to_owned(), Verdict::DoesNotHold));
        assert_eq!(reference(26, "Universal moves").1, Verdict::Holds);
        assert_eq!(reference(20, "Universal moves").1, Verdict::DoesNotHold);
    }

    #[test]
    fn every_claim_has_figures_and_is_not_measured_without_results() {
        let texts = ClaimTexts::read().unwrap();
        for (name, measure) in EXPERIMENTS {
            let (text, measurements) =
                (texts.experiment(name).unwrap(), measure(&Results::default()));
            assert_eq!(text.claims.len(), measurements.figures.len(), "{name}");
            let section = Section::new(text, measurements);
            for claim in &section.claims {
                assert_eq!(claim.verdict(), Verdict::NotMeasured, "{:?}", claim.row());
            }
            assert!(section.markdown().starts_with("\n## "));
        }
    }
}
