//! Operand store with key-delta separation for the storage engine `lsmx`.
//!
//! Merge operands in an LSM tree are spread over its levels, and a read must collect them from each. This
//! crate stores the operands of a keyspace outside the tree, in *buckets*: files that each hold the operands
//! of one key range. A read of a key then needs at most one bucket, or none if the operands are cached.
//!
//! # Use
//! Pass a [`DeltaStoreFactory`] to the options of a keyspace:
//!
//! ```
//! use std::sync::Arc;
//!
//! use lsmx::merge_operator::Append;
//! use lsmx::vfs::MemVfs;
//! use lsmx::{Db, KeyspaceOptions, Options};
//! use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
//!
//! let factory = DeltaStoreFactory::new(DeltaOptions::default().cache_bytes(64 << 20));
//! let keyspace = KeyspaceOptions::default().merge_operator(Append::default()).operand_store(factory);
//! let options = Options::default().vfs(Arc::new(MemVfs::new())).keyspace_defaults(keyspace);
//! let db = Db::open("db", options)?;
//!
//! let keyspace = db.default_keyspace();
//! keyspace.merge("list", "a")?;
//! keyspace.merge("list", "b")?;
//! db.flush()?;
//! assert_eq!(keyspace.get("list")?.as_deref(), Some(&b"ab"[..]));
//! # Ok::<(), lsmx::Error>(())
//! ```
//!
//! # Operation
//! - A flush hands the merge operands of a memtable to the store. This is called a *delivery*. For each put or delete,
//!   the delivery also contains a *delete marker* ("anchor" in the paper), which makes the older operands of the key
//!   obsolete.
//! - Delivered records are appended to the store's log and added to the *tail* of their bucket. A tail is in memory.
//!   When it exceeds a size limit, its records are appended to the bucket's file as pages, each sorted by key. These
//!   appends form the *extents* of the bucket.
//! - A *collection* rewrites full buckets into new files. It drops obsolete operands, folds adjacent operands with the
//!   merge operator, and splits or merges buckets. The result is the *sorted part* of a new bucket. If the maximum
//!   number of buckets is reached, the collection moves operands to the tree.
//! - A *cache* holds the folded operands of keys that are read.
//! - A *view* is an immutable list of buckets for readers. Each delivery and each collection prepares a new view. The
//!   view takes effect when the engine commits it.
//!
//! [`DeltaOptions`] sets the sizes of buckets, log and cache. [`dump`] prints a file. `docs/design/operand-store.md` in
//! the repository describes the design and the file formats.
//!
//! Source: Li et al., key-delta separation (KDSep), ICDE 2024.

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
        reason = "exported private modules are not part of the API"
    )
)]

mod bucket;
mod cache;
mod collection;
mod cursor;
mod delivery;
mod dump;
mod factory;
mod files;
mod format;
mod key_search;
mod log;
mod memory;
mod operand_view;
mod options;
mod plan;
mod range_markers;
mod recovery;
mod state;
mod store;
mod view;

/// Private modules, exported for the tests of this project. They are not part of the API.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::bucket::*;
    pub use crate::files::*;
    pub use crate::format::*;
    pub use crate::log::*;
    pub use crate::memory::*;
    pub use crate::range_markers::*;
    pub use crate::recovery::*;
    pub use crate::store::*;
    pub use crate::view::*;
}

pub use dump::dump;
pub use factory::DeltaStoreFactory;
pub use options::{
    BUCKET_BYTES_DEFAULT, BUCKETS_MAX_DEFAULT, CACHE_BYTES_DEFAULT, DeltaOptions,
    LOG_BYTES_MAX_DEFAULT, SPLIT_THRESHOLD_DEFAULT,
};
