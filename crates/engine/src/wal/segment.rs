//! State of one segment in the writer.

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
    /// Lower bound of its sequence numbers.
    pub first_seq: SeqNo,
    /// Last sequence number of the segment; smaller than `first_seq` if the segment has no records.
    pub last_seq: SeqNo,
    /// Size, in bytes.
    pub bytes: u64,
    /// Whether a newer segment exists, so that nothing is appended any more.
    pub closed: bool,
}

/// Durable part of a live segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableSegment {
    /// Number in the file's name.
    pub id: u64,
    /// Size of the durable part, in bytes. It ends with a complete record.
    pub bytes: u64,
}

/// A segment that is being written, or waits to be retired.
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
    /// Number of bytes that a sync must make durable. In the current segment, this excludes the records at the end that
    /// consist of a sync mark only, because no commit depends on them.
    pub(crate) record_bytes: u64,
    /// Number of bytes known to be on stable storage. New sync marks contain this number. 0 until the manifest lists the
    /// segment.
    pub(crate) synced: u64,
    /// Whether the directory is synced and the manifest lists the segment.
    pub(crate) registered: bool,
}

impl Segment {
    /// Returns whether a sync has work to do for this segment.
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
