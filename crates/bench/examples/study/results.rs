//! Results of `scripts/study`: cells by the name of their file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use lsmx_bench::experiment::explore::result::{Cell, PointLookups};
use lsmx_bench::experiment::sweep::SweepValue;
use serde_json::Value;

use crate::strategy::Strategy;

/// Cells by the name of their file. Missing measurements have no cells.
#[derive(Debug, Default)]
pub(crate) struct Results {
    parts: BTreeMap<String, Vec<Cell>>,
}

/// A file that cannot be read, with the reason.
#[derive(Debug)]
pub(crate) struct Unreadable {
    path: PathBuf,
    why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl Results {
    /// Reads every `*.json` of a directory.
    pub(crate) fn read(directory: &Path) -> Result<Results, Unreadable> {
        let unreadable = |path: &Path, why: String| Unreadable { path: path.to_path_buf(), why };
        let files = std::fs::read_dir(directory)
            .map_err(|error| unreadable(directory, error.to_string()))?;
        let mut results = Results::default();
        for file in files {
            let path = file.map_err(|error| unreadable(directory, error.to_string()))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path)
                .map_err(|error| unreadable(&path, error.to_string()))?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let cells = cells(&text).map_err(|why| unreadable(&path, why))?;
            results.parts.insert(name, cells);
        }
        Ok(results)
    }

    /// Parses results of one part.
    #[cfg(test)]
    pub(crate) fn of(name: &str, text: &str) -> Result<Results, String> {
        Ok(Results { parts: BTreeMap::from([(name.to_owned(), cells(text)?)]) })
    }

    /// Returns all cells of a part.
    pub(crate) fn part(&self, part: &str) -> &[Cell] {
        self.parts.get(part).map_or(&[], Vec::as_slice)
    }

    /// Returns the cell of a strategy in a part without sweep.
    pub(crate) fn cell(&self, part: &str, strategy: Strategy) -> Option<&Cell> {
        self.part(part).iter().find(|cell| cell.spec == strategy.spec)
    }

    /// Returns the cells of a strategy in the order of the swept flag. A swept size ratio changes the spec, so then the
    /// policy identifies the strategy.
    pub(crate) fn swept(&self, part: &str, strategy: Strategy) -> Vec<&Cell> {
        let same = |cell: &&Cell| {
            let swept_ratio = cell.sweep.value("size-ratio").is_some();
            cell.spec == strategy.spec || (swept_ratio && cell.policy == strategy.policy)
        };
        self.part(part).iter().filter(same).collect()
    }

    /// Returns the cell of a strategy at a point of the sweep.
    pub(crate) fn at(
        &self,
        part: &str,
        strategy: Strategy,
        flag: &str,
        value: &SweepValue,
    ) -> Option<&Cell> {
        self.swept(part, strategy).into_iter().find(|cell| cell.sweep.value(flag) == Some(value))
    }
}

/// Returns the lookups of a cell with a share of absent keys.
pub(crate) fn lookups(cell: &Cell, alpha: f64) -> Option<&PointLookups> {
    cell.point_lookups.iter().find(|lookups| (lookups.alpha - alpha).abs() < 1e-9)
}

/// Returns the block reads per lookup: the read amplification of the study × the share of successful lookups.
pub(crate) fn ios(cell: &Cell, alpha: f64) -> Option<f64> {
    lookups(cell, alpha).map(|lookups| lookups.ios_per_get)
}

fn cells(text: &str) -> Result<Vec<Cell>, String> {
    let mut whole: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let cells = whole.get_mut("cells").map(Value::take).ok_or("it has no cells")?;
    serde_json::from_value(cells).map_err(|error| error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::strategy::{FULL, LO1, TIER};

    /// Returns a cell whose merges moved `moved` times the ingested bytes.
    pub(crate) fn cell(spec: &str, moved: u64) -> Value {
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

    /// Returns a part in which Full moved 50, LO+1 `lo1`, and Tier 10 times the ingested bytes.
    pub(crate) fn results(name: &str, lo1: u64) -> Results {
        let cells = [cell(FULL.spec, 50), cell(LO1.spec, lo1), cell(TIER.spec, 10)];
        Results::of(name, &json!({ "cells": cells }).to_string()).unwrap()
    }

    #[test]
    fn cells_are_found_by_spec_and_sweep_point() {
        let results = results("r4", 26);
        assert_eq!(results.cell("r4", LO1).unwrap().compaction.jobs, 26);
        assert!(results.cell("r5", LO1).is_none());
        let half = SweepValue::Real(0.5);
        assert!(results.at("r4", TIER, "updates", &half).is_some());
        assert!(results.at("r4", TIER, "deletes", &half).is_none());
        assert_eq!(ios(results.cell("r4", FULL).unwrap(), 0.4), Some(1.5));
        assert_eq!(ios(results.cell("r4", FULL).unwrap(), 1.0), None);
    }

    #[test]
    fn malformed_results_error_has_the_reason() {
        assert_eq!(Results::of("x", "{}").unwrap_err(), "it has no cells");
        let error = Results::of("x", r#"{"cells": [{}]}"#).unwrap_err();
        assert!(error.contains("missing field"), "{error}");
        assert!(Results::of("x", "").is_err());
        let error = Results::read(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere: "), "{error}");
    }
}
