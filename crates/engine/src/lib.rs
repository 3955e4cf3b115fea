//! lsmx: a log-structured merge storage engine with pluggable compaction.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! use lsmx::{Db, Durability, KeyspaceOptions, Options, WriteBatch};
//!
//! let db = Db::open(&path, Options::default())?;
//! db.put(b"apple", b"red")?;
//! assert_eq!(db.get(b"apple")?.as_deref(), Some(&b"red"[..]));
//!
//! // A keyspace is a tree of its own; a batch may touch several, all or nothing.
//! let users = db.keyspace("users", KeyspaceOptions::default().policy("tiering".parse()?))?;
//! let mut batch = WriteBatch::new();
//! batch.put(&users, b"ada", b"1815");
//! batch.put(&users, b"alan", b"1912");
//! batch.delete(&db.default_keyspace(), b"apple");
//! db.write(batch, Durability::Sync)?;
//!
//! // A snapshot stays as it is while others write; ranges run both ways.
//! let snapshot = db.snapshot();
//! users.delete(b"ada")?;
//! assert!(snapshot.get(&users, b"ada")?.is_some());
//! let names: Vec<_> = users.prefix(b"a").rev().collect::<Result<_, _>>()?;
//! assert_eq!(names.len(), 1);
//!
//! db.close(None)?;
//! # Ok(())
//! # }
//! ```
//!
//! What is promised after a crash stands in `docs/reliability.md` of the repository, the way of a write
//! and of a read in `docs/architecture.md`, every byte of every file in `docs/format.md`.

#[cfg(feature = "benching")]
#[doc(hidden)]
pub mod benching;
pub mod cache;
mod callback;
pub mod cursor;
pub mod db;
mod disposal;
pub mod dump;
pub mod env;
pub mod error;
pub mod event;
pub mod format;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod guide;
mod health;
mod job;
pub mod keyspace;
mod log;
pub mod manifest;
mod memtable;
pub mod merge;
pub mod metrics;
#[cfg(all(test, loom))]
mod models;
pub mod operands;
mod panics;
mod read;
pub mod recording;
mod store;
pub mod table;
#[cfg(feature = "tokio")]
pub mod tokio;
mod trace;
mod value_log;
mod version;
pub mod vfs;
pub mod wal;
pub mod write;

pub use cache::BlockCacheKind;
pub use db::options::Options;
pub use db::{BlockedCompaction, Health, QuarantinedFile};
pub use db::{
    DEFAULT_KEYSPACE, Db, Keyspace, Snapshot, Update, VerifyReport, WaitOptions, verify,
    verify_with, verify_with_stores,
};
pub use db::{Explanation, MetadataSizes, Observation, observe, observe_with};
pub use db::{Finding, Lost, LostKind, RepairOptions, RepairReport, repair, repair_with};
pub use error::{Error, JobRule, Result, UserCode};
pub use event::{Event, EventListener};
pub use keyspace::filter_bits::FilterBits;
pub use keyspace::options::{FilterLastRun, KeyspaceOptions, OptionsInForce};
pub use keyspace::separation::ValueSeparation;
pub use lsmx_base::key::{EntryKind, SeqNo};
pub use lsmx_base::malformed::Malformed;
pub use lsmx_base::slice::Slice;
pub use lsmx_compaction as compaction;
pub use lsmx_compaction::PolicySpec;
pub use merge::{MergeError, MergeOperator};
pub use metrics::{Metrics, ReadMetrics};
pub use read::range::Range;
pub use table::Compression;
pub use wal::RecoveryMode;
pub use write::batch::WriteBatch;
pub use write::options::{Durability, WriteOptions};
pub use write::throttle::WriteControl;
