//! Turns panics of a user's file system into errors of the calls that panicked.
//!
//! The engine then treats such a call as one that failed: a failed append or sync ends the log segment, and a manifest
//! edit is in doubt.

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::error::{Error, UserCode};
use crate::vfs::{File, LockGuard, Vfs};

/// A file system whose calls return an error where those of the inner one panic. So do the files that it opens.
#[derive(Debug)]
pub(crate) struct ContainedVfs {
    inner: Arc<dyn Vfs>,
}

impl ContainedVfs {
    pub(crate) fn new(inner: Arc<dyn Vfs>) -> Arc<ContainedVfs> {
        Arc::new(ContainedVfs { inner })
    }
}

/// Makes a call; a panic in it is an error that holds [`Error::UserPanic`].
fn contain<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let uncontained =
        [Failpoint::PanicStrandsGroup, Failpoint::PanicEndsThread, Failpoint::PanicUnnamed];
    if uncontained.into_iter().any(failpoint::is_on) {
        return call();
    }
    Error::catch_user(|| UserCode::FileSystem, call)
        .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

/// As [`contain`], for calls that return no error; a panic returns the default.
fn contain_hint<T: Default>(call: impl FnOnce() -> T) -> T {
    Error::catch_user(|| UserCode::FileSystem, call).unwrap_or_default()
}

impl ContainedVfs {
    fn file(
        &self,
        open: impl FnOnce(&dyn Vfs) -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        let inner = contain(|| open(&*self.inner))?;
        Ok(Arc::new(ContainedFile { inner }))
    }

    fn guard(
        &self,
        lock: impl FnOnce(&dyn Vfs) -> io::Result<Box<dyn LockGuard>>,
    ) -> io::Result<Box<dyn LockGuard>> {
        let inner = contain(|| lock(&*self.inner))?;
        Ok(Box::new(ContainedGuard { inner: Some(inner) }))
    }
}

impl Vfs for ContainedVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.file(|inner| inner.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.file(|inner| inner.open(path))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.file(|inner| inner.open_direct(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        contain(|| self.inner.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        contain(|| self.inner.hard_link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        contain(|| self.inner.remove(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        contain(|| self.inner.remove_dir(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        contain(|| self.inner.create_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        contain(|| self.inner.list(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        contain(|| self.inner.exists(path))
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        contain(|| self.inner.reserve(path, bytes))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        contain(|| self.inner.sync_dir(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.guard(|inner| inner.lock(path))
    }

    fn open_files_limit(&self) -> Option<u64> {
        contain_hint(|| self.inner.open_files_limit())
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.guard(|inner| inner.lock_shared(path))
    }
}

#[derive(Debug)]
struct ContainedFile {
    inner: Arc<dyn File>,
}

impl File for ContainedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        contain(|| self.inner.read_at(buffer, offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        contain(|| self.inner.append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        contain(|| self.inner.sync())
    }

    fn len(&self) -> io::Result<u64> {
        contain(|| self.inner.len())
    }

    fn grow_ahead(&self) {
        contain_hint(|| self.inner.grow_ahead());
    }

    fn stop_growing(&self) {
        contain_hint(|| self.inner.stop_growing());
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        contain_hint(|| self.inner.will_need(offset, bytes))
    }

    fn forget(&self, offset: u64, bytes: u64) {
        contain_hint(|| self.inner.forget(offset, bytes));
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.inner.drop_unsynced(cached)
    }
}

/// A lock whose release may panic without ending the close of the database.
#[derive(Debug)]
struct ContainedGuard {
    inner: Option<Box<dyn LockGuard>>,
}

impl LockGuard for ContainedGuard {}

impl Drop for ContainedGuard {
    fn drop(&mut self) {
        let inner = self.inner.take();
        contain_hint(|| drop(inner));
    }
}
