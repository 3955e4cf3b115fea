//! Disk reserve: a file that occupies disk space, so that the engine can free this space when the disk is full.
//!
//! The file `RESERVE` has about the size of the data that a resume writes (see `db/open/resume.rs`): tables for all
//! memtables, and a manifest. A background task adjusts the size of the file. If a write to another file finds the disk
//! full, [`DiskReserve`] removes `RESERVE` and the write continues. Therefore a flush can complete on a full disk, and
//! the WAL segments of the flushed data can then be deleted.
//!
//! The reserve is optional. If the file cannot be created, the database works without a reserve. The file is neither
//! read nor synced. If the process is killed, the next open removes the file.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::RESERVE;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::vfs::resource_retry::ReleaseResource;
use crate::vfs::{Vfs, is_disk_full_error};

/// Size in bytes that the reserve may always have, even in a small database.
pub(crate) const RESERVE_BYTES_MIN: u64 = 4 << 20;
/// A reserve larger than [`RESERVE_BYTES_MIN`] is at most the size of tables and blob files divided by this number.
const RESERVE_DIVISOR: u64 = 10;
/// Space in bytes for a WAL segment, for `CURRENT`, and for partially filled blocks at the ends of files.
const SLACK_BYTES: u64 = 64 << 10;
/// Space in bytes that the files of a keyspace need in addition to the entries: headers, properties and three partially
/// filled file system blocks.
const KEYSPACE_BYTES: u64 = 12 << 10;
/// Minimum size in bytes of an operation in the WAL: operation code, keyspace id and key length.
const OPERATION_BYTES_MIN: u64 = 3;
/// Maximum bytes by which the size of the file may exceed the required size.
const EXCESS_BYTES_MAX: u64 = 4 << 20;

/// Amounts of data that a resume would write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskReserveDemand {
    /// Bytes of commits that are not yet flushed to a table.
    pub(crate) unflushed_bytes: u64,
    /// Bytes that the operand stores would write in addition to the unflushed bytes.
    pub(crate) store_bytes: u64,
    /// Size of the manifest, in bytes.
    pub(crate) manifest_bytes: u64,
    /// Number of keyspaces. Each keyspace has its own files.
    pub(crate) keyspaces: u64,
}

impl DiskReserveDemand {
    /// Returns the required disk space, in bytes.
    fn bytes(self) -> u64 {
        let DiskReserveDemand { unflushed_bytes, store_bytes, manifest_bytes, keyspaces } = self;
        // An operand store writes each operand twice: to its log and to a bucket file.
        let copies = if store_bytes > 0 { 2 } else { 1 };
        // A keyspace without unflushed operations writes no file, so the keyspaces that write files are at most as many
        // as the unflushed operations.
        let written = keyspaces.min(unflushed_bytes / OPERATION_BYTES_MIN);
        let parts = [
            SLACK_BYTES,
            store_bytes,
            manifest_bytes,
            unflushed_bytes.saturating_mul(copies),
            written.saturating_mul(KEYSPACE_BYTES),
        ];
        let bytes = parts.into_iter().fold(0, u64::saturating_add);
        // Adds a quarter for the indexes and filters of tables and buckets.
        bytes.saturating_add(bytes / 4)
    }
}

/// Returns the size in bytes that a resize gives the file if `needed` bytes are required. The size exceeds `needed` by
/// up to one half, so that fewer resizes are necessary.
fn file_bytes_with_excess(needed: u64) -> u64 {
    needed.saturating_add((needed / 2).min(EXCESS_BYTES_MAX))
}

/// The file `RESERVE` of an open database.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    /// Size of the file in bytes. Written only while `state` is locked.
    bytes: AtomicU64,
    /// Maximum size of the file in bytes, from the last [`DiskReserve::resize`]. Written only while `state` is locked.
    limit: AtomicU64,
    /// True if the file must not grow, because the disk was full or the reserve is disabled. Written only while `state`
    /// is locked.
    is_blocked: AtomicBool,
    /// Number of times that the reserve has freed space: removals of the file, and failed growths. A failed growth may
    /// have occupied the whole disk for a moment. Written after the space is free, and only while `state` is locked.
    releases: AtomicU64,
    /// Serializes all file system calls for the file. A write that finds the disk full acquires this lock to remove the
    /// file. Other writes do not acquire the lock.
    state: Mutex<ReserveState>,
}

#[derive(Debug)]
struct ReserveState {
    /// True if the options disable the reserve, or if the reserve failed for a reason other than a full disk. After a
    /// failure, the next resume enables the reserve again, see [`DiskReserve::set_enabled`].
    is_disabled: bool,
    /// True if a failure to create or resize the file was already reported.
    is_reported: bool,
}

impl DiskReserve {
    /// Creates a reserve. The file is created by the first [`DiskReserve::resize`].
    pub(crate) fn new(vfs: Arc<dyn Vfs>, dir: &Path, is_enabled: bool) -> DiskReserve {
        let is_enabled = is_enabled && !failpoint::is_on(Failpoint::ReserveNotKept);
        DiskReserve {
            vfs,
            path: dir.join(RESERVE),
            bytes: AtomicU64::new(0),
            limit: AtomicU64::new(RESERVE_BYTES_MIN),
            is_blocked: AtomicBool::new(!is_enabled),
            releases: AtomicU64::new(0),
            state: Mutex::new(ReserveState { is_disabled: !is_enabled, is_reported: false }),
        }
    }

    /// Returns the size of the file in bytes. Takes no lock.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether [`DiskReserve::resize`] may have to change the size of the file. Takes no lock.
    pub(crate) fn needs_resize(&self, writes: DiskReserveDemand) -> bool {
        let (bytes, needed) = (self.bytes(), writes.bytes());
        let grows = bytes < needed.min(self.limit.load(Ordering::Relaxed));
        (grows && !self.is_blocked.load(Ordering::Relaxed))
            || bytes > file_bytes_with_excess(needed)
    }

    /// Resizes the file to the required size. The size is limited to [`RESERVE_BYTES_MIN`] or to a tenth of
    /// `file_bytes`, whichever is larger. `file_bytes` returns the size of tables and blob files.
    ///
    /// Returns the first error since [`DiskReserve::set_enabled`]. Later errors are not returned, so that they are
    /// reported only once.
    pub(crate) fn resize(
        &self,
        writes: DiskReserveDemand,
        file_bytes: impl FnOnce() -> u64,
    ) -> Option<Error> {
        let mut state = self.state.lock();
        if state.is_disabled {
            return None;
        }
        let (bytes, needed) = (self.bytes(), writes.bytes());
        let wanted = file_bytes_with_excess(needed);
        let mut limit = RESERVE_BYTES_MIN;
        if wanted.max(bytes) > limit {
            limit = limit.max(file_bytes() / RESERVE_DIVISOR);
        }
        if failpoint::is_on(Failpoint::ReserveUnbounded) {
            limit = u64::MAX;
        }
        self.limit.store(limit, Ordering::Relaxed);
        let wanted = wanted.min(limit);
        let grows = bytes < needed.min(limit) && !self.is_blocked.load(Ordering::Relaxed);
        if !grows && bytes <= wanted {
            return None;
        }
        let error = self.vfs.reserve_space(&self.path, wanted).err();
        let Some(error) = error else {
            self.bytes.store(wanted, Ordering::Relaxed);
            return None;
        };
        // The file system may have allocated a part of the space before the failure. The file gets its previous size
        // again, or is removed.
        let is_restored =
            bytes > 0 && bytes < wanted && self.vfs.reserve_space(&self.path, bytes).is_ok();
        if is_restored {
            self.releases.fetch_add(1, Ordering::Release);
        } else {
            self.remove_file();
        }
        self.is_blocked.store(true, Ordering::Relaxed);
        state.is_disabled = !is_disk_full_error(&error);
        if std::mem::replace(&mut state.is_reported, true) {
            return None;
        }
        Some(Error::io("reserve space in", &self.path, error))
    }

    /// Allows the file to grow again after a full disk. Has no effect if the reserve is disabled.
    pub(crate) fn allow_growth(&self) {
        let state = self.state.lock();
        self.is_blocked.store(state.is_disabled, Ordering::Relaxed);
    }

    /// Enables or disables the reserve. An enabled reserve ignores earlier failures and reports the next one.
    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        *self.state.lock() = ReserveState { is_disabled: !is_enabled, is_reported: false };
        self.allow_growth();
    }

    /// Removes the file. The file is not created again before [`DiskReserve::allow_growth`]. Returns whether the
    /// removal freed space.
    pub(crate) fn release_space(&self) -> bool {
        let _state = self.state.lock();
        self.is_blocked.store(true, Ordering::Relaxed);
        self.bytes() > 0 && self.remove_file()
    }

    /// Removes the file. The caller must hold the lock of `state`. A file that cannot be removed remains until the next
    /// open. Returns whether the file no longer exists.
    fn remove_file(&self) -> bool {
        self.bytes.store(0, Ordering::Relaxed);
        let is_removed = remove_if_exists(&*self.vfs, &self.path).is_ok();
        if is_removed {
            self.releases.fetch_add(1, Ordering::Release);
        }
        is_removed
    }
}

/// Called when a write finds the disk full.
impl ReleaseResource for DiskReserve {
    fn release_count(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    fn release_resource(&self, count_before: u64) -> bool {
        let _state = self.state.lock();
        self.is_blocked.store(true, Ordering::Relaxed);
        // The write may fit into the space that another thread has freed, so the rest of the reserve is kept.
        self.release_count() != count_before || (self.bytes() > 0 && self.remove_file())
    }
}

/// Removes the file `RESERVE` of a process that was killed. Returns whether the file existed.
pub(crate) fn remove_reserve(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    remove_if_exists(vfs, &dir.join(RESERVE))
}

/// Returns whether the error is an I/O error because the disk is full.
pub(crate) fn is_disk_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_disk_full_error(source))
}

fn remove_if_exists(vfs: &dyn Vfs, path: &Path) -> Result<bool> {
    match vfs.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::fault::{Errno, Fault, FaultRule, FaultVfs};
    use crate::vfs::resource_retry::ResourceRetryVfs;

    fn unflushed(unflushed_bytes: u64) -> DiskReserveDemand {
        DiskReserveDemand { unflushed_bytes, ..DiskReserveDemand::default() }
    }

    fn reserve(vfs: &MemVfs) -> DiskReserve {
        DiskReserve::new(Arc::new(vfs.clone()), Path::new(""), true)
    }

    #[test]
    fn disk_reserve_required_size_changes_resizes_file() {
        let disk = MemVfs::new();
        let (reserve, mut grown) = (reserve(&disk), 0);
        let up: Vec<u64> = (0..1_000_000).step_by(1_000).collect();
        for &bytes in up.iter().chain(up.iter().rev()) {
            let required = unflushed(bytes);
            let (before, due) = (reserve.bytes(), reserve.needs_resize(required));
            assert!(reserve.resize(required, || 0).is_none());
            assert_eq!(reserve.bytes() != before, due);
            assert!(!reserve.needs_resize(required));
            assert!(
                (required.bytes()..=file_bytes_with_excess(required.bytes()))
                    .contains(&reserve.bytes())
            );
            assert_eq!(disk.used_bytes(), reserve.bytes());
            grown += u64::from(reserve.bytes() > before);
        }
        assert!(grown < 20, "{grown} times");
        assert!(reserve.release_space() && !reserve.release_space());
        assert_eq!((reserve.bytes(), disk.used_bytes()), (0, 0));
    }

    #[test]
    fn disk_reserve_size_is_limited_to_tenth_of_tables() {
        let disk = MemVfs::new();
        let reserve = reserve(&disk);
        let required = unflushed(200 << 20);
        for (file_bytes, bound) in [(0, 4 << 20), (39 << 20, 4 << 20), (500 << 20, 50 << 20)] {
            assert!(reserve.resize(required, || file_bytes).is_none());
            assert_eq!(reserve.bytes(), bound);
            assert!(!reserve.needs_resize(required));
        }
        // If the tables shrink, the limit and the file shrink, too.
        assert!(reserve.resize(required, || 100 << 20).is_none());
        assert_eq!((reserve.bytes(), disk.used_bytes()), (10 << 20, 10 << 20));
    }

    #[test]
    fn resume_writes_bytes_counts_stores_manifest_and_keyspaces() {
        let base = unflushed(100_000);
        let more = |writes: DiskReserveDemand| writes.bytes() - base.bytes();
        assert_eq!(more(DiskReserveDemand { manifest_bytes: 4_000_000, ..base }), 5_000_000);
        assert_eq!(more(DiskReserveDemand { store_bytes: 50_000, ..base }), 150_000 * 5 / 4);
        let keyspaces = |keyspaces| more(DiskReserveDemand { keyspaces, ..base });
        assert_eq!(keyspaces(100), 100 * KEYSPACE_BYTES * 5 / 4);
        // A keyspace counts only if it has at least one operation.
        let most = 100_000 / OPERATION_BYTES_MIN;
        assert_eq!(keyspaces(1_000_000), most * KEYSPACE_BYTES * 5 / 4);
        assert_eq!(
            DiskReserveDemand { keyspaces: 1_000_000, ..unflushed(0) }.bytes(),
            unflushed(0).bytes()
        );
        assert_eq!(DiskReserveDemand { store_bytes: 1, ..unflushed(u64::MAX) }.bytes(), u64::MAX);
    }

    #[test]
    fn disk_reserve_full_disk_keeps_size_and_is_reported_once() {
        let disk = MemVfs::new();
        let reserve = reserve(&disk);
        assert!(reserve.resize(unflushed(100_000), || 0).is_none());
        let before = reserve.bytes();
        disk.set_capacity(Some(before + 1_000));
        let Some(Error::Io { path, source, .. }) = reserve.resize(unflushed(1_000_000), || 0)
        else {
            panic!("the disk has no space for it");
        };
        assert_eq!(
            (path.as_path(), source.kind()),
            (Path::new(RESERVE), io::ErrorKind::StorageFull)
        );
        assert_eq!((reserve.bytes(), disk.used_bytes()), (before, before));
        assert!(!reserve.needs_resize(unflushed(1_000_000)), "it is not retried at every commit");
        reserve.allow_growth();
        assert!(reserve.needs_resize(unflushed(1_000_000)));
        assert!(reserve.resize(unflushed(1_000_000), || 0).is_none(), "reported twice");
        disk.set_capacity(Some(10 << 20));
        reserve.allow_growth();
        assert!(reserve.resize(unflushed(1_000_000), || 0).is_none());
        assert!(reserve.bytes() > 1_000_000);
    }

    #[test]
    fn disk_reserve_released_by_other_writer_lets_call_be_retried() {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
        let vfs = ResourceRetryVfs::new(Arc::new(faults.clone()));
        let reserve = Arc::new(reserve(&disk));
        let owner: Arc<dyn ReleaseResource> = reserve.clone();
        vfs.set_space_owner(Arc::downgrade(&owner));
        // While a call runs, another writer finds the disk full and removes the file.
        let other = reserve.clone();
        let hook = move |_: VfsCall, _: &Path| {
            assert!(other.release_resource(other.release_count()));
        };
        faults.set_delay_hook(Some(Arc::new(hook)));
        let fill_disk = |call| {
            reserve.allow_growth();
            assert!(reserve.resize(unflushed(100_000), || 0).is_none());
            for fault in [Fault::Delay, Fault::Error(Errno::NoSpace)] {
                faults.add_rule(FaultRule::new(fault).for_calls(&[call]).nth(0));
            }
        };
        fill_disk(VfsCall::Create);
        let file = vfs.create(Path::new("f")).unwrap();
        fill_disk(VfsCall::Append);
        file.append(&[1; 70]).unwrap();
        assert_eq!((reserve.bytes(), disk.used_bytes()), (0, 70));
        // Without a further release, the call fails.
        faults.add_rule(FaultRule::new(Fault::Error(Errno::NoSpace)).nth(0));
        assert_eq!(file.append(&[1; 70]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn disk_reserve_failed_growth_lets_write_be_retried() {
        for kept in [0, 100_000] {
            let disk = MemVfs::new();
            let reserve = reserve(&disk);
            if kept > 0 {
                assert!(reserve.resize(unflushed(kept), || 0).is_none());
            }
            let (bytes, before) = (reserve.bytes(), reserve.release_count());
            disk.set_capacity(Some(bytes + 1_000));
            assert!(reserve.resize(unflushed(1_000_000), || 0).is_some());
            assert!(reserve.release_resource(before), "the growth had occupied the whole disk");
            assert_eq!(reserve.bytes(), bytes, "the reserve may not be necessary");
            assert_eq!(reserve.release_resource(reserve.release_count()), kept > 0);
            assert_eq!(disk.used_bytes(), 0);
        }
    }

    #[test]
    fn disk_reserve_failure_is_not_retried_until_reset() {
        let limit = io::Error::from(io::ErrorKind::FileTooLarge);
        for errno in [Errno::Io, Errno::FileTooLarge] {
            let disk = MemVfs::new();
            let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
            faults.add_rule(
                FaultRule::new(Fault::Error(errno)).for_calls(&[VfsCall::Reserve]).from_then_on(),
            );
            let reserve = DiskReserve::new(Arc::new(faults.clone()), Path::new(""), true);
            let is_reported: Vec<_> =
                (0..10).filter_map(|_| reserve.resize(unflushed(9), || 0)).collect();
            assert_eq!(is_reported.len(), 1, "{is_reported:?}");
            assert!(!reserve.needs_resize(unflushed(9)));
            reserve.allow_growth();
            assert!(!reserve.needs_resize(unflushed(9)));
            assert_eq!(faults.call_counts().count_of(VfsCall::Reserve), 1);
            reserve.set_enabled(true);
            assert!(reserve.resize(unflushed(9), || 0).is_some(), "not reported again");
            faults.clear_rules();
            reserve.set_enabled(true);
            assert!(reserve.resize(unflushed(9), || 0).is_none());
            assert_eq!(reserve.bytes(), disk.used_bytes());
            assert!(reserve.bytes() > 0);
        }
        assert_eq!(Errno::FileTooLarge.error().kind(), limit.kind());
    }

    #[test]
    fn disk_reserve_disabled_makes_no_call() {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk), 1);
        let is_disabled = DiskReserve::new(Arc::new(faults.clone()), Path::new(""), false);
        assert!(
            !is_disabled.needs_resize(unflushed(100_000))
                && is_disabled.resize(unflushed(100_000), || 0).is_none()
        );
        assert!(!is_disabled.release_space());
        assert_eq!(faults.call_counts().total(), 0);
    }
}
