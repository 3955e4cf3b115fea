//! Model tests of databases in memory. A seed gives a list of operations, with power losses, reopens under other options,
//! checkpoints and changes of policy. A failing list is shrunk.
//!
//! A difference from the model is a panic, which the runner catches.

#![expect(clippy::unwrap_used, reason = "a history fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers of tests")]
#![expect(
    missing_docs,
    missing_debug_implementations,
    reason = "for tests and the stress tool alone"
)]

pub mod linear;
mod ops;
mod play;
mod reached;
mod shrink;
mod tuning;
mod walk;
mod world;

pub use ops::{KEYSPACES, Op, Weights, key_pool, operations};
pub use play::{Outcome, Play, play, try_play};
pub use reached::{PRESETS, Reached};
pub use shrink::{quietly, shrink, watchdog};
pub use tuning::{Opening, Tuning};
pub use world::World;
