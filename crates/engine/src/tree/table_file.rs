//! Open table files that are part of versions.

use std::path::{Path, PathBuf};

use lsmx_base::sync::Arc;
use lsmx_compaction::TableMeta;

use crate::table::Table;
use crate::tree::blob_set::BlobUsage;
use crate::tree::obsolete_files::{ObsoleteFiles, OpenFileGuard};

/// An open table that one or more versions contain.
///
/// If the table is obsolete, its file is queued for deletion when the last of these versions is dropped.
#[derive(Debug)]
pub(crate) struct TableFile {
    guard: OpenFileGuard,
    table: Arc<Table>,
    shape: Arc<TableMeta>,
    /// Blob files that the entries reference, ordered by file number.
    blobs: Vec<BlobUsage>,
}

impl TableFile {
    /// Registers an open table.
    pub(crate) fn new(
        table: Arc<Table>,
        shape: Arc<TableMeta>,
        blobs: Vec<BlobUsage>,
        path: PathBuf,
        obsolete_files: Arc<ObsoleteFiles>,
    ) -> TableFile {
        let guard = OpenFileGuard::new(shape.id, path, shape.bytes, obsolete_files);
        TableFile { guard, table, shape, blobs }
    }

    /// Returns the reader of the table.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns the metadata of the table that compaction policies see.
    pub(crate) fn shape(&self) -> &Arc<TableMeta> {
        &self.shape
    }

    /// Returns the blob files that the entries reference, ordered by file number.
    pub(crate) fn blobs(&self) -> &[BlobUsage] {
        &self.blobs
    }

    /// Returns whether the table contains range tombstones.
    pub(crate) fn has_range_tombstones(&self) -> bool {
        self.table.properties().range_tombstone_count > 0
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        self.guard.path()
    }

    /// Marks the file as obsolete. The caller must have removed the file from the manifest.
    pub(crate) fn set_obsolete(&self) {
        self.guard.set_obsolete();
    }
}
