//! State of a database that another process may have open. It is read without the lock of the database.

use std::time::{SystemTime, UNIX_EPOCH};

use lsmx::{MetricsReading, Observation, Options};

use crate::args::DbArgs;
use crate::failure::Failure;

/// A reading is out of date if its age exceeds this number of intervals of the metrics file.
const INTERVALS_MAX: u64 = 5;

/// The state of a database, or of the given keyspace, at one moment.
pub(super) enum ObservedState {
    /// Contents of the metrics file.
    Metrics(Box<MetricsReading>),
    /// The manifest and the file sizes, for a database without a metrics file.
    Files(Box<Observation>),
}

impl ObservedState {
    /// Reads the metrics file, or the manifest and the file sizes if there is no complete metrics file.
    pub(super) fn read(arguments: &DbArgs) -> Result<ObservedState, Failure> {
        let reading = lsmx::read_metrics_file(&arguments.path, &Options::default())?;
        let Some(mut reading) = reading else { return ObservedState::read_files(arguments) };
        let keyspaces = &mut reading.metrics.keyspaces;
        keyspaces.retain(|name, _| is_selected(arguments, name));
        check_keyspace(arguments, keyspaces.is_empty())?;
        Ok(ObservedState::Metrics(Box::new(reading)))
    }

    /// Reads the manifest and the file sizes.
    pub(super) fn read_files(arguments: &DbArgs) -> Result<ObservedState, Failure> {
        let mut observation = lsmx::observe(&arguments.path, &Options::default())?;
        let keyspaces = &mut observation.keyspaces;
        keyspaces.retain(|name, _| is_selected(arguments, name));
        check_keyspace(arguments, keyspaces.is_empty())?;
        Ok(ObservedState::Files(Box::new(observation)))
    }

    pub(super) fn is_same_reading(&self, other: &MetricsReading) -> bool {
        matches!(self, ObservedState::Metrics(reading) if reading.time_us == other.time_us)
    }
}

fn is_selected(arguments: &DbArgs, keyspace: &str) -> bool {
    arguments.keyspace.as_ref().is_none_or(|name| name == keyspace)
}

/// Fails if `--keyspace` is given and selects no keyspace.
fn check_keyspace(arguments: &DbArgs, is_empty: bool) -> Result<(), Failure> {
    match &arguments.keyspace {
        Some(name) if is_empty => {
            Err(lsmx::Error::UnknownKeyspace { name: name.to_owned() }.into())
        }
        _ => Ok(()),
    }
}

/// Returns a line that states the age of a reading, if its process has not written the metrics file for too long.
pub(super) fn outdated_line(reading: &MetricsReading) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the command has no environment")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let age_us = now_us.saturating_sub(reading.time_us);
    let age_us_max = reading.interval_us.saturating_mul(INTERVALS_MAX).max(1_000_000);
    (age_us > age_us_max).then(|| {
        let age = age_us / 1_000_000;
        format!("out of date: {age} s old; the process was killed or cannot write")
    })
}
