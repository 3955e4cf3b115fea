//! What the crash, fault and sabotage tests share: a history of commits, a workload that notes what
//! it was promised, images of the disk taken before every operation, and the oracle that says
//! whether a reopened database keeps the promises.
//!
//! Counts scale with `LSMX_TEST_SCALE` (1 = CI). Seeds come from `LSMX_TEST_SEED`, else they are
//! fresh. Every failure prints a line that replays it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod clock;
pub(crate) mod closing;
pub(crate) mod coverage;
pub(crate) mod descriptors;
pub(crate) mod disk_use;
pub(crate) mod failed_open;
pub(crate) mod gate;
pub(crate) mod guards;
pub(crate) mod history;
pub(crate) mod identity;
pub(crate) mod liveness;
pub(crate) mod log_crashes;
pub(crate) mod lost_log;
pub(crate) mod memory;
pub(crate) mod missing_store;
pub(crate) mod options;
pub(crate) mod oracle;
pub(crate) mod parallel;
pub(crate) mod passing;
pub(crate) mod quarantine;
pub(crate) mod queues;
pub(crate) mod range_tombstones;
pub(crate) mod recorder;
pub(crate) mod workload;
pub(crate) mod writers;

use lsmx::env::Env;

pub(crate) use lsmx_stress::{Chance, Outcome, beside, mix};

/// How much is tested: 1 in CI.
pub(crate) fn scale() -> u64 {
    number("LSMX_TEST_SCALE").unwrap_or(1).max(1)
}

/// The seed that everything in this run follows from.
pub(crate) fn base_seed() -> u64 {
    number("LSMX_TEST_SEED").unwrap_or_else(|| Env::default().random_u64() >> 16)
}

/// The number that an environment variable says, if it is set.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable} is {text:?}, not a number"),
    }
}
