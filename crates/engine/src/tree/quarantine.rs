//! Quarantine of a keyspace: files that could not be read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Level, SortedRun, TreeShape};

use crate::env::NEVER_US;
use crate::error::Error;

/// Pause before the first retry of a read in microseconds. Each further pause is twice as long, up to [`READ_US_MAX`].
const READ_US_FIRST: u64 = 100_000;
/// Maximum pause between two retries in microseconds, unless reads are slow.
const READ_US_MAX: u64 = 60_000_000;
/// Minimum pause after a retry, as a multiple of the duration of the retry.
const PAUSE_PER_READ: u64 = 20;

/// Maximum number of L0 runs with quarantined tables that are not counted for the hard stop.
const UNCOUNTED_RUNS_MAX: usize = 4;

/// A file that background jobs do not use, because it could not be read.
#[derive(Clone, Debug)]
pub(crate) struct Quarantined {
    pub(crate) path: PathBuf,
    /// Error of the last read.
    pub(crate) cause: Arc<Error>,
    /// Time at which the file was quarantined, in microseconds of the environment's clock.
    pub(crate) since_us: u64,
    /// Number of failed reads.
    pub(crate) failed_reads: u32,
    /// Time of the next retry in microseconds. [`NEVER_US`] while a thread reads the file.
    next_read_us: u64,
}

impl Quarantined {
    /// Returns the time of the next retry in microseconds, or `None` while a thread reads the file.
    pub(crate) fn next_read(&self) -> Option<u64> {
        (self.next_read_us != NEVER_US).then_some(self.next_read_us)
    }
}

/// The quarantined files of a keyspace. They are not recorded in the manifest.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    files: BTreeMap<FileName, Quarantined>,
}

impl Quarantine {
    /// Returns true if no file is quarantined.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns whether a file is quarantined.
    pub(crate) fn contains(&self, name: FileName) -> bool {
        self.files.contains_key(&name)
    }

    /// Returns the state of a quarantined file.
    pub(crate) fn get(&self, name: FileName) -> Option<&Quarantined> {
        self.files.get(&name)
    }

    /// Returns all quarantined files, ordered by kind and number.
    pub(crate) fn files(&self) -> impl Iterator<Item = (FileName, &Quarantined)> {
        self.files.iter().map(|(name, file)| (*name, file))
    }

    /// Returns the numbers of all quarantined blob files.
    pub(crate) fn blobs(&self) -> BTreeSet<FileId> {
        if failpoint::is_on(Failpoint::QuarantinedBlobRead) {
            return BTreeSet::new();
        }
        let blobs = self.files.keys().filter_map(|name| match name {
            FileName::Blob(number) => Some(FileId(*number)),
            _ => None,
        });
        blobs.collect()
    }

    /// Returns the shape with which the hard stop of the policy is evaluated.
    ///
    /// L0 runs with quarantined tables cannot be compacted. At most [`UNCOUNTED_RUNS_MAX`] of these runs are therefore
    /// omitted from the shape.
    pub(crate) fn without_unreadable_runs<'a>(&self, shape: &'a TreeShape) -> Cow<'a, TreeShape> {
        let is_unreadable = |run: &Arc<SortedRun>| {
            run.files.iter().any(|file| self.contains(FileName::Table(file.id.0)))
        };
        let runs = shape.runs_of(Level(0));
        if self.is_empty() || !runs.iter().any(is_unreadable) {
            return Cow::Borrowed(shape);
        }
        let mut counted = shape.clone();
        if let Some(l0) = counted.levels.first_mut() {
            let mut skipped = 0;
            Arc::make_mut(l0).runs.retain(|run| {
                let counts = skipped == UNCOUNTED_RUNS_MAX || !is_unreadable(run);
                skipped += usize::from(!counts);
                counts
            });
        }
        Cow::Owned(counted)
    }

    /// Quarantines a file. Returns false if the file is already quarantined.
    pub(crate) fn add(
        &mut self,
        name: FileName,
        path: PathBuf,
        cause: Arc<Error>,
        now_us: u64,
    ) -> bool {
        if self.contains(name) {
            return false;
        }
        let next_read_us = now_us.saturating_add(READ_US_FIRST);
        let file = Quarantined { path, cause, since_us: now_us, failed_reads: 1, next_read_us };
        self.files.insert(name, file);
        true
    }

    /// Removes a file from the quarantine. Returns its path if it was quarantined.
    pub(crate) fn remove(&mut self, name: FileName) -> Option<PathBuf> {
        self.files.remove(&name).map(|file| file.path)
    }

    /// Returns the time of the next retry of any file in microseconds.
    pub(crate) fn next_read_us(&self) -> Option<u64> {
        self.files.values().filter_map(Quarantined::next_read).min()
    }

    /// Returns a file whose next retry is due. The caller must read the file, and then call [`Quarantine::remove`] or
    /// [`Quarantine::record_failed_read`].
    pub(crate) fn take_due_file(&mut self, now_us: u64) -> Option<FileName> {
        let never_due = |name: &FileName| {
            matches!(name, FileName::Bucket(_) | FileName::Operands(_))
                && failpoint::is_on(Failpoint::OperandQuarantineNotCleared)
        };
        let mut files = self.files.iter_mut();
        let is_due = |(name, file): &(&FileName, &mut Quarantined)| {
            file.next_read_us <= now_us && !never_due(name)
        };
        let (name, file) = files.find(is_due)?;
        file.next_read_us = NEVER_US;
        Some(*name)
    }

    /// Records that a retry failed. The read took `took_us` microseconds.
    pub(crate) fn record_failed_read(
        &mut self,
        name: FileName,
        cause: Arc<Error>,
        now_us: u64,
        took_us: u64,
    ) {
        let Some(file) = self.files.get_mut(&name) else { return };
        let pause = READ_US_FIRST.saturating_mul(1 << file.failed_reads.min(20)).min(READ_US_MAX);
        let pause = pause.max(took_us.saturating_mul(PAUSE_PER_READ));
        file.cause = cause;
        file.failed_reads = file.failed_reads.saturating_add(1);
        file.next_read_us = now_us.saturating_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarantined_file_reads_back_off_and_have_one_reader() {
        let (name, cause) = (FileName::Table(7), Arc::new(Error::Closed));
        let mut quarantine = Quarantine::default();
        assert!(quarantine.add(name, PathBuf::from("7"), Arc::clone(&cause), 1_000));
        assert!(!quarantine.add(name, PathBuf::from("7"), Arc::clone(&cause), 2_000));
        assert_eq!(quarantine.next_read_us(), Some(101_000));
        assert_eq!(quarantine.take_due_file(100_999), None);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let now_us = quarantine.next_read_us().unwrap();
            assert_eq!(quarantine.take_due_file(now_us), Some(name));
            assert_eq!(
                (quarantine.take_due_file(u64::MAX - 1), quarantine.next_read_us()),
                (None, None)
            );
            quarantine.record_failed_read(name, Arc::clone(&cause), now_us, 10);
            pauses.push(quarantine.next_read_us().unwrap() - now_us);
        }
        assert_eq!(pauses[..3], [200_000, 400_000, 800_000]);
        assert_eq!(pauses.last(), Some(&READ_US_MAX));
        quarantine.record_failed_read(name, cause, 0, READ_US_MAX);
        assert_eq!(quarantine.next_read_us(), Some(READ_US_MAX * PAUSE_PER_READ));
        quarantine.remove(name);
        assert!(quarantine.is_empty());
    }
}
