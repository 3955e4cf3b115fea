//! Open tables as members of versions, and what becomes of those that no version names any more.

use std::path::{Path, PathBuf};

use lsmx_compaction::FileShape;

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
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
    /// While this is not 0 nothing is handed out.
    holds: AtomicU64,
}

/// Keeps every file where it is while it lives.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Janitor>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Janitor {
    /// Takes over a file that can be removed.
    pub(crate) fn discard(&self, path: PathBuf) {
        self.discarded.lock().push(path);
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
}
