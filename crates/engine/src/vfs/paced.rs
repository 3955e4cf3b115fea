//! Files that jobs write: at a limited rate, synced in steps, and where wanted not kept in the
//! system's cache.

use std::io;
use std::path::Path;

use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use crate::env::rate::{Lane, RateLimit};
use crate::vfs::{File, LockGuard, Vfs};

/// A file is synced whenever so many more bytes were appended, so that the last sync finds little
/// left and other syncs do not queue up behind it.
pub(crate) const SYNC_STEP_BYTES: u64 = 16 << 20;

/// A file system that hands out new files for one lane of background work.
#[derive(Debug)]
pub(crate) struct PacedVfs {
    inner: Arc<dyn Vfs>,
    pace: Arc<Pace>,
}

/// How the files are written.
#[derive(Debug)]
struct Pace {
    rate: Arc<RateLimit>,
    lane: Lane,
    /// Whether what was synced leaves the system's cache.
    forget: bool,
}

impl PacedVfs {
    pub(crate) fn new(
        inner: Arc<dyn Vfs>,
        rate: Arc<RateLimit>,
        lane: Lane,
        forget: bool,
    ) -> PacedVfs {
        PacedVfs { inner, pace: Arc::new(Pace { rate, lane, forget }) }
    }
}

impl Vfs for PacedVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let (inner, pace) = (self.inner.create(path)?, Arc::clone(&self.pace));
        let (appended, synced) = Default::default();
        Ok(Arc::new(PacedFile { inner, pace, appended, synced }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.inner.open(path)
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.inner.open_direct(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.inner.reserve(path, bytes)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.inner.lock(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.hard_link(from, to)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.inner.lock_shared(path)
    }

    fn open_files_limit(&self) -> Option<u64> {
        self.inner.open_files_limit()
    }
}

/// A file that one job appends to.
#[derive(Debug)]
struct PacedFile {
    inner: Arc<dyn File>,
    pace: Arc<Pace>,
    appended: AtomicU64,
    synced: AtomicU64,
}

impl File for PacedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner.append(bytes)?;
        let count = bytes.len() as u64;
        let appended = self.appended.fetch_add(count, Ordering::Relaxed) + count;
        if appended - self.synced.load(Ordering::Relaxed) >= SYNC_STEP_BYTES {
            // Whoever appends stops at the first error, so a failed sync is not tried again.
            self.sync()?;
        }
        self.pace.rate.take(self.pace.lane, count);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let appended = self.appended.load(Ordering::Relaxed);
        self.inner.sync()?;
        let from = self.synced.swap(appended, Ordering::Relaxed);
        if self.pace.forget {
            self.inner.forget(from, appended - from);
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Background, Env};
    use crate::vfs::{CountingVfs, Errno, Fault, FaultVfs, MemVfs, Rule, VfsCall};

    fn paced(inner: Arc<dyn Vfs>) -> PacedVfs {
        let env = Env::new(Background::Inline, Some(1));
        PacedVfs::new(inner, Arc::new(RateLimit::new(env, None)), Lane::Flush, true)
    }

    #[test]
    fn a_large_file_is_synced_in_steps() {
        let counting = CountingVfs::new(Arc::new(MemVfs::new()));
        let file = paced(Arc::new(counting.clone())).create(Path::new("f")).unwrap();
        let syncs = || counting.counts().calls.of(VfsCall::Sync);
        let step = usize::try_from(SYNC_STEP_BYTES).unwrap();
        let bytes = vec![1; step / 4];
        (0..3).for_each(|_| file.append(&bytes).unwrap());
        assert_eq!(syncs(), 0);
        file.append(&bytes).unwrap();
        assert_eq!(syncs(), 1);
        (0..5).for_each(|_| file.append(&bytes).unwrap());
        assert_eq!(syncs(), 2);
        file.sync().unwrap();
        assert_eq!((syncs(), file.len().unwrap()), (3, SYNC_STEP_BYTES / 4 * 9));
    }

    #[test]
    fn a_failed_step_fails_the_append() {
        let faults = FaultVfs::new(Arc::new(MemVfs::new()), 1);
        faults.add(Rule::new(Fault::Error(Errno::Io)).on(&[VfsCall::Sync]).nth(0));
        let file = paced(Arc::new(faults)).create(Path::new("f")).unwrap();
        let step = usize::try_from(SYNC_STEP_BYTES).unwrap();
        assert!(file.append(&vec![1; step - 1]).is_ok());
        assert!(file.append(&[1]).is_err());
    }
}
