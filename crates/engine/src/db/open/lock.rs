//! Locks of a database directory.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::LOCK;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::vfs::{LockGuard, Vfs, missing_dir_reason};

/// Exclusive lock of a database directory during an open, a checkpoint or a repair.
///
/// Dropping the claim releases the lock, and removes the lock file and the directories that the claim created.
/// [`DirectoryClaim::into_lock`] keeps them.
pub(crate) struct DirectoryClaim {
    vfs: Arc<dyn Vfs>,
    /// Directories that this claim created, outermost first.
    dirs: Vec<PathBuf>,
    lock: PathBuf,
    /// Whether this claim created the lock file.
    lock_created: bool,
    guard: Option<Box<dyn LockGuard>>,
}

impl DirectoryClaim {
    /// Locks an existing directory.
    pub(crate) fn lock_existing(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<DirectoryClaim> {
        let mut claim = DirectoryClaim::new(vfs, dir);
        claim.lock()?;
        Ok(claim)
    }

    /// Creates a directory and its missing parents, and locks the directory.
    pub(crate) fn create_and_lock(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<DirectoryClaim> {
        loop {
            let mut claim = DirectoryClaim::new(vfs, dir);
            claim.create_dir(dir)?;
            match claim.lock() {
                // Another process has removed the directory after a failed open. Create it again.
                Err(Error::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound
                        && !vfs.exists(dir).unwrap_or(true) => {}
                locked => return locked.map(|()| claim),
            }
        }
    }

    fn new(vfs: &Arc<dyn Vfs>, dir: &Path) -> DirectoryClaim {
        let (dirs, lock) = (Vec::new(), dir.join(LOCK));
        DirectoryClaim { vfs: Arc::clone(vfs), dirs, lock, lock_created: false, guard: None }
    }

    fn lock(&mut self) -> Result<()> {
        let path = &self.lock;
        let exists = self.vfs.exists(path);
        self.lock_created =
            !exists.map_err(|error| Error::io_in_database("look for", path, error))?;
        let guard = self.vfs.lock(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::Locked { path: path.clone() },
            _ => Error::io("lock", path, error),
        })?;
        self.guard = Some(guard);
        Ok(())
    }

    fn create_dir(&mut self, dir: &Path) -> Result<()> {
        let exists = self.vfs.exists(dir).map_err(|error| Error::io("look for", dir, error))?;
        if exists {
            return match self.vfs.list(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let why = missing_dir_reason(&*self.vfs, dir);
                    Err(Error::NotADatabase { path: dir.to_owned(), why })
                }
                // If the directory has another error, taking the lock reports it.
                _ => self.sync_existing_name(dir),
            };
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_dir(parent)?;
        }
        match self.vfs.create_dir(dir) {
            Ok(()) => self.dirs.push(dir.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", dir, error)),
        }
        let parent = parent.unwrap_or(Path::new("."));
        self.sync_dir(parent).map_err(|error| Error::io("sync", parent, error))
    }

    /// Makes the name of an existing directory durable. The process that created the directory may not have synced the
    /// parent.
    fn sync_existing_name(&self, dir: &Path) -> Result<()> {
        let parent = match (dir.file_name(), dir.parent()) {
            (Some(_), Some(parent)) if parent.as_os_str().is_empty() => PathBuf::from("."),
            (Some(_), Some(parent)) => parent.to_owned(),
            // The path is `/`, or ends with `.` or `..`.
            _ => dir.join(".."),
        };
        self.sync_dir(&parent).or_else(|error| match error.kind() {
            // This process may not read the parent, or the file system of the parent has no sync, as above some mount
            // points. Such a process has not created the directory.
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::Unsupported => Ok(()),
            _ => Err(Error::io("sync", &parent, error)),
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if failpoint::is_on(Failpoint::DirectoryNotSynced) {
            return Ok(());
        }
        self.vfs.sync_dir(dir)
    }

    /// Returns the lock. The created directories and the lock file are kept.
    pub(crate) fn into_lock(mut self) -> Box<dyn LockGuard> {
        self.dirs.clear();
        self.guard.take().expect("both constructors take the lock, and only this call releases it")
    }
}

impl Drop for DirectoryClaim {
    fn drop(&mut self) {
        if failpoint::is_on(Failpoint::FailedOpenLeavesFiles) {
            return;
        }
        // The claim still holds the lock. Another process may have opened the lock file and may wait for the lock.
        // After it gets the lock, that process checks whether the path still names the same file. This check exists for
        // Unix only.
        if self.lock_created && self.guard.is_some() && cfg!(unix) {
            // If the removal fails, the remaining lock file is not locked and does not block a later open.
            let _ = self.vfs.remove(&self.lock);
        }
        for dir in self.dirs.iter().rev() {
            // The removal fails if the directory has files, which another process or a manifest may use.
            let _ = self.vfs.remove_dir(dir);
        }
    }
}

/// Takes a shared lock of a database directory, which excludes writers. Returns `None` if the directory has no lock
/// file, as in a copy of a database. Does not create a lock file.
pub(crate) fn lock_shared(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Box<dyn LockGuard>>> {
    let path = dir.join(LOCK);
    match vfs.lock_shared(&path) {
        Ok(guard) => Ok(Some(guard)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::WouldBlock => Err(Error::Locked { path }),
            _ => Err(Error::io_in_database("lock", &path, error)),
        },
    }
}
