//! File appender: writes a new file with a buffer, and computes its checksum.
//!
//! The size of each append except the last one is a multiple of [`DIRECT_APPEND_BYTES`] bytes, so that appends can
//! bypass the page cache.

use std::path::{Path, PathBuf};

use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::vfs::{DIRECT_APPEND_BYTES, File, Vfs};

/// Number of buffered bytes at which the buffer is appended to the file.
pub(crate) const APPEND_BYTES: usize = 256 << 10;

/// Writes a new file from start to end. After an error, the file is incomplete, and the caller must delete it.
#[derive(Debug)]
pub(crate) struct FileAppender {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Bytes that are not appended yet.
    pending: Vec<u8>,
    /// Number of bytes that were written, including the pending bytes.
    bytes: u64,
    checksum: StreamingChecksum,
}

impl FileAppender {
    /// Creates a file.
    pub(crate) fn create(vfs: &dyn Vfs, path: &Path) -> Result<FileAppender> {
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        // The buffer has room for one more block of the default size before it is appended.
        let capacity = APPEND_BYTES + 2 * DIRECT_APPEND_BYTES;
        let (path, pending) = (path.to_owned(), Vec::with_capacity(capacity));
        Ok(FileAppender { file, path, pending, bytes: 0, checksum: StreamingChecksum::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes written so far. This is also the offset of the next write.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the XXH3-64 checksum of all bytes written so far.
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum.digest()
    }

    /// Writes `bytes`. Long writes are not copied to the buffer.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.checksum.update(bytes);
        self.bytes += len_u64(bytes.len());
        if bytes.len() < APPEND_BYTES {
            self.pending.extend_from_slice(bytes);
            return self.append_whole_units();
        }
        let missing = self.pending.len().next_multiple_of(DIRECT_APPEND_BYTES) - self.pending.len();
        let (first, bytes) = bytes.split_at(missing);
        self.pending.extend_from_slice(first);
        self.flush()?;
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % DIRECT_APPEND_BYTES);
        self.append(whole)?;
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    /// Writes the bytes that `encode` appends to the buffer.
    pub(crate) fn write_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let start = self.pending.len();
        encode(&mut self.pending);
        let added = &self.pending[start..];
        self.checksum.update(added);
        self.bytes += len_u64(added.len());
        self.append_whole_units()?;
        // Free the memory that a single long value needed.
        self.pending.shrink_to(2 * APPEND_BYTES);
        Ok(())
    }

    /// Appends the pending bytes to the file if there are at least [`APPEND_BYTES`]. A remainder of less than
    /// [`DIRECT_APPEND_BYTES`] bytes stays pending.
    fn append_whole_units(&mut self) -> Result<()> {
        if self.pending.len() < APPEND_BYTES {
            return Ok(());
        }
        let rest = self.pending.len() % DIRECT_APPEND_BYTES;
        let whole = self.pending.len() - rest;
        let appended = self.append(&self.pending[..whole]);
        self.pending.copy_within(whole.., 0);
        self.pending.truncate(rest);
        appended
    }

    /// Appends all pending bytes to the file.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let appended = self.append(&self.pending);
        self.pending.clear();
        appended
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.file.append(bytes).map_err(|error| Error::io("append to", &self.path, error))
    }

    /// Syncs the file. The caller must sync the directory.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|error| Error::io("sync", &self.path, error))
    }
}
