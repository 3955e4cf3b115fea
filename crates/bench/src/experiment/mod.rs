//! Experiments. Each has a configuration, a function that runs it, and a result.

pub mod advise;
pub mod explore;
pub mod iocost;
pub mod model;
mod player;
pub mod repeat;
pub mod resume;
pub mod rmw;
pub mod simulate;
pub mod sweep;
pub mod throughput;
pub mod tuning;

/// Receives the progress of an experiment.
pub trait Progress {
    /// A phase of `ops` operations begins. 0 means that their number is unknown.
    fn begin(&mut self, what: &str, ops: u64);
    /// `ops` more operations have ended.
    fn advance(&mut self, ops: u64);
    /// The phase ends.
    fn end(&mut self);
}

/// Ignores progress.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn end(&mut self) {}
}

/// Returns the distinct items in the order of their first occurrence.
fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
