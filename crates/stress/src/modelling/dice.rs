//! Scale, seeds, and random decisions that follow from them.

use std::sync::OnceLock;

#[cfg(feature = "testing")]
use lsmx_base::failpoint;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How many times the counts of continuous integration: `LSMX_TEST_SCALE`, 1 by default.
pub fn scale() -> f64 {
    let given = std::env::var("LSMX_TEST_SCALE").ok();
    given.map_or(1.0, |text| text.parse().expect("LSMX_TEST_SCALE is a number"))
}

/// The seed of this run: `LSMX_TEST_SEED`, a fresh one by default; printed once.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("LSMX_TEST_SEED").ok();
        let seed = given.map_or_else(fresh, |text| text.parse().expect("LSMX_TEST_SEED"));
        println!("LSMX_TEST_SEED={seed}");
        arm();
        seed
    })
}

/// Switches a deliberate bug on for the whole run, if `LSMX_TEST_SABOTAGE` names one: to see that a
/// test can fail.
fn arm() {
    let Ok(name) = std::env::var("LSMX_TEST_SABOTAGE") else { return };
    #[cfg(feature = "testing")]
    {
        let bug = failpoint::Failpoint::from_name(&name);
        failpoint::enable(bug.expect("LSMX_TEST_SABOTAGE names a failpoint"));
    }
    #[cfg(not(feature = "testing"))]
    panic!("LSMX_TEST_SABOTAGE is {name}, and this build has no deliberate bugs");
}

#[expect(clippy::disallowed_methods, reason = "a seed that no earlier run had")]
fn fresh() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = time.map_or(0, |time| time.as_nanos() as u64);
    // Short enough to be typed, and leaves room to count on from it.
    nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24
}

/// Seeds of a test's cases: those that ever failed, then `count` × scale from the run's seed on.
/// Case `i` has the seed of the run + `i`, so a case alone is replayed by giving its seed.
pub fn case_seeds(failed_once: &'static [u64], count: usize) -> impl Iterator<Item = u64> {
    let count = (count as f64 * scale()).ceil() as u64;
    let first = seed();
    failed_once.iter().copied().chain((0..count.max(1)).map(move |case| first.wrapping_add(case)))
}

/// Random decisions.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
