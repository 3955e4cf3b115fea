//! Writing a log: a snapshot of what there is, then what comes.

use std::path::PathBuf;

use bytes::Bytes;
use lsmx::operand_store::{OperandFileKind, OperandFiles, Token};
use lsmx::vfs::File;
use lsmx::{Error, Result};
use lsmx_base::coding::{len_u64, put_varint};
use lsmx_base::sync::Arc;

use crate::files::io_error;
use crate::format::frame::{FrameKind, put_frame};
use crate::format::header::{self, LOG_MAGIC};
use crate::format::log::{BucketEntry, put_bucket, put_snapshot};
use crate::view::View;

/// Bytes that are appended at once while a snapshot is written.
const CHUNK_BYTES: usize = 1 << 20;

/// A log that is appended to.
#[derive(Debug)]
pub(crate) struct LogWriter {
    pub(crate) number: u64,
    uid: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    end: u64,
    snapshot_end: u64,
}

/// Frames that will be appended at once.
#[derive(Debug)]
pub(crate) struct Frames {
    uid: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds a frame.
    pub(crate) fn put(&mut self, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let offset = self.offset + len_u64(self.bytes.len());
        put_frame(&mut self.bytes, (self.uid, offset), kind, fill)
    }
}

impl LogWriter {
    /// A log in a new file, which it has nothing in yet.
    pub(crate) fn create(files: &dyn OperandFiles, uid: u64) -> Result<LogWriter> {
        let (number, file) = files.create(OperandFileKind::Log)?;
        let path = files.path(OperandFileKind::Log, number);
        Ok(LogWriter { number, uid, path, file, end: 0, snapshot_end: 0 })
    }

    /// Begins it with what `view` has; `entry` says how the log tells of a bucket. Not synced.
    pub(crate) fn put_snapshot(
        &mut self,
        view: &View,
        mut entry: impl FnMut(&crate::bucket::Bucket) -> BucketEntry,
    ) -> Result<()> {
        let mut frames = Frames { uid: self.uid, offset: 0, bytes: Vec::new() };
        frames.bytes.extend_from_slice(&header::encode(LOG_MAGIC, self.uid));
        let keyspace = &view.shared.table.place.keyspace;
        frames.put(FrameKind::Name, |out| out.extend_from_slice(keyspace.as_bytes()))?;
        let (through, ranges) = (view.through, &view.ranges);
        frames.put(FrameKind::Snapshot, |out| put_snapshot(out, through, ranges))?;
        for bucket in &view.buckets {
            let entry = entry(bucket);
            frames.put(FrameKind::Bucket, |out| put_bucket(out, &entry))?;
            if frames.bytes.len() >= CHUNK_BYTES {
                self.append(&mut frames)?;
            }
        }
        let count = len_u64(view.buckets.len());
        frames.put(FrameKind::SnapshotEnd, |out| put_varint(out, count))?;
        self.append(&mut frames)?;
        self.snapshot_end = self.end;
        Ok(())
    }

    /// No frames yet, for its end.
    pub(crate) fn frames(&self) -> Frames {
        Frames { uid: self.uid, offset: self.end, bytes: Vec::new() }
    }

    /// Appends frames, of which none are left.
    pub(crate) fn append(&mut self, frames: &mut Frames) -> Result<()> {
        self.file.append(&frames.bytes).map_err(|e| io_error("append to", &self.path, e))?;
        self.end += len_u64(frames.bytes.len());
        frames.offset = self.end;
        frames.bytes.clear();
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| io_error("sync", &self.path, e))
    }

    /// Bytes behind its snapshot.
    pub(crate) fn grown_bytes(&self) -> u64 {
        self.end - self.snapshot_end
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    /// What stands for all it has now.
    pub(crate) fn token(&self) -> Token {
        Token([self.number, self.end, self.uid, 0])
    }
}

/// A log as a token names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) number: u64,
    pub(crate) end: u64,
    pub(crate) uid: u64,
}

impl Position {
    pub(crate) fn of(token: Token) -> Position {
        let Token([number, end, uid, _]) = token;
        Position { number, end, uid }
    }
}

/// Reads the frames of a log one after the other, in chunks.
#[derive(Debug)]
pub(crate) struct LogReader {
    pub(crate) path: PathBuf,
    file: Arc<dyn File>,
    pub(crate) uid: u64,
    end: u64,
    chunk: Bytes,
    chunk_at: u64,
    /// Offset of the next frame.
    pub(crate) at: u64,
}

impl LogReader {
    /// Reads from behind the header up to `end`, which must be within the file.
    pub(crate) fn new(path: PathBuf, file: Arc<dyn File>, uid: u64, end: u64) -> LogReader {
        let at = len_u64(header::HEADER_BYTES);
        LogReader { path, file, uid, end, chunk: Bytes::new(), chunk_at: 0, at }
    }

    /// The next frame; `None` at the end.
    pub(crate) fn frame(&mut self) -> Result<Option<(FrameKind, Bytes)>> {
        use crate::format::frame::{FRAME_HEADER_BYTES, decode_frame, frame_bytes};
        if self.at >= self.end {
            return Ok(None);
        }
        let (at, path) = (self.at, self.path.clone());
        let wrong = |what: lsmx::Malformed| Error::malformed(what, &path, at);
        let header = self.bytes(FRAME_HEADER_BYTES)?;
        let len = frame_bytes(&header).map_err(wrong)?;
        let bytes = self.bytes(len)?;
        let (kind, contents, _) = decode_frame(&bytes, (self.uid, at)).map_err(wrong)?;
        self.at += len_u64(len);
        Ok(Some((kind, bytes.slice_ref(contents))))
    }

    /// `len` bytes from where the next frame begins.
    fn bytes(&mut self, len: usize) -> Result<Bytes> {
        let needed = len_u64(len);
        let left = self.end - self.at;
        if needed > left {
            let what = lsmx::Malformed::Truncated { what: "frame", needed, found: left };
            return Err(Error::malformed(what, &self.path, self.at));
        }
        let start = usize::try_from(self.at - self.chunk_at).unwrap_or(usize::MAX);
        if start.saturating_add(len) > self.chunk.len() {
            let wanted = needed.max(len_u64(CHUNK_BYTES)).min(left);
            let wanted = usize::try_from(wanted).unwrap_or(len);
            self.chunk =
                crate::files::read_exactly(&*self.file, &self.path, self.at, wanted)?.into();
            self.chunk_at = self.at;
            return Ok(self.chunk.slice(..len));
        }
        Ok(self.chunk.slice(start..start + len))
    }
}

/// The error of a file that is not there though another names it.
pub(crate) fn open_named(
    vfs: &dyn lsmx::vfs::Vfs,
    path: &std::path::Path,
) -> Result<Arc<dyn File>, Error> {
    vfs.open(path).map_err(|e| io_error("open", path, e))
}
