//! Runs the fuzz targets of `lsmx-delta` on changed inputs. `lsmx_testkit::fuzzing` documents the targets and how to
//! replay a failure.
//!
//! The seeds are the files of small operand stores and the files in `fuzz/corpus`.

mod common;

use common::{Driver, draw_writes};
use lsmx_delta::DeltaOptions;
use lsmx_testkit::delta::{TARGETS, seeds_from_files};
use lsmx_testkit::fuzzing::{Seeds, check_targets, run_targets};
use lsmx_testkit::{CountingAllocator, TestRng};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Number of inputs of all targets together if `LSMX_TEST_SCALE` is 1.
const INPUTS: u64 = 300_000;

/// Delivers random writes in `rounds` rounds, and adds the files of the store as seeds after each round.
///
/// A due collection runs from round `collected_from` on.
fn add_store(seeds: &mut Seeds, bucket_bytes: u64, rounds: u64, collected_from: u64) {
    let options = DeltaOptions::default().bucket_bytes(bucket_bytes).log_bytes_max(1500);
    let mut driver = Driver::new(options);
    let mut rng = TestRng::new(rounds);
    for round in 0..rounds {
        driver.flush(&draw_writes(&mut rng, 8, true));
        if round >= collected_from {
            driver.collect(None).expect("nothing fails in memory");
        }
        seeds.extend(seeds_from_files(&driver.mem.snapshot_all()));
    }
}

fn all_seeds() -> Seeds {
    let mut seeds = Seeds::default();
    add_store(&mut seeds, 512, 24, 8);
    // All records of this store are in its logs.
    add_store(&mut seeds, 64 << 10, 6, 6);
    seeds.remove_redundant();
    seeds
}

#[test]
fn decoders_changed_inputs_cause_no_failure() {
    run_targets(TARGETS, &all_seeds(), INPUTS, || ALLOCATOR.peak_bytes());
}

#[test]
fn targets_have_shares_seeds_and_binaries() {
    check_targets(TARGETS, &all_seeds());
}

/// Writes a corpus for each new target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test decoders -- --ignored write_corpora"]
fn write_corpora() {
    all_seeds().write_corpora();
}
