//! Checks blob files, and what tables point to in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::db::open::recovery;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::file_name::{CURRENT, FileName};
use crate::format::version_edit::{BlobFileRecord, BlobReference};
use crate::manifest::KeyspaceState;
use crate::table::{ReadContext, ReadPurpose, Table, TableCursor};
use crate::value_log::BlobReader;
use crate::vfs::Vfs;

/// The blob files of one keyspace, each of them sound.
pub(crate) struct Values {
    dir: PathBuf,
    blobs: BTreeMap<FileId, BlobReader>,
}

impl Values {
    /// Opens and checks them.
    pub(crate) fn open(
        vfs: &dyn Vfs,
        dir: &Path,
        (id, keyspace): (u32, &KeyspaceState),
        cache: &Arc<BlockCache>,
    ) -> Result<Values> {
        let open = |blob: &BlobFileRecord| {
            verify_blob(vfs, dir, id, blob, cache).map(|open| (blob.id, open))
        };
        let blobs = keyspace.value_log.blobs().map(open).collect::<Result<_>>()?;
        Ok(Values { dir: dir.to_owned(), blobs })
    }

    /// Blob files that are known to be sound; no others are.
    pub(crate) fn of(dir: &Path, blobs: BTreeMap<FileId, BlobReader>) -> Values {
        Values { dir: dir.to_owned(), blobs }
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> BTreeSet<u64> {
        self.blobs.keys().map(|id| id.0).collect()
    }

    pub(crate) fn files(&self) -> u64 {
        len_u64(self.blobs.len())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blobs.values().map(|blob| blob.record().bytes).sum()
    }

    /// Every pointer of a table leads to the value of its entry, and all of them come to what the
    /// manifest says. Returns how many there are.
    pub(crate) fn verify_table(
        &self,
        table: &Arc<Table>,
        references: &[BlobReference],
    ) -> Result<u64> {
        let mut found = BTreeMap::<FileId, (u64, u64)>::new();
        let mut cursor = TableCursor::new(table, ReadPurpose::Job);
        let mut access = ReadContext::new(ReadPurpose::Job);
        cursor.first()?;
        while cursor.valid() {
            let key = cursor.key();
            if key.kind == EntryKind::ValuePointer {
                let at = |what: Malformed| Error::malformed(what, table.path(), 0);
                let pointer = ValuePointer::decode(cursor.value()).map_err(at)?;
                let id = FileId(pointer.file);
                let Some(blob) = self.blobs.get(&id) else {
                    let (what, found) = ("blob file of a value pointer", pointer.file);
                    let expected = "one that the manifest lists for the keyspace";
                    let path = FileName::Blob(id.0).in_dir(&self.dir);
                    return Err(Error::malformed(
                        Malformed::Field { what, found, expected },
                        &path,
                        0,
                    ));
                };
                blob.value((key.user_key, key.seq), &pointer, &mut access)?;
                let (bytes, records) = found.entry(id).or_default();
                *bytes += pointer.bytes;
                *records += 1;
            }
            cursor.next()?;
        }
        let said: BTreeMap<FileId, (u64, u64)> =
            references.iter().map(|said| (said.blob, (said.bytes, said.records))).collect();
        if found != said {
            let sum =
                |all: &BTreeMap<FileId, (u64, u64)>| all.values().map(|(bytes, _)| bytes).sum();
            let what = "bytes that a table references";
            let wrong = Malformed::Identity { what, expected: sum(&said), found: sum(&found) };
            return Err(Error::malformed(wrong, table.path(), 0));
        }
        Ok(found.values().map(|(_, records)| records).sum())
    }
}

/// A blob file is sound, and the one that the manifest names.
pub(crate) fn verify_blob(
    vfs: &dyn Vfs,
    dir: &Path,
    keyspace: u32,
    record: &BlobFileRecord,
    cache: &Arc<BlockCache>,
) -> Result<BlobReader> {
    let path = FileName::Blob(record.id.0).in_dir(dir);
    let blob = BlobReader::open(vfs, &path, keyspace, record, cache);
    let blob = blob.map_err(|error| recovery::named(error, &dir.join(CURRENT)))?;
    blob.verify()?;
    Ok(blob)
}
