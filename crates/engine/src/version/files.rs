//! Open tables as members of versions, and what becomes of those that no version names any more.

use std::path::{Path, PathBuf};

use lsmx_compaction::FileShape;

use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::table::Table;

/// An open table that versions share. Once it is obsolete, its file is handed to the janitor when
/// the last version that names it is gone.
#[derive(Debug)]
pub(crate) struct TableFile {
    table: Arc<Table>,
    shape: Arc<FileShape>,
    path: PathBuf,
    obsolete: AtomicBool,
    janitor: Arc<Janitor>,
}

impl TableFile {
    /// An open table with what policies know of it.
    pub(crate) fn new(
        table: Arc<Table>,
        shape: Arc<FileShape>,
        path: PathBuf,
        janitor: Arc<Janitor>,
    ) -> TableFile {
        TableFile { table, shape, path, obsolete: AtomicBool::new(false), janitor }
    }

    /// The open table.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// What policies know of it.
    pub(crate) fn shape(&self) -> &Arc<FileShape> {
        &self.shape
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
        self.obsolete.store(true, Ordering::Release);
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire) {
            self.janitor.discard(std::mem::take(&mut self.path));
        }
    }
}

/// Collects the files that nobody needs; a job removes them, never a reader that let the last
/// handle go.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    discarded: Mutex<Vec<PathBuf>>,
}

impl Janitor {
    /// Takes over a file that can be removed.
    pub(crate) fn discard(&self, path: PathBuf) {
        self.discarded.lock().push(path);
    }

    /// Hands out what is to be removed.
    pub(crate) fn take(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.discarded.lock())
    }
}
