//! `lsmx db PATH stats`.

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Prints the counters of the whole database, or of the keyspace that was named.
pub(super) fn run(arguments: &DbArgs, json: bool) -> Result<(), Failure> {
    let (db, _keyspace) = super::open(arguments)?;
    let mut metrics = db.metrics();
    if let Some(name) = &arguments.keyspace {
        metrics.keyspaces.retain(|known, _| known == name);
    }
    if !json {
        return output::stdout(metrics.to_string().as_bytes());
    }
    let mut text = serde_json::to_string_pretty(&metrics)
        .map_err(|error| Failure::file("write to", "standard output", error.into()))?;
    text.push('\n');
    output::stdout(text.as_bytes())
}
