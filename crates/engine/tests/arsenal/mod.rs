//! What the crash, fault and sabotage tests share: a history of commits, a workload that notes what
//! it was promised, images of the disk taken before every operation, and the oracle that says
//! whether a reopened database keeps the promises.
//!
//! Counts scale with `LSMX_TEST_SCALE` (1 = CI). Seeds come from `LSMX_TEST_SEED`, else they are
//! fresh. Every failure prints a line that replays it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod beside;
pub(crate) mod coverage;
pub(crate) mod history;
pub(crate) mod options;
pub(crate) mod oracle;
pub(crate) mod parallel;
pub(crate) mod passing;
pub(crate) mod recorder;
pub(crate) mod workload;
pub(crate) mod writers;

use lsmx::env::Env;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What went wrong, for people.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Draws that follow from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of these.
    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap_or(0)]
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// Two numbers made one.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    Chance::new(one ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15)).draw()
}

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
