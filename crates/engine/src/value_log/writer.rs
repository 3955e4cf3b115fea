//! Values → blob file.

use std::path::{Path, PathBuf};

use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::error::{Error, Result};
use crate::format::blob::{BlobHeader, BlobTrailer, ValuePointer, put_record};
use crate::format::version_edit::BlobFileRecord;
use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::table::Compression;
use crate::vfs::{File, Vfs};

/// Bytes gathered before they are handed to the file.
const APPEND_BYTES: usize = 256 << 10;

/// Writes one blob file. A writer that returned an error is of no further use; the file it leaves is
/// the caller's to remove.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    file: Arc<dyn File>,
    path: PathBuf,
    id: FileId,
    uid: u64,
    compression: Compression,
    /// Bytes for the file that wait for [`APPEND_BYTES`].
    pending: Vec<u8>,
    /// Bytes handed to the file and pending.
    offset: u64,
    checksum: StreamingChecksum,
    scratch: Vec<u8>,
    records: u64,
    value_bytes: u64,
}

impl BlobWriter {
    /// Creates the file. `uid` should be random: it ties every record to this file.
    ///
    /// # Errors
    /// When the file cannot be created (its name being taken included).
    pub(crate) fn create(
        vfs: &dyn Vfs,
        path: &Path,
        header: &BlobHeader,
        compression: Compression,
    ) -> Result<BlobWriter> {
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        let mut writer = BlobWriter {
            file,
            path: path.to_owned(),
            id: FileId(header.number),
            uid: header.uid,
            compression,
            pending: Vec::new(),
            offset: 0,
            checksum: StreamingChecksum::new(0),
            scratch: Vec::new(),
            records: 0,
            value_bytes: 0,
        };
        writer.pending.extend_from_slice(&header.encode());
        writer.appended(0)?;
        Ok(writer)
    }

    /// Writes the value of an entry; returns where it lies.
    ///
    /// # Errors
    /// [`Error::TooLarge`] past the limits of keys and values; when the file cannot be written.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo, value: &[u8]) -> Result<ValuePointer> {
        for (what, bytes, limit) in [
            ("key", len_u64(key.len()), KEY_BYTES_MAX),
            ("value", len_u64(value.len()), VALUE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(Error::TooLarge { what, bytes, limit });
            }
        }
        let (before, offset) = (self.pending.len(), self.offset);
        let place = (self.uid, offset);
        let value_with = (value, self.compression);
        put_record(&mut self.pending, place, (key, seq), value_with, &mut self.scratch);
        self.appended(before)?;
        self.records += 1;
        self.value_bytes += len_u64(value.len());
        let (file, bytes) = (self.id.0, self.offset - offset);
        Ok(ValuePointer { file, offset, bytes, value_bytes: len_u64(value.len()) })
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Counts what stands in `pending` from `before` on, and hands all of it over if it is much.
    fn appended(&mut self, before: usize) -> Result<()> {
        let fresh = &self.pending[before..];
        self.checksum.update(fresh);
        self.offset += len_u64(fresh.len());
        if self.pending.len() >= APPEND_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let appended = self.file.append(&self.pending);
        self.pending.clear();
        // One long value is rare; its memory is not kept for the small ones to come.
        self.pending.shrink_to(2 * APPEND_BYTES);
        appended.map_err(|error| Error::io("append to", &self.path, error))
    }

    /// Ends the file and syncs it; its name is the directory's business, and that is the caller's.
    ///
    /// # Errors
    /// When the file cannot be written or synced.
    pub(crate) fn finish(mut self) -> Result<BlobFileRecord> {
        let trailer =
            BlobTrailer { records: self.records, value_bytes: self.value_bytes, uid: self.uid };
        let before = self.pending.len();
        self.pending.extend_from_slice(&trailer.encode(self.offset));
        self.appended(before)?;
        if !self.pending.is_empty() {
            self.flush()?;
        }
        if !failpoint::is_on(Failpoint::PointerBeforeValue) {
            self.file.sync().map_err(|error| Error::io("sync", &self.path, error))?;
        }
        Ok(BlobFileRecord {
            id: self.id,
            bytes: self.offset,
            records: self.records,
            value_bytes: self.value_bytes,
            uid: self.uid,
            checksum: self.checksum.digest(),
        })
    }
}
