//! The manifest of a backup: its files, and the objects that contain them.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};

use crate::catalog::read_if_exists;
use crate::error::Error;
use crate::record;

/// Prefix of all objects with the contents of files.
pub(crate) const DATA: &str = "data";
/// Prefix of all manifests.
pub(crate) const MANIFESTS: &str = "backups";

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupFile {
    /// Name in the directory of the database.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// XXH3-64 of the whole file, in hexadecimal.
    pub(crate) checksum: String,
    /// Path of the object with the contents.
    pub(crate) object: String,
}

impl BackupFile {
    pub(crate) fn object_path(&self) -> Path {
        Path::from(self.object.as_str())
    }
}

/// The files of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupManifest {
    pub(crate) id: u64,
    pub(crate) files: Vec<BackupFile>,
}

impl BackupManifest {
    pub(crate) fn path(id: u64) -> Path {
        Path::from(format!("{MANIFESTS}/{id:010}"))
    }

    pub(crate) async fn read(store: &dyn ObjectStore, id: u64) -> Result<BackupManifest, Error> {
        let object = BackupManifest::path(id);
        let bytes = read_if_exists(store, &object).await?;
        let bytes: Bytes = bytes.ok_or_else(|| Error::damaged(&object, "it does not exist"))?;
        let manifest: BackupManifest = record::decode(&object, &bytes)?;
        manifest.check_contents(&object, id)?;
        Ok(manifest)
    }

    /// Writes the manifest. The catalog does not name it yet.
    pub(crate) async fn write(&self, store: &dyn ObjectStore) -> Result<(), Error> {
        let object = BackupManifest::path(self.id);
        let payload = PutPayload::from(record::encode(&object, self)?);
        store.put(&object, payload).await.map_err(Error::store("write", &object))?;
        Ok(())
    }

    /// Checks the number, and that no name leads out of the directory of a restore.
    fn check_contents(&self, object: &Path, id: u64) -> Result<(), Error> {
        if self.id != id {
            return Err(Error::damaged(object, format!("it contains the backup {}", self.id)));
        }
        let is_file_name = |name: &str| lsmx_base::file_name::FileName::parse(name).is_some();
        match self.files.iter().find(|file| !is_file_name(&file.name)) {
            Some(file) => Err(Error::damaged(object, format!("it names the file {:?}", file.name))),
            None => Ok(()),
        }
    }
}

/// Returns the prefix of the objects that a run uploads.
pub(crate) fn run_prefix(run: u64) -> Path {
    Path::from(format!("{DATA}/{run:010}"))
}

/// Returns the run in the path of an object, or `None` if the path does not start with [`DATA`] and a run.
pub(crate) fn run_of_object(object: &Path) -> Option<u64> {
    let mut parts = object.as_ref().split('/');
    (parts.next() == Some(DATA)).then(|| parts.next()?.parse().ok())?
}
