//! The asynchronous handle: equal results to the blocking one on every runtime, no blocking call in a task, no loss
//! when futures, runtimes or the database are dropped.

mod commits;
mod ends;
mod memory;
mod model;
mod stalls;
mod support;
mod verbs;
