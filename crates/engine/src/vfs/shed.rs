//! Lets go of descriptors when the process has none left, and tries again.
//!
//! Other parts of the process open files too, so a call may find none left although the engine
//! keeps to its own budget.

use std::fmt;
use std::io;
use std::path::Path;

use super::{File, LockGuard, Vfs, out_of_descriptors};
use crate::sync::{Arc, OnceLock, Weak};

/// Somebody who has descriptors that can be closed.
pub(crate) trait Shed: fmt::Debug + Send + Sync {
    /// Closes some; returns whether there were any.
    fn shed(&self) -> bool;
}

/// A file system whose calls that need a descriptor have some closed where there is none left.
#[derive(Debug)]
pub(crate) struct SheddingVfs {
    inner: Arc<dyn Vfs>,
    /// Set once by whoever has descriptors; until then errors are passed on.
    shed: OnceLock<Weak<dyn Shed>>,
}

impl SheddingVfs {
    pub(crate) fn new(inner: Arc<dyn Vfs>) -> Arc<SheddingVfs> {
        Arc::new(SheddingVfs { inner, shed: OnceLock::new() })
    }

    /// From here on this one is asked, as long as it lives: it may well hold this file system. Only
    /// the first call counts.
    pub(crate) fn set_shed(&self, shed: Weak<dyn Shed>) {
        let _ = self.shed.set(shed);
    }

    /// Makes a call that needs a descriptor. It ends: every round closes at least one.
    fn with_descriptor<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(error)
                    if out_of_descriptors(&error)
                        && self.shed.get().and_then(Weak::upgrade).is_some_and(|it| it.shed()) => {}
                done => return done,
            }
        }
    }
}

impl Vfs for SheddingVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.with_descriptor(|| self.inner.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.with_descriptor(|| self.inner.open(path))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.with_descriptor(|| self.inner.open_direct(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.with_descriptor(|| self.inner.list(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.with_descriptor(|| self.inner.reserve(path, bytes))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // The directory is opened for it. That fails before anything is synced, so trying again
        // hides no failed sync.
        self.with_descriptor(|| self.inner.sync_dir(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.with_descriptor(|| self.inner.lock(path))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.hard_link(from, to)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.with_descriptor(|| self.inner.lock_shared(path))
    }

    fn open_files_limit(&self) -> Option<u64> {
        self.inner.open_files_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};
    use crate::vfs::{Errno, Fault, FaultVfs, MemVfs, Rule, VfsCall};

    #[derive(Debug)]
    struct Spare(AtomicU64);

    impl Shed for Spare {
        fn shed(&self) -> bool {
            let left = self.0.load(Ordering::Relaxed);
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
            left > 0
        }
    }

    #[test]
    fn a_call_is_tried_again_as_long_as_something_can_be_closed() {
        let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        let vfs = SheddingVfs::new(Arc::new(faults.clone()));
        vfs.create(Path::new("f")).unwrap();
        let none_left = Fault::Error(Errno::TooManyFiles);
        faults.add(Rule::new(none_left).on(&[VfsCall::Open]).nth(0));
        assert!(vfs.open(Path::new("f")).is_err(), "nobody sheds yet");
        let spare = Arc::new(Spare(AtomicU64::new(2)));
        let shed: Arc<dyn Shed> = spare.clone();
        vfs.set_shed(Arc::downgrade(&shed));
        faults.add(Rule::new(none_left).on(&[VfsCall::Open]).nth(0));
        assert!(vfs.open(Path::new("f")).is_ok());
        assert_eq!(spare.0.load(Ordering::Relaxed), 1);
        faults.add(Rule::new(Fault::Error(Errno::Io)).on(&[VfsCall::Open]).nth(0));
        assert!(vfs.open(Path::new("f")).is_err(), "another error is passed on");
        assert_eq!(spare.0.load(Ordering::Relaxed), 1);
    }
}
