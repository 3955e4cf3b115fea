//! `lsmx stress`: database after database, until time is up or one has broken its word.

mod memory;

use std::ffi::OsString;
use std::fmt::Write as _;

use lsmx::env::Env;
use lsmx_bench::report::json;
use lsmx_bench::report::provenance::Provenance;
use lsmx_stress::{ChildCommand, Orders, Plan, Sum, kill_many, write_until_killed};
use serde::Serialize;

use crate::args::StressArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;

/// Seconds where nothing is said.
const SECONDS: u64 = 60;
/// Exit code of a child that was to write until it is killed, and could not.
const CHILD_ENDED: i32 = 3;

/// What was done.
#[derive(Debug, Serialize)]
struct Report {
    provenance: Provenance,
    seconds: f64,
    databases: u64,
    #[serde(flatten)]
    sum: Sum,
    /// What the last database did not keep; null if it did.
    failure: Option<String>,
}

/// Runs the stress test and reports it. A process that the stress test started runs the child's part instead.
pub(crate) fn run(arguments: &StressArgs, words: &[OsString]) -> Result<(), Failure> {
    if let Some(orders) = Orders::from_env().map_err(Failure::Usage)? {
        let ended = write_until_killed(&orders);
        output::stdout(format!("{ended:?}\n").as_bytes())?;
        std::process::exit(CHILD_ENDED);
    }
    if let Some(path) = &arguments.json {
        json::probe(path)?;
    }
    // Short enough to be typed.
    let first = arguments.seed.unwrap_or_else(|| Env::default().random_u64() >> 32);
    if arguments.in_memory {
        return memory::run(arguments, words, first);
    }
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let home = interrupt::temporary_directory("lsmx-stress-", &parent, None)?;
    let program = std::env::current_exe().map_err(|error| Failure::Run(Box::new(error)))?;
    let children =
        ChildCommand { program, arguments: vec!["stress".to_owned()], variables: Vec::new() };
    let time = Time::begin(arguments);
    let (mut databases, mut sum, mut failure) = (0, Sum::default(), None);
    while failure.is_none() && time.goes_on(databases) {
        let plan = Plan::drawn(first.wrapping_add(databases), arguments.faults);
        let Plan { seed, kills, .. } = plan;
        // Before, for one that hangs.
        output::stdout(format!("seed {seed}: kills {kills} ... ").as_bytes())?;
        databases += 1;
        match kill_many(plan, &children, home.path()) {
            Ok(one) => {
                sum.add(one);
                output::stdout(line(one).as_bytes())?;
            }
            Err(what) => {
                output::stdout(b"\n")?;
                let what = what.replace('\n', "; ");
                let faults = if arguments.faults { " --faults" } else { "" };
                failure = Some(format!(
                    "seed {seed}: {what}; replay: lsmx stress{faults} --seed {seed} --runs 1"
                ));
            }
        }
    }
    if let Some(path) = &arguments.json {
        let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let provenance = Provenance::new(command.join(" "), None, first, home.path());
        let (seconds, failure) = (time.elapsed_s(), failure.clone());
        json::write(path, &Report { provenance, seconds, databases, sum, failure })?;
    }
    if let Some(what) = failure {
        // The files of the database that failed are in it.
        home.keep().map_err(|error| Failure::file("keep", "the files of the database", error))?;
        return Err(Failure::Run(what.into()));
    }
    output::stdout(table(databases, sum, time.elapsed_s()).as_bytes())
}

/// How long to go on.
struct Time {
    env: Env,
    start_ns: u64,
    seconds: Option<u64>,
    runs: Option<u64>,
}

impl Time {
    fn begin(arguments: &StressArgs) -> Time {
        let env = Env::default();
        let seconds = arguments.seconds.or(arguments.runs.is_none().then_some(SECONDS));
        Time { start_ns: env.monotonic_ns(), env, seconds, runs: arguments.runs }
    }

    fn elapsed_s(&self) -> f64 {
        (self.env.monotonic_ns() - self.start_ns) as f64 / 1e9
    }

    /// Whether there is another run after so many.
    fn goes_on(&self, done: u64) -> bool {
        done == 0
            || (self.runs.is_none_or(|runs| done < runs)
                && self.seconds.is_none_or(|seconds| self.elapsed_s() < seconds as f64))
    }
}

/// What became of one database.
fn line(Sum { acknowledged, looks, .. }: Sum) -> String {
    format!("{acknowledged} commits, compared and verified {looks} times\n")
}

/// What became of all.
fn table(databases: u64, sum: Sum, seconds: f64) -> String {
    let Sum { kills, acknowledged, looks, reached } = sum;
    let mut text = String::new();
    for (count, what) in [
        (databases, "databases, in which nothing was lost, torn or made up"),
        (kills, "processes killed"),
        (acknowledged, "commits acknowledged"),
        (looks, "times that all was read, compared and verified"),
        (reached.operands, "operands delivered to stores"),
        (reached.rewrites + reached.splits + reached.merges, "buckets written anew"),
        (reached.overflows, "buckets sent to the tree"),
        (reached.blob_rewrites, "blob files emptied"),
        (reached.to_store + reached.back_to_tree, "conversions of open keyspaces"),
        (reached.snapshots, "snapshots looked at again"),
        (reached.copies, "checkpoints opened and compared"),
        (reached.resumed, "times resumed after a disk had failed"),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{count:>12} {what}");
    }
    let _ = writeln!(text, "{seconds:>12.1} seconds");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_told_with_every_count() {
        let mut sum = Sum { kills: 7, acknowledged: 1234, looks: 3, ..Sum::default() };
        (sum.reached.merges, sum.reached.snapshots) = (5, 6);
        let text = table(2, sum, 1.25);
        assert!(text.starts_with("           2 databases"), "{text}");
        for part in [
            "   7 processes",
            "1234 commits",
            "  5 buckets written",
            "  6 snapshots",
            "1.2 seconds",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(line(sum), "1234 commits, compared and verified 3 times\n");
    }
}
