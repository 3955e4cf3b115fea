//! Runs a history and reports its failure.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lsmx::env::Background;
use lsmx_testkit::TestRng;

use super::{
    Op, Opening, Reached, Weights, World, key_pool, operations, quietly, shrink, watchdog,
};

/// Mean number of operations of a history.
const DRAWN_OPERATIONS: usize = 1_500;

/// A history, as it follows from a seed.
#[derive(Clone, Debug)]
pub struct Play {
    pub seed: u64,
    pub background: Background,
    pub opening: Opening,
    pub last: Opening,
    pub weights: Weights,
    pub keys: Vec<std::sync::Arc<[u8]>>,
    pub operations: Vec<Op>,
}

/// Result of a history without failure.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub reached: Reached,
    pub events: Vec<String>,
    /// Metrics at the end, as text.
    pub metrics: String,
    /// Hash of the schedule of each opened database.
    pub traces: Vec<u64>,
    /// Contents of all files.
    pub files: std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>,
}

impl Play {
    pub fn new(seed: u64, background: Background, count: usize) -> Play {
        let mut rng = TestRng::new(seed);
        let weights = Weights::random(&mut rng);
        Play {
            seed,
            background,
            opening: Opening::random(&mut rng),
            last: Opening::random(&mut rng),
            keys: key_pool(&mut rng, weights.keys),
            operations: operations(&mut rng, count, &weights),
            weights,
        }
    }

    /// Draws a history with its length and its background mode.
    pub fn drawn(seed: u64) -> Play {
        let mut rng = TestRng::new(!seed);
        let length = 1 + rng.below(2 * DRAWN_OPERATIONS);
        let background = match rng.below(8) {
            0 => Background::Stepped { seed, workers: 1 + rng.below(2) },
            _ => Background::Inline,
        };
        Play::new(seed, background, length)
    }

    /// Runs operations. The error names the failed operation and the reason.
    fn try_play(&self, operations: &[Op]) -> Result<Outcome, (usize, String)> {
        let mut at = 0;
        lsmx_testkit::simple_store::use_delta_stores(self.seed % 2 == 1);
        let played = catch_unwind(AssertUnwindSafe(|| {
            let keys = self.keys.clone();
            let mut world = World::new(keys, self.background, self.seed, &self.opening);
            for op in operations {
                world.play(op);
                at += 1;
            }
            let metrics = format!("{:?}", world.db().metrics());
            world.end(&self.last);
            Outcome {
                reached: world.reached,
                events: world.events.take(),
                metrics,
                traces: std::mem::take(&mut world.traces),
                files: world.disk().snapshot_all(),
            }
        }));
        played.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            (at, text.unwrap_or_default())
        })
    }

    /// Returns the shortest failing sublist that was found, as text with the command that repeats it.
    fn report(&self, replay: &str, at: usize, why: &str) -> String {
        let upto = &self.operations[..self.operations.len().min(at + 1)];
        let fails = |operations: &[Op]| self.try_play(operations).is_err();
        let short = shrink(upto, Duration::from_secs(20), fails);
        let last = self.try_play(&short).map_or_else(|(_, why)| why, |_| "not again".to_owned());
        let mut text = format!(
            "seed {} failed at operation {at}: {why}\n\
             replay: {replay}\n\
             {:?}\nopening {:?}\nat the end {:?}\n\
             {} operations are enough: {last}\n",
            self.seed,
            self.background,
            self.opening,
            self.last,
            short.len()
        );
        for op in &short {
            let _ = writeln!(text, "  {op:?}");
        }
        for (at, key) in self.keys.iter().enumerate().take(60) {
            let _ = write!(text, " key {at} {}", super::walk::Text(key));
        }
        text
    }
}

/// Runs a history. Ends the process if the history hangs.
///
/// # Errors
/// The failure, with the shortest failing list of operations and the command that repeats it.
pub fn try_play(name: &'static str, replay: &str, play: &Play) -> Result<Outcome, String> {
    // A hundred times the time of the slowest history, for sanitizers and busy machines.
    let _dog = watchdog(name, play.seed, Duration::from_secs(300));
    quietly(|| match play.try_play(&play.operations) {
        Ok(outcome) => Ok(outcome),
        Err((at, why)) => Err(play.report(replay, at, &why)),
    })
}

/// Runs a history. Panics with the shortest failing list of operations.
pub fn play(test: &'static str, play: &Play) -> Outcome {
    let replay = format!("LSMX_TEST_SEED={} cargo test -p lsmx {test}", play.seed);
    try_play(test, &replay, play).unwrap_or_else(|report| panic!("{test}: {report}"))
}
