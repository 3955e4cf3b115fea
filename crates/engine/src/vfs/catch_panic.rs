//! Converts panics in a user's [`Vfs`] implementation into I/O errors.
//!
//! The engine treats a call that panicked like any failed call. A failed append or sync ends the WAL segment. After a
//! failed append or sync of the manifest, the outcome of the edit is unknown.

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::error::{Error, UserCode};
use crate::vfs::call::VfsCall;
use crate::vfs::layer::{FileHint, FileLayer, OpenMode, VfsLayer};
use crate::vfs::{File, LockGuard, Vfs};

/// A file system that returns an error if a call of the inner file system or of one of its files panics.
#[derive(Debug)]
pub(crate) struct CatchPanicVfs {
    inner: Arc<dyn Vfs>,
}

impl CatchPanicVfs {
    pub(crate) fn new(inner: Arc<dyn Vfs>) -> Arc<CatchPanicVfs> {
        Arc::new(CatchPanicVfs { inner })
    }
}

/// Runs `call` and converts a panic into an I/O error that contains [`Error::UserPanic`].
fn catch_panic<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let uncontained =
        [Failpoint::PanicStrandsGroup, Failpoint::PanicEndsThread, Failpoint::PanicNotConverted];
    if uncontained.into_iter().any(failpoint::is_on) {
        return call();
    }
    Error::catch_user_panic(|| UserCode::FileSystem, call)
        .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

/// Runs `call`, which cannot return an error. Returns the default value if `call` panics.
fn catch_panic_or_default<T: Default>(call: impl FnOnce() -> T) -> T {
    Error::catch_user_panic(|| UserCode::FileSystem, call).unwrap_or_default()
}

impl VfsLayer for CatchPanicVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn intercept<T>(&self, _: VfsCall, forward: impl Fn() -> io::Result<T>) -> io::Result<T> {
        catch_panic(forward)
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(CatchPanicFile { inner: mode.open(&*self.inner, path)? }))
    }

    fn intercept_lock(
        &self,
        _: &Path,
        lock: impl FnOnce() -> io::Result<Box<dyn LockGuard>>,
    ) -> io::Result<Box<dyn LockGuard>> {
        Ok(Box::new(CatchPanicGuard { inner: Some(lock()?) }))
    }

    fn intercept_open_files_limit(&self) -> Option<u64> {
        catch_panic_or_default(|| self.inner.open_files_limit())
    }
}

#[derive(Debug)]
struct CatchPanicFile {
    inner: Arc<dyn File>,
}

impl FileLayer for CatchPanicFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn intercept<T>(&self, forward: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        catch_panic(forward)
    }

    fn intercept_hint(&self, hint: FileHint) -> bool {
        catch_panic_or_default(|| hint.apply_to_file(&*self.inner))
    }
}

/// A lock guard whose drop does not panic. A panic would prevent the database from closing.
#[derive(Debug)]
struct CatchPanicGuard {
    inner: Option<Box<dyn LockGuard>>,
}

impl LockGuard for CatchPanicGuard {}

impl Drop for CatchPanicGuard {
    fn drop(&mut self) {
        let inner = self.inner.take();
        catch_panic_or_default(|| drop(inner));
    }
}
