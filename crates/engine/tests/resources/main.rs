//! Tests that count allocated bytes or work of the whole process. No other test runs meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, prints what it did, and computes with small numbers"
)]

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lsmx_testkit::CountingAllocator;

mod corruption;
mod decoders;
mod work_bounds;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

static RUNNING: RwLock<()> = RwLock::new(());

/// Waits until no other test runs. A test that reads counters of the process holds the guard.
fn run_alone() -> RwLockWriteGuard<'static, ()> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test runs that reads counters of the process. All other tests hold the guard.
fn run_shared() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}
