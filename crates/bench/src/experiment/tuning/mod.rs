//! `lsmx bench --experiment`: experiments that vary one setting, or measure puts over time.
//!
//! | experiment | measures |
//! | --- | --- |
//! | `caching` | lookups with different cache sizes, with and without the filter of the last sorted run |
//! | `filter-size` | puts and lookups with different filter sizes, each in its own database |
//! | `put-over-time` | puts per time slice while compactions run |
//! | `data-size` | puts, gets and deletes by the number of records, with values of different lengths |

mod caching;
pub mod columns;
mod data_size;
mod filter_size;
mod page;
mod put_over_time;
mod reads;
pub mod result;

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::peers::{EngineKind, EngineSettings};
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::records::GeneratedRecords;

use super::Progress;
use super::player::{OperationMeasurements, ThreadGroup};
use super::throughput::Config;
use super::throughput::database::has_entries;
use result::TuningResult;

/// An experiment that varies one setting, or measures puts over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuningStudy {
    /// Measures lookups with different cache sizes.
    Caching,
    /// Measures puts and lookups with different filter sizes.
    FilterSize,
    /// Measures puts per time slice.
    PutOverTime,
    /// Measures puts, gets and deletes for different numbers of records.
    DataSize,
}

impl TuningStudy {
    /// Returns the name of the experiment on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TuningStudy::Caching => "caching",
            TuningStudy::FilterSize => "filter-size",
            TuningStudy::PutOverTime => "put-over-time",
            TuningStudy::DataSize => "data-size",
        }
    }
}

/// Runs an experiment. `config` is the configuration of `lsmx bench`.
///
/// # Errors
/// A parameter is out of range or contradicts the experiment, an engine operation fails, or an engine returns a wrong
/// answer.
pub fn run_study(
    study: TuningStudy,
    config: &Config,
    progress: &mut dyn Progress,
) -> Result<TuningResult> {
    check_study(study, config)?;
    let place = config.database.as_deref().unwrap_or(&config.directory);
    let provenance = Provenance::new(config.command.clone(), None, config.seed, place);
    let Config { entries, key_bytes, value_bytes, seed, .. } = *config;
    let records = match study {
        TuningStudy::DataSize => GeneratedRecords::with_growing_values(entries, key_bytes, seed)?,
        _ => GeneratedRecords::with_tagged_values(entries, key_bytes, value_bytes, seed)?,
    };
    let temporary = temporary::create_temporary_directory("lsmx-bench-", &config.directory)?;
    let bench = StudyContext { config, records: &records, temporary: temporary.path() };
    let cells = match study {
        TuningStudy::Caching => caching::measure_cache_contents(&bench, progress)?,
        TuningStudy::FilterSize => filter_size::measure_filter_sizes(&bench, progress)?,
        TuningStudy::PutOverTime => put_over_time::measure_puts_over_time(&bench, progress)?,
        TuningStudy::DataSize => data_size::measure_data_sizes(&bench, progress)?,
    };
    let mut settings = config.reported_settings();
    if study == TuningStudy::DataSize {
        // The length of the largest value.
        settings.value_len = entries;
    }
    Ok(TuningResult { provenance, experiment: study.name(), settings, cells })
}

fn check_study(study: TuningStudy, config: &Config) -> Result<()> {
    config.check_numbers()?;
    if study == TuningStudy::DataSize {
        Error::check_range("--entries", config.entries, data_size::ENTRIES)?;
    }
    for (flag, is_given, why) in [
        ("--repeat", config.repeat > 1, "it runs once"),
        ("--memory-limit", config.memory_limit.is_some(), "it runs in one process"),
        ("--rate", config.rate.is_some(), "operations follow one another"),
        (
            "--db",
            study == TuningStudy::FilterSize && config.database.is_some(),
            "tables keep the filters they have",
        ),
        (
            "--db",
            study == TuningStudy::DataSize && config.database.is_some(),
            "each number of records has its own database",
        ),
        (
            "--ops",
            study == TuningStudy::DataSize && config.ops.is_some(),
            "each operation runs once for each record",
        ),
        (
            "--peers",
            study != TuningStudy::PutOverTime && !config.peers.is_empty(),
            "it runs lsmx alone",
        ),
    ] {
        if is_given {
            let experiment = format!("--experiment {}", study.name());
            return Err(Error::contradictory_arguments(flag, experiment, why));
        }
    }
    let overwritten: &[&str] = match study {
        TuningStudy::Caching => &["filter_last_run"],
        TuningStudy::FilterSize => &["filter_bits", "filter_last_run"],
        TuningStudy::PutOverTime | TuningStudy::DataSize => &[],
    };
    for option in &config.options {
        if option.split('=').next().is_some_and(|name| overwritten.contains(&name)) {
            let (first, second) =
                (format!("--option {option}"), format!("--experiment {}", study.name()));
            return Err(Error::contradictory_arguments(first, second, "the experiment sets it"));
        }
    }
    Ok(())
}

struct StudyContext<'a> {
    config: &'a Config,
    records: &'a GeneratedRecords,
    /// Directory for databases that are removed after the experiment.
    temporary: &'a Path,
}

impl StudyContext<'_> {
    fn threads(&self) -> u64 {
        self.config.threads.unwrap_or(1)
    }

    fn ops(&self) -> u64 {
        self.config.ops.unwrap_or(self.config.entries)
    }

    /// Puts every record into a new database of lsmx, and waits until compaction is idle. Returns the measurements of
    /// the puts, and the seconds from the last put until compaction was idle.
    fn fill_database(
        &self,
        path: &Path,
        settings: &EngineSettings,
        title: &str,
        progress: &mut dyn Progress,
    ) -> Result<(OperationMeasurements, f64)> {
        let (engine, count) = (EngineKind::Lsmx.open(path, settings)?, self.config.entries);
        let group = ThreadGroup::single_thread(engine.as_ref(), self.records);
        let loaded = group.load_records((title, count), progress)?;
        engine.close()?;
        Ok(loaded)
    }

    /// Returns the path of a database that contains all records: the database of `--db`, or a temporary database. A
    /// missing database is created and filled.
    fn filled_database_path(&self, progress: &mut dyn Progress) -> Result<PathBuf> {
        let path = self.config.database_path(EngineKind::Lsmx, self.temporary);
        if !has_entries(&path) {
            self.fill_database(&path, &self.config.settings, "fill", progress)?;
        }
        Ok(path)
    }
}
