//! The files of operand stores, within the budget of descriptors that tables have.

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::table::descriptors::{Descriptor, DescriptorPool};
use crate::vfs::{File, OpenMode, Vfs, VfsLayer};

/// A file system for operand stores. The descriptor pool may close the files that were opened through it, and opens
/// them again for the next call.
#[derive(Debug)]
pub(crate) struct PooledVfs {
    inner: Arc<dyn Vfs>,
    pool: Arc<DescriptorPool>,
}

impl PooledVfs {
    /// The files of `inner`, within the budget of `pool`.
    pub(crate) fn new(inner: Arc<dyn Vfs>, pool: Arc<DescriptorPool>) -> PooledVfs {
        pool.add_store();
        PooledVfs { inner, pool }
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Arc<DescriptorPool> {
        &self.pool
    }
}

impl Drop for PooledVfs {
    fn drop(&mut self) {
        self.pool.remove_store();
    }
}

impl VfsLayer for PooledVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        match mode {
            OpenMode::Create if !failpoint::is_on(Failpoint::StoreFilesOutsideBudget) => {
                self.pool.create(&*self.inner, path)
            }
            OpenMode::Read
                if !self.pool.keeps_opened()
                    && !failpoint::is_on(Failpoint::StoreFilesOutsideBudget) =>
            {
                Ok(Arc::new(PooledFile(Descriptor::open_operands(&self.pool, path)?)))
            }
            _ => mode.open(&*self.inner, path),
        }
    }
}

/// A file whose descriptor counts in the budget of a pool.
#[derive(Debug)]
pub(crate) struct PooledFile(pub(crate) Arc<Descriptor>);

impl File for PooledFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.call(|file| file.read_at(buffer, offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.call(|file| file.append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.call(|file| file.sync())
    }

    fn len(&self) -> io::Result<u64> {
        self.0.call(|file| file.len())
    }

    fn grow_ahead(&self) {
        self.0.call_if_open(|file| file.grow_ahead());
    }

    fn stop_growing(&self) {
        self.0.call_if_open(|file| file.stop_growing());
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        self.0.call(|file| Ok(file.will_need(offset, bytes))).unwrap_or(false)
    }

    fn forget(&self, offset: u64, bytes: u64) {
        // A file that is closed has nothing to forget, and need not be opened for that.
        self.0.call_if_open(|file| file.forget(offset, bytes));
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.0.call(|file| Ok(file.drop_unsynced(cached))).unwrap_or(false)
    }
}
