//! Implements the command `lsmx stress`. The command tests databases until a limit is reached or a database violates a
//! guarantee.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use lsmx::env::Env;
use lsmx_bench::report::provenance::Provenance;
use lsmx_bench::report::{file, json};
use lsmx_stress::world::{CaseCounts, History, try_play};
use lsmx_stress::{ChildCommand, KillCounts, KillPlan, Orders, kill_many, write_until_killed};
use serde::Serialize;

use crate::args::StressArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;

/// Default time limit in seconds.
const SECONDS_DEFAULT: u64 = 60;
/// Exit code of a child process that ended before the parent killed it.
const CHILD_ENDED: i32 = 3;

#[derive(Debug, Serialize)]
struct Report<T> {
    provenance: Provenance,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    databases: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    histories: Option<u64>,
    #[serde(flatten)]
    counts: T,
    /// Message about a violated guarantee. Null if no guarantee was violated.
    failure: Option<String>,
}

/// Runs the stress test and prints the counts. If environment variables define [`Orders`], this process is a child of
/// another stress test. A child writes to a database until its parent kills it.
pub(crate) fn run(arguments: &StressArgs, words: &[OsString]) -> Result<(), Failure> {
    if let Some(orders) = Orders::from_env().map_err(Failure::Usage)? {
        let outcome = write_until_killed(&orders);
        output::stdout(format!("{outcome:?}\n").as_bytes())?;
        std::process::exit(CHILD_ENDED);
    }
    if let Some(path) = &arguments.json {
        file::check_writable(path)?;
    }
    // A seed of 32 bits is short enough to type.
    let first_seed = arguments.seed.unwrap_or_else(|| Env::default().random_u64() >> 32);
    let test = StressTest { arguments, words, first_seed, limits: Limits::start(arguments) };
    if arguments.in_memory { test.run_histories() } else { test.run_databases() }
}

struct StressTest<'a> {
    arguments: &'a StressArgs,
    words: &'a [OsString],
    first_seed: u64,
    limits: Limits,
}

impl StressTest<'_> {
    /// Kills child processes while they write to databases on disk.
    fn run_databases(&self) -> Result<(), Failure> {
        let mut home = self.arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
        let temporary = interrupt::make_temporary("lsmx-stress-", &mut home, None)?;
        let program = std::env::current_exe().map_err(|error| Failure::Run(Box::new(error)))?;
        let children =
            ChildCommand { program, arguments: vec!["stress".to_owned()], variables: Vec::new() };
        let (mut databases, mut sum, mut failure) = (0, KillCounts::default(), None);
        while failure.is_none() && self.limits.allow(databases) {
            let plan =
                KillPlan::draw(self.first_seed.wrapping_add(databases), self.arguments.faults);
            let KillPlan { seed, kills, .. } = plan;
            // Prints the seed before the run, so that the seed is known if the run hangs.
            output::stdout(format!("seed {seed}: kills {kills} ... ").as_bytes())?;
            databases += 1;
            match kill_many(plan, &children, &home) {
                Ok(one) => {
                    sum.add(one);
                    let KillCounts { acknowledged, checks, .. } = one;
                    let line =
                        format!("{acknowledged} commits, compared and verified {checks} times\n");
                    output::stdout(line.as_bytes())?;
                }
                Err(what) => {
                    // After SIGINT, the handler removes the database while the test runs.
                    interrupt::wait_if_interrupted();
                    let what = what.replace('\n', "; ");
                    let faults = if self.arguments.faults { " --faults" } else { "" };
                    failure = Some(format!(
                        "seed {seed}: {what}; replay: lsmx stress{faults} --seed {seed} --runs 1"
                    ));
                }
            }
        }
        // Keeps the files of the database that failed the test before an output can fail.
        let kept = failure.is_some().then(|| temporary.keep());
        let written = self.write_report(&home, Some(databases), None, sum, failure.clone());
        if let Some(what) = failure {
            let _ = output::stdout(b"\n");
            let kept = kept.and_then(Result::err);
            let not_kept = kept.map(|error| format!("cannot keep these files: {error}"));
            let not_written = written.err().map(|error| error.to_string());
            let parts = [Some(what), not_kept, not_written];
            let line = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
            return Err(Failure::Run(line.into()));
        }
        written?;
        let KillCounts { kills, acknowledged, checks, reached } = sum;
        self.print_table(&[
            (databases, "databases without a lost, torn or invented commit"),
            (kills, "killed processes"),
            (acknowledged, "acknowledged commits"),
            (checks, "complete comparisons and verifications"),
            (reached.operands, "operands written to operand stores"),
            (reached.rewrites + reached.splits + reached.merges, "rewritten buckets"),
            (reached.overflows, "buckets moved to the tree"),
            (reached.blob_rewrites, "rewritten blob files"),
            (reached.transactions, "transactions"),
            (reached.expired, "expired entries that jobs dropped"),
            (reached.to_store + reached.back_to_tree, "conversions of open keyspaces"),
            (reached.snapshots, "snapshots compared a second time"),
            (reached.copies, "checkpoints opened and compared"),
            (reached.loads, "ingests and bulk loads"),
            (reached.metrics_files, "metrics files read"),
            (reached.resumed, "resumes after disk failures"),
        ])
    }

    /// Runs random operations on in-memory databases and compares each result with a model.
    fn run_histories(&self) -> Result<(), Failure> {
        let (mut histories, mut reached, mut failure) = (0, CaseCounts::default(), None);
        output::stdout(format!("histories from seed {} on\n", self.first_seed).as_bytes())?;
        while failure.is_none() && self.limits.allow(histories) {
            let seed = self.first_seed.wrapping_add(histories);
            let replay = format!("lsmx stress --in-memory --seed {seed} --runs 1");
            histories += 1;
            let history = History::random_kind(seed);
            failure = try_play("lsmx stress --in-memory", &replay, &history, &mut reached).err();
        }
        let directory = std::env::temp_dir();
        let written =
            self.write_report(&directory, None, Some(histories), reached, failure.clone());
        if let Some(what) = failure {
            // Prints the list of operations to standard output, because an error message must have one line.
            output::stdout(what.as_bytes())?;
            let not_written = written.err().map(|error| error.to_string());
            let lines = what.lines().take(2).map(str::to_owned).chain(not_written);
            return Err(Failure::Run(lines.collect::<Vec<_>>().join("; ").into()));
        }
        written?;
        let policy_changes =
            reached.policy_changes.iter().map(|kinds| u64::from(kinds.count_ones()));
        self.print_table(&[
            (histories, "histories in which every answer equals that of the model"),
            (reached.operations, "operations"),
            (reached.restarts, "reopens with other options"),
            (reached.kills, "power losses and kills among them"),
            (reached.compared_copies, "checkpoints opened and compared"),
            (reached.flushes, "flushes"),
            (reached.merges, "merges of tables"),
            (policy_changes.sum(), "pairs of policies changed into each other"),
            (reached.snapshot_reads, "reads of snapshots"),
            (reached.blob_rewrites, "garbage collections of blob files"),
            (reached.transactions, "transactions"),
            (reached.expired_values, "values that expired"),
            (reached.ingested_files, "tables of ingests and bulk loads"),
            (reached.cursor_moves, "moves of cursors"),
            (reached.operands_in_stores, "operands and delete markers written to operand stores"),
        ])
    }

    /// Writes the counts to the `--json` file, if the flag is given.
    fn write_report(
        &self,
        directory: &Path,
        databases: Option<u64>,
        histories: Option<u64>,
        counts: impl Serialize,
        failure: Option<String>,
    ) -> lsmx_bench::error::Result<()> {
        let Some(path) = &self.arguments.json else { return Ok(()) };
        let command = super::command_line(self.words);
        let provenance = Provenance::new(command, None, self.first_seed, directory);
        let seconds = self.limits.elapsed_s();
        let report = Report { provenance, seconds, databases, histories, counts, failure };
        json::write_json(path, &report)
    }

    /// Prints one line per count, then the elapsed time.
    fn print_table(&self, counts: &[(u64, &str)]) -> Result<(), Failure> {
        let mut text = String::new();
        for (count, title) in counts {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{count:>12} {title}");
        }
        let _ = writeln!(text, "{:>12.1} seconds", self.limits.elapsed_s());
        output::stdout(text.as_bytes())
    }
}

/// Limits from `--seconds` and `--runs`.
struct Limits {
    env: Env,
    start_ns: u64,
    seconds: Option<u64>,
    runs: Option<u64>,
}

impl Limits {
    fn start(arguments: &StressArgs) -> Limits {
        let env = Env::default();
        let seconds = arguments.seconds.or(arguments.runs.is_none().then_some(SECONDS_DEFAULT));
        Limits { start_ns: env.monotonic_ns(), env, seconds, runs: arguments.runs }
    }

    fn elapsed_s(&self) -> f64 {
        (self.env.monotonic_ns() - self.start_ns) as f64 / 1e9
    }

    /// Returns whether another run may start after `done` completed runs. The first run may always start.
    fn allow(&self, done: u64) -> bool {
        done == 0
            || (self.runs.is_none_or(|runs| done < runs)
                && self.seconds.is_none_or(|seconds| self.elapsed_s() < seconds as f64))
    }
}
