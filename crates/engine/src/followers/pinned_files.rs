//! Reads which files the followers of a database use.

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
            if remove_if_ended(vfs, paths)? {
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
        if !remove_if_ended(vfs, &paths)? {
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

/// Returns whether a follower has ended. Removes its files, unless they belong to another user.
fn remove_if_ended(vfs: &dyn Vfs, paths: &FollowerPaths) -> Result<bool> {
    let locked = match vfs.lock(&paths.lock) {
        Ok(_lock) => return paths.remove_all(vfs).map(|()| true),
        // A shared lock needs only the permission to read the file.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            vfs.lock_shared(&paths.lock).map(drop)
        }
        Err(error) => Err(error),
    };
    let Err(error) = locked else { return Ok(true) };
    match error.kind() {
        // The follower is open, or its state is unknown.
        io::ErrorKind::WouldBlock | io::ErrorKind::PermissionDenied => Ok(false),
        // The last follower has removed the directory.
        io::ErrorKind::NotFound => Ok(true),
        _ => Err(Error::io("lock", &paths.lock, error)),
    }
}

/// Reads the numbers in the list of a follower. Returns `None` if the list is missing, damaged or not readable for this
/// user.
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
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Ok(None),
            _ => Err(Error::io("read", path, error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_base::sync::Arc;

    use crate::followers::FollowerPin;
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::layer::VfsLayer;

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

    /// A file system whose user lacks the permission to write the files of a follower, and maybe also to read them.
    #[derive(Debug)]
    struct OtherUser {
        disk: Arc<dyn Vfs>,
        can_read: bool,
    }

    impl VfsLayer for OtherUser {
        fn inner(&self) -> &dyn Vfs {
            &*self.disk
        }

        fn before_call(&self, call: VfsCall, path: &Path) -> io::Result<()> {
            let is_of_follower = path.parent().is_some_and(|dir| dir.ends_with(FOLLOWERS));
            let is_denied = match call {
                VfsCall::Lock | VfsCall::Remove => self.disk.exists(path)?,
                VfsCall::LockShared | VfsCall::Open => !self.can_read,
                _ => false,
            };
            match is_of_follower && is_denied {
                true => Err(io::ErrorKind::PermissionDenied.into()),
                false => Ok(()),
            }
        }
    }

    /// The owner failed to read the files of a follower of another user, so it deleted no file and failed a write.
    #[test]
    fn pinned_files_of_other_user_are_read_or_unknown() {
        let disk: Arc<dyn Vfs> = Arc::new(MemVfs::new());
        let dir = Path::new("db");
        disk.create_dir(dir).unwrap();
        let follower = FollowerPin::create(&disk, dir).unwrap();
        follower.pin(BTreeSet::from([3])).unwrap();
        let other = |can_read| OtherUser { disk: Arc::clone(&disk), can_read };
        let read = |can_read| PinnedFiles::read(&other(can_read), dir).unwrap();
        assert_eq!(read(true), PinnedFiles { followers: 1, numbers: Some(BTreeSet::from([3])) });
        assert_eq!(read(false), PinnedFiles { followers: 1, numbers: None });
        let vfs: Arc<dyn Vfs> = Arc::new(other(true));
        drop(FollowerPin::create(&vfs, dir).unwrap());
        disk.remove(&dir.join(FOLLOWERS).join("000002.lock")).unwrap();
        let lock = dir.join(FOLLOWERS).join("000001.lock");
        drop(follower);
        disk.create_dir(&dir.join(FOLLOWERS)).unwrap();
        disk.create(&lock).unwrap();
        assert_eq!(read(true), PinnedFiles { followers: 0, numbers: Some(BTreeSet::new()) });
        assert_eq!(find_open_follower(&other(true), dir).unwrap(), None);
        assert_eq!(find_open_follower(&other(false), dir).unwrap(), Some(lock));
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
