//! Runs fuzz targets in tests, without a fuzzer: first on corpora and seeds, then on randomly changed seeds.
//!
//! `LSMX_TEST_SCALE` multiplies the number of inputs. `LSMX_TEST_SEED` replays a run. `LSMX_TEST_ONLY` runs a single
//! target.
//!
//! A failure prints the input in hexadecimal. If the input is then added to `fuzz/corpus/TARGET/`, every later run
//! checks it.
#![expect(clippy::print_stdout, reason = "the test harness captures the output")]
#![expect(clippy::disallowed_methods, reason = "the runner prints the run time of each target")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::catch_unwind;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lsmx_base::sync::Mutex;

use super::FuzzTarget;
use super::mutation::mutate;
use super::seeds::{Seeds, fuzz_dir, read_corpus};
use crate::rng::TestRng;
use crate::test_run::{scaled, seed};

/// Maximum number of bytes by which the peak memory usage may grow during a run.
const ALLOCATED_BYTES_MAX: usize = 64 << 20;
/// Maximum time per input. The limit is generous, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// State of a run, shared with the watchdog thread.
struct Runner {
    seed: u64,
    current: Mutex<CurrentInput>,
    /// Returns the peak number of allocated bytes.
    peak_bytes: fn() -> usize,
    peak_bytes_max: usize,
}

#[derive(Default)]
struct CurrentInput {
    /// Number of inputs whose check was started.
    started: u64,
    target: &'static str,
    input: Vec<u8>,
}

impl Runner {
    fn check_input(&self, target: &FuzzTarget, input: &[u8]) {
        {
            let mut current = self.current.lock();
            current.started += 1;
            current.target = target.name;
            current.input.clear();
            current.input.extend_from_slice(input);
        }
        let outcome = catch_unwind(|| target.run(input));
        let is_within_memory = (self.peak_bytes)() <= self.peak_bytes_max;
        assert!(
            outcome.is_ok() && is_within_memory,
            "{}: {}; LSMX_TEST_SEED={}; {} bytes of input: {}",
            target.name,
            if is_within_memory { "panic" } else { "too much memory" },
            self.seed,
            input.len(),
            to_hex(input),
        );
    }

    /// Aborts the process if one input exceeds the time limit. Returns when the sender of `done` is dropped.
    fn watch(&self, done: &mpsc::Receiver<()>) {
        let mut started = 0;
        while let Err(mpsc::RecvTimeoutError::Timeout) = done.recv_timeout(TIMEOUT) {
            let current = self.current.lock();
            if current.started == started {
                let (target, input) = (current.target, to_hex(&current.input));
                let _ = writeln!(std::io::stderr(), "{target} hangs: {input}");
                std::process::abort();
            }
            started = current.started;
        }
    }

    /// Checks all seeds, then `count` randomly changed seeds.
    fn run_target(&self, target: &FuzzTarget, seeds: &[Vec<u8>], count: u64, stream: u64) {
        for seed in seeds {
            self.check_input(target, seed);
        }
        let mut rng = TestRng::with_stream(self.seed, stream);
        let mut input = Vec::new();
        for _ in 0..count {
            input.clear();
            let seed: &Vec<u8> = rng.choose(seeds);
            input.extend_from_slice(seed);
            let other = rng.choose(seeds);
            // Half of the inputs have a single change. Decoders reject inputs with many changes early.
            for _ in 0..1 + rng.next_u64().trailing_zeros().min(12) {
                mutate(&mut input, other, &mut rng);
            }
            self.check_input(target, &input);
        }
    }
}

/// Runs the targets on corpora, seeds and randomly changed seeds.
///
/// `inputs` is the total number of changed seeds if `LSMX_TEST_SCALE` is 1. Each target gets its [`FuzzTarget::share`]
/// of them. `peak_bytes` returns the peak number of allocated bytes.
pub fn run_targets(targets: &[FuzzTarget], seeds: &Seeds, inputs: u64, peak_bytes: fn() -> usize) {
    let (seed, inputs) = (seed(), scaled(inputs));
    let only = std::env::var("LSMX_TEST_ONLY").ok();
    let peak_bytes_max = peak_bytes() + ALLOCATED_BYTES_MAX;
    let runner = Runner { seed, current: Mutex::default(), peak_bytes, peak_bytes_max };
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watched = &runner;
        scope.spawn(move || watched.watch(&is_done));
        // The watchdog stops when this sender is dropped, which also happens after a panic.
        let _done = done;
        for (stream, target) in (0..).zip(targets) {
            if only.as_ref().is_some_and(|only| only != target.name) {
                continue;
            }
            let mut inputs_of_target = seeds.inputs(target.name).to_vec();
            inputs_of_target.extend(read_corpus(target.name));
            let count = inputs * target.share / 1000;
            let start = Instant::now();
            runner.run_target(target, &inputs_of_target, count, stream);
            let (elapsed, seeds) = (start.elapsed(), inputs_of_target.len());
            println!("{:24} {count:7} inputs of {seeds:3} seeds in {elapsed:.1?}", target.name);
        }
    });
}

/// Checks that the shares of all targets sum to 1000, and that each target has seeds, a corpus and a binary in `fuzz/`.
pub fn check_targets(targets: &[FuzzTarget], seeds: &Seeds) {
    let manifest = std::fs::read_to_string(fuzz_dir().join("Cargo.toml")).expect("readable");
    assert_eq!(targets.iter().map(|target| target.share).sum::<u64>(), 1000);
    for target in targets {
        let name = target.name;
        assert!(seeds.inputs(name).iter().any(|seed| !seed.is_empty()), "no seeds for {name}");
        assert!(!read_corpus(name).is_empty(), "no corpus for {name}");
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "no binary for {name}");
    }
}
