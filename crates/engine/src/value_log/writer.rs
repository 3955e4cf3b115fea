//! Writer of blob files.

use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_compaction::FileId;

use crate::error::{Error, Result};
use crate::format::blob::{BlobHeader, BlobTrailer, ValuePointer, put_record};
use crate::format::version_edit::BlobFileRecord;
use crate::format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::table::{Compression, FileAppender};
use crate::vfs::Vfs;

/// Writes one blob file. After an error the caller must remove the file.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    file: FileAppender,
    id: FileId,
    uid: u64,
    compression: Compression,
    /// Reusable buffer for compressed values.
    compressed: Vec<u8>,
    records: u64,
    value_bytes: u64,
}

impl BlobWriter {
    /// Creates the file and writes the header. The uid in `header` should be random, because it is the seed of every
    /// checksum of the file.
    pub(crate) fn create(
        vfs: &dyn Vfs,
        path: &Path,
        header: &BlobHeader,
        compression: Compression,
    ) -> Result<BlobWriter> {
        let mut writer = BlobWriter {
            file: FileAppender::create(vfs, path)?,
            id: FileId(header.number),
            uid: header.uid,
            compression,
            compressed: Vec::new(),
            records: 0,
            value_bytes: 0,
        };
        writer.file.write(&header.encode())?;
        Ok(writer)
    }

    /// Appends the value of an entry. Returns a pointer to the value.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the key or the value exceeds its maximum length. [`Error::Io`] if the file cannot be
    /// written.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo, value: &[u8]) -> Result<ValuePointer> {
        for (what, bytes, limit) in [
            ("key", len_u64(key.len()), KEY_BYTES_MAX),
            ("value", len_u64(value.len()), VALUE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(Error::TooLarge { what, bytes, limit });
            }
        }
        let offset = self.file.bytes();
        let (position, stored) = ((self.uid, offset), (value, self.compression));
        let compressed = &mut self.compressed;
        self.file
            .write_with(|buffer| put_record(buffer, position, (key, seq), stored, compressed))?;
        self.records += 1;
        self.value_bytes += len_u64(value.len());
        let (file, bytes) = (self.id.0, self.file.bytes() - offset);
        Ok(ValuePointer { file, offset, bytes, value_bytes: len_u64(value.len()) })
    }

    /// Returns the bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Writes the trailer and syncs the file. Returns the manifest record of the file. The caller syncs the directory.
    pub(crate) fn finish(mut self) -> Result<BlobFileRecord> {
        let trailer =
            BlobTrailer { records: self.records, value_bytes: self.value_bytes, uid: self.uid };
        self.file.write(&trailer.encode(self.file.bytes()))?;
        self.file.flush()?;
        if !failpoint::is_on(Failpoint::PointerBeforeValue) {
            self.file.sync()?;
        }
        Ok(BlobFileRecord {
            id: self.id,
            bytes: self.file.bytes(),
            records: self.records,
            value_bytes: self.value_bytes,
            uid: self.uid,
            checksum: self.file.checksum(),
        })
    }
}
