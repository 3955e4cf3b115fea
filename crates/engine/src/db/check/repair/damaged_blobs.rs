//! Reads values from damaged blob files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lsmx_base::coding::to_usize;
use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::blob::{BLOB_HEADER_BYTES, BlobHeader, BlobRecord, ValuePointer};
use crate::vfs::{File, Vfs};

/// Maximum number of damaged blob files that are open at the same time.
const OPEN_FILES_MAX: usize = 16;

/// Opens and reads the blob files of a directory, which may be damaged. The checksum of each record is verified.
#[derive(Debug)]
pub(crate) struct DamagedBlobFiles<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    /// Uids from the manifest, by file number.
    uids: BTreeMap<u64, u64>,
    /// Open files, by file number. At most [`OPEN_FILES_MAX`].
    opened: BTreeMap<u64, DamagedBlobFile>,
}

#[derive(Clone, Debug)]
struct DamagedBlobFile {
    file: Arc<dyn File>,
    path: PathBuf,
    uid: u64,
}

impl<'a> DamagedBlobFiles<'a> {
    /// `uids` contains the uids in the manifest, by file number. The headers of these files are not read, because they
    /// may be damaged.
    pub(crate) fn new(
        vfs: &'a dyn Vfs,
        dir: &'a Path,
        uids: BTreeMap<u64, u64>,
    ) -> DamagedBlobFiles<'a> {
        DamagedBlobFiles { vfs, dir, uids, opened: BTreeMap::new() }
    }

    /// Reads the value of an entry.
    pub(crate) fn read_value(
        &mut self,
        (key, seq): (&[u8], SeqNo),
        pointer: &ValuePointer,
    ) -> Result<Vec<u8>> {
        let blob = self.open(pointer.file)?;
        let corrupt = |what: Malformed| Error::malformed(what, &blob.path, pointer.offset);
        let bytes = blob.file.len().map_err(|error| Error::io("read", &blob.path, error))?;
        let end = pointer.offset.checked_add(pointer.bytes);
        if end.is_none_or(|end| end > bytes) {
            let (what, needed) = ("blob file", end.unwrap_or(u64::MAX));
            return Err(corrupt(Malformed::Truncated { what, needed, found: bytes }));
        }
        let mut stored = vec![0; to_usize("blob record", pointer.bytes).map_err(corrupt)?];
        let read = blob.file.read_at(&mut stored, pointer.offset);
        stored.truncate(read.map_err(|error| Error::io("read", &blob.path, error))?);
        let record = BlobRecord::decode(&stored, blob.uid, pointer.offset).map_err(corrupt)?;
        record.check_entry(key, seq).map_err(corrupt)?;
        Ok(record.value(pointer.value_bytes).map_err(corrupt)?.to_vec())
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        FileName::Blob(number).in_dir(self.dir)
    }

    fn open(&mut self, number: u64) -> Result<DamagedBlobFile> {
        let (vfs, dir, uid) = (self.vfs, self.dir, self.uids.get(&number).copied());
        if let Some(opened) = self.opened.get(&number) {
            return Ok(opened.clone());
        }
        let opened = DamagedBlobFile::open(vfs, dir, number, uid)?;
        if self.opened.len() >= OPEN_FILES_MAX {
            self.opened.clear();
        }
        self.opened.insert(number, opened.clone());
        Ok(opened)
    }
}

impl DamagedBlobFile {
    /// Opens a blob file. Reads its header only if the uid is unknown.
    fn open(vfs: &dyn Vfs, dir: &Path, number: u64, uid: Option<u64>) -> Result<DamagedBlobFile> {
        let path = FileName::Blob(number).in_dir(dir);
        let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
        if let Some(uid) = uid {
            return Ok(DamagedBlobFile { file, path, uid });
        }
        let mut head = [0; BLOB_HEADER_BYTES];
        let read = file.read_at(&mut head, 0).map_err(|error| Error::io("read", &path, error))?;
        let corrupt = |what: Malformed| Error::malformed(what, &path, 0);
        let BlobHeader { number: found, uid, .. } =
            BlobHeader::decode(&head[..read]).map_err(corrupt)?;
        if found != number {
            let (what, expected) = ("number of a blob file", number);
            return Err(corrupt(Malformed::Identity { what, expected, found }));
        }
        Ok(DamagedBlobFile { file, path, uid })
    }
}
