//! Obsolete files: files that are no longer part of the durable state. This module also tracks which files are open.
//!
//! Readers never delete files. They queue the paths, and a background job deletes the files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, Signal};
use lsmx_compaction::FileId;

use crate::followers::{FollowerFileMetrics, FollowerPin};

/// Registration of an open table or blob file.
///
/// A registered file is not deleted, because the descriptor cache may close its descriptor and open the file again.
/// Dropping the guard queues the file for deletion if it is obsolete.
#[derive(Debug)]
pub(crate) struct OpenFileGuard {
    id: FileId,
    path: PathBuf,
    bytes: u64,
    is_obsolete: AtomicBool,
    obsolete_files: Arc<ObsoleteFiles>,
}

impl OpenFileGuard {
    /// Registers an open file with a size of `bytes` bytes.
    pub(crate) fn new(
        id: FileId,
        path: PathBuf,
        bytes: u64,
        obsolete_files: Arc<ObsoleteFiles>,
    ) -> OpenFileGuard {
        obsolete_files.add_open_file(id);
        OpenFileGuard { id, path, bytes, is_obsolete: AtomicBool::new(false), obsolete_files }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Marks the file as obsolete. The caller must have removed the file from the manifest.
    pub(crate) fn set_obsolete(&self) {
        if !self.is_obsolete.swap(true, Ordering::AcqRel) {
            self.obsolete_files.held_count.fetch_add(1, Ordering::Relaxed);
            self.obsolete_files.held_bytes.fetch_add(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenFileGuard {
    fn drop(&mut self) {
        let is_obsolete = self.is_obsolete.load(Ordering::Acquire);
        if is_obsolete {
            self.obsolete_files.held_count.fetch_sub(1, Ordering::Relaxed);
            self.obsolete_files.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.obsolete_files.remove_open_file(self.id, std::mem::take(&mut self.path), is_obsolete);
    }
}

/// Queue of files to delete, and the set of open files.
#[derive(Debug, Default)]
pub(crate) struct ObsoleteFiles {
    deletable: Mutex<Vec<PathBuf>>,
    failed: Mutex<FailedDeletions>,
    /// Number of [`DeletionPause`] values. While it is not 0, no file is deleted.
    pauses: AtomicU64,
    /// Notified after each addition to `deletable`, so that a background thread deletes the files.
    signal: Signal,
    /// Open table and blob files.
    open: Mutex<HashMap<FileId, OpenFileState>>,
    /// Obsolete files that followers used at the last attempt to delete files, with their sizes in bytes.
    used_by_followers: Mutex<BTreeMap<PathBuf, u64>>,
    /// Metrics of these files after the last attempt.
    follower_files: Mutex<FollowerFileMetrics>,
    /// Prevents the owner of the database from deleting the files that this follower uses. Set in a follower only.
    /// Every open file holds a reference to this value, so iterators of a closed follower can still read their files.
    follower_pin: OnceLock<FollowerPin>,
    /// Number of obsolete files that old versions still hold.
    held_count: AtomicU64,
    /// Total size in bytes of the files in `held_count`.
    held_bytes: AtomicU64,
}

/// Files that could not be deleted.
#[derive(Debug, Default)]
struct FailedDeletions {
    paths: BTreeSet<PathBuf>,
    /// Time of the next attempt to delete them, in microseconds.
    retry_at_us: u64,
    /// Pause before the attempt after the next one, in microseconds.
    pause_us: u64,
}

/// Pause before the first repetition of a failed deletion, in microseconds. With each further repetition, the pause
/// doubles, up to [`RETRY_US_MAX`].
const RETRY_US_FIRST: u64 = 1_000_000;
/// Maximum pause between two attempts to delete a file, in microseconds.
const RETRY_US_MAX: u64 = 60_000_000;

/// State of an open table or blob file.
#[derive(Debug, Default)]
struct OpenFileState {
    /// Number of registrations. Two states of a follower may open the same file.
    guards: usize,
    /// Whether the file must be deleted after it is closed.
    is_deleted: bool,
}

/// Prevents the deletion of files until it is dropped.
#[derive(Debug)]
pub(crate) struct DeletionPause(Arc<ObsoleteFiles>);

impl Drop for DeletionPause {
    fn drop(&mut self) {
        self.0.pauses.fetch_sub(1, Ordering::AcqRel);
        self.0.signal.notify();
    }
}

impl ObsoleteFiles {
    /// Creates an empty queue that notifies `signal` after each addition.
    pub(crate) fn new(signal: Signal) -> ObsoleteFiles {
        ObsoleteFiles { signal, ..ObsoleteFiles::default() }
    }

    /// Queues a file for deletion.
    pub(crate) fn discard(&self, path: PathBuf) {
        self.deletable.lock().push(path);
        self.signal.notify();
    }

    /// Records that a file could not be deleted. Returns false if an earlier attempt has also failed.
    pub(crate) fn add_failed_deletion(&self, path: PathBuf, now_us: u64) -> bool {
        let mut failed = self.failed.lock();
        if failed.paths.is_empty() {
            failed.retry_at_us = now_us.saturating_add(RETRY_US_FIRST);
            failed.pause_us = 2 * RETRY_US_FIRST;
        }
        failed.paths.insert(path)
    }

    /// Records that a file was deleted.
    pub(crate) fn remove_failed_deletion(&self, path: &Path) {
        self.failed.lock().paths.remove(path);
    }

    /// Queues the files again that could not be deleted, if the pause after the last attempt has ended.
    pub(crate) fn retry_failed_deletions(&self, now_us: u64) {
        let paths: Vec<PathBuf> = {
            let mut failed = self.failed.lock();
            if failed.paths.is_empty() || now_us < failed.retry_at_us {
                return;
            }
            failed.retry_at_us = now_us.saturating_add(failed.pause_us);
            failed.pause_us = RETRY_US_MAX.min(2 * failed.pause_us);
            failed.paths.iter().cloned().collect()
        };
        self.deletable.lock().extend(paths);
        self.signal.notify();
    }

    /// Queues a table or blob file that is no longer part of the durable state. If the file is open, it is queued when
    /// it is closed.
    pub(crate) fn discard_table(&self, id: FileId, path: PathBuf) {
        match self.open.lock().get_mut(&id) {
            Some(file) => file.is_deleted = true,
            None => self.deletable.lock().push(path),
        }
        self.signal.notify();
    }

    /// Returns whether [`ObsoleteFiles::take_deletable_files`] would return a file.
    pub(crate) fn has_deletable_files(&self) -> bool {
        let deletable = self.deletable.lock();
        !deletable.is_empty() && self.pauses.load(Ordering::Acquire) == 0
    }

    /// Pauses the deletion of files until the returned value is dropped. Files that are part of the durable state at
    /// this time, or become part of it later, are therefore not deleted.
    ///
    /// This works because a file is queued only after the manifest edit that removes it.
    pub(crate) fn pause_deletions(self: &Arc<Self>) -> DeletionPause {
        // The lock orders this increment after every call of `take_deletable_files` that has already returned files.
        let _deletable = self.deletable.lock();
        self.pauses.fetch_add(1, Ordering::AcqRel);
        DeletionPause(Arc::clone(self))
    }

    /// Removes and returns all queued paths, and those of the files that followers used at the last attempt, with the sizes
    /// of these files in bytes. Returns none while deletions are paused.
    ///
    /// The paths are sorted. Files are queued when the last version that holds them is dropped, in the order of a hash
    /// map, and the order of deletions determines which files are left after a power loss.
    pub(crate) fn take_deletable_files(&self) -> Vec<(PathBuf, Option<u64>)> {
        let mut deletable = self.deletable.lock();
        if self.pauses.load(Ordering::Acquire) > 0 {
            return Vec::new();
        }
        let used = std::mem::take(&mut *self.used_by_followers.lock());
        // A resume queues used files again.
        deletable.retain(|path| !used.contains_key(path));
        let queued = deletable.drain(..).map(|path| (path, None));
        let used = used.into_iter().map(|(path, bytes)| (path, Some(bytes)));
        let mut files: Vec<_> = queued.chain(used).collect();
        files.sort_unstable();
        files
    }

    /// Keeps files that followers use, with their sizes in bytes, until the next deletion.
    ///
    /// Returns the metrics of all kept files if the number of followers has changed.
    pub(crate) fn keep_for_followers(
        &self,
        followers: u64,
        files: impl IntoIterator<Item = (PathBuf, u64)>,
    ) -> Option<FollowerFileMetrics> {
        let mut used = self.used_by_followers.lock();
        used.extend(files);
        let metrics = FollowerFileMetrics {
            followers,
            files: len_u64(used.len()),
            file_bytes: used.values().sum(),
        };
        let before = std::mem::replace(&mut *self.follower_files.lock(), metrics);
        (before.followers != followers).then_some(metrics)
    }

    /// Returns the metrics of the files that followers used at the last attempt to delete files.
    pub(crate) fn follower_files(&self) -> FollowerFileMetrics {
        *self.follower_files.lock()
    }

    /// Queues the files again that followers used at the last attempt.
    pub(crate) fn retry_files_of_followers(&self) {
        let files = std::mem::take(&mut *self.used_by_followers.lock());
        self.deletable.lock().extend(files.into_keys());
    }

    /// Sets the pin that prevents the owner from deleting the files of this follower. Must be called at most once.
    pub(crate) fn set_follower_pin(&self, pin: FollowerPin) {
        let _ = self.follower_pin.set(pin);
    }

    /// Returns the value set by [`ObsoleteFiles::set_follower_pin`].
    pub(crate) fn follower_pin(&self) -> Option<&FollowerPin> {
        self.follower_pin.get()
    }

    /// Returns the numbers of the open table and blob files.
    pub(crate) fn open_file_numbers(&self) -> BTreeSet<u64> {
        self.open.lock().keys().map(|id| id.0).collect()
    }

    /// Returns the number and the total size in bytes of obsolete files that old versions still hold.
    pub(crate) fn held_files(&self) -> (u64, u64) {
        (self.held_count.load(Ordering::Relaxed), self.held_bytes.load(Ordering::Relaxed))
    }

    fn add_open_file(&self, id: FileId) {
        self.open.lock().entry(id).or_default().guards += 1;
    }

    fn remove_open_file(&self, id: FileId, path: PathBuf, is_obsolete: bool) {
        let is_deleted = {
            let mut open = self.open.lock();
            let Some(file) = open.get_mut(&id) else { return };
            file.guards -= 1;
            if file.guards > 0 {
                file.is_deleted |= is_obsolete;
                return;
            }
            open.remove(&id).is_some_and(|file| file.is_deleted)
        };
        if is_deleted || is_obsolete {
            self.discard(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_open_table_is_deletable_after_close() {
        let signal = Signal::new();
        let obsolete_files = ObsoleteFiles::new(signal.clone());
        let path = PathBuf::from("1.sst");
        obsolete_files.add_open_file(FileId(1));
        obsolete_files.discard_table(FileId(1), path.clone());
        assert!(!obsolete_files.has_deletable_files());
        let before = signal.generation();
        obsolete_files.remove_open_file(FileId(1), path.clone(), false);
        assert!(signal.generation() > before);
        let expected = [(path.clone(), None)];
        assert_eq!(obsolete_files.take_deletable_files(), expected);
        obsolete_files.discard_table(FileId(1), path.clone());
        assert_eq!(obsolete_files.take_deletable_files(), expected);
        obsolete_files.add_open_file(FileId(1));
        obsolete_files.remove_open_file(FileId(1), path, false);
        assert!(!obsolete_files.has_deletable_files());
    }
}
