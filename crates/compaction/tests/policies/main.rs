//! Tests of policies on trees without data.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints what it did"
)]

mod apply;
mod cases;
mod properties;
mod study;
