//! Environment variables that control a test run: seed, counts, and a deliberate bug.
#![expect(clippy::print_stdout, reason = "the harness shows the output of a failed test")]

use std::sync::OnceLock;

use lsmx::env::Env;

use crate::test_report::time_test;

/// Returns the number in an environment variable, if it is set.
pub fn number_from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// Returns `LSMX_TEST_SCALE`, the factor of all counts. Default: 1, as in CI.
pub fn scale() -> f64 {
    number_from_env("LSMX_TEST_SCALE").unwrap_or(1.0)
}

/// Multiplies a count by the scale and rounds up. Returns at least 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of a test")]
pub fn scaled(count: u64) -> u64 {
    ((count as f64 * scale()).ceil() as u64).max(1)
}

/// Returns `LSMX_TEST_SEED`, or by default a random number that is the same in the whole process. Prints it with
/// each call, so that the output of each failed test shows it.
///
/// The first call enables the failpoint that `LSMX_TEST_SABOTAGE` names. So a test can be checked for finding it.
pub fn seed() -> u64 {
    time_test();
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| {
        enable_failpoint_from_env();
        // Below 2^40: short in a command, with room to count up.
        number_from_env("LSMX_TEST_SEED").unwrap_or_else(|| Env::default().random_u64() >> 24)
    });
    println!("LSMX_TEST_SEED={seed}");
    seed
}

fn enable_failpoint_from_env() {
    let Ok(name) = std::env::var("LSMX_TEST_SABOTAGE") else { return };
    #[cfg(feature = "testing")]
    {
        use lsmx_base::failpoint::{Failpoint, enable};
        enable(Failpoint::from_name(&name).unwrap_or_else(|| panic!("no failpoint {name}")));
    }
    #[cfg(not(feature = "testing"))]
    panic!("LSMX_TEST_SABOTAGE={name}: this build has no failpoints");
}

/// Returns the seeds of a test's cases: `regressions`, which failed in the past, then `count` × scale seeds that count
/// up from the seed of the run. So `LSMX_TEST_SEED` set to the seed of a case replays the case first.
pub fn case_seeds(regressions: &'static [u64], count: u64) -> impl Iterator<Item = u64> {
    let first = seed();
    let cases = (0..scaled(count)).map(move |case| first.wrapping_add(case));
    regressions.iter().copied().chain(cases)
}
