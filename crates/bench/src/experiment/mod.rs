//! Experiments. Each experiment has a configuration, a function that runs it, and a result.

pub mod advise;
pub mod bench_experiment;
pub mod cells;
pub mod explore;
pub mod iocost;
pub mod model;
mod player;
pub mod repeat;
pub mod resume;
pub mod rmw;
pub mod simulate;
pub mod steady_state;
pub mod sweep;
pub mod throughput;
pub mod tuning;

/// Receives progress reports of an experiment.
pub trait Progress {
    /// Starts a phase of `ops` operations. `ops` is 0 if the number of operations is unknown.
    fn begin_phase(&mut self, what: &str, ops: u64);
    /// Reports that `ops` more operations are complete.
    fn advance(&mut self, ops: u64);
    /// Ends the current phase.
    fn end_phase(&mut self);
}

/// Ignores progress reports.
#[derive(Clone, Copy, Debug)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin_phase(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn end_phase(&mut self) {}
}

/// Returns the distinct items in the order of their first occurrence.
pub(crate) fn distinct_items<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
