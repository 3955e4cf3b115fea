//! Options and results of ingests, and tables that no manifest names yet.

use std::path::PathBuf;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_compaction::TableMeta;

use crate::error::{Error, Result};
use crate::state::DbState;
use crate::table::Table;
use crate::tree::Tree;
use crate::tree::obsolete_files::ObsoleteFiles;

/// Options of [`Db::ingest`](crate::Db::ingest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestOptions {
    /// Whether files are copied even if the file system can link them.
    pub(crate) copy_files: bool,
}

impl IngestOptions {
    /// Sets whether the files are copied even if the file system can link them. A linked file must not be modified after
    /// the ingest, under any of its names. Default: false.
    #[must_use]
    pub fn copy_files(self, copy_files: bool) -> IngestOptions {
        IngestOptions { copy_files }
    }
}

/// Result of an ingest or a bulk load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestSummary {
    /// Sequence number of all ingested entries. Snapshots with this or a larger number see the entries.
    pub seq: SeqNo,
    /// Number of tables.
    pub files: u64,
    /// Number of entries.
    pub entries: u64,
    /// Total size of the tables, in bytes.
    pub bytes: u64,
}

/// A table in the database directory that no manifest names yet.
#[derive(Debug)]
pub(super) struct PreparedTable {
    pub(super) table: Table,
    /// Metadata of the table. The installation sets its sequence numbers and creation counter.
    pub(super) meta: TableMeta,
    /// True if the engine wrote the file, false if the file was linked.
    pub(super) is_written: bool,
}

/// Prepared tables of one keyspace.
#[derive(Debug)]
pub(super) struct TreeTables {
    pub(super) tree: Arc<Tree>,
    pub(super) tables: Vec<PreparedTable>,
}

/// New files in the database directory. Dropping it before [`NewFiles::keep`] removes them.
#[derive(Debug)]
pub(super) struct NewFiles {
    paths: Vec<PathBuf>,
    obsolete_files: Arc<ObsoleteFiles>,
}

impl NewFiles {
    pub(super) fn new(state: &DbState) -> NewFiles {
        NewFiles { paths: Vec::new(), obsolete_files: Arc::clone(&state.obsolete_files) }
    }

    /// Adds a file before it is created.
    pub(super) fn add(&mut self, path: PathBuf) {
        self.paths.push(path);
    }

    /// Disables the removal, because the manifest may name the files.
    pub(super) fn keep(&mut self) {
        self.paths.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for path in self.paths.drain(..) {
            self.obsolete_files.discard(path);
        }
    }
}

/// Fails if a keyspace cannot contain ingested tables.
pub(super) fn check_accepts_ingest(tree: &Tree) -> Result<()> {
    tree.check_accepts_writes()?;
    if tree.operand_store.is_used() {
        // The store may combine older operands with newer ones, although an ingested entry of the key lies between
        // them.
        let (keyspace, why) = (tree.name(), "it has an operand store");
        return Err(Error::IngestRefused { keyspace, file: None, why });
    }
    Ok(())
}
