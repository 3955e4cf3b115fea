//! A database in memory beside a model: random operations, options and power losses. Every result must equal that of the
//! model.
//!
//! [`Operation`]s are data. They come from a random generator ([`History::random`]) or from bytes ([`History::from_bytes`]).
//! [`play`] applies them and shrinks a failing list. A difference from the model is a panic.

mod bytes;
mod change;
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
pub use compare::{Trouble, compare_keyspace, compare_pairs};
pub use counts::{CaseCounts, PRESETS};
pub use history::{History, Outcome, play, try_play};
pub use operations::{Limit, Operation, RestartKind, Write};
pub use settings::{DbSettings, KeyspaceSettings, random_policy};
