//! Tests that enable failpoints. Each failpoint causes a deliberate bug, and the check for this class of bugs must
//! then fail.
//!
//! A failpoint affects the whole process, so only one test runs at a time. `cargo test -p lsmx --test sabotage --
//! --nocapture` prints which check detected which bug, and after how many runs.

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
