//! State that the WAL writer keeps for each segment.

use std::io;
use std::path::PathBuf;

use lsmx_base::sync::Arc;

use crate::error::Result;
use crate::format::log_record::{LogChecksumSeed, SyncMark};
use crate::vfs::File;
use lsmx_base::key::SeqNo;

/// Description of a live segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Number in the file's name.
    pub id: u64,
    /// Lower bound of the sequence numbers in the segment.
    pub first_seq: SeqNo,
    /// Last sequence number of the segment; smaller than `first_seq` if the segment has no records.
    pub last_seq: SeqNo,
    /// Size in bytes, without preallocated zeros.
    pub bytes: u64,
    /// True if a newer segment exists. Nothing is appended to a closed segment.
    pub closed: bool,
}

/// The part of a live segment that is on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableSegment {
    /// Number in the file's name.
    pub id: u64,
    /// Size of the durable part in bytes. The last record of the durable part is complete.
    pub bytes: u64,
}

/// A live segment: the current segment, or a closed segment that may contain unflushed commits.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    /// `None` once the segment is closed and synced.
    pub(crate) file: Option<Arc<dyn File>>,
    pub(crate) seed: LogChecksumSeed,
    pub(crate) first_seq: u64,
    /// Last sequence number of the segment; `first_seq` − 1 if the segment has no records.
    pub(crate) last_seq: u64,
    pub(crate) bytes: u64,
    /// Number of bytes that a sync must make durable. In the current segment, this number excludes mark-only records at
    /// the end, because no commit depends on these records.
    pub(crate) record_bytes: u64,
    /// Number of bytes known to be on stable storage. New sync marks state this number. The number is 0 until the
    /// manifest lists the segment.
    pub(crate) synced: u64,
    /// True if the name of the file is durable and the manifest lists the segment.
    pub(crate) registered: bool,
}

impl Segment {
    /// Returns whether the segment has unsynced records or is not registered in the manifest.
    pub(crate) fn needs_sync(&self) -> bool {
        self.record_bytes > self.synced || !self.registered
    }

    pub(crate) fn sync_mark(&self, older_synced: bool) -> SyncMark {
        SyncMark { position: self.synced, older_synced: older_synced || self.synced > 0 }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.sync().map_err(|source| crate::error::Error::io("sync", &self.path, source))
    }

    pub(crate) fn append(&self, bytes: &[u8]) -> Result<()> {
        let appended = match &self.file {
            Some(file) => file.append(bytes),
            None => Err(io::Error::other("the segment is closed")),
        };
        appended.map_err(|source| crate::error::Error::io("append to", &self.path, source))
    }

    pub(crate) fn summary(&self, closed: bool) -> SegmentSummary {
        SegmentSummary {
            id: self.id,
            first_seq: SeqNo(self.first_seq),
            last_seq: SeqNo(self.last_seq),
            bytes: self.bytes,
            closed,
        }
    }
}
