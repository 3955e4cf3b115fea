//! Engine tests that can run in parallel in one process.
//!
//! Tests that enable failpoints are in `tests/sabotage`. Tests that count allocations or CPU work are in
//! `tests/resources`. Tests that count file descriptors and threads of the process are in `tests/process`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "tests report failures by panicking, print statistics, and cast numbers that fit"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod asynchronous;
mod basic;
mod checkpoint;
mod clones;
mod compact_range;
mod compaction_filters;
mod concurrency;
mod contains_key;
mod crash;
mod cursors;
mod delete_persistence;
mod differential;
mod direct_reads;
mod expiry;
mod faults;
mod follower;
mod follower_extension;
mod follower_faults;
mod golden_database;
mod golden_log;
mod golden_table;
mod golden_value_log;
mod guarantees;
mod ingest;
mod keyspaces;
mod limits;
mod liveness;
mod log_archive;
mod merge_operators;
mod model;
mod multi_get;
mod observability;
mod operand_stores;
mod options;
mod policies;
mod range_deletes;
mod recovery;
mod repair;
mod resource_limits;
mod subcompactions;
mod transactions;
mod update_expiry;
mod value_log;
mod workload_traces;
