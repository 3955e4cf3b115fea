//! Code shared by several test programs: recorded workloads, disk images after crashes, a model for comparison with
//! reopened databases, and checks that run with and without failpoints.
//!
//! A check is a function of a seed. A failed check panics or returns an error. The message states how to repeat the
//! check.

#![allow(dead_code, reason = "no test program uses all functions of the module")]

pub(crate) mod clock;
pub(crate) mod closing;
pub(crate) mod compaction_filters;
pub(crate) mod coverage;
pub(crate) mod crash_history;
pub(crate) mod cursors;
pub(crate) mod database;
pub(crate) mod delete_persistence;
pub(crate) mod descriptors;
pub(crate) mod device_hangs;
pub(crate) mod disk_use;
pub(crate) mod expiry;
pub(crate) mod failed_open;
pub(crate) mod followers;
pub(crate) mod gate;
pub(crate) mod golden;
pub(crate) mod guards;
pub(crate) mod history;
pub(crate) mod identity;

pub(crate) mod liveness;
pub(crate) mod log_archives;
pub(crate) mod log_crashes;
pub(crate) mod lost_log;
pub(crate) mod memory;
pub(crate) mod missing_store;
pub(crate) mod newest_reads;
pub(crate) mod options;
pub(crate) mod oracle;
pub(crate) mod parallel;
pub(crate) mod passing;
pub(crate) mod quarantine;
pub(crate) mod queues;
pub(crate) mod range_tombstones;
pub(crate) mod recorder;
pub(crate) mod small_database;
pub(crate) mod transactions;
pub(crate) mod workload;
pub(crate) mod writers;

pub(crate) use lsmx_stress::Outcome;
