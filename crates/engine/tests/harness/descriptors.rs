//! A file system with few file descriptors, and checks of databases on this file system.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{FileLayer, OpenMode, VfsCall, VfsLayer};
use lsmx::vfs::{File, LockGuard, MemVfs, Vfs};
use lsmx::{Db, Error, Options, PolicySpec, RepairOptions};
use lsmx_delta::DeltaStoreFactory;

use super::Outcome;
use super::small_database::{KINDS, files, keyspace_options, lock, open_kinds, open_with};

/// An in-memory file system with a limit on open file descriptors. Each open file and each lock uses one descriptor.
/// Listing or syncing a directory and reserving disk space fail if no descriptor is free.
#[derive(Clone, Debug)]
pub(crate) struct FewDescriptors {
    inner: MemVfs,
    limit: usize,
    open: Arc<AtomicUsize>,
    /// The calls that failed because no descriptor was free. Each entry is the path of a file or lock, or the name of
    /// another call.
    refused: Arc<Mutex<Vec<PathBuf>>>,
}

impl FewDescriptors {
    pub(crate) fn new(inner: MemVfs, limit: usize) -> FewDescriptors {
        let (open, refused) = Default::default();
        FewDescriptors { inner, limit, open, refused }
    }

    fn take(&self, path: &Path) -> io::Result<Descriptor> {
        if self.open.fetch_add(1, Ordering::SeqCst) >= self.limit {
            self.open.fetch_sub(1, Ordering::SeqCst);
            lock(&self.refused).push(path.to_owned());
            // The error "too many open files" (EMFILE).
            return Err(io::Error::from_raw_os_error(if cfg!(windows) { 4 } else { 24 }));
        }
        Ok(Descriptor(Arc::clone(&self.open)))
    }
}

#[derive(Debug)]
struct Descriptor(Arc<AtomicUsize>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct CountedFile {
    inner: Arc<dyn File>,
    _descriptor: Descriptor,
}

impl FileLayer for CountedFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }
}

#[derive(Debug)]
struct CountedLock {
    _inner: Box<dyn LockGuard>,
    _descriptor: Descriptor,
}

impl LockGuard for CountedLock {}

impl VfsLayer for FewDescriptors {
    fn inner(&self) -> &dyn Vfs {
        &self.inner
    }

    fn intercept<T>(&self, call: VfsCall, forward: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let takes_one = matches!(call, VfsCall::List | VfsCall::Reserve | VfsCall::SyncDir);
        let _descriptor =
            takes_one.then(|| self.take(Path::new(&format!("{call:?}")))).transpose()?;
        forward()
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let descriptor = self.take(path)?;
        Ok(Arc::new(CountedFile { inner: mode.open(&self.inner, path)?, _descriptor: descriptor }))
    }

    fn intercept_lock(
        &self,
        path: &Path,
        lock: impl FnOnce() -> io::Result<Box<dyn LockGuard>>,
    ) -> io::Result<Box<dyn LockGuard>> {
        let descriptor = self.take(path)?;
        Ok(Box::new(CountedLock { _inner: lock()?, _descriptor: descriptor }))
    }

    fn intercept_open_files_limit(&self) -> Option<u64> {
        Some(self.limit as u64)
    }
}

const KEYS: u64 = 200;
/// The database must open with at most this number of descriptors.
const LIMIT_MAX: usize = 28;
/// Number of limits to test, from the smallest sufficient one upwards.
const SUFFICIENT_TRIES: usize = 4;

fn options(background: Background) -> Options {
    let options = Options::default().background(background).seed(1).block_cache_bytes(1 << 20);
    // The jobs need descriptors of their own.
    options.wal_bytes_max(16 << 10).keep_compactions_cached(false)
}

fn key_of(key: u64) -> [u8; 8] {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn write_and_read(db: &Db) -> lsmx::Result<()> {
    // Without tiered levels, jobs have more input files.
    let policy: PolicySpec = "leveled(K=1)".parse().unwrap();
    let options = |kind| {
        let options = keyspace_options(kind).memtable_bytes(4 << 10).table_bytes(4 << 10);
        options.policy(policy.clone())
    };
    let [tables, values, operands] = KINDS.map(|kind| db.keyspace(kind, options(kind)));
    let (tables, values, operands) = (tables?, values?, operands?);
    for round in 0..3 {
        for key in 0..KEYS {
            tables.put(key_of(key), [round; 40])?;
            values.put(key_of(key), [round; 40])?;
            operands.merge(key_of(key), [round; 100])?;
        }
    }
    db.flush()?;
    db.wait_idle()?;
    for key in 0..KEYS {
        assert_eq!(tables.get(key_of(key))?.unwrap(), [2; 40]);
        assert_eq!(values.get(key_of(key))?.unwrap(), [2; 40]);
        assert_eq!(operands.get(key_of(key))?.unwrap().len() % 100, 0);
    }
    tables.compact_range::<&[u8]>(..)?;
    for keyspace in [tables, values, operands] {
        assert_eq!(keyspace.iter().filter_map(Result::ok).count() as u64, KEYS);
    }
    Ok(())
}

/// Tests every limit of descriptors. Either the open of the database or of the operand store fails with
/// [`Error::TooFewDescriptors`], or all calls and background jobs succeed, also after a reopen.
///
/// Regression: operand stores had a separate limit of at least 16 files for reads and 16 for appends. With 16 to 28
/// descriptors, collections failed or the database became read-only.
pub(crate) fn few_descriptors_are_refused_or_enough(seed: u64) -> Outcome {
    for background in [Background::Inline, Background::Stepped { seed, workers: 2 }] {
        let first = (1..=LIMIT_MAX).find(|limit| is_sufficient(background, *limit));
        let first = first.expect("no limit is sufficient");
        for limit in first + 1..first + SUFFICIENT_TRIES {
            assert!(is_sufficient(background, limit), "{limit} descriptors are refused again");
        }
    }
    Ok(())
}

/// Opens, uses and closes a database on the real file system, with the default background threads.
///
/// Returns the error of the open or of the first later call that fails.
pub(crate) fn use_real_files(dir: &Path) -> lsmx::Result<()> {
    let db = Db::open(dir, options(Background::default()))?;
    write_and_read(&db)?;
    db.close(None)
}

/// Returns whether the database and the operand store can be opened with this limit. If they can, all later calls must
/// succeed.
fn is_sufficient(background: Background, limit: usize) -> bool {
    let disk = FewDescriptors::new(MemVfs::new(), limit);
    let is_refusal = |error: &Error| match error {
        Error::TooFewDescriptors { available, needed } => {
            assert!(available < needed && *available <= limit as u64, "limit {limit}: {error}");
            true
        }
        _ => false,
    };
    for opened in 0..2 {
        let db = match open_with(&disk, options(background)) {
            Err(error) if opened == 0 && is_refusal(&error) => return false,
            db => db.unwrap(),
        };
        for used in 0..2 {
            let done = write_and_read(&db);
            if done.as_ref().is_err_and(|error| (opened, used) == (0, 0) && is_refusal(error)) {
                return false;
            }
            let (health, refused) = (db.health(), lock(&disk.refused));
            let is_good = done.is_ok() && health.is_good();
            assert!(
                is_good,
                "{background:?}, limit {limit}: {done:?}, {health:?}, refused: {refused:?}"
            );
        }
        db.close(None).unwrap();
    }
    assert_eq!(disk.open.load(Ordering::SeqCst), 0, "descriptors are open after the close");
    true
}

/// Verifies, repairs and copies a database that has more files of each kind than the process may have open.
///
/// Regression: `verify` and `repair` kept all blob files of a keyspace open. They and checkpoints kept up to 1,024
/// files of an operand store open.
pub(crate) fn checks_need_few_descriptors() {
    const LIMIT: usize = 40;
    const KEYS: u64 = 600;
    let disk = MemVfs::new();
    let options = || options(Background::Inline).operand_store(DeltaStoreFactory::default());
    let open = |disk: FewDescriptors| {
        let db = open_with(&disk, options()).unwrap();
        let [_, values, operands] = open_kinds(&db);
        (db, values, operands)
    };
    let limited = || FewDescriptors::new(disk.clone(), LIMIT);
    let (db, values, operands) = open(FewDescriptors::new(disk.clone(), usize::MAX));
    for key in 0..KEYS {
        values.put(key_of(key), [7; 100]).unwrap();
        operands.merge(key_of(key), [7; 200]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    drop((values, operands));
    db.close(None).unwrap();
    for kind in [".blob", ".bucket"] {
        let count = files(&disk, kind).len();
        assert!(count > 2 * LIMIT, "{count} files of kind {kind}");
    }
    let verified = || lsmx::verify("db", &options().vfs(Arc::new(limited())));
    assert_eq!(verified().unwrap().operand_stores, 1);
    let (db, values, operands) = open(limited());
    db.checkpoint("copy").unwrap();
    drop((values, operands));
    db.close(None).unwrap();
    // Only a damaged database is repaired.
    let damaged = files(&disk, ".blob").pop().unwrap();
    disk.flip_bits(&damaged, 40, 1).unwrap();
    let options = options().vfs(Arc::new(limited()));
    let repaired = lsmx::repair("db", &options, &RepairOptions::default()).unwrap();
    assert!(repaired.damaged && repaired.lost.len() <= 1, "{repaired:?}");
    verified().unwrap();
}
