//! Room on the disk that is kept for the time when there is no other.
//!
//! What is in the log and not in tables is what a resumption has to write (see `db/resume.rs`). So as the
//! log grows, a file grows with it that holds nothing and takes as much room as that, and a bit more. On a
//! full disk the file is removed, and all memtables fit into tables, though nobody has freed anything.
//!
//! A commit for which no room can be kept is not written: the database is read-only *before* the disk is so
//! full that nothing can be done about it. The file is never read and never synced. One that a killed
//! process has left goes when the database is opened, at the latest when recovery needs its room.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::filename::RESERVE;
use crate::sabotage::{self, Bug};
use crate::vfs::Vfs;

/// Room beside that for the log: the manifest, headers, the ends of files.
const SLACK_BYTES: u64 = 64 << 10;
/// Most by which the file grows ahead of what is needed.
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// The file that takes the room.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    /// Room that is taken.
    bytes: u64,
    /// Off by option, or the file system has no such thing.
    off: bool,
}

impl Reserve {
    pub(super) fn new(dir: &Path, on: bool) -> Reserve {
        Reserve { path: dir.join(RESERVE), bytes: 0, off: !on }
    }

    /// Room that is taken.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sees that there is room to write `log_bytes` once more, and what operand stores have to write anew.
    pub(super) fn cover(&mut self, vfs: &dyn Vfs, log_bytes: u64, beside: u64) -> Result<()> {
        let mut needed = SLACK_BYTES.saturating_add(beside);
        // What stores are handed goes to their logs and to their buckets.
        let times = if beside > 0 { 2 } else { 1 };
        needed = needed.saturating_add(log_bytes.saturating_mul(times));
        // Tables and buckets have an index and a filter beside what logs have.
        needed = needed.saturating_add(needed / 4);
        if self.off || needed <= self.bytes || sabotage::on(Bug::ReserveNotKept) {
            return Ok(());
        }
        // Ahead, so that few commits have to do this.
        let ahead = (needed / 2).min(AHEAD_BYTES_MAX);
        let bytes = needed.saturating_add(ahead);
        let taken = match vfs.reserve(&self.path, bytes) {
            Err(error) if is_full(&error) => vfs.reserve(&self.path, needed).map(|()| needed),
            taken => taken.map(|()| bytes),
        };
        match taken {
            Ok(bytes) => self.bytes = bytes,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.off = true,
            Err(error) => return Err(Error::io("keep room in", &self.path, error)),
        }
        Ok(())
    }

    /// Gives the room to whoever needs it now.
    pub(super) fn release(&mut self, vfs: &dyn Vfs) -> Result<()> {
        if self.off {
            return Ok(());
        }
        self.bytes = 0;
        remove(vfs, &self.path).map(drop)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Gives back the room that a killed process had taken; says whether there was any.
pub(crate) fn remove_reserve(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    remove(vfs, &dir.join(RESERVE))
}

/// Whether room is what was lacking.
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
    use crate::vfs::{Errno, Fault, FaultVfs, MemVfs, Rule, VfsCall};

    const LOG_BYTES: u64 = 100_000;

    fn reserve() -> Reserve {
        Reserve::new(Path::new(""), true)
    }

    #[test]
    fn room_grows_ahead_of_the_log_and_is_given_back() {
        let disk = MemVfs::new();
        disk.set_capacity(Some(10 << 20));
        let (mut reserve, mut grown) = (reserve(), 0);
        for log_bytes in (0..1_000_000).step_by(1_000) {
            let before = reserve.bytes();
            reserve.cover(&disk, log_bytes, 0).unwrap();
            assert!(reserve.bytes() >= log_bytes + log_bytes / 4);
            assert_eq!(disk.used_bytes(), reserve.bytes());
            grown += u64::from(reserve.bytes() > before);
        }
        assert!(grown < 20, "{grown} times");
        // A log that gets shorter leaves it as it is.
        let before = reserve.bytes();
        reserve.cover(&disk, 10, 0).unwrap();
        assert_eq!(reserve.bytes(), before);
        reserve.release(&disk).unwrap();
        assert_eq!((reserve.bytes(), disk.used_bytes()), (0, 0));
        reserve.release(&disk).unwrap();
        remove_reserve(&disk, Path::new("")).unwrap();
        // Stores write what they are handed twice, and have something of their own.
        reserve.cover(&disk, LOG_BYTES, 50_000).unwrap();
        assert!(reserve.bytes() >= 2 * LOG_BYTES + 50_000);
    }

    #[test]
    fn where_little_is_left_no_more_than_needed_is_taken_and_else_it_fails() {
        let needed = (LOG_BYTES + SLACK_BYTES) * 5 / 4;
        for (capacity, fits) in [(needed, true), (needed - 1, false)] {
            let disk = MemVfs::new();
            disk.set_capacity(Some(capacity));
            let mut reserve = reserve();
            let covered = reserve.cover(&disk, LOG_BYTES, 0);
            assert_eq!(covered.is_ok(), fits, "{covered:?}");
            assert_eq!(reserve.bytes(), if fits { needed } else { 0 });
            if let Err(error) = covered {
                let Error::Io { path, source, .. } = error else { panic!("{error}") };
                assert_eq!(path, Path::new(RESERVE));
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
            }
        }
    }

    #[test]
    fn file_systems_that_keep_no_room_are_asked_once_and_other_errors_are_told() {
        // It has no limit, and so no room to keep.
        let disk = MemVfs::new();
        let faults = FaultVfs::new(crate::sync::Arc::new(disk), 1);
        let mut none = reserve();
        for log_bytes in 0..10 {
            none.cover(&faults, log_bytes, 0).unwrap();
        }
        assert_eq!(faults.calls().of(VfsCall::Reserve), 1);
        let mut off = Reserve::new(Path::new(""), false);
        off.cover(&faults, LOG_BYTES, 0).unwrap();
        off.release(&faults).unwrap();
        assert_eq!(faults.calls().total(), 1);
        faults.add(Rule::new(Fault::Error(Errno::Io)).on(&[VfsCall::Reserve]));
        assert!(reserve().cover(&faults, LOG_BYTES, 0).is_err());
    }
}
