//! A lock for tests that must not run at the same time as other tests of the same program.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::test_report::time_test;

static RUNNING: RwLock<()> = RwLock::new(());

/// Waits until no other test of the program holds a guard of this module. The returned guard then blocks these tests.
///
/// Tests call this function if they change or measure state of the whole process, such as failpoints, allocated bytes
/// or file descriptors.
pub fn run_alone() -> RwLockWriteGuard<'static, ()> {
    let guard = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    time_test();
    guard
}

/// Waits until no test that called [`run_alone`] is running.
pub fn run_shared() -> RwLockReadGuard<'static, ()> {
    let guard = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    time_test();
    guard
}
