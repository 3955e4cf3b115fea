//! A place in memory where stores may be.

use std::path::{Path, PathBuf};

use lsmx::env::{Background, Env};
use lsmx::operand_store::{
    OperandFileKind, OperandFiles, OperandMerger, OperandReadCounters, StoreContext, StoreToken,
};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, AtomicU64, Ordering};

use super::repair::uid_of;
use crate::files::io::io_error;

/// Number of the file that a target is given.
pub(super) const NUMBER: u64 = 7;
/// First number of files that are made.
const NUMBER_NEXT: u64 = 1 << 40;

#[derive(Debug)]
pub(super) struct Files {
    vfs: Arc<dyn Vfs>,
    next: AtomicU64,
}

fn path(kind: OperandFileKind, number: u64) -> PathBuf {
    match kind {
        OperandFileKind::Log => format!("/{number:06}.operands").into(),
        OperandFileKind::Bucket => format!("/{number:06}.bucket").into(),
    }
}

impl OperandFiles for Files {
    fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    fn path(&self, kind: OperandFileKind, number: u64) -> PathBuf {
        path(kind, number)
    }

    fn create(&self, kind: OperandFileKind) -> Result<(u64, Arc<dyn File>)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = path(kind, number);
        let file = self.vfs.create(&path).map_err(|e| io_error("create", &path, e))?;
        Ok((number, file))
    }

    fn sync_directory(&self) -> Result<()> {
        let root = Path::new("/");
        self.vfs.sync_dir(root).map_err(|e| io_error("sync", root, e))
    }

    fn discard(&self, kind: OperandFileKind, number: u64) {
        // What a log names need not be there.
        let _ = self.vfs.remove(&path(kind, number));
    }
}

/// Nothing folds, so nothing that was delivered changes.
#[derive(Debug)]
struct Never;

impl OperandMerger for Never {
    fn partial_merge(&self, _: &[u8], _: &[u8], _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

#[derive(Debug)]
pub(super) struct Uncounted;

impl OperandReadCounters for Uncounted {
    fn record_hit(&self) {}

    fn record_read(&self, _: u64) {}
}

/// A file system with this file, and the number [`NUMBER`] for it.
pub(super) fn disk(kind: OperandFileKind, bytes: &[u8]) -> MemVfs {
    let vfs = MemVfs::new();
    vfs.write_all(&path(kind, NUMBER), bytes).expect("the root is there");
    vfs
}

/// Where the file of [`disk`] lies.
pub(super) fn path_of(kind: OperandFileKind) -> PathBuf {
    path(kind, NUMBER)
}

/// A place of the keyspace that all seeds are of. Each `life` on a file system makes files of its own.
pub(super) fn place(vfs: &MemVfs, life: u64) -> StoreContext {
    let vfs: Arc<dyn Vfs> = Arc::new(vfs.clone());
    StoreContext {
        keyspace: "default".to_owned(),
        files: Arc::new(Files { vfs, next: AtomicU64::new(NUMBER_NEXT + life * 1000) }),
        env: Env::new(Background::Inline, Some(life)),
        merger: Arc::new(Never),
        read_counters: Arc::new(Uncounted),
        memory_bytes: None,
        direct_reads: false,
        read_only: false,
    }
}

/// What stands for the first `end` bytes of a log.
pub(super) fn token(log: &[u8], end: usize) -> StoreToken {
    StoreToken([NUMBER, len_u64(end), uid_of(log), 0])
}

/// The error of a file that is not there, as of the bucket files of a log that came alone.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
