//! Archive of the write-ahead log: copies of commits outside of the database, which extend a backup to a later commit.
//!
//! A [`LogArchiver`] returns the durable commits of an open database as chunks. A [`LogExtender`] adds the commits of chunks to the
//! log of a checkpoint, and the next open of the checkpoint replays them. The chunks must begin at or before the end of the
//! checkpoint, so the archiver is created before the checkpoint.
//!
//! Structural changes of the database are not in the log: the creation, the drop, the rename and the clone of a
//! keyspace, changes of stored options, ingests, and bulk loads. An archiver ends before such a change. Its chunks
//! extend only checkpoints from before the change. Later commits need a new archiver and a new checkpoint.

mod archiver;
mod extender;

pub use archiver::{LogArchiver, LogChunk};
pub use extender::LogExtender;
