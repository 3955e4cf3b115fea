//! The asynchronous handle: the same answers as the blocking one, on every kind of runtime; nothing that
//! blocks on a task; nothing lost when futures, runtimes or the database go.

mod commits;
mod ends;
mod memory;
mod model;
mod stalls;
mod support;
mod verbs;
