//! Blob files of a version.
//!
//! A table holds references to the blob files that its entries reference. Readers of old versions can therefore read
//! the values. A blob file is obsolete if no table of the current version references it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::blob::ValuePointer;
use crate::format::version_edit::{BlobFileRecord, BlobReference};
use crate::table::ReadContext;
use crate::table::explain::{BlockRead, BlockSource};
use crate::tree::obsolete_files::{ObsoleteFiles, OpenFileGuard};
use crate::value_log::{BlobReader, BlobScan};

/// An open blob file that one or more tables reference.
///
/// If the file is obsolete, it is queued for deletion when the last of these tables is dropped.
#[derive(Debug)]
pub(crate) struct BlobFile {
    guard: OpenFileGuard,
    blob: BlobReader,
}

impl AsRef<BlobReader> for BlobFile {
    fn as_ref(&self) -> &BlobReader {
        &self.blob
    }
}

impl BlobFile {
    /// Registers an open blob file.
    pub(crate) fn new(blob: BlobReader, obsolete_files: Arc<ObsoleteFiles>) -> BlobFile {
        let (id, bytes) = (blob.manifest_record().id, blob.manifest_record().bytes);
        let guard = OpenFileGuard::new(id, blob.path().to_owned(), bytes, obsolete_files);
        BlobFile { guard, blob }
    }

    /// Returns the reader of the file.
    pub(crate) fn blob(&self) -> &BlobReader {
        &self.blob
    }

    /// Returns the manifest record of the file.
    pub(crate) fn record(&self) -> &BlobFileRecord {
        self.blob.manifest_record()
    }

    /// Marks the file as obsolete. The caller must have removed the file from the manifest.
    pub(crate) fn set_obsolete(&self) {
        self.guard.set_obsolete();
    }
}

/// References of one table to records of a blob file.
#[derive(Clone, Debug)]
pub(crate) struct BlobUsage {
    pub(crate) file: Arc<BlobFile>,
    /// Total size of the referenced records in bytes.
    pub(crate) bytes: u64,
    /// Number of referenced records.
    pub(crate) records: u64,
}

impl BlobUsage {
    /// Returns the reference as the manifest records it.
    pub(crate) fn reference(&self) -> BlobReference {
        let blob = self.file.record().id;
        BlobReference { blob, bytes: self.bytes, records: self.records }
    }
}

/// Blob files of a version. The references of all tables to a file are added up.
#[derive(Debug, Default)]
pub(crate) struct BlobSet {
    files: BTreeMap<FileId, BlobUsage>,
    dir: PathBuf,
}

impl BlobSet {
    /// Collects the blob files that tables reference.
    pub(crate) fn new<'a>(usages: impl Iterator<Item = &'a BlobUsage>) -> BlobSet {
        let mut set = BlobSet::default();
        for usage in usages {
            if set.files.is_empty() {
                set.dir = usage.file.blob().path().parent().map(PathBuf::from).unwrap_or_default();
            }
            match set.files.entry(usage.file.record().id) {
                Entry::Vacant(entry) => {
                    entry.insert(usage.clone());
                }
                Entry::Occupied(mut entry) => {
                    let sum = entry.get_mut();
                    sum.bytes = sum.bytes.saturating_add(usage.bytes);
                    sum.records = sum.records.saturating_add(usage.records);
                }
            }
        }
        set
    }

    /// Returns all blob files, ordered by file number.
    pub(crate) fn files(&self) -> impl Iterator<Item = &BlobUsage> {
        self.files.values()
    }

    /// Returns the numbers of all blob files in ascending order.
    pub(crate) fn ids(&self) -> Vec<FileId> {
        self.files.keys().copied().collect()
    }

    /// Returns true if the set contains no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the blob file with this number.
    pub(crate) fn file(&self, id: FileId) -> Option<&Arc<BlobFile>> {
        self.files.get(&id).map(|usage| &usage.file)
    }

    /// Decodes a value pointer. Returns the pointer and the blob file that it refers to.
    ///
    /// # Errors
    /// Fails if the pointer is malformed, or if the set does not contain its blob file.
    pub(crate) fn locate(&self, pointer: &[u8]) -> Result<(&Arc<BlobFile>, ValuePointer)> {
        let pointer =
            ValuePointer::decode(pointer).map_err(|what| Error::malformed(what, &self.dir, 0))?;
        let file = self.file(FileId(pointer.file)).ok_or_else(|| {
            let (what, found) = ("blob file of a value pointer", pointer.file);
            let expected = "one that the manifest lists for its table";
            let unknown = Malformed::Field { what, found, expected };
            let path = FileName::Blob(pointer.file).in_dir(&self.dir);
            Error::malformed(unknown, &path, pointer.offset)
        })?;
        Ok((file, pointer))
    }

    /// Reads the value of an entry from the value log. `entry` is the key and the sequence number of the entry.
    ///
    /// # Errors
    /// - [`Error::Corrupt`](crate::Error::Corrupt) if the value is corrupt or belongs to another entry.
    /// - [`Error::Io`](crate::Error::Io) if the value cannot be read.
    /// - [`Error::WouldBlock`](crate::Error::WouldBlock) if the value is not cached and `access` does not allow reads
    ///   from files.
    pub(crate) fn read_value(
        &self,
        entry: (&[u8], SeqNo),
        pointer: &[u8],
        access: &mut ReadContext,
    ) -> Result<Slice> {
        let (file, pointer) = self.locate(pointer)?;
        file.blob().read_value(entry, &pointer, access)
    }

    /// Reads the value of an entry from the value log, as part of a scan.
    pub(crate) fn read_value_in_scan(
        &self,
        scan: &mut BlobScan,
        entry: (&[u8], SeqNo),
        pointer: &[u8],
        access: &mut ReadContext,
    ) -> Result<Slice> {
        let (file, pointer) = self.locate(pointer)?;
        scan.read_value(file.blob(), entry, &pointer, access)
    }

    /// Returns the block that a read of this value would access, and whether the block is cached.
    pub(crate) fn explain(&self, pointer: &[u8]) -> Result<BlockRead> {
        let (file, pointer) = self.locate(pointer)?;
        let resident = file.blob().is_resident(&pointer);
        let source = if resident { BlockSource::Cache } else { BlockSource::Storage };
        let (offset, bytes) = (pointer.offset, pointer.bytes);
        Ok(BlockRead { kind: BlockKind::Blob, offset, bytes, source })
    }
}
