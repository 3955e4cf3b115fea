//! Implements the flag `--sweep KEY=V,V…`, which repeats an experiment for each combination of flag values.
//!
//! For each combination, the swept flags are appended to the command line, which is then parsed again. Swept values are
//! thus validated like all other flag values.

use std::ffi::OsString;

use clap::Arg;
use lsmx_bench::experiment::sweep::{SweepPoint, SweepValue, flag_combinations};
use lsmx_bench::quantity::{parse_bytes, parse_count};
use lsmx_compaction::PolicySpec;

use crate::args::{self, Command, ExploreArgs};
use crate::failure::Failure;

/// Prefix of a sweep key that names a policy parameter.
const POLICY: &str = "policy.";

/// Command-line arguments for one combination of swept values.
#[derive(Debug)]
pub(super) struct SweptArguments {
    pub(super) arguments: ExploreArgs,
    pub(super) point: SweepPoint,
    /// Names and values of the swept policy parameters.
    parameters: Vec<(String, String)>,
}

/// Returns the arguments for every combination of swept values, in run order.
pub(super) fn points(
    arguments: &ExploreArgs,
    words: &[OsString],
) -> Result<Vec<SweptArguments>, Failure> {
    let mut sweeps: Vec<(String, Vec<String>)> = Vec::new();
    for text in &arguments.sweep {
        let (key, values) = key_and_values(text, words)?;
        if sweeps.iter().any(|(known, _)| *known == key) {
            return Err(Failure::Usage(format!("--sweep {key} occurs twice")));
        }
        sweeps.push((key, values));
    }
    flag_combinations(&sweeps).into_iter().map(|values| arguments_of_point(values, words)).collect()
}

fn key_and_values(text: &str, words: &[OsString]) -> Result<(String, Vec<String>), Failure> {
    let usage = |what: String| Err(Failure::Usage(format!("--sweep {text}: {what}")));
    let Some((key, values)) = text.split_once('=') else {
        return usage("must be KEY=VALUE,VALUE…".to_owned());
    };
    let key = key.trim().trim_start_matches("--").to_owned();
    let values: Vec<String> =
        args::split_outside_brackets(values).into_iter().map(str::to_owned).collect();
    if values.iter().any(String::is_empty) {
        return usage("a value is missing".to_owned());
    }
    if let Some(twice) = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value))
    {
        return usage(format!("{} occurs twice", twice.1));
    }
    if !key.starts_with(POLICY) && swept_flag(&key).is_none() {
        let flags = args::swept_flags();
        let known: Vec<&str> = flags.iter().filter_map(Arg::get_long).collect();
        return usage(format!(
            "unknown key {key:?}; known: {}, policy.PARAMETER",
            known.join(", ")
        ));
    }
    let flag = format!("--{key}");
    let is_flag = |word: &OsString| {
        let word = word.to_string_lossy();
        word == flag.as_str() || word.strip_prefix(&flag).is_some_and(|rest| rest.starts_with('='))
    };
    if words.iter().any(is_flag) {
        return usage(format!("contradicts {flag}, which has a value already"));
    }
    Ok((key, values))
}

fn swept_flag(name: &str) -> Option<Arg> {
    args::swept_flags().into_iter().find(|flag| flag.get_long() == Some(name))
}

/// Converts a swept value to a typed value for the result file. Counts and sizes become numbers.
fn sweep_value(key: &str, text: &str) -> SweepValue {
    let flag = swept_flag(key);
    let unit = flag.as_ref().and_then(Arg::get_value_names).and_then(<[_]>::first);
    let number = match unit.map(|unit| unit.as_str()) {
        Some("N") => parse_count(text).ok(),
        Some("BYTES") => parse_bytes(text).ok(),
        _ => None,
    };
    number.map_or_else(|| SweepValue::parse(text), SweepValue::Whole)
}

fn arguments_of_point(
    values: Vec<(String, String)>,
    words: &[OsString],
) -> Result<SweptArguments, Failure> {
    let mut words = words.to_vec();
    let mut parameters = Vec::new();
    let point = values.iter().map(|(key, value)| (key.clone(), sweep_value(key, value)));
    let point = SweepPoint(point.collect());
    for (key, value) in values {
        if let Some(parameter) = key.strip_prefix(POLICY) {
            parameters.push((parameter.to_owned(), value));
        } else if swept_flag(&key).is_some_and(|flag| flag.get_action().takes_values()) {
            words.push(OsString::from(format!("--{key}={value}")));
        } else if value == "true" {
            words.push(OsString::from(format!("--{key}")));
        } else if value != "false" {
            let what = format!("--sweep {key}={value}: the values are true and false");
            return Err(Failure::Usage(what));
        }
    }
    match args::parse(&words)?.command {
        Command::Explore(arguments) | Command::Simulate(arguments) => {
            Ok(SweptArguments { arguments: *arguments, point, parameters })
        }
        _ => Err(Failure::Usage("--sweep is a flag of explore and simulate".to_owned())),
    }
}

impl SweptArguments {
    /// Returns a copy of `policy` with the swept policy parameters of this combination.
    pub(super) fn policy(&self, policy: &PolicySpec) -> Result<PolicySpec, Failure> {
        let mut policy = policy.clone();
        for (parameter, value) in &self.parameters {
            let sweep = format!("--sweep {POLICY}{parameter}={value}");
            if policy.preset().is_none() {
                let what = format!("{sweep}: {} is composed, and has no parameters", policy.name());
                return Err(Failure::Usage(what));
            }
            let given = policy.to_string();
            let (name, given) = given.split_once('(').unwrap_or((&given, ""));
            let given = given.strip_suffix(')').unwrap_or(given);
            let is_given = given.split(',').any(|part| {
                part.split('=').next().is_some_and(|key| key.trim().eq_ignore_ascii_case(parameter))
            });
            if is_given {
                let what =
                    format!("{sweep} contradicts --policy {policy}, which has a value already");
                return Err(Failure::Usage(what));
            }
            let comma = if given.is_empty() { "" } else { "," };
            let text = format!("{name}({given}{comma}{parameter}={value})");
            policy = text.parse().map_err(|error| Failure::Usage(format!("{sweep}: {error}")))?;
        }
        Ok(policy)
    }
}
