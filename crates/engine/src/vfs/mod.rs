//! Files: few verbs, so that a wrapper can be read in one sitting.
//!
//! Everything the engine reads or writes goes through [`Vfs`]. Paths are handed on as they come.
//! A name lasts through a power loss only after [`Vfs::sync_dir`] of its directory, bytes only
//! after [`File::sync`].

mod call;
mod contained;
mod count;
mod fault;
mod mem;
mod os;
mod paced;
mod shed;

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::Arc;

pub use call::{CallCounts, VfsCall};
pub(crate) use contained::ContainedVfs;
pub use count::{CountingVfs, IoCounts};
pub use fault::{DelayHook, Errno, Fault, FaultVfs, Rule};
pub use mem::{Image, MEM_CAPACITY_DEFAULT, MemVfs, Observer, Operation, OperationKind};
pub use os::OsVfs;
pub(crate) use paced::PacedVfs;
pub(crate) use shed::{Shed, SheddingVfs};

/// A file system.
pub trait Vfs: fmt::Debug + Send + Sync + 'static {
    /// Creates a file for appending and reading. Fails with `AlreadyExists` if the name is taken.
    ///
    /// # Errors
    /// What the system says.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// What the system says; `NotFound` only if the name is not there.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reads that go past the system's page cache, of any place and length.
    ///
    /// # Errors
    /// As [`Vfs::open`]; `Unsupported` or `InvalidInput` where this file system has no such reads, which
    /// is what it answers by default.
    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let _ = path;
        Err(no_direct_reads())
    }

    /// Gives a file another name, in place of what had it.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name; both stand for the same bytes. Fails with `AlreadyExists` if the
    /// new name is taken, with `CrossesDevices` or `Unsupported` where files cannot have two names.
    ///
    /// # Errors
    /// What the system says.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes a file's name away. Who has the file open can go on reading it.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates one directory; its parent must exist. Fails with `AlreadyExists`.
    ///
    /// # Errors
    /// What the system says.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `DirectoryNotEmpty`; `Unsupported` where the file system does not remove directories, which is the default;
    /// else the error of the system.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Names of the files and directories in a directory, sorted.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Whether the name is there. Any doubt is an error, not `false`.
    ///
    /// # Errors
    /// What the system says, `NotFound` apart.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Makes a file that takes room for `bytes` bytes, or grows or shrinks one to that size. Its content has no
    /// meaning. Removing the file frees the room.
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` if there is less room: the file may then take all of it. `Unsupported`
    /// where the file system cannot keep room, which is the default; else the error of the system.
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let _ = (path, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a directory last.
    ///
    /// # Errors
    /// What the system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Locks a file until the guard is dropped or the process ends. Creates the file if it is missing. The locked
    /// file has this name when the call returns, also if another process removes the name at the same time.
    ///
    /// # Errors
    /// `WouldBlock` if somebody holds the lock, in this process or another; else what the system
    /// says.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;

    /// How many files this process may have open at a time, where the system has a limit.
    fn open_files_limit(&self) -> Option<u64> {
        None
    }

    /// Locks an existing file together with others who do the same, and against [`Vfs::lock`],
    /// until the guard is dropped or the process ends. Changes nothing on the disk.
    ///
    /// # Errors
    /// `WouldBlock` if somebody holds the lock alone; `NotFound`; else what the system says.
    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;
}

/// An open file.
pub trait File: fmt::Debug + Send + Sync {
    /// Reads at `offset` until `buffer` is full or the file ends; returns the bytes read.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Appends all of `bytes`. After an error a part may have been appended.
    ///
    /// # Errors
    /// What the system says.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Puts all bytes appended so far on stable storage (the name is the directory's business).
    ///
    /// # Errors
    /// What the system says. After an error nothing appended since the last good sync counts as
    /// stored, and the file must not be synced again.
    fn sync(&self) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Says that the file will be appended to and synced many times. The file system may let it grow
    /// ahead of its end, by zeros, so that most syncs need not make a new length last; that shows
    /// to whoever opens the file again before this handle is gone, or after a crash. By default it
    /// does not.
    fn grow_ahead(&self) {}

    /// Ends [`File::grow_ahead`]: cuts the zeros off, and never changes the length of the file again unless it is
    /// appended to. Otherwise the last drop of the file cuts them, which may be after another owner has opened it.
    fn stop_growing(&self) {}

    /// Says that these bytes are about to be read. Returns whether the file system reads them ahead, or
    /// has them: then reads of many places, each told first, take hardly longer than one. By default it
    /// does not.
    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        let _ = (offset, bytes);
        false
    }

    /// Says that these bytes will not be read soon, so the system's cache need not keep them; bytes
    /// that are not yet on the disk begin their way there. A hint: nothing waits for it, nothing is
    /// promised, and by default nothing is done.
    fn forget(&self, offset: u64, bytes: u64) {
        let _ = (offset, bytes);
    }

    /// For tests: does to the bytes that are not synced what a failed sync does, and says whether
    /// this file system can. The disk never gets them; readers go on seeing them if `cached`, else
    /// see zeros. Called by [`FaultVfs`].
    #[doc(hidden)]
    fn drop_unsynced(&self, cached: bool) -> bool {
        let _ = cached;
        false
    }
}

/// Holds a lock file's lock; dropping it frees the lock.
pub trait LockGuard: fmt::Debug + Send + Sync {}

/// Opens a file for reads that come from the device: past the page cache where the file system has such
/// reads, else after the cached pages of the file were dropped.
///
/// # Errors
/// As [`Vfs::open`].
pub fn open_past_cache(vfs: &dyn Vfs, path: &Path) -> io::Result<Arc<dyn File>> {
    match vfs.open_direct(path) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) =>
        {
            let file = vfs.open(path)?;
            file.forget(0, file.len()?);
            Ok(file)
        }
        opened => opened,
    }
}

/// Returns why a directory that a call did not find is missing, for [`Error::NotADatabase`](crate::Error).
pub fn missing_dir_reason(vfs: &dyn Vfs, dir: &Path) -> &'static str {
    match vfs.exists(dir) {
        Ok(true) => "it is a symbolic link to a directory that does not exist",
        _ => "there is no such directory",
    }
}

/// Whether a call failed because the process or the system has too many files open.
pub(crate) fn out_of_descriptors(error: &io::Error) -> bool {
    // EMFILE and ENFILE have had these numbers on every Unix since the seventh edition; Windows
    // calls it ERROR_TOO_MANY_OPEN_FILES.
    match error.raw_os_error() {
        Some(code) if cfg!(windows) => code == 4,
        Some(code) => code == 23 || code == 24,
        None => false,
    }
}

/// Whether a call failed because the disk, or the caller's quota on it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The answer of a file system without reads past the page cache.
fn no_direct_reads() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "there are no direct reads on this file system")
}

/// The answer to an append through a handle that came from [`Vfs::open`].
fn opened_for_reading() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened for reading")
}
