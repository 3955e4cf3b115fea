//! Value log: blob files that contain large values. Table entries contain pointers to these values.

mod batch_read;
mod reader;
mod scan;
mod writer;

pub(crate) use batch_read::{BatchRead, BatchReadBuffer, ValueRequest, plan_batch_reads};
pub use reader::BlobReader;
pub use scan::BlobScan;
pub(crate) use writer::BlobWriter;

#[cfg(test)]
mod tests;
