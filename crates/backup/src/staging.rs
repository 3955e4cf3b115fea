//! The staging directory: a checkpoint of the database, from which a run uploads files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lsmx::vfs::{LockGuard, Vfs};
use lsmx_base::file_name::{FileName, LOCK};
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
    /// Creates and locks the directory, and creates the empty directory of the checkpoint. Removes the checkpoint of an
    /// interrupted run.
    ///
    /// # Errors
    /// [`Error::TargetNotEmpty`] if no run has created the checkpoint in the directory; [`Error::StagingInUse`];
    /// [`lsmx::Error::Locked`] if the checkpoint is open; [`Error::Io`].
    pub(crate) fn claim(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<Staging, Error> {
        match vfs.create_dir(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io("create", dir)(error));
            }
            _ => {}
        }
        let (path, checkpoint) = (dir.join(LOCK_NAME), dir.join(CHECKPOINT_NAME));
        let exists = |path: &Path| vfs.exists(path).map_err(Error::io("look for", path));
        let not_empty =
            || Error::TargetNotEmpty { path: dir.to_owned(), found: CHECKPOINT_NAME.to_owned() };
        // A run creates the lock file before the checkpoint, and removes it after the checkpoint.
        if !exists(&path)? && exists(&checkpoint)? {
            return Err(not_empty());
        }
        let lock = vfs.lock(&path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Error::StagingInUse { path: dir.to_owned() },
            _ => Error::io("lock", &path)(error),
        })?;
        // After a power loss, the checkpoint of this run must not exist without the lock file.
        vfs.sync_dir(dir).map_err(Error::io("sync", dir))?;
        remove_checkpoint(&*vfs, &checkpoint)?;
        match vfs.create_dir(&checkpoint) {
            Ok(()) => Ok(Staging { vfs, dir: dir.to_owned(), lock: Some(lock) }),
            // Another process has created it meanwhile. With the lock file, the next run would remove it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                vfs.remove(&path).map_err(Error::io("remove", &path))?;
                Err(not_empty())
            }
            Err(error) => Err(Error::io("create", &checkpoint)(error)),
        }
    }

    /// Returns the path of the checkpoint.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.dir.join(CHECKPOINT_NAME)
    }
}

/// Removes a checkpoint. Files that do not belong to a database are kept, and fail the removal.
///
/// # Errors
/// [`lsmx::Error::Locked`] if the checkpoint is open as a database; [`Error::Io`].
fn remove_checkpoint(vfs: &dyn Vfs, dir: &Path) -> Result<(), Error> {
    let names = match vfs.list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        names => names.map_err(Error::io("list", dir))?,
    };
    let path = dir.join(LOCK);
    let _lock = match names.iter().any(|name| name == LOCK) {
        true => Some(vfs.lock(&path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => lsmx::Error::Locked { path: path.clone() }.into(),
            _ => Error::io("lock", &path)(error),
        })?),
        false => None,
    };
    for name in names.iter().filter(|name| FileName::parse(name).is_some()) {
        let path = dir.join(name);
        vfs.remove(&path).map_err(Error::io("remove", &path))?;
    }
    vfs.remove_dir(dir).map_err(Error::io("remove", dir))
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The next run removes what cannot be removed now. It needs the lock file to recognize the checkpoint.
        if remove_checkpoint(&*self.vfs, &self.checkpoint()).is_ok() {
            let _ = self.vfs.remove(&self.dir.join(LOCK_NAME));
        }
        self.lock = None;
        let _ = self.vfs.remove_dir(&self.dir);
    }
}
