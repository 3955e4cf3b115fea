//! Base traits for wrappers of file systems and files.
//!
//! A wrapper implements [`VfsLayer`] and, for its files, [`FileLayer`]. Blanket implementations provide [`Vfs`] and
//! [`File`] for every wrapper. Each call is forwarded to the inner file system or file, unless the wrapper overrides a
//! method.

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::Arc;

use crate::vfs::call::VfsCall;
use crate::vfs::{File, LockGuard, Vfs};

/// The call of [`Vfs`] by which [`VfsLayer::intercept_open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// [`Vfs::create`].
    Create,
    /// [`Vfs::open`].
    Read,
    /// [`Vfs::open_direct`].
    ReadDirect,
}

impl OpenMode {
    /// Opens a file of `vfs` in this mode.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(self, vfs: &dyn Vfs, path: &Path) -> io::Result<Arc<dyn File>> {
        match self {
            OpenMode::Create => vfs.create(path),
            OpenMode::Read => vfs.open(path),
            OpenMode::ReadDirect => vfs.open_direct(path),
        }
    }
}

/// A call of [`File`] that affects performance only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileHint {
    /// [`File::enable_preallocation`].
    EnablePreallocation,
    /// [`File::disable_preallocation`].
    DisablePreallocation,
    /// [`File::will_need`].
    WillNeed {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// [`File::drop_cached_pages`].
    DropCachedPages {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
}

impl FileHint {
    /// Makes the call on `file`. Returns the result of [`File::will_need`], and `false` for other hints.
    pub fn apply_to_file(self, file: &dyn File) -> bool {
        match self {
            FileHint::EnablePreallocation => file.enable_preallocation(),
            FileHint::DisablePreallocation => file.disable_preallocation(),
            FileHint::WillNeed { offset, bytes } => return file.will_need(offset, bytes),
            FileHint::DropCachedPages { offset, bytes } => file.drop_cached_pages(offset, bytes),
        }
        false
    }
}

/// A [`Vfs`] that forwards its calls to an inner file system.
#[allow(clippy::missing_errors_doc, reason = "errors of the inner file system are returned")]
pub trait VfsLayer: fmt::Debug + Send + Sync + 'static {
    /// Returns the inner file system.
    fn inner(&self) -> &dyn Vfs;

    /// Runs before each call except [`Vfs::open_files_limit`]. An error fails the call.
    ///
    /// For a rename, `path` is the old name. For a hard link, `path` is the existing name.
    fn before_call(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        let _ = (call, path);
        Ok(())
    }

    /// Wraps each call except [`Vfs::open_files_limit`]. `forward` runs [`VfsLayer::before_call`] and then makes the
    /// call on the inner file system. To retry a failed call, an implementation calls `forward` again.
    fn intercept<T>(&self, call: VfsCall, forward: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let _ = call;
        forward()
    }

    /// Opens a file of the inner file system. Wrappers that also wrap files override this method. Called within
    /// [`VfsLayer::intercept`].
    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        mode.open(self.inner(), path)
    }

    /// Locks a file by calling `lock`. Wrappers that also wrap lock guards override this method. Called within
    /// [`VfsLayer::intercept`].
    fn intercept_lock(
        &self,
        path: &Path,
        lock: impl FnOnce() -> io::Result<Box<dyn LockGuard>>,
    ) -> io::Result<Box<dyn LockGuard>> {
        let _ = path;
        lock()
    }

    /// Implements [`Vfs::open_files_limit`], which cannot fail and so does not pass through [`VfsLayer::intercept`].
    fn intercept_open_files_limit(&self) -> Option<u64> {
        self.inner().open_files_limit()
    }
}

fn make_call<L: VfsLayer, T>(
    layer: &L,
    call: VfsCall,
    path: &Path,
    forward: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    layer.intercept(call, || {
        layer.before_call(call, path)?;
        forward()
    })
}

impl<L: VfsLayer> Vfs for L {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        make_call(self, VfsCall::Create, path, || self.intercept_open(OpenMode::Create, path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        make_call(self, VfsCall::Open, path, || self.intercept_open(OpenMode::Read, path))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        make_call(self, VfsCall::Open, path, || self.intercept_open(OpenMode::ReadDirect, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        make_call(self, VfsCall::Rename, from, || self.inner().rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        make_call(self, VfsCall::HardLink, from, || self.inner().hard_link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        make_call(self, VfsCall::Remove, path, || self.inner().remove(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        make_call(self, VfsCall::CreateDir, path, || self.inner().create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        make_call(self, VfsCall::Remove, path, || self.inner().remove_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        make_call(self, VfsCall::List, path, || self.inner().list(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        make_call(self, VfsCall::Exists, path, || self.inner().exists(path))
    }

    fn reserve_space(&self, path: &Path, bytes: u64) -> io::Result<()> {
        make_call(self, VfsCall::Reserve, path, || self.inner().reserve_space(path, bytes))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        make_call(self, VfsCall::SyncDir, path, || self.inner().sync_dir(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        make_call(self, VfsCall::Lock, path, || {
            self.intercept_lock(path, || self.inner().lock(path))
        })
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        make_call(self, VfsCall::LockShared, path, || {
            self.intercept_lock(path, || self.inner().lock_shared(path))
        })
    }

    fn open_files_limit(&self) -> Option<u64> {
        self.intercept_open_files_limit()
    }
}

/// A [`File`] that forwards its calls to an inner file.
#[allow(clippy::missing_errors_doc, reason = "errors of the inner file are returned")]
pub trait FileLayer: fmt::Debug + Send + Sync {
    /// Returns the inner file.
    fn inner(&self) -> &dyn File;

    /// Runs before each call except hints ([`FileHint`]). An error fails the call.
    fn before_call(&self, call: VfsCall) -> io::Result<()> {
        let _ = call;
        Ok(())
    }

    /// Wraps each call except hints. `forward` runs [`FileLayer::before_call`] and then makes the call on the inner
    /// file.
    fn intercept<T>(&self, forward: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        forward()
    }

    /// Implements [`File::read_at`]. Called within [`FileLayer::intercept`].
    fn intercept_read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner().read_at(buffer, offset)
    }

    /// Implements [`File::append`]. Called within [`FileLayer::intercept`].
    fn intercept_append(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner().append(bytes)
    }

    /// Implements [`File::sync`]. Called within [`FileLayer::intercept`].
    fn intercept_sync(&self) -> io::Result<()> {
        self.inner().sync()
    }

    /// Implements the calls of [`FileHint`]. [`File::will_need`] returns the result. For other hints the result is
    /// ignored.
    fn intercept_hint(&self, hint: FileHint) -> bool {
        hint.apply_to_file(self.inner())
    }
}

fn intercept_file_call<L: FileLayer, T>(
    layer: &L,
    call: VfsCall,
    forward: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    layer.intercept(|| {
        layer.before_call(call)?;
        forward()
    })
}

impl<L: FileLayer> File for L {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        intercept_file_call(self, VfsCall::Read, || self.intercept_read(buffer, offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        intercept_file_call(self, VfsCall::Append, || self.intercept_append(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        intercept_file_call(self, VfsCall::Sync, || self.intercept_sync())
    }

    fn len(&self) -> io::Result<u64> {
        intercept_file_call(self, VfsCall::Len, || self.inner().len())
    }

    fn enable_preallocation(&self) {
        self.intercept_hint(FileHint::EnablePreallocation);
    }

    fn disable_preallocation(&self) {
        self.intercept_hint(FileHint::DisablePreallocation);
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        self.intercept_hint(FileHint::WillNeed { offset, bytes })
    }

    fn drop_cached_pages(&self, offset: u64, bytes: u64) {
        self.intercept_hint(FileHint::DropCachedPages { offset, bytes });
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.inner().drop_unsynced(cached)
    }
}
