//! The experiments: published figures, tables beside them, claims.

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

use crate::results::Results;
use crate::table::Section;

/// Every experiment, in the order of the study.
pub(crate) fn all(results: &Results) -> Vec<Section> {
    vec![
        reference::section(results),
        load::section(results),
        load_times::section(results),
        lookups::section(results),
        interleaved::section(results),
        updates::section(results),
        deletes::section(results),
        scale::section(results),
        entry_size::section(results),
        memtable::section(results),
        others::section(results),
        discrepancies::section(results),
    ]
}

/// Where nothing bounds a figure from above.
const ANY: f64 = f64::INFINITY;

/// A published figure as it is printed, or a dash.
fn published(figures: Option<&f64>) -> String {
    figures.map_or_else(dash, |figure| crate::claim::digits(*figure))
}

/// What we measured as it is printed, or a dash.
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

    /// Rows of the reference ratios with this in the statement: figures and verdict.
    fn reference(lo1: u64, statement: &str) -> (String, Verdict) {
        let section = reference::section(&results("r1", lo1));
        let claims = section.claims.iter().map(|claim| (claim.row(), claim.verdict()));
        let (row, verdict) =
            claims.into_iter().find(|(row, _)| row[0].starts_with(statement)).unwrap();
        (row[2].clone(), verdict)
    }

    #[test]
    fn the_code_decides_by_the_range() {
        assert_eq!(reference(26, "LO+1 moves"), ("LO+1 48 %".to_owned(), Verdict::Holds));
        assert_eq!(reference(40, "LO+1 moves"), ("LO+1 20 %".to_owned(), Verdict::DoesNotHold));
        assert_eq!(reference(26, "Universal moves").1, Verdict::Holds);
        assert_eq!(reference(20, "Universal moves").1, Verdict::DoesNotHold);
    }

    #[test]
    fn what_was_not_run_is_not_measured_and_no_table_breaks() {
        for section in all(&Results::default()) {
            for claim in &section.claims {
                let verdict = claim.verdict();
                assert!(matches!(verdict, Verdict::NotMeasured), "{:?}", claim.row());
            }
            assert!(section.markdown().starts_with("\n## "));
        }
    }
}
