//! Options of a database, a keyspace and a write.

pub mod db;
pub mod filter_bits;
pub(crate) mod kept_log;
pub mod keyspace;
pub mod memory_plan;
pub mod read;
pub(crate) mod stored_policy;
pub mod value_separation;
pub mod write;
