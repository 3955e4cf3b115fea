//! The next version of a tree, and the manifest changes that it requires.

use lsmx_base::sync::Arc;
use lsmx_compaction::{TreeEdit, TreeUpdate};

use crate::error::Result;
use crate::format::version_edit::Change;
use crate::tree::blob_set::{BlobSet, BlobUsage};
use crate::tree::table_file::TableFile;
use crate::tree::version::Version;

/// A version that is not installed yet.
#[derive(Debug)]
pub(crate) struct NextVersion {
    pub(crate) version: Arc<Version>,
    /// Manifest changes that lead from the previous version to this one.
    pub(crate) changes: Vec<Change>,
}

impl NextVersion {
    /// Returns the version that results from an update of the tree of `keyspace`. `opened` contains the new tables.
    ///
    /// # Errors
    /// Fails if the update names a file that is neither in `before` nor in `opened`.
    pub(crate) fn new(
        keyspace: u32,
        before: &Version,
        update: TreeUpdate,
        opened: &[Arc<TableFile>],
    ) -> Result<NextVersion> {
        let TreeUpdate { shape, edit } = update;
        let version = Arc::new(Version::new(shape, before, opened)?);
        let mut changes = tree_changes(keyspace, edit);
        changes.extend(blob_changes(keyspace, before.blobs(), version.blobs(), opened));
        Ok(NextVersion { version, changes })
    }
}

/// Returns the manifest changes of a tree edit: first files, and then the runs and the cursor of each level.
fn tree_changes(keyspace: u32, edit: TreeEdit) -> Vec<Change> {
    let TreeEdit { removed, added, run_orders, cursors, run_id_next } = edit;
    let mut changes: Vec<Change> =
        removed.into_iter().map(|id| Change::RemoveFile { keyspace, id }).collect();
    changes.extend(added.into_iter().map(|placed| {
        let (level, run, file) = (placed.level, placed.run, placed.file);
        Change::AddFile { keyspace, level, run, file }
    }));
    let orders = run_orders
        .into_iter()
        .map(|(level, runs)| (level, Change::RunOrder { keyspace, level, runs }));
    let cursors =
        cursors.into_iter().map(|(level, key)| (level, Change::Cursor { keyspace, level, key }));
    let mut level_changes: Vec<_> = orders.chain(cursors).collect();
    level_changes.sort_by_key(|(level, _)| *level);
    changes.extend(level_changes.into_iter().map(|(_, change)| change));
    changes.extend(run_id_next.map(|next| Change::RunIdNext { keyspace, next }));
    changes
}

/// Returns the manifest changes for blob files: added files, removed files, and the references of new tables.
fn blob_changes(
    keyspace: u32,
    before: &BlobSet,
    after: &BlobSet,
    new_tables: &[Arc<TableFile>],
) -> Vec<Change> {
    let is_new = |used: &&BlobUsage| before.file(used.file.record().id).is_none();
    let added = after.files().filter(is_new);
    let added = added.map(|used| Change::AddBlob { keyspace, blob: *used.file.record() });
    let removed = before.ids().into_iter().filter(|id| after.file(*id).is_none());
    let removed = removed.map(|id| Change::RemoveBlob { keyspace, id });
    let references = new_tables.iter().filter(|table| !table.blobs().is_empty()).map(|table| {
        let blobs = table.blobs().iter().map(BlobUsage::reference).collect();
        Change::References { keyspace, table: table.shape().id, blobs }
    });
    added.chain(removed).chain(references).collect()
}
