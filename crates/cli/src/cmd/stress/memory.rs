//! `lsmx stress --in-memory`: history after history against a model.

use std::ffi::OsString;
use std::fmt::Write as _;

use lsmx_bench::report::json;
use lsmx_bench::report::provenance::Provenance;
use lsmx_stress::modelling::{Play, Reached, try_play};
use serde::Serialize;

use super::Time;
use crate::args::StressArgs;
use crate::failure::Failure;
use crate::output;

/// What was done.
#[derive(Debug, Serialize)]
struct Report {
    provenance: Provenance,
    seconds: f64,
    histories: u64,
    #[serde(flatten)]
    reached: Reached,
    /// The last history, if it failed, as short as it can be; null if it did not.
    failure: Option<String>,
}

/// Plays histories and reports.
pub(super) fn run(arguments: &StressArgs, words: &[OsString], first: u64) -> Result<(), Failure> {
    let time = Time::begin(arguments);
    let (mut histories, mut reached, mut failure) = (0, Reached::default(), None);
    output::stdout(format!("histories from seed {first} on\n").as_bytes())?;
    while failure.is_none() && time.goes_on(histories) {
        let seed = first.wrapping_add(histories);
        let replay = format!("lsmx stress --in-memory --seed {seed} --runs 1");
        histories += 1;
        match try_play("lsmx stress --in-memory", &replay, &Play::drawn(seed)) {
            Ok(outcome) => reached += outcome.reached,
            Err(what) => failure = Some(what),
        }
    }
    if let Some(path) = &arguments.json {
        let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let here = std::env::temp_dir();
        let provenance = Provenance::new(command.join(" "), None, first, &here);
        let (seconds, failure) = (time.elapsed_s(), failure.clone());
        json::write(path, &Report { provenance, seconds, histories, reached, failure })?;
    }
    if let Some(what) = failure {
        // A list of operations has no place on the one line of an error.
        output::stdout(what.as_bytes())?;
        let line = what.lines().take(2).collect::<Vec<_>>().join("; ");
        return Err(Failure::Run(line.into()));
    }
    output::stdout(table(histories, &reached, time.elapsed_s()).as_bytes())
}

/// What became of all.
fn table(histories: u64, reached: &Reached, seconds: f64) -> String {
    let mut text = String::new();
    for (count, what) in [
        (histories, "histories, in which every answer was that of the model"),
        (reached.operations, "operations"),
        (reached.reopenings, "reopenings under other options"),
        (reached.kills, "power losses and kills among them"),
        (reached.copies, "checkpoints, opened and compared"),
        (reached.flushes, "flushes"),
        (reached.merges, "merges of tables"),
        (
            reached.took_over.iter().map(|after| u64::from(after.count_ones())).sum(),
            "changes of policy by kind",
        ),
        (reached.snapshot_reads, "reads of snapshots"),
        (reached.collections, "collections of blob files"),
        (reached.operands_in_stores, "operands and anchors delivered to stores"),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{count:>12} {what}");
    }
    let _ = writeln!(text, "{seconds:>12.1} seconds");
    text
}
