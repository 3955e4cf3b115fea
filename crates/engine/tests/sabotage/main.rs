//! Tests that enable failpoints: with each deliberate bug enabled, the check for its class fails.
//!
//! A failpoint is enabled in the whole process, so one test runs at a time.
//! `cargo test -p lsmx --test sabotage -- --nocapture` prints which check found which bug, and how soon.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test fails by panicking, prints what it did, and computes with small numbers"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod database;
mod manifest;
mod wal;
