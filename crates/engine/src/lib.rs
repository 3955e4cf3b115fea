//! lsmx: a log-structured merge storage engine with pluggable compaction.

pub mod cache;
mod checksum;
mod coding;
pub mod cursor;
pub mod db;
pub mod env;
pub mod error;
pub mod event;
pub mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod job;
pub mod key;
pub mod keyspace;
mod log;
pub mod manifest;
mod memtable;
pub mod metrics;
mod read;
pub mod sabotage;
pub mod slice;
mod store;
pub mod sync;
pub mod table;
mod version;
pub mod vfs;
pub mod wal;
pub mod write;

pub use db::options::Options;
pub use db::{DEFAULT_KEYSPACE, Db, Keyspace, Snapshot, VerifyReport, verify, verify_with};
pub use error::{Error, Malformed, Result};
pub use event::{Event, EventListener};
pub use key::{Kind, SeqNo};
pub use keyspace::options::{FilterLastRun, KeyspaceOptions};
pub use lsmx_compaction::PolicySpec;
pub use metrics::Metrics;
pub use read::range::Range;
pub use slice::Slice;
pub use table::Compression;
pub use wal::RecoveryMode;
pub use write::batch::WriteBatch;
pub use write::options::{Durability, WriteOptions};
pub use write::throttle::WriteControl;
