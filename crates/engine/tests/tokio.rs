//! The asynchronous handle: the same answers as the blocking one, on every kind of runtime; nothing that
//! blocks on a task; nothing lost when futures, runtimes or the database go.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, prints its seed, and counts little"
)]

#[path = "asynchronous/commits.rs"]
mod commits;
#[path = "asynchronous/ends.rs"]
mod ends;
#[path = "asynchronous/memory.rs"]
mod memory;
#[path = "asynchronous/model.rs"]
mod model;
#[path = "asynchronous/stalls.rs"]
mod stalls;
#[path = "asynchronous/support.rs"]
mod support;
#[path = "asynchronous/verbs.rs"]
mod verbs;
