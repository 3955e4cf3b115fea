//! A file system with few file descriptors, and what a database can do with them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{FileLayer, OpenMode, VfsCall, VfsLayer};
use lsmx::merge_operator::Append;
use lsmx::vfs::{File, LockGuard, MemVfs, Vfs};
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use super::Outcome;

/// A memory file system whose process may have so many descriptors. Each open file and each lock has one, and
/// each sync of a directory needs one.
#[derive(Clone, Debug)]
pub(crate) struct FewDescriptors {
    inner: MemVfs,
    limit: usize,
    open: Arc<AtomicUsize>,
    /// Paths of files and locks, and kinds of other calls, that found no descriptor.
    refused: Arc<Mutex<Vec<PathBuf>>>,
}

impl FewDescriptors {
    pub(crate) fn new(inner: MemVfs, limit: usize) -> FewDescriptors {
        FewDescriptors { inner, limit, open: Arc::default(), refused: Arc::default() }
    }

    /// Descriptors open now.
    pub(crate) fn open_count(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn take(&self, path: &Path) -> io::Result<Descriptor> {
        if self.open.fetch_add(1, Ordering::SeqCst) >= self.limit {
            self.open.fetch_sub(1, Ordering::SeqCst);
            self.refused.lock().unwrap().push(path.to_owned());
            // EMFILE.
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
struct OneFile {
    inner: Arc<dyn File>,
    _descriptor: Descriptor,
}

impl FileLayer for OneFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }
}

#[derive(Debug)]
struct OneLock {
    _inner: Box<dyn LockGuard>,
    _descriptor: Descriptor,
}

impl LockGuard for OneLock {}

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
        Ok(Arc::new(OneFile { inner: mode.open(&self.inner, path)?, _descriptor: descriptor }))
    }

    fn intercept_lock(
        &self,
        path: &Path,
        lock: impl FnOnce() -> io::Result<Box<dyn LockGuard>>,
    ) -> io::Result<Box<dyn LockGuard>> {
        let descriptor = self.take(path)?;
        Ok(Box::new(OneLock { _inner: lock()?, _descriptor: descriptor }))
    }

    fn intercept_open_files_limit(&self) -> Option<u64> {
        Some(self.limit as u64)
    }
}

const KEYS: u64 = 200;
/// An open with so many descriptors is not refused.
const LIMIT_MAX: usize = 28;
/// Numbers of descriptors that are tried beginning with the first one that is enough.
const ENOUGH_TRIES: usize = 4;

fn tuning(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .block_bytes(256)
        .merge_operator(Append::default());
    match name {
        "values" => options
            .value_separation(ValueSeparation { threshold_bytes: 8, ..ValueSeparation::default() }),
        "operands" => {
            options.operand_store(DeltaStoreFactory::new(DeltaOptions::default().bucket_bytes(512)))
        }
        _ => options,
    }
}

const KINDS: [&str; 3] = ["tables", "values", "operands"];

fn options(background: Background) -> Options {
    let options = Options::default().background(background).seed(1).block_cache_bytes(1 << 20);
    options.wal_bytes_max(16 << 10)
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn key_of(key: u64) -> [u8; 8] {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Writes and reads keyspaces of all kinds; returns them.
fn write_and_read(db: &Db) -> lsmx::Result<()> {
    let keyspaces = KINDS.map(|name| db.keyspace(name, tuning(name)));
    let [tables, values, operands]: [Keyspace; 3] = {
        let [tables, values, operands] = keyspaces;
        [tables?, values?, operands?]
    };
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

/// With any number of descriptors an open is refused with [`Error::TooFewDescriptors`], which says how many are
/// needed, or the
/// operand store is, or all jobs and calls succeed. So it is when the database is opened again.
///
/// The files of operand stores had a budget of their own, at least 16 for reading and 16 for appending: with 16 to 28
/// descriptors collections failed, or the database became read-only.
pub(crate) fn few_descriptors_are_refused_or_enough(seed: u64) -> Outcome {
    for background in [Background::Inline, Background::Stepped { seed, workers: 2 }] {
        let mut enough = 0;
        for limit in 1.. {
            let used = use_with(background, limit);
            match used.map_err(|what| format!("{background:?}, {limit} descriptors: {what}"))? {
                Used::Refused if enough > 0 => return Err(format!("{limit} are refused again")),
                Used::Refused if limit == LIMIT_MAX => {
                    return Err(format!("{limit} descriptors are not enough"));
                }
                Used::Refused => {}
                Used::Fully => enough += 1,
            }
            if enough == ENOUGH_TRIES {
                break;
            }
        }
    }
    Ok(())
}

/// Uses a database on the file system of the machine, with threads of its own.
///
/// # Errors
/// Of the open and of the calls after it.
pub(crate) fn use_real_files(dir: &Path) -> lsmx::Result<()> {
    let db = Db::open(dir, options(Background::default()))?;
    write_and_read(&db)?;
    db.close(None)
}

/// What was done with a number of descriptors.
enum Used {
    /// The open was refused.
    Refused,
    /// Everything.
    Fully,
}

fn use_with(background: Background, limit: usize) -> Outcome<Used> {
    let disk = FewDescriptors::new(MemVfs::new(), limit);
    let open = || Db::open("db", options(background).vfs(Arc::new(disk.clone())));
    for opened in 0..2 {
        let refused =
            |available: u64, needed: u64| match available < needed && available <= limit as u64 {
                true => Ok(Used::Refused),
                false => Err(format!("{available} of {needed} are available")),
            };
        let db = match open() {
            Err(Error::TooFewDescriptors { available, needed }) if opened == 0 => {
                return refused(available, needed);
            }
            db => db.map_err(|error| format!("open {opened}: {error}"))?,
        };
        for used in 0..2 {
            let done = write_and_read(&db);
            if let (Err(Error::TooFewDescriptors { available, needed }), 0, 0) =
                (&done, opened, used)
            {
                return refused(*available, *needed);
            }
            if done.is_err() || !db.health().is_good() {
                let refused = disk.refused.lock().unwrap();
                return Err(format!("{done:?}, {:?}, refused: {refused:?}", db.health()));
            }
        }
        db.close(None).map_err(failed)?;
    }
    match disk.open_count() {
        0 => Ok(Used::Fully),
        left => Err(format!("{left} descriptors are left open")),
    }
}
