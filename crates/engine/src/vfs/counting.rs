//! Counts the calls of a file system and the bytes that they read and append.

use std::cell::Cell;
use std::io;
use std::path::Path;

use lsmx_base::sync::{Arc, ShardedCounter};

use crate::vfs::call::VfsCall;
use crate::vfs::layer::{FileLayer, OpenMode, VfsLayer};
use crate::vfs::{File, Vfs};

thread_local! {
    static THREAD_READS: Cell<u64> = const { Cell::new(0) };
}

/// A file system that counts its calls. Clones share the counts.
#[derive(Clone, Debug)]
pub struct CountingVfs {
    inner: Arc<dyn Vfs>,
    counters: Arc<IoCounters>,
}

#[derive(Debug, Default)]
struct IoCounters {
    calls: CallCounters,
    bytes: CallCounters,
}

/// Counts of a [`CountingVfs`]. A failed call counts as a call but adds no bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Number of calls by kind. A read that needs several system calls counts once.
    pub calls: CallCounts,
    /// Bytes by kind of call: bytes read for [`VfsCall::Read`], bytes appended for [`VfsCall::Append`], 0 for other
    /// kinds.
    pub bytes: CallCounts,
}

impl CountingVfs {
    /// Wraps `inner`. All counts start at 0.
    #[must_use]
    pub fn new(inner: Arc<dyn Vfs>) -> CountingVfs {
        CountingVfs { inner, counters: Arc::default() }
    }

    /// Returns the counts over all files.
    #[must_use]
    pub fn counts(&self) -> IoCounts {
        IoCounts { calls: self.counters.calls.get(), bytes: self.counters.bytes.get() }
    }

    /// Returns the number of reads that the calling thread has made through all [`CountingVfs`] of the process.
    ///
    /// To count the reads of one operation, subtract the value before the operation from the value after the operation.
    /// Reads of other threads do not affect the difference.
    #[must_use]
    pub fn reads_of_this_thread() -> u64 {
        THREAD_READS.get()
    }
}

impl VfsLayer for CountingVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn before_call(&self, call: VfsCall, _: &Path) -> io::Result<()> {
        self.counters.calls.add(call, 1);
        Ok(())
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = mode.open(&*self.inner, path)?;
        Ok(Arc::new(CountingFile { inner, counters: self.counters.clone() }))
    }
}

#[derive(Debug)]
struct CountingFile {
    inner: Arc<dyn File>,
    counters: Arc<IoCounters>,
}

impl FileLayer for CountingFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn before_call(&self, call: VfsCall) -> io::Result<()> {
        self.counters.calls.add(call, 1);
        Ok(())
    }

    fn intercept_read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        THREAD_READS.set(THREAD_READS.get() + 1);
        let read = self.inner.read_at(buffer, offset)?;
        self.counters.bytes.add(VfsCall::Read, read as u64);
        Ok(read)
    }

    fn intercept_append(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner.append(bytes)?;
        self.counters.bytes.add(VfsCall::Append, bytes.len() as u64);
        Ok(())
    }
}

const CALL_KINDS: usize = VfsCall::ALL.len();

/// One number for each kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; CALL_KINDS]);

impl CallCounts {
    /// Returns the count of one kind.
    #[must_use]
    pub fn count_of(&self, call: VfsCall) -> u64 {
        self.0[call as usize]
    }

    /// Returns the sum of the counts of some kinds.
    #[must_use]
    pub fn sum_of_counts(&self, calls: &[VfsCall]) -> u64 {
        calls.iter().map(|call| self.count_of(*call)).sum()
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sum_of_counts(VfsCall::ALL)
    }
}

/// A counter for each kind of call.
#[derive(Debug, Default)]
pub(crate) struct CallCounters([ShardedCounter; CALL_KINDS]);

impl CallCounters {
    pub(crate) fn add(&self, call: VfsCall, count: u64) {
        self.0[call as usize].add(count);
    }

    pub(crate) fn get(&self) -> CallCounts {
        CallCounts(std::array::from_fn(|index| self.0[index].sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;

    #[test]
    fn counting_vfs_counts_every_call_and_its_bytes() -> io::Result<()> {
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
        vfs.reserve_space(Path::new("d/room"), 100)?;
        assert_eq!(vfs.list(Path::new("d"))?, ["h", "lock", "room"]);
        let counts = vfs.counts();
        for &call in VfsCall::ALL {
            let expected = match call {
                VfsCall::Append | VfsCall::Open => 2,
                _ => 1,
            };
            assert_eq!(counts.calls.count_of(call), expected, "{call:?}");
        }
        assert_eq!(counts.calls.total(), 18);
        assert_eq!(counts.bytes.count_of(VfsCall::Append), 6);
        assert_eq!(counts.bytes.count_of(VfsCall::Read), 3);
        assert_eq!(counts.bytes.total(), 9);
        Ok(())
    }
}
