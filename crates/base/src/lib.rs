//! Types and algorithms that the storage engine `lsmx` shares with its operand stores.
//!
//! Applications depend on `lsmx`, which re-exports the types they need.

pub mod checksum;
pub mod coding;
pub mod error_chain;
pub mod failpoint;
pub mod file_header;
pub mod file_name;
pub mod filter;
pub mod key;
pub mod key_search;
pub mod malformed;
pub mod range_tombstone;
pub mod slice;
pub mod sync;
pub mod tombstone_index;
pub mod work_counter;
