//! The staging directory: a checkpoint of the database, from which a run uploads files.

use std::path::{Path, PathBuf};

use lsmx::vfs::{LockGuard, Vfs};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::error::Error;

/// Name of the lock file in the staging directory.
const LOCK_NAME: &str = "BACKUP-LOCK";
/// Name of the directory of the checkpoint in the staging directory.
const CHECKPOINT_NAME: &str = "checkpoint";

/// An exclusively locked staging directory. Dropping it removes the checkpoint and the directory.
pub(crate) struct Staging {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    lock: Option<Box<dyn LockGuard>>,
}

impl Staging {
    /// Creates and locks the directory. Removes the checkpoint of an interrupted run.
    pub(crate) fn claim(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<Staging, Error> {
        match vfs.create_dir(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", dir)(error));
            }
            _ => {}
        }
        let path = dir.join(LOCK_NAME);
        let lock = vfs.lock(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::StagingInUse { path: dir.to_owned() },
            _ => Error::io("lock", &path)(error),
        })?;
        let staging = Staging { vfs, dir: dir.to_owned(), lock: Some(lock) };
        staging.remove_checkpoint()?;
        Ok(staging)
    }

    /// Returns the path of the checkpoint.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.dir.join(CHECKPOINT_NAME)
    }

    /// Removes the checkpoint. Files that do not belong to a database are kept, and fail the removal.
    fn remove_checkpoint(&self) -> Result<(), Error> {
        let dir = self.checkpoint();
        if !self.vfs.exists(&dir).map_err(Error::io("look for", &dir))? {
            return Ok(());
        }
        for name in self.vfs.list(&dir).map_err(Error::io("list", &dir))? {
            if FileName::parse(&name).is_some() {
                let path = dir.join(name);
                self.vfs.remove(&path).map_err(Error::io("remove", &path))?;
            }
        }
        self.vfs.remove_dir(&dir).map_err(Error::io("remove", &dir))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The next run removes what cannot be removed now.
        let _ = self.remove_checkpoint();
        let _ = self.vfs.remove(&self.dir.join(LOCK_NAME));
        self.lock = None;
        let _ = self.vfs.remove_dir(&self.dir);
    }
}
