//! Benchmarks of single layers of the engine, one per file, on data that fits into memory.
//!
//! `cargo bench` runs all benchmarks. `cargo bench -- memtable` runs the benchmarks whose names contain `memtable`.
//! `lsmx bench` runs whole workloads.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and the macros of criterion generate undocumented functions"
)]

mod block;
mod cache;
mod commit;
mod data;
mod filter;
mod index;
mod jobs;
mod memtable;
mod merge;
mod policy;
mod scan;
mod table;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

/// Returns a configuration with short measurement times. All benchmarks together take about two minutes.
fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = floors;
    config = config();
    targets =
        policy::bench_pick,
        block::bench_search,
        block::bench_far_search,
        cache::bench_data_blocks,
        filter::bench_query,
        index::bench_search,
        memtable::bench_memtable,
        table::bench_get,
        merge::bench_next,
        commit::bench_put,
        scan::bench_entries,
        jobs::bench_jobs,
}
criterion_main!(floors);
