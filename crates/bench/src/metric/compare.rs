//! Compares two results of an experiment.
//!
//! 1. Measurements with the same policy, spec, engine, workload, sweep point and number of threads are paired. Write
//!    control and job threads may differ, so that a measured engine can be compared with a simulation.
//! 2. A difference of a cost or a rate is *better* or *worse*. A difference of any other number is *changed*.
//! 3. If both measurements are deterministic, every difference except that of a time is *beyond noise*. If both
//!    measurements have repetitions, a difference is beyond noise if their intervals do not overlap. In all other
//!    cases, a difference is beyond noise if it exceeds [`NOISE`], or [`NOISE_OF_TIMES`] for a time. The decision is
//!    then marked as a guess.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::table::format_grid;

use super::{BetterDirection, Metric, MetricRegistry, find_metric, flatten_scalars, format_scalar};

/// Maximum relative difference that is treated as noise, for measurements without repetitions.
pub const NOISE: f64 = 0.05;
/// Maximum relative difference between times that is treated as noise, for measurements without repetitions.
pub const NOISE_OF_TIMES: f64 = 0.25;

/// JSON fields that identify a measurement. Two measurements are compared only if all these fields are equal.
const IDENTITY: &[&str] = &[
    "policy",
    "spec",
    "sweep",
    "engine",
    "workload",
    "threads",
    "mode",
    "base",
    "read_ratio",
    "cache_kind",
];
/// JSON fields of a workload that are ignored when two results are matched.
///
/// The number of loaded bytes depends on the seed if the lengths of values vary.
const NOT_OF_WORKLOAD: [&str; 4] = ["write_control", "workers", "deterministic", "loaded_bytes"];
/// JSON fields of a result that are not compared, because the fields are not measured numbers.
const NOT_MEASURED: [&str; 7] =
    ["seed", "levels", "history", "digest", "repeats", "simulated", "memory_bytes_before"];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub pairs: Vec<CellPair>,
    /// Names of the measurements that only the first result contains.
    pub only_old: Vec<String>,
    /// Names of the measurements that only the second result contains.
    pub only_new: Vec<String>,
}

/// A measurement that both compared results contain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellPair {
    /// Name of the measurement.
    pub cell: String,
    /// Whether both measurements have the same digest. `None` if a digest is missing.
    pub same_digest: Option<bool>,
    pub differences: Vec<MetricDifference>,
    /// Number of values that are equal in both measurements.
    pub equal: usize,
    /// Names of the numbers that only one of the two measurements contains.
    pub missing: Vec<String>,
}

/// A number that differs between two measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricDifference {
    /// Flat JSON name of the number, such as `compaction.jobs`.
    pub metric: String,
    pub old: f64,
    pub new: f64,
    /// Ratio of the new value to the old value. `None` if the old value is 0.
    pub ratio: Option<f64>,
    /// Confidence interval of the old value, or its minimum and maximum if there are too few repetitions for an
    /// interval. `None` without repetitions.
    pub old_interval: Option<[f64; 2]>,
    /// Confidence interval of the new value, or its minimum and maximum if there are too few repetitions for an
    /// interval. `None` without repetitions.
    pub new_interval: Option<[f64; 2]>,
    pub meaning: ChangeKind,
    /// Whether the number is a time. Times depend on the machine and its load.
    pub time: bool,
    pub beyond_noise: bool,
    /// True if `beyond_noise` is a guess, because the noise is unknown without repetitions.
    pub noise_unknown: bool,
    /// Whether this difference can make `lsmx compare --fail-above` fail.
    #[serde(skip)]
    gates: bool,
}

/// Whether a difference is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Better,
    Worse,
    /// The number is neither a cost nor a rate.
    Neutral,
}

impl MetricDifference {
    /// Returns the deterioration as a fraction of the old value. Returns 0 if the number is not worse, and infinity if
    /// the old value is 0.
    pub fn worse_by(&self) -> f64 {
        match (self.meaning, self.ratio) {
            (ChangeKind::Worse, Some(ratio)) => (ratio - 1.0).abs(),
            (ChangeKind::Worse, None) => f64::INFINITY,
            _ => 0.0,
        }
    }
}

impl Comparison {
    /// Compares two results. `registry` declares the metrics of the first result. If `registry` is `None`, the first
    /// declaration of a metric name in any command determines how a number is compared.
    pub fn new(registry: Option<&MetricRegistry>, old: &[Value], new: &[Value]) -> Comparison {
        let mut others: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for cell in new.iter().rev() {
            others.entry(cell_identity(cell)).or_default().push(cell);
        }
        let (mut pairs, mut only_old) = (Vec::new(), Vec::new());
        for cell in old {
            match others.get_mut(&cell_identity(cell)).and_then(Vec::pop) {
                Some(other) => pairs.push(compare_cells(registry, cell, other)),
                None => only_old.push(cell_name(cell)),
            }
        }
        let only_new = others.values().flatten().map(|cell| cell_name(cell)).collect();
        Comparison { pairs, only_old, only_new }
    }

    /// Returns the differences for which `lsmx compare` fails: times that are worse by more than the fraction
    /// `share_of_times`, and other costs and rates that are worse by more than `share`. `None` disables a limit.
    pub fn list_worse<'a>(
        &'a self,
        share: Option<f64>,
        share_of_times: Option<f64>,
    ) -> impl Iterator<Item = (&'a CellPair, &'a MetricDifference)> + 'a {
        self.pairs.iter().flat_map(move |pair| {
            let worse = pair.differences.iter().filter(move |difference| {
                let allowed = if difference.time { share_of_times } else { share };
                difference.gates && allowed.is_some_and(|allowed| difference.worse_by() > allowed)
            });
            worse.map(move |difference| (pair, difference))
        })
    }
}

fn cell_identity(cell: &Value) -> String {
    let mut identity = String::new();
    for member in IDENTITY {
        let mut value = cell.get(member).cloned().unwrap_or(Value::Null);
        if let Some(workload) = value.as_object_mut() {
            workload.retain(|name, _| !NOT_OF_WORKLOAD.contains(&name.as_str()));
        }
        identity.push_str(&format!("{value}\n"));
    }
    identity
}

/// Returns a short name of a measurement.
fn cell_name(cell: &Value) -> String {
    let mut words: Vec<String> = Vec::new();
    for (member, label) in [
        (if cell.get("spec").is_some() { "spec" } else { "policy" }, ""),
        ("workload", ""),
        ("engine", ""),
        ("mode", ""),
        ("base", ""),
        ("read_ratio", "reads "),
        ("threads", "threads "),
    ] {
        if let Some(value) = cell.get(member).filter(|value| !value.is_object()) {
            words.push(format!("{label}{}", format_scalar(value)));
        }
    }
    if let Some(sweep) = cell.get("sweep").and_then(Value::as_object) {
        words.extend(sweep.iter().map(|(key, value)| format!("{key}={}", format_scalar(value))));
    }
    words.join(" ")
}

fn compare_cells(registry: Option<&MetricRegistry>, old: &Value, new: &Value) -> CellPair {
    let digest = |cell: &Value| cell.get("digest").and_then(Value::as_str).map(str::to_owned);
    let same_digest = digest(old).zip(digest(new)).map(|(old, new)| old == new);
    let deterministic = same_digest.is_some();
    let (olds, news) = (measured_numbers(old), measured_numbers(new));
    let (mut differences, mut equal, mut missing) = (Vec::new(), 0, Vec::new());
    for (name, old_value) in &olds {
        match news.iter().find(|(other, _)| other == name) {
            Some((_, new_value)) if old_value.total_cmp(new_value).is_eq() => equal += 1,
            Some((_, new_value)) => differences.push(compare_number(
                registry.map_or_else(|| find_metric(name), |registry| registry.find(name)),
                name,
                (*old_value, repeat_interval(old, name)),
                (*new_value, repeat_interval(new, name)),
                deterministic,
            )),
            None => missing.push(name.clone()),
        }
    }
    let known = |name: &String| olds.iter().any(|(other, _)| other == name);
    missing.extend(news.into_iter().map(|(name, _)| name).filter(|name| !known(name)));
    CellPair { cell: cell_name(old), same_digest, differences, equal, missing }
}

/// Returns the measured numbers of a result, each with its flat name such as `compaction.jobs`.
fn measured_numbers(cell: &Value) -> Vec<(String, f64)> {
    let measured = |name: &str| {
        let top = name.split(['.', '[']).next().unwrap_or_default();
        !NOT_MEASURED.contains(&top) && !IDENTITY.contains(&top)
    };
    let scalars = flatten_scalars(cell).into_iter().filter(|(name, _)| measured(name));
    scalars.filter_map(|(name, scalar)| Some((name, scalar.as_f64()?))).collect()
}

/// Returns the confidence interval of a number. With too few repetitions for an interval, returns the minimum and the
/// maximum. Returns `None` without repetitions.
fn repeat_interval(cell: &Value, name: &str) -> Option<[f64; 2]> {
    let ends = |of: &Value| Some([of.get("low")?.as_f64()?, of.get("high")?.as_f64()?]);
    if let Some(repeated) = cell.get("repeats").and_then(|at| at.get("metrics")?.get(name)) {
        return repeated.get("interval").and_then(ends).or_else(|| ends(repeated));
    }
    // `lsmx bench` stores an interval in a separate JSON field. Equal bounds mean that there were no repetitions.
    let interval = cell.get(format!("{name}_interval"))?;
    let (low, high) = (interval.get(0)?.as_f64()?, interval.get(1)?.as_f64()?);
    (low < high).then_some([low, high])
}

fn compare_number(
    metric: Option<&Metric>,
    name: &str,
    (old, old_interval): (f64, Option<[f64; 2]>),
    (new, new_interval): (f64, Option<[f64; 2]>),
    deterministic: bool,
) -> MetricDifference {
    let better = metric.map_or(BetterDirection::Neither, |metric| metric.better);
    let time = metric.is_some_and(|metric| metric.is_time);
    let meaning = match better {
        BetterDirection::Neither => ChangeKind::Neutral,
        BetterDirection::Less if new < old => ChangeKind::Better,
        BetterDirection::More if new > old => ChangeKind::Better,
        _ => ChangeKind::Worse,
    };
    let ratio = (old != 0.0).then(|| new / old);
    let exceeds = |share| ratio.is_none_or(|ratio| (ratio - 1.0).abs() > share);
    let (beyond_noise, noise_unknown) = match (old_interval, new_interval) {
        _ if deterministic && !time => (true, false),
        (Some(old), Some(new)) => (old[1] < new[0] || new[1] < old[0], false),
        _ => (exceeds(if time { NOISE_OF_TIMES } else { NOISE }), true),
    };
    MetricDifference {
        metric: name.to_owned(),
        old,
        new,
        ratio,
        old_interval,
        new_interval,
        meaning,
        time,
        beyond_noise,
        noise_unknown,
        gates: metric.is_some_and(|metric| metric.gates),
    }
}

/// Returns a table for each pair of measurements and a line for each unpaired measurement. If `all` is false, the
/// tables contain only costs, rates, and numbers that differ beyond noise.
pub fn format_comparison(comparison: &Comparison, all: bool) -> String {
    let mut text = String::new();
    for pair in &comparison.pairs {
        text.push_str(&format_pair(pair, all));
        text.push('\n');
    }
    for (cells, which) in [(&comparison.only_old, "first"), (&comparison.only_new, "second")] {
        for cell in cells {
            text.push_str(&format!("only in the {which}: {cell}\n"));
        }
    }
    text
}

fn format_pair(pair: &CellPair, all: bool) -> String {
    let shown = |difference: &&MetricDifference| {
        all || difference.beyond_noise
            || (difference.meaning != ChangeKind::Neutral && difference.gates)
    };
    let rows: Vec<&MetricDifference> = pair.differences.iter().filter(shown).collect();
    let hidden = pair.differences.len() - rows.len();
    let mut head = format!("{}: {} numbers equal", pair.cell, pair.equal);
    if hidden > 0 {
        head.push_str(&format!(", {hidden} differ within noise"));
    }
    match pair.same_digest {
        Some(true) => head.push_str(", the same digest"),
        Some(false) => head.push_str(", another digest"),
        None => {}
    }
    if !pair.missing.is_empty() {
        head.push_str(&format!(", {} in one alone", pair.missing.len()));
    }
    if rows.is_empty() {
        return format!("{head}\n");
    }
    let header = ["metric", "old", "new", "ratio", "old values", "new values", ""];
    let rows = rows.into_iter().map(|difference| {
        vec![
            difference.metric.clone(),
            format_number(difference.old),
            format_number(difference.new),
            difference.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")),
            format_interval(difference.old_interval),
            format_interval(difference.new_interval),
            format_change(difference),
        ]
    });
    format!("{head}\n{}\n", format_grid(header.map(str::to_owned).into(), rows))
}

fn format_change(difference: &MetricDifference) -> String {
    if !difference.beyond_noise {
        return String::new();
    }
    let word = match difference.meaning {
        ChangeKind::Better => "better",
        ChangeKind::Worse => "worse",
        ChangeKind::Neutral => "changed",
    };
    format!("{word}{}", if difference.noise_unknown { "?" } else { "" })
}

fn format_number(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e15 {
        format!("{x:.0}")
    } else if x.abs() >= 1000.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.4}")
    }
}

fn format_interval(ends: Option<[f64; 2]>) -> String {
    ends.map(|[low, high]| format!("{}–{}", format_number(low), format_number(high)))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::find_registry;
    use serde_json::json;

    fn cell(policy: &str, write_amplification: f64, jobs: u64) -> Value {
        json!({
            "policy": policy, "spec": policy, "seed": 7,
            "workload": { "phases": [1, 2], "write_control": "smooth" },
            "write_amplification": write_amplification,
            "compaction": { "jobs": jobs },
            "put_latency_us": { "mean": 10.0 },
            "digest": null,
        })
    }

    fn compare(old: &[Value], new: &[Value]) -> Comparison {
        let bench = old.iter().any(|cell| cell.get("engine").is_some());
        Comparison::new(find_registry(if bench { "lsmx bench" } else { "lsmx explore" }), old, new)
    }

    fn only(comparison: &Comparison) -> &MetricDifference {
        let [pair] = &comparison.pairs[..] else { panic!("{comparison:?}") };
        let [difference] = &pair.differences[..] else { panic!("{pair:?}") };
        difference
    }

    #[test]
    fn cells_with_the_same_identity_are_paired() {
        let mut stopped = cell("full", 2.0, 5);
        stopped["workload"]["write_control"] = json!("none");
        stopped["seed"] = json!(8);
        let comparison = compare(&[cell("tiering", 1.0, 1), cell("full", 2.0, 5)], &[stopped]);
        assert_eq!(comparison.pairs.len(), 1);
        assert_eq!((comparison.pairs[0].cell.as_str(), comparison.pairs[0].equal), ("full", 3));
        assert_eq!((comparison.only_old.len(), comparison.only_new.len()), (1, 0));
        // The sum of random lengths depends on the seed.
        let [mut one, mut other] = [cell("full", 2.0, 5), cell("full", 2.0, 5)];
        one["workload"]["loaded_bytes"] = json!(1000);
        other["workload"]["loaded_bytes"] = json!(1001);
        assert_eq!(compare(&[one], &[other]).pairs.len(), 1);
        let mut swept = cell("full", 2.0, 5);
        swept["sweep"] = json!({ "size-ratio": 4 });
        let comparison = compare(&[cell("full", 2.0, 5)], &[swept]);
        assert_eq!(comparison.only_new, ["full size-ratio=4"]);
    }

    #[test]
    fn costs_are_better_or_worse_and_counts_change() {
        for (old, new, meaning, worse_by) in [
            ((2.0, 5), (2.5, 5), ChangeKind::Worse, 0.25),
            ((2.5, 5), (2.0, 5), ChangeKind::Better, 0.0),
            ((2.0, 5), (2.0, 50), ChangeKind::Neutral, 0.0),
            ((0.0, 5), (0.1, 5), ChangeKind::Worse, f64::INFINITY),
        ] {
            let comparison = compare(&[cell("full", old.0, old.1)], &[cell("full", new.0, new.1)]);
            let difference = only(&comparison);
            assert_eq!((difference.meaning, difference.worse_by()), (meaning, worse_by));
            assert!(difference.beyond_noise && difference.noise_unknown);
            let exceeds = |share| comparison.list_worse(Some(share), None).count();
            assert_eq!(
                (exceeds(0.2), exceeds(0.3)),
                (usize::from(worse_by > 0.2), usize::from(worse_by > 0.3))
            );
        }
    }

    #[test]
    fn times_have_their_own_limit() {
        let mut slow = cell("full", 2.0, 5);
        slow["put_latency_us"]["mean"] = json!(11.0);
        let comparison = compare(&[cell("full", 2.0, 5)], &[slow]);
        let difference = only(&comparison);
        assert!(difference.time && !difference.beyond_noise, "10 % of a time is noise");
        assert_eq!(comparison.list_worse(Some(0.0), None).count(), 0);
        assert_eq!(comparison.list_worse(None, Some(0.05)).count(), 1);
    }

    #[test]
    fn noise_is_the_interval_of_repetitions_and_zero_if_deterministic() {
        let with = |value: f64, low: f64, high: f64| {
            let mut cell = cell("full", value, 5);
            cell["repeats"] = json!({
                "metrics": { "write_amplification": { "low": low, "high": high } }
            });
            cell
        };
        let apart = compare(&[with(2.0, 1.9, 2.1)], &[with(2.3, 2.2, 2.4)]);
        assert!(only(&apart).beyond_noise && !only(&apart).noise_unknown);
        let near = compare(&[with(2.0, 1.9, 2.25)], &[with(2.3, 2.2, 2.4)]);
        assert!(!only(&near).beyond_noise);

        let exact = |value: f64, digest: &str| {
            let mut cell = cell("full", value, 5);
            cell["digest"] = json!(digest);
            cell
        };
        let comparison = compare(&[exact(2.0, "a")], &[exact(2.000_001, "b")]);
        assert!(only(&comparison).beyond_noise && !only(&comparison).noise_unknown);
        assert_eq!(comparison.pairs[0].same_digest, Some(false));
    }

    #[test]
    fn rates_of_bench_have_intervals_as_members() {
        let cell = |rate: f64, interval: [f64; 2]| {
            json!({
                "workload": "fillrandom", "engine": "lsmx", "threads": 1,
                "ops_per_s": rate, "ops_per_s_interval": interval,
            })
        };
        let comparison = compare(&[cell(100.0, [90.0, 110.0])], &[cell(80.0, [75.0, 85.0])]);
        let difference = only(&comparison);
        assert_eq!((difference.meaning, difference.beyond_noise), (ChangeKind::Worse, true));
        assert_eq!(comparison.pairs[0].cell, "fillrandom lsmx threads 1");
        assert!((difference.worse_by() - 0.2).abs() < 1e-12);
    }
}
