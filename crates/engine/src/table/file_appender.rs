//! Buffered, checksummed appends to a new file.

use std::path::{Path, PathBuf};

use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::vfs::{File, Vfs};

/// Bytes that are buffered before they are appended to the file.
pub(crate) const APPEND_BYTES: usize = 256 << 10;

/// Writes a new file from start to end. After an error the file is incomplete, and the caller removes it.
#[derive(Debug)]
pub(crate) struct FileAppender {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Bytes that were not appended yet.
    pending: Vec<u8>,
    /// Bytes appended and pending.
    bytes: u64,
    checksum: StreamingChecksum,
}

impl FileAppender {
    /// Creates the file.
    pub(crate) fn create(vfs: &dyn Vfs, path: &Path) -> Result<FileAppender> {
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        let (path, pending) = (path.to_owned(), Vec::with_capacity(APPEND_BYTES));
        Ok(FileAppender { file, path, pending, bytes: 0, checksum: StreamingChecksum::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes written so far, which are also the offset of the next write.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the XXH3-64 of all bytes written so far.
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum.digest()
    }

    /// Writes these bytes. Long ones are not copied into the buffer.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.checksum.update(bytes);
        self.bytes += len_u64(bytes.len());
        if self.pending.len() + bytes.len() > APPEND_BYTES {
            self.flush()?;
        }
        if bytes.len() >= APPEND_BYTES {
            return self.append(bytes);
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the bytes that `encode` adds to the buffer.
    pub(crate) fn write_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let start = self.pending.len();
        encode(&mut self.pending);
        let added = &self.pending[start..];
        self.checksum.update(added);
        self.bytes += len_u64(added.len());
        if self.pending.len() >= APPEND_BYTES {
            self.flush()?;
            // Frees the memory of a rare long value.
            self.pending.shrink_to(2 * APPEND_BYTES);
        }
        Ok(())
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

    /// Syncs the bytes that were appended. The caller syncs the directory.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|error| Error::io("sync", &self.path, error))
    }
}
