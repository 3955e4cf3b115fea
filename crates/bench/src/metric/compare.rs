//! Two results side by side: what changed, and whether by more than chance.
//!
//! 1. Cells are paired by what they are: policy, spec, engine, workload, point of the sweep, threads.
//!    How writes were held back and whether jobs ran inline are no part of that, so one result may be
//!    of a measurement and the other of a simulation. Cells that are alike are paired in their order.
//! 2. Every number of a pair is a difference. One that is a cost or a rate gets better or worse, any
//!    other changes.
//! 3. A difference is *beyond noise* if both cells are deterministic and it is no time; else if the
//!    values of repetitions do not overlap; else, where nobody can tell, if it is larger than
//!    [`NOISE`] ([`NOISE_OF_TIMES`] for times), which is marked as a guess.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::table::grid;

use super::{Better, Metric, Registry, find, scalar_text, scalars};

/// Relative difference of a number that is taken for more than chance where there are no repetitions.
pub const NOISE: f64 = 0.05;
/// The same for latencies and other times.
pub const NOISE_OF_TIMES: f64 = 0.25;

/// What tells cells apart.
const IDENTITY: [&str; 10] = [
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
/// Members of a workload that say how it was run rather than what it is.
const NOT_OF_WORKLOAD: [&str; 3] = ["write_control", "workers", "deterministic"];
/// Members of a cell that are no measurement.
const NOT_MEASURED: [&str; 7] =
    ["seed", "levels", "history", "digest", "repeats", "simulated", "memory_bytes_before"];

/// Two results side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Cells that both have.
    pub pairs: Vec<Pair>,
    /// Names of the cells that only the first has.
    pub only_old: Vec<String>,
    /// Names of the cells that only the second has.
    pub only_new: Vec<String>,
}

/// A cell in both results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// What it is.
    pub cell: String,
    /// Whether both runs did the same, byte by byte; none where one of them cannot tell.
    pub same_digest: Option<bool>,
    /// Numbers that differ.
    pub differences: Vec<Difference>,
    /// How many are equal.
    pub equal: usize,
    /// Names of numbers that one of them lacks.
    pub missing: Vec<String>,
}

/// A number that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Its flat name.
    pub metric: String,
    /// In the first result.
    pub old: f64,
    /// In the second.
    pub new: f64,
    /// New ÷ old; none where old is 0.
    pub ratio: Option<f64>,
    /// Between which values the repetitions of the first lie.
    pub old_interval: Option<[f64; 2]>,
    /// The same of the second.
    pub new_interval: Option<[f64; 2]>,
    /// What a difference means.
    pub meaning: Meaning,
    /// Whether it is a time, which depends on the machine and its mood.
    pub time: bool,
    /// Whether it is beyond noise.
    pub beyond_noise: bool,
    /// Whether that is a guess.
    pub noise_unknown: bool,
    /// Whether an increase above what is allowed is an error.
    #[serde(skip)]
    gates: bool,
}

/// What a difference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Meaning {
    /// It costs less, or does more.
    Better,
    /// It costs more, or does less.
    Worse,
    /// It is neither a cost nor a rate.
    Neutral,
}

impl Difference {
    /// By how much it is worse, as a share of the old value; 0 where it is not, infinite where the old
    /// value was 0.
    pub fn worse_by(&self) -> f64 {
        match (self.meaning, self.ratio) {
            (Meaning::Worse, Some(ratio)) => (ratio - 1.0).abs(),
            (Meaning::Worse, None) => f64::INFINITY,
            _ => 0.0,
        }
    }
}

impl Comparison {
    /// Compares the cells of two results. `registry` has the metrics of the first result. Without it a number has the
    /// meaning that it has in the first command that reports it.
    pub fn new(registry: Option<&Registry>, old: &[Value], new: &[Value]) -> Comparison {
        let mut others: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for cell in new.iter().rev() {
            others.entry(identity(cell)).or_default().push(cell);
        }
        let (mut pairs, mut only_old) = (Vec::new(), Vec::new());
        for cell in old {
            match others.get_mut(&identity(cell)).and_then(Vec::pop) {
                Some(other) => pairs.push(pair(registry, cell, other)),
                None => only_old.push(name(cell)),
            }
        }
        let left = others.values().flatten().map(|cell| name(cell)).collect();
        Comparison { pairs, only_old, only_new: left }
    }

    /// Costs and rates that are worse by more than this share, with the cell they belong to. Times are
    /// asked with a share of their own, or not at all.
    pub fn worse<'a>(
        &'a self,
        share: Option<f64>,
        share_of_times: Option<f64>,
    ) -> impl Iterator<Item = (&'a Pair, &'a Difference)> + 'a {
        self.pairs.iter().flat_map(move |pair| {
            let worse = pair.differences.iter().filter(move |difference| {
                let allowed = if difference.time { share_of_times } else { share };
                difference.gates && allowed.is_some_and(|allowed| difference.worse_by() > allowed)
            });
            worse.map(move |difference| (pair, difference))
        })
    }
}

fn identity(cell: &Value) -> String {
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

/// What a cell is, in a few words.
fn name(cell: &Value) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut say = |member: &str, label: &str| {
        if let Some(value) = cell.get(member).filter(|value| !value.is_object()) {
            words.push(format!("{label}{}", scalar_text(value)));
        }
    };
    say(if cell.get("spec").is_some() { "spec" } else { "policy" }, "");
    say("workload", "");
    say("engine", "");
    say("mode", "");
    say("base", "");
    say("read_ratio", "reads ");
    say("threads", "threads ");
    if let Some(sweep) = cell.get("sweep").and_then(Value::as_object) {
        words.extend(sweep.iter().map(|(key, value)| format!("{key}={}", scalar_text(value))));
    }
    words.join(" ")
}

fn pair(registry: Option<&Registry>, old: &Value, new: &Value) -> Pair {
    let deterministic =
        [old, new].iter().all(|cell| cell.get("digest").is_some_and(Value::is_string));
    let digest = |cell: &Value| cell.get("digest").and_then(Value::as_str).map(str::to_owned);
    let same_digest = digest(old).zip(digest(new)).map(|(old, new)| old == new);
    let (olds, news) = (numbers(old), numbers(new));
    let (mut differences, mut equal, mut missing) = (Vec::new(), 0, Vec::new());
    for (name, old_value) in &olds {
        match news.iter().find(|(other, _)| other == name) {
            Some((_, new_value)) if old_value.total_cmp(new_value).is_eq() => equal += 1,
            Some((_, new_value)) => differences.push(difference(
                registry.map_or_else(|| find(name), |registry| registry.find(name)),
                name,
                (*old_value, interval(old, name)),
                (*new_value, interval(new, name)),
                deterministic,
            )),
            None => missing.push(name.clone()),
        }
    }
    let known = |name: &String| olds.iter().any(|(other, _)| other == name);
    missing.extend(news.into_iter().map(|(name, _)| name).filter(|name| !known(name)));
    Pair { cell: name(old), same_digest, differences, equal, missing }
}

/// Everything that was measured.
fn numbers(cell: &Value) -> Vec<(String, f64)> {
    let measured = |name: &str| {
        let top = name.split(['.', '[']).next().unwrap_or_default();
        !NOT_MEASURED.contains(&top) && !IDENTITY.contains(&top)
    };
    let scalars = scalars(cell).into_iter().filter(|(name, _)| measured(name));
    scalars.filter_map(|(name, scalar)| Some((name, scalar.as_f64()?))).collect()
}

/// Between which values repetitions lie.
fn interval(cell: &Value, name: &str) -> Option<[f64; 2]> {
    let ends = |of: &Value| Some([of.get("low")?.as_f64()?, of.get("high")?.as_f64()?]);
    if let Some(repeated) = cell.get("repeats").and_then(|at| at.get("metrics")?.get(name)) {
        return repeated.get("interval").and_then(ends).or_else(|| ends(repeated));
    }
    // `lsmx bench` keeps the interval beside the number, and one that is a point says nothing.
    let beside = cell.get(format!("{name}_interval"))?;
    let ends = [beside.get(0)?.as_f64()?, beside.get(1)?.as_f64()?];
    (ends[0] < ends[1]).then_some(ends)
}

fn difference(
    metric: Option<&Metric>,
    name: &str,
    (old, old_interval): (f64, Option<[f64; 2]>),
    (new, new_interval): (f64, Option<[f64; 2]>),
    deterministic: bool,
) -> Difference {
    let better = metric.map_or(Better::Neither, |metric| metric.better);
    let time = metric.is_some_and(|metric| metric.is_time);
    let meaning = match better {
        Better::Neither => Meaning::Neutral,
        Better::Less if new < old => Meaning::Better,
        Better::More if new > old => Meaning::Better,
        _ => Meaning::Worse,
    };
    let ratio = (old != 0.0).then(|| new / old);
    let far = |share| ratio.is_none_or(|ratio| (ratio - 1.0).abs() > share);
    let (beyond_noise, noise_unknown) = match (old_interval, new_interval) {
        _ if deterministic && !time => (true, false),
        (Some(old), Some(new)) => (old[1] < new[0] || new[1] < old[0], false),
        _ => (far(if time { NOISE_OF_TIMES } else { NOISE }), true),
    };
    Difference {
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

/// A table for each pair of cells, and a line for what has no counterpart. Of the numbers that differ
/// those are shown that are costs or rates, or changed beyond noise; with `all` every one.
pub fn table(comparison: &Comparison, all: bool) -> String {
    let mut text = String::new();
    for pair in &comparison.pairs {
        text.push_str(&pair_table(pair, all));
        text.push('\n');
    }
    for (cells, which) in [(&comparison.only_old, "first"), (&comparison.only_new, "second")] {
        for cell in cells {
            text.push_str(&format!("only in the {which}: {cell}\n"));
        }
    }
    text
}

fn pair_table(pair: &Pair, all: bool) -> String {
    let shown = |difference: &&Difference| {
        all || difference.beyond_noise
            || (difference.meaning != Meaning::Neutral && difference.gates)
    };
    let rows: Vec<&Difference> = pair.differences.iter().filter(shown).collect();
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
            number(difference.old),
            number(difference.new),
            difference.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")),
            range_text(difference.old_interval),
            range_text(difference.new_interval),
            verdict(difference).to_owned(),
        ]
    });
    format!("{head}\n{}\n", grid(header.map(str::to_owned).into(), rows))
}

fn verdict(difference: &Difference) -> &'static str {
    match (difference.beyond_noise, difference.meaning, difference.noise_unknown) {
        (false, ..) => "",
        (true, Meaning::Better, false) => "better",
        (true, Meaning::Better, true) => "better?",
        (true, Meaning::Worse, false) => "worse",
        (true, Meaning::Worse, true) => "worse?",
        (true, Meaning::Neutral, false) => "changed",
        (true, Meaning::Neutral, true) => "changed?",
    }
}

fn number(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e15 {
        format!("{x:.0}")
    } else if x.abs() >= 1000.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.4}")
    }
}

fn range_text(ends: Option<[f64; 2]>) -> String {
    ends.map(|[low, high]| format!("{}–{}", number(low), number(high))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::registry_of;
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
        Comparison::new(registry_of(if bench { "lsmx bench" } else { "lsmx explore" }), old, new)
    }

    fn only(comparison: &Comparison) -> &Difference {
        let [pair] = &comparison.pairs[..] else { panic!("{comparison:?}") };
        let [difference] = &pair.differences[..] else { panic!("{pair:?}") };
        difference
    }

    #[test]
    fn cells_are_paired_by_what_they_are() {
        let mut stopped = cell("full", 2.0, 5);
        stopped["workload"]["write_control"] = json!("none");
        stopped["seed"] = json!(8);
        let comparison = compare(&[cell("tiering", 1.0, 1), cell("full", 2.0, 5)], &[stopped]);
        assert_eq!(comparison.pairs.len(), 1);
        assert_eq!((comparison.pairs[0].cell.as_str(), comparison.pairs[0].equal), ("full", 3));
        assert_eq!((comparison.only_old.len(), comparison.only_new.len()), (1, 0));
        let mut swept = cell("full", 2.0, 5);
        swept["sweep"] = json!({ "size-ratio": 4 });
        let comparison = compare(&[cell("full", 2.0, 5)], &[swept]);
        assert_eq!(comparison.only_new, ["full size-ratio=4"]);
    }

    #[test]
    fn costs_get_worse_and_counts_change() {
        let comparison = compare(&[cell("full", 2.0, 5)], &[cell("full", 2.5, 5)]);
        let difference = only(&comparison);
        assert_eq!((difference.meaning, difference.ratio), (Meaning::Worse, Some(1.25)));
        assert!(difference.beyond_noise && difference.noise_unknown);
        assert_eq!(comparison.worse(Some(0.2), None).count(), 1);
        assert_eq!(comparison.worse(Some(0.3), None).count(), 0);
        let back = compare(&[cell("full", 2.5, 5)], &[cell("full", 2.0, 5)]);
        assert_eq!(only(&back).meaning, Meaning::Better);
        assert_eq!(back.worse(Some(0.0), None).count(), 0);
        let jobs = compare(&[cell("full", 2.0, 5)], &[cell("full", 2.0, 50)]);
        assert_eq!(only(&jobs).meaning, Meaning::Neutral);
        assert_eq!(jobs.worse(Some(0.0), None).count(), 0);
        let none = compare(&[cell("full", 0.0, 5)], &[cell("full", 0.1, 5)]);
        assert!(only(&none).worse_by().is_infinite());
    }

    #[test]
    fn times_have_a_limit_of_their_own() {
        let mut slow = cell("full", 2.0, 5);
        slow["put_latency_us"]["mean"] = json!(11.0);
        let comparison = compare(&[cell("full", 2.0, 5)], &[slow]);
        let difference = only(&comparison);
        assert!(difference.time && !difference.beyond_noise, "a tenth is chance");
        assert_eq!(comparison.worse(Some(0.0), None).count(), 0);
        assert_eq!(comparison.worse(None, Some(0.05)).count(), 1);
    }

    #[test]
    fn noise_is_what_repetitions_say_and_nothing_where_all_follows_from_the_seed() {
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
    fn rates_of_bench_have_their_interval_beside_them() {
        let cell = |rate: f64, interval: [f64; 2]| {
            json!({
                "workload": "fillrandom", "engine": "lsmx", "threads": 1,
                "ops_per_s": rate, "ops_per_s_interval": interval,
            })
        };
        let comparison = compare(&[cell(100.0, [90.0, 110.0])], &[cell(80.0, [75.0, 85.0])]);
        let difference = only(&comparison);
        assert_eq!((difference.meaning, difference.beyond_noise), (Meaning::Worse, true));
        assert_eq!(comparison.pairs[0].cell, "fillrandom lsmx threads 1");
        assert!((difference.worse_by() - 0.2).abs() < 1e-12);
    }
}
