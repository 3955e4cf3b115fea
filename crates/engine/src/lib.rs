//! lsmx: a log-structured merge storage engine with pluggable compaction.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! use lsmx::{Db, Durability, KeyspaceOptions, Options, PolicySpec, WriteBatch};
//!
//! let db = Db::open(&path, Options::default())?;
//! db.put(b"apple", b"red")?;
//! assert_eq!(db.get(b"apple")?.as_deref(), Some(&b"red"[..]));
//!
//! // A keyspace is a tree of its own; a batch may touch several, all or nothing.
//! let tiering: PolicySpec = "tiering".parse()?;
//! let users = db.keyspace("users", KeyspaceOptions::default().policy(tiering))?;
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
//! # Guide
//!
//! The book in `docs` of the repository explains these topics; `mdbook build docs` builds it.
//!
//! | topic | page | items |
//! | --- | --- | --- |
//! | open, read, write, iterate | `docs/guide/embed.md` | [`Db`], [`WriteBatch`], [`Range`], [`KeyspaceCursor`], [`Snapshot`] |
//! | several trees in one database | `docs/guide/keyspaces.md` | [`Keyspace`], [`KeyspaceOptions`] |
//! | transactions | `docs/guide/transactions.md` | [`Transaction`], [`Db::transact`] |
//! | crashes, errors, deadlines | `docs/guide/durability.md` | [`Durability`], [`WriteOptions`], [`Db::with_deadline`] |
//! | memory and disk | `docs/guide/sizing.md` | [`Options::memory_budget`], [`metrics::MemoryMetrics`] |
//! | compaction policies | `docs/guide/compaction.md` | [`PolicySpec`], [`compaction`] |
//! | merge operators, atomic updates | `docs/guide/merge-operators.md` | [`merge_operator`], [`Update`] |
//! | compaction filters | `docs/guide/compaction-filters.md` | [`CompactionFilter`] |
//! | bulk loads, ingest of files | `docs/guide/bulk-load.md` | [`Keyspace::bulk_load`], [`Db::ingest`] |
//! | values that expire | `docs/guide/expiry.md` | [`Keyspace::put_with_ttl`], [`KeyspaceOptions::default_ttl`] |
//! | removal of deleted values within a time | `docs/guide/deletion.md` | [`KeyspaceOptions::delete_persistence`] |
//! | large values | `docs/guide/value-log.md` | [`ValueSeparation`] |
//! | backup and repair | `docs/guide/backup.md` | [`Db::checkpoint`], [`verify`](fn@verify), [`repair`](fn@repair) |
//! | readers in other processes | `docs/guide/follower.md` | [`Follower`], [`Db::open_follower`] |
//! | several machines | `docs/guide/replication.md` | the crate `lsmx-raft` |
//! | operation and monitoring | `docs/guide/operations.md` | [`Metrics`], [`Health`], [`EventListener`] |
//! | Prometheus, latencies, a view of a running database | `docs/guide/observability.md` | [`Metrics::to_prometheus`], [`read_metrics_file`] |
//! | recording workloads | `docs/guide/traces.md` | [`workload_trace`] |

#![cfg_attr(
    not(feature = "internals"),
    allow(unreachable_pub, reason = "the feature `internals` exports private modules")
)]
#![cfg_attr(
    feature = "internals",
    allow(
        missing_docs,
        missing_debug_implementations,
        clippy::missing_errors_doc,
        clippy::new_without_default,
        clippy::should_implement_trait,
        reason = "exported private modules are not part of the API"
    )
)]

mod background_error;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod benching;
#[cfg(doctest)]
mod book;
mod cache;
mod callback;
pub mod compaction_filter;
mod cursor;
mod db;
mod deferred_drop;
pub mod dump;
pub mod env;
pub mod error;
pub mod event;
mod followers;
mod format;
mod iter;
mod job_tracing;
mod jobs;
mod log_reader;
mod lookup;
#[cfg(all(test, loom))]
mod loom_models;
mod manifest;
mod memtable;
pub mod merge_operator;
pub mod metrics;
pub mod operand_store;
mod options;
mod state;
mod table;
#[cfg(feature = "tokio")]
pub mod tokio;
mod tree;
mod value_log;
pub mod vfs;
mod wal;
pub mod workload_trace;
mod write;

/// Private modules, exported for the tests, benches and tools of this project. They are not part of the API.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub mod cache {
        pub use crate::cache::*;
    }
    pub mod db {
        pub use crate::db::check_output_path;
    }
    pub mod format {
        pub use crate::format::*;
    }
    pub mod manifest {
        pub use crate::manifest::*;
    }
    pub mod options {
        pub use crate::options::stored::*;
    }
    pub mod table {
        pub use crate::table::*;
    }
    pub mod vfs {
        pub use crate::vfs::call::*;
        pub use crate::vfs::counting::*;
        pub use crate::vfs::fault::*;
        pub use crate::vfs::layer::*;
        pub use crate::vfs::mem::*;
    }
    pub mod value_log {
        pub use crate::value_log::*;
    }
    pub mod wal {
        pub use crate::wal::*;
    }
}

pub use crate::cache::BlockCacheKind;
pub use crate::compaction_filter::CompactionFilter;
pub use crate::db::{BlockedCompaction, Health, QuarantinedFile};
pub use crate::db::{
    CoveringTombstone, KeySearchReport, RemainingEntry, RemainingKind, search_key,
};
pub use crate::db::{DEFAULT_KEYSPACE, Db, Follower, Keyspace, Snapshot, Update};
pub use crate::db::{Explanation, MetadataSizes, Observation, observe};
pub use crate::db::{Finding, Loss, LossKind, RepairOptions, RepairReport, repair};
pub use crate::db::{LogArchiver, LogChunk, LogExtender};
pub use crate::db::{MetricsReading, read_metrics_file};
pub use crate::db::{Savepoint, Transaction, TransactionRange};
pub use crate::db::{VerifyReport, verify};
pub use crate::error::{Error, JobRule, LogArchiveEnd, Result, UserCode};
pub use crate::event::{Event, EventListener};
pub use crate::format::block::Compression;
pub use crate::format::prefix_extractor::PrefixExtractor;
pub use crate::iter::keyspace_cursor::KeyspaceCursor;
pub use crate::iter::range::Range;
pub use crate::memtable::MemtableKind;
pub use crate::merge_operator::{MergeError, MergeOperator, MergeResult};
pub use crate::metrics::{Metrics, ReadMetrics};
pub use crate::options::db::Options;
pub use crate::options::filter_bits::FilterBits;
pub use crate::options::keyspace::{FilterLastRun, KeyspaceOptions, OptionsInForce, RmwMode};
pub use crate::options::policy::Policy;
pub use crate::options::read::{ReadOptions, ReadTier};
pub use crate::options::value_separation::ValueSeparation;
#[cfg(feature = "internals")]
pub use crate::options::write::WriteControl;
pub use crate::options::write::{Durability, WriteOptions};
pub use crate::wal::{RecoveryMode, WalOptions};
pub use crate::write::batch::WriteBatch;
pub use lsmx_base::key::{EntryKind, SeqNo};
pub use lsmx_base::malformed::Malformed;
pub use lsmx_base::slice::Slice;
pub use lsmx_compaction as compaction;
pub use lsmx_compaction::PolicySpec;

/// Ingest of sorted files, and bulk loads.
pub mod ingest {
    pub use crate::db::{BulkLoadOptions, BulkLoadPhase, BulkLoadProgress, BulkLoader};
    pub use crate::db::{ExternalTable, ExternalTableWriter, IngestOptions, IngestSummary};
}

/// Parts of an [`Explanation`] and of an [`Observation`], and the files of a database.
pub mod inspect {
    pub use crate::db::{BlockRead, BlockSource, EntryFound, MemtableStep, OperandStep, RunStep};
    pub use crate::db::{ContentIdentity, DatabaseFile, list_files};
    pub use crate::db::{ObservedKeyspace, ObservedLevel};
}

/// Bounds of keys, values, batches and names.
pub mod limits {
    pub use crate::format::version_edit::KEYSPACE_NAME_BYTES_MAX;
    pub use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
    pub use crate::write::batch::BATCH_BYTES_MAX;
}
