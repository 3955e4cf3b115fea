//! Releases file descriptors or disk space if a call fails for lack of them, and then retries the call.
//!
//! The engine limits the number of its open files. A call may still find no free descriptor, because other parts of
//! the process open files too. When the disk is full, the disk reserve of the database is released.

use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::sync::{Arc, AtomicU64, OnceLock, Ordering, Weak};

use crate::vfs::call::VfsCall;
use crate::vfs::layer::{FileLayer, OpenMode, VfsLayer};
use crate::vfs::{File, Vfs, is_disk_full_error, is_out_of_descriptors};

/// Owner of file descriptors or disk space that can be released when a file system call needs them.
pub(crate) trait ReleaseResource: fmt::Debug + Send + Sync {
    /// Returns the number of releases so far.
    fn release_count(&self) -> u64;

    /// Releases some descriptors or disk space after a call has failed. `count_before` is the release count before the
    /// call. Returns true if anything was released, by this method or since `count_before`.
    fn release_resource(&self, count_before: u64) -> bool;
}

/// Reference to an owner. Set once, after the file system is created. The reference is weak, because the owner may be
/// dropped before the file system.
type ResourceOwner = Arc<OnceLock<Weak<dyn ReleaseResource>>>;

/// Maximum retries of one call. Other threads may use the descriptors or the space that each release frees.
const RETRIES_MAX: u32 = 16;

/// Retries of one call that has found no free descriptor or a full disk.
struct ResourceRetries<'a> {
    owner: &'a ResourceOwner,
    /// Release count of the owner before the current attempt.
    count_before: u64,
    retries: u32,
}

impl ResourceRetries<'_> {
    fn new(owner: &ResourceOwner) -> ResourceRetries<'_> {
        ResourceRetries { owner, count_before: release_count(owner), retries: 0 }
    }

    /// Releases the resource after an attempt has failed. Returns whether the call must be retried.
    fn release(&mut self) -> bool {
        let owner = self.owner.get().and_then(Weak::upgrade);
        if self.retries == RETRIES_MAX
            || !owner.is_some_and(|owner| owner.release_resource(self.count_before))
        {
            return false;
        }
        self.retries += 1;
        self.count_before = release_count(self.owner);
        true
    }
}

fn release_count(owner: &ResourceOwner) -> u64 {
    owner.get().and_then(Weak::upgrade).map_or(0, |owner| owner.release_count())
}

/// A file system that retries failed calls after an owner has released descriptors or disk space.
#[derive(Debug)]
pub(crate) struct ResourceRetryVfs {
    inner: Arc<dyn Vfs>,
    /// Owner of descriptors. Until the owner is set, a call that finds no free descriptor fails.
    descriptors: ResourceOwner,
    /// Owner of disk space. Until the owner is set, a call that finds the disk full fails.
    space: ResourceOwner,
}

impl ResourceRetryVfs {
    pub(crate) fn new(inner: Arc<dyn Vfs>) -> Arc<ResourceRetryVfs> {
        let (descriptors, space) = Default::default();
        Arc::new(ResourceRetryVfs { inner, descriptors, space })
    }

    /// Returns a wrapper of the same inner file system that has no owner of disk space. Its calls fail on a full disk
    /// and never release the disk reserve.
    pub(crate) fn without_space_owner(&self) -> Arc<ResourceRetryVfs> {
        let (inner, descriptors) = (Arc::clone(&self.inner), Arc::clone(&self.descriptors));
        Arc::new(ResourceRetryVfs { inner, descriptors, space: ResourceOwner::default() })
    }

    /// Sets the owner of descriptors. Later calls have no effect.
    pub(crate) fn set_descriptor_owner(&self, owner: Weak<dyn ReleaseResource>) {
        let _ = self.descriptors.set(owner);
    }

    /// Sets the owner of disk space. Later calls have no effect.
    pub(crate) fn set_space_owner(&self, owner: Weak<dyn ReleaseResource>) {
        let _ = self.space.set(owner);
    }
}

impl VfsLayer for ResourceRetryVfs {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn intercept<T>(&self, call: VfsCall, forward: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let releases_space = match call {
            VfsCall::Remove | VfsCall::Exists => return forward(),
            // Without a free descriptor, a directory sync fails before it syncs anything, so a retry is safe. On a
            // full disk the sync itself fails. A failed sync must not be retried, because unsynced data may be lost.
            VfsCall::SyncDir => false,
            _ => true,
        };
        let mut descriptors = ResourceRetries::new(&self.descriptors);
        let mut space = ResourceRetries::new(&self.space);
        loop {
            match forward() {
                Err(error) if is_out_of_descriptors(&error) && descriptors.release() => {}
                Err(error) if releases_space && is_disk_full_error(&error) && space.release() => {}
                done => return done,
            }
        }
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = mode.open(&*self.inner, path)?;
        if mode != OpenMode::Create {
            return Ok(inner);
        }
        let (space, end) = (Arc::clone(&self.space), AtomicU64::new(0));
        Ok(Arc::new(SpaceRetryFile { inner, space, end }))
    }
}

/// A file opened for appending. If an append finds the disk full and the owner releases space, the append continues
/// after the bytes that were already appended.
#[derive(Debug)]
struct SpaceRetryFile {
    inner: Arc<dyn File>,
    space: ResourceOwner,
    /// Length of the file in bytes, or [`UNKNOWN_END`] after a failed append.
    end: AtomicU64,
}

const UNKNOWN_END: u64 = u64::MAX;

impl SpaceRetryFile {
    /// Returns the number of bytes that a failed append of `bytes` has added to the file, or `None` if unknown.
    fn appended_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let appended = self.inner.len().ok()?.checked_sub(self.end.load(Ordering::Relaxed))?;
        usize::try_from(appended).ok().filter(|appended| *appended <= bytes.len())
    }
}

impl FileLayer for SpaceRetryFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn intercept_append(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut space = ResourceRetries::new(&self.space);
        loop {
            let error = match self.inner.append(bytes) {
                Ok(()) => {
                    if self.end.load(Ordering::Relaxed) != UNKNOWN_END {
                        self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            let appended =
                if is_disk_full_error(&error) { self.appended_bytes(bytes) } else { None };
            let Some(appended) = appended.filter(|_| space.release()) else {
                self.end.store(UNKNOWN_END, Ordering::Relaxed);
                return Err(error);
            };
            self.end.fetch_add(appended as u64, Ordering::Relaxed);
            bytes = &bytes[appended..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::fault::{Errno, Fault, FaultRule, FaultVfs};

    #[derive(Debug)]
    struct SpareDescriptors(AtomicU64);

    impl ReleaseResource for SpareDescriptors {
        fn release_count(&self) -> u64 {
            0
        }

        fn release_resource(&self, _count_before: u64) -> bool {
            let left = self.0.load(Ordering::Relaxed);
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
            left > 0
        }
    }

    #[test]
    fn open_without_descriptors_is_retried_while_owner_releases() {
        let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        let vfs = ResourceRetryVfs::new(Arc::new(faults.clone()));
        vfs.create(Path::new("f")).unwrap();
        let no_descriptor = Fault::Error(Errno::TooManyFiles);
        faults.add_rule(FaultRule::new(no_descriptor).for_calls(&[VfsCall::Open]).nth(0));
        assert!(vfs.open(Path::new("f")).is_err(), "no owner is set");
        let spare = Arc::new(SpareDescriptors(AtomicU64::new(2)));
        let owner: Arc<dyn ReleaseResource> = spare.clone();
        vfs.set_descriptor_owner(Arc::downgrade(&owner));
        faults.add_rule(FaultRule::new(no_descriptor).for_calls(&[VfsCall::Open]).nth(0));
        assert!(vfs.open(Path::new("f")).is_ok());
        assert_eq!(spare.0.load(Ordering::Relaxed), 1);
        faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Open]).nth(0));
        assert!(vfs.open(Path::new("f")).is_err(), "other errors are returned");
        assert_eq!(spare.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn open_without_descriptors_is_retried_a_limited_number_of_times() {
        let faults = FaultVfs::new(Arc::new(MemVfs::new()), 0);
        let vfs = ResourceRetryVfs::new(Arc::new(faults.clone()));
        vfs.create(Path::new("f")).unwrap();
        let spare = Arc::new(SpareDescriptors(AtomicU64::new(1_000)));
        let owner: Arc<dyn ReleaseResource> = spare.clone();
        vfs.set_descriptor_owner(Arc::downgrade(&owner));
        let no_descriptor = Fault::Error(Errno::TooManyFiles);
        let always = FaultRule::new(no_descriptor).for_calls(&[VfsCall::Open]).from_then_on();
        faults.add_rule(always);
        assert!(is_out_of_descriptors(&vfs.open(Path::new("f")).unwrap_err()));
        assert_eq!(spare.0.load(Ordering::Relaxed), 1_000 - u64::from(RETRIES_MAX));
    }

    #[test]
    fn append_on_full_disk_continues_where_it_stopped() {
        let disk = MemVfs::new();
        let vfs = ResourceRetryVfs::new(Arc::new(disk.clone()));
        let file = vfs.create(Path::new("f")).unwrap();
        file.append(&[1; 70]).unwrap();
        disk.set_capacity(Some(100));
        disk.reserve_space(Path::new("r"), 20).unwrap();
        let owner: Arc<dyn ReleaseResource> = Arc::new(ReservedFile(disk.clone()));
        vfs.set_space_owner(Arc::downgrade(&owner));
        let other = vfs.without_space_owner().create(Path::new("g")).unwrap();
        assert_eq!(other.append(&[2; 11]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        vfs.remove(Path::new("g")).unwrap();
        let bytes: Vec<u8> = (0..30).collect();
        file.append(&bytes).unwrap();
        let mut found = [0; 100];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 100);
        assert_eq!(found[70..], bytes);
        assert_eq!(file.append(&[3]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[derive(Debug)]
    struct ReservedFile(MemVfs);

    impl ReleaseResource for ReservedFile {
        fn release_count(&self) -> u64 {
            0
        }

        fn release_resource(&self, _count_before: u64) -> bool {
            self.0.remove(Path::new("r")).is_ok()
        }
    }
}
