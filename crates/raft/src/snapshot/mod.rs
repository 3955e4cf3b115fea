//! Snapshots: directories with a copy of the database, and their transport as a stream of bytes.

pub(crate) mod dir;
pub(crate) mod format;
pub(crate) mod frame_journal;
pub(crate) mod partial;
pub(crate) mod partial_slot;
pub(crate) mod receiver;
pub(crate) mod resume;
pub(crate) mod source;
pub(crate) mod stream;
