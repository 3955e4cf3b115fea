//! The file `RESERVE`: room on the disk that a full disk gives back.
//!
//! The file holds no data. It takes about as much room as a resumption would write (see `db/resume.rs`): all
//! memtables as tables, and a manifest. It grows and shrinks with them, in the background. When a write to any
//! other file finds the disk full, [`Reserve`] gives the room up and the write continues. A flush can
//! so complete on a full disk and free the log that it makes obsolete.
//!
//! The reserve is a convenience: nothing depends on it. Where the file cannot be made, the database works
//! without it. The file is never read and never synced. A killed process leaves it behind; the next opening
//! removes it.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

use crate::error::{Error, Result};
use crate::format::file_name::RESERVE;
use crate::vfs::{ReleaseResource, Vfs, is_full};

/// The reserve may take this much room whatever the size of the tables.
pub(crate) const RESERVE_BYTES_MIN: u64 = 4 << 20;
/// Beyond that it takes at most this part of the bytes of tables and blob files.
const RESERVE_PART: u64 = 10;
/// Room for a segment, `CURRENT` and the last blocks of files.
const SLACK_BYTES: u64 = 64 << 10;
/// Room for the files of one keyspace in addition to their entries: headers, properties and three partly filled
/// blocks of the file system.
const KEYSPACE_BYTES: u64 = 12 << 10;
/// Smallest size of an operation in the log: code, keyspace, length of the key.
const OPERATION_BYTES_MIN: u64 = 3;
/// Most by which the file grows ahead of the need.
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// What a resumption has to write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rewrite {
    /// Bytes of commits that are in no table.
    pub(crate) unflushed_bytes: u64,
    /// Bytes that operand stores write in addition.
    pub(crate) store_bytes: u64,
    /// Bytes of the manifest.
    pub(crate) manifest_bytes: u64,
    /// Keyspaces, each of which gets files of its own.
    pub(crate) keyspaces: u64,
}

impl Rewrite {
    /// Room that this takes on the disk.
    fn bytes(self) -> u64 {
        let Rewrite { unflushed_bytes, store_bytes, manifest_bytes, keyspaces } = self;
        // Operand stores write operands to their logs and to their buckets.
        let times = if store_bytes > 0 { 2 } else { 1 };
        // A keyspace without unflushed operations writes nothing.
        let written = keyspaces.min(unflushed_bytes / OPERATION_BYTES_MIN);
        let parts = [
            SLACK_BYTES,
            store_bytes,
            manifest_bytes,
            unflushed_bytes.saturating_mul(times),
            written.saturating_mul(KEYSPACE_BYTES),
        ];
        let bytes = parts.into_iter().fold(0, u64::saturating_add);
        // Tables and buckets have an index and a filter, logs have none.
        bytes.saturating_add(bytes / 4)
    }
}

/// Size of the file for a need: some room ahead, so that few commits change it.
fn with_room_ahead(needed: u64) -> u64 {
    needed.saturating_add((needed / 2).min(AHEAD_BYTES_MAX))
}

/// The file `RESERVE` of an open database.
#[derive(Debug)]
pub(crate) struct Reserve {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    /// Room that the file takes. Written under `state`.
    bytes: AtomicU64,
    /// Bound of `bytes` at the last [`Reserve::fit`]. Written under `state`.
    limit: AtomicU64,
    /// The file does not grow. Written under `state`.
    blocked: AtomicBool,
    /// Held over all calls on the file, so that they have one order. Nothing else waits for it but a write that
    /// found the disk full.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Not wanted, or not possible until the next resumption.
    off: bool,
    /// The owner was told that the file cannot be made.
    told: bool,
}

impl Reserve {
    /// A reserve without a file. `on` is whether one is wanted.
    pub(crate) fn new(vfs: Arc<dyn Vfs>, dir: &Path, on: bool) -> Reserve {
        let on = on && !failpoint::is_on(Failpoint::ReserveNotKept);
        Reserve {
            vfs,
            path: dir.join(RESERVE),
            bytes: AtomicU64::new(0),
            limit: AtomicU64::new(RESERVE_BYTES_MIN),
            blocked: AtomicBool::new(!on),
            state: Mutex::new(State { off: !on, told: false }),
        }
    }

    /// Room that the file takes. Waits for no call on it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether [`Reserve::fit`] would change the file. Takes no lock.
    pub(crate) fn is_due(&self, rewrite: Rewrite) -> bool {
        let (bytes, needed) = (self.bytes(), rewrite.bytes());
        let grows = bytes < needed.min(self.limit.load(Ordering::Relaxed));
        (grows && !self.blocked.load(Ordering::Relaxed)) || bytes > with_room_ahead(needed)
    }

    /// Makes the file as large as the need, within the greater of [`RESERVE_BYTES_MIN`] and a tenth of
    /// `file_bytes`, the bytes of tables and blob files. Returns why that is impossible, once.
    pub(crate) fn fit(&self, rewrite: Rewrite, file_bytes: impl FnOnce() -> u64) -> Option<Error> {
        let mut state = self.state.lock();
        if state.off {
            return None;
        }
        let (bytes, needed) = (self.bytes(), rewrite.bytes());
        let wanted = with_room_ahead(needed);
        let mut limit = RESERVE_BYTES_MIN;
        if wanted.max(bytes) > limit {
            limit = limit.max(file_bytes() / RESERVE_PART);
        }
        if failpoint::is_on(Failpoint::ReserveUnbounded) {
            limit = u64::MAX;
        }
        self.limit.store(limit, Ordering::Relaxed);
        let wanted = wanted.min(limit);
        let grows = bytes < needed.min(limit) && !self.blocked.load(Ordering::Relaxed);
        if !grows && bytes <= wanted {
            return None;
        }
        let error = self.vfs.reserve(&self.path, wanted).err();
        let Some(error) = error else {
            self.bytes.store(wanted, Ordering::Relaxed);
            return None;
        };
        // A file system may have taken all that there was before it refused.
        let back = bytes > 0 && bytes < wanted && self.vfs.reserve(&self.path, bytes).is_ok();
        if !back {
            self.remove();
        }
        self.blocked.store(true, Ordering::Relaxed);
        state.off = !is_full(&error);
        if std::mem::replace(&mut state.told, true) {
            return None;
        }
        Some(Error::io("keep room in", &self.path, error))
    }

    /// Lets the file grow again after the disk was full.
    pub(crate) fn unblock(&self) {
        let state = self.state.lock();
        self.blocked.store(state.off, Ordering::Relaxed);
    }

    /// Tries again whatever failed before, if `on`.
    pub(crate) fn reset(&self, on: bool) {
        self.state.lock().off = !on;
        self.unblock();
    }

    /// Removes the file. It does not grow again before [`Reserve::unblock`]. Returns whether that freed room.
    pub(crate) fn release(&self) -> bool {
        let _state = self.state.lock();
        self.blocked.store(true, Ordering::Relaxed);
        self.bytes() > 0 && self.remove()
    }

    /// Called with `state` held. A file that cannot be removed stays until the next opening.
    fn remove(&self) -> bool {
        self.bytes.store(0, Ordering::Relaxed);
        remove(&*self.vfs, &self.path).is_ok()
    }
}

/// A full disk takes the reserve.
impl ReleaseResource for Reserve {
    fn release(&self) -> bool {
        self.release()
    }
}

/// Removes the file that a killed process has left. Returns whether there was one.
pub(crate) fn remove_reserve(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    remove(vfs, &dir.join(RESERVE))
}

/// Whether the disk was full.
pub(crate) fn lacks_disk(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_full(source))
}

fn remove(vfs: &dyn Vfs, path: &Path) -> Result<bool> {
    match vfs.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::{Errno, Fault, FaultRule, FaultVfs, MemVfs, VfsCall};

    fn of(unflushed_bytes: u64) -> Rewrite {
        Rewrite { unflushed_bytes, ..Rewrite::default() }
    }

    fn reserve(vfs: &MemVfs) -> Reserve {
        Reserve::new(Arc::new(vfs.clone()), Path::new(""), true)
    }

    #[test]
    fn reserve_follows_the_need_in_both_directions() {
        let disk = MemVfs::new();
        let (reserve, mut grown) = (reserve(&disk), 0);
        let up: Vec<u64> = (0..1_000_000).step_by(1_000).collect();
        for &unflushed in up.iter().chain(up.iter().rev()) {
            let need = of(unflushed);
            let (before, due) = (reserve.bytes(), reserve.is_due(need));
            assert!(reserve.fit(need, || 0).is_none());
            assert_eq!(reserve.bytes() != before, due);
            assert!(!reserve.is_due(need));
            assert!((need.bytes()..=with_room_ahead(need.bytes())).contains(&reserve.bytes()));
            assert_eq!(disk.used_bytes(), reserve.bytes());
            grown += u64::from(reserve.bytes() > before);
        }
        assert!(grown < 20, "{grown} times");
        assert!(reserve.release() && !reserve.release());
        assert_eq!((reserve.bytes(), disk.used_bytes()), (0, 0));
    }

    #[test]
    fn reserve_is_bounded_by_a_tenth_of_the_tables() {
        let disk = MemVfs::new();
        let reserve = reserve(&disk);
        let need = of(200 << 20);
        for (file_bytes, bound) in [(0, 4 << 20), (39 << 20, 4 << 20), (500 << 20, 50 << 20)] {
            assert!(reserve.fit(need, || file_bytes).is_none());
            assert_eq!(reserve.bytes(), bound);
            assert!(!reserve.is_due(need));
        }
        // Tables that leave make it smaller.
        assert!(reserve.fit(need, || 100 << 20).is_none());
        assert_eq!((reserve.bytes(), disk.used_bytes()), (10 << 20, 10 << 20));
    }

    #[test]
    fn rewrite_counts_stores_manifest_and_keyspaces() {
        let base = of(100_000);
        let more = |rewrite: Rewrite| rewrite.bytes() - base.bytes();
        assert_eq!(more(Rewrite { manifest_bytes: 4_000_000, ..base }), 5_000_000);
        assert_eq!(more(Rewrite { store_bytes: 50_000, ..base }), 150_000 * 5 / 4);
        let keyspaces = |keyspaces| more(Rewrite { keyspaces, ..base });
        assert_eq!(keyspaces(100), 100 * KEYSPACE_BYTES * 5 / 4);
        // There are no more operations than this.
        let most = 100_000 / OPERATION_BYTES_MIN;
        assert_eq!(keyspaces(1_000_000), most * KEYSPACE_BYTES * 5 / 4);
        assert_eq!(Rewrite { keyspaces: 1_000_000, ..of(0) }.bytes(), of(0).bytes());
        assert_eq!(Rewrite { store_bytes: 1, ..of(u64::MAX) }.bytes(), u64::MAX);
    }

    #[test]
    fn full_disk_keeps_what_the_reserve_has_and_is_reported_once() {
        let disk = MemVfs::new();
        let reserve = reserve(&disk);
        assert!(reserve.fit(of(100_000), || 0).is_none());
        let before = reserve.bytes();
        disk.set_capacity(Some(before + 1_000));
        let Some(Error::Io { path, source, .. }) = reserve.fit(of(1_000_000), || 0) else {
            panic!("there is no such room");
        };
        assert_eq!(
            (path.as_path(), source.kind()),
            (Path::new(RESERVE), io::ErrorKind::StorageFull)
        );
        assert_eq!((reserve.bytes(), disk.used_bytes()), (before, before));
        assert!(!reserve.is_due(of(1_000_000)), "it is not tried at every commit");
        reserve.unblock();
        assert!(reserve.is_due(of(1_000_000)));
        assert!(reserve.fit(of(1_000_000), || 0).is_none(), "reported twice");
        disk.set_capacity(Some(10 << 20));
        reserve.unblock();
        assert!(reserve.fit(of(1_000_000), || 0).is_none());
        assert!(reserve.bytes() > 1_000_000);
    }

    #[test]
    fn reserve_that_cannot_be_made_is_tried_once_until_reset() {
        let limit = io::Error::from(io::ErrorKind::FileTooLarge);
        for errno in [Errno::Io, Errno::FileTooLarge] {
            let disk = MemVfs::new();
            let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
            faults.add(FaultRule::new(Fault::Error(errno)).on(&[VfsCall::Reserve]).from_then_on());
            let reserve = Reserve::new(Arc::new(faults.clone()), Path::new(""), true);
            let told: Vec<_> = (0..10).filter_map(|_| reserve.fit(of(9), || 0)).collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(!reserve.is_due(of(9)));
            reserve.unblock();
            assert!(!reserve.is_due(of(9)));
            assert_eq!(faults.calls().of(VfsCall::Reserve), 1);
            faults.clear();
            reserve.reset(true);
            assert!(reserve.fit(of(9), || 0).is_none());
            assert_eq!(reserve.bytes(), disk.used_bytes());
            assert!(reserve.bytes() > 0);
        }
        assert_eq!(Errno::FileTooLarge.error().kind(), limit.kind());
    }

    #[test]
    fn reserve_that_is_off_makes_no_call() {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk), 1);
        let off = Reserve::new(Arc::new(faults.clone()), Path::new(""), false);
        assert!(!off.is_due(of(100_000)) && off.fit(of(100_000), || 0).is_none());
        assert!(!off.release());
        assert_eq!(faults.calls().total(), 0);
    }
}
