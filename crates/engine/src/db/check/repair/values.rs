//! Values of damaged blob files, record by record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lsmx_base::coding::to_usize;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::blob::{BLOB_HEADER_BYTES, BlobHeader, BlobRecord, ValuePointer};
use crate::format::file_name::FileName;
use crate::vfs::{File, Vfs};

/// Blob files of which nothing is believed; a record is vouched for by its own checksum.
#[derive(Debug)]
pub(crate) struct BlobRemains<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    /// Uids that the manifest knows.
    uids: BTreeMap<u64, u64>,
    open: BTreeMap<u64, Result<OneBlob>>,
}

#[derive(Clone, Debug)]
struct OneBlob {
    file: Arc<dyn File>,
    path: PathBuf,
    uid: u64,
}

impl<'a> BlobRemains<'a> {
    /// Blob files of a directory. Of those that `uids` knows not even the header is needed.
    pub(crate) fn new(
        vfs: &'a dyn Vfs,
        dir: &'a Path,
        uids: BTreeMap<u64, u64>,
    ) -> BlobRemains<'a> {
        BlobRemains { vfs, dir, uids, open: BTreeMap::new() }
    }

    /// The value that a pointer points to.
    ///
    /// # Errors
    /// It cannot be read, or is damaged or another entry's.
    pub(crate) fn value(
        &mut self,
        (key, seq): (&[u8], SeqNo),
        pointer: &ValuePointer,
    ) -> Result<Vec<u8>> {
        let blob = self.open(pointer.file)?;
        let at = |what: Malformed| Error::malformed(what, &blob.path, pointer.offset);
        let bytes = blob.file.len().map_err(|error| Error::io("read", &blob.path, error))?;
        let end = pointer.offset.checked_add(pointer.bytes);
        if end.is_none_or(|end| end > bytes) {
            let (what, needed) = ("blob file", end.unwrap_or(u64::MAX));
            return Err(at(Malformed::Truncated { what, needed, found: bytes }));
        }
        let mut stored = vec![0; to_usize("blob record", pointer.bytes).map_err(at)?];
        let read = blob.file.read_at(&mut stored, pointer.offset);
        let read = read.map_err(|error| Error::io("read", &blob.path, error))?;
        stored.truncate(read);
        let record = BlobRecord::decode(&stored, blob.uid, pointer.offset).map_err(at)?;
        record.check(key, seq).map_err(at)?;
        Ok(record.value(pointer.value_bytes).map_err(at)?.to_vec())
    }

    /// Where a blob file is.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        FileName::Blob(number).in_dir(self.dir)
    }

    fn open(&mut self, number: u64) -> Result<OneBlob> {
        let (vfs, dir, known) = (self.vfs, self.dir, self.uids.get(&number).copied());
        let opened =
            self.open.entry(number).or_insert_with(|| OneBlob::open(vfs, dir, number, known));
        opened.clone()
    }
}

impl OneBlob {
    fn open(vfs: &dyn Vfs, dir: &Path, number: u64, known: Option<u64>) -> Result<OneBlob> {
        let path = FileName::Blob(number).in_dir(dir);
        let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
        let uid = match known {
            Some(uid) => uid,
            None => {
                let mut head = [0; BLOB_HEADER_BYTES];
                let read = file.read_at(&mut head, 0);
                let read = read.map_err(|error| Error::io("read", &path, error))?;
                let at = |what: Malformed| Error::malformed(what, &path, 0);
                let header = BlobHeader::decode(&head[..read]).map_err(at)?;
                if header.number != number {
                    let (what, expected, found) = ("number of a blob file", number, header.number);
                    return Err(at(Malformed::Identity { what, expected, found }));
                }
                header.uid
            }
        };
        Ok(OneBlob { file, path, uid })
    }
}
