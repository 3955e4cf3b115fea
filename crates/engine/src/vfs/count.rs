//! Counts the calls that reach a file system, and their bytes.

use std::cell::Cell;
use std::io;
use std::path::Path;

use lsmx_base::sync::Arc;

use crate::vfs::call::{CallCounters, CallCounts, VfsCall};
use crate::vfs::{File, LockGuard, Vfs};

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// A file system whose calls are counted. Clones share the counts.
#[derive(Clone, Debug)]
pub struct CountingVfs {
    inner: Arc<dyn Vfs>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    calls: CallCounters,
    bytes: CallCounters,
}

impl Counters {
    fn count(&self, call: VfsCall) {
        self.calls.add(call, 1);
    }
}

/// What has been counted so far. Failed calls are calls; their bytes do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Calls by kind. A read that the system served in parts is one.
    pub calls: CallCounts,
    /// Bytes read and appended, by kind of call; 0 for all other kinds.
    pub bytes: CallCounts,
}

impl CountingVfs {
    /// Counts what reaches `inner` through this one.
    #[must_use]
    pub fn new(inner: Arc<dyn Vfs>) -> CountingVfs {
        CountingVfs { inner, counters: Arc::default() }
    }

    /// What has been counted so far, over all files.
    #[must_use]
    pub fn counts(&self) -> IoCounts {
        IoCounts { calls: self.counters.calls.get(), bytes: self.counters.bytes.get() }
    }

    /// Reads that the calling thread has made so far, through any counting file system: what one operation
    /// reads, whatever other threads do meanwhile.
    #[must_use]
    pub fn reads_of_this_thread() -> u64 {
        READS.get()
    }

    fn wrap(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(CountingFile { inner, counters: self.counters.clone() })
    }
}

impl Vfs for CountingVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.counters.count(VfsCall::Create);
        Ok(self.wrap(self.inner.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.counters.count(VfsCall::Open);
        Ok(self.wrap(self.inner.open(path)?))
    }

    fn open_direct(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.counters.count(VfsCall::Open);
        Ok(self.wrap(self.inner.open_direct(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.counters.count(VfsCall::Rename);
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.counters.count(VfsCall::HardLink);
        self.inner.hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.counters.count(VfsCall::Remove);
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.counters.count(VfsCall::Remove);
        self.inner.remove_dir(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.counters.count(VfsCall::CreateDir);
        self.inner.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.counters.count(VfsCall::List);
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.counters.count(VfsCall::Exists);
        self.inner.exists(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.counters.count(VfsCall::Reserve);
        self.inner.reserve(path, bytes)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.counters.count(VfsCall::SyncDir);
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.counters.count(VfsCall::Lock);
        self.inner.lock(path)
    }

    fn open_files_limit(&self) -> Option<u64> {
        self.inner.open_files_limit()
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.counters.count(VfsCall::LockShared);
        self.inner.lock_shared(path)
    }
}

#[derive(Debug)]
struct CountingFile {
    inner: Arc<dyn File>,
    counters: Arc<Counters>,
}

impl File for CountingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.counters.count(VfsCall::Read);
        READS.set(READS.get() + 1);
        let read = self.inner.read_at(buffer, offset)?;
        self.counters.bytes.add(VfsCall::Read, read as u64);
        Ok(read)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.counters.count(VfsCall::Append);
        self.inner.append(bytes)?;
        self.counters.bytes.add(VfsCall::Append, bytes.len() as u64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.counters.count(VfsCall::Sync);
        self.inner.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.counters.count(VfsCall::Len);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;

    #[test]
    fn every_call_is_counted_with_its_bytes() -> io::Result<()> {
        let disk = MemVfs::new();
        disk.set_capacity(Some(1_000));
        let vfs = CountingVfs::new(Arc::new(disk));
        let path = Path::new("d/f");
        vfs.create_dir(Path::new("d"))?;
        let file = vfs.create(path)?;
        file.append(b"12345")?;
        file.append(b"6")?;
        file.sync()?;
        vfs.sync_dir(Path::new("d"))?;
        let mut buffer = [0; 4];
        let reads = CountingVfs::reads_of_this_thread();
        assert_eq!(vfs.open(path)?.read_at(&mut buffer, 3)?, 3);
        assert_eq!(CountingVfs::reads_of_this_thread(), reads + 1);
        std::thread::scope(|scope| {
            // Of a thread that has read nothing.
            scope.spawn(|| assert_eq!(CountingVfs::reads_of_this_thread(), 0));
        });
        assert_eq!(file.len()?, 6);
        assert!(vfs.exists(path)?);
        drop(vfs.lock(Path::new("d/lock"))?);
        drop(vfs.lock_shared(Path::new("d/lock"))?);
        vfs.hard_link(path, Path::new("d/h"))?;
        vfs.rename(path, Path::new("d/g"))?;
        vfs.remove(Path::new("d/g"))?;
        assert!(vfs.open(path).is_err());
        vfs.reserve(Path::new("d/room"), 100)?;
        assert_eq!(vfs.list(Path::new("d"))?, ["h", "lock", "room"]);
        let counts = vfs.counts();
        for &call in VfsCall::ALL {
            let expected = match call {
                VfsCall::Append | VfsCall::Open => 2,
                _ => 1,
            };
            assert_eq!(counts.calls.of(call), expected, "{call:?}");
        }
        assert_eq!(counts.calls.total(), 18);
        assert_eq!(counts.bytes.of(VfsCall::Append), 6);
        assert_eq!(counts.bytes.of(VfsCall::Read), 3);
        assert_eq!(counts.bytes.total(), 9);
        Ok(())
    }
}
