//! Reads the environment variables that set the seed, the number of cases, and a failpoint of a test run.
#![expect(clippy::print_stdout, reason = "the harness shows the output of a failed test")]

use std::sync::OnceLock;

use lsmx::env::Env;

use crate::test_report::time_test;

/// Returns the number in an environment variable, or `None` if the variable is not set.
pub fn number_from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// Returns `LSMX_TEST_SCALE`, a factor for the numbers of test cases. Default: 1, which CI uses.
pub fn scale() -> f64 {
    number_from_env("LSMX_TEST_SCALE").unwrap_or(1.0)
}

/// Multiplies a count by [`scale`] and rounds up. Returns at least 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of a test")]
pub fn scaled(count: u64) -> u64 {
    ((count as f64 * scale()).ceil() as u64).max(1)
}

/// Returns `LSMX_TEST_SEED`. If it is not set, returns a random number that is the same for the whole process.
///
/// Each call prints the seed, so that the output of a failed test contains it. The first call enables the failpoint
/// that `LSMX_TEST_SABOTAGE` names. A test run with this variable shows whether a test detects the bug.
pub fn seed() -> u64 {
    time_test();
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| {
        enable_failpoint_from_env();
        // Seeds are below 2^40. They are short on a command line, and adding case numbers to them cannot overflow.
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

/// Returns the seeds for the cases of a test: first the `regressions`, which failed in the past, then `count` ×
/// [`scale`] consecutive seeds from [`seed`] on.
///
/// To replay a case, set `LSMX_TEST_SEED` to its seed.
pub fn case_seeds(regressions: &'static [u64], count: u64) -> impl Iterator<Item = u64> {
    let first = seed();
    let cases = (0..scaled(count)).map(move |case| first.wrapping_add(case));
    regressions.iter().copied().chain(cases)
}
