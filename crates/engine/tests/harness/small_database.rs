//! Helpers for small in-memory databases with files of every kind. The helpers create options, open databases, take
//! disk images of power losses, record file system calls, and extract the files that errors name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Fault, FaultRule, FaultVfs, MemOperation, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, Slice, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::{TestRng, mix_seeds, seed};

pub(crate) use super::database::{files, policy, try_open as open_with};

/// Returns `count` seeds, which depend on the seed of the test run and on the number of the check.
pub(crate) fn seeds(check: u64, count: u64) -> impl Iterator<Item = u64> {
    let base = mix_seeds(seed(), check);
    (0..count).map(move |number| mix_seeds(base, number) >> 16)
}

/// The names of keyspaces that store values in tables, in blob files, and in buckets of an operand store.
pub(crate) const KINDS: [&str; 3] = ["default", "values", "operands"];

/// Returns options of a keyspace in [`KINDS`]. The sizes are so small that a few dozen writes create files of the kind.
pub(crate) fn keyspace_options(kind: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(2 << 10)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .merge_operator(Append::default());
    match kind {
        "values" => {
            let separation = ValueSeparation {
                threshold_bytes: 8,
                blob_file_bytes: 2 << 10,
                garbage_ratio: 0.2,
                ..ValueSeparation::default()
            };
            options.memtable_bytes(1 << 10).value_separation(separation)
        }
        "operands" => {
            let buckets = DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10);
            options.memtable_bytes(1 << 10).operand_store(DeltaStoreFactory::new(buckets))
        }
        _ => options,
    }
}

pub(crate) fn options(background: Background) -> Options {
    let wal = WalOptions { segment_bytes: 600, ..WalOptions::default() };
    let options = Options::default().background(background).wal(wal).wal_bytes_max(8 << 10);
    options.seed(1).keyspace_defaults(keyspace_options("default"))
}

pub(crate) fn try_open(disk: &MemVfs) -> lsmx::Result<Db> {
    open_with(disk, options(Background::Inline))
}

pub(crate) fn open(disk: &MemVfs) -> Db {
    try_open(disk).unwrap()
}

pub(crate) fn try_open_kinds(db: &Db) -> lsmx::Result<[Keyspace; 3]> {
    let [tables, values, operands] = KINDS.map(|kind| db.keyspace(kind, keyspace_options(kind)));
    Ok([tables?, values?, operands?])
}

pub(crate) fn open_kinds(db: &Db) -> [Keyspace; 3] {
    try_open_kinds(db).unwrap()
}

/// Opens an existing keyspace of [`KINDS`]. Also succeeds if the database is read-only.
pub(crate) fn open_kind(db: &Db, kind: &str) -> lsmx::Result<Keyspace> {
    let existing = db.open_keyspace(kind, None)?;
    match db.keyspace(kind, keyspace_options(kind)) {
        Err(Error::ReadOnly { .. }) => Ok(existing),
        opened => opened,
    }
}

pub(crate) fn durability(sync: bool) -> Durability {
    if sync { Durability::Sync } else { Durability::Buffered }
}

/// Returns the big-endian number at the start of a value, or 0 for `None`.
pub(crate) fn number(value: Option<Slice>) -> u64 {
    value.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().unwrap()))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A disk image after a simulated power loss, with a copy of the guarantees that hold at that time.
pub(crate) struct PowerLoss<T> {
    pub(crate) image: CrashImage,
    pub(crate) disk: MemVfs,
    pub(crate) promised: T,
    /// The operation before which the power is lost.
    pub(crate) at: String,
}

pub(crate) type PowerLosses<T> = Arc<Mutex<Vec<PowerLoss<T>>>>;

/// Starts to record power losses. Before each operation, takes every kind of disk image. Keeps each image with
/// probability 1 / `one_in`, together with a copy of `promised`.
pub(crate) fn record_power_losses<T: Clone + Send + 'static>(
    disk: &MemVfs,
    seed: u64,
    one_in: u64,
    promised: &Arc<Mutex<T>>,
) -> PowerLosses<T> {
    let losses = PowerLosses::default();
    let (kept, promised) = (Arc::clone(&losses), Arc::clone(promised));
    disk.set_observer(Some(Arc::new(move |disk: &MemVfs, operation: MemOperation<'_>| {
        let mut rng = TestRng::new(mix_seeds(seed, operation.index));
        for image in CrashImage::ALL {
            if rng.is_one_in(one_in) {
                let at = format!("{:?} {}", operation.kind, operation.path.display());
                let (disk, promised) = (disk.crash(image, rng.next_u64()), lock(&promised).clone());
                lock(&kept).push(PowerLoss { image, disk, promised, at });
            }
        }
    })));
    losses
}

pub(crate) fn take_power_losses<T>(disk: &MemVfs, losses: &PowerLosses<T>) -> Vec<PowerLoss<T>> {
    disk.set_observer(None);
    std::mem::take(&mut *lock(losses))
}

/// File system calls in the order in which they were made, including those that failed.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<(VfsCall, PathBuf)>>>);

impl Calls {
    /// Starts to record the calls in `calls`. After more than `most` calls, removes all faults to end endless retries.
    /// [`FaultVfs::clear_rules`] stops the recording.
    pub(crate) fn watch(&self, disk: &FaultVfs, calls: &[VfsCall], most: usize) {
        let (recorded, cleared) = (self.clone(), disk.clone());
        disk.set_delay_hook(Some(Arc::new(move |call, path: &Path| {
            lock(&recorded.0).push((call, path.to_owned()));
            if recorded.count() > most {
                cleared.clear_rules();
            }
        })));
        disk.add_rule(FaultRule::new(Fault::Delay).for_calls(calls).chance(1.0));
    }

    pub(crate) fn all(&self) -> Vec<(VfsCall, PathBuf)> {
        lock(&self.0).clone()
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

/// Returns the path of the file that the error or its cause names. Panics if neither names a file.
pub(crate) fn file_of(error: &Error) -> PathBuf {
    match error {
        Error::Io { path, .. }
        | Error::Corrupt { path, .. }
        | Error::Missing { path, .. }
        | Error::NotADatabase { path, .. }
        | Error::UnsupportedVersion { path, .. } => path.clone(),
        Error::ReadOnly { cause }
        | Error::Background { cause, .. }
        | Error::NoOperandStore { cause: Some(cause), .. } => file_of(cause),
        other => panic!("the error names no file: {other:?}"),
    }
}
