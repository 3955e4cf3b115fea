//! The value log: large values in blob files beside the tree, which keeps pointers to them.

mod file;
mod scan;
mod together;
mod writer;

pub(crate) use file::Blob;
pub(crate) use scan::BlobScan;
pub(crate) use together::{Stretch, StretchBuffer, Wanted, stretches};
pub(crate) use writer::BlobWriter;

#[cfg(test)]
mod tests;
