//! The files of a closed database, for programs that copy it.

use std::collections::HashMap;
use std::path::Path;

use lsmx_base::file_name::FileName;

use crate::db::check::verify::find_orphans;
use crate::db::open::lock::lock_shared;
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::options::db::Options;

/// A file of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatabaseFile {
    /// Name in the directory of the database.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Identity of a table or blob file, which never changes. `None` for other files.
    pub identity: Option<ContentIdentity>,
}

/// Identity of the contents of a table or blob file. Files with the same identity and size have the same contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentIdentity {
    /// Random number that was drawn when the file was created.
    pub uid: u64,
    /// XXH3-64 of the whole file.
    pub checksum: u64,
}

/// Returns the files that a copy of a closed database needs, in ascending order of their names.
///
/// Reads the manifest and the directory, but not the contents of other files. A directory with these files opens as the same
/// database. Files that the manifest does not list are omitted, except those of operand stores. Only the file system
/// ([`Options::vfs`]) of the options is used.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (path, copy) = (dir.path().join("data"), dir.path().join("copy"));
/// use lsmx::{Db, Options, inspect::list_files};
///
/// let db = Db::open(&path, Options::default())?;
/// db.put(b"k", b"v")?;
/// db.flush()?;
/// db.checkpoint(&copy)?;
///
/// let files = list_files(&copy, &Options::default())?;
/// let tables = files.iter().filter(|file| file.identity.is_some());
/// assert_eq!(tables.count(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NotADatabase`]; [`Error::Locked`] if the database is open for writing; [`Error::Corrupt`] and
/// [`Error::UnsupportedVersion`] for the manifest; [`Error::Missing`] if a table or blob file does not exist;
/// [`Error::Io`].
pub fn list_files(path: impl AsRef<Path>, options: &Options) -> Result<Vec<DatabaseFile>> {
    let (dir, vfs) = (path.as_ref(), options.file_system());
    let _lock = lock_shared(&*vfs, dir)?;
    let loaded = Manifest::load(&*vfs, dir)?;
    let mut identities = HashMap::new();
    for keyspace in loaded.state.keyspaces.values() {
        for table in keyspace.tree.files() {
            let identity = ContentIdentity { uid: table.uid, checksum: table.checksum };
            identities.insert(FileName::Table(table.id.0), identity);
        }
        for blob in keyspace.value_log.blob_files() {
            let identity = ContentIdentity { uid: blob.uid, checksum: blob.checksum };
            identities.insert(FileName::Blob(blob.id.0), identity);
        }
    }
    let orphans = find_orphans(&*vfs, dir, &loaded.state, loaded.number, None)?;
    let mut files = Vec::new();
    for name in vfs.list(dir).map_err(|error| Error::io("list", dir, error))? {
        let path = dir.join(&name);
        let Some(file) = FileName::parse(&name) else { continue };
        let is_state_of_process = matches!(
            file,
            FileName::Lock | FileName::Reserve | FileName::Metrics | FileName::MetricsTemporary
        );
        if is_state_of_process || orphans.contains(&path) {
            continue;
        }
        let len = vfs.open(&path).and_then(|file| file.len());
        let bytes = len.map_err(|error| Error::io("read the size of", &path, error))?;
        files.push(DatabaseFile { name, bytes, identity: identities.remove(&file) });
    }
    match identities.into_keys().next() {
        None => Ok(files),
        Some(missing) => {
            Err(Error::Missing { path: missing.in_dir(dir), named_by: loaded.path.clone() })
        }
    }
}
