//! Files that background jobs write. Appends are rate limited, synced in steps, and may bypass the page cache.

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use crate::env::rate_limit::{IoPriority, RateLimiter};
use crate::env::thread_time::{IoKind, measure_wait};
use crate::vfs::layer::{FileLayer, OpenMode, VfsLayer};
use crate::vfs::{File, Vfs};

/// Bytes appended to a file between two syncs. Without intermediate syncs, the final sync would take long and would
/// delay syncs of other files.
pub(crate) const SYNC_STEP_BYTES: u64 = 16 << 20;

/// A file system that creates files for background jobs of one priority.
#[derive(Debug)]
pub(crate) struct PacedVfs {
    inner: Arc<dyn Vfs>,
    pacing: Arc<Pacing>,
}

#[derive(Debug)]
struct Pacing {
    limiter: Arc<RateLimiter>,
    priority: IoPriority,
    /// Whether appends bypass the page cache. Each sync then also drops the synced bytes from the page cache, because a
    /// file system without direct writes caches them.
    bypasses_cache: bool,
}

impl Pacing {
    /// Runs `call`. For compactions, records how long the thread waits for `call`.
    fn measure_wait<T>(&self, kind: IoKind, call: impl FnOnce() -> T) -> T {
        match self.priority {
            IoPriority::Flush => call(),
            IoPriority::Compaction => measure_wait(self.limiter.env(), kind, call),
        }
    }
}

impl PacedVfs {
    pub(crate) fn new(
        inner: Arc<dyn Vfs>,
        limiter: Arc<RateLimiter>,
        priority: IoPriority,
        bypasses_cache: bool,
    ) -> PacedVfs {
        PacedVfs { inner, pacing: Arc::new(Pacing { limiter, priority, bypasses_cache }) }
    }
}

impl VfsLayer for PacedVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = mode.open(&*self.inner, path)?;
        if mode != OpenMode::Create {
            return Ok(inner);
        }
        if self.pacing.bypasses_cache {
            inner.drop_cached_pages(0, u64::MAX);
        }
        let (appended, synced) = Default::default();
        Ok(Arc::new(PacedFile { inner, pacing: Arc::clone(&self.pacing), appended, synced }))
    }
}

/// A file that a single job appends to. Only one thread updates the counters, so relaxed accesses are enough.
#[derive(Debug)]
struct PacedFile {
    inner: Arc<dyn File>,
    pacing: Arc<Pacing>,
    /// Bytes appended so far.
    appended: AtomicU64,
    /// Value of `appended` at the last successful sync.
    synced: AtomicU64,
}

impl FileLayer for PacedFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn intercept_append(&self, bytes: &[u8]) -> io::Result<()> {
        self.pacing.measure_wait(IoKind::Write, || self.inner.append(bytes))?;
        let count = bytes.len() as u64;
        let appended = self.appended.fetch_add(count, Ordering::Relaxed) + count;
        if appended - self.synced.load(Ordering::Relaxed) >= SYNC_STEP_BYTES {
            // A job stops at the first error, so a failed sync is never repeated.
            self.intercept_sync()?;
        }
        self.pacing.limiter.acquire(self.pacing.priority, count);
        Ok(())
    }

    fn intercept_sync(&self) -> io::Result<()> {
        let appended = self.appended.load(Ordering::Relaxed);
        if !(self.pacing.bypasses_cache && failpoint::is_on(Failpoint::DirectAppendsNotSynced)) {
            self.pacing.measure_wait(IoKind::Sync, || self.inner.sync())?;
        }
        let from = self.synced.swap(appended, Ordering::Relaxed);
        if self.pacing.bypasses_cache {
            self.inner.drop_cached_pages(from, appended - from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Background, Env};
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::counting::CountingVfs;
    use crate::vfs::fault::{Errno, Fault, FaultRule, FaultVfs};

    fn paced(inner: Arc<dyn Vfs>) -> PacedVfs {
        let env = Env::new(Background::Inline, Some(1));
        PacedVfs::new(inner, Arc::new(RateLimiter::new(env, None)), IoPriority::Flush, true)
    }

    #[test]
    fn paced_append_of_large_file_syncs_in_steps() {
        let counting = CountingVfs::new(Arc::new(MemVfs::new()));
        let file = paced(Arc::new(counting.clone())).create(Path::new("f")).unwrap();
        let syncs = || counting.counts().calls.count_of(VfsCall::Sync);
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
    fn paced_append_with_failing_sync_fails() {
        let faults = FaultVfs::new(Arc::new(MemVfs::new()), 1);
        faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]).nth(0));
        let file = paced(Arc::new(faults)).create(Path::new("f")).unwrap();
        let step = usize::try_from(SYNC_STEP_BYTES).unwrap();
        assert!(file.append(&vec![1; step - 1]).is_ok());
        assert!(file.append(&[1]).is_err());
    }
}
