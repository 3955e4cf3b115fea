//! Implements the command `lsmx compare`, which compares two result files.

use std::path::Path;

use lsmx_bench::metric::compare::{self, Comparison};
use lsmx_bench::metric::{find_registry, format_scalar};
use lsmx_bench::report::{file, json};
use serde_json::{Map, Value};

use crate::args::CompareArgs;
use crate::failure::Failure;
use crate::output;

/// Maximum number of metrics that the error message names.
const NAMED_MAX: usize = 5;
/// Duration of a read of the clock, which results contain as a setting although it is measured.
const MEASURED_SETTING: &str = "clock_ns";

/// Prints the differences. Fails if a metric is worse than `--fail-above` or `--fail-latency-above` allows.
pub(crate) fn run(arguments: &CompareArgs) -> Result<(), Failure> {
    let CompareArgs { old, new, json, .. } = arguments;
    if let Some(json) = json {
        file::check_distinct(&[("--json", json)], &[old.clone(), new.clone()])?;
    }
    let (old, new) = (read(old)?, read(new)?);
    let compared = Comparison::new(find_registry(&old.command), &old.cells, &new.cells);
    if compared.pairs.is_empty() {
        let (old, new) = (arguments.old.display(), arguments.new.display());
        return Err(Failure::Usage(format!(
            "{old} and {new} have no cell of the same policy, workload and sweep in common"
        )));
    }
    let settings = describe_differences(&old.settings, &new.settings);
    if !settings.is_empty() {
        output::note(&format!("the results have different settings: {settings}"));
    }
    let written = json.as_deref().map(|path| json::write_json(path, &compared));
    output::stdout(compare::format_comparison(&compared, arguments.all).as_bytes())?;
    written.transpose()?;
    let gate = arguments.fail_above.is_some() || arguments.fail_latency_above.is_some();
    if gate && !compared.only_old.is_empty() {
        let missing = compared.only_old.join(", ");
        return Err(Failure::Run(format!("cells were not measured again: {missing}").into()));
    }
    let share = |percent: Option<f64>| percent.map(|percent| percent / 100.0);
    let (above, latency_above) = (share(arguments.fail_above), share(arguments.fail_latency_above));
    let worse: Vec<String> = compared
        .list_worse(above, latency_above)
        .map(|(pair, at)| format!("{} of {} by {:.1} %", at.metric, pair.cell, at.worse_by() * 1e2))
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    let named = worse.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
    let more = match worse.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Err(Failure::Run(format!("worse than allowed: {named}{more}").into()))
}

/// Returns the settings that differ, as text. A missing setting equals null. Omits [`MEASURED_SETTING`].
fn describe_differences(old: &Value, new: &Value) -> String {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return String::new() };
    let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
    let differences = names.filter(|name| *name != MEASURED_SETTING).filter_map(|name| {
        let value = |settings: &Map<String, Value>| settings.get(name).cloned().unwrap_or_default();
        let (old, new) = (value(old), value(new));
        (old != new).then(|| format!("{name} {} and {}", format_scalar(&old), format_scalar(&new)))
    });
    differences.collect::<Vec<_>>().join(", ")
}

/// Contents of a result file.
struct ResultFile {
    /// Command line. May be empty.
    command: String,
    /// Settings of all cells. Null if the cells contain their workloads.
    settings: Value,
    cells: Vec<Value>,
}

fn read(path: &Path) -> Result<ResultFile, Failure> {
    let bad = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let result: Value = serde_json::from_str(&text)
        .map_err(|error| bad(format!("not JSON: {error}").replace('\n', " ")))?;
    let command = result.pointer("/provenance/command").and_then(Value::as_str).unwrap_or_default();
    match result.get("cells").and_then(Value::as_array) {
        Some(cells) if !cells.is_empty() && cells.iter().all(Value::is_object) => {
            let settings = result.get("settings").cloned().unwrap_or_default();
            Ok(ResultFile { command: command.to_owned(), settings, cells: cells.clone() })
        }
        Some(_) => Err(bad("it has no cells".to_owned())),
        None => Err(bad("not a result of lsmx, which has cells".to_owned())),
    }
}
