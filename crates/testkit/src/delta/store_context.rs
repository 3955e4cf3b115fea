//! Context of an operand store whose files are in memory.

use std::path::{Path, PathBuf};

use lsmx::env::{Background, Env};
use lsmx::operand_store::{
    OperandFileKind, OperandFiles, OperandMerger, OperandReadCounters, StoreContext, StoreToken,
};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use super::checksums::file_uid;

/// Number of the file under test.
pub(super) const FILE_NUMBER: u64 = 7;
/// Smallest file number that a store assigns to a new file.
const CREATED_NUMBER_MIN: u64 = 1 << 40;

/// Operand files in the root directory of a file system.
#[derive(Debug)]
struct RootFiles {
    vfs: Arc<dyn Vfs>,
    next_number: AtomicU64,
}

fn file_path(kind: OperandFileKind, number: u64) -> PathBuf {
    match kind {
        OperandFileKind::Log => format!("/{number:06}.operands").into(),
        OperandFileKind::Bucket => format!("/{number:06}.bucket").into(),
    }
}

fn io_error(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
}

impl OperandFiles for RootFiles {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        file_path(kind, number)
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let path = file_path(kind, number);
        let file = self.vfs.create(&path).map_err(|e| io_error("create", &path, e))?;
        Ok((number, file))
    }

    fn sync_directory(&self) -> Result<()> {
        let root = Path::new("/");
        self.vfs.sync_dir(root).map_err(|e| io_error("sync", root, e))
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        // Ignores errors, because a changed log may refer to files that do not exist.
        let _ = self.vfs.remove(&file_path(kind, number));
    }
}

/// Operand merger that never merges, so that operands stay as they were delivered.
#[derive(Debug)]
struct NoPartialMerge;

impl OperandMerger for NoPartialMerge {
    fn partial_merge(&self, _: &[u8], _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Read counters that count nothing.
#[derive(Debug)]
pub(super) struct NoCounters;

impl OperandReadCounters for NoCounters {
    fn record_hit(&self) {}

    fn record_read(&self, _: u64) {}
}

/// Returns a file system with one file, which has the number [`FILE_NUMBER`].
pub(super) fn vfs_with_file(kind: OperandFileKind, contents: &[u8]) -> MemVfs {
    let vfs = MemVfs::new();
    vfs.write_all(&file_path(kind, FILE_NUMBER), contents).expect("I/O in memory succeeds");
    vfs
}

/// Returns the path of the file that [`vfs_with_file`] writes.
pub(super) fn path_under_test(kind: OperandFileKind) -> PathBuf {
    file_path(kind, FILE_NUMBER)
}

/// Returns a context for the keyspace `default`, which all seeds use. Stores with different `open_number`s create
/// different files.
pub(super) fn store_context(vfs: &MemVfs, open_number: u64) -> StoreContext {
    let vfs: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let next_number = AtomicU64::new(CREATED_NUMBER_MIN + open_number * 1000);
    StoreContext {
        keyspace: "default".to_owned(),
        files: Arc::new(RootFiles { vfs, next_number }),
        env: Env::new(Background::Inline, Some(open_number)),
        merger: Arc::new(NoPartialMerge),
        read_counters: Arc::new(NoCounters),
        memory_bytes: None,
        direct_reads: false,
        read_only: false,
    }
}

/// Returns the store token that refers to the first `bytes` bytes of a log.
pub(super) fn log_token(log: &[u8], bytes: usize) -> StoreToken {
    StoreToken([FILE_NUMBER, len_u64(bytes), file_uid(log), 0])
}

/// Returns whether the error means that a file does not exist. In most inputs, the log refers to missing bucket files.
pub(super) fn is_missing_file(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
