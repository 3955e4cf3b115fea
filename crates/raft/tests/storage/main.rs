//! Tests of the Raft storage: openraft's suite, random histories, power losses, damaged and resumed streams, numbers of
//! operations, and a cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod application;
mod cluster;
mod crashes;
mod histories;
mod history;
mod memory;
mod operation_counts;
mod runtimes;
mod snapshot_resume;
mod snapshot_stream;
mod suite;
mod views;
