//! Tests that count the allocated bytes or the work of the whole process. No two of these tests run at the same time.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, prints what it did, and computes with small numbers"
)]

use lsmx_testkit::CountingAllocator;

mod bulk_load;
mod corruption;
mod cursors;
mod decoders;
#[path = "../harness/gate.rs"]
#[allow(dead_code, reason = "this program uses only some functions of the module")]
mod gate;
mod work_bounds;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();
