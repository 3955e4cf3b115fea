//! Reads the results that `scripts/study` writes.

use std::collections::BTreeMap;
use std::path::Path;

use lsmx_bench::report::text::format_bytes;

use crate::figures::{Figures, divide, labeled_figures};
use crate::strategy::Strategy;

/// Size of an entry in the experiment on data sizes.
const ENTRY_BYTES: u64 = 128;

/// All result files, by name without extension.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<String, ResultFile>);

#[derive(Debug, Default)]
struct ResultFile {
    cells: Vec<ResultCell>,
    /// Commit and date of the measurement.
    commit: String,
}

/// The measurements in one result file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultPart<'a> {
    /// Empty if the file is missing.
    pub(crate) cells: &'a [ResultCell],
    /// Whether a strategy is found by the name of its policy instead of its spec.
    by_policy: bool,
}

/// Prefixes of the names of result files in which the size of the first level differs from R1. The specs in these files
/// differ from the specs of [`Strategy`], so strategies are found by policy name. Each policy occurs once.
const OTHER_FIRST_LEVEL: [&str; 4] = ["r7-", "r9-ratio-", "check-r7", "check-r9"];

/// The measurements of one policy for one value of the swept flag: a row of a CSV file, by column.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResultCell(BTreeMap<String, String>);

impl Results {
    /// Reads all files `*.csv` of a directory.
    pub(crate) fn read(directory: &Path) -> Result<Results, String> {
        let unreadable = |path: &Path, why: String| format!("{}: {why}", path.display());
        let mut results = Results::default();
        let files = std::fs::read_dir(directory)
            .map_err(|error| unreadable(directory, error.to_string()))?;
        for file in files {
            let path = file.map_err(|error| unreadable(directory, error.to_string()))?.path();
            if path.extension().is_some_and(|extension| extension == "csv") {
                let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
                let parsed = text.and_then(|text| parse_file(&text));
                let file_results = parsed.map_err(|why| unreadable(&path, why))?;
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                results.0.insert(name, file_results);
            }
        }
        Ok(results)
    }

    pub(crate) fn find_part(&self, name: &str) -> ResultPart<'_> {
        ResultPart {
            cells: self.0.get(name).map_or(&[], |file| &file.cells),
            by_policy: OTHER_FIRST_LEVEL.iter().any(|start| name.starts_with(start)),
        }
    }

    /// Returns the names of the files of each commit.
    pub(crate) fn names_by_commit(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut names = BTreeMap::<_, Vec<_>>::new();
        for (name, file) in &self.0 {
            names.entry(file.commit.as_str()).or_default().push(name.as_str());
        }
        names
    }
}

/// Parses a result file. Its first line is `# COMMAND | commit COMMIT, DATE`.
fn parse_file(text: &str) -> Result<ResultFile, String> {
    let first_line = text.lines().next().unwrap_or_default();
    let (_, commit) =
        first_line.rsplit_once(" | commit ").ok_or("its first line contains no commit")?;
    Ok(ResultFile { cells: parse_cells(text)?, commit: commit.to_owned() })
}

/// Parses a CSV file. Lines that start with `#` are comments.
fn parse_cells(text: &str) -> Result<Vec<ResultCell>, String> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    let columns = reader.headers().map_err(|error| error.to_string())?.clone();
    if !columns.iter().any(|column| column == "spec") {
        return Err("it has no column spec".to_owned());
    }
    let cells = reader.records().map(|record| {
        let record = record.map_err(|error| error.to_string())?;
        let fields = columns.iter().zip(&record);
        Ok(ResultCell(fields.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()))
    });
    cells.collect()
}

impl ResultCell {
    /// Returns the text of a column, or `None` if the column is missing or empty.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        self.0.get(column).map(String::as_str).filter(|text| !text.is_empty())
    }

    pub(crate) fn number(&self, column: &str) -> Option<f64> {
        self.text(column)?.parse().ok()
    }

    /// Returns the lowest and the highest value of a column over the repetitions, or `None` if there is only one value.
    pub(crate) fn spread(&self, column: &str) -> Option<(f64, f64)> {
        Some((self.number(&format!("{column}.low"))?, self.number(&format!("{column}.high"))?))
    }

    /// Returns the sum of the columns whose names start with `start` and end with `end`. Returns `None` if none of
    /// these columns has a number.
    pub(crate) fn sum(&self, start: &str, end: &str) -> Option<f64> {
        let columns = self.0.keys().filter(|name| name.starts_with(start) && name.ends_with(end));
        columns.filter_map(|name| self.number(name)).reduce(|sum, number| sum + number)
    }

    fn has_value(&self, flag: &str, value: &str) -> bool {
        let numbers = (self.number(flag), value.parse::<f64>());
        match numbers {
            (Some(found), Ok(wanted)) => (found - wanted).abs() < 1e-9,
            _ => self.text(flag) == Some(value),
        }
    }
}

impl<'a> ResultPart<'a> {
    /// Returns the measurements of a strategy in the order of the swept flag.
    pub(crate) fn cells(self, strategy: Strategy) -> Vec<&'a ResultCell> {
        let (column, text) =
            if self.by_policy { ("policy", strategy.policy) } else { ("spec", strategy.spec) };
        self.cells.iter().filter(|cell| cell.text(column) == Some(text)).collect()
    }

    /// Returns the first measurement of a strategy. If the experiment sweeps no flag, the strategy has only one
    /// measurement.
    pub(crate) fn find_cell(self, strategy: Strategy) -> Option<&'a ResultCell> {
        self.cells(strategy).first().copied()
    }

    pub(crate) fn strategy_figure(
        self,
        strategy: Strategy,
        measure: impl Fn(&ResultCell) -> Option<f64>,
    ) -> Option<f64> {
        self.find_cell(strategy).and_then(measure)
    }

    pub(crate) fn figures_by_strategy(
        self,
        strategies: &[Strategy],
        measure: impl Fn(&ResultCell) -> Option<f64>,
    ) -> Figures {
        labeled_figures(strategies.iter().map(|at| (at.name, self.strategy_figure(*at, &measure))))
    }

    /// Returns, for each strategy, the value of the strategy ÷ the value of the strategy `base`.
    pub(crate) fn ratios_to_base(
        self,
        strategies: &[Strategy],
        base: Strategy,
        measure: impl Fn(&ResultCell) -> Option<f64>,
    ) -> Figures {
        let base = self.strategy_figure(base, &measure);
        labeled_figures(
            strategies
                .iter()
                .map(|at| (at.name, divide(self.strategy_figure(*at, &measure), base))),
        )
    }

    /// Returns, for each strategy, the value of the strategy `base` ÷ the value of the strategy.
    pub(crate) fn ratios_of_base(
        self,
        base: Strategy,
        strategies: &[Strategy],
        measure: impl Fn(&ResultCell) -> Option<f64>,
    ) -> Figures {
        let base = self.strategy_figure(base, &measure);
        labeled_figures(
            strategies
                .iter()
                .map(|at| (at.name, divide(base, self.strategy_figure(*at, &measure)))),
        )
    }

    /// Returns the measurement of a strategy for one value of the swept flag.
    pub(crate) fn find_swept_cell(
        self,
        strategy: Strategy,
        flag: &str,
        value: &str,
    ) -> Option<&'a ResultCell> {
        self.cells(strategy).into_iter().find(|cell| cell.has_value(flag, value))
    }

    /// Returns the value of `measure` for each value of the swept flag.
    pub(crate) fn figures_along_sweep(
        self,
        strategy: Strategy,
        flag: &str,
        measure: impl Fn(&ResultCell) -> Option<f64>,
    ) -> Figures {
        let cells = self.cells(strategy);
        if cells.is_empty() {
            return None;
        }
        labeled_figures(cells.iter().map(|cell| {
            let value = cell.text(flag).unwrap_or_default();
            (sweep_label(flag, value), measure(cell))
        }))
    }
}

/// Returns a label for a value of a swept flag: updates per insert, percent of deletes, or bytes of data.
fn sweep_label(flag: &str, value: &str) -> String {
    match (flag, value.parse::<f64>(), value.parse::<u64>()) {
        ("updates", Ok(share), _) => format!("{:.0} updates:", share / (1.0 - share)),
        ("deletes", Ok(share), _) => format!("{:.0} % deletes:", 100.0 * share),
        ("entries", _, Ok(entries)) => format!("{}:", format_bytes(entries * ENTRY_BYTES)),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::figures::ios;
    use crate::strategy::{FULL, LO1, TIER};

    /// Returns results of three strategies. Bytes moved ÷ bytes ingested is 50 for Full, `lo1` for LO+1 and 10 for
    /// Tier.
    pub(crate) fn results(name: &str, lo1: u64) -> Results {
        let mut text = "# lsmx explore | commit 0123abcd, 2026-11-01\nupdates,policy,spec,compaction.jobs,data_moved_ratio,\
                        point_lookups[0.4].ios_per_get\n"
            .to_owned();
        for (strategy, moved) in [(FULL, 50), (LO1, lo1), (TIER, 10)] {
            let Strategy { policy, spec, .. } = strategy;
            text.push_str(&format!("0.5,{policy},\"{spec}\",{moved},{moved},1.5\n"));
        }
        Results(BTreeMap::from([(name.to_owned(), parse_file(&text).unwrap())]))
    }

    #[test]
    fn cells_are_found_by_spec_or_policy_and_sweep_point() {
        let by_policy = results("r7-8", 26);
        let results = results("r4", 26);
        let r4 = results.find_part("r4");
        assert_eq!(r4.strategy_figure(LO1, |cell| cell.number("compaction.jobs")), Some(26.0));
        let other_spec = Strategy { spec: "lo+1(l1=3)", ..LO1 };
        assert_eq!(r4.find_cell(other_spec), None);
        assert!(by_policy.find_part("r7-8").find_cell(other_spec).is_some());
        assert!(results.find_part("r5").find_cell(LO1).is_none());
        assert!(r4.find_swept_cell(TIER, "updates", "0.50").is_some());
        assert!(r4.find_swept_cell(TIER, "updates", "0.6").is_none());
        assert!(r4.find_swept_cell(TIER, "deletes", "0.5").is_none());
        assert_eq!(r4.strategy_figure(FULL, |cell| ios(cell, 0.4)), Some(1.5));
        assert_eq!(r4.strategy_figure(FULL, |cell| ios(cell, 1.0)), None);
    }

    #[test]
    fn names_are_grouped_by_commit() {
        let by_commit = results("r4", 26);
        assert_eq!(
            by_commit.names_by_commit(),
            BTreeMap::from([("0123abcd, 2026-11-01", vec!["r4"])])
        );
    }

    #[test]
    fn spread_is_in_columns_of_its_own() {
        let cells = parse_cells("spec,a,a.low,a.high,b\nfull,2,1,4,3\n").unwrap();
        assert_eq!((cells[0].spread("a"), cells[0].spread("b")), (Some((1.0, 4.0)), None));
    }

    #[test]
    fn malformed_result_error_names_the_cause() {
        assert_eq!(parse_cells("policy\nfull\n").unwrap_err(), "it has no column spec");
        let error = parse_cells("spec,policy\nfull\n").unwrap_err();
        assert!(error.contains("fields"), "{error}");
        assert!(parse_cells("").is_err());
        assert_eq!(parse_file("spec\n").unwrap_err(), "its first line contains no commit");
        let error = Results::read(Path::new("/nowhere")).unwrap_err();
        assert!(error.starts_with("/nowhere: "), "{error}");
    }

    #[test]
    fn sum_adds_the_columns_of_all_levels() {
        let text = "spec,levels[1].runs,levels[2].runs,levels[2].files\nfull,1,,9\nlo+1,2,3,9\n";
        let cells = parse_cells(text).unwrap();
        let runs: Vec<_> = cells.iter().map(|cell| cell.sum("levels[", "].runs")).collect();
        assert_eq!(runs, [Some(1.0), Some(5.0)]);
    }
}
