//! Executes random operations, option changes and power losses on an in-memory database and on its model. All results
//! of the database must equal those of the model.
//!
//! A history is a list of [`Operation`]s. It is drawn by a random generator ([`History::random`]) or decoded from an
//! array of bytes ([`History::from_bytes`]). [`play`] executes the history, and panics with a shortened list if a
//! result differs from the model.

mod bytes;
mod change;
mod checked_cursor;
mod checked_range;
mod compare;
mod counts;
mod db;
mod generator;
mod history;
mod operations;
mod settings;

pub use bytes::byte_seeds;
pub use change::{Bounds, Bytes, Change, Pairs};
pub use checked_cursor::{CheckedCursor, CursorMove};
pub use compare::{Trouble, compare_keyspace, compare_pairs};
pub use counts::{CaseCounts, PRESETS};
pub use history::{History, Outcome, play, try_play};
pub use operations::{Limit, Operation, RestartKind, TransactionKind, UpdateWrite, Write};
pub use settings::{
    DbSettings, KeyspaceSettings, random_latency_sampling, random_policy, random_read_options,
};
