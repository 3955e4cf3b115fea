//! Code of several test programs: a history of commits, a workload that records which commits must survive, disk
//! images before every operation of the file system, the oracle that checks a reopened database, and checks that both
//! the tests of guarantees and the tests with failpoints run.
//!
//! Every failure prints a line that replays it.

#![allow(dead_code, reason = "each test program uses a part of the module")]

pub(crate) mod clock;
pub(crate) mod closing;
pub(crate) mod coverage;
pub(crate) mod database;
pub(crate) mod descriptors;
pub(crate) mod disk_use;
pub(crate) mod failed_open;
pub(crate) mod gate;
pub(crate) mod guards;
pub(crate) mod history;
pub(crate) mod identity;
pub(crate) mod liveness;
pub(crate) mod log_crashes;
pub(crate) mod lost_log;
pub(crate) mod memory;
pub(crate) mod missing_store;
pub(crate) mod options;
pub(crate) mod oracle;
pub(crate) mod parallel;
pub(crate) mod passing;
pub(crate) mod quarantine;
pub(crate) mod queues;
pub(crate) mod range_tombstones;
pub(crate) mod recorder;
pub(crate) mod workload;
pub(crate) mod writers;

pub(crate) use lsmx_stress::Outcome;
