//! Runs the binary `lsmx` and checks its output, its files and its exit code.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic and may work on files outside a database"
)]

mod advise;
mod arguments;
mod bench;
mod cells;
mod closed_output;
#[cfg(target_os = "linux")]
mod cluster;
mod common;
mod compare;
mod db;
mod explore;
mod follower;
mod html;
mod iocost;
mod metrics;
mod rmw;
mod spec;
mod stress;
mod sweep;
mod trace;
