//! Reads the frames of a log or a bucket file in file order.

use std::path::PathBuf;

use bytes::Bytes;
use lsmx::vfs::File;
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use super::io::read_exactly;
use crate::format::frame::{FRAME_HEADER_BYTES, FrameKind, decode_frame, decode_frame_len};
use crate::format::header::HEADER_BYTES;

/// Minimum bytes per read, except for the last read of a file.
const CHUNK_BYTES: u64 = 1 << 20;

/// Reads the frames of a file in file order. Reads the file in chunks.
#[derive(Debug)]
pub struct FrameReader {
    path: PathBuf,
    file: Arc<dyn File>,
    uid: u64,
    end: u64,
    chunk: Bytes,
    chunk_offset: u64,
    /// Offset of the next frame.
    pub offset: u64,
}

impl FrameReader {
    /// Returns a reader of the frames between the file header and offset `end`. The file must have at least `end`
    /// bytes.
    pub fn new(path: PathBuf, file: Arc<dyn File>, uid: u64, end: u64) -> FrameReader {
        let offset = len_u64(HEADER_BYTES);
        FrameReader { path, file, uid, end, chunk: Bytes::new(), chunk_offset: 0, offset }
    }

    /// Reads the next frame. Returns `None` at the end.
    pub fn next_frame(&mut self) -> Result<Option<(FrameKind, Bytes)>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let header = self.read_bytes(FRAME_HEADER_BYTES)?;
        let len = decode_frame_len(&header).map_err(|malformed| self.error_at_frame(malformed))?;
        let bytes = self.read_bytes(len)?;
        let (kind, contents, _) = decode_frame(&bytes, (self.uid, self.offset))
            .map_err(|malformed| self.error_at_frame(malformed))?;
        self.offset += len_u64(len);
        Ok(Some((kind, bytes.slice_ref(contents))))
    }

    fn error_at_frame(&self, malformed: Malformed) -> Error {
        Error::malformed(malformed, &self.path, self.offset)
    }

    /// Returns the next `len` bytes of the file, and does not advance.
    fn read_bytes(&mut self, len: usize) -> Result<Bytes> {
        let needed = len_u64(len);
        let found = self.end - self.offset;
        if needed > found {
            return Err(self.error_at_frame(Malformed::Truncated { what: "frame", needed, found }));
        }
        let mut start = usize::try_from(self.offset - self.chunk_offset).unwrap_or(usize::MAX);
        if start.saturating_add(len) > self.chunk.len() {
            let chunk_len = usize::try_from(needed.max(CHUNK_BYTES).min(found)).unwrap_or(len);
            self.chunk = read_exactly(&*self.file, &self.path, self.offset, chunk_len)?.into();
            (self.chunk_offset, start) = (self.offset, 0);
        }
        Ok(self.chunk.slice(start..start + len))
    }
}
