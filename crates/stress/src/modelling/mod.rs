//! Histories in memory: a list of operations that follows from a seed, played against a model, with power
//! losses, reopenings under other options, checkpoints, other policies; and a shrinker for those that fail.
//!
//! A difference ends a history by a panic, which whoever plays it catches.

#![expect(
    clippy::unwrap_used,
    reason = "a history fails by panicking, and says how it is played again"
)]
#![expect(clippy::cast_possible_truncation, reason = "small numbers of tests")]
#![expect(
    missing_docs,
    missing_debug_implementations,
    reason = "for tests and the stress tool alone"
)]

pub mod linear;
mod operators;
mod ops;
mod play;
mod reached;
mod shrink;
mod tuning;
mod walk;
mod world;

pub use operators::operator;
pub use ops::{KEYSPACES, Op, Weights, key_pool, operations};
pub use play::{Outcome, Play, play, try_play};
pub use reached::{PRESETS, Reached};
pub use shrink::{quietly, shrink, watchdog};
pub use tuning::{Opening, Tuning};
pub use world::World;
