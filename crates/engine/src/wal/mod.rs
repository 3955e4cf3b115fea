//! The write-ahead log: every commit is in it before it is anywhere else.
//!
//! The log is a chain of segments. The writer appends groups of records to the newest one and
//! begins the next when it is full; [`replay`] follows the chain and yields exactly the first *n*
//! records, or says which file is damaged.
//!
//! What lets a reader tell a torn tail from damage are **sync marks**: every record says how far
//! its segment was on stable storage when it was written, and whether all older segments were. A
//! bad record below a mark was once stored and is damage; one above every mark may never have
//! reached the disk. Hence the order of [`Wal::sync`]: oldest segment first, then the directory,
//! then the manifest's word that the segment exists, then the mark.

mod copy;
mod reader;
mod reserve;
mod segment;
mod writer;

pub(crate) use copy::{LogHome, copy_segment};
pub(crate) use reader::replay_segments;
pub use reader::{RecoveryMode, RecoveryReport, ReplayFrom, ReplayedRecord, replay};
pub(crate) use reserve::{Reserve, Rewrite, lacks_disk, remove_reserve};
pub use segment::{DurableSegment, SegmentInfo};
pub use writer::{SEGMENT_BYTES_DEFAULT, SYNC_EVERY_BYTES_DEFAULT, SYNC_EVERY_US_DEFAULT};
pub use writer::{SegmentLedger, Wal, WalOptions, WalRecord};
