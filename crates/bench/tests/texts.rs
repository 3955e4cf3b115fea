//! Every kind of text that users write against inputs that nobody means: no panic, no hang, no
//! allocation beyond a bound, and nothing accepted that breaks a promise (see `lsmx_bench::fuzzing`).

use std::alloc::System;

use cap::Cap;
use lsmx::fuzzing::feed;
use lsmx_bench::fuzzing::{TARGETS, seeds};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Inputs over all targets at `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 200_000;

#[test]
fn no_text_breaks_its_reader() {
    feed::feed(TARGETS, &seeds(), INPUTS, || ALLOCATOR.max_allocated());
}

#[test]
fn every_target_has_its_share_and_its_seeds() {
    feed::check(TARGETS, &seeds());
}

/// For whoever adds a target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test texts -- --ignored write_corpora"]
fn write_corpora() {
    feed::write_corpora(&seeds());
}
