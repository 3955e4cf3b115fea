//! What a super version has of the operand store beside its tree, and the files of that store.
//!
//! A store says itself which of its files nobody needs any more. What it cannot know is that the
//! keyspace was dropped, or keeps its operands in the tree from now on: then all of its files go, once the
//! last super version that has a view of it is gone.

use std::collections::BTreeSet;
use std::path::PathBuf;

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::format::file_name::FileName;
use crate::operand_store::{OperandFileKind, OperandFiles, OperandView, StoreToken};
use crate::table::{FdCache, FdCacheVfs};
use crate::tree::version::{FileNumbers, Janitor};
use crate::vfs::{File, Vfs};

/// A view of a store as part of a super version.
#[derive(Clone, Debug)]
pub(crate) struct BesideView {
    pub(crate) view: Arc<dyn OperandView>,
    /// What the manifest says that the view shows; none for a store that has got nothing yet.
    pub(crate) token: Option<StoreToken>,
    /// None where the store is lacking.
    pub(crate) _life: Option<Arc<Life>>,
}

/// Held by all who may read the files of a store.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) files: Arc<StoreFiles>,
    over: AtomicBool,
}

impl Life {
    pub(crate) fn new(files: Arc<StoreFiles>) -> Arc<Life> {
        Arc::new(Life { files, over: AtomicBool::new(false) })
    }

    /// Says that nothing durable names the store's files any more.
    pub(crate) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.over.load(Ordering::Acquire) {
            self.files.discard_all();
        }
    }
}

/// The name of a store's file.
pub(crate) fn file_name(kind: OperandFileKind, number: u64) -> FileName {
    match kind {
        OperandFileKind::Log => FileName::Operands(number),
        OperandFileKind::Bucket => FileName::Bucket(number),
    }
}

/// The files of one store in one directory.
#[derive(Debug)]
pub(crate) struct StoreFiles {
    vfs: Arc<dyn Vfs>,
    /// Creates files, at the pace of background work.
    paced: Arc<dyn Vfs>,
    dir: PathBuf,
    numbers: Arc<FileNumbers>,
    janitor: Arc<Janitor>,
    /// Budget of the store that has the files; none of a copy, or of a store of a closed database.
    descriptors: Option<Arc<FdCache>>,
    known: Mutex<Known>,
}

/// Files that the store has not let go.
#[derive(Debug, Default)]
struct Known {
    found: BTreeSet<(OperandFileKind, u64)>,
    made: BTreeSet<(OperandFileKind, u64)>,
}

impl StoreFiles {
    /// No files yet.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        paced: Arc<dyn Vfs>,
        dir: PathBuf,
        numbers: Arc<FileNumbers>,
        janitor: Arc<Janitor>,
    ) -> Arc<StoreFiles> {
        let (descriptors, known) = (None, Mutex::default());
        Arc::new(StoreFiles { vfs, paced, dir, numbers, janitor, descriptors, known })
    }

    /// No files yet, of a store in an open database.
    pub(crate) fn pooled(
        pooled: &Arc<FdCacheVfs>,
        paced: Arc<dyn Vfs>,
        dir: PathBuf,
        numbers: Arc<FileNumbers>,
        janitor: Arc<Janitor>,
    ) -> Arc<StoreFiles> {
        let (vfs, known) = (Arc::clone(pooled) as Arc<_>, Mutex::default());
        let descriptors = Some(Arc::clone(pooled.cache()));
        Arc::new(StoreFiles { vfs, paced, dir, numbers, janitor, descriptors, known })
    }

    /// Takes note of what the store was opened with.
    pub(crate) fn found(&self, files: Vec<(OperandFileKind, u64)>) {
        self.known.lock().found.extend(files);
    }

    /// Where the files lie that were made here and not let go.
    pub(crate) fn made(&self) -> Vec<PathBuf> {
        let known = self.known.lock();
        known.made.iter().map(|&(kind, number)| self.path(kind, number)).collect()
    }

    /// Has all files removed that were made here: what named them did not come to be.
    pub(crate) fn discard_made(&self) {
        let made = std::mem::take(&mut self.known.lock().made);
        for (kind, number) in made {
            self.janitor.discard(self.path(kind, number));
        }
    }

    fn discard_all(&self) {
        self.discard_made();
        let found = std::mem::take(&mut self.known.lock().found);
        for (kind, number) in found {
            self.janitor.discard(self.path(kind, number));
        }
    }
}

impl OperandFiles for StoreFiles {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        file_name(kind, number).in_dir(&self.dir)
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        let number = self.numbers.allocate();
        let path = self.path(kind, number);
        let file = self.paced.create(&path).map_err(|error| Error::io("create", &path, error))?;
        self.known.lock().made.insert((kind, number));
        Ok((number, file))
    }

    fn writers_max(&self) -> usize {
        self.descriptors.as_ref().map_or(usize::MAX, |cache| cache.store_writers_max())
    }

    fn sync_directory(&self) -> Result<()> {
        self.vfs.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        {
            let mut known = self.known.lock();
            known.made.remove(&(kind, number));
            known.found.remove(&(kind, number));
        }
        self.janitor.discard(self.path(kind, number));
    }
}
