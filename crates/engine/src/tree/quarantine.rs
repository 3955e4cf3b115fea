//! Files that background work of one keyspace cannot read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, Level, SortedRun, TreeShape};

use crate::error::Error;
use crate::format::file_name::FileName;
use crate::tree::NEVER;

/// Pause before a quarantined file is read again; doubles up to [`READ_US_MAX`].
const READ_US_FIRST: u64 = 100_000;
/// Longest pause between two reads of a quarantined file that is read quickly.
const READ_US_MAX: u64 = 60_000_000;
/// A read of the whole file is followed by a pause of at least so many times its duration.
const PAUSE_PER_READ: u64 = 20;

/// Runs of L0 with quarantined tables that do not count for the hard stop.
const UNCOUNTED_RUNS_MAX: usize = 4;

/// A file that background work leaves alone because it could not be read.
#[derive(Clone, Debug)]
pub(crate) struct Quarantined {
    pub(crate) path: PathBuf,
    /// Why the last read of it failed.
    pub(crate) cause: Arc<Error>,
    /// When it was quarantined, in microseconds of the database's clock.
    pub(crate) since_us: u64,
    /// Reads of it that failed.
    pub(crate) reads: u32,
    /// When it is read again; [`NEVER`] while a thread reads it.
    next_read_us: u64,
}

impl Quarantined {
    /// When it is read again; none while a thread reads it.
    pub(crate) fn next_read(&self) -> Option<u64> {
        (self.next_read_us != NEVER).then_some(self.next_read_us)
    }
}

/// The quarantined files of one keyspace. Nothing of it is stored.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    files: BTreeMap<FileName, Quarantined>,
}

impl Quarantine {
    /// Whether no file is quarantined.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether this file is quarantined.
    pub(crate) fn contains(&self, name: FileName) -> bool {
        self.files.contains_key(&name)
    }

    /// The record of a quarantined file.
    pub(crate) fn get(&self, name: FileName) -> Option<&Quarantined> {
        self.files.get(&name)
    }

    /// All quarantined files, by kind and number.
    pub(crate) fn files(&self) -> impl Iterator<Item = (FileName, &Quarantined)> {
        self.files.iter().map(|(name, file)| (*name, file))
    }

    /// Numbers of the quarantined blob files.
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

    /// The shape that the hard stop of a policy is about. A run of L0 with a quarantined table cannot leave L0,
    /// so at most [`UNCOUNTED_RUNS_MAX`] such runs do not count.
    pub(crate) fn counted<'a>(&self, shape: &'a TreeShape) -> Cow<'a, TreeShape> {
        let unreadable = |run: &Arc<SortedRun>| {
            run.files.iter().any(|file| self.contains(FileName::Table(file.id.0)))
        };
        let runs = shape.runs_of(Level(0));
        if self.is_empty() || !runs.iter().any(unreadable) {
            return Cow::Borrowed(shape);
        }
        let mut counted = shape.clone();
        if let Some(l0) = counted.levels.first_mut() {
            let mut left_out = 0;
            Arc::make_mut(l0).runs.retain(|run| {
                let counts = left_out == UNCOUNTED_RUNS_MAX || !unreadable(run);
                left_out += usize::from(!counts);
                counts
            });
        }
        Cow::Owned(counted)
    }

    /// Quarantines a file; false if it is quarantined already.
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
        let file = Quarantined { path, cause, since_us: now_us, reads: 1, next_read_us };
        self.files.insert(name, file);
        true
    }

    /// Ends the quarantine of a file; returns its path if it was quarantined.
    pub(crate) fn remove(&mut self, name: FileName) -> Option<PathBuf> {
        self.files.remove(&name).map(|file| file.path)
    }

    /// When the next file is to be read again, if one is.
    pub(crate) fn next_read_us(&self) -> Option<u64> {
        self.files.values().filter_map(Quarantined::next_read).min()
    }

    /// Takes a file that is to be read again by this time. [`Quarantine::remove`] or
    /// [`Quarantine::read_failed`] follows.
    pub(crate) fn take_due(&mut self, now_us: u64) -> Option<FileName> {
        let sticks = |name: &FileName| {
            matches!(name, FileName::Bucket(_) | FileName::Operands(_))
                && failpoint::is_on(Failpoint::OperandQuarantineNotCleared)
        };
        let mut files = self.files.iter_mut();
        let due = |(name, file): &(&FileName, &mut Quarantined)| {
            file.next_read_us <= now_us && !sticks(name)
        };
        let (name, file) = files.find(due)?;
        file.next_read_us = NEVER;
        Some(*name)
    }

    /// A read of a file has failed again and took so long.
    pub(crate) fn read_failed(
        &mut self,
        name: FileName,
        cause: Arc<Error>,
        now_us: u64,
        took_us: u64,
    ) {
        let Some(file) = self.files.get_mut(&name) else { return };
        let pause = READ_US_FIRST.saturating_mul(1 << file.reads.min(20)).min(READ_US_MAX);
        let pause = pause.max(took_us.saturating_mul(PAUSE_PER_READ));
        file.cause = cause;
        file.reads = file.reads.saturating_add(1);
        file.next_read_us = now_us.saturating_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_a_quarantined_file_back_off_and_only_one_thread_reads() {
        let (name, cause) = (FileName::Table(7), Arc::new(Error::Closed));
        let mut quarantine = Quarantine::default();
        assert!(quarantine.add(name, PathBuf::from("7"), Arc::clone(&cause), 1_000));
        assert!(!quarantine.add(name, PathBuf::from("7"), Arc::clone(&cause), 2_000));
        assert_eq!(quarantine.next_read_us(), Some(101_000));
        assert_eq!(quarantine.take_due(100_999), None);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let now_us = quarantine.next_read_us().unwrap();
            assert_eq!(quarantine.take_due(now_us), Some(name));
            assert_eq!(
                (quarantine.take_due(u64::MAX - 1), quarantine.next_read_us()),
                (None, None)
            );
            quarantine.read_failed(name, Arc::clone(&cause), now_us, 10);
            pauses.push(quarantine.next_read_us().unwrap() - now_us);
        }
        assert_eq!(pauses[..3], [200_000, 400_000, 800_000]);
        assert_eq!(pauses.last(), Some(&READ_US_MAX));
        quarantine.read_failed(name, cause, 0, READ_US_MAX);
        assert_eq!(quarantine.next_read_us(), Some(READ_US_MAX * PAUSE_PER_READ));
        quarantine.remove(name);
        assert!(quarantine.is_empty());
    }
}
