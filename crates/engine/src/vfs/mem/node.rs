//! Files and directories of the in-memory file system. Each stores its visible state and its synced state.

use std::collections::BTreeMap;
use std::ops::Range;

use lsmx_base::sync::{Arc, AtomicU64, Ordering, RwLock};

use crate::vfs::mem::content::FileContent;

/// A file, independent of its names.
#[derive(Debug, Default)]
pub(crate) struct FileNode {
    pub(crate) data: RwLock<FileState>,
    /// State of the file lock: 0, [`EXCLUSIVE`], or the number of shared holders.
    lock_state: AtomicU64,
}

const EXCLUSIVE: u64 = u64::MAX;

/// Minimum and maximum bytes of preallocated zeros. Between these limits, the number of zeros equals the length of the
/// file. The limits are smaller than those of [`OsVfs`](crate::vfs::OsVfs), because files in tests are small.
const PREALLOCATE_BYTES_MIN: usize = 4 << 10;
const PREALLOCATE_BYTES_MAX: usize = 32 << 10;

/// Bytes of a file as processes see them, and the sync state of the bytes.
///
/// Files are append-only, so each unsynced append is a byte range. Bytes after `synced` that belong to no range in
/// `unsynced` were dropped by a failed sync. With preallocation
/// ([`File::enable_preallocation`](crate::vfs::File::enable_preallocation)), zeros follow the appended bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileState {
    /// Bytes that reads return.
    pub(crate) content: FileContent,
    /// Offset of the next append. Bytes of `content` at and after this offset are preallocated zeros.
    pub(crate) end: usize,
    /// Whether an append that exceeds the length of `content` preallocates zeros.
    grows_ahead: bool,
    /// Number of appended bytes at the last successful sync.
    pub(crate) synced: usize,
    /// Length of `content` at the last successful sync, including preallocated zeros.
    pub(crate) synced_len: usize,
    /// Largest length of `content` since the last successful sync, including preallocated zeros.
    pub(crate) len_max: usize,
    /// Ranges of the unsynced appends, in order.
    pub(crate) unsynced: Vec<Range<usize>>,
    /// Ranges that failed syncs dropped. Reads return the bytes, but crash images have zeros.
    pub(crate) dropped: Vec<Range<usize>>,
    /// Reserved space in bytes.
    pub(crate) reserved_bytes: u64,
}

impl FileNode {
    /// Creates a file whose bytes are synced.
    pub(crate) fn from_synced_content(content: FileContent) -> FileNode {
        FileNode {
            data: RwLock::new(FileState::from_synced_content(content)),
            lock_state: AtomicU64::new(0),
        }
    }

    /// Tries to acquire the lock in shared or exclusive mode. Returns whether the lock was acquired.
    pub(crate) fn try_lock(&self, shared: bool) -> bool {
        // Acquire pairs with the release in `unlock`: the new holder sees the writes of the previous holder.
        let next = |held: u64| match (shared, held) {
            (_, EXCLUSIVE) => None,
            (true, readers) => Some(readers + 1),
            (false, 0) => Some(EXCLUSIVE),
            (false, _) => None,
        };
        self.lock_state.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok()
    }

    /// Releases the lock of one holder.
    pub(crate) fn unlock(&self) {
        let next = |held: u64| if held == EXCLUSIVE { 0 } else { held.saturating_sub(1) };
        let _ = self
            .lock_state
            .fetch_update(Ordering::Release, Ordering::Relaxed, |held| Some(next(held)));
    }
}

impl FileState {
    pub(crate) fn from_synced_content(content: FileContent) -> FileState {
        let len = content.len();
        FileState {
            end: len,
            synced: len,
            synced_len: len,
            len_max: len,
            content,
            ..FileState::default()
        }
    }

    /// Returns the occupied space in bytes. Preallocated zeros occupy no space.
    pub(crate) fn bytes(&self) -> u64 {
        self.reserved_bytes.max(self.end as u64)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let (start, end) = (self.end, self.end + bytes.len());
        if self.grows_ahead && end > self.content.len() {
            self.content.grow(end + end.clamp(PREALLOCATE_BYTES_MIN, PREALLOCATE_BYTES_MAX));
        }
        self.content.write_at(start, bytes);
        self.end = end;
        self.len_max = self.len_max.max(self.content.len());
        if !bytes.is_empty() {
            self.unsynced.push(start..end);
        }
    }

    pub(crate) fn enable_preallocation(&mut self) {
        self.grows_ahead = true;
    }

    /// Removes the preallocated zeros and ends preallocation.
    pub(crate) fn disable_preallocation(&mut self) {
        self.grows_ahead = false;
        self.content.truncate(self.end);
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.end;
        self.synced_len = self.content.len();
        self.len_max = self.synced_len;
        self.unsynced.clear();
    }

    /// Replaces the contents, and marks the new contents as synced.
    ///
    /// The next append starts at the end of the new contents. If the file has preallocated zeros, the offset of the
    /// next append does not change, but it never exceeds the new length.
    #[cfg(feature = "internals")]
    pub(crate) fn replace_content(&mut self, content: FileContent) {
        let preallocated = self.end < self.content.len();
        let end = if preallocated { self.end.min(content.len()) } else { content.len() };
        let grows_ahead = self.grows_ahead;
        *self = FileState { end, grows_ahead, ..FileState::from_synced_content(content) };
    }

    /// Drops the unsynced bytes, as a failed sync does. If `cached` is set, readers still see the bytes until a crash.
    /// Otherwise readers see zeros.
    pub(crate) fn drop_unsynced(&mut self, cached: bool) {
        for range in self.unsynced.drain(..) {
            if cached {
                self.dropped.push(range);
            } else {
                self.content.zero_range(range);
            }
        }
    }
}

/// Identifier of a directory.
pub(crate) type DirId = u64;

/// The file or directory that a name refers to.
#[derive(Clone, Debug)]
pub(crate) enum DirEntry {
    File(Arc<FileNode>),
    Dir(DirId),
}

impl DirEntry {
    pub(crate) fn is_same_node(&self, other: &DirEntry) -> bool {
        match (self, other) {
            (DirEntry::File(a), DirEntry::File(b)) => Arc::ptr_eq(a, b),
            (DirEntry::Dir(a), DirEntry::Dir(b)) => a == b,
            _ => false,
        }
    }
}

/// Names of a directory.
pub(crate) type DirEntries = BTreeMap<Arc<str>, DirEntry>;

/// An unsynced change of a directory.
#[derive(Clone, Debug)]
pub(crate) enum NameChange {
    Link(Arc<str>, DirEntry),
    Unlink(Arc<str>),
    /// Rename from the first name to the second name, within one directory. File systems do this atomically.
    Rename(Arc<str>, Arc<str>, DirEntry),
}

impl NameChange {
    pub(crate) fn apply_to_entries(&self, entries: &mut DirEntries) {
        match self {
            NameChange::Link(name, entry) => {
                entries.insert(name.clone(), entry.clone());
            }
            NameChange::Unlink(name) => {
                entries.remove(name);
            }
            NameChange::Rename(from, to, entry) => {
                // A crash image may omit earlier changes, so the old name may refer to another file. That file stays.
                if entries.get(from).is_some_and(|found| found.is_same_node(entry)) {
                    entries.remove(from);
                }
                entries.insert(to.clone(), entry.clone());
            }
        }
    }
}

/// A directory: the names that processes see, and the synced names.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirNode {
    pub(crate) current: Arc<DirEntries>,
    pub(crate) synced: Arc<DirEntries>,
    /// Changes from `synced` to `current`, in order.
    pub(crate) unsynced: Vec<NameChange>,
}

impl DirNode {
    pub(crate) fn from_synced_entries(entries: DirEntries) -> DirNode {
        let entries = Arc::new(entries);
        DirNode { current: entries.clone(), synced: entries, unsynced: Vec::new() }
    }

    pub(crate) fn record_change(&mut self, change: NameChange) {
        change.apply_to_entries(Arc::make_mut(&mut self.current));
        self.unsynced.push(change);
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.current.clone();
        self.unsynced.clear();
    }
}
