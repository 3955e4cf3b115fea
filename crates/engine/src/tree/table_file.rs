//! Open tables as members of versions, and what becomes of those that no version names any more.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Signal};
use lsmx_compaction::{FileId, TableMeta};

use crate::table::Table;
use crate::tree::blob_set::BlobUse;

/// An open table that versions share. Once it is obsolete, its file is handed to the janitor when
/// the last version that names it is gone.
#[derive(Debug)]
pub(crate) struct TableFile {
    table: Arc<Table>,
    shape: Arc<TableMeta>,
    /// The blob files that its entries point into, by number.
    blobs: Vec<BlobUse>,
    path: PathBuf,
    obsolete: AtomicBool,
    janitor: Arc<Janitor>,
}

impl TableFile {
    /// An open table with what policies know of it.
    pub(crate) fn new(
        table: Arc<Table>,
        shape: Arc<TableMeta>,
        blobs: Vec<BlobUse>,
        path: PathBuf,
        janitor: Arc<Janitor>,
    ) -> TableFile {
        janitor.opened(shape.id);
        TableFile { table, shape, blobs, path, obsolete: AtomicBool::new(false), janitor }
    }

    /// The open table.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// What policies know of it.
    pub(crate) fn shape(&self) -> &Arc<TableMeta> {
        &self.shape
    }

    /// The blob files that its entries point into, by number.
    pub(crate) fn blobs(&self) -> &[BlobUse] {
        &self.blobs
    }

    /// Whether it has range tombstones.
    pub(crate) fn has_spans(&self) -> bool {
        self.table.properties().range_tombstone_count > 0
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Says that the durable state of the database names the file no more.
    pub(crate) fn set_obsolete(&self) {
        if !self.obsolete.swap(true, Ordering::AcqRel) {
            self.janitor.held_grown(self.shape.bytes);
        }
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        let obsolete = self.obsolete.load(Ordering::Acquire);
        if obsolete {
            self.janitor.held_freed(self.shape.bytes);
        }
        self.janitor.closed(self.shape.id, std::mem::take(&mut self.path), obsolete);
    }
}

/// Collects the files that nobody needs; a job removes them, never a reader that let the last
/// handle go.
///
/// A table that is open keeps its file, whatever the durable state says: its descriptor may be
/// closed, and a reader of an old version may need it again.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    discarded: Mutex<Vec<PathBuf>>,
    /// While this is not 0 nothing is handed out.
    holds: AtomicU64,
    /// Given when there is something to remove, so that it goes without a write.
    signal: Signal,
    /// Open tables and blob files, and whether the file goes when they do.
    open: Mutex<HashMap<FileId, bool>>,
    /// Obsolete files that old versions keep.
    files_held: AtomicU64,
    /// Bytes of them.
    bytes_held: AtomicU64,
}

/// Keeps every file where it is while it lives.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Janitor>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
        self.0.signal.notify();
    }
}

impl Janitor {
    /// A janitor that gives this signal when it has got something.
    pub(crate) fn new(signal: Signal) -> Janitor {
        Janitor { signal, ..Janitor::default() }
    }

    /// Takes over a file that can be removed.
    pub(crate) fn discard(&self, path: PathBuf) {
        self.discarded.lock().push(path);
        self.signal.notify();
    }

    /// Takes over the file of a table that nothing durable names: it can be removed now, or when
    /// the table is closed.
    pub(crate) fn discard_table(&self, id: FileId, path: PathBuf) {
        match self.open.lock().get_mut(&id) {
            Some(goes) => *goes = true,
            None => self.discarded.lock().push(path),
        }
        self.signal.notify();
    }

    /// Whether there is something to remove, and no hold on it.
    pub(crate) fn has_some(&self) -> bool {
        let discarded = self.discarded.lock();
        !discarded.is_empty() && self.holds.load(Ordering::Acquire) == 0
    }

    /// Has every file stay that a durable state names from now on, or named just now: one is
    /// discarded only after the edit that does without it.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        // Under the lock, so that whoever took files out before names nothing that is needed.
        let _discarded = self.discarded.lock();
        self.holds.fetch_add(1, Ordering::AcqRel);
        Hold(Arc::clone(self))
    }

    /// Hands out what is to be removed; nothing while somebody holds all files.
    pub(crate) fn take(&self) -> Vec<PathBuf> {
        let mut discarded = self.discarded.lock();
        match self.holds.load(Ordering::Acquire) {
            0 => std::mem::take(&mut discarded),
            _ => Vec::new(),
        }
    }

    /// How many obsolete files old versions keep, and their bytes.
    pub(crate) fn held(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.files_held), read(&self.bytes_held))
    }

    /// Counts an obsolete file that somebody holds.
    pub(crate) fn held_grown(&self, bytes: u64) {
        self.files_held.fetch_add(1, Ordering::Relaxed);
        self.bytes_held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes such a file off the count.
    pub(crate) fn held_freed(&self, bytes: u64) {
        self.files_held.fetch_sub(1, Ordering::Relaxed);
        self.bytes_held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn opened(&self, id: FileId) {
        self.open.lock().insert(id, false);
    }

    pub(crate) fn closed(&self, id: FileId, path: PathBuf, obsolete: bool) {
        let goes = self.open.lock().remove(&id) == Some(true);
        if goes || obsolete {
            self.discard(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_open_table_waits_until_it_is_closed() {
        let signal = Signal::new();
        let janitor = Janitor::new(signal.clone());
        let path = PathBuf::from("1.sst");
        janitor.opened(FileId(1));
        janitor.discard_table(FileId(1), path.clone());
        assert!(!janitor.has_some());
        let before = signal.generation();
        janitor.closed(FileId(1), path.clone(), false);
        assert!(signal.generation() > before);
        assert_eq!(janitor.take(), std::slice::from_ref(&path));
        janitor.discard_table(FileId(1), path.clone());
        assert_eq!(janitor.take(), std::slice::from_ref(&path));
        janitor.opened(FileId(1));
        janitor.closed(FileId(1), path, false);
        assert!(!janitor.has_some());
    }
}
