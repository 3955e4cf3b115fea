//! Tests of the service with processes on loopback: crashes, pauses, partitions, full disks and replaced nodes.

// Each node has its own address in 127.0.0.0/8. Only Linux has all of them.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests may panic, print and use the clock"
)]

mod api;
mod bugs;
mod chaos;
mod checker;
mod cluster;
mod proxy;
mod snapshot;
mod workload;

/// Runs a test on a runtime of its own.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(test)
}
