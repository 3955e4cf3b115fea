//! Key-delta separation for lsmx: merge operands live in buckets beside the tree.
//!
//! Operands of a key that are entries of the tree lie scattered over its levels, and who reads the key
//! gathers them from all of these. Here a store of buckets has them, one bucket per range of keys, and all
//! operands of a key are one read away, or none where memory has them folded.
//!
//! A keyspace gets the store by a factory, [`KeyDelta`], which is all that users need; what a store owes
//! to the engine, and the engine to a store, stands in [`lsmx::operand_store`].
//!
//! ```
//! use lsmx_delta::{DeltaOptions, KeyDelta};
//!
//! let separated = KeyDelta::new(DeltaOptions::default().cache_bytes(64 << 20));
//! assert_eq!(lsmx::operand_store::OperandStoreFactory::name(&separated), "key-delta");
//! ```
//!
//! The design and every byte of the files stand in `docs/delta.md` of the repository.
//!
//! Source: "Key-delta separation", KDSep.

mod bucket;
mod cache;
mod charge;
mod collect;
mod copy;
mod cursor;
mod deliver;
mod dump;
mod factory;
mod files;
mod format;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzzing;
mod keep;
mod log;
mod options;
mod ranges;
mod reader;
mod recovery;
mod state;
mod store;
mod view;

pub use dump::dump;
pub use factory::KeyDelta;
pub use options::{
    BUCKET_BYTES_DEFAULT, BUCKETS_MAX_DEFAULT, CACHE_BYTES_DEFAULT, DeltaOptions,
    LOG_BYTES_MAX_DEFAULT, SPLIT_THRESHOLD_DEFAULT,
};
