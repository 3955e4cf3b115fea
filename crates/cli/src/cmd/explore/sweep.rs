//! `--sweep KEY=V,V…`: from what was typed to the arguments of each point.
//!
//! A point is the command line with the swept flags added, read again. So a swept value is checked as
//! if it had been typed, and every flag can be swept that takes a value or is there or not.

use std::ffi::OsString;

use clap::Parser;
use lsmx_bench::experiment::sweep::{SweepPoint, SweepValue, combinations};
use lsmx_compaction::PolicySpec;

use crate::args::{self, Arguments, Command, ExploreArgs};
use crate::failure::Failure;

/// What a key begins with that is a parameter of the policies.
const POLICY: &str = "policy.";

/// The arguments of one point.
#[derive(Debug)]
pub(super) struct Typed {
    pub(super) arguments: ExploreArgs,
    pub(super) point: SweepPoint,
    /// Parameters of the policies, with their values.
    parameters: Vec<(String, String)>,
}

/// The points of a sweep, in the order in which they are run.
pub(super) fn points(arguments: &ExploreArgs, words: &[OsString]) -> Result<Vec<Typed>, Failure> {
    let mut sweeps: Vec<(String, Vec<String>)> = Vec::new();
    for text in &arguments.sweep {
        let (key, values) = key_and_values(text, words)?;
        if sweeps.iter().any(|(known, _)| *known == key) {
            return Err(Failure::Usage(format!("--sweep {key} stands there twice")));
        }
        sweeps.push((key, values));
    }
    combinations(&sweeps).into_iter().map(|values| typed(values, words)).collect()
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
        return usage(format!("{} stands there twice", twice.1));
    }
    let known = args::sweepable();
    if !key.starts_with(POLICY) && !known.contains(&key) {
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

fn typed(values: Vec<(String, String)>, words: &[OsString]) -> Result<Typed, Failure> {
    let mut words = words.to_vec();
    let mut parameters = Vec::new();
    let point = values.iter().map(|(key, value)| (key.clone(), SweepValue::typed(value)));
    let point = SweepPoint(point.collect());
    for (key, value) in values {
        if let Some(parameter) = key.strip_prefix(POLICY) {
            parameters.push((parameter.to_owned(), value));
        } else if !args::is_switch(&key) {
            words.push(OsString::from(format!("--{key}={value}")));
        } else if value == "true" {
            words.push(OsString::from(format!("--{key}")));
        } else if value != "false" {
            let what = format!("--sweep {key}={value}: the values are true and false");
            return Err(Failure::Usage(what));
        }
    }
    let read = Arguments::try_parse_from(&words).map_err(|error| args::failure(&error, &words))?;
    match read.command {
        Command::Explore(arguments) | Command::Simulate(arguments) => {
            Ok(Typed { arguments: *arguments, point, parameters })
        }
        _ => Err(Failure::Usage("--sweep goes with explore and simulate alone".to_owned())),
    }
}

impl Typed {
    /// A policy with the parameters of this point.
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
