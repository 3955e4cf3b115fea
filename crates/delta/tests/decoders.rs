//! Every decoder against inputs that no writer wrote: no panic, no hang, no allocation beyond a bound,
//! and nothing accepted that breaks a promise (see `lsmx_delta::fuzzing`).
//!
//! Seeds are the files of small stores made here, and `fuzz/corpus`. Each input is a seed with some bytes
//! changed; `lsmx::fuzzing::feed` says how to replay and to scale.

mod common;

use std::alloc::System;

use cap::Cap;
use common::{Driver, TestRng, Write};
use lsmx::fuzzing::feed::{self, Seeds};
use lsmx_delta::DeltaOptions;
use lsmx_delta::fuzzing::{TARGETS, seeds};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Inputs over all targets at `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 300_000;

/// Deliveries, and collections from some round on; the files of each round are seeds.
fn add_store(all: &mut Seeds, bucket_bytes: u64, rounds: u64, collected_from: u64) {
    let options = DeltaOptions::default().bucket_bytes(bucket_bytes).log_bytes_max(1500);
    let mut driver = Driver::new(options);
    let mut rng = TestRng(rounds);
    for round in 0..rounds {
        let mut write = |_| {
            let key = format!("key{:02}", rng.below(20)).into_bytes();
            match rng.below(12) {
                0 => Write::DeleteMarker { key },
                1 => Write::RangeDeleteMarker { start: key, end: Some(b"key19".to_vec()) },
                2 => Write::RangeDeleteMarker { start: key, end: None },
                _ => Write::Operand { key, bytes: 12 },
            }
        };
        let writes: Vec<Write> = (0..8).map(&mut write).collect();
        driver.flush(&writes);
        if round >= collected_from {
            // Nothing may be due.
            let _ = driver.collect(None).expect("nothing fails in memory");
        }
        for (target, inputs) in seeds(&driver.mem.snapshot_all()) {
            all.entry(target).or_default().extend(inputs);
        }
    }
}

fn fresh_seeds() -> Seeds {
    let mut all = Seeds::new();
    add_store(&mut all, 512, 24, 8);
    // One in which all that counts is in its logs.
    add_store(&mut all, 64 << 10, 6, 6);
    feed::tidy(&mut all);
    all
}

#[test]
fn no_input_breaks_a_decoder() {
    feed::feed(TARGETS, &fresh_seeds(), INPUTS, || ALLOCATOR.max_allocated());
}

#[test]
fn every_target_has_its_share_and_its_seeds() {
    feed::check(TARGETS, &fresh_seeds());
}

/// For whoever adds a target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test decoders -- --ignored write_corpora"]
fn write_corpora() {
    feed::write_corpora(&fresh_seeds());
}
