//! Snapshots: directories with a copy of the database, and their transport as a stream of bytes.

pub(crate) mod dir;
pub(crate) mod format;
pub(crate) mod receiver;
pub(crate) mod source;
pub(crate) mod stream;
