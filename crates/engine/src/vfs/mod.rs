//! The file system interface of the engine.
//!
//! All file access goes through [`Vfs`]. The engine passes paths to the implementation unchanged. A file name survives
//! a power loss only after [`Vfs::sync_dir`] of its directory. Appended bytes survive only after [`File::sync`].
//!
//! The wrappers in this crate implement `VfsLayer` and `FileLayer`, which forward every call by default.

pub(crate) mod cache_bypass;
pub(crate) mod call;
pub(crate) mod catch_panic;
#[cfg(any(test, feature = "internals"))]
pub(crate) mod counting;
#[cfg(any(test, feature = "internals"))]
pub(crate) mod fault;
pub(crate) mod layer;
pub(crate) mod mem;
pub(crate) mod os;
pub(crate) mod paced;
pub(crate) mod resource_retry;

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::Arc;

pub use crate::vfs::mem::{CrashImage, MemVfs};
pub use crate::vfs::os::OsVfs;

/// Unit in bytes of appends that bypass the page cache. The length of each append must be a multiple of this unit, see
/// [`File::drop_cached_pages`].
pub(crate) const DIRECT_APPEND_BYTES: usize = 4096;

/// A file system.
///
/// Methods return the error of the operating system. Each method documents only the error kinds that the engine
/// distinguishes.
#[expect(clippy::missing_errors_doc, reason = "each method can return any error of the system")]
pub trait Vfs: fmt::Debug + Send + Sync + 'static {
    /// Creates a file for appending and reading.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading. Implementations should disable read-ahead, because lookups read at random
    /// offsets. Sequential readers use large reads or [`File::will_need`] instead.
    ///
    /// # Errors
    /// `NotFound` only if the name does not exist.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reads that bypass the page cache. Reads may have any offset and length.
    ///
    /// # Errors
    /// Those of [`Vfs::open`]. `Unsupported` or `InvalidInput` if the file system has no direct reads. The default
    /// implementation returns `Unsupported`. Some file systems open the file, and then fail each read with one of these
    /// errors.
    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let _ = path;
        Err(unsupported_direct_read_error())
    }

    /// Opens a file whose content is read from the device, not from the page cache.
    ///
    /// Uses direct reads if the file system has them. Otherwise drops the cached pages of the file first. Reads one byte
    /// to check whether direct reads work.
    ///
    /// # Errors
    /// Those of [`Vfs::open`].
    fn open_uncached(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        // Some file systems open the file and then fail each direct read.
        let check_reads = |file: Arc<dyn File>| match file.read_at(&mut [0], 0) {
            Err(error) if has_no_direct_reads(&error) => Err(error),
            // Other errors may concern this byte only.
            _ => Ok(file),
        };
        match self.open_direct(path).and_then(check_reads) {
            Err(error) if has_no_direct_reads(&error) => open_without_cached_pages(self, path),
            opened => opened,
        }
    }

    /// Renames a file. If a file with the new name exists, replaces that file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Creates a hard link: the file `from` also gets the name `to`. If `from` is a symbolic link, links its target.
    ///
    /// # Errors
    /// `AlreadyExists` if the new name exists; `CrossesDevices` or `Unsupported` if the file system cannot link.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file. Handles that are already open can still read the file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates one directory. Its parent must exist.
    ///
    /// # Errors
    /// `AlreadyExists` if the name exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `DirectoryNotEmpty` if the directory has entries. `Unsupported` if the file system cannot remove directories.
    /// The default implementation returns `Unsupported`.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the sorted names of the files and directories in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Returns whether the name exists.
    ///
    /// # Errors
    /// Any error of the system that leaves the answer unknown. `NotFound` is never returned.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Creates a file that occupies `bytes` bytes on the disk, or resizes an existing file to that size. The content of
    /// the file is undefined. Removing the file frees the space.
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` if less space is free; the file may then occupy all the free space.
    /// `Unsupported` if the file system cannot reserve space. The default implementation returns `Unsupported`.
    fn reserve_space(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let _ = (path, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Syncs the entries of a directory to stable storage: created, renamed and removed names.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Locks a file exclusively until the guard is dropped or the process ends. Creates the file if it is missing.
    ///
    /// On return the path refers to the locked file. An implementation must retry if another process removes the name
    /// between the open and the lock.
    ///
    /// # Errors
    /// `WouldBlock` if this or another process holds the lock.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;

    /// Returns the maximum number of files that this process can have open, if there is a limit.
    fn open_files_limit(&self) -> Option<u64> {
        None
    }

    /// Locks an existing file in shared mode until the guard is dropped or the process ends. While the lock is held,
    /// [`Vfs::lock`] fails. Does not change the disk.
    ///
    /// # Errors
    /// `WouldBlock` if the file is locked exclusively; `NotFound` if the file does not exist.
    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;
}

/// An open file. Methods return the error of the operating system.
#[expect(clippy::missing_errors_doc, reason = "each method can return any error of the system")]
#[expect(clippy::len_without_is_empty, reason = "a file system has no such call")]
pub trait File: fmt::Debug + Send + Sync {
    /// Reads at `offset` until `buffer` is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Appends all of `bytes`. After an error, the file may contain a part of the bytes.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Syncs all appended bytes to stable storage, but not the name of the file.
    ///
    /// # Errors
    /// Those of the system. After an error, bytes appended since the last successful sync may be lost, and the file
    /// must not be synced again.
    fn sync(&self) -> io::Result<()>;

    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Allows the file system to preallocate zeros after the end of the file.
    ///
    /// An append into the preallocated zeros does not change the length of the file, so its sync is faster. Other
    /// handles see the zeros until this handle is dropped. After a crash, the file may end with zeros. The default
    /// implementation preallocates nothing.
    fn enable_preallocation(&self) {}

    /// Ends [`File::enable_preallocation`] and removes the zeros. The length then changes only by appends.
    ///
    /// Without this call, dropping the file removes the zeros. Another process may then already have opened the file.
    fn disable_preallocation(&self) {}

    /// Hints that a range will be read soon.
    ///
    /// Returns whether the file system prefetches the range or has the range in memory. The default implementation
    /// returns `false`. Prefetches run concurrently, so reading many prefetched ranges takes little longer than one
    /// read.
    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        let _ = (offset, bytes);
        false
    }

    /// Hints that a range will not be read soon, so that the page cache can drop the range. Starts the writeback of
    /// unsynced bytes without waiting for its end. The default implementation does nothing.
    ///
    /// A call with `u64::MAX` bytes on an empty file also allows later appends to bypass the page cache. Appends bypass
    /// the cache as long as the length of each append is a multiple of 4096 bytes. The file still needs a sync, because
    /// the device may keep the bytes in a volatile cache.
    fn drop_cached_pages(&self, offset: u64, bytes: u64) {
        let _ = (offset, bytes);
    }

    /// Discards the unsynced bytes, to simulate a failed sync in tests. Returns whether this file system supports the
    /// simulation.
    ///
    /// The disk never receives the discarded bytes. Readers still see the bytes if `cached` is set, otherwise zeros.
    fn drop_unsynced(&self, cached: bool) -> bool {
        let _ = cached;
        false
    }
}

/// Holds the lock of a file. Dropping the guard releases the lock.
pub trait LockGuard: fmt::Debug + Send + Sync {}

/// Returns the reason why a directory was not found, for the text of [`Error::NotADatabase`](crate::error::Error).
#[cfg_attr(feature = "internals", visibility::make(pub))]
pub(crate) fn missing_dir_reason(vfs: &dyn Vfs, dir: &Path) -> &'static str {
    match vfs.exists(dir) {
        Ok(true) => "it is a symbolic link to a directory that does not exist",
        _ => "there is no such directory",
    }
}

/// Returns whether a call failed because the process or the system has too many open files.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    // ERROR_TOO_MANY_OPEN_FILES is 4 on Windows. ENFILE is 23 and EMFILE is 24 on every Unix.
    match error.raw_os_error() {
        Some(code) if cfg!(windows) => code == 4,
        Some(code) => code == 23 || code == 24,
        None => false,
    }
}

/// Opens a file for reading and drops its pages from the page cache.
fn open_without_cached_pages<V: Vfs + ?Sized>(vfs: &V, path: &Path) -> io::Result<Arc<dyn File>> {
    let file = vfs.open(path)?;
    file.drop_cached_pages(0, file.len()?);
    Ok(file)
}

/// Returns whether [`Vfs::open_direct`], or a read of the file that it has opened, failed because the file system has no
/// direct reads.
pub(crate) fn has_no_direct_reads(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// Returns whether a call failed because the disk is full or a quota is used up.
pub(crate) fn is_disk_full_error(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn unsupported_direct_read_error() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the file system has no direct reads")
}

/// Returns the error for an append to a file that was opened for reading with [`Vfs::open`].
fn read_only_file_error() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened for reading")
}
