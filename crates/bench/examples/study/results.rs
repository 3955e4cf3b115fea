//! Reads the results that `scripts/study` writes.

use std::collections::BTreeMap;
use std::path::Path;

use lsmx_bench::experiment::explore::result::ExplorationCell;
use lsmx_bench::experiment::sweep::SweepValue;
use serde_json::Value;

use crate::figures::{Figures, divide, labeled_figures};
use crate::strategy::Strategy;

/// The measurements of all result files, by file name.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<String, Vec<ExplorationCell>>);

/// The measurements in one result file; empty if the file is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultPart<'a>(pub(crate) &'a [ExplorationCell]);

impl Results {
    /// Reads all files `*.json` of a directory.
    pub(crate) fn read(directory: &Path) -> Result<Results, String> {
        let unreadable = |path: &Path, why: String| format!("{}: {why}", path.display());
        let mut results = Results::default();
        let files = std::fs::read_dir(directory)
            .map_err(|error| unreadable(directory, error.to_string()))?;
        for file in files {
            let path = file.map_err(|error| unreadable(directory, error.to_string()))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
                let cells = text.and_then(|text| parse_cells(&text));
                let cells = cells.map_err(|why| unreadable(&path, why))?;
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                results.0.insert(name, cells);
            }
        }
        Ok(results)
    }

    pub(crate) fn find_part(&self, name: &str) -> ResultPart<'_> {
        ResultPart(self.0.get(name).map_or(&[], Vec::as_slice))
    }
}

fn parse_cells(text: &str) -> Result<Vec<ExplorationCell>, String> {
    let mut result: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let cells = result.get_mut("cells").map(Value::take).ok_or("it has no cells")?;
    serde_json::from_value(cells).map_err(|error| error.to_string())
}

impl<'a> ResultPart<'a> {
    /// Returns the first measurement of a strategy. If the experiment sweeps no flag, the strategy has only one
    /// measurement.
    pub(crate) fn find_cell(self, strategy: Strategy) -> Option<&'a ExplorationCell> {
        self.0.iter().find(|cell| cell.spec == strategy.spec)
    }

    pub(crate) fn strategy_figure(
        self,
        strategy: Strategy,
        measure: impl Fn(&ExplorationCell) -> Option<f64>,
    ) -> Option<f64> {
        self.find_cell(strategy).and_then(measure)
    }

    pub(crate) fn figures_by_strategy(
        self,
        strategies: &[Strategy],
        measure: impl Fn(&ExplorationCell) -> Option<f64>,
    ) -> Figures {
        labeled_figures(strategies.iter().map(|at| (at.name, self.strategy_figure(*at, &measure))))
    }

    /// Returns, for each strategy, the value of the strategy ÷ the value of the strategy `base`.
    pub(crate) fn ratios_to_base(
        self,
        strategies: &[Strategy],
        base: Strategy,
        measure: impl Fn(&ExplorationCell) -> Option<f64>,
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
        measure: impl Fn(&ExplorationCell) -> Option<f64>,
    ) -> Figures {
        let base = self.strategy_figure(base, &measure);
        labeled_figures(
            strategies
                .iter()
                .map(|at| (at.name, divide(base, self.strategy_figure(*at, &measure)))),
        )
    }

    /// Returns the measurements of a strategy in the order of the swept flag. A sweep of the size ratio changes the
    /// policy spec, so the strategy is then identified by the policy name.
    pub(crate) fn swept_cells(self, strategy: Strategy) -> Vec<&'a ExplorationCell> {
        let same = |cell: &&ExplorationCell| {
            let swept_ratio = cell.sweep.value("size-ratio").is_some();
            cell.spec == strategy.spec || (swept_ratio && cell.policy == strategy.policy)
        };
        self.0.iter().filter(same).collect()
    }

    /// Returns the measurement of a strategy for one value of the swept flag.
    pub(crate) fn find_swept_cell(
        self,
        strategy: Strategy,
        flag: &str,
        value: &SweepValue,
    ) -> Option<&'a ExplorationCell> {
        self.swept_cells(strategy).into_iter().find(|cell| cell.sweep.value(flag) == Some(value))
    }

    /// Returns the value of `measure` for each value of the swept flag.
    pub(crate) fn figures_along_sweep(
        self,
        strategy: Strategy,
        flag: &str,
        measure: impl Fn(&ExplorationCell) -> Option<f64>,
    ) -> Figures {
        let cells = self.swept_cells(strategy);
        if cells.is_empty() {
            return None;
        }
        labeled_figures(cells.iter().map(|cell| {
            let value = cell.sweep.value(flag).map(ToString::to_string).unwrap_or_default();
            (value, measure(cell))
        }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::figures::ios;
    use crate::strategy::{FULL, LO1, TIER};

    /// Returns a measurement in which compactions moved `moved` times the ingested bytes.
    fn cell(spec: &str, moved: u64) -> Value {
        let latency = json!({
            "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "p999": 1.0, "max": 1000.0 * moved as f64,
        });
        json!({
            "policy": spec.split('(').next(), "spec": spec, "sweep": {"updates": 0.5},
            "workload": {
                "records": {
                    "source": "generated", "key_len": 4, "value_len": 124, "distribution": "uniform",
                },
                "phases": [], "memtable_bytes": 1, "table_bytes": 1, "block_cache_bytes": 1,
                "write_control": "stop", "deterministic": false,
            },
            "seed": 0, "ingested_bytes": 10_000, "flushed_bytes": 10_000, "flushes": 150,
            "compaction": {
                "jobs": moved, "trivial_moves": 0, "read_bytes": 5_000 * moved,
                "written_bytes": 5_000 * moved, "latency_us": latency,
            },
            "data_moved_ratio": moved, "write_amplification": 1.0,
            "compaction_write_amplification": moved, "device_write_amplification": 1.0,
            "space_amplification": 1.0, "space_amplification_invalid": 0.0,
            "put_latency_us": latency,
            "stalls": { "count": 0, "total_us": 0, "max_us": 0 },
            "point_lookups": [{
                "alpha": 0.4, "ops": 10, "latency_us": latency, "ios_per_get": 1.5,
                "blocks_read": {}, "filter_false_positive_rate": 0.0,
            }],
            "range_lookups": { "ops": 0, "entries": 0, "latency_us": latency, "blocks_read": {} },
            "levels": [], "elapsed_s": 1.0, "digest": null,
        })
    }

    /// Returns results of three strategies. Bytes moved ÷ bytes ingested is 50 for Full, `lo1` for LO+1 and 10 for
    /// Tier.
    pub(crate) fn results(name: &str, lo1: u64) -> Results {
        let cells = [cell(FULL.spec, 50), cell(LO1.spec, lo1), cell(TIER.spec, 10)];
        let cells = parse_cells(&json!({ "cells": cells }).to_string()).unwrap();
        Results(BTreeMap::from([(name.to_owned(), cells)]))
    }

    #[test]
    fn cells_are_found_by_spec_and_sweep_point() {
        let results = results("r4", 26);
        let r4 = results.find_part("r4");
        assert_eq!(r4.find_cell(LO1).unwrap().compaction.jobs, 26);
        assert!(results.find_part("r5").find_cell(LO1).is_none());
        let half = SweepValue::Real(0.5);
        assert!(r4.find_swept_cell(TIER, "updates", &half).is_some());
        assert!(r4.find_swept_cell(TIER, "deletes", &half).is_none());
        assert_eq!(r4.strategy_figure(FULL, |cell| ios(cell, 0.4)), Some(1.5));
        assert_eq!(r4.strategy_figure(FULL, |cell| ios(cell, 1.0)), None);
    }

    #[test]
    fn malformed_result_error_names_the_cause() {
        assert_eq!(parse_cells("{}").unwrap_err(), "it has no cells");
        let error = parse_cells(r#"{"cells": [{}]}"#).unwrap_err();
        assert!(error.contains("missing field"), "{error}");
        assert!(parse_cells("").is_err());
        let error = Results::read(Path::new("/nowhere")).unwrap_err();
        assert!(error.starts_with("/nowhere: "), "{error}");
    }
}
