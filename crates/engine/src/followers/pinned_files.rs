//! The files that followers use, as the owner of the database sees them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{FOLLOWERS, FileName};

use crate::error::{Error, Result};
use crate::followers::pin::{FollowerPaths, LOCK_SUFFIX};
use crate::format::follower_files::decode_follower_files;
use crate::vfs::Vfs;

/// The files that the followers of a database may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PinnedFiles {
    /// Number of open followers.
    pub(crate) followers: u64,
    /// File numbers of the tables and blob files that followers use. `None` if they are not known, so that no file can be
    /// deleted.
    pub(crate) numbers: Option<BTreeSet<u64>>,
}

impl PinnedFiles {
    /// Reads the files of all followers. Removes the files of followers whose process has ended.
    pub(crate) fn read(vfs: &dyn Vfs, dir: &Path) -> Result<PinnedFiles> {
        let mut pinned = PinnedFiles { followers: 0, numbers: Some(BTreeSet::new()) };
        let listed = list_followers(vfs, dir)?;
        for paths in &listed {
            if remove_ended_follower(vfs, paths)? {
                continue;
            }
            pinned.followers += 1;
            let numbers = read_list(vfs, &paths.files)?;
            pinned.numbers = pinned.numbers.zip(numbers).map(|(mut all, numbers)| {
                all.extend(numbers);
                all
            });
        }
        if !listed.is_empty() && pinned.followers == 0 {
            // Fails if a follower was opened meanwhile.
            let _ = vfs.remove_dir(&dir.join(FOLLOWERS));
        }
        Ok(pinned)
    }

    /// Returns whether a follower may use this file.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        if failpoint::is_on(Failpoint::FollowerFilesDeleted) {
            return false;
        }
        let Some(numbers) = &self.numbers else { return true };
        let name = path.file_name().and_then(|name| name.to_str()).and_then(FileName::parse);
        match name {
            Some(FileName::Table(number) | FileName::Blob(number)) => numbers.contains(&number),
            _ => false,
        }
    }
}

/// Returns the lock file of an open follower, if there is one.
pub(crate) fn find_open_follower(vfs: &dyn Vfs, dir: &Path) -> Result<Option<PathBuf>> {
    for paths in list_followers(vfs, dir)? {
        if !remove_ended_follower(vfs, &paths)? {
            return Ok(Some(paths.lock));
        }
    }
    Ok(None)
}

fn list_followers(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<FollowerPaths>> {
    let path = dir.join(FOLLOWERS);
    match vfs.list(&path) {
        Ok(names) => {
            let locks = names.iter().filter_map(|name| name.strip_suffix(LOCK_SUFFIX));
            Ok(locks.map(|name| FollowerPaths::new(dir, name)).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("list", &path, error)),
    }
}

/// Removes the files of a follower if its lock is free. Returns whether it was free.
fn remove_ended_follower(vfs: &dyn Vfs, paths: &FollowerPaths) -> Result<bool> {
    match vfs.lock(&paths.lock) {
        Ok(_lock) => paths.remove_all(vfs).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        // The last follower has removed the directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::io("lock", &paths.lock, error)),
    }
}

/// Reads the numbers in the list of a follower. Returns `None` if the list is missing or damaged.
fn read_list(vfs: &dyn Vfs, path: &Path) -> Result<Option<BTreeSet<u64>>> {
    let read = || -> io::Result<Vec<u8>> {
        let file = vfs.open(path)?;
        let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
        let mut text = vec![0; len];
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(decode_follower_files(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_base::sync::Arc;

    use crate::followers::FollowerPin;
    use crate::vfs::MemVfs;

    #[test]
    fn pinned_files_follow_lists_and_locks() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
        let dir = Path::new("db");
        vfs.create_dir(dir).unwrap();
        let read = || {
            let PinnedFiles { followers, numbers } = PinnedFiles::read(&*vfs, dir).unwrap();
            (followers, numbers.map(Vec::from_iter))
        };
        assert_eq!(read(), (0, Some(vec![])));
        let first = FollowerPin::create(&vfs, dir).unwrap();
        assert_eq!(read(), (1, None));
        first.pin(BTreeSet::from([3, 7])).unwrap();
        assert_eq!(read(), (1, Some(vec![3, 7])));
        let second = FollowerPin::create(&vfs, dir).unwrap();
        assert_eq!(read(), (2, None));
        second.pin(BTreeSet::from([9])).unwrap();
        assert_eq!(read(), (2, Some(vec![3, 7, 9])));
        first.pin_all().unwrap();
        assert_eq!(read(), (2, None));
        first.restore().unwrap();
        assert_eq!(read(), (2, Some(vec![3, 7, 9])));
        first.unpin_others(BTreeSet::from([7])).unwrap();
        assert_eq!(read(), (2, Some(vec![7, 9])));
        first.unpin_others(BTreeSet::from([7])).unwrap();
        first.pin_all().unwrap();
        first.pin(BTreeSet::from([3, 7])).unwrap();
        assert_eq!(read(), (2, Some(vec![3, 7, 9])));
        first.pin_all().unwrap();
        assert_eq!(read(), (2, None));
        drop(first);
        assert_eq!(read(), (1, Some(vec![9])));
        drop(second);
        assert!(!vfs.exists(&dir.join(FOLLOWERS)).unwrap());
    }

    #[test]
    fn pinned_files_of_killed_follower_are_removed() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
        let dir = Path::new("db");
        vfs.create_dir(dir).unwrap();
        vfs.create_dir(&dir.join(FOLLOWERS)).unwrap();
        for name in ["000001.lock", "000001.files", "000001.old", "000001.tmp"] {
            vfs.create(&dir.join(FOLLOWERS).join(name)).unwrap();
        }
        let follower = FollowerPin::create(&vfs, dir).unwrap();
        let all = PinnedFiles { followers: 1, numbers: None };
        assert_eq!(PinnedFiles::read(&*vfs, dir).unwrap(), all);
        assert!(find_open_follower(&*vfs, dir).unwrap().is_some());
        drop(follower);
        vfs.create_dir(&dir.join(FOLLOWERS)).unwrap();
        for name in ["000001.lock", "000001.files", "000001.old", "000001.tmp"] {
            vfs.create(&dir.join(FOLLOWERS).join(name)).unwrap();
        }
        assert_eq!(find_open_follower(&*vfs, dir).unwrap(), None);
        let none = PinnedFiles { followers: 0, numbers: Some(BTreeSet::new()) };
        assert_eq!(PinnedFiles::read(&*vfs, dir).unwrap(), none);
    }

    #[test]
    fn pinned_files_contain_tables_and_blob_files() {
        let pinned = PinnedFiles { followers: 1, numbers: Some(BTreeSet::from([7])) };
        assert!(pinned.contains(Path::new("db/000007.sst")));
        assert!(pinned.contains(Path::new("db/000007.blob")));
        assert!(!pinned.contains(Path::new("db/000007.wal")));
        assert!(!pinned.contains(Path::new("db/000008.sst")));
        let all = PinnedFiles { followers: 1, numbers: None };
        assert!(all.contains(Path::new("db/000008.wal")));
    }
}
