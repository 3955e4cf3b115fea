//! Write-ahead log. A commit is appended to it before it is applied anywhere else.
//!
//! The log is a chain of segments. The writer appends groups of records to the newest segment and creates the
//! next one when it is full. [`replay`] follows the chain and yields exactly the first *n* records, or names
//! the damaged file.
//!
//! **Sync marks** distinguish a torn tail from corruption. Every record states how far its segment was synced
//! when it was written, and whether all older segments were. An invalid record before a mark was on stable
//! storage, so it is corruption. An invalid record after all marks may never have reached the disk.
//! Therefore [`Wal::sync`] syncs the oldest segment first, then the directory, then registers the segments in
//! the manifest, and writes the mark last.

mod copy;
mod disk_reserve;
mod reader;
mod segment;
mod writer;

pub(crate) use copy::{LogLocation, copy_segment};
pub(crate) use disk_reserve::{DiskReserve, DiskReserveDemand, is_disk_full, remove_reserve};
pub(crate) use reader::replay_segments;
pub use reader::{RecoveryMode, RecoveryReport, ReplayStart, ReplayedRecord, replay};
pub use segment::DurableSegment;
pub use writer::{SegmentRegistry, Wal, WalOptions, WalRecord};
