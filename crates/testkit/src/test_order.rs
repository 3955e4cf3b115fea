//! Locks for tests of one program that must not run at the same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::test_report::time_test;

static RUNNING: RwLock<()> = RwLock::new(());

/// Waits until no other test of the program runs that holds a guard. For tests that set or count something in the whole
/// process, such as failpoints, allocated bytes, descriptors.
pub fn run_alone() -> RwLockWriteGuard<'static, ()> {
    let guard = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    time_test();
    guard
}

/// Waits until no test runs that called [`run_alone`].
pub fn run_shared() -> RwLockReadGuard<'static, ()> {
    let guard = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    time_test();
    guard
}
