//! What a file and a directory of the in-memory file system are: what a process sees, and what of
//! it the disk holds.

use std::collections::BTreeMap;
use std::ops::Range;

use lsmx_base::sync::{Arc, AtomicU64, Ordering, RwLock};

use crate::vfs::mem::content::Content;

/// A file, whatever its names are.
#[derive(Debug, Default)]
pub(crate) struct FileNode {
    pub(crate) data: RwLock<FileData>,
    /// Who holds its lock: 0 for nobody, [`ALONE`], else how many share it.
    locked: AtomicU64,
}

/// Somebody holds the lock alone.
const ALONE: u64 = u64::MAX;

/// Least and most bytes by which a file grows ahead of its end; in between, it doubles. As
/// [`OsVfs`](crate::vfs::OsVfs) does, in a scale that suits small test files.
const GROWN_AHEAD_MIN: usize = 4 << 10;
const GROWN_AHEAD_MAX: usize = 32 << 10;

/// Bytes as a process sees them, and how far the disk has them.
///
/// Data is only appended, so an unsynced operation is a range of the bytes. Bytes from `synced` on that
/// are in no operation were lost in a failed sync. Behind the appended bytes a file that grows ahead
/// ([`File::grow_ahead`](crate::vfs::File::grow_ahead)) holds zeros.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileData {
    /// What reads see.
    pub(crate) content: Content,
    /// Where the next append goes; `content` holds zeros from here on.
    pub(crate) end: usize,
    /// Whether an append past the length makes the file longer than it needs.
    grows_ahead: bool,
    /// Appended bytes as of the last good sync.
    pub(crate) synced: usize,
    /// Length as of the last good sync, at least `synced`.
    pub(crate) synced_len: usize,
    /// Largest length since the last good sync.
    pub(crate) len_max: usize,
    /// The appends since, in order; each a range of the content.
    pub(crate) unsynced: Vec<Range<usize>>,
    /// Ranges that reads still see but the disk never got, and never will: it holds zeros there.
    pub(crate) lost: Vec<Range<usize>>,
    /// Room that it takes, whatever it holds.
    pub(crate) reserved: u64,
}

impl FileNode {
    /// A file whose bytes are all on the disk.
    pub(crate) fn on_disk(content: Content) -> FileNode {
        FileNode { data: RwLock::new(FileData::on_disk(content)), locked: AtomicU64::new(0) }
    }

    /// Takes the lock, alone or with others; false if it is held in a way that forbids it.
    pub(crate) fn lock(&self, shared: bool) -> bool {
        // Acquire pairs with the release in `unlock`: the next owner sees what the last one did.
        let next = |held: u64| match (shared, held) {
            (_, ALONE) => None,
            (true, readers) => Some(readers + 1),
            (false, 0) => Some(ALONE),
            (false, _) => None,
        };
        self.locked.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok()
    }

    /// Lets go of what [`FileNode::lock`] gave.
    pub(crate) fn unlock(&self) {
        let next = |held: u64| if held == ALONE { 0 } else { held.saturating_sub(1) };
        let _ =
            self.locked.fetch_update(Ordering::Release, Ordering::Relaxed, |held| Some(next(held)));
    }
}

impl FileData {
    pub(crate) fn on_disk(content: Content) -> FileData {
        let len = content.len();
        FileData {
            end: len,
            synced: len,
            synced_len: len,
            len_max: len,
            content,
            ..FileData::default()
        }
    }

    /// Room that it takes; zeros that it has grown by take none.
    pub(crate) fn bytes(&self) -> u64 {
        self.reserved.max(self.end as u64)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let (start, end) = (self.end, self.end + bytes.len());
        if self.grows_ahead && end > self.content.len() {
            self.content.grow(end + end.clamp(GROWN_AHEAD_MIN, GROWN_AHEAD_MAX));
        }
        self.content.put(start, bytes);
        self.end = end;
        self.len_max = self.len_max.max(self.content.len());
        if !bytes.is_empty() {
            self.unsynced.push(start..end);
        }
    }

    pub(crate) fn grow_ahead(&mut self) {
        self.grows_ahead = true;
    }

    /// Cuts the zeros by which the file has grown ahead.
    pub(crate) fn trim(&mut self) {
        self.grows_ahead = false;
        self.content.truncate(self.end);
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.end;
        self.synced_len = self.content.len();
        self.len_max = self.synced_len;
        self.unsynced.clear();
    }

    /// Puts other contents in place, all of it on the disk. Appends go on where they did, unless the
    /// file has become shorter.
    pub(crate) fn replace(&mut self, content: Content) {
        let grown = self.end < self.content.len();
        let end = if grown { self.end.min(content.len()) } else { content.len() };
        let grows_ahead = self.grows_ahead;
        *self = FileData { end, grows_ahead, ..FileData::on_disk(content) };
    }

    /// What a failed sync does: the disk will never get the unsynced bytes. Either the page cache
    /// keeps them until the crash, or they are gone for readers as well, who see zeros.
    pub(crate) fn drop_unsynced(&mut self, cached: bool) {
        for range in self.unsynced.drain(..) {
            if cached {
                self.lost.push(range);
            } else {
                self.content.zero(range);
            }
        }
    }
}

/// Identity of a directory.
pub(crate) type DirId = u64;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    File(Arc<FileNode>),
    Dir(DirId),
}

impl Entry {
    pub(crate) fn is_same(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::File(a), Entry::File(b)) => Arc::ptr_eq(a, b),
            (Entry::Dir(a), Entry::Dir(b)) => a == b,
            _ => false,
        }
    }
}

/// The names of a directory.
pub(crate) type Entries = BTreeMap<Arc<str>, Entry>;

/// A change of a directory that the disk does not have yet.
#[derive(Clone, Debug)]
pub(crate) enum NameChange {
    Link(Arc<str>, Entry),
    Unlink(Arc<str>),
    /// Within the directory; file systems keep such a rename whole.
    Rename(Arc<str>, Arc<str>, Entry),
}

impl NameChange {
    pub(crate) fn apply(&self, entries: &mut Entries) {
        match self {
            NameChange::Link(name, entry) => {
                entries.insert(name.clone(), entry.clone());
            }
            NameChange::Unlink(name) => {
                entries.remove(name);
            }
            NameChange::Rename(from, to, entry) => {
                // Where only some changes last, the old name may stand for something else.
                if entries.get(from).is_some_and(|found| found.is_same(entry)) {
                    entries.remove(from);
                }
                entries.insert(to.clone(), entry.clone());
            }
        }
    }
}

/// Names as a process sees them, and as the disk has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir {
    pub(crate) current: Arc<Entries>,
    pub(crate) synced: Arc<Entries>,
    /// What leads from `synced` to `current`, in order.
    pub(crate) unsynced: Vec<NameChange>,
}

impl Dir {
    pub(crate) fn on_disk(entries: Entries) -> Dir {
        let entries = Arc::new(entries);
        Dir { current: entries.clone(), synced: entries, unsynced: Vec::new() }
    }

    pub(crate) fn change(&mut self, change: NameChange) {
        change.apply(Arc::make_mut(&mut self.current));
        self.unsynced.push(change);
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.current.clone();
        self.unsynced.clear();
    }
}
