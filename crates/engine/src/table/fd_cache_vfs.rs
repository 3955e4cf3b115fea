//! File system for operand stores. Its files count towards the limit of the descriptor cache.

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::table::fd_cache::{CachedFile, FdCache};
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
            OpenMode::Create if !is_uncounted => {
                Ok(Arc::new(FdCacheFile(self.cache.create(&*self.inner, path)?)))
            }
            OpenMode::Read if !is_uncounted && !self.cache.pins_store_files() => {
                Ok(Arc::new(FdCacheFile(CachedFile::open_store_file(&self.cache, path)?)))
            }
            _ => mode.open(&*self.inner, path),
        }
    }
}

/// An operand store file whose descriptor counts towards the limit.
#[derive(Debug)]
struct FdCacheFile(Arc<CachedFile>);

impl File for FdCacheFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.with_open_file(|file| file.read_at(buffer, offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.with_open_file(|file| file.append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.with_open_file(|file| file.sync())
    }

    fn len(&self) -> io::Result<u64> {
        self.0.with_open_file(|file| file.len())
    }

    fn enable_preallocation(&self) {
        self.0.with_file_if_open(|file| file.enable_preallocation());
    }

    fn disable_preallocation(&self) {
        self.0.with_file_if_open(|file| file.disable_preallocation());
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        self.0.with_open_file(|file| Ok(file.will_need(offset, bytes))).unwrap_or(false)
    }

    fn drop_cached_pages(&self, offset: u64, bytes: u64) {
        self.0.with_file_if_open(|file| file.drop_cached_pages(offset, bytes));
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.0.with_open_file(|file| Ok(file.drop_unsynced(cached))).unwrap_or(false)
    }
}
