//! Tables: immutable sorted files, written once and read through the block cache.

pub use lsmx_base::filter::FilterWidth;
pub use lsmx_base::range_tombstone::RangeTombstone;

mod access;
mod block_end;
pub mod cursor;
mod descriptors;
pub(crate) mod explain;
mod metadata;
pub mod options;
mod pooled;
mod read_ahead;
pub mod reader;
mod scratch;
mod sizes;
mod verify;
mod warm_up;
mod weights;
#[cfg(feature = "benching")]
mod whole_index;
pub mod writer;

#[cfg(test)]
mod tests;

pub use crate::format::block::Compression;
pub use crate::format::properties::TableProperties;
pub use crate::format::range_tombstones::FragmentedTombstones;
pub(crate) use access::Access;
pub use cursor::TableCursor;
pub(crate) use descriptors::{Descriptor, DescriptorPool, FileIdentity, JobReads, Source};
pub use options::TableOptions;
pub(crate) use pooled::PooledVfs;
pub use reader::{FillCache, Found, Table, TableIdentity};
pub(crate) use scratch::with as with_scratch;
pub(crate) use warm_up::Warmed;
pub(crate) use weights::Weight;
#[cfg(feature = "benching")]
pub use whole_index::Indexed;
pub use writer::{TableSummary, TableWriter};
