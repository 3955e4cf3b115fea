//! `lsmx bench --experiment`: one thing is varied, or watched, on a database of the workloads.
//!
//! | experiment | what |
//! | --- | --- |
//! | `caching` | reads by what the block cache holds, with the last sorted run's filter and without |
//! | `filter-size` | reads by the width of filters; a database for each |
//! | `put-over-time` | puts per slice of time, while compactions run |

mod caching;
mod filter_size;
mod put_over_time;
mod reads;
pub mod result;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::Result;
use crate::peers::{Kind, Settings};
use crate::report::provenance::Provenance;
use crate::temporary;

use super::Progress;
use super::throughput::database::holds_something;
use super::throughput::records::Records;
use super::throughput::{Config, contradiction};
use result::Tuning;

/// Puts between two reports of progress.
const STEP: u64 = 1024;

/// An experiment by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Study {
    /// Reads by what the block cache holds.
    Caching,
    /// Reads by the width of filters.
    FilterSize,
    /// Puts per slice of time.
    PutOverTime,
}

impl Study {
    /// All of them.
    pub const ALL: [Study; 3] = [Study::Caching, Study::FilterSize, Study::PutOverTime];

    /// The name as typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Study::Caching => "caching",
            Study::FilterSize => "filter-size",
            Study::PutOverTime => "put-over-time",
        }
    }
}

impl fmt::Display for Study {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Study {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Study, String> {
        let known = Study::ALL.map(Study::name).join(", ");
        let found = Study::ALL.into_iter().find(|study| study.name() == text);
        found.ok_or_else(|| format!("unknown experiment {text:?}; known: {known}"))
    }
}

/// Runs an experiment with what was configured for workloads.
///
/// # Errors
/// When a parameter is out of range or makes no sense here, an engine fails or gives a wrong answer.
pub fn run(study: Study, config: &Config, progress: &mut dyn Progress) -> Result<Tuning> {
    check(study, config)?;
    let place = config.database.as_deref().unwrap_or(&config.directory);
    let provenance = Provenance::new(config.command.clone(), None, config.seed, place);
    let records = Records::new(config.entries, config.key_bytes, config.value_bytes, config.seed)?;
    let temporary = temporary::directory("lsmx-bench-", &config.directory)?;
    let bench = Bench { config, records: &records, temporary: temporary.path() };
    let cells = match study {
        Study::Caching => caching::run(&bench, progress)?,
        Study::FilterSize => filter_size::run(&bench, progress)?,
        Study::PutOverTime => put_over_time::run(&bench, progress)?,
    };
    Ok(Tuning { provenance, experiment: study.name(), settings: config.reported(), cells })
}

fn check(study: Study, config: &Config) -> Result<()> {
    config.check_numbers()?;
    let experiment = format!("--experiment {study}");
    if config.repeat > 1 {
        return Err(contradiction("--repeat", &experiment, "it runs once"));
    }
    if config.rate.is_some() {
        return Err(contradiction("--rate", &experiment, "operations follow one another"));
    }
    if study == Study::FilterSize && config.database.is_some() {
        return Err(contradiction("--db", &experiment, "tables keep the filters they have"));
    }
    if study != Study::PutOverTime && !config.peers.is_empty() {
        return Err(contradiction("--peers", &experiment, "it varies what lsmx alone has"));
    }
    Ok(())
}

/// What experiments work with.
struct Bench<'a> {
    config: &'a Config,
    records: &'a Records,
    /// For databases that do not stay.
    temporary: &'a Path,
}

impl Bench<'_> {
    fn threads(&self) -> usize {
        self.config.threads.unwrap_or(1)
    }

    fn ops(&self) -> u64 {
        self.config.ops.unwrap_or(self.config.entries)
    }

    /// Puts every record into a new database of lsmx, and lets it settle.
    fn fill(
        &self,
        path: &Path,
        settings: &Settings,
        title: &str,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let engine = Kind::Lsmx.open(path, settings)?;
        let mut random = crate::workload::random::Random::new(self.config.seed, 0);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        progress.begin(title, self.config.entries);
        for record in 0..self.config.entries {
            self.records.key(record, &mut key);
            self.records.value(record, &mut random, &mut value);
            engine.put(&key, &value)?;
            if (record + 1).is_multiple_of(STEP) {
                progress.advance(STEP);
            }
        }
        engine.settle()?;
        progress.end();
        engine.close()
    }

    /// The database of `--db`, filled if it is new, or else a temporary one.
    fn filled(&self, progress: &mut dyn Progress) -> Result<std::path::PathBuf> {
        let temporary = || self.temporary.join("lsmx");
        let path = self.config.database.clone().unwrap_or_else(temporary);
        if !holds_something(&path) {
            self.fill(&path, &self.config.settings, "fill", progress)?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for study in Study::ALL {
            assert_eq!(study.name().parse(), Ok(study));
        }
        assert!("x".parse::<Study>().unwrap_err().contains("caching, filter-size"));
    }
}
