//! The files by which a follower prevents the owner from deleting files.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FOLLOWERS;
use lsmx_base::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::format::follower_files::encode_follower_files;
use crate::vfs::{LockGuard, Vfs};

/// Paths of the files of one follower.
#[derive(Debug)]
pub(super) struct FollowerPaths {
    pub(super) lock: PathBuf,
    pub(super) files: PathBuf,
    old: PathBuf,
    temporary: PathBuf,
}

impl FollowerPaths {
    /// `name` is the name of the lock file without its suffix.
    pub(super) fn new(dir: &Path, name: &str) -> FollowerPaths {
        let path = |suffix: &str| dir.join(FOLLOWERS).join(format!("{name}{suffix}"));
        let (lock, files) = (path(LOCK_SUFFIX), path(".files"));
        FollowerPaths { lock, files, old: path(".old"), temporary: path(".tmp") }
    }

    /// Removes all files. The caller must hold the lock.
    pub(super) fn remove_all(&self, vfs: &dyn Vfs) -> Result<()> {
        for path in [&self.temporary, &self.old, &self.files] {
            remove_if_exists(vfs, path)?;
        }
        // Other systems keep the lock file. It is empty, and the next follower can lock it.
        if cfg!(unix) { remove_if_exists(vfs, &self.lock) } else { Ok(()) }
    }
}

/// Suffix of the lock files.
pub(super) const LOCK_SUFFIX: &str = ".lock";

/// Maximum number of times that [`FollowerPin::create`] creates the directory. It may remain missing, because its name can
/// be a symbolic link without a target.
const ATTEMPTS_MAX: u32 = 100;

/// The files of one open follower. Dropping the value removes them.
#[derive(Debug)]
pub(crate) struct FollowerPin {
    vfs: Arc<dyn Vfs>,
    paths: FollowerPaths,
    /// File numbers in the last written `N.files`. `None` before the first write.
    listed: Mutex<Option<BTreeSet<u64>>>,
    _lock: Box<dyn LockGuard>,
}

impl FollowerPin {
    /// Creates the files of a new follower. The owner deletes no file from now on.
    pub(crate) fn create(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<FollowerPin> {
        let (mut number, mut missing) = (1, 0);
        loop {
            let paths = FollowerPaths::new(dir, &format!("{number:06}"));
            match vfs.lock(&paths.lock) {
                Ok(lock) => {
                    // A killed follower may have left its list.
                    remove_if_exists(vfs.as_ref(), &paths.files)?;
                    let (vfs, listed) = (Arc::clone(vfs), Mutex::default());
                    return Ok(FollowerPin { vfs, paths, listed, _lock: lock });
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => number += 1,
                    // The file is that of a follower of another user.
                    io::ErrorKind::PermissionDenied if vfs.exists(&paths.lock).unwrap_or(false) => {
                        number += 1;
                    }
                    // The directory does not exist yet, or the last follower has removed it.
                    io::ErrorKind::NotFound if missing < ATTEMPTS_MAX => {
                        missing += 1;
                        create_follower_dir(vfs.as_ref(), dir)?;
                    }
                    _ => return Err(Error::io("lock", &paths.lock, error)),
                },
            }
        }
    }

    /// Prevents the deletion of all files, until the next call of [`FollowerPin::pin`] or [`FollowerPin::restore`].
    pub(crate) fn pin_all(&self) -> Result<()> {
        if failpoint::is_on(Failpoint::FollowerReadsUnpinned) {
            return Ok(());
        }
        match self.rename(&self.paths.files, &self.paths.old) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        }
    }

    /// Allows the owner to delete all files except these tables and blob files. Calls must not run concurrently.
    ///
    /// # Errors
    /// Fails if the list cannot be written. The caller must then call [`FollowerPin::restore`].
    pub(crate) fn pin(&self, numbers: BTreeSet<u64>) -> Result<()> {
        if self.is_listed(&numbers) {
            return self.restore();
        }
        self.write_list(numbers)?;
        // If the removal fails, the next call of `pin_all` replaces the file.
        let _ = remove_if_exists(self.vfs.as_ref(), &self.paths.old);
        Ok(())
    }

    /// Allows the deletion of all files except these, which must be in the last list. No other function of the pin may
    /// run concurrently.
    ///
    /// # Errors
    /// Fails if the list cannot be written. The last list then remains valid.
    pub(crate) fn unpin_others(&self, numbers: BTreeSet<u64>) -> Result<()> {
        if self.is_listed(&numbers) { Ok(()) } else { self.write_list(numbers) }
    }

    fn is_listed(&self, numbers: &BTreeSet<u64>) -> bool {
        self.listed.lock().as_ref() == Some(numbers)
    }

    fn write_list(&self, numbers: BTreeSet<u64>) -> Result<()> {
        let (vfs, path) = (self.vfs.as_ref(), &self.paths.temporary);
        remove_if_exists(vfs, path)?;
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        let written = file.append(encode_follower_files(&numbers).as_bytes());
        written.map_err(|error| Error::io("append to", path, error))?;
        self.rename(path, &self.paths.files)?;
        *self.listed.lock() = Some(numbers);
        Ok(())
    }

    /// Makes the last list valid again, so that the owner may delete all files that are not listed. The follower must
    /// not use such files.
    ///
    /// This call needs no disk space. If the disk is full, the owner can therefore delete the other files.
    pub(crate) fn restore(&self) -> Result<()> {
        if failpoint::is_on(Failpoint::FollowerReadsUnpinned) {
            return Ok(());
        }
        self.rename(&self.paths.old, &self.paths.files)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let renamed = self.vfs.rename(from, to);
        renamed.map_err(|error| Error::io("rename", from, error))
    }
}

impl Drop for FollowerPin {
    fn drop(&mut self) {
        // After an error, the owner removes the files, because their lock is free.
        let _ = self.paths.remove_all(self.vfs.as_ref());
        if let Some(dir) = self.paths.lock.parent() {
            // Fails if other followers exist.
            let _ = self.vfs.remove_dir(dir);
        }
    }
}

/// Creates the directory `FOLLOWERS`, unless it exists.
fn create_follower_dir(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    let path = dir.join(FOLLOWERS);
    match vfs.create_dir(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("create", &path, error))
        }
        _ => Ok(()),
    }
}

fn remove_if_exists(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    match vfs.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, error))
        }
        _ => Ok(()),
    }
}
