//! `lsmx db PATH stats`.

use std::time::Duration;

use lsmx::Observation;

use crate::args::{DbArgs, StatsArgs};
use crate::failure::Failure;
use crate::output;

/// Prints the counters of the whole database, or of the keyspace that was named.
pub(super) fn run(arguments: &DbArgs, stats: &StatsArgs) -> Result<(), Failure> {
    if let Some(seconds) = stats.watch {
        return watch(arguments, stats, seconds);
    }
    let (db, _keyspace) = super::open_to_read(arguments)?;
    let mut metrics = db.metrics();
    if let Some(name) = &arguments.keyspace {
        metrics.keyspaces.retain(|known, _| known == name);
    }
    if stats.json {
        return super::json(&metrics);
    }
    output::stdout(metrics.to_string().as_bytes())
}

/// Looks at the files again and again, without opening the database: its owner does not notice.
fn watch(arguments: &DbArgs, stats: &StatsArgs, seconds: f64) -> Result<(), Failure> {
    let pause = Duration::try_from_secs_f64(seconds).map_err(|_| {
        Failure::Usage(format!("invalid value '{seconds}' for '--watch': a time to wait is needed"))
    })?;
    let mut left = stats.count;
    while left != Some(0) {
        let mut seen = lsmx::observe(&arguments.path, &lsmx::Options::default())?;
        if let Some(name) = &arguments.keyspace {
            keep(&mut seen, name)?;
        }
        if stats.json {
            let line = serde_json::to_string(&seen)
                .map_err(|error| Failure::file("write to", "standard output", error.into()))?;
            output::stdout(format!("{line}\n").as_bytes())?;
        } else {
            output::stdout(seen.to_string().as_bytes())?;
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            #[expect(
                clippy::disallowed_methods,
                reason = "the pause of a command, not of the engine"
            )]
            std::thread::sleep(pause);
        }
    }
    Ok(())
}

fn keep(seen: &mut Observation, name: &str) -> Result<(), Failure> {
    seen.keyspaces.retain(|known, _| known == name);
    if seen.keyspaces.is_empty() {
        return Err(lsmx::Error::UnknownKeyspace { name: name.to_owned() }.into());
    }
    Ok(())
}
