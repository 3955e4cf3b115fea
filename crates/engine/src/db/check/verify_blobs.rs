//! Verification of blob files and of the pointers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::file_name::{CURRENT, FileName};
use crate::format::version_edit::{BlobFileRecord, BlobReference};
use crate::manifest::KeyspaceState;
use crate::table::{ReadContext, ReadPurpose, Table, TableCursor};
use crate::value_log::BlobReader;
use crate::vfs::Vfs;

/// Undamaged blob files of one keyspace.
pub(crate) struct VerifiedBlobs {
    dir: PathBuf,
    blobs: BTreeMap<FileId, BlobReader>,
}

impl VerifiedBlobs {
    pub(crate) fn new(dir: &Path, blobs: BTreeMap<FileId, BlobReader>) -> VerifiedBlobs {
        VerifiedBlobs { dir: dir.to_owned(), blobs }
    }

    /// Opens and checks all blob files of a keyspace.
    pub(crate) fn open(
        vfs: &dyn Vfs,
        dir: &Path,
        (id, keyspace): (u32, &KeyspaceState),
        cache: &Arc<BlockCache>,
    ) -> Result<VerifiedBlobs> {
        let blobs = keyspace
            .value_log
            .blobs()
            .map(|blob| verify_blob(vfs, dir, id, blob, cache).map(|reader| (blob.id, reader)));
        Ok(VerifiedBlobs::new(dir, blobs.collect::<Result<_>>()?))
    }

    /// Returns the numbers of the files.
    pub(crate) fn numbers(&self) -> BTreeSet<u64> {
        self.blobs.keys().map(|id| id.0).collect()
    }

    pub(crate) fn file_count(&self) -> u64 {
        len_u64(self.blobs.len())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blobs.values().map(|blob| blob.record().bytes).sum()
    }

    /// Checks that every pointer of a table leads to the value of its entry, and that the references in the manifest
    /// are correct. Returns the number of pointers.
    pub(crate) fn verify_pointers(
        &self,
        table: &Arc<Table>,
        references: &[BlobReference],
    ) -> Result<u64> {
        let mut found = BTreeMap::<FileId, (u64, u64)>::new();
        let mut cursor = TableCursor::new(table, ReadPurpose::Job);
        let mut context = ReadContext::new(ReadPurpose::Job);
        cursor.first()?;
        while cursor.valid() {
            let key = cursor.key();
            if key.kind == EntryKind::ValuePointer {
                let corrupt = |what| Error::malformed(what, table.path(), 0);
                let pointer = ValuePointer::decode(cursor.value()).map_err(corrupt)?;
                let id = FileId(pointer.file);
                let Some(blob) = self.blobs.get(&id) else {
                    let expected = "a blob file of the keyspace in the manifest";
                    let what = "blob file of a value pointer";
                    let what = Malformed::field(what, pointer.file, expected);
                    return Err(Error::malformed(what, &FileName::Blob(id.0).in_dir(&self.dir), 0));
                };
                blob.value((key.user_key, key.seq), &pointer, &mut context)?;
                let (bytes, records) = found.entry(id).or_default();
                *bytes += pointer.bytes;
                *records += 1;
            }
            cursor.next()?;
        }
        let expected: BTreeMap<FileId, (u64, u64)> =
            references.iter().map(|at| (at.blob, (at.bytes, at.records))).collect();
        if found != expected {
            let sum = |references: &BTreeMap<FileId, (u64, u64)>| {
                references.values().map(|(bytes, _)| bytes).sum()
            };
            let (what, expected, found) =
                ("bytes that a table references", sum(&expected), sum(&found));
            let what = Malformed::Identity { what, expected, found };
            return Err(Error::malformed(what, table.path(), 0));
        }
        Ok(found.values().map(|(_, records)| records).sum())
    }
}

/// Opens a blob file, and checks its content against itself and against its record in the manifest.
pub(crate) fn verify_blob(
    vfs: &dyn Vfs,
    dir: &Path,
    keyspace: u32,
    record: &BlobFileRecord,
    cache: &Arc<BlockCache>,
) -> Result<BlobReader> {
    let path = FileName::Blob(record.id.0).in_dir(dir);
    let blob = BlobReader::open(vfs, &path, keyspace, record, cache);
    let blob = blob.map_err(|error| error.or_missing(&dir.join(CURRENT)))?;
    blob.verify()?;
    Ok(blob)
}
