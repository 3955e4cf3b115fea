//! Frees descriptors or disk space when a call finds none, and repeats the call.
//!
//! Other parts of the process open files too, so a call may find no free descriptor although the engine keeps to
//! its own budget. A full disk takes the reserve of the database.

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::{Arc, AtomicU64, OnceLock, Ordering, Weak};

use crate::vfs::{File, LockGuard, Vfs, is_full, out_of_descriptors};

/// An owner of something that calls to the file system run out of.
pub(crate) trait Shed: fmt::Debug + Send + Sync {
    /// Frees some of it. Returns whether there was any.
    fn shed(&self) -> bool;
}

/// An owner that is set once, later than the file system is made, and may end before it.
type Owner = Arc<OnceLock<Weak<dyn Shed>>>;

fn shed(owner: &Owner) -> bool {
    owner.get().and_then(Weak::upgrade).is_some_and(|owner| owner.shed())
}

/// A file system that frees descriptors and disk space for its own calls.
#[derive(Debug)]
pub(crate) struct SheddingVfs {
    inner: Arc<dyn Vfs>,
    /// Owner of descriptors. Until it is set, errors are passed on.
    descriptors: Owner,
    /// Owner of disk space. Until it is set, errors are passed on.
    space: Owner,
}

impl SheddingVfs {
    pub(crate) fn new(inner: Arc<dyn Vfs>) -> Arc<SheddingVfs> {
        Arc::new(SheddingVfs { inner, descriptors: Owner::default(), space: Owner::default() })
    }

    /// The same file system, except that calls through it do not take disk space of the owner.
    pub(crate) fn sparing_space(&self) -> Arc<SheddingVfs> {
        let (inner, descriptors) = (Arc::clone(&self.inner), Arc::clone(&self.descriptors));
        Arc::new(SheddingVfs { inner, descriptors, space: Owner::default() })
    }

    /// Sets the owner of descriptors. Only the first call counts.
    pub(crate) fn set_shed(&self, owner: Weak<dyn Shed>) {
        let _ = self.descriptors.set(owner);
    }

    /// Sets the owner of disk space. Only the first call counts.
    pub(crate) fn set_space(&self, owner: Weak<dyn Shed>) {
        let _ = self.space.set(owner);
    }

    /// Makes a call that needs a descriptor or disk space. It ends: every repetition was freed something.
    fn with_relief<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(error) if out_of_descriptors(&error) && shed(&self.descriptors) => {}
                Err(error) if is_full(&error) && shed(&self.space) => {}
                done => return done,
            }
        }
    }
}

/// A new file. An append that finds the disk full continues once space was freed.
#[derive(Debug)]
struct SheddingFile {
    inner: Arc<dyn File>,
    space: Owner,
    /// Bytes in the file, or [`UNKNOWN`] after an append that failed.
    end: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl SheddingFile {
    /// How many bytes of the failed append are in the file; `None` if that is not known.
    fn appended(&self, bytes: &[u8]) -> Option<usize> {
        let appended = self.inner.len().ok()?.checked_sub(self.end.load(Ordering::Relaxed))?;
        usize::try_from(appended).ok().filter(|appended| *appended <= bytes.len())
    }
}

impl File for SheddingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn append(&self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let error = match self.inner.append(bytes) {
                Ok(()) => {
                    if self.end.load(Ordering::Relaxed) != UNKNOWN {
                        self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            let appended = if is_full(&error) { self.appended(bytes) } else { None };
            let Some(appended) = appended.filter(|_| shed(&self.space)) else {
                self.end.store(UNKNOWN, Ordering::Relaxed);
                return Err(error);
            };
            self.end.fetch_add(appended as u64, Ordering::Relaxed);
            bytes = &bytes[appended..];
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn grow_ahead(&self) {
        self.inner.grow_ahead();
    }

    fn stop_growing(&self) {
        self.inner.stop_growing();
    }

    fn will_need(&self, offset: u64, bytes: u64) -> bool {
        self.inner.will_need(offset, bytes)
    }

    fn forget(&self, offset: u64, bytes: u64) {
        self.inner.forget(offset, bytes);
    }

    fn drop_unsynced(&self, cached: bool) -> bool {
        self.inner.drop_unsynced(cached)
    }
}

impl Vfs for SheddingVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = self.with_relief(|| self.inner.create(path))?;
        let (space, end) = (Arc::clone(&self.space), AtomicU64::new(0));
        Ok(Arc::new(SheddingFile { inner, space, end }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.with_relief(|| self.inner.open(path))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.with_relief(|| self.inner.open_direct(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with_relief(|| self.inner.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.with_relief(|| self.inner.create_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.with_relief(|| self.inner.list(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.with_relief(|| self.inner.reserve(path, bytes))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Without a descriptor the directory is not opened and nothing is synced, so a repetition hides no failed
        // sync. A sync that finds the disk full is a failed one.
        loop {
            match self.inner.sync_dir(path) {
                Err(error) if out_of_descriptors(&error) && shed(&self.descriptors) => {}
                done => return done,
            }
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.with_relief(|| self.inner.lock(path))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with_relief(|| self.inner.hard_link(from, to))
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.with_relief(|| self.inner.lock_shared(path))
    }

    fn open_files_limit(&self) -> Option<u64> {
        self.inner.open_files_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn an_append_that_finds_the_disk_full_continues_where_it_stopped() {
        let disk = MemVfs::new();
        let vfs = SheddingVfs::new(Arc::new(disk.clone()));
        let file = vfs.create(Path::new("f")).unwrap();
        file.append(&[1; 70]).unwrap();
        disk.set_capacity(Some(100));
        disk.reserve(Path::new("r"), 20).unwrap();
        let space: Arc<dyn Shed> = Arc::new(Removes(disk.clone()));
        vfs.set_space(Arc::downgrade(&space));
        let sparing = vfs.sparing_space().create(Path::new("g")).unwrap();
        assert_eq!(sparing.append(&[2; 11]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        vfs.remove(Path::new("g")).unwrap();
        let bytes: Vec<u8> = (0..30).collect();
        file.append(&bytes).unwrap();
        let mut found = [0; 100];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 100);
        assert_eq!(found[70..], bytes);
        assert_eq!(file.append(&[3]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[derive(Debug)]
    struct Removes(MemVfs);

    impl Shed for Removes {
        fn shed(&self) -> bool {
            self.0.remove(Path::new("r")).is_ok()
        }
    }
}
