//! Locks, atomics and other primitives for threads.
//!
//! All crates of the workspace use these primitives. With `--cfg loom`, the module exports the types of the model
//! checker loom, so that models run the production code.

mod counter;
mod lock;
#[cfg(loom)]
pub mod loom_model;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_types;
mod signal;

#[cfg(not(loom))]
pub use arc_swap::{ArcSwap, Guard};
#[cfg(not(loom))]
pub use boxcar::Vec as AppendVec;
pub use counter::{CounterShard, ShardedCounter, ShardedCounters, thread_number};
pub use lock::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, assert_unlocked,
};
#[cfg(loom)]
pub use loom_types::{AppendVec, ArcSwap, Guard, OnceLock, thread_local};
pub use primitives::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub use signal::{Signal, TaskWaiter, thread_signal};
#[cfg(not(loom))]
pub use std::sync::OnceLock;
/// Atomics of the standard library, for statics. An atomic of loom cannot be a static, because it lives only during one
/// execution of a model.
pub use std::sync::atomic as std_atomic;
pub use std::sync::{Arc, Weak};
#[cfg(not(loom))]
pub use std::thread_local;

#[cfg(loom)]
use loom_types as primitives;
#[cfg(not(loom))]
use std::sync as primitives;
