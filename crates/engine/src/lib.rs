//! lsmx: a log-structured merge storage engine with pluggable compaction.

pub mod cache;
mod checksum;
mod coding;
pub mod cursor;
pub mod env;
pub mod error;
pub mod format;
pub mod key;
mod log;
pub mod manifest;
pub mod sabotage;
pub mod slice;
pub mod sync;
pub mod table;
pub mod vfs;
pub mod wal;

pub use error::{Error, Malformed, Result};
pub use key::{Kind, SeqNo};
pub use slice::Slice;
