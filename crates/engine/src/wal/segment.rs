//! One segment as its writer sees it.

use std::io;
use std::path::PathBuf;

use lsmx_base::sync::Arc;

use crate::format::log_record::{LogSeed, SyncMark};
use crate::vfs::File;
use crate::{Result, SeqNo};

/// A live segment, for those who decide what to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Number in the file's name.
    pub id: u64,
    /// First sequence number that could come in it.
    pub first_seq: SeqNo,
    /// Last sequence number in it; smaller than `first_seq` while it has no records.
    pub last_seq: SeqNo,
    /// Its bytes.
    pub bytes: u64,
    /// Whether a newer segment took its place, so that nothing more comes.
    pub closed: bool,
}

/// How far a live segment is on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableSegment {
    /// Number in the file's name.
    pub id: u64,
    /// Bytes from its start; they end with a whole record.
    pub bytes: u64,
}

/// A segment that is being written, or waits to be retired.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    /// None once the segment is closed and synced: nothing is appended to it any more.
    pub(crate) file: Option<Arc<dyn File>>,
    pub(crate) seed: LogSeed,
    pub(crate) first_seq: u64,
    /// Last sequence number in it, or before it.
    pub(crate) last_seq: u64,
    pub(crate) bytes: u64,
    /// Bytes without the mark-only records at its end, which nobody waits for.
    pub(crate) record_bytes: u64,
    /// Bytes on stable storage, once the name is too and the manifest knows it; what marks say.
    pub(crate) synced: u64,
    /// Whether the directory is synced and the manifest names the segment.
    pub(crate) named: bool,
}

impl Segment {
    /// Whether a sync has something to do for it.
    pub(crate) fn needs_sync(&self) -> bool {
        self.record_bytes > self.synced || !self.named
    }

    pub(crate) fn mark(&self, older_synced: bool) -> SyncMark {
        SyncMark { position: self.synced, older_synced: older_synced || self.synced > 0 }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.sync().map_err(|source| crate::Error::io("sync", &self.path, source))
    }

    pub(crate) fn append(&self, bytes: &[u8]) -> Result<()> {
        let appended = match &self.file {
            Some(file) => file.append(bytes),
            None => Err(io::Error::other("the segment is closed")),
        };
        appended.map_err(|source| crate::Error::io("append to", &self.path, source))
    }

    pub(crate) fn info(&self, closed: bool) -> SegmentInfo {
        SegmentInfo {
            id: self.id,
            first_seq: SeqNo(self.first_seq),
            last_seq: SeqNo(self.last_seq),
            bytes: self.bytes,
            closed,
        }
    }
}
