//! What tests of whole databases share: scale and seed, dice, options drawn at random, a history
//! model with the operations played against it, and a shrinker.

#![allow(dead_code, unused_imports, reason = "each test uses its own part")]
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "nothing here leaves the test"
)]
#![allow(clippy::cast_possible_truncation, reason = "small numbers of tests")]

#[path = "../arsenal/beside.rs"]
mod beside;
mod dice;
pub mod linear;
mod operators;
mod ops;
mod play;
mod shrink;
mod tuning;
mod world;

pub use beside::Plain;
pub use dice::{Dice, case_seeds, scale, seed};
pub use operators::operator;
pub use ops::{KEYSPACES, Op, Weights, key_pool, operations};
pub use play::{Outcome, Play, play};
pub use shrink::{quietly, shrink, watchdog};
pub use tuning::{Opening, Tuning};
pub use world::{PRESETS, Reached, World};
