//! Feeds targets without a fuzzer, for tests: corpora as they are, then seeds with some bytes changed.
//!
//! `LSMX_TEST_SCALE` multiplies the inputs, `LSMX_TEST_SEED` replays a run, `LSMX_TEST_ONLY` feeds one
//! target alone. A failing input is printed in hex: it becomes a file of `fuzz/corpus/TARGET/`, which
//! is run unchanged before all others.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "corpora belong to the repository; time is printed")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lsmx_base::coding::{len_u64, put_varint};
use lsmx_base::sync::Mutex;
use rand::{Rng, RngExt, SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

use crate::fuzzing::Target;

/// Most bytes of a seed: what is longer is slower and tells nothing more.
const SEED_BYTES_MAX: usize = 6 << 10;
/// Most bytes that may be allocated at any time beyond what the test itself holds.
const ALLOCATED_BYTES_MAX: usize = 64 << 20;
/// An input that takes longer hangs, however loaded the machine.
const HANG_SECONDS: u64 = 60;

/// Inputs to begin with, by the names of the targets.
pub type Seeds = BTreeMap<&'static str, Vec<Vec<u8>>>;

/// Leaves out what is there twice, and all but the shortest where some are too long.
pub fn tidy(seeds: &mut Seeds) {
    for inputs in seeds.values_mut() {
        inputs.sort();
        inputs.dedup();
        inputs.sort_by_key(Vec::len);
        let short = inputs.iter().filter(|input| input.len() <= SEED_BYTES_MAX).count();
        inputs.truncate(short.max(1));
    }
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a whole number"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The workspace with the binaries and the corpora.
fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The committed inputs of a target, in the order of their names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = fuzz_dir().join("corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("corpus of {target}: {error}"))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

const VALUES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    u32::MAX as u64,
    1 << 32,
    (1 << 56) - 1,
    1 << 56,
    u64::MAX >> 1,
    u64::MAX,
];

fn varint(value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, value);
    bytes
}

/// Changes one thing.
fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut ChaCha8Rng) {
    let value = match rng.random_range(0..3) {
        0 => VALUES[rng.random_range(0..VALUES.len())],
        1 => rng.random_range(0..300),
        _ => len_u64(input.len()).wrapping_add(rng.random_range(0..7)).wrapping_sub(3),
    };
    let len = input.len();
    // Where lengths and trailers stand: at the ends more often than in between.
    let at = match rng.random_range(0..6) {
        0 => rng.random_range(0..=len.min(8)),
        1 => len - rng.random_range(0..=len.min(48)),
        _ => rng.random_range(0..=len),
    };
    let end = rng.random_range(at..=len.min(at + 24));
    let overwrite = |input: &mut Vec<u8>, bytes: &[u8]| {
        let end = input.len().min(at + bytes.len());
        input[at..end].copy_from_slice(&bytes[..end - at]);
    };
    match rng.random_range(0..13) {
        0 | 1 if at < len => input[at] ^= 1 << rng.random_range(0..8),
        2 if at < len => input[at] = rng.random(),
        3 if at < len => input[at] = input[at].wrapping_add(1),
        4 if at < len => input[at] = input[at].wrapping_sub(1),
        5 => overwrite(input, &value.to_le_bytes()),
        6 => overwrite(input, &value.to_le_bytes()[..4]),
        7 => overwrite(input, &varint(value)),
        8 => {
            input.splice(at..at, varint(value));
        }
        9 => {
            input.drain(at..end);
        }
        10 => {
            let piece = input[at..end].to_vec();
            let to = rng.random_range(0..=len);
            input.splice(to..to, piece);
        }
        11 => {
            let from = rng.random_range(0..=other.len());
            let to = rng.random_range(from..=other.len().min(from + 64));
            input.splice(at..end, other[from..to].iter().copied());
        }
        _ if rng.random_range(0..8) == 0 => input.truncate(at),
        _ => {
            let swap = input[at..end].to_vec();
            let to = rng.random_range(0..=len - swap.len());
            input[to..to + swap.len()].copy_from_slice(&swap);
        }
    }
}

/// What runs now, for the watchdog and for a failure.
struct Bench {
    seed: u64,
    running: Mutex<(u64, &'static str, Vec<u8>)>,
    allocated: fn() -> usize,
    allocated_max: usize,
}

impl Bench {
    fn run(&self, target: &Target, input: &[u8]) {
        {
            let mut running = self.running.lock();
            running.0 += 1;
            running.1 = target.name;
            running.2.clear();
            running.2.extend_from_slice(input);
        }
        let outcome = catch_unwind(|| (target.run)(input));
        let within = (self.allocated)() <= self.allocated_max;
        assert!(
            outcome.is_ok() && within,
            "{}: {}; LSMX_TEST_SEED={}; {} bytes of input: {}",
            target.name,
            if within { "panic" } else { "too much memory" },
            self.seed,
            input.len(),
            hex(input),
        );
    }

    /// Ends the process when one input runs for too long.
    fn watch(&self, done: &mpsc::Receiver<()>) {
        let mut last = 0;
        while let Err(mpsc::RecvTimeoutError::Timeout) =
            done.recv_timeout(Duration::from_secs(HANG_SECONDS))
        {
            let running = self.running.lock();
            if running.0 == last {
                let (target, input) = (running.1, hex(&running.2));
                let _ = writeln!(std::io::stderr(), "{target} hangs: {input}");
                std::process::abort();
            }
            last = running.0;
        }
    }

    /// Seeds and corpus as they are, then mutated.
    fn feed(&self, target: &Target, seeds: &[Vec<u8>], inputs: u64, stream: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(stream);
        for seed in seeds {
            self.run(target, seed);
        }
        let mut input = Vec::new();
        for _ in 0..inputs {
            input.clear();
            input.extend_from_slice(&seeds[rng.random_range(0..seeds.len())]);
            let other = &seeds[rng.random_range(0..seeds.len())];
            // One change mostly: what many have changed is soon refused.
            for _ in 0..1 + rng.next_u32().trailing_zeros().min(12) {
                mutate(&mut input, other, &mut rng);
            }
            self.run(target, &input);
        }
    }
}

/// Runs what was committed and what was made, and mutations of both: so many inputs at
/// `LSMX_TEST_SCALE=1`, of which each target gets its share. `allocated` tells the most bytes that were
/// allocated at any time so far.
pub fn feed(targets: &[Target], fresh: &Seeds, inputs: u64, allocated: fn() -> usize) {
    let seed = env("LSMX_TEST_SEED").unwrap_or_else(|| {
        rand::rngs::SysRng.try_next_u64().expect("the system has random numbers")
    });
    let scale =
        std::env::var("LSMX_TEST_SCALE").map_or(1.0, |scale| scale.parse().expect("a number"));
    #[expect(clippy::cast_possible_truncation, reason = "a count of inputs")]
    let inputs = (inputs as f64 * scale) as u64;
    let only = std::env::var("LSMX_TEST_ONLY").ok();
    println!("replay with LSMX_TEST_SEED={seed}");
    let running = Mutex::new((0, "", Vec::new()));
    let bench =
        Bench { seed, running, allocated, allocated_max: allocated() + ALLOCATED_BYTES_MAX };
    let (done, watched) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watchdog = &bench;
        scope.spawn(move || watchdog.watch(&watched));
        // Dropped on a panic too, so that the watchdog ends.
        let _done = done;
        let mut total = 0;
        for (stream, target) in (0..).zip(targets) {
            if only.as_ref().is_some_and(|only| only != target.name) {
                continue;
            }
            let mut seeds = fresh.get(target.name).cloned().unwrap_or_default();
            assert!(!seeds.is_empty(), "no seeds for {}", target.name);
            let committed = corpus(target.name);
            assert!(!committed.is_empty(), "no corpus for {}", target.name);
            seeds.extend(committed);
            let count = inputs * target.share / 1000;
            let started = Instant::now();
            bench.feed(target, &seeds, count, stream);
            let (elapsed, seeds) = (started.elapsed(), seeds.len());
            println!("{:24} {count:7} inputs of {seeds:3} seeds in {elapsed:.1?}", target.name);
            total += count;
        }
        println!("{total} inputs");
    });
}

/// A share that is missing, or a target without seeds or a binary, would leave a decoder untested.
pub fn check(targets: &[Target], fresh: &Seeds) {
    assert_eq!(targets.iter().map(|target| target.share).sum::<u64>(), 1000);
    for target in targets {
        assert!(fresh[target.name].iter().any(|seed| !seed.is_empty()), "{}", target.name);
        let binary = fuzz_dir().join("fuzz_targets").join(target.name).with_extension("rs");
        assert!(binary.exists(), "{}", binary.display());
    }
}

/// Writes some seeds of every target that has no corpus yet.
pub fn write_corpora(fresh: &Seeds) {
    for (target, seeds) in fresh {
        let dir = fuzz_dir().join("corpus").join(target);
        fs::create_dir_all(&dir).unwrap();
        if fs::read_dir(&dir).unwrap().next().is_some() {
            continue;
        }
        let step = seeds.len().div_ceil(4);
        for (index, seed) in seeds.iter().step_by(step).enumerate() {
            fs::write(dir.join(format!("seed-{index}")), seed).unwrap();
        }
    }
}
