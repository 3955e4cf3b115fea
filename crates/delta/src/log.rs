//! Writes the log of a store: a snapshot of all buckets, followed by deliveries and collections.

use std::path::PathBuf;

use lsmx::Result;
use lsmx::operand_store::{OperandFileKind, OperandFiles, StoreToken};
use lsmx::vfs::File;
use lsmx_base::coding::{len_u64, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::files::io::io_error;
use crate::format::frame::{FrameKind, put_frame};
use crate::format::header::{LOG_HEADER, encode_header};
use crate::format::log::{BucketEntry, put_bucket, put_snapshot};
use crate::view::StoreView;

/// Minimum bytes per append to the log while a snapshot is written. The last append may have fewer.
const CHUNK_BYTES: usize = 1 << 20;

/// Position in a log, which a [`StoreToken`] encodes.
#[derive(Clone, Copy, Debug)]
pub struct LogPosition {
    pub number: u64,
    pub end: u64,
    pub uid: u64,
}

impl LogPosition {
    pub fn from_store_token(token: StoreToken) -> LogPosition {
        let StoreToken([number, end, uid, _]) = token;
        LogPosition { number, end, uid }
    }
}

/// Buffer with encoded frames for one append to the log.
#[derive(Debug)]
pub struct FrameBuffer {
    uid: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl FrameBuffer {
    pub fn put(&mut self, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let offset = self.offset + len_u64(self.bytes.len());
        put_frame(&mut self.bytes, (self.uid, offset), kind, fill)
    }
}

/// Writer of a log file.
#[derive(Debug)]
pub struct LogWriter {
    pub number: u64,
    uid: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    end: u64,
    snapshot_end: u64,
    /// Size of the tails in the snapshot, in bytes.
    snapshot_tail_bytes: u64,
    /// Minimum of the markers in the snapshot and of the values passed to [`LogWriter::add_void_from`].
    void_from: Option<SeqNo>,
}

impl LogWriter {
    /// Creates an empty log file. The next call must be [`LogWriter::put_snapshot`].
    pub fn create(files: &dyn OperandFiles, uid: u64) -> Result<LogWriter> {
        let (number, file) = files.create(OperandFileKind::Log)?;
        let path = files.path(OperandFileKind::Log, number);
        let (end, snapshot_end, snapshot_tail_bytes, void_from) = (0, 0, 0, None);
        Ok(LogWriter { number, uid, path, file, end, snapshot_end, snapshot_tail_bytes, void_from })
    }

    /// Writes the file header and a snapshot of `view`. `to_entry` returns the log entry of a bucket. Does not sync.
    pub fn put_snapshot(
        &mut self,
        view: &StoreView,
        mut to_entry: impl FnMut(&Bucket) -> BucketEntry,
    ) -> Result<()> {
        let mut frames = self.new_frame_buffer();
        frames.bytes.extend_from_slice(&encode_header(LOG_HEADER, self.uid));
        let keyspace = &view.resources.files.context.keyspace;
        frames.put(FrameKind::Keyspace, |out| out.extend_from_slice(keyspace.as_bytes()))?;
        let (through, markers) = (view.through, &view.range_markers);
        frames.put(FrameKind::Snapshot, |out| put_snapshot(out, through, markers))?;
        for bucket in &view.buckets {
            let entry = to_entry(bucket);
            frames.put(FrameKind::Bucket, |out| put_bucket(out, &entry))?;
            if frames.bytes.len() >= CHUNK_BYTES {
                self.append(&mut frames)?;
            }
        }
        let count = len_u64(view.buckets.len());
        frames.put(FrameKind::SnapshotEnd, |out| put_varint(out, count))?;
        self.append(&mut frames)?;
        self.snapshot_end = self.end;
        self.snapshot_tail_bytes = view.tail_bytes();
        self.void_from = view.oldest_marker_in_log();
        Ok(())
    }

    /// Returns an empty buffer for frames that will be appended to the log.
    pub fn new_frame_buffer(&self) -> FrameBuffer {
        FrameBuffer { uid: self.uid, offset: self.end, bytes: Vec::new() }
    }

    /// Appends the frames to the file and clears the buffer.
    pub fn append(&mut self, frames: &mut FrameBuffer) -> Result<()> {
        self.file.append(&frames.bytes).map_err(|e| io_error("append to", &self.path, e))?;
        self.end += len_u64(frames.bytes.len());
        frames.offset = self.end;
        frames.bytes.clear();
        Ok(())
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| io_error("sync", &self.path, e))
    }

    /// Returns the number of bytes after the snapshot.
    pub fn bytes_after_snapshot(&self) -> u64 {
        self.end - self.snapshot_end
    }

    /// Returns the size of the tails in the snapshot, in bytes.
    pub fn snapshot_tail_bytes(&self) -> u64 {
        self.snapshot_tail_bytes
    }

    /// Adds a lower bound of the sequence numbers of deletes that may cover operands in the log because of appended
    /// frames.
    pub fn add_void_from(&mut self, void_from: Option<SeqNo>) {
        self.void_from = self.void_from.into_iter().chain(void_from).min();
    }

    /// Returns a lower bound of the sequence numbers of deletes that may cover operands which the log still contains
    /// but the store does not.
    ///
    /// Returns `None` if the log contains only a snapshot, because the store contains all operands of the snapshot.
    pub fn void_from(&self) -> Option<SeqNo> {
        self.void_from.filter(|_| self.bytes_after_snapshot() > 0)
    }

    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Returns the token of the current end of the log.
    pub fn end_token(&self) -> StoreToken {
        StoreToken([self.number, self.end, self.uid, 0])
    }
}
