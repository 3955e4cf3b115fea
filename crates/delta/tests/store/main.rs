//! Tests of the operand store.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints what it did"
)]

#[path = "../common/mod.rs"]
mod common;

mod abandon;
mod collections;
mod crash;
mod damage;
mod delete_persistence;
mod failed_jobs;
mod failed_sync;
mod forged_files;
mod golden;
mod key_search;
mod model;
mod overlap;
mod prefetch;
mod reads;
mod threads;
mod tree;
