//! Tests that need a process of their own, because they kill it or count its file descriptors and threads.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, prints what it did, and computes with small numbers"
)]

mod followers;
#[cfg(target_os = "linux")]
mod leaks;
#[cfg(target_os = "linux")]
mod many_keyspaces;
mod power_loss;
