//! Small databases with every kind of file, power losses, counted calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Fault, FaultRule, FaultVfs, MemOperation, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options, Slice, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::{TestRng, mix_seeds, seed};

/// Returns `count` seeds that follow from the seed of the run and the number of the guarantee.
pub(crate) fn seeds(guarantee: u64, count: u64) -> impl Iterator<Item = u64> {
    let all = mix_seeds(seed(), guarantee);
    (0..count).map(move |number| mix_seeds(all, number) >> 16)
}

/// Keyspaces that keep what they hold in tables, in blob files, and in buckets beside the tree.
pub(crate) const KINDS: [&str; 3] = ["default", "values", "operands"];

/// Tuning so small that some dozen writes make files of each kind.
pub(crate) fn tuning(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(2 << 10)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .merge_operator(Append::default());
    match name {
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

/// Options of a database whose keyspaces are of all kinds.
pub(crate) fn options(background: Background) -> Options {
    let wal = WalOptions { segment_bytes: 600, ..WalOptions::default() };
    let options = Options::default().background(background).wal(wal).wal_bytes_max(8 << 10);
    options.seed(1).keyspace_defaults(tuning("default"))
}

/// Opens or makes a database without threads.
pub(crate) fn open(disk: &MemVfs) -> Db {
    try_open(disk).unwrap()
}

pub(crate) fn try_open(disk: &MemVfs) -> lsmx::Result<Db> {
    Db::open("db", options(Background::Inline).vfs(Arc::new(disk.clone())))
}

/// Its keyspaces of all kinds, which are made if need be.
pub(crate) fn all_kinds(db: &Db) -> [Keyspace; 3] {
    try_all_kinds(db).unwrap()
}

/// As [`all_kinds`], where the calls may fail.
pub(crate) fn try_all_kinds(db: &Db) -> lsmx::Result<[Keyspace; 3]> {
    let [tables, values, operands] = KINDS.map(|name| db.keyspace(name, tuning(name)));
    Ok([tables?, values?, operands?])
}

/// One of them, open with its options unless the database is read-only.
pub(crate) fn kind(db: &Db, name: &str) -> lsmx::Result<Keyspace> {
    let there = db.open_keyspace(name, None)?;
    match db.keyspace(name, tuning(name)) {
        Err(Error::ReadOnly { .. }) => Ok(there),
        opened => opened,
    }
}

/// The number that a value begins with; 0 if there is none.
pub(crate) fn number(value: Option<Slice>) -> u64 {
    value.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().unwrap()))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a power loss leaves, and what was promised at that moment.
pub(crate) struct Cut<T> {
    pub(crate) image: CrashImage,
    pub(crate) disk: MemVfs,
    pub(crate) promised: T,
    /// What was about to be done.
    pub(crate) at: String,
}

pub(crate) type Cuts<T> = Arc<Mutex<Vec<Cut<T>>>>;

/// From here on power is cut before the operations of a disk, in every way; of all that one in so many is
/// kept.
pub(crate) fn cut_power<T: Clone + Send + 'static>(
    disk: &MemVfs,
    seed: u64,
    one_in: u64,
    promised: &Arc<Mutex<T>>,
) -> Cuts<T> {
    let cuts = Cuts::default();
    let (kept, promised) = (Arc::clone(&cuts), Arc::clone(promised));
    disk.set_observer(Some(Arc::new(move |disk: &MemVfs, operation: MemOperation<'_>| {
        let mut rng = TestRng::new(mix_seeds(seed, operation.index));
        for image in CrashImage::ALL {
            if rng.is_one_in(one_in) {
                let at = format!("{:?} {}", operation.kind, operation.path.display());
                let (disk, promised) = (disk.crash(image, rng.next_u64()), lock(&promised).clone());
                lock(&kept).push(Cut { image, disk, promised, at });
            }
        }
    })));
    cuts
}

/// Ends the cuts; returns them.
pub(crate) fn taken<T>(disk: &MemVfs, cuts: &Cuts<T>) -> Vec<Cut<T>> {
    disk.set_observer(None);
    std::mem::take(&mut *lock(cuts))
}

/// Calls in the order in which they came, those that failed among them.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<(VfsCall, PathBuf)>>>);

impl Calls {
    /// Notes these calls of a disk, and ends a loop of more than so many by ending all faults. To be called again
    /// after [`FaultVfs::clear`].
    pub(crate) fn watch(&self, disk: &FaultVfs, calls: &[VfsCall], most: usize) {
        let (noted, cleared) = (self.clone(), disk.clone());
        disk.set_delay_hook(Some(Arc::new(move |call, path: &Path| {
            lock(&noted.0).push((call, path.to_owned()));
            if noted.count() > most {
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

/// The file that an error is about.
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
        other => panic!("no file is named: {other:?}"),
    }
}

/// Files of a disk whose names end so.
pub(crate) fn files(disk: &MemVfs, end: &str) -> Vec<PathBuf> {
    disk.paths().into_iter().filter(|path| path.to_string_lossy().ends_with(end)).collect()
}
