//! Directories of snapshots.

use std::path::{Path, PathBuf};

use lsmx::vfs::Vfs;
use lsmx_base::sync::{Arc, AtomicBool, Ordering};
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::runtime::Handle;

use crate::error::Error;

/// End of the name of the journal of a partially received snapshot, after the name of its directory.
const JOURNAL_SUFFIX: &str = ".frames";

/// The directory that contains one directory per snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotRoot {
    pub(crate) vfs: Arc<dyn Vfs>,
    path: PathBuf,
}

impl SnapshotRoot {
    /// Opens the directory, or creates it. Its parent must exist.
    pub(crate) fn open(vfs: Arc<dyn Vfs>, path: PathBuf) -> Result<SnapshotRoot, Error> {
        if !vfs.exists(&path).map_err(Error::io("look for", &path))? {
            vfs.create_dir(&path).map_err(Error::io("create", &path))?;
            let parent = path.parent().unwrap_or(Path::new(""));
            vfs.sync_dir(parent).map_err(Error::io("sync", parent))?;
        }
        Ok(SnapshotRoot { vfs, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a new directory with a random name, which does not exist yet.
    pub(crate) fn new_dir(&self) -> Result<SnapshotDir, Error> {
        let stream_key = SysRng.try_next_u64().map_err(|error| {
            Error::io("draw a random name in", &self.path)(std::io::Error::other(error))
        })?;
        Ok(self.dir(format!("{stream_key:016x}"), stream_key, false))
    }

    /// Returns the directory with this name, or `None` if it contains no snapshot.
    pub(crate) fn existing_dir(&self, name: &str) -> Option<SnapshotDir> {
        let stream_key = u64::from_str_radix(name, 16).ok()?;
        let exists = self.vfs.exists(&self.path.join(name)).ok()?;
        exists.then(|| self.dir(name.to_owned(), stream_key, true))
    }

    fn dir(&self, name: String, stream_key: u64, is_kept: bool) -> SnapshotDir {
        let path = self.path.join(&name);
        let is_kept = AtomicBool::new(is_kept);
        SnapshotDir { root: self.clone(), name, path, stream_key, is_kept }
    }

    /// Removes all directories and files except the directory `current` and one partially received snapshot, which is returned.
    pub(crate) fn remove_others(
        &self,
        current: Option<&str>,
    ) -> Result<Option<Arc<SnapshotDir>>, Error> {
        let names = self.vfs.list(&self.path).map_err(Error::io("list", &self.path))?;
        let with_journal = names.iter().filter_map(|name| name.strip_suffix(JOURNAL_SUFFIX));
        let partial = with_journal
            .filter(|name| Some(*name) != current && names.iter().any(|dir| dir == *name))
            .find_map(|name| self.existing_dir(name));
        let is_partial = |name: &str| {
            let dir = name.strip_suffix(JOURNAL_SUFFIX).unwrap_or(name);
            partial.as_ref().is_some_and(|partial| partial.name == dir)
        };
        for name in names.iter().filter(|name| Some(name.as_str()) != current) {
            if !is_partial(name) {
                remove_dir_or_file(&*self.vfs, &self.path.join(name));
            }
        }
        Ok(partial.map(Arc::new))
    }

    /// Makes the names of new directories and journals durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.vfs.sync_dir(&self.path).map_err(Error::io("sync", &self.path))
    }
}

/// A directory with the files of a snapshot. Dropping it removes the directory and its journal, unless the snapshot is the
/// current one or a partially received one.
#[derive(Debug)]
pub(crate) struct SnapshotDir {
    pub(crate) root: SnapshotRoot,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Random number of this copy of the snapshot. It seeds the checksums of the stream.
    pub(crate) stream_key: u64,
    /// Whether the directory remains on the disk. Only the owner of the last reference reads it, after all writers.
    is_kept: AtomicBool,
}

impl SnapshotDir {
    /// Keeps the directory on the disk, or lets the drop of the last reference remove it.
    pub(crate) fn set_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Release);
    }

    /// Returns the path of the journal. It is not in the directory, whose files are those of the snapshot.
    pub(crate) fn journal_path(&self) -> PathBuf {
        self.root.path.join(format!("{}{JOURNAL_SUFFIX}", self.name))
    }

    /// Removes the journal, because no stream continues the directory.
    pub(crate) fn remove_journal(&self) {
        // The next open removes a journal that cannot be removed now.
        let _ = self.root.vfs.remove(&self.journal_path());
    }
}

impl Drop for SnapshotDir {
    fn drop(&mut self) {
        if self.is_kept.load(Ordering::Acquire) {
            return;
        }
        let (vfs, path) = (Arc::clone(&self.root.vfs), std::mem::take(&mut self.path));
        let journal_path = self.journal_path();
        let remove = move || {
            let _ = vfs.remove(&journal_path);
            remove_dir_or_file(&*vfs, &path);
        };
        // The last reference may be dropped by a task, which must not wait for the file system.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

/// Removes a directory and its files, or a file. The next open removes files and directories that cannot be removed now.
fn remove_dir_or_file(vfs: &dyn Vfs, path: &Path) {
    let Ok(names) = vfs.list(path) else {
        let _ = vfs.remove(path);
        return;
    };
    for name in names {
        let _ = vfs.remove(&path.join(name));
    }
    let _ = vfs.remove_dir(path);
}
