//! Files of an operand store, and the view of the store in a super version.
//!
//! An operand store discards its obsolete files itself. However, a store does not know whether its keyspace has been
//! dropped, or whether the keyspace no longer uses the store. In both cases, all files of the store are discarded
//! together with its last view.

use std::collections::BTreeSet;
use std::path::PathBuf;

use lsmx_base::file_name::FileName;
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::operand_store::{OperandFileKind, OperandFiles, OperandView, StoreToken};
use crate::table::FdCache;
use crate::tree::file_numbers::FileNumbers;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::vfs::{File, Vfs};

/// View of an operand store that is part of a super version.
#[derive(Clone, Debug)]
pub(crate) struct PinnedOperandView {
    pub(crate) view: Arc<dyn OperandView>,
    /// Token of the view in the manifest. `None` if the store contains no data.
    pub(crate) token: Option<StoreToken>,
    /// Number of collections of the store before this view. Views with different numbers may use different files.
    pub(crate) collection_count: u64,
    /// Prevents the deletion of the store's files. `None` if the store is not open.
    pub(crate) _lifetime: Option<Arc<StoreLifetime>>,
}

/// Shared by all objects that may read the files of a store. If the store is obsolete, dropping the last reference
/// discards the files.
#[derive(Debug)]
pub(crate) struct StoreLifetime {
    pub(crate) files: Arc<OperandStoreFiles>,
    is_obsolete: AtomicBool,
}

impl StoreLifetime {
    pub(crate) fn new(files: Arc<OperandStoreFiles>) -> Arc<StoreLifetime> {
        Arc::new(StoreLifetime { files, is_obsolete: AtomicBool::new(false) })
    }

    /// Marks the store as obsolete. The caller must have removed the store from the manifest.
    pub(crate) fn set_obsolete(&self) {
        self.is_obsolete.store(true, Ordering::Release);
    }
}

impl Drop for StoreLifetime {
    fn drop(&mut self) {
        if self.is_obsolete.load(Ordering::Acquire) {
            self.files.discard_all();
        }
    }
}

/// Returns the name of a file of an operand store.
pub(crate) fn operand_file_name(kind: OperandFileKind, number: u64) -> FileName {
    match kind {
        OperandFileKind::Log => FileName::Operands(number),
        OperandFileKind::Bucket => FileName::Bucket(number),
    }
}

/// Files of an operand store in one directory.
#[derive(Debug)]
pub(crate) struct OperandStoreFiles {
    pub(crate) vfs: Arc<dyn Vfs>,
    /// Creates files with the I/O rate limit of background jobs.
    pub(crate) paced: Arc<dyn Vfs>,
    pub(crate) dir: PathBuf,
    pub(crate) numbers: Arc<FileNumbers>,
    pub(crate) obsolete_files: Arc<ObsoleteFiles>,
    /// Limits the number of open file descriptors. `None` for a copy of a store and for a store of a closed database.
    pub(crate) descriptors: Option<Arc<FdCache>>,
    pub(crate) known: Mutex<KnownFiles>,
}

/// Files that the store has not discarded.
#[derive(Debug, Default)]
pub(crate) struct KnownFiles {
    /// Files that existed when the store was opened.
    found: BTreeSet<(OperandFileKind, u64)>,
    created: BTreeSet<(OperandFileKind, u64)>,
}

impl OperandStoreFiles {
    /// Creates a set without files. There is no rate limit, and no limit of open file descriptors.
    pub(crate) fn without_limits(
        vfs: Arc<dyn Vfs>,
        dir: PathBuf,
        numbers: Arc<FileNumbers>,
    ) -> OperandStoreFiles {
        let (paced, obsolete_files, known) = (Arc::clone(&vfs), Arc::default(), Mutex::default());
        OperandStoreFiles { vfs, paced, dir, numbers, obsolete_files, descriptors: None, known }
    }

    /// Adds files that existed when the store was opened.
    pub(crate) fn add_found_file(&self, files: Vec<(OperandFileKind, u64)>) {
        self.known.lock().found.extend(files);
    }

    /// Returns the paths of all files that were created and not discarded.
    pub(crate) fn created_paths(&self) -> Vec<PathBuf> {
        let known = self.known.lock();
        known.created.iter().map(|&(kind, number)| self.path(kind, number)).collect()
    }

    /// Discards all files that were created, because the manifest could not record them.
    pub(crate) fn discard_created_files(&self) {
        let created = std::mem::take(&mut self.known.lock().created);
        for (kind, number) in created {
            self.obsolete_files.discard(self.path(kind, number));
        }
    }

    fn discard_all(&self) {
        self.discard_created_files();
        let found = std::mem::take(&mut self.known.lock().found);
        for (kind, number) in found {
            self.obsolete_files.discard(self.path(kind, number));
        }
    }
}

impl OperandFiles for OperandStoreFiles {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        operand_file_name(kind, number).in_dir(&self.dir)
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        let number = self.numbers.allocate();
        let path = self.path(kind, number);
        let file = self.paced.create(&path).map_err(|error| Error::io("create", &path, error))?;
        self.known.lock().created.insert((kind, number));
        Ok((number, file))
    }

    fn writers_max(&self) -> usize {
        self.descriptors.as_ref().map_or(usize::MAX, |cache| cache.max_store_writers())
    }

    fn sync_directory(&self) -> Result<()> {
        self.vfs.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        {
            let mut known = self.known.lock();
            known.created.remove(&(kind, number));
            known.found.remove(&(kind, number));
        }
        self.obsolete_files.discard(self.path(kind, number));
    }
}
