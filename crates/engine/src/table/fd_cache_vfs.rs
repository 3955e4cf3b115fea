//! File system for operand stores. Its files count towards the limit of the descriptor cache.

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::table::fd_cache::{CachedFile, FdCache, FdCacheFile};
use crate::vfs::layer::{OpenMode, VfsLayer};
use crate::vfs::{File, Vfs};

/// File system for one operand store. The descriptor cache may close files that were opened for reading, and reopens
/// them when they are used again.
#[derive(Debug)]
pub(crate) struct FdCacheVfs {
    inner: Arc<dyn Vfs>,
    cache: Arc<FdCache>,
}

impl FdCacheVfs {
    /// Creates a file system that forwards to `inner`. The operand store counts as open until the file system is
    /// dropped.
    pub(crate) fn new(inner: Arc<dyn Vfs>, cache: Arc<FdCache>) -> FdCacheVfs {
        cache.add_store();
        FdCacheVfs { inner, cache }
    }

    /// Returns the descriptor cache.
    pub(crate) fn cache(&self) -> &Arc<FdCache> {
        &self.cache
    }
}

impl Drop for FdCacheVfs {
    fn drop(&mut self) {
        self.cache.remove_store();
    }
}

impl VfsLayer for FdCacheVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let is_uncounted = failpoint::is_on(Failpoint::StoreFilesOutsideBudget);
        match mode {
            OpenMode::Create if !is_uncounted => self.cache.create(&*self.inner, path),
            OpenMode::Read if !is_uncounted && !self.cache.pins_store_files() => {
                Ok(Arc::new(FdCacheFile(CachedFile::open_store_file(&self.cache, path)?)))
            }
            _ => mode.open(&*self.inner, path),
        }
    }
}
