//! Runs the fuzz targets of `lsmx-bench` on mutated texts. A target must not panic, hang, allocate more than a bound or
//! violate an invariant. `lsmx_testkit::fuzzing` describes the targets and how to replay a failure.

use std::alloc::System;

use cap::Cap;
use lsmx_testkit::bench::{TARGETS, seeds};
use lsmx_testkit::fuzzing::{check_targets, run_targets};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Total number of inputs of all targets, with `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 200_000;

#[test]
fn readers_changed_inputs_cause_no_failure() {
    run_targets(TARGETS, &seeds(), INPUTS, || ALLOCATOR.max_allocated());
}

#[test]
fn targets_have_shares_seeds_and_binaries() {
    check_targets(TARGETS, &seeds());
}

/// Writes a fuzzing corpus for each new target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test texts -- --ignored write_corpora"]
fn write_corpora() {
    seeds().write_corpora();
}
