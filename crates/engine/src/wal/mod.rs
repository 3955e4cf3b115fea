//! Write-ahead log (WAL). Every commit is appended to the log before it is applied to memtables.
//!
//! The log is a chain of segment files. The writer appends groups of records to the newest segment. When this segment
//! is full, the writer creates the next segment. [`replay`] reads the chain and returns a prefix of the appended
//! records, or an error with the path of the corrupt file.
//!
//! **Sync marks** distinguish a torn tail from corruption. Every record states how many bytes of its segment were
//! synced when the record was written, and whether all older segments were synced. If an invalid record lies before
//! the synced position of a later mark, the record was on stable storage, so the file is corrupt. If an invalid record
//! lies after all synced positions, a crash may have prevented its bytes from reaching the disk. For this reason
//! [`Wal::sync`] works in this order: segments, oldest first; directory; registration of new segments in the manifest;
//! sync mark.

mod copy;
mod disk_reserve;
mod hold;
mod reader;
mod segment;
mod writer;

pub(crate) use copy::{LogLocation, copy_segment};
pub(crate) use disk_reserve::{DiskReserve, DiskReserveDemand, is_disk_full, remove_reserve};
pub(crate) use hold::{HeldLog, LogHolds};
pub(crate) use reader::{LogPosition, replay_from, replay_segments};
pub use reader::{RecoveryMode, RecoveryReport, ReplayStart, ReplayedRecord, replay};
pub use segment::DurableSegment;
pub use writer::{SegmentRegistry, Wal, WalOptions, WalRecord};
