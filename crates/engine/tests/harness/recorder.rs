//! Records disk images before file system operations. Each image has a copy of the guarantees that hold at that time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::internals::vfs::{CrashImage, MemOperation, MemOperationKind};
use lsmx::vfs::MemVfs;
use lsmx_base::file_name::FileName;
use lsmx_testkit::{TestRng, mix_seeds};

use super::coverage::{Coverage, file_kind};
use super::history::Commit;
use super::options::Stores;
use super::passing::{Checkpoint, Cloned, Passing};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    #[default]
    No,
    /// The creation or drop of the keyspace has begun, but is not acknowledged.
    Maybe,
    Yes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Opening,
    Running,
    Resuming,
    Closing,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Opening => "opening",
            Phase::Running => "running",
            Phase::Resuming => "resuming",
            Phase::Closing => "closing",
        }
    }
}

/// The guarantees that hold at a point in time of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    /// Number of commits that must survive a crash.
    pub(crate) synced: u64,
    /// Number of commits that were acknowledged or were found after a reopen.
    pub(crate) committed: u64,
    /// The commit that is in progress. It may or may not exist after a crash.
    pub(crate) pending: Option<Arc<Commit>>,
    /// Index of the history to which the commit numbers refer.
    pub(crate) epoch: usize,
    /// Whether the second keyspace exists.
    pub(crate) other: Presence,
    /// State of the keyspace that the run repeatedly creates and drops.
    pub(crate) passing: Passing,
    /// State of the keyspace that the run repeatedly clones and drops.
    pub(crate) cloned: Cloned,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) stores: Stores,
    /// The compaction policies that each keyspace may have.
    pub(crate) policies: [Vec<String>; 2],
    /// Largest sequence number that the database may have used.
    pub(crate) seq_largest: u64,
    /// Largest number of a created file, without files that failed opens created.
    pub(crate) file_largest: u64,
    /// Largest number of a file that the open in progress has created.
    pub(crate) file_opening: u64,
    pub(crate) phase: Phase,
    /// Smallest number of a created file.
    pub(crate) file_smallest: Option<u64>,
}

impl Promises {
    /// Returns the largest number of commits that can exist.
    pub(crate) fn attempted(&self) -> u64 {
        self.committed + u64::from(self.pending.is_some())
    }
}

/// A disk image before one operation, with the guarantees that hold at that time.
#[derive(Clone, Debug)]
pub(crate) struct Crash {
    /// Number of file system operations before the crash.
    pub(crate) index: u64,
    /// The operation before which the image was taken, and the file of this operation.
    pub(crate) at: (MemOperationKind, PathBuf),
    pub(crate) image: CrashImage,
    pub(crate) image_seed: u64,
    pub(crate) disk: MemVfs,
    pub(crate) promises: Promises,
}

/// Selects the disk images to record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sampling {
    /// For each operation and kind of image, records the image with this probability, in millionths.
    Chance(u64),
    /// Records only one image, given by the index of the operation, the kind of image, and the seed.
    Only(u64, CrashImage, u64),
}

impl Sampling {
    pub(crate) const ALL: Sampling = Sampling::Chance(1_000_000);
    pub(crate) const NONE: Sampling = Sampling::Chance(0);
}

#[derive(Debug)]
pub(crate) struct Recorder {
    seed: u64,
    sampling: Sampling,
    coverage: Arc<Coverage>,
    promises: Mutex<Promises>,
    crashes: Mutex<Vec<Crash>>,
}

impl Recorder {
    /// Starts to record the operations of a disk.
    pub(crate) fn watch(
        disk: &MemVfs,
        seed: u64,
        sampling: Sampling,
        coverage: &Arc<Coverage>,
    ) -> Arc<Recorder> {
        let recorder = Arc::new(Recorder {
            seed,
            sampling,
            coverage: Arc::clone(coverage),
            promises: Mutex::default(),
            crashes: Mutex::default(),
        });
        let watching = Arc::clone(&recorder);
        disk.set_observer(Some(Arc::new(move |disk, operation| watching.see(disk, operation))));
        recorder
    }

    pub(crate) fn promises(&self) -> MutexGuard<'_, Promises> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Vec<Crash> {
        std::mem::take(&mut self.crashes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn see(&self, disk: &MemVfs, operation: MemOperation<'_>) {
        let promises = {
            let mut promises = self.promises();
            let before = promises.clone();
            if operation.kind == MemOperationKind::Create
                && let Some(number) = file_number(operation.path)
            {
                let largest = match promises.phase {
                    Phase::Opening => &mut promises.file_opening,
                    _ => &mut promises.file_largest,
                };
                *largest = number.max(*largest);
                let smallest = promises.file_smallest.get_or_insert(number);
                *smallest = number.min(*smallest);
            }
            before
        };
        let file = file_kind(operation.path);
        if promises.phase == Phase::Running {
            match (operation.kind, file) {
                (MemOperationKind::Create, "manifest") => {
                    self.coverage.add("jobs", "fresh manifest")
                }
                (MemOperationKind::Create, "segment") => self.coverage.add("jobs", "segment turn"),
                (MemOperationKind::Remove, "segment") => {
                    self.coverage.add("jobs", "segment retired")
                }
                _ => {}
            }
        }
        let mut rng = TestRng::new(mix_seeds(self.seed, operation.index));
        for image in CrashImage::ALL {
            let image_seed = match self.sampling {
                Sampling::Chance(share) => {
                    // A seed is drawn even if the image is skipped. The seeds of images therefore do not depend on
                    // `share`.
                    let seed = rng.next_u64() >> 16;
                    if rng.below(1_000_000) >= share {
                        continue;
                    }
                    seed
                }
                Sampling::Only(index, only, seed) => {
                    if (index, only) != (operation.index, image) {
                        continue;
                    }
                    seed
                }
            };
            self.coverage.add("images", image_name(image));
            self.coverage.add(operation_name(operation.kind), file);
            self.coverage.add("crashes while", promises.phase.name());
            let crash = Crash {
                index: operation.index,
                at: (operation.kind, operation.path.to_owned()),
                image,
                image_seed,
                disk: disk.crash(image, image_seed),
                promises: promises.clone(),
            };
            self.crashes.lock().unwrap_or_else(PoisonError::into_inner).push(crash);
        }
    }
}

fn file_number(path: &Path) -> Option<u64> {
    match FileName::parse(path.file_name()?.to_str()?)? {
        FileName::Temporary(_) => None,
        file => file.number(),
    }
}

pub(crate) fn image_name(image: CrashImage) -> &'static str {
    match image {
        CrashImage::Drop => "Drop",
        CrashImage::Keep => "Keep",
        CrashImage::Torn => "Torn",
        CrashImage::Zeros => "Zeros",
        CrashImage::Garbage => "Garbage",
        CrashImage::Sectors => "Sectors",
        CrashImage::Lag => "Lag",
        CrashImage::Pages => "Pages",
    }
}

fn operation_name(kind: MemOperationKind) -> &'static str {
    match kind {
        MemOperationKind::Create => "crashes before create",
        MemOperationKind::Append => "crashes before append",
        MemOperationKind::Sync => "crashes before sync",
        MemOperationKind::Rename => "crashes before rename",
        MemOperationKind::HardLink => "crashes before link",
        MemOperationKind::Remove => "crashes before remove",
        MemOperationKind::CreateDir => "crashes before create_dir",
        MemOperationKind::SyncDir => "crashes before sync_dir",
    }
}
