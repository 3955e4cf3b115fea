//! Room on the disk that is kept for the time when there is no other.
//!
//! What is in the log and not in tables is what a resumption has to write (see `db/resume.rs`), and a manifest. So
//! as they grow, a file grows with them that holds nothing and takes as much room as that, and a bit more. On a
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
use crate::wal::writer::BesideLog;

/// Room beside that: a segment, `CURRENT`, the ends of files.
const SLACK_BYTES: u64 = 64 << 10;
/// Room for the files of a keyspace beside what they hold: headers and properties, and three ends that the file
/// system rounds up.
const KEYSPACE_BYTES: u64 = 12 << 10;
/// No operation takes less in the log: its code, its keyspace, the length of its key.
const OPERATION_BYTES_MIN: u64 = 3;
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

    /// Sees that there is room to write `log_bytes` once more, and what is not in the log.
    pub(super) fn cover(&mut self, vfs: &dyn Vfs, log_bytes: u64, beside: BesideLog) -> Result<()> {
        let needed = needed(log_bytes, beside);
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

/// Room that a resumption needs.
fn needed(log_bytes: u64, beside: BesideLog) -> u64 {
    let BesideLog { store_bytes, manifest_bytes, keyspaces } = beside;
    // What stores are handed goes to their logs and to their buckets.
    let times = if store_bytes > 0 { 2 } else { 1 };
    // Keyspaces of which nothing is in the log write nothing.
    let written = keyspaces.min(log_bytes / OPERATION_BYTES_MIN);
    let parts = [
        SLACK_BYTES,
        store_bytes,
        manifest_bytes,
        log_bytes.saturating_mul(times),
        written.saturating_mul(KEYSPACE_BYTES),
    ];
    let needed = parts.into_iter().fold(0, u64::saturating_add);
    // Tables and buckets have an index and a filter beside what logs have.
    needed.saturating_add(needed / 4)
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
    const NOTHING: BesideLog = BesideLog { store_bytes: 0, manifest_bytes: 0, keyspaces: 0 };

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
            reserve.cover(&disk, log_bytes, NOTHING).unwrap();
            assert!(reserve.bytes() >= log_bytes + log_bytes / 4);
            assert_eq!(disk.used_bytes(), reserve.bytes());
            grown += u64::from(reserve.bytes() > before);
        }
        assert!(grown < 20, "{grown} times");
        // A log that gets shorter leaves it as it is.
        let before = reserve.bytes();
        reserve.cover(&disk, 10, NOTHING).unwrap();
        assert_eq!(reserve.bytes(), before);
        reserve.release(&disk).unwrap();
        assert_eq!((reserve.bytes(), disk.used_bytes()), (0, 0));
        reserve.release(&disk).unwrap();
        remove_reserve(&disk, Path::new("")).unwrap();
        // Stores write what they are handed twice, and have something of their own.
        reserve.cover(&disk, LOG_BYTES, BesideLog { store_bytes: 50_000, ..NOTHING }).unwrap();
        assert!(reserve.bytes() >= 2 * LOG_BYTES + 50_000);
    }

    #[test]
    fn a_large_manifest_and_the_files_of_keyspaces_count() {
        let more = |beside| needed(LOG_BYTES, beside) - needed(LOG_BYTES, NOTHING);
        assert_eq!(more(BesideLog { manifest_bytes: 4_000_000, ..NOTHING }), 5_000_000);
        let keyspaces = |keyspaces| more(BesideLog { keyspaces, ..NOTHING });
        assert_eq!(keyspaces(100), 100 * KEYSPACE_BYTES * 5 / 4);
        // The log has no more operations than this.
        assert_eq!(keyspaces(1_000_000), LOG_BYTES / OPERATION_BYTES_MIN * KEYSPACE_BYTES * 5 / 4);
        assert_eq!(needed(0, BesideLog { keyspaces: 1_000_000, ..NOTHING }), needed(0, NOTHING));
        assert_eq!(needed(u64::MAX, BesideLog { store_bytes: 1, ..NOTHING }), u64::MAX);
    }

    #[test]
    fn where_little_is_left_no_more_than_needed_is_taken_and_else_it_fails() {
        let needed = (LOG_BYTES + SLACK_BYTES) * 5 / 4;
        for (capacity, fits) in [(needed, true), (needed - 1, false)] {
            let disk = MemVfs::new();
            disk.set_capacity(Some(capacity));
            let mut reserve = reserve();
            let covered = reserve.cover(&disk, LOG_BYTES, NOTHING);
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
            none.cover(&faults, log_bytes, NOTHING).unwrap();
        }
        assert_eq!(faults.calls().of(VfsCall::Reserve), 1);
        let mut off = Reserve::new(Path::new(""), false);
        off.cover(&faults, LOG_BYTES, NOTHING).unwrap();
        off.release(&faults).unwrap();
        assert_eq!(faults.calls().total(), 1);
        faults.add(Rule::new(Fault::Error(Errno::Io)).on(&[VfsCall::Reserve]));
        assert!(reserve().cover(&faults, LOG_BYTES, NOTHING).is_err());
    }
}
