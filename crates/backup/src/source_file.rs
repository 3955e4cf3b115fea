//! Files of a checkpoint, and reads of their parts.

use std::path::Path;

use lsmx::Options;
use lsmx::inspect::{DatabaseFile, list_files};
use lsmx::vfs::{File, Vfs};
use lsmx_base::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

use crate::error::Error;

/// Default size in bytes of the reads of a file, and of the parts of an upload.
pub(crate) const PART_BYTES: usize = 8 << 20;

/// A file of the checkpoint, with an identifier of its contents.
pub(crate) struct SourceFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// XXH3-64 of the whole file.
    pub(crate) checksum: u64,
    /// Identifier of the contents, and file name of the object that stores them. Files with equal identifiers have equal
    /// contents.
    pub(crate) content: String,
}

/// Returns the files of a checkpoint. Reads the contents of the files that have no identity.
pub(crate) fn source_files(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Vec<SourceFile>, Error> {
    let files = list_files(dir, &Options::default().vfs(Arc::clone(vfs)))?;
    let with_content = |file: DatabaseFile| {
        let DatabaseFile { name, bytes, identity, .. } = file;
        let (content, checksum) = match identity {
            Some(id) => (format!("f{:016x}{:016x}", id.uid, id.checksum), id.checksum),
            None => {
                let path = dir.join(&name);
                let open = vfs.open(&path).map_err(Error::io("open", &path))?;
                let mut hash = Xxh3::new();
                let mut offset = 0;
                while offset < bytes {
                    let part = read_part(&*open, &path, offset, bytes, PART_BYTES)?;
                    hash.update(&part);
                    offset += part.len() as u64;
                }
                (format!("c{:032x}", hash.digest128()), hash.digest())
            }
        };
        Ok(SourceFile { name, bytes, checksum, content })
    };
    files.into_iter().map(with_content).collect()
}

/// Reads at most `bytes_max` bytes of a file at `offset`. `end` is the end of the file.
pub(crate) fn read_part(
    file: &dyn File,
    path: &Path,
    offset: u64,
    end: u64,
    bytes_max: usize,
) -> Result<Vec<u8>, Error> {
    let bytes = usize::try_from(end - offset).unwrap_or(bytes_max).min(bytes_max);
    let mut part = vec![0; bytes];
    let read = file.read_at(&mut part, offset).map_err(Error::io("read", path))?;
    if read < bytes {
        let reason = format!("it ends at byte {} of {end}", offset + read as u64);
        return Err(Error::DamagedFile { path: path.to_owned(), reason });
    }
    Ok(part)
}

/// Reads the file that names a manifest.
pub(crate) fn read_current(vfs: &dyn Vfs, path: &Path) -> Result<Vec<u8>, Error> {
    let file = vfs.open(path).map_err(Error::io("open", path))?;
    let bytes = file.len().map_err(Error::io("read the size of", path))?;
    read_part(&*file, path, 0, bytes, PART_BYTES)
}
