//! Runs histories. If a history fails, reports the shortest failing list of operations that was found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::metrics::OperationLatencyMetrics;

use super::change::Bytes;
use super::compare::Text;
use super::counts::CaseCounts;
use super::db::ModelledDb;
use super::generator::draw_operations;
use super::operations::{Operation, RestartKind};
use super::settings::DbSettings;
use crate::failing_test::{panic_text, shrink_list, watchdog, with_silent_panics};
use crate::rng::TestRng;
use crate::simple_store::use_delta_stores;

/// Mean number of operations of a history with a random length.
const OPERATIONS_MEAN: usize = 1_500;

/// A list of operations, with the options for the first and the last open of the database.
#[derive(Clone, Debug)]
pub struct History {
    pub seed: u64,
    pub background: Background,
    pub first_settings: DbSettings,
    pub last_settings: DbSettings,
    pub keys: Vec<Bytes>,
    pub operations: Vec<Operation>,
    /// Whether the operand stores are `lsmx-delta` stores.
    pub uses_delta: bool,
}

/// Result of a history that did not fail.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub events: Vec<String>,
    /// Metrics at the end, as text.
    pub metrics: String,
    /// Hash of the thread schedule for each open of the database.
    pub traces: Vec<u64>,
    /// Contents of all files.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl History {
    /// Draws a history of `count` operations.
    #[must_use]
    pub fn random(seed: u64, background: Background, count: usize) -> History {
        let mut rng = TestRng::new(seed);
        let (keys, operations) = draw_operations(&mut rng, count);
        History {
            seed,
            background,
            first_settings: DbSettings::random(&mut rng),
            last_settings: DbSettings::random(&mut rng),
            keys,
            operations,
            uses_delta: seed % 2 == 1,
        }
    }

    /// Draws a history of random length in a random background mode.
    #[must_use]
    pub fn random_kind(seed: u64) -> History {
        let mut rng = TestRng::new(!seed);
        let count = rng.between(1, 2 * OPERATIONS_MEAN);
        let background = match rng.below(8) {
            0 => Background::Stepped { seed, workers: rng.between(1, 2) },
            _ => Background::Inline,
        };
        History::random(seed, background, count)
    }

    /// Runs operations, and adds the counts of rare cases to `counts`. An error contains the index of the failed
    /// operation and the reason.
    pub(super) fn run(
        &self,
        operations: &[Operation],
        counts: &mut CaseCounts,
    ) -> Result<Outcome, (usize, String)> {
        let mut index = 0;
        use_delta_stores(self.uses_delta);
        let is_power_loss = |operation: &Operation| {
            matches!(operation, Operation::Restart(RestartKind::PowerLoss(..), _))
        };
        let has_power_loss = operations.iter().any(is_power_loss);
        let run = AssertUnwindSafe(|| {
            let (keys, settings) = (self.keys.clone(), &self.first_settings);
            let mut db =
                ModelledDb::new(keys, self.background, self.seed, settings, has_power_loss);
            db.counts = *counts;
            for operation in operations {
                db.apply_operation(operation);
                index += 1;
            }
            // Each thread draws which operations it measures, so two runs measure different ones.
            let mut metrics = db.db().metrics();
            metrics.operation_latency = OperationLatencyMetrics::default();
            let metrics = format!("{metrics:?}");
            db.finish(&self.last_settings);
            *counts = db.counts;
            Outcome {
                events: db.events.select(|event| Some(event.to_string())),
                metrics,
                traces: std::mem::take(&mut db.traces),
                files: db.disk.snapshot_all(),
            }
        });
        catch_unwind(run).map_err(|panic| (index, panic_text(&*panic)))
    }

    /// Shrinks a failing list of operations. Returns it as text, with the command that replays the failure.
    fn report(&self, replay: &str, index: usize, why: &str) -> String {
        let until = &self.operations[..self.operations.len().min(index + 1)];
        let run = |operations: &[Operation]| self.run(operations, &mut CaseCounts::default());
        let short = shrink_list(until, Duration::from_secs(20), |list| run(list).is_err());
        let last = run(&short).map_or_else(|(_, why)| why, |_| "not again".to_owned());
        let mut text = format!(
            "seed {} failed at operation {index}: {why}\n\
             replay: {replay}\n\
             {:?}\nfirst open {:?}\nlast open {:?}\n\
             {} operations suffice: {last}\n",
            self.seed,
            self.background,
            self.first_settings,
            self.last_settings,
            short.len()
        );
        for operation in &short {
            let _ = writeln!(text, "  {operation:?}");
        }
        for (index, key) in self.keys.iter().enumerate().take(60) {
            let _ = write!(text, " key {index} {:?}", Text(key));
        }
        text
    }
}

/// Runs a history, and adds its counts of rare cases to `counts`. Aborts the process if the history hangs.
///
/// # Errors
/// Returns the failure, the shortest failing list of operations that was found, and the command that replays the
/// failure.
pub fn try_play(
    name: &'static str,
    replay: &str,
    history: &History,
    counts: &mut CaseCounts,
) -> Result<Outcome, String> {
    // The time limit is a hundred times the duration of the slowest history, because of sanitizers and busy machines.
    let _watchdog = watchdog(name, history.seed, Duration::from_secs(300));
    with_silent_panics(|| {
        let run = history.run(&history.operations, counts);
        run.map_err(|(index, why)| history.report(replay, index, &why))
    })
}

/// Runs a history, and adds its counts of rare cases to `counts`. Panics with a shortened list of operations if the
/// history fails.
pub fn play(test: &'static str, history: &History, counts: &mut CaseCounts) -> Outcome {
    let replay = format!("LSMX_TEST_SEED={} cargo test -p lsmx {test}", history.seed);
    try_play(test, &replay, history, counts).unwrap_or_else(|report| panic!("{test}: {report}"))
}
