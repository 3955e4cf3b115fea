//! Experiments: a config goes in, a result comes out.

pub mod advise;
pub mod explore;
pub mod iocost;
pub mod model;
pub mod repeat;
pub mod resume;
pub mod rmw;
pub mod simulate;
pub mod sweep;
pub mod throughput;
pub mod tuning;

/// Is told how far an experiment has come.
pub trait Progress {
    /// A phase of `ops` operations begins; `what` names it.
    fn begin(&mut self, what: &str, ops: u64);
    /// So many more operations are done.
    fn advance(&mut self, ops: u64);
    /// The phase is over.
    fn end(&mut self);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn end(&mut self) {}
}
