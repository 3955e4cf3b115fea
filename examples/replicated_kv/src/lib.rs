//! A replicated key-value service over HTTP: an example of `lsmx-raft`. `README.md` describes it.

mod api;
mod commands;
mod demo;
pub mod http;
mod metrics;
mod network;
mod node;
pub mod testing;

pub use crate::api::{CLIENT_ID, REQUEST_NUMBER};
pub use crate::demo::run_demo;
pub use crate::node::{NodeOptions, SNAPSHOT_INTERVAL_DEFAULT, run_node};
