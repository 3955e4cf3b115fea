//! Context of an operand store whose files are in memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lsmx::env::{Background, Env};
use lsmx::operand_store::{
    OperandFileKind, OperandFiles, OperandMerger, OperandReadCounters, StoreContext, StoreToken,
};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::sync::{Arc, AtomicU64, Mutex, Ordering};

use super::checksums::file_uid;

/// Number of the file under test.
pub(super) const FILE_NUMBER: u64 = 7;
/// Smallest file number that a store under test assigns to a new file.
const CREATED_NUMBER_MIN: u64 = 1 << 40;

/// Files of a store, in one directory.
#[derive(Debug)]
pub struct StoreDir {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    /// Number of the next file.
    pub next_number: AtomicU64,
    /// Files that the store has discarded, in order.
    pub discarded: Mutex<Vec<(OperandFileKind, u64)>>,
}

fn file_name(kind: OperandFileKind, number: u64) -> FileName {
    match kind {
        OperandFileKind::Log => FileName::Operands(number),
        OperandFileKind::Bucket => FileName::Bucket(number),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
}

impl StoreDir {
    pub fn new(vfs: Arc<dyn Vfs>, dir: &str, next_number: u64) -> Arc<StoreDir> {
        let (dir, next_number) = (dir.into(), next_number.into());
        Arc::new(StoreDir { vfs, dir, next_number, discarded: Mutex::default() })
    }

    /// Returns the kinds and numbers of the files in the directory.
    pub fn existing_files(&self) -> BTreeSet<(OperandFileKind, u64)> {
        let names = self.vfs.list(&self.dir).unwrap();
        let kind = |name: &String| match FileName::parse(name) {
            Some(FileName::Operands(number)) => (OperandFileKind::Log, number),
            Some(FileName::Bucket(number)) => (OperandFileKind::Bucket, number),
            _ => panic!("{name}"),
        };
        names.iter().map(kind).collect()
    }
}

impl OperandFiles for StoreDir {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        file_name(kind, number).in_dir(&self.dir)
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        lsmx_base::sync::assert_unlocked();
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let path = self.path(kind, number);
        let file = self.vfs.create(&path).map_err(io_error("create", &path))?;
        Ok((number, file))
    }

    fn sync_directory(&self) -> Result<()> {
        self.vfs.sync_dir(&self.dir).map_err(io_error("sync", &self.dir))
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        self.discarded.lock().push((kind, number));
        // The removal may fail, because a changed log may name missing files and some tests inject file system errors.
        let _ = self.vfs.remove(&self.path(kind, number));
    }
}

/// Merge operator that appends the newer operand, if the result does not exceed a maximum length.
#[derive(Debug)]
struct AppendMerger {
    bytes_max: usize,
}

impl OperandMerger for AppendMerger {
    fn partial_merge(&self, _: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        (older.len() + newer.len() <= self.bytes_max).then(|| [older, newer].concat())
    }
}

/// Counts of reads and bytes of a store.
#[derive(Debug, Default)]
pub struct ReadCounts {
    pub hits: AtomicU64,
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
}

impl OperandReadCounters for ReadCounts {
    fn record_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    fn record_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Returns a context for the default keyspace. Partial merges append operands, up to a length of `merged_bytes_max`.
pub fn store_context(
    files: &Arc<StoreDir>,
    read_counters: &Arc<ReadCounts>,
    merged_bytes_max: usize,
) -> StoreContext {
    StoreContext {
        keyspace: "default".to_owned(),
        files: files.clone(),
        env: Env::new(Background::Inline, Some(files.next_number.load(Ordering::Relaxed))),
        merger: Arc::new(AppendMerger { bytes_max: merged_bytes_max }),
        read_counters: read_counters.clone(),
        memory_bytes: None,
        direct_reads: false,
        read_only: false,
    }
}

/// Returns a file system that has one file with the number [`FILE_NUMBER`].
pub(super) fn vfs_with_file(kind: OperandFileKind, contents: &[u8]) -> MemVfs {
    let vfs = MemVfs::new();
    vfs.write_all(&path_under_test(kind), contents).expect("in memory");
    vfs
}

/// Returns the path of the file that [`vfs_with_file`] writes.
pub(super) fn path_under_test(kind: OperandFileKind) -> PathBuf {
    file_name(kind, FILE_NUMBER).in_dir(Path::new("/"))
}

/// Returns a context for a store in the root directory. The context supports no partial merges, so the store keeps
/// operands as they were delivered.
///
/// Stores with different values of `open_number` create files with different numbers.
pub(super) fn fuzz_context(vfs: &MemVfs, open_number: u64) -> StoreContext {
    let next_number = CREATED_NUMBER_MIN + open_number * 1000;
    let files = StoreDir::new(Arc::new(vfs.clone()), "/", next_number);
    store_context(&files, &Arc::default(), 0)
}

/// Returns a store token for the first `bytes` bytes of a log.
pub(super) fn log_token(log: &[u8], bytes: usize) -> StoreToken {
    StoreToken([FILE_NUMBER, len_u64(bytes), file_uid(log), 0])
}

/// Returns true if a missing file caused the error. In most checks, the bucket files to which a log refers do not
/// exist.
pub(super) fn is_missing_file(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
