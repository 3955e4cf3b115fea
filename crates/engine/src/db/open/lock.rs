//! The lock of a database that is being opened or created.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::file_name::LOCK;
use crate::vfs::{LockGuard, Vfs, missing_dir_reason};

/// Exclusive access to a database directory until an open, a checkpoint or a repair has succeeded.
///
/// Dropping the claim removes the lock file and the directories that it created, and releases the lock.
/// [`Claim::keep`] leaves them.
pub(crate) struct Claim {
    vfs: Arc<dyn Vfs>,
    /// Directories that this claim created, outermost first.
    dirs: Vec<PathBuf>,
    lock: PathBuf,
    /// There was no lock file before.
    lock_created: bool,
    guard: Option<Box<dyn LockGuard>>,
}

impl Claim {
    /// Locks an existing directory.
    ///
    /// # Errors
    /// [`Error::Locked`]; a file system error.
    pub(crate) fn take(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Claim> {
        let mut claim = Claim::new(vfs, dir);
        claim.lock()?;
        Ok(claim)
    }

    /// Creates a directory and its parents where they are missing, and locks it.
    ///
    /// # Errors
    /// As [`Claim::take`]; [`Error::NotADatabase`] for a symbolic link to a missing directory.
    pub(crate) fn create(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Claim> {
        loop {
            let mut claim = Claim::new(vfs, dir);
            claim.create_dir(dir)?;
            match claim.lock() {
                // The failed open of another process has removed the directory that it had created.
                Err(Error::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound
                        && !vfs.exists(dir).unwrap_or(true) => {}
                locked => return locked.map(|()| claim),
            }
        }
    }

    fn new(vfs: &Arc<dyn Vfs>, dir: &Path) -> Claim {
        let (dirs, lock) = (Vec::new(), dir.join(LOCK));
        Claim { vfs: Arc::clone(vfs), dirs, lock, lock_created: false, guard: None }
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
                // The lock fails with any other error, too.
                _ => Ok(()),
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
        if failpoint::is_on(Failpoint::DirectoryNotSynced) {
            return Ok(());
        }
        self.vfs.sync_dir(parent).map_err(|error| Error::io("sync", parent, error))
    }

    /// Leaves the directories and the lock file where they are, and returns the lock.
    pub(crate) fn keep(mut self) -> Box<dyn LockGuard> {
        self.dirs.clear();
        self.guard.take().expect("both constructors take the lock, and only this call releases it")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if failpoint::is_on(Failpoint::FailedOpenLeavesFiles) {
            return;
        }
        // The lock is still held, so the file is not in use. A process that has opened it already finds after
        // locking it that it has lost its name. That check needs file identities, which only Unix has here.
        if self.lock_created && self.guard.is_some() && cfg!(unix) {
            // If this fails, an unlocked file stays; it blocks no later open.
            let _ = self.vfs.remove(&self.lock);
        }
        for dir in self.dirs.iter().rev() {
            // A directory with files stays: they belong to another process or to a manifest in doubt.
            let _ = self.vfs.remove_dir(dir);
        }
    }
}
