//! Version installer: makes the outputs of a job durable and visible in one step.

use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;
use lsmx_compaction::{TableMeta, TreeShape, TreeUpdate};

use crate::env::thread_time::{IoKind, measure_wait};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};
use crate::jobs::compaction::output::JobOutputs;
use crate::memtable::Memtable;
use crate::state::DbState;
use crate::tree::operand_files::PinnedOperandView;
use crate::tree::super_version::SuperVersion;
use crate::tree::version::Version;
use crate::tree::version_edit::NextVersion;
use crate::tree::{Tree, last_run_filter};
use crate::vfs::Vfs;

/// Installs the tree update that `next(shape, outputs)` returns: appends the edit to the manifest, replaces the super
/// version, and marks removed tables and blob files as obsolete. `next` is called while `tree.install` is locked.
///
/// Returns true, or false if `next` returns `None`. In the second case, nothing changes.
///
/// `operands` replaces the view of the operand store in the same step. `Some(Some(view))` sets the view, `Some(None)`
/// removes it, and `None` keeps it. If the view changes, `changes` must contain the new token of the store. The
/// directory entries of the outputs must be synced before this call.
///
/// # Errors
/// - If the new shape is invalid, nothing changes. The output files are deleted when `outputs` is dropped.
/// - If the manifest cannot be written, its contents are unknown. The database becomes read-only, and no file is
///   deleted.
pub(crate) fn install_version<U: Into<Option<TreeUpdate>>>(
    state: &DbState,
    tree: &Tree,
    outputs: &mut JobOutputs<'_>,
    flushed: Option<&Arc<Memtable>>,
    operands: Option<Option<&PinnedOperandView>>,
    changes: Vec<Change>,
    next: impl FnOnce(&TreeShape, Vec<Arc<TableMeta>>) -> Result<U, lsmx_compaction::Error>,
) -> Result<bool> {
    let swap = |view: &SuperVersion, after: &Arc<Version>| {
        let view = view.with_version(after, flushed);
        match operands {
            Some(operands) => view.with_operand_view(operands.cloned()),
            None => view,
        }
    };
    let installed = install_locked(state, tree, outputs, swap, changes, next);
    state.emit_pending_events();
    installed
}

fn install_locked<U: Into<Option<TreeUpdate>>>(
    state: &DbState,
    tree: &Tree,
    outputs: &mut JobOutputs<'_>,
    swap: impl Fn(&SuperVersion, &Arc<Version>) -> SuperVersion,
    changes: Vec<Change>,
    next: impl FnOnce(&TreeShape, Vec<Arc<TableMeta>>) -> Result<U, lsmx_compaction::Error>,
) -> Result<bool> {
    let _order = tree.install.lock();
    // Fails if the keyspace was dropped. The manifest then no longer contains the keyspace.
    tree.check_live()?;
    let before = Arc::clone(&tree.pin_super_version().version);
    let Some(update): Option<TreeUpdate> = next(before.shape(), outputs.table_metas())?.into()
    else {
        return Ok(false);
    };
    let NextVersion { version: after, changes: mut edit } =
        NextVersion::new(tree.id, &before, update, outputs.tables())?;
    edit.extend(changes);
    edit.push(Change::FileNumberNext(state.files.next()));
    edit.push(Change::LastSeq(state.sequence.published()));
    edit.push(Change::ClockUs(state.env.database_time_us()));
    if failpoint::is_on(Failpoint::InputsDeletedEarly) {
        for table in removed_tables(&before, &after) {
            let _ = state.vfs.remove(table.path());
        }
    }
    state.error_state.check_writable()?;
    // From here on, the manifest may contain the outputs, even if the append fails or panics.
    if !failpoint::is_on(Failpoint::UncertainTablesDeleted) {
        outputs.keep_files();
    }
    let edit = VersionEdit { changes: edit };
    measure_wait(&state.env, IoKind::Sync, || state.append_edit(&edit))
        .map_err(|error| state.make_read_only_under_lock(error))?;
    debug_assert!(state.manifest.with_state(|manifest| {
        manifest.keyspaces.get(&tree.id).is_none_or(|keyspace| keyspace.tree == *after.shape())
    }));
    tree.update_super_version(|view| swap(view, &after));
    if !tree.last_run_filter.is_used() {
        last_run_filter::release_filters(&after);
    }
    outputs.keep_files();
    for table in removed_tables(&before, &after) {
        table.set_obsolete();
    }
    let removed_blobs =
        before.blobs().files().filter(|used| after.blobs().file(used.file.record().id).is_none());
    removed_blobs.for_each(|used| used.file.set_obsolete());
    if failpoint::is_on(Failpoint::LiveBlobDeleted) {
        for used in removed_tables(&before, &after).flat_map(|table| table.blobs()) {
            let _ = state.vfs.remove(used.file.blob().path());
        }
    }
    Ok(true)
}

/// Returns the tables that `before` contains, but `after` does not.
fn removed_tables<'a>(
    before: &'a Version,
    after: &'a Version,
) -> impl Iterator<Item = &'a Arc<crate::tree::table_file::TableFile>> {
    let tables = before.runs().iter().flat_map(|run| run.tables().iter());
    tables.filter(|table| after.table(table.shape().id).is_none())
}

/// Syncs the database directory, so that the directory entries of new files are durable.
pub(crate) fn sync_directory(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    if failpoint::is_on(Failpoint::DirectoryNotSynced) {
        return Ok(());
    }
    vfs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))
}
