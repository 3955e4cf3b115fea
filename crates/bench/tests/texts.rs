//! Fuzz targets of `lsmx-bench` on changed texts: no panic, no hang, no allocation beyond a bound, and no violated
//! invariant. `lsmx_testkit::fuzzing` documents the targets and how to replay a failure.

use std::alloc::System;

use cap::Cap;
use lsmx_testkit::bench::{TARGETS, seeds};
use lsmx_testkit::fuzzing::{check_targets, run_targets};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Inputs over all targets at `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 200_000;

#[test]
fn readers_changed_inputs_cause_no_failure() {
    run_targets(TARGETS, &seeds(), INPUTS, || ALLOCATOR.max_allocated());
}

#[test]
fn targets_have_shares_seeds_and_binaries() {
    check_targets(TARGETS, &seeds());
}

/// Writes a corpus for each new target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test texts -- --ignored write_corpora"]
fn write_corpora() {
    seeds().write_corpora();
}
