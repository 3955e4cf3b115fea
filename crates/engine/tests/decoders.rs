//! Every decoder against a million inputs that no writer wrote: no panic, no hang, no allocation
//! beyond a bound, and nothing accepted that breaks a promise (see `lsmx::fuzzing`).
//!
//! Seeds are the files of a small database made here, the golden tables, and `fuzz/corpus`. Each
//! input is a seed with some bytes changed. `LSMX_TEST_SCALE` multiplies the inputs,
//! `LSMX_TEST_SEED` replays a run. A failing input is printed in hex: it becomes a file of
//! `fuzz/corpus/TARGET/`, which is run unchanged before all others.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "corpora belong to the repository; time is printed")]

use std::alloc::System;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use cap::Cap;
use lsmx::env::Background;
use lsmx::fuzzing::{TARGETS, Target, seeds};
use lsmx::vfs::MemVfs;
use lsmx::{Compression, Db, FilterBits, KeyspaceOptions, Options, ValueSeparation};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Inputs over all targets at `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 1_000_000;
/// Most bytes of a seed: what is longer is slower and tells nothing more.
const SEED_BYTES_MAX: usize = 6 << 10;
/// Most bytes that may be allocated at any time beyond what the test itself holds.
const ALLOCATED_BYTES_MAX: usize = 64 << 20;
/// An input that takes longer hangs, however loaded the machine.
const HANG_SECONDS: u64 = 60;

type Seeds = BTreeMap<&'static str, Vec<Vec<u8>>>;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a whole number"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The files of a small database with tables, and of another with nothing but its logs.
fn databases() -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
    let mut all = Vec::new();
    for (compression, filter_bits, memtable_bytes, close) in [
        (Compression::None, FilterBits::Fuse8, 2 << 10, true),
        (Compression::Lz4, FilterBits::Fuse16, 6 << 10, false),
        (Compression::None, FilterBits::Fuse8, 1 << 20, false),
    ] {
        let disk = MemVfs::new();
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(memtable_bytes)
            .table_bytes(3 << 10)
            .block_bytes(256)
            .restart_interval(4)
            .filter_bits(filter_bits)
            .compression(compression)
            .value_separation(ValueSeparation::default().threshold_bytes(30));
        let options = Options::default().background(Background::Inline).seed(5);
        let options = options.keyspace_defaults(keyspace);
        let db = Db::open_with(Arc::new(disk.clone()), "db", options).unwrap();
        let trace = db.record_trace("trace").unwrap();
        for number in 0..120u64 {
            let key = format!("key-{:06}", number * 7919 % 90);
            if number % 6 == 5 {
                db.delete(&key).unwrap();
            } else {
                db.put(&key, format!("value {number} ").repeat(3)).unwrap();
            }
            if number % 40 == 30 {
                db.sync().unwrap();
            }
        }
        trace.stop().unwrap();
        all.push(disk.snapshot_all());
        if close {
            db.close(None).unwrap();
            all.push(disk.snapshot_all());
        }
    }
    all
}

/// The golden tables, as if they were the files of a database: they have range tombstones. And the
/// golden trace, which has every kind of item.
fn golden() -> BTreeMap<PathBuf, Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            files.insert(format!("{:06}.sst", files.len()).into(), fs::read(path).unwrap());
        } else if path.ends_with("trace-v1") {
            files.insert("trace".into(), fs::read(path).unwrap());
        }
    }
    assert!(!files.is_empty());
    files
}

fn fresh_seeds() -> Seeds {
    let mut all = Seeds::new();
    for files in databases().into_iter().chain([golden()]) {
        for (target, inputs) in seeds(&files) {
            all.entry(target).or_default().extend(inputs);
        }
    }
    for inputs in all.values_mut() {
        inputs.sort();
        inputs.dedup();
        inputs.sort_by_key(Vec::len);
        let short = inputs.iter().filter(|input| input.len() <= SEED_BYTES_MAX).count();
        inputs.truncate(short.max(1));
    }
    all
}

fn corpus_dir(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// The committed inputs of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(corpus_dir(target))
        .unwrap_or_else(|error| panic!("corpus of {target}: {error}"))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().display().to_string(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
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

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

/// Changes one thing.
fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut ChaCha8Rng) {
    let value = match rng.random_range(0..3) {
        0 => VALUES[rng.random_range(0..VALUES.len())],
        1 => rng.random_range(0..300),
        _ => {
            u64::try_from(input.len()).unwrap().wrapping_add(rng.random_range(0..7)).wrapping_sub(3)
        }
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
    allocated_max: usize,
}

impl Bench {
    fn run(&self, target: &Target, input: &[u8]) {
        {
            let mut running = self.running.lock().unwrap();
            running.0 += 1;
            running.1 = target.name;
            running.2.clear();
            running.2.extend_from_slice(input);
        }
        let outcome = catch_unwind(|| (target.run)(input));
        let allocated = ALLOCATOR.max_allocated();
        let within = allocated <= self.allocated_max;
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
            let running = self.running.lock().unwrap();
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

/// Runs what was committed and what was made, and mutations of both, through every decoder.
#[test]
fn no_input_breaks_a_decoder() {
    let seed = env("LSMX_TEST_SEED").unwrap_or_else(fresh_seed);
    let scale = env("LSMX_TEST_SCALE").unwrap_or(1);
    let only = std::env::var("LSMX_TEST_ONLY").ok();
    println!("replay with LSMX_TEST_SEED={seed}");
    let fresh = fresh_seeds();
    let allocated_max = ALLOCATOR.max_allocated() + ALLOCATED_BYTES_MAX;
    let bench = Bench { seed, running: Mutex::new((0, "", Vec::new())), allocated_max };
    let (done, watched) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watchdog = &bench;
        scope.spawn(move || watchdog.watch(&watched));
        // Dropped on a panic too, so that the watchdog ends.
        let _done = done;
        let mut total = 0;
        for (stream, target) in (0..).zip(TARGETS) {
            if only.as_ref().is_some_and(|only| only != target.name) {
                continue;
            }
            let mut inputs = fresh.get(target.name).cloned().unwrap_or_default();
            assert!(!inputs.is_empty(), "no seeds for {}", target.name);
            let committed = corpus(target.name);
            assert!(!committed.is_empty(), "no corpus for {}", target.name);
            inputs.extend(committed.into_iter().map(|(_, bytes)| bytes));
            let count = INPUTS * target.share * scale / 1000;
            let started = Instant::now();
            bench.feed(target, &inputs, count, stream);
            let elapsed = started.elapsed();
            println!(
                "{:18} {count:7} inputs of {:3} seeds in {elapsed:.1?}",
                target.name,
                inputs.len()
            );
            total += count;
        }
        println!("{total} inputs");
    });
}

fn fresh_seed() -> u64 {
    use rand::TryRng;
    rand::rngs::SysRng.try_next_u64().expect("the system has random numbers")
}

/// A share that is missing, or a target without seeds, would leave a decoder untested.
#[test]
fn every_target_has_its_share_and_its_seeds() {
    assert_eq!(TARGETS.iter().map(|target| target.share).sum::<u64>(), 1000);
    let fresh = fresh_seeds();
    for target in TARGETS {
        assert!(fresh[target.name].iter().any(|seed| !seed.is_empty()), "{}", target.name);
        let binary = format!("../../fuzz/fuzz_targets/{}.rs", target.name);
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join(binary);
        assert!(binary.exists(), "{}", binary.display());
    }
}

/// Writes some seeds of every target that has no corpus yet. For whoever adds a target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test decoders -- --ignored write_corpora"]
fn write_corpora() {
    for (target, seeds) in fresh_seeds() {
        let dir = corpus_dir(target);
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
