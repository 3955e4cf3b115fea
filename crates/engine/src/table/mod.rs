//! Tables: immutable files of sorted entries.

mod block_splitter;
mod block_window;
mod cursor;
mod device_waits;
mod expiry_sketch;
pub(crate) mod explain;
mod fd_cache;
mod fd_cache_vfs;
mod file_appender;
mod index_stats;
mod job_reads;
pub mod options;
mod read_ahead;
mod read_buffer;
mod read_context;
mod read_deadline;
mod reader;
mod verify;
mod warm_up;
mod writer;

#[cfg(test)]
mod tests;

pub use lsmx_base::filter::FilterWidth;

pub use crate::format::block::Compression;
pub use cursor::TableCursor;
pub(crate) use device_waits::DeviceWaits;
pub(crate) use fd_cache::{CachedFile, FdCache, FileIdentity, JobReadOptions, ReadSource};
pub(crate) use fd_cache_vfs::FdCacheVfs;
pub(crate) use file_appender::FileAppender;
#[cfg(feature = "internals")]
pub use index_stats::IndexBlockKeys;
#[cfg(feature = "internals")]
pub(crate) use index_stats::index_blocks_with_keys;
pub(crate) use index_stats::{KeyWeight, estimate_bytes_by_key, metadata_sizes, share_before_key};
pub use options::TableOptions;
pub(crate) use read_ahead::ScanHints;
pub(crate) use read_buffer::with_read_buffer;
pub use read_context::ReadContext;
pub use read_context::ReadPurpose;
pub(crate) use read_deadline::ReadDeadline;
pub use reader::{Table, TableIdentity};
pub use verify::verify_table;
pub(crate) use verify::verify_table_blocks;
pub(crate) use warm_up::{WarmUpResult, warm_up};
pub use writer::{TableSummary, TableWriter};
